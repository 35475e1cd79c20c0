"""Flags that need a GPU's samples."""
from __future__ import annotations

from plumbline.measure import flags


def test_processes_of_somebody_else_on_the_gpus_invalidate() -> None:
    seen = flags._gpu({"foreign_processes": [{"gpu": 3, "pid": 4711, "name": "train.py"}], "event_reasons": {}})
    assert seen[0]["name"] == "foreign_load"
    assert seen[0]["invalidates"]
    assert "4711 train.py" in seen[0]["detail"]


def test_a_gpu_that_is_busy_for_nobody_is_named() -> None:
    seen = flags._gpu({"wedged": [{"gpu": "2", "detail": "GPU 2 is 100 % busy with no process"}]})
    assert "GPU 2" in seen[0]["detail"]
