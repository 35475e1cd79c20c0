"""docs/nccl.md shows one complete and valid example of each record."""

from __future__ import annotations

import json
import re
from pathlib import Path

from plumbline.analysis import schema

PAGE = Path(__file__).parents[3] / "docs" / "nccl.md"
NAMES = {"plumbline.proof/1": "proof", "plumbline.nccl-sweep/1": "nccl-sweep"}


def test_the_records_that_are_shown_are_valid_and_complete():
    shown = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.S)]
    assert [one["schema"] for one in shown] == ["plumbline.proof/1", *["plumbline.nccl-sweep/1"] * 2]
    for one in shown:
        schema.validate(NAMES[one["schema"]], one, "docs/nccl.md")
    proof, result, outcome = shown
    assert proof["ranks"][0]["patterns"]
    assert {"nccl_environment", "state"} <= set(result) & set(outcome)
