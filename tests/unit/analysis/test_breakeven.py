from __future__ import annotations

import pytest
from plumbline.analysis import breakeven, schema

from benchmarks.labs import Lab, World, make_experiment

THREE = {"speculative-algorithm": "EAGLE3", "speculative-num-steps": 3, "speculative-eagle-topk": 1,
         "speculative-num-draft-tokens": 4}


@pytest.mark.parametrize(("args", "most"), [
    (THREE, 4), ({**THREE, "speculative-num-steps": 2, "speculative-num-draft-tokens": 3}, 3),
    ({"speculative-algorithm": "NGRAM", "speculative-num-draft-tokens": 8}, 8), ({}, None),
    ({**THREE, "speculative-eagle-topk": 4, "speculative-num-draft-tokens": 16}, 4),
    ({**THREE, "speculative-num-draft-tokens": 2}, 2)])
def test_most_accepted(args: dict, most: int) -> None:
    assert breakeven.most_accepted(args) == most


def test_the_story_of_three_steps() -> None:
    """A cycle of 36 ms against 12.17 ms: break-even at 2.96, 2.16 reached, 0.73x."""
    found = breakeven.assess(2.16, 36.0, 12.17, THREE)
    assert found["break_even_accept_length"] == pytest.approx(2.958, abs=0.001)
    assert found["speed_up"] == pytest.approx(0.730, abs=0.001)
    assert found["can_win"] is True
    assert "would need 2.96" in found["advice"]
    assert "acceptance per token" in found["advice"]


def test_no_draft_can_win_where_a_cycle_costs_more_than_it_can_yield() -> None:
    found = breakeven.assess(2.16, 60.0, 12.17, THREE)
    assert found["can_win"] is False
    assert "no draft can win" in found["advice"]


def test_acceptance_needed_inverts_the_chain() -> None:
    for a in (0.1, 0.5, 0.9):
        length = sum(a ** i for i in range(4))
        assert breakeven.acceptance_needed(length, 3) == pytest.approx(a, abs=1e-9)
    assert breakeven.acceptance_needed(5.0, 3) is None


def row(steps: int, accept: float, needed: float, verdict: str) -> dict:
    return {"arm": f"eagle3-{steps}step", "steps": steps, "accept_length": accept, "break_even_accept_length": needed,
            "max_accept_length": steps + 1, "verdict": verdict, "ratio": accept / needed}


def test_two_or_three_steps_is_answered_by_figures() -> None:
    found = breakeven.compare_steps([row(3, 2.16, 2.96, "slower"), row(2, 2.1, 1.98, "faster")])
    assert found["best"] == "eagle3-2step"
    assert "fewer steps win" in found["advice"]
    assert found["table"][1]["marginal"]["accept_length"] == pytest.approx(0.06)
    assert found["table"][1]["marginal"]["break_even"] == pytest.approx(0.98)


def test_a_larger_ratio_that_is_not_decided_does_not_hide_one_that_is() -> None:
    found = breakeven.compare_steps([row(2, 2.1, 1.94, "faster"), row(3, 2.6, 2.36, "inconclusive")])
    assert found["best"] == "eagle3-2step"
    assert found["advice"].endswith("eagle3-2step is the best that is decided; larger and not decided: eagle3-3step")
    assert breakeven.compare_steps([row(3, 2.6, 2.36, "inconclusive")])["best"] is None


def test_every_number_of_steps_under_its_break_even() -> None:
    found = breakeven.compare_steps([row(2, 1.5, 2.0, "slower"), row(3, 1.6, 2.9, "slower")])
    assert found["best"] is None
    assert "no draft of this accuracy can win here" in found["advice"]
    assert "accept length of 2.00" in found["advice"]


def test_a_draft_that_does_not_match_is_not_advised_to_be_more_accurate() -> None:
    args = {"speculative-algorithm": "EAGLE3", "speculative-num-steps": 2, "speculative-num-draft-tokens": 3}
    advice = breakeven.assess(1.0, 24.1, 12.17, args)["advice"]
    assert "does not belong to the model or to the algorithm" in advice
    assert "more accurate" not in advice
    assert "nothing that the draft proposes" not in breakeven.assess(1.2, 24.1, 12.17, args)["advice"]


def test_a_curve_by_imposed_acceptance_is_marked_and_is_no_verdict() -> None:
    """Arms with SGLANG_SIMULATE_ACC_LEN give step times at several accept lengths; nothing else of them is used."""
    names = ["imposed-2.5", "imposed-1.5", "imposed-2.0"]
    lengths = {n: float(n.split("-")[1]) for n in names}
    flag = {"name": "simulated_acceptance", "detail": "imposed", "invalidates": True}

    def marked(record: dict, boot: dict) -> dict:
        return {**record, "flags": [flag]} if boot["role"] == "candidate" else record

    world = World(boot_sd=0.002, request_sd=0.001, ratio={n: length / 1.98 for n, length in lengths.items()},
                  accept_length=lengths)
    lab = Lab(world, make_experiment(0, axes={"variant": names}), mutate=marked)
    run, stop = lab.run()
    assert stop["kind"] == "verdict"
    document = lab.verdict(run)
    schema.validate("verdict", document, "verdict")
    assert {c["verdict"] for c in document["comparisons"]} == {"not_comparable"}
    (steps,) = document["steps"]
    assert (steps["table"], steps["best"]) == ([], None)
    assert [p["accept_length"] for p in steps["curve"]] == [1.5, 2.0, 2.5]
    assert all(p["simulated"] and p["break_even_accept_length"] == pytest.approx(1.98, rel=0.02)
               for p in steps["curve"])
    assert [p["speed_up"] > 1 for p in steps["curve"]] == [False, True, True]
    assert "simulated, not a verdict" in steps["advice"]
    assert "break-even at 1.9" in steps["advice"] or "break-even at 2.0" in steps["advice"]


def test_what_imposes_an_accept_length() -> None:
    assert breakeven.imposed({"SGLANG_SIMULATE_ACC_LEN": "2.2"}) == 2.2
    assert breakeven.imposed({"SGLANG_SIMULATE_ACC_LEN": "-1"}) is None
    assert breakeven.imposed({"SGLANG_SIMULATE_ACC_LEN": "no"}) is None
    assert breakeven.imposed({}) is None
