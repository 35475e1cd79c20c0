"""A candidate that lost its CUDA graph is said to have lost it: that is often the whole explanation."""
from __future__ import annotations

from typing import Optional

import pytest

from benchmarks.labs import Lab, World, make_experiment


def reasons(own: Optional[float], base: Optional[float]) -> list[str]:
    def share(record: dict, boot: dict) -> dict:
        value = own if boot["role"] == "candidate" else base
        argv = ["--speculative-algorithm", "EAGLE3"] if boot["role"] == "candidate" else []
        return {**record, "metrics": {**record["metrics"], "graph_share": value},
                "server": {**record["server"], "argv": argv}}

    lab = Lab(World(ratio={"candidate-1": 0.73}), make_experiment(1, blocks=3), mutate=share)
    run, _ = lab.run()
    (comparison,) = lab.verdict(run)["comparisons"]
    return [r for r in comparison["reasons"] if "CUDA graph" in r]


def test_the_verify_step_without_a_graph_is_said() -> None:
    assert reasons(0.0, 1.0) == ["the verify step runs without CUDA graph (100% of the decode lines), the baseline's "
                                 "with one (100%)"]


@pytest.mark.parametrize(("own", "base"), [(1.0, 1.0), (None, None), (0.0, 0.0), (0.9, 1.0)])
def test_nothing_is_said_where_nothing_was_lost_or_seen(own: Optional[float], base: Optional[float]) -> None:
    assert reasons(own, base) == []
