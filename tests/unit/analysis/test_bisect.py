from __future__ import annotations

import itertools
import random
from typing import Any, Callable

import pytest
from plumbline.analysis import bisect


def book_of(units: list[str], cannot: list[dict] | None = None) -> dict:
    return {"begun": {"units": [{"name": u, "was": 0, "now": 1} for u in units], "cannot_change": cannot or []},
            "tests": [], "ended": None}


def play(units: list[str], speed: Callable[[frozenset], float], margin: float = 0.02) -> tuple[dict, list[list[str]]]:
    """Run a search to its end in a world where a subset of the differences has ``speed`` relative to the good state."""
    book = book_of(units)
    while True:
        step = bisect.next_step(book, margin)
        if "end" in step:
            return step["end"], [t["test"]["units"] for t in book["tests"]]
        subset = step["test"]
        whole = next((t["answer"]["ratio"] for t in book["tests"] if t["test"]["units"] == units), None)
        ratio, m = speed(frozenset(subset)), step["margin"]
        verdict = "slower" if ratio < 1 - m else "faster" if ratio > 1 + m else "same"
        answer = {"result": bisect.read_answer({"verdict": verdict}, whole), "ratio": ratio, "ci": [ratio, ratio],
                  "verdict": verdict, "detail": ""}
        book["tests"].append({"test": {"units": subset, "number": len(book["tests"]) + 1}, "answer": answer})


NAMES = ["build", "nccl:NCCL_PROTO", "file:a.py", "file:b.py", "arg:x", "environment:Y"]


@pytest.mark.parametrize("cause", NAMES)
def test_one_cause_among_six_is_named_and_costs_few_tests(cause: str) -> None:
    end, tests = play(NAMES, lambda s: 0.926 if cause in s else 1.0)
    assert (end["outcome"], end["found"]) == ("found", [cause])
    assert end["share"] == 1.0
    assert tests[0] == NAMES, "whether the change is there at all is asked first"
    assert len(tests) <= 8
    assert cause not in end["innocent"]


@pytest.mark.parametrize("pair", list(itertools.combinations(NAMES, 2)))
def test_two_that_only_act_together_are_both_named(pair: tuple[str, str]) -> None:
    end, _ = play(NAMES, lambda s: 0.9 if set(pair) <= s else 1.0)
    assert sorted(end["found"]) == sorted(pair)
    assert "together" in end["text"]


def test_a_change_for_the_better_is_searched_alike() -> None:
    end, _ = play(NAMES, lambda s: 1.08 if "file:b.py" in s else 1.0)
    assert end["found"] == ["file:b.py"]
    assert end["ratio"] == 1.08


def test_what_undoes_the_change_in_part_is_no_cause() -> None:
    speeds = {"build": 0.85, "file:a.py": 1.05}

    def speed(subset: frozenset) -> float:
        out = 1.0
        for name in subset:
            out *= speeds.get(name, 1.0)
        return out

    end, _ = play(NAMES, speed)
    assert end["found"] == ["build"]
    assert end["share"] > 1.0, "alone it costs more than the whole change"


def test_two_halves_of_a_change_are_both_named() -> None:
    end, _ = play(NAMES, lambda s: 0.95 ** len(s & {"build", "arg:x"}))
    assert sorted(end["found"]) == ["arg:x", "build"]


@pytest.mark.parametrize("seed", range(40))
def test_the_found_set_carries_and_without_any_one_of_it_does_not(seed: int) -> None:
    dice = random.Random(seed)
    units = [f"file:{i}" for i in range(dice.randint(1, 9))]
    causes = [frozenset(dice.sample(units, dice.randint(1, min(3, len(units))))) for _ in range(dice.randint(1, 2))]

    def carries(subset: Any) -> bool:
        return any(c <= frozenset(subset) for c in causes)

    asked: list[tuple] = []
    found = bisect.ddmin(units, lambda s: bool(asked.append(s)) or carries(s))
    assert carries(found)
    assert not any(carries([u for u in found if u != one]) for one in found) or len(found) == 1
    assert len(asked) <= len(units) ** 2 + 3 * len(units)


