"""The Molecule scenario, and that it did something: tasks that were not skipped are counted."""

from __future__ import annotations

import pytest
from hosts_lab import PLANTED, HostsLab

# Tasks that a converge must have run on each host, none of them skipped: a role that were left out would show.
LEAST = {"bare-12": 45, "ct-12": 35}

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(1800)]
Ran = tuple[HostsLab, int, str]


def test_the_scenario_passes(molecule: Ran) -> None:
    _lab, status, text = molecule
    assert status == 0, text[-8000:]


def test_no_task_was_left_out_and_a_second_run_changes_nothing(molecule: Ran) -> None:
    lab, _status, text = molecule
    runs = lab.runs("converge.yml")
    assert len(runs) == 3, text[-8000:]
    checked, first, second = runs
    assert checked["check"] and not first["check"] and not second["check"]
    assert sorted(h for h in first["hosts"] if h != "localhost") == sorted(lab.platforms) == sorted(LEAST)
    for name, least in LEAST.items():
        for run in runs:
            assert run["hosts"][name]["failures"] == 0 and run["hosts"][name]["unreachable"] == 0, f"{name}: {run}"
        assert first["hosts"][name]["ok"] >= least, f"{name} ran {first['hosts'][name]['ok']} tasks only"
        assert first["hosts"][name]["changed"] >= 10, f"{name} changed nothing much: {first['hosts'][name]}"
        changed = second["hosts"][name]["changed"]
        assert changed == 0, f"{name}: the second run changed {changed}"


def test_it_was_verified_and_no_secret_was_shown(molecule: Ran) -> None:
    lab, _status, text = molecule
    tested = lab.verified(lab.ephemeral / "results")
    assert sorted(tested) == sorted(lab.platforms)
    assert all(passed >= 20 and failed == 0 for passed, failed in tested.values()), tested
    assert PLANTED not in text
