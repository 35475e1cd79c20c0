"""A sweep of profiles on real processes: interrupted and resumed, hung, wrong, and on GPUs that somebody else
uses.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from plumbline.errors import PlumblineError
from plumbline.nccl import sweep

ENV = {"PATH": os.environ["PATH"]}
NONE = {"name": "none", "variables": {}}
LL = {"name": "ll", "variables": {"NCCL_PROTO": "LL"}}
SIZES = [4096, 8192]
STATE = {"digest": "d", "groups": {"hardware": "h", "driver": "580", "engine_args": "a", "models": "m"}}
SMI = Path(__file__).parents[1] / "gpu" / "standin_smi.py"


def make(root, **given):
    given = {
        "world": 2,
        "backend": "socket",
        "environment": ENV,
        "limit_s": 30.0,
        "iterations": 2,
        "host": "node-a",
        **given,
    }
    return sweep.Sweep(root, "s", python=sys.executable, **given)


def test_every_combination_is_recorded_once(tmp_path):
    done = make(tmp_path).run([NONE, LL], ["as-is", "no-p2p"], SIZES)
    rows = [(r["mode"], r["profile"], r["bytes"], r["status"]) for r in done["records"]]
    assert rows == [(m, p, b, "ok") for m in ("as-is", "no-p2p") for p in ("none", "ll") for b in SIZES]
    assert [o["status"] for o in done["outcomes"]] == ["ok"] * 4
    assert {r["host"] for r in done["records"]} == {"node-a"}
    again = make(tmp_path).run([NONE, LL], ["as-is", "no-p2p"], SIZES)
    assert (again["added"], again["outcomes"]) == ([], [])
    wider = make(tmp_path).run([NONE], ["as-is"], [*SIZES, 16384])
    assert [(r["profile"], r["bytes"]) for r in wider["added"]] == [("none", 16384)]
    changed = make(tmp_path).run([{"name": "ll", "variables": {"NCCL_PROTO": "LL,Simple"}}], ["as-is"], [4096])
    assert len(changed["added"]) == 1, "a profile of the same name with other variables is another one"


def test_the_profile_and_the_mode_are_in_the_environment_of_the_ranks(tmp_path):
    # A rank that cannot be started with these settings would tell: here the facts of the run do.
    seen = []
    original = sweep.collective.run

    def spy(**given):
        seen.append({k: v for k, v in given["environment"].items() if k.startswith("NCCL_")})
        return original(**given)

    sweep.collective.run, kept = spy, original
    try:
        make(tmp_path).run([LL], ["no-p2p"], [4096])
    finally:
        sweep.collective.run = kept
    assert seen == [{"NCCL_PROTO": "LL", "NCCL_P2P_DISABLE": "1"}]


DRIVER = """
import sys; sys.path.insert(0, "module_utils")
from plumbline.nccl import sweep
s = sweep.Sweep({root!r}, "s", python=sys.executable, world=2, backend="socket", environment={{}}, limit_s=60,
iterations=2,
                fault={{"rank": 1, "do": "hang", "at": 8192}})