def test_a_change_that_is_not_there_is_said_with_what_cannot_be_changed() -> None:
    book = book_of(["build"], [{"group": "driver", "item": "module"}])
    book["tests"] = [{"test": {"units": ["build"], "number": 1},
                      "answer": {"result": bisect.FREE, "ratio": 1.001, "ci": [0.99, 1.01], "verdict": "same",
                                 "detail": ""}}]
    end = bisect.next_step(book, 0.02)["end"]
    assert end["outcome"] == "not reproduced"
    assert end["found"] == []
    assert "it lies in what cannot be changed here" in end["text"]
    assert "driver.module" in end["text"]


def test_without_differences_nothing_is_tested() -> None:
    assert bisect.next_step(book_of([]), 0.02)["end"]["outcome"] == "nothing to change"


def test_an_undecided_subset_is_not_taken_for_innocent_and_is_named() -> None:
    units = ["build", "file:a.py"]
    book = book_of(units)
    for subset, result, ratio in ((units, bisect.CARRIES, 0.9), (["build"], bisect.UNRESOLVED, 0.96),
                                  (["file:a.py"], bisect.FREE, 1.0)):
        book["tests"].append({"test": {"units": subset, "number": len(book["tests"]) + 1},
                              "answer": {"result": result, "ratio": ratio, "ci": [ratio, ratio], "verdict": "",
                                         "detail": ""}})
    end = bisect.next_step(book, 0.02)["end"]
    assert end["found"] == units
    assert "not decided: build" in end["text"]
    assert end["innocent"] == []


def test_a_test_asks_about_half_of_the_change() -> None:
    assert bisect.margin_for(0.926) == pytest.approx(0.0377, abs=1e-4)
    assert bisect.margin_for(1.08) == pytest.approx(0.0392, abs=1e-4)


@pytest.mark.parametrize(("verdict", "change", "says"), [
    ("slower", None, bisect.CARRIES), ("faster", None, bisect.CARRIES), ("same", None, bisect.FREE),
    ("inconclusive", None, bisect.UNRESOLVED), ("slower", 0.9, bisect.CARRIES), ("faster", 0.9, bisect.FREE),
    ("faster", 1.1, bisect.CARRIES), ("same", 0.9, bisect.FREE), ("not_comparable", 0.9, bisect.UNRESOLVED),
])
def test_what_a_comparison_says(verdict: str, change: float | None, says: str) -> None:
    assert bisect.read_answer({"verdict": verdict}, change) == says


def entry(event: str, fingerprint: str | None, **more: Any) -> dict:
    return {"event": event, **({"fingerprint": fingerprint} if fingerprint else {}), **more}


def test_searches_side_by_side_read_their_own_entries() -> None:
    entries = [entry("begun", "one"), entry("test", "one", number=1), entry("begun", "two"),
               entry("test", "two", number=1), entry("answer", "one", number=1, result=bisect.CARRIES),
               entry("test", "one", number=2), entry("answer", "two", number=1, result=bisect.FREE),
               entry("ended", "two")]
    one, two = bisect.fold(entries, "one"), bisect.fold(entries, "two")
    assert [t["answer"] and t["answer"]["result"] for t in one["tests"]] == [bisect.CARRIES, None]
    assert one["ended"] is None
    assert [t["answer"]["result"] for t in two["tests"]] == [bisect.FREE]
    assert two["ended"]
    assert bisect.fold(entries, "three") == {"begun": None, "tests": [], "ended": None}


def test_entries_without_a_fingerprint_are_of_the_search_that_had_begun_last() -> None:
    entries = [entry("begun", "one"), entry("test", None, number=1), entry("begun", "two"),
               entry("test", None, number=1), entry("answer", None, number=1, result=bisect.FREE)]
    assert bisect.fold(entries, "one")["tests"][0]["answer"] is None
    assert bisect.fold(entries, "two")["tests"][0]["answer"]["result"] == bisect.FREE
