from __future__ import annotations

import hashlib
import re
from datetime import datetime
from typing import Any

import pytest
from plumbline.analysis import plan, records, schema
from plumbline.analysis.comparable import States, between
from plumbline.errors import PlumblineError

from benchmarks.labs import Lab, World, make_experiment


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def arms_of(lab: Lab) -> list[str]:
    return [b["arm"]["name"] for b in lab.boots]


def fail(record: dict) -> dict:
    return {**record, "status": "failed", "failure": {"class": "hang", "detail": "no progress"},
            "metrics": dict.fromkeys(record["metrics"]), "duration_s": 0.0}


def test_three_blocks_of_two_candidates_are_ten_boots() -> None:
    lab = Lab(World(), make_experiment(2, workloads=["one-stream", "sixteen"], blocks=3))
    _, stop = lab.run()
    assert stop["kind"] == "blocks"
    made = arms_of(lab)
    assert len(made) == 10
    assert [made[i] for i in (0, 3, 6, 9)] == ["baseline"] * 4
    assert all(set(made[i:i + 2]) == {"candidate-1", "candidate-2"} for i in (1, 4, 7))
    assert [b["warm_up"] for b in lab.boots] == [True] + [False] * 9
    assert len({m["id"] for m in lab.measurements}) == 20
    assert all(len(b["workloads"]) == 2 for b in lab.boots)
    for entry in lab.entries:
        schema.validate("plan", entry, "plan")
    for record in lab.measurements:
        schema.validate("measurement", record, "measurement")


def test_orders_come_from_the_seed_and_workloads_are_balanced() -> None:
    def orders(seed: int) -> list[str]:
        lab = Lab(World(), make_experiment(4, blocks=6, seed=seed))
        lab.begin()
        return [p["arm"] for block in lab.entries[0]["blocks"] for p in block]

    assert orders(1) == orders(1)
    assert orders(1) != orders(2)
    lab = Lab(World(), make_experiment(1, workloads=["load-0", "load-1", "load-2"], blocks=6))
    lab.run()
    first = [b["workloads"][0]["name"] for b in lab.boots if b["role"] == "candidate"]
    assert sorted(first) == sorted(["load-0", "load-1", "load-2"] * 2)


def test_killed_runs_go_on_without_measuring_twice() -> None:
    lab = Lab(World(), make_experiment(1, workloads=["one-stream", "sixteen"], blocks=3))
    run = lab.begin()
    whole = lab.ask(run)["boot"]
    lab.measure(whole, only=1)
    again = lab.ask(run)["boot"]
    assert again["id"] != whole["id"]
    assert [w["id"] for w in again["workloads"]] == [whole["workloads"][1]["id"]]
    assert "resumed" in again["reason"]
    lab.clock_h += 0.1
    assert lab.ask(run)["boot"]["workloads"] == again["workloads"]  # killed again before anything was measured
    while "boot" in (answer := lab.ask(run)):
        lab.measure(answer["boot"])
    assert len(lab.measurements) == len({m["id"] for m in lab.measurements}) == 14


def test_a_boot_that_failed_is_tried_again_then_its_arm_is_given_up() -> None:
    def faulty(record: dict, boot: dict) -> dict:
        return fail(record) if boot["arm"]["name"] == "candidate-2" else record

    lab = Lab(World(), make_experiment(2, blocks=3), mutate=faulty)
    run, stop = lab.run()
    assert stop["kind"] == "blocks"
    assert arms_of(lab).count("candidate-2") == 2
    assert arms_of(lab).count("candidate-1") == 3
    document = lab.verdict(run)
    assert document["hosts"][0]["given_up"][0]["arm"] == "candidate-2"
    said = {c["candidate"]: c for c in document["comparisons"]}
    assert said["candidate-2"]["verdict"] == "not_comparable"
    assert "hang" in said["candidate-2"]["reasons"][0]
    assert len(document["hosts"][0]["failures"]) == 2


