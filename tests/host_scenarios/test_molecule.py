"""The Molecule scenarios, and that they did something: tasks that were not skipped are counted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
NEEDED = ("mmdebstrap", "systemd-nspawn", "ip", "ssh", "dpkg-scanpackages", "gpg")
# Tasks that a converge must have run on each host, none of them skipped: a role that were left out would show.
LEAST = {"bare": 45, "container": 35}

pytestmark = pytest.mark.hosts


def missing() -> str:
    """Why test hosts cannot be made here, or ""."""
    if os.geteuid() != 0:
        return "it needs root"
    lacking = [tool for tool in NEEDED if shutil.which(tool) is None]
    return f"not installed: {', '.join(lacking)}; see molecule/README.md" if lacking else ""


@pytest.mark.timeout(540)
@pytest.mark.parametrize("scenario", ["bare", "container"])
def test_scenario(scenario: str, tmp_path: Path) -> None:
    assert not missing(), missing()
    counts = tmp_path / "counts.jsonl"
    environment = {
        **os.environ,
        "PLUMBLINE_COUNTS": str(counts),
        "LC_ALL": "C.UTF-8",
        "MOLECULE_GLOB": "molecule/*/molecule.yml",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    environment.pop("ANSIBLE_CONFIG", None)
    done = subprocess.run(
        ["molecule", "test", "-s", scenario], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    text = f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    assert done.returncode == 0, text

    runs: list[dict[str, Any]] = [json.loads(line) for line in counts.read_text().splitlines()]
    converges = [run for run in runs if run["playbook"] == "converge.yml"]
    checked, first, second = converges
    assert checked["check"] and not first["check"] and not second["check"], text
    hosts = [name for name in first["hosts"] if name != "localhost"]
    platforms = yaml.safe_load((ROOT / "molecule" / scenario / "molecule.yml").read_text())["platforms"]
    assert sorted(hosts) == sorted(p["name"] for p in platforms)
    for name in hosts:
        for run in converges:
            assert run["hosts"][name]["failures"] == 0 and run["hosts"][name]["unreachable"] == 0, f"{name}: {run}"
        assert first["hosts"][name]["ok"] >= LEAST[scenario], f"{name} ran {first['hosts'][name]['ok']} tasks only"
        assert first["hosts"][name]["changed"] >= 10, f"{name} changed nothing much: {first['hosts'][name]}"
        assert second["hosts"][name]["changed"] == 0, (
            f"{name}: the second run changed {second['hosts'][name]['changed']}"
        )
    assert any(run["playbook"] == "verify.yml" for run in runs), text
    planted = "hf_ThisOneIsPlantedByTheTests"
    assert planted not in done.stdout and planted not in done.stderr, "a secret was shown"
