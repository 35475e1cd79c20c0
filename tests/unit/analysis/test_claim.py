from __future__ import annotations

from typing import Any

import pytest
from plumbline.analysis import claim
from plumbline.errors import PlumblineError


def contradictions(**figures: Any) -> list[str]:
    return [f["says"] for f in claim.check(**figures)["findings"] if f["kind"] == "contradiction"]


def test_the_story_left_the_bonus_token_out() -> None:
    """60 tok/s at 30.6 ms is 1.84 tokens a cycle, not the 1.17 that was read."""
    found = claim.check(tok_s=60, step_ms=30.6, accept_length=1.17, steps=3, baseline_tok_s=82.2)
    assert not found["consistent"]
    said = next(f for f in found["findings"] if f["kind"] == "contradiction")
    assert set(said["figures"]) == {"tok_s", "step_ms", "accept_length"}
    assert "1.84 tokens a cycle, not 1.17" in said["says"]
    assert "bonus token" in said["says"]
    assert found["implied"]["accept_length"] == pytest.approx(1.836)


def test_figures_that_fit_are_consistent() -> None:
    found = claim.check(tok_s=60, step_ms=36.0, accept_length=2.16, steps=3, baseline_tok_s=82.2,
                        baseline_step_ms=12.17)
    assert found["consistent"], found["findings"]
    assert found["implied"]["break_even_accept_length"] == pytest.approx(2.958, abs=0.001)
    assert found["implied"]["speed_up"] == pytest.approx(0.73, abs=0.001)


@pytest.mark.parametrize(("figures", "words"), [
    ({"accept_length": 4.5, "steps": 3}, "accept at most 4"),
    ({"accept_length": 0.4}, "at least its bonus token"),
    ({"tok_s": 200, "step_ms": 30, "steps": 3}, "needs 6.00 tokens a cycle"),
    ({"tok_s": 20, "step_ms": 30}, "under the 1"),
    ({"baseline_tok_s": 88.8, "baseline_step_ms": 20}, "a step yields 1 token"),
    ({"tok_s": 94, "step_ms": 40, "accept_length": 2.1}, "not 2.1"),
])
def test_what_cannot_be_true(figures: dict, words: str) -> None:
    assert any(words in text for text in contradictions(**figures))


def test_no_draft_can_win_is_a_consequence() -> None:
    found = claim.check(step_ms=60, baseline_step_ms=12, steps=3, accept_length=2.2)
    assert any("no draft can win" in f["says"] for f in found["findings"])


def test_streams_share_the_rate() -> None:
    assert claim.check(tok_s=400, step_ms=20, accept_length=2.0, concurrency=4)["consistent"]
    assert not claim.check(tok_s=400, step_ms=20, accept_length=2.0)["consistent"]


@pytest.mark.parametrize("figures", [{}, {"tok_s": -1}, {"step_ms": float("nan")}])
def test_what_is_no_figure_is_refused(figures: dict) -> None:
    with pytest.raises(PlumblineError):
        claim.check(**figures)


def test_the_reading_with_the_bonus_token_says_what_the_cycle_would_be() -> None:
    (said,) = contradictions(tok_s=60, step_ms=30.6, accept_length=1.17, steps=3)
    assert "1.17 + 1 = 2.17 tokens a cycle is near" in said
    assert "a cycle would then take 36.2 ms, of which 30.6 ms may be the verify step alone" in said


def test_what_a_person_typed_becomes_figures() -> None:
    typed = {"tok_s": "60", "steps": "3", "step_ms": None, "accept_length": ""}
    assert claim.figures(typed) == {"tok_s": 60.0, "steps": 3}


@pytest.mark.parametrize(("given", "words"), [
    ({"tok_s": "12ms"}, "-e tok_s=12ms"), ({"steps": "2.5"}, "a whole number above 0"),
    ({"step_ms": "-3"}, "a number above 0"), ({"accept_length": "nan"}, "-e accept_length=nan"),
    ({"tok_s": True}, "-e tok_s=True"),
])
def test_what_is_no_number_is_refused_in_the_users_words(given: dict, words: str) -> None:
    with pytest.raises(PlumblineError, match=words):
        claim.figures(given)


def test_the_text_has_contradictions_first() -> None:
    figures = {"tok_s": 60.0, "step_ms": 30.6, "accept_length": 1.17, "baseline_tok_s": 82.2}
    lines = claim.text(figures, claim.check(**figures)).splitlines()
    assert lines[0].startswith("these figures cannot all be true: tok_s 60, step_ms 30.6")
    assert [line[:4] for line in lines[1:]] == ["  x ", "  - "]


def test_one_figure_alone_is_not_said_to_be_true() -> None:
    given = {"tok_s": 94.0}
    assert "alone" in (said := claim.text(given, claim.check(**given))) and "true" not in said
