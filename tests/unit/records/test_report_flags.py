"""A report shows what a flag found beside what the flag means, and its margin as it was given."""
from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from plumbline.analysis.report import html, text

PAGE = Path(__file__).parents[3] / "docs" / "records.md"
SAID = "step_ms: 5.12 by the client, 4.71 by 12 decode lines (+8.7%)"


def example(name: str) -> dict:
    found = re.search(rf"<!-- schema: {name} -->\n```json\n(.*?)\n```", PAGE.read_text(), re.S)
    assert found
    return json.loads(found[1])


def flagged(detail: str) -> dict:
    return {**example("measurement"), "flags": [{"name": "contradiction", "detail": detail, "invalidates": False}]}


@pytest.fixture
def both() -> list:
    """The two forms of the report, as functions of the measurements."""
    verdict = example("verdict")
    return [lambda ms: html.render(verdict, ms, compares=[], proofs={}), lambda ms: text.markdown(verdict, ms)]


def test_a_contradiction_shows_its_figures(both: list) -> None:
    m = flagged(SAID)
    for render in both:
        page = render([m])
        assert page.index("one of the two is wrong") < page.index(f"{m['host']}, {m['arm']}, {m['workload']}: {SAID}")


def test_of_many_sightings_the_rest_is_counted(both: list) -> None:
    for render in both:
        page = render([flagged(f"sighting {n}.") for n in range(15)])
        assert "sighting 11." in page and "sighting 12." not in page
        assert "and 3 more" in page


@pytest.mark.parametrize(("margin", "confidence", "words"), [
    (0.005, 0.995, ("margin 0.5%", "confidence 99.5%")), (0.07, 0.9999, ("margin 7%", "confidence 99.99%"))])
def test_margin_and_confidence_are_not_rounded(margin: float, confidence: float, words: tuple[str, str]) -> None:
    verdict = {**example("verdict"), "margin": margin, "confidence": confidence}
    for page in (html.render(verdict, [], compares=[], proofs={}), text.markdown(verdict, [])):
        assert all(said in page.replace(" %", "%") for said in words)
    assert f"band: {words[0].replace(' ', ' of ')}" in html.render(verdict, [], compares=[], proofs={})