def test_a_boot_that_does_not_start_fails_on_each_of_its_workloads() -> None:
    lab = Lab(World(), make_experiment(1, workloads=["one-stream", "sixteen"], blocks={"min": 2, "max": 4}),
              mutate=lambda r, b: fail(r) if b["role"] == "candidate" else r)
    run, _ = lab.run()
    assert arms_of(lab).count("candidate-1") == 2, "a boot is one try, whatever it was to measure"
    for comparison in lab.verdict(run)["comparisons"]:
        assert (comparison["verdict"], comparison["more_boots"]) == ("not_comparable", None)
        assert "failed: hang" in comparison["reasons"][0]
        assert len(comparison["excluded"]) == 2


def test_repeats_of_one_void_boot_are_one_boot() -> None:
    flag = {"name": "accept_length_one", "detail": "1.00", "invalidates": True}
    lab = Lab(World(), make_experiment(1, repeats=2, blocks={"min": 1, "max": 4}),
              mutate=lambda r, b: {**r, "flags": [flag]} if b["role"] == "candidate" else r)
    _, stop = lab.run()
    assert (stop["kind"], arms_of(lab).count("candidate-1")) == ("verdict", 2)


def test_a_boot_that_was_broken_off_from_outside_is_no_try_of_its_arm() -> None:
    left = iter(["stopped", "controller_died", "lease_lost", "lease_expired"])

    def broken(record: dict, boot: dict) -> dict:
        why = next(left, None) if boot["arm"]["name"] == "candidate-1" else None
        return {**fail(record), "failure": {"class": why, "detail": "from outside"}} if why else record

    lab = Lab(World(), make_experiment(1, blocks=3), mutate=broken)
    run, stop = lab.run()
    assert stop["kind"] == "blocks"
    assert arms_of(lab).count("candidate-1") == 4 + 3
    assert lab.verdict(run)["hosts"][0]["given_up"] == []


def test_a_fault_at_every_second_load_costs_boots_and_nothing_else() -> None:
    count = iter(range(1000))
    lab = Lab(World(ratio={"candidate-1": 1.06}), make_experiment(1, blocks=4),
              mutate=lambda r, _: fail(r) if next(count) % 2 == 0 else r)
    run, _ = lab.run()
    assert lab.verdict(run)["comparisons"][0]["boots"] == {"candidate": 4, "baseline": 5}


def test_a_reference_that_never_comes_up_ends_the_host() -> None:
    lab = Lab(World(), make_experiment(1), mutate=lambda r, _: fail(r))
    run, stop = lab.run()
    assert stop["kind"] == "failed"
    assert len(lab.boots) == 2
    assert lab.ask(run)["stop"] == stop["stop"]  # asked again: the same, and nothing is amended
    assert lab.ask(run)["amend"] is None
    schema.validate("verdict", lab.verdict(run), "verdict")


def test_candidates_leave_when_their_verdicts_are_reached() -> None:
    lab = Lab(World(ratio={"candidate-1": 1.5, "candidate-2": 1.01}, boot_sd=0.004), make_experiment(2))
    run, _ = lab.run()
    assert arms_of(lab).count("candidate-1") < arms_of(lab).count("candidate-2")
    dropped = [c for e in lab.entries for c in e.get("changes", []) if c["change"] == "drop"]
    assert dropped[0]["arm"] == "candidate-1"
    assert "faster" in dropped[0]["reason"]
    said = {c["candidate"]: c["verdict"] for c in lab.verdict(run)["comparisons"]}
    assert said["candidate-1"] == "faster"


def test_a_moved_reference_is_measured_again_and_its_block_is_void() -> None:
    lab = Lab(World(boot_sd=0.003, step=-0.15, step_at_h=0.15), make_experiment(1))
    run, _ = lab.run()
    again = [b for b in lab.boots if "the reference again" in b["reason"]]
    assert again
    change = next(c for e in lab.entries for c in e.get("changes", []) if c["change"] == "remeasure")
    assert "differ by" in change["reason"]
    comparison = lab.verdict(run)["comparisons"][0]
    assert any("the reference moved" in e["why"] for e in comparison["excluded"])
    assert comparison["verdict"] == "same"


