"""The examples of docs/states.md are what the schemas say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from plumbline.analysis import lock, schema
from plumbline.state import document

TEXT = (Path(__file__).parents[3] / "docs" / "states.md").read_text()


@pytest.mark.parametrize("name", ["state", "lock", "compare"])
def test_examples_are_valid(name: str, tmp_path: Path) -> None:
    (block,) = re.findall(rf"```(?:json|yaml) {name}\n(.*?)```", TEXT, re.S)
    example = json.loads(block) if name != "lock" else yaml.safe_load(block)
    schema.validate(name, example, "docs/states.md")
    if name == "lock":
        (tmp_path / "known-good.yml").write_text(block)
        assert lock.read(tmp_path / "known-good.yml")["name"] == "known-good"


def test_every_group_is_described() -> None:
    assert re.findall(r"(?m)^\| `(\w+)` \| ", TEXT.split("## Files")[0]) == list(document.GROUPS)
