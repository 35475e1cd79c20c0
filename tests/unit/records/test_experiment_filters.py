"""The filters of plumbline_experiment: what a record says of a task that failed, and of NCCL."""
from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[3] / "filter_plugins" / "plumbline_experiment.py"


def filters() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("plumbline_experiment_filters", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FilterModule().filters()


@pytest.fixture
def failure() -> Any:
    return filters()["plumbline_failure"]


def test_a_classified_failure_stays_as_it_is_with_the_path_of_the_log(failure: Any) -> None:
    found = {"class": "cuda_oom", "detail": "a GPU ran out of memory", "lines": ["x"]}
    log = "/r/boots/B/server.log"
    assert failure({"failure": found, "log": log}, "Wait") == {**found, "log": log}


@pytest.mark.parametrize(("result", "detail"), [
    ({"msg": "no space"}, "Record: no space"),
    ({"module_stderr": "Traceback"}, "Record: Traceback"),
    ({}, "Record: no message"),
    ({"msg": "One or more items failed", "results": [{"msg": "fine"}, {"failed": True, "msg": "no such prompt file"}]},
     "Record: no such prompt file"),
])
def test_else_it_is_what_the_task_said(failure: Any, result: dict, detail: str) -> None:
    assert failure(result, "Record") == {"class": "task_failed", "detail": detail}


@pytest.mark.parametrize(("args", "ranks"), [({}, 1), ({"tp": 8}, 8), ({"tp-size": 4, "pp-size": 2}, 8)])
def test_ranks_are_those_that_share_a_communicator(tmp_path: Path, args: dict, ranks: int) -> None:
    boot = {"args": args, "arm": {"nccl_profile": "none"}}
    assert filters()["plumbline_nccl"]({"digest": "d", "groups": {}}, boot, str(tmp_path), "env_file")["ranks"] == ranks


@pytest.mark.parametrize(("name", "broken_off"), [
    ("stopped", True), ("controller_died", True), ("lease_lost", True), ("lease_expired", True),
    ("server_died", False), ("task_failed", False)])
def test_a_boot_that_was_broken_off_from_outside(name: str, broken_off: bool) -> None:
    assert filters()["plumbline_interrupted"]({"class": name, "detail": ""}) is broken_off
