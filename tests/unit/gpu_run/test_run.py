"""tests/gpu/run.sh with stand-ins for the machine: a restart, a run that is cut off, and how long it may take."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / "gpu" / "run.sh"
# In place of the Python that holds torch: assembles a build and makes models by touching what they leave.
PYTHON = """#!/bin/bash
echo "$(basename "$1") ${*:2}" >>"$MADE"
work=$2
case $1 in
*assemble.py)
  [ -f "$work/root/builds/one/plumbline-build.json" ] && exit 0
  [ -d "$work/site/sglang" ] || { echo "no site to assemble"; exit 1; }
  mkdir -p "$work/root/builds/one" "$work/controller-venv/bin"
  cp "$PLAYBOOK" "$work/controller-venv/bin/ansible-playbook"
  rm -r "$work/site"
  [ -f "$MADE.cut" ] && exit 137
  echo '{}' >"$work/root/builds/one/plumbline-build.json"
  ;;
*models.py) [ -d "$PYTHONPATH/tokenizers" ] && echo '{}' >"$work/vars.json" ;;
esac
"""
PLAYBOOK = """#!/bin/bash
echo "play $*" >>"$MADE"
for word; do case $word in results_root=*) results=${word#results_root=} ;; esac; done
echo '{"boot": 1}' >>"$results/measurements.jsonl"
case "$*" in *stop.yml*) ;; *) sleep "${PLAY_S:-0}" ;; esac
"""


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with two GPUs on which nothing has been made."""
    for name, text in {
        "python": PYTHON,
        "playbook": PLAYBOOK,
        "nvidia-smi": '#!/bin/sh\ncase "$*" in *query-gpu=index*) cat "$GPUS" ;; esac\n',
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "gpus").write_text("0\n1\n")
    stage = tmp_path / "stage"
    for path in ("site/sglang/x.py", "site/tokenizers/x.py", "controller/x.py", "carried.json"):
        (stage / path).parent.mkdir(parents=True, exist_ok=True)
        (stage / path).write_text("{}")
    (tmp_path / "carried").mkdir()
    with tarfile.open(tmp_path / "carried" / "carried.tar.xz", "w:xz") as tar:
        for path in sorted(stage.iterdir()):
            tar.add(path, path.name)
    kernel = tmp_path / "k" / "sgl_kernel_jit_kvcache_1024_true_x" / "x.so"
    kernel.parent.mkdir(parents=True)
    kernel.write_text("")
    with tarfile.open(tmp_path / "carried" / "jit.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "k", ".")
    return {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "GPU_PYTHON": str(tmp_path / "python"),
        "GPU_WORK": str(tmp_path / "work"),
        "GPU_CARRIED": str(tmp_path / "carried"),
        "OUT": str(tmp_path / "out"),
        "MADE": str(tmp_path / "made"),
        "PLAYBOOK": str(tmp_path / "playbook"),
        "GPUS": str(tmp_path / "gpus"),
    }


def run(machine: dict[str, str], *stages: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(RUN), *stages], env=machine, capture_output=True, text=True, timeout=60, check=False)


def made(machine: dict[str, str], what: str) -> list[str]:
    return [line for line in Path(machine["MADE"]).read_text().splitlines() if line.startswith(what)]


def records(machine: dict[str, str]) -> list[dict]:
    with tarfile.open(Path(machine["OUT"], "records.tar.gz")) as tar:
        file = tar.extractfile("./measurements.jsonl")
        assert file is not None
        return [json.loads(line) for line in file.read().splitlines()]


def test_a_run_makes_the_build_once_and_brings_the_records_back(machine):
    done = run(machine, "prove")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 GPUs" in done.stdout
    assert len(made(machine, "play")) == 3
    assert {
        f"delivery={d}" in "\n".join(made(machine, "play")) for d in ("env_file", "sitecustomize", "nccl_conf")
    } == {True}
    assert made(machine, "models.py")[0].endswith(" 2"), "tensor parallel is the number of GPUs"
    assert not made(machine, "kernels.py"), "the kernels were carried"
    assert len(records(machine)) == 3
    assert run(machine, "sweep").returncode == 0
    assert sorted(p.name for p in Path(machine["OUT"]).iterdir()) == ["jit.tar.gz", "records.tar.gz", "run.log"]


def test_what_a_start_left_half_made_is_made_again(machine):
    Path(machine["MADE"] + ".cut").touch()
    assert run(machine, "prove").returncode != 0
    assert not made(machine, "play")
    assert Path(machine["GPU_WORK"], "root/builds/one").is_dir(), "half-made, and what it was made from is used up"
    Path(machine["MADE"] + ".cut").unlink()
    done = run(machine, "prove")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(made(machine, "play")) == 3


def test_whoever_is_killed_has_the_records_of_up_to_then(machine):
    process = subprocess.Popen(
        [str(RUN), "prove"], env={**machine, "PLAY_S": "120", "KEEP_S": "1"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 30
    while time.monotonic() < until and not Path(machine["OUT"], "records.tar.gz").exists():
        time.sleep(0.2)
    time.sleep(2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert records(machine) == [{"boot": 1}]
    assert "delivery=env_file" in Path(machine["OUT"], "run.log").read_text()


def test_a_stage_ends_at_its_limit_and_the_run_goes_on(machine):
    began = time.monotonic()
    done = run({**machine, "PLAY_S": "300", "STAGE_LIMIT_S": "3", "LEAST_S": "1"}, "measure")
    assert time.monotonic() - began < 30
    assert "rc 124: playbooks/matrix.yml" in done.stdout
    assert any("playbooks/stop.yml" in line for line in made(machine, "play")), "what was left running is stopped"


@pytest.mark.parametrize("count", [0, 3])
def test_a_number_of_gpus_that_no_model_splits_over_is_refused(machine, count):
    Path(machine["GPUS"]).write_text("".join(f"{n}\n" for n in range(count)))
    done = run(machine, "prove")
    assert done.returncode == 1
    assert f"found {count} GPUs; allowed: 1, 2, 4, 8" in done.stdout


def test_an_unknown_stage_is_refused_before_anything_is_made(machine):
    done = run(machine, "prove", "proof")
    assert done.returncode == 2
    assert "unknown stage proof; allowed: " in done.stderr
    assert "profile_no_p2p" in done.stderr


def test_all_stages_end_within_28_minutes_and_each_within_nine():
    (table,) = re.findall(r"declare -A most=\((.*)\)", RUN.read_text())
    most = {name: int(seconds) for name, seconds in re.findall(r"\[(\w+)\]=(\d+)", table)}
    calls = [["prove", "sweep", "negatives"], ["measure"], ["steps"], ["cycle"], ["profile"], ["profile_no_p2p"]]
    assert sorted(most) == sorted(stage for call in calls for stage in call)
    building, packing, looking = 40, 15, 10
    assert all(sum(most[stage] for stage in call) + building + packing <= 540 for call in calls)
    assert sum(most.values()) + building + len(calls) * looking <= 28 * 60
    for stage in most:
        assert f"stage_{stage}()" in RUN.read_text()
