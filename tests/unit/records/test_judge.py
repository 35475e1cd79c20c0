"""What report.yml refuses: experiments and runs that were not measured, figures that are none."""
from __future__ import annotations

from pathlib import Path

import pytest
from plumbline.analysis import judge, variables
from plumbline.analysis.store import Results
from plumbline.errors import PlumblineError
from plumbline.files import append_line
from plumbline.ids import ulid

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
