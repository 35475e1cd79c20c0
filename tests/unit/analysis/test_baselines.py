from __future__ import annotations

from typing import Any

import pytest
from plumbline.analysis import baselines, schema

from benchmarks.labs import Lab, World, make_experiment

BLOCKS = 3


def lab(**world: Any) -> Lab:
    return Lab(World(boot_sd=0.003, request_sd=0.001, **world), make_experiment(0, blocks=BLOCKS))


def now(found: Lab, run: str) -> dict:
    document = found.verdict(run)
    schema.validate("verdict", document, "verdict")
    return document["baselines"][0]


def test_first_is_new_then_stable_and_the_first_state_is_the_reference() -> None:
    host = lab()
    first, _ = host.run()
    assert now(host, first)["status"] == "new"
    host.spread_history(1)
    second, _ = host.run()
    found = now(host, second)
    assert found["status"] == "stable"
    assert found["reference"]["kind"] == "first"
    assert found["boots"] == {"reference": 3, "now": 3}


@pytest.mark.parametrize(("speed", "status"), [(0.926, "drifted"), (1.07, "improved")])
def test_a_step_is_named_and_split(speed: float, status: str) -> None:
    host = lab()
    host.run()
    host.spread_history(12)
    host.world.tok_s *= speed
    run, _ = host.run()
    found = now(host, run)
    assert found["status"] == status
    assert found["change"] == pytest.approx(speed - 1, abs=0.006)
    assert found["change_split"]["accept_length"] == pytest.approx(0)
    assert found["change_split"]["step_time"] == pytest.approx(speed - 1, abs=0.006)
    assert any("nothing in it explains" in r for r in found["reasons"])


def test_a_change_of_accept_length_is_not_one_of_step_time() -> None:
    host = lab(accept_length={"baseline": 2.0})
    host.run()
    host.spread_history(1)
    host.world.accept_length["baseline"] = 1.8
    host.world.tok_s *= 0.9
    run, _ = host.run()
    found = now(host, run)
    assert found["status"] == "drifted"
    assert found["change_split"]["accept_length"] == pytest.approx(-0.1, abs=1e-6)
    assert found["change_split"]["step_time"] == pytest.approx(0.0, abs=0.01)


def test_only_an_acceptance_moves_the_reference() -> None:
    host = lab()
    for _ in range(4):  # slow drift, 1.5 % a week: each is near its neighbour
        run, _ = host.run()
        host.spread_history(7)
        host.world.tok_s *= 0.985
    found = now(host, run)
    assert found["status"] == "drifted"
    accepted = baselines.accept(host.baselines, run, host.now(), "known and wanted")
    for row in accepted:
        schema.validate("baseline", row, "accepted")
    host.baselines += accepted
    assert now(host, run) == found  # what is accepted later does not change what a run said
    host.world.tok_s /= 0.985
    run, _ = host.run()
    found = now(host, run)
    assert (found["status"], found["reference"]["kind"]) == ("stable", "accepted")


def test_state_changes_are_listed_and_expired_is_said_until_measured() -> None:
    rows: list[dict] = [{"group": "build", "item": "sglang", "was": "A", "now": "B", "impact": "performance",
                         "remedy": "rebuild"},
                        {"group": "firmware_and_kernel", "item": "kernel", "was": "1", "now": "2", "impact": "possible",
                         "remedy": None}]

    def compare(_was: dict, _now: dict) -> list[dict]:
        return rows

    state = {"age": "old"}

    def aged(record: dict, _boot: dict) -> dict:
        return {**record, "state": {"digest": state["age"], "groups": {}, "unverified": []}}

    host = Lab(World(boot_sd=0.003), make_experiment(0, blocks=BLOCKS), mutate=aged, compare=compare)
    host.states = {"old": {}, "new": {}}
    host.run()
    key = baselines.series_key(host.baselines[0])
    found = baselines.status(host.baselines, key, None, 0.02, state={"digest": "new", "groups": {}}, states=host.states,
                             compare_states=compare)
    assert (found["status"], found["state_changes"]) == ("expired", rows)
    same = baselines.status(host.baselines, key, None, 0.02, state={"digest": "old", "groups": {}}, states=host.states,
                            compare_states=compare)
    assert same["status"] == "uncertain"
    state["age"] = "new"
    host.world.tok_s *= 0.93
    host.spread_history(3)
    run, _ = host.run()
    found = now(host, run)
    assert (found["status"], found["state_changes"]) == ("drifted", rows)


def test_a_noisy_host_is_mostly_uncertain() -> None:
    said = []
    for seed in range(40):
        host = Lab(World(boot_sd=0.05), make_experiment(0, blocks=BLOCKS), seed=seed)
        host.run()
        host.spread_history(1)
        run, _ = host.run()
        found = now(host, run)
        said.append(found["status"])
        if found["status"] == "uncertain":
            assert any("scatter" in r or "more boots" in r for r in found["reasons"])
    assert said.count("uncertain") > 30
    assert said.count("drifted") + said.count("improved") <= 3


def test_one_boot_is_never_called_a_change() -> None:
    host = lab()
    host.run()
    host.spread_history(1)
    host.world.tok_s *= 0.9
    host.document = make_experiment(0, blocks=1)
    run, _ = host.run()
    found = now(host, run)
    assert found["status"] == "uncertain"
    assert any("one boot" in r for r in found["reasons"])


def test_change_points_are_found_where_the_level_moved_and_nowhere_else() -> None:
    host = lab()
    for week in range(9):
        if week == 4:
            host.world.tok_s *= 0.93
            moved_at = host.now()
        run, _ = host.run()
        host.spread_history(7)
    points = now(host, run)["change_points"]
    assert [p["at"] for p in points] == [moved_at]
    assert points[0]["change"] == pytest.approx(-0.07, abs=0.005)
    quiet = lab()
    for _ in range(9):
        run, _ = quiet.run()
        quiet.spread_history(7)
    assert now(quiet, run)["change_points"] == []


def test_another_load_of_the_same_name_is_another_series() -> None:
    host = lab()
    host.run()
    rows = list(host.baselines)
    other = {**rows[0], "load": "another"}
    assert baselines.reference(rows, baselines.series_key(other)) is None


def test_a_difference_that_cannot_matter_does_not_part_the_boots_of_a_run() -> None:
    """A sysctl that somebody sets in the middle of a run: the boots before it still count, then and now."""
    def compare(was: dict, now: dict) -> list[dict]:
        impact = "possible" if was["build"] == now["build"] else "performance"
        return [{"group": "g", "item": "i", "was": "1", "now": "2", "impact": impact, "remedy": "none"}]

    state = {"build": "A", "sysctl": 0}

    def noted(record: dict, _boot: dict) -> dict:
        state["sysctl"] += 1  # another one at each boot
        digest = f"{state['build']}{state['sysctl']}"
        host.states[digest] = dict(state)
        return {**record, "state": {"digest": digest, "groups": {}, "unverified": []}}

    host = Lab(World(boot_sd=0.003, request_sd=0.001), make_experiment(0, blocks=BLOCKS), mutate=noted, compare=compare)
    first, _ = host.run()
    (accepted,) = baselines.accept(host.baselines, first, host.now(), "", host.states, compare)
    assert len(accepted["boots"]) == 3
    host.spread_history(1)
    host.world.tok_s *= 0.93
    state["build"] = "B"
    run, _ = host.run()
    for rows in ([], [accepted]):
        host.baselines += rows
        found = now(host, run)
        assert (found["status"], found["boots"]) == ("drifted", {"reference": 3, "now": 3})