@pytest.mark.parametrize("at", [2, 3, 4, 5])
def test_a_changed_state_starts_new_blocks_and_nothing_is_mixed(at: int) -> None:
    def changed(record: dict, boot: dict) -> dict:
        new = len(lab.boots) >= at
        speed = 0.9 if new and boot["role"] == "candidate" else 1.0
        metrics = {**record["metrics"], "decode_tok_s": record["metrics"]["decode_tok_s"] * speed}
        name = ("new" if new else "old") + boot["role"]
        state = {"digest": sha(name), "groups": {"build": sha(name)}, "unverified": []}
        return {**record, "metrics": metrics, "state": state}

    def compare(was: dict, now: dict) -> list[dict]:
        return [] if was["age"] == now["age"] else [
            {"group": "build", "item": "sglang", "was": was["age"], "now": now["age"], "impact": "performance",
             "remedy": "rebuild"}]

    lab = Lab(World(ratio={"candidate-1": 1.0}, boot_sd=0.004), make_experiment(1, blocks=4), mutate=changed,
              compare=compare)
    lab.states = {sha(age + role): {"age": age} for age in ("old", "new") for role in ("baseline", "candidate")}
    run, stop = lab.run()
    assert stop["kind"] == "blocks"
    restart = [c for e in lab.entries for c in e.get("changes", []) if c["change"] == "restart"]
    assert len(restart) == 1
    assert "build.sglang" in restart[0]["reason"]
    comparison = lab.verdict(run)["comparisons"][0]
    assert comparison["ratio"] == pytest.approx(0.9, rel=0.02)
    assert comparison["verdict"] == "slower"
    assert comparison["boots"]["candidate"] >= 3
    assert any("earlier state" in e["why"] and "build.sglang" in e["why"] for e in comparison["excluded"])
    for entry in lab.entries:
        schema.validate("plan", entry, "plan")


def of_driver(was: dict, now: dict) -> list[dict]:
    return [] if was["age"] == now["age"] else [
        {"group": "driver", "item": "version", "was": was["age"], "now": now["age"], "impact": "performance",
         "remedy": ""}]


def lab_of_two_states(world: World, document: dict, at: int, *, seed: int = 1, **effects: Any) -> Lab:
    """A lab whose driver is another from the boot ``at`` on. ``effects``: of records of the old state."""
    def changed(record: dict, boot: dict) -> dict:
        age = "new" if len(lab.boots) >= at else "old"
        record = {**record, "state": {"digest": sha(age), "groups": {"driver": sha(age)}, "unverified": []}}
        return {**record, **(effects if age == "old" and boot["role"] == "candidate" else {})}

    lab = Lab(world, document, seed=seed, mutate=changed, compare=of_driver)
    lab.states = {sha(age): {"age": age} for age in ("old", "new")}
    return lab


def changes_of(lab: Lab, *kinds: str) -> list[dict]:
    return [c for e in lab.entries for c in e.get("changes", []) if c["change"] in kinds]


@pytest.mark.parametrize("at", range(4, 14))
def test_good_boots_of_an_earlier_state_do_not_make_an_arm_unusable(at: int) -> None:
    lab = lab_of_two_states(World(ratio={"candidate-1": 1.012, "candidate-2": 1.012}, boot_sd=0.012),
                            make_experiment(2), at)
    run, _ = lab.run()
    assert changes_of(lab, "restart")
    assert not [c for c in changes_of(lab, "drop") if "not_comparable" in c["reason"]]
    said = lab.verdict(run)
    schema.validate("verdict", said, "verdict")
    for comparison in said["comparisons"]:
        assert comparison["verdict"] != "not_comparable"
        assert comparison["boots"]["candidate"] >= 2, "each was measured in the new state"


