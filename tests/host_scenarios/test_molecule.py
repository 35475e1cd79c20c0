"""The Molecule scenario, and that it did something: tasks that were not skipped are counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts_lab import PLANTED, HostsLab, missing

# Tasks that a converge must have run on each host, none of them skipped: a role that were left out would show.
LEAST = {"bare-12": 45, "ct-12": 35}

# The tests of one set of hosts run on one worker, the other set beside them.
pytestmark = [pytest.mark.hosts, pytest.mark.timeout(1800), pytest.mark.xdist_group("default")]
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


@pytest.mark.xdist_group("trixie")
def test_the_driver_on_another_release(tmp_path: Path) -> None:
    """Debian 13's names, by the same role, on a machine and in a container."""
    assert not missing(), missing()
    lab = HostsLab("trixie", tmp_path)
    try:
        status, text = lab.molecule("test", "--destroy=never")
    finally:
        lab.destroy()
    assert status == 0, text[-8000:]
    checked, first, second = lab.runs("driver.yml")
    assert checked["check"]
    for name in lab.platforms:
        assert first["hosts"][name]["changed"] >= 6, f"{name} changed nothing much: {first['hosts'][name]}"
        assert second["hosts"][name]["changed"] == 0
    assert lab.runs("verify_driver.yml")[-1]["hosts"][lab.platforms[0]]["ok"] >= 3
