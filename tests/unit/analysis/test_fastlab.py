"""The benchmark's vectorised rule decides each lab as the real planner and decider do."""
from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from plumbline.analysis import history
from plumbline.analysis.weigh import Scale

from benchmarks import fastlab
from benchmarks.labs import Lab, World, make_experiment

LABS = 25
CELLS = {
    "plain": fastlab.Cell(),
    "noisy-candidates": fastlab.Cell(noise=5, ratio=1.06),
    "small-effect": fastlab.Cell(ratio=1.03),
    "outliers": fastlab.Cell(heavy=0.12, ratio=0.9),
    "steps-and-drift": fastlab.Cell(step=0.10, drift=0.10, ratio=1.06, boot_sd=0.005),
    "history-of-both": fastlab.Cell(history="both", ratio=1.06),
    "wrong-history": fastlab.Cell(history="both", wrong=0.5, boot_sd=0.03),
    "history-of-baseline": fastlab.Cell(history="baseline", noise=2, ratio=0.97),
}
NAMES = {"faster": 1, "slower": -1, "same": 0, "inconclusive": 9}


class Given(Lab):
    """A lab whose boots have the figures of row ``i`` of a draw."""

    def __init__(self, draw: fastlab.Draw, i: int, cell: fastlab.Cell, document: dict) -> None:
        super().__init__(World(request_sd=0.0, boot_h=cell.boot_h), document)
        self.draw, self.i = draw, i

    def speed(self, boot: dict) -> float:
        noise = self.draw.candidate if boot["role"] == "candidate" else self.draw.reference
        slot = len(self.boots)
        return math.exp(self.draw.level[self.i, slot] + noise[self.i, slot])


@pytest.mark.parametrize("blocks", [{"min": 2, "max": 10}, 4], ids=["sequential", "fixed"])
@pytest.mark.parametrize("name", CELLS)
def test_same_verdicts_and_boots(name: str, blocks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = CELLS[name]
    draw = fastlab.draw(cell, LABS, np.random.default_rng(5))
    rule = fastlab.Rule() if isinstance(blocks, dict) else fastlab.Rule(least=4, most=4)
    fast = fastlab.run(draw, rule)
    document = make_experiment(1, blocks=blocks, warm_up=False)
    for i in range(LABS):
        given = {}
        if draw.s_ref is not None:
            given["baseline"] = Scale(float(draw.s_ref[i]), draw.history_df)
        if draw.s_own is not None:
            given["candidate-1"] = Scale(float(draw.s_own[i]), draw.history_df)
        monkeypatch.setattr(history, "scales", lambda *_, scales=given: scales)
        lab = Given(draw, i, cell, document)
        run, _ = lab.run()
        found = lab.verdict(run)["comparisons"][0]
        assert (NAMES[found["verdict"]], len(lab.boots)) == (fast.verdict[i], fast.boots[i]), f"lab {i}"
        if found["ratio"] is not None and found["verdict"] != "inconclusive":
            assert found["ratio"] == pytest.approx(math.exp(fast.theta[i]), abs=2e-6)


def test_cells_reach_what_they_are_for() -> None:
    """The comparison above covers re-measured references, void blocks and dropped candidates."""
    outliers = fastlab.run(fastlab.draw(CELLS["outliers"], LABS, np.random.default_rng(5)))
    assert (outliers.boots > 2 * outliers.candidate_boots + 1).any()