def test_what_was_void_before_the_state_changed_is_measured_after_it() -> None:
    flag = {"name": "gpu_throttled", "detail": "hot", "invalidates": True}
    lab = lab_of_two_states(World(ratio={"candidate-1": 1.1}, boot_sd=0.004), make_experiment(1), 4, flags=[flag])
    run, stop = lab.run()
    assert stop["kind"] == "verdict"
    assert lab.verdict(run)["comparisons"][0]["verdict"] == "faster"


@pytest.mark.parametrize("hopeless", [False, True])
def test_arms_dropped_before_the_state_changed_are_measured_again(hopeless: bool) -> None:
    """One verdict was reached, or was out of reach; of the new state neither says anything."""
    world = World(ratio={"candidate-1": 1.10, "candidate-2": 1.016}, boot_sd=0.006)
    if hopeless:
        world = World(ratio={"candidate-1": 1.015, "candidate-2": 1.03}, boot_sd=0.008)
    found = 0
    for seed in range(8):
        undisturbed = lab_of_two_states(world, make_experiment(2), 1000, seed=seed)
        undisturbed.run()
        lab = lab_of_two_states(world, make_experiment(2), len(undisturbed.boots) - 1, seed=seed)
        run, _ = lab.run()
        changes = changes_of(lab, "drop", "reactivate", "restart")
        kinds = [c["change"] for c in changes]
        if "restart" not in kinds:
            continue
        before = changes[:kinds.index("restart")]
        for change in before:
            if change["change"] == "drop" and bool(change.get("hopeless")) == hopeless:
                found += 1
                assert any((c["change"], c.get("arm")) == ("reactivate", change["arm"]) for c in before)
                again = next(c for c in lab.verdict(run)["comparisons"] if c["candidate"] == change["arm"])
                assert again["boots"]["candidate"] >= 2, "it was measured in the new state"
        for entry in lab.entries:
            schema.validate("plan", entry, "plan")
    assert found


def test_an_arm_that_was_given_up_stays_out_when_the_state_changes() -> None:
    lab = lab_of_two_states(World(), make_experiment(2, blocks=4), 7)
    changed = lab.mutate
    assert changed is not None
    lab.mutate = lambda r, b: fail(changed(r, b)) if b["arm"]["name"] == "candidate-2" else changed(r, b)
    run, _ = lab.run()
    assert changes_of(lab, "restart")
    assert arms_of(lab).count("candidate-2") == 2
    said = {c["candidate"]: c for c in lab.verdict(run)["comparisons"]}
    assert said["candidate-2"]["verdict"] == "not_comparable"
    assert "hang" in said["candidate-2"]["reasons"][0]


@pytest.mark.parametrize("candidates", [0, 1])
def test_blocks_of_the_earlier_state_do_not_count_for_the_fewest(candidates: int) -> None:
    document = make_experiment(candidates, blocks={"min": 5, "max": 8})
    lab = lab_of_two_states(World(ratio={"candidate-1": 1.5}, boot_sd=0.002), document, 0)
    if not candidates:  # a reference to be settled against
        lab.run()
        lab.spread_history(1)
    before = len(lab.boots)
    changed = lab_of_two_states(lab.world, document, before + (5 if candidates else 2))
    changed.baselines, changed.measurements, changed.entries = lab.baselines[:], lab.measurements[:], lab.entries[:]
    changed.boots, changed.runs, changed.clock_h = lab.boots[:], lab.runs, lab.clock_h
    run = changed.begin()
    while "boot" in (answer := changed.ask(run)):
        changed.measure(answer["boot"])
    assert changes_of(changed, "restart")
    new = [m for m in changed.measurements if m["run"] == run and m["state"]["digest"] == sha("new")]
    assert len({m["boot"] for m in new}) >= (11 if candidates else 5)


