"""Molecule's scenarios: what they share stands in one file, which Molecule finds, and their playbooks are there."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
SHARED = ROOT / ".config" / "molecule" / "config.yml"
SCENARIOS = sorted((ROOT / "molecule").glob("*/molecule.yml"))


def entries(document: dict[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from entries(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


@pytest.mark.parametrize("path", SCENARIOS, ids=[p.parent.name for p in SCENARIOS])
def test_a_scenario_repeats_nothing_of_what_all_share(path: Path) -> None:
    shared = dict(entries(yaml.safe_load(SHARED.read_text())))
    assert [k for k, v in entries(yaml.safe_load(path.read_text())) if shared.get(k) == v] == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="Molecule looks for it in the root of a Git repository")
@pytest.mark.parametrize(("scenario", "steps", "converge"), [
    ("known", ["destroy", "create", "prepare", "converge"], "common/converge.yml"),
    ("trixie", ["destroy", "create", "prepare", "check", "converge", "idempotence", "side_effect", "verify", "destroy"],
     "common/driver.yml")])
def test_molecule_reads_both(scenario: str, steps: list[str], converge: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "molecule"), "matrix", "-s", scenario, "test"],
        cwd=ROOT, capture_output=True, text=True,
        # Molecule looks for ansible-config beside what else is installed.
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
             "LC_ALL": "C.UTF-8", "NO_COLOR": "1", "MOLECULE_EPHEMERAL_DIRECTORY": str(tmp_path)})
    found = dict(re.findall(r"─ (\w+) (.*)", done.stdout))
    assert list(found) == list(dict.fromkeys(steps)), done.stdout + done.stderr
    assert found["converge"] == str(ROOT / "molecule" / converge)
    assert found["create"] == str(ROOT / "molecule" / "common" / "create.yml")
