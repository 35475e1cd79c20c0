"""The declared figures come back from the outside, through the project's own client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from plumbline.measure import figures, workload
from plumbline.measure.client import LoadClient
from simulated_servers import Server, eagle

TOKENS = 256
TOLERANCE = 0.005


def measure(server: Server, concurrency: int, speculative: bool, requests: int) -> dict[str, Any]:
    """The metrics of one workload."""
    bodies = [
        workload.body(f"Question {number}: how much is {number} times {number + concurrency}?", TOKENS, 0)
        for number in range(requests)
    ]
    samples = LoadClient(server.url, concurrency=concurrency).run(bodies)
    assert all(sample.error is None for sample in samples), [sample.error for sample in samples]
    return figures.compute(samples, concurrency, speculative).metrics


def true_figures(physics: dict[str, Any], build: str, steps: int, batch: int) -> tuple[float, float]:
    """(tok/s of the whole batch, accept length) that the file declares, worked out by hand."""
    width = {1: 1.0, 4: 1.2}[batch]
    speed = physics["build_factor"][build]
    if steps == 0:
        return batch * 1000 / (physics["decode_ms"] * width) * speed, 1.0
    entry = physics["steps"][steps]
    cycle = entry["verify_ms"] + steps * entry["draft_ms"]
    return batch * entry["accept_length"] * 1000 / (cycle * width) * speed, entry["accept_length"]


@pytest.mark.parametrize(
    ("build", "steps", "story"),
    [("sim-a", 0, 88.8), ("sim-a", 2, 94.0), ("sim-b", 0, 82.2), ("sim-b", 2, 87.1), ("sim-b", 3, 60.0)],
)
def test_declared_figures_come_back(
    start: Callable[..., Server], physics: Callable[..., dict[str, Any]], build: str, steps: int, story: float
) -> None:
    document = physics("story-a", prefill={})
    server = start(document, *(eagle(steps) if steps else []), build=build).wait_ready()
    metric = measure(server, 1, steps > 0, 2)
    speed, accepted = true_figures(document, build, steps, 1)
    assert metric["decode_tok_s"] == pytest.approx(speed, rel=TOLERANCE)
    assert metric["decode_tok_s"] == pytest.approx(story, rel=0.006)
    assert metric["step_ms"] == pytest.approx(1000 * accepted / speed, rel=TOLERANCE)
    assert metric["accept_length"] == pytest.approx(accepted, rel=TOLERANCE)
    if steps != 2 or build == "sim-a":
        speed, accepted = true_figures(document, build, steps, 4)
        metric = measure(server, 4, steps > 0, 4)
        assert metric["output_tok_s"] == pytest.approx(speed, rel=TOLERANCE)
        assert metric["step_ms"] == pytest.approx(4000 * accepted / speed, rel=TOLERANCE)