def test_a_clock_that_is_set_back_does_not_make_new_boots_old() -> None:
    lab = lab_of_two_states(World(ratio={"candidate-1": 1.10}, boot_sd=0.006), make_experiment(1), 4)
    run = lab.begin()
    while "boot" in (answer := lab.ask(run)):
        if len(lab.boots) == 4:
            lab.clock_h -= 8
        lab.measure(answer["boot"])
    assert answer["kind"] == "verdict"
    comparison = lab.verdict(run)["comparisons"][0]
    assert comparison["verdict"] == "faster"
    assert len(comparison["excluded"]) == 4


def test_a_state_that_keeps_changing_ends_the_host() -> None:
    count = iter(range(1000))
    lab = Lab(World(), make_experiment(1), mutate=lambda r, _: {
        **r, "state": {"digest": sha(str(next(count))), "groups": {}, "unverified": []}})
    _, stop = lab.run()
    assert stop["kind"] == "failed"
    assert "keeps changing" in stop["stop"]


def test_budgets_stop_before_a_block_that_does_not_fit() -> None:
    lab = Lab(World(ratio={"candidate-1": 1.02}), make_experiment(1, budget={"boots": 8}))
    _, stop = lab.run()
    assert (stop["kind"], len(lab.boots)) == ("budget", 7)
    lab = Lab(World(ratio={"candidate-1": 1.02}), make_experiment(1, budget={"minutes": 40}))
    _, stop = lab.run()
    assert (stop["kind"], len(lab.boots)) == ("budget", 5)  # 7.5 minutes a boot
    with pytest.raises(PlumblineError, match="does not hold one block"):
        Lab(World(), make_experiment(3, budget={"boots": 4})).begin()


def test_a_server_that_hangs_at_its_start_spends_the_budget() -> None:
    """The records that the controller writes of such a boot, an hour after it was planned."""
    lab = Lab(World(), make_experiment(2, workloads=["one-stream", "sixteen"], budget={"minutes": 90}))
    run = lab.begin()
    while "boot" in (answer := lab.ask(run)):
        boot = answer["boot"]
        if boot["arm"]["name"] == "candidate-1":
            lab.clock_h += 1
            failed = records.failed_boot(boot, {"class": "hang"}, engine="simulator", state=None, server={}, nccl={},
                                         measured=set(), now=datetime.fromisoformat(lab.now()))
            assert [r["duration_s"] for r in failed] == [3600.0, 0.0]
            lab.measurements += failed
            lab.boots.append(boot)
        else:
            lab.measure(boot)
    assert answer["kind"] == "budget"
    assert float(re.search(r"budget: ([\d.]+) of 90 minutes", answer["stop"])[1]) > 120
    assert len([b for b in lab.boots if b["arm"]["name"] == "candidate-1"]) == 2


def test_no_verdict_before_the_end_of_a_fixed_number_of_blocks() -> None:
    lab = Lab(World(ratio={"candidate-1": 2.0}), make_experiment(1, blocks=4))
    run = lab.begin()
    for _ in range(7):
        lab.measure(lab.ask(run)["boot"])
    comparison = lab.verdict(run)["comparisons"][0]
    assert comparison["verdict"] == "inconclusive"
    assert "interim" in comparison["reasons"][0]


def test_eta_counts_what_is_left() -> None:
    lab = Lab(World(), make_experiment(1, blocks=3))
    run = lab.begin()
    assert plan.eta(lab.entries, lab.measurements, lab.host, run) is None
    for left in (6, 5, 4):
        lab.measure(lab.ask(run)["boot"])
        assert plan.eta(lab.entries, lab.measurements, lab.host, run) == pytest.approx(left * 7.5 * 60)


