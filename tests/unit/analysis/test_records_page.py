"""docs/records.md shows one complete and valid example of each record."""
from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from plumbline.analysis import schema

PAGE = Path(__file__).parents[3] / "docs" / "records.md"
EXAMPLES = re.findall(r"<!-- schema: (\S+) -->\n```(json|yaml)\n(.*?)\n```", PAGE.read_text(), re.S)


@pytest.mark.parametrize(("name", "kind", "text"), EXAMPLES, ids=[f"{i}-{e[0]}" for i, e in enumerate(EXAMPLES)])
def test_example_is_valid(name: str, kind: str, text: str) -> None:
    document = json.loads(text) if kind == "json" else yaml.safe_load(text)
    schema.validate(name, document, str(PAGE))
    # Each key the schema knows is shown: the example is complete.
    shape = schema.load(name)
    for branch in shape.get("$defs", {}), {"document": shape}:
        for part in branch.values():
            known = part.get("properties", {})
            if known.get("event", {}).get("const") == document.get("event", 0) or (
                    part is shape and not shape.get("allOf") and name != "experiment"):
                assert set(known) <= set(document) | {"shared", "remeasure_of"}


def test_page_shows_each_record() -> None:
    assert {"experiment", "plan", "measurement", "baseline", "verdict"} <= {name for name, _, _ in EXAMPLES}