s.run([{{"name": "none", "variables": {{}}}}], ["as-is"], [4096, 8192, 16384])
"""


def test_an_interrupted_sweep_goes_on_and_keeps_what_was_finished(tmp_path):
    driver = subprocess.Popen([sys.executable, "-c", DRIVER.format(root=str(tmp_path))])
    ranks = sweep.folder_of(tmp_path, "s")
    end = time.monotonic() + 30
    while time.monotonic() < end:
        results = [p.read_text() for p in ranks.glob("run-*/ranks/rank*.results")]
        if len(results) == 2 and all('"bytes": 4096' in text for text in results):
            break
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    assert sweep.read(tmp_path, "s") == [], "it was killed before it could record anything"
    done = make(tmp_path).run([NONE], ["as-is"], [4096, 8192, 16384])
    assert [r["bytes"] for r in done["records"]] == [4096, 8192, 16384]
    assert [bool(r["fault"]) for r in done["records"]] == [True, False, False], (
        "the first is of the interrupted execution"
    )
    assert list(ranks.glob("run-*")) == []


def test_a_hang_is_an_outcome_that_is_recorded_and_not_repeated(tmp_path):
    fault = {"rank": 1, "do": "hang", "at": 8192}
    done = make(tmp_path, limit_s=3.0, fault=fault).run([NONE], ["as-is"], SIZES)
    assert [(r["bytes"], r["status"]) for r in done["records"]] == [(4096, "ok"), (None, "hang")]
    assert "rank 1 did not arrive" in done["outcomes"][0]["diagnosis"]["what"]
    assert make(tmp_path).run([NONE], ["as-is"], SIZES)["added"] == []
    retried = make(tmp_path).run([NONE], ["as-is"], SIZES, retry=True)
    assert [(r["bytes"], r["status"]) for r in retried["added"]] == [(8192, "ok")]


def test_wrong_data_is_recorded_without_times_and_does_not_pass(tmp_path):
    done = make(tmp_path, fault={"rank": 0, "do": "wrong", "at": 8192}).run([LL], ["as-is"], SIZES)
    assert [(r["bytes"], r["status"], r["eager_us"] is None) for r in done["records"]] == [
        (4096, "ok", False),
        (8192, "wrong_data", True),
    ]
    assert done["outcomes"][0]["status"] == "wrong_data"


def test_a_host_that_has_changed_is_measured_again_and_what_was_is_not_taken_for_what_is(tmp_path):
    make(tmp_path, state=STATE).run([LL], ["as-is"], SIZES)
    assert make(tmp_path, state=STATE).open_work([LL], ["as-is"], SIZES) == []
    changed = {"digest": "d2", "groups": {**STATE["groups"], "driver": "other"}}
    assert [w["sizes"] for w in make(tmp_path, state=changed).open_work([LL], ["as-is"], SIZES)] == [SIZES]
    served = {"digest": "d3", "groups": {**STATE["groups"], "engine_args": "other", "models": "other"}}
    assert make(tmp_path, state=served).open_work([LL], ["as-is"], SIZES) == [], "what is served decides nothing"
    other = make(tmp_path, state=STATE, environment={**ENV, "NCCL_IB_DISABLE": "1"})
    assert [w["sizes"] for w in other.open_work([LL], ["as-is"], SIZES)] == [SIZES], "other settings beside the profile"


def test_a_hang_says_what_of_the_host_may_be_the_cause(tmp_path):
    fault = {"rank": 1, "do": "hang", "at": 4096}
    told = make(tmp_path, limit_s=2.0, fault=fault, after_hang=lambda: "IOMMU=translating (DMA)")
    done = told.run([NONE], ["as-is"], [4096])
    assert done["records"][0]["diagnosis"]["what"].endswith("; this host: IOMMU=translating (DMA)")


def test_busy_gpus_are_named_and_their_processes_left_alone(tmp_path, monkeypatch):
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        script = tmp_path / "nvidia-smi"
        script.write_text(f"#!{sys.executable}\n" + SMI.read_text())
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        apps = [["00000000:01:00.0", stranger.pid, "train.py", "40000 MiB"]]
        (tmp_path / "say.json").write_text(json.dumps({"gpus": 2, "row": [], "apps": apps}))
        monkeypatch.setenv("STANDIN", str(tmp_path / "say.json"))
        busy = make(tmp_path, backend="nccl", nvidia_smi=str(script))
        done = busy.run([NONE, LL], ["as-is"], SIZES)
        assert [(o["profile"], o["status"]) for o in done["outcomes"]] == [("none", "busy")], "it stops there"
        assert (
            f"pid {stranger.pid} (train.py) on GPU 00000000:01:00.0, 40000 MiB"
            in done["outcomes"][0]["diagnosis"]["what"]
        )
        assert stranger.poll() is None
        work = sweep.open_work(done["records"], [NONE], ["as-is"], SIZES)
        assert [w["sizes"] for w in work] == [SIZES], "busy is no result: it is tried again"
    finally:
        stranger.kill()
        stranger.wait()


def test_memory_that_is_held_by_processes_of_another_container_makes_busy(tmp_path, monkeypatch):
    script = tmp_path / "nvidia-smi"
    script.write_text(f"#!{sys.executable}\n" + SMI.read_text())
    script.chmod(0o755)
    monkeypatch.setenv("STANDIN", str(tmp_path / "say.json"))
    monkeypatch.setattr(sweep, "SETTLE_S", 0.1)
    say = {"gpus": 2, "row": [], "apps": [], "memory": [480, 90000]}
    (tmp_path / "say.json").write_text(json.dumps(say))
    found = make(tmp_path, backend="nccl", nvidia_smi=str(script)).busy()
    assert found["what"].endswith("processes that cannot be seen from here: 90000 MiB on GPU 1")
    (tmp_path / "say.json").write_text(json.dumps({**say, "memory": [480, 470]}))
    assert make(tmp_path, backend="nccl", nvidia_smi=str(script)).busy() is None


def test_an_unknown_mode_is_refused(tmp_path):
    with pytest.raises(PlumblineError, match="as-is, no-p2p"):
        make(tmp_path).run([NONE], ["p2p-off"], SIZES)


def test_gpus_are_counted(tmp_path):
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\nprintf '0\\n1\\n2\\n'\n")
    script.chmod(0o755)
    assert sweep.gpus(str(script)) == 3
    assert sweep.gpus(str(tmp_path / "none")) == 0