def test_reference_alone_stops_when_the_baseline_is_settled() -> None:
    lab = Lab(World(boot_sd=0.003), make_experiment(0, blocks={"min": 2, "max": 6}))
    first, stop = lab.run()
    assert (stop["kind"], len(lab.boots)) == ("blocks", 6)  # no reference to compare with
    assert lab.verdict(first)["baselines"][0]["status"] == "new"
    lab.spread_history(1)
    second, stop = lab.run()
    assert (stop["kind"], len(lab.boots)) == ("verdict", 8)
    assert lab.verdict(second)["baselines"][0]["status"] == "stable"


def test_repeats_are_measured_on_one_boot() -> None:
    lab = Lab(World(request_sd=0.01), make_experiment(1, blocks=3, repeats=3))
    run, _ = lab.run()
    assert len(lab.boots) == 7
    assert [w["repeat"] for w in lab.boots[0]["workloads"]] == [1, 2, 3]
    assert lab.verdict(run)["comparisons"][0]["boots"]["candidate"] == 3


def test_an_arm_whose_measurements_are_all_void_is_not_measured_on() -> None:
    def one_token(record: dict, boot: dict) -> dict:
        flag = {"name": "accept_length_one", "detail": "1.00: the draft does not match", "invalidates": True}
        return {**record, "flags": [flag]} if boot["role"] == "candidate" else record

    lab = Lab(World(), make_experiment(1), mutate=one_token)
    run, stop = lab.run()
    assert (stop["kind"], len(lab.boots)) == ("verdict", 5)
    comparison = lab.verdict(run)["comparisons"][0]
    assert comparison["verdict"] == "not_comparable"
    assert "does not match" in comparison["reasons"][0]
    assert len(comparison["excluded"]) == 2


def test_measurements_of_two_states_are_not_comparable() -> None:
    lab = Lab(World(), make_experiment(0, blocks=2))
    lab.run()
    a, b = lab.measurements
    assert between(a, b, States())["comparable"]
    other = {**b, "state": {"digest": "other", "groups": {"build": "c", "nccl": "n"}, "unverified": []}}
    found = between(a, other, States())
    assert not found["comparable"]
    assert [r["group"] for r in found["differences"]] == ["build"]


def test_what_the_boots_left_cannot_decide_is_dropped_and_said_so() -> None:
    """3 % scatter and a small effect: ten blocks would not tell, and forty would not either."""
    lab = Lab(World(ratio={"candidate-1": 1.012}, boot_sd=0.03), make_experiment(1), seed=3)
    run, stop = lab.run()
    assert stop["kind"] == "budget"
    assert "candidate-1: inconclusive" in stop["stop"]
    assert 9 <= len(lab.boots) < 21
    for entry in lab.entries:
        schema.validate("plan", entry, "plan")
    (change,) = [c for e in lab.entries for c in e.get("changes", []) if c.get("hopeless")]
    assert "scatter by" in change["reason"]
    comparison = lab.verdict(run)["comparisons"][0]
    assert comparison["verdict"] == "inconclusive"
    assert comparison["more_boots"] is None or comparison["more_boots"] > 4 * (10 - (len(lab.boots) - 1) // 2)
    assert any("cut" in r and "variance" in r for r in comparison["reasons"])
    whole = Lab(lab.world, make_experiment(1, blocks={"min": 9, "max": 10}), seed=3)
    whole.run()
    assert len(whole.boots) >= 19


def test_a_hopeless_candidate_is_not_taken_in_again_while_others_are_measured() -> None:
    world = World(ratio={"candidate-1": 1.015, "candidate-2": 1.03}, boot_sd=0.008, candidate_noise=1.0)
    found = 0
    for seed in range(6):
        lab = Lab(world, make_experiment(2), seed=seed)
        lab.run()
        changes = [c for e in lab.entries for c in e.get("changes", [])]
        for i, change in enumerate(changes):
            if change.get("hopeless"):
                found += 1
                later = [c["change"] for c in changes[i + 1:] if c.get("arm") == change["arm"]]
                assert "reactivate" not in later
    assert found
