"""The real SGLang on the CPU, through the same playbook that a lab runs: three starts, measured, compared, reported."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from plumbline.analysis.store import Results

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Results of tests/e2e/smoke.yml; builds the engine if this machine has none yet."""
    folder = tmp_path_factory.mktemp("engine")
    book = yaml.safe_load((ROOT / "group_vars" / "all" / "workloads.yml").read_text())["plumbline_workloads"]
    short = {**book["one-stream"], "requests": 8}
    variables = folder / "variables.json"
    variables.write_text(json.dumps({"plumbline_workloads_lab": {"short": short}}))
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "playbooks/matrix.yml", "-e",
               f"experiment={ROOT / 'tests' / 'e2e' / 'smoke.yml'}", "-e", f"results_root={folder / 'results'}",
               "-e", f"@{variables}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500,
                          env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "LC_ALL": "C.UTF-8"})
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return Results(folder / "results")


def test_each_boot_is_measured_on_the_real_engine(results: Results):
    records = results.experiment("smoke").measurements()
    assert [r["arm"] for r in records] == ["baseline", "eagle3-3step", "baseline"]
    assert {r["engine"] for r in records} == {"sglang-cpu"}
    assert {r["status"] for r in records} == {"ok"}
    for record in records:
        metrics = record["metrics"]
        # tok/s x step time = accept length, whatever the machine does meanwhile
        assert metrics["decode_tok_s"] * metrics["step_ms"] / 1000 == pytest.approx(metrics["accept_length"], rel=0.02)


def test_speculation_accepts_and_says_the_same(results: Results):
    spec = results.experiment("smoke").measurements()[1]
    assert spec["metrics"]["accept_length"] > 3
    output = next(c for c in spec["checks"] if c["name"] == "output")
    assert output["result"] == "agree"
    assert output["ours"] == 8


def test_the_state_is_the_same_at_every_look_but_for_what_the_arms_differ_in(results: Results):
    first, spec, last = results.experiment("smoke").measurements()
    assert first["state"]["digest"] == last["state"]["digest"]
    differ = {g for g in first["state"]["groups"] if first["state"]["groups"][g] != spec["state"]["groups"][g]}
    assert differ <= {"engine_args", "models"}


@pytest.mark.usefixtures("results")
def test_the_engines_attention_is_that_of_torch():
    root = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "plumbline"
    python = root / "builds" / "current" / "venv" / "bin" / "python"
    done = subprocess.run([python, "-I", ROOT / "tests" / "e2e" / "attention.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_verdict_and_report_are_written(results: Results):
    store = results.experiment("smoke")
    comparison = store.verdict()["comparisons"][0]
    assert comparison["differs_in"] == ["variant"]
    assert comparison["max_accept_length"] == 4
    assert comparison["verdict"] == "inconclusive", "one boot of a candidate is never enough"
    for name in ("report.html", "report.md", "measurements.csv"):
        assert (store.folder / name).stat().st_size > 500


def test_nothing_is_left_running(results: Results):
    boots = {r["boot"] for r in results.experiment("smoke").measurements()}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_text(errors="replace")
        except OSError:
            continue
        assert not any(boot in command for boot in boots)
