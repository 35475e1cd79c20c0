"""What report.yml refuses: experiments and runs that were not measured, figures that are none; and what is accepted."""
from __future__ import annotations

from pathlib import Path

import pytest
from plumbline.analysis import judge, variables
from plumbline.analysis.store import Results
from plumbline.errors import PlumblineError
from plumbline.files import append_line
from plumbline.ids import ulid

from benchmarks.labs import Lab, World, make_experiment

RUN = ulid()


@pytest.fixture
def results(tmp_path: Path) -> Results:
    append_line(tmp_path / "eagle3-steps" / "plan.jsonl", {"run": RUN, "host": "h", "event": "planned"})
    return Results(tmp_path)


def test_an_experiment_that_was_not_measured(results: Results) -> None:
    with pytest.raises(PlumblineError, match=r"'eagle3-step'.*allowed: eagle3-steps; remedy: did you mean"):
        judge.judge(results, results.experiment("eagle3-step"))


def test_a_run_that_was_not_measured(results: Results) -> None:
    with pytest.raises(PlumblineError, match=rf"no such run; where: -e run; found: {ulid()[:3]}.*allowed: {RUN}"):
        judge.judge(results, results.experiment("eagle3-steps"), ulid())


@pytest.mark.parametrize("value", ["2%", "many", 0, 1, 5])
def test_a_margin_that_is_none(value: object) -> None:
    with pytest.raises(PlumblineError, match=r"margin is not a fraction; where: -e margin; found: .*such as 0.02"):
        variables.fraction("margin", value)


def test_what_was_accepted_of_a_part_of_a_run_is_accepted_anew_with_all_of_it(tmp_path: Path) -> None:
    results = Results(tmp_path)
    store = results.experiment("lab")
    lab = Lab(World(), make_experiment(0, blocks=4, workloads=["one-stream", "sixteen"]))
    kept = 0

    def measure(run: str) -> None:
        nonlocal kept
        lab.measure(lab.ask(run)["boot"])
        for record, row in zip(lab.measurements[kept:], lab.baselines[kept:]):
            store.append_measurement(record)
            results.append_baseline("sim-1", row)
        kept = len(lab.measurements)

    def accept(run: str) -> list[tuple[str, int]]:
        return [(r["workload"], len(r["boots"])) for r in judge.accept(results, store, run, "by the test")]

    first = lab.begin()
    measure(first)
    assert accept(first) == [("one-stream", 1), ("sixteen", 1)]
    assert accept(first) == [], "these boots are the reference already"
    for _ in range(3):
        measure(first)
    assert accept(first) == [("one-stream", 4), ("sixteen", 4)]
    second = lab.begin()
    measure(second)
    assert accept(second) == [("one-stream", 1), ("sixteen", 1)]
    assert accept(first) == [("one-stream", 4), ("sixteen", 4)], "another run was accepted since"
