"""A controller that is killed in the middle: nothing is measured twice, and nothing finished is lost."""
from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml
from plumbline.analysis.store import Results
from plumbline.digest import file_digest
from plumbline.ids import ulid
from plumbline.server import spool

from playbooks import ROOT, Lab, experiment, kill_controller


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("interrupted"))


def processes_of(folder: Path) -> list[str]:
    """Command lines of the processes that live of the lab's hosts."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder / "hosts") in command or str(folder / "runner") in command:
            found.append(command)
    return found


def test_killed_and_started_again_each_measurement_is_made_once(lab: Lab):
    finished: list[str] = []

    def kill_at_the_fifth(event: dict) -> None:
        data = event.get("event_data", {})
        if event["event"] == "runner_item_on_ok" and data.get("task_action") == "plumbline_throughput":
            finished.append(data["res"]["measurement"]["id"])
            # The fifth is the first of its boot's two: it is spooled on the host, and nobody has recorded it.
            if len(finished) == 5:
                kill_controller(event)

    interrupted = lab.run("matrix", kill_at_the_fifth, experiment="demo")
    assert interrupted.rc != 0
    store = Results(lab.results).experiment("demo")
    assert len(store.measurements()) == 4

    # Of the same host's spool: what somebody measured by hand, which is no run's, and a file that no JSON is left of.
    root = lab.folder / "hosts" / "sim-1"
    by_hand = spool.put(root, {"id": ulid(), "context": {}})
    damaged = by_hand.with_name(f"{ulid()}.json")
    damaged.write_text("{")

    resumed = lab.run("matrix", experiment="demo")
    assert resumed.rc == 0, lab.text()[-4000:]
    assert by_hand.exists()
    assert str(damaged) in lab.text()
    records = store.measurements()
    assert len(store.runs()) == 1
    assert {r["status"] for r in records} == {"ok"}
    assert set(finished) <= {r["id"] for r in records}
    planned = Counter((r["position"], r["workload"]) for r in records)
    assert len(planned) == 20
    assert set(planned.values()) == {1}
    assert processes_of(lab.folder) == []
    assert {c["candidate_arm"]["name"] for c in store.verdict()["comparisons"]} == {"eagle3-2step", "eagle3-3step"}


@pytest.mark.story
def test_stopped_by_somebody_it_ends_and_started_again_it_goes_on(tmp_path: Path):
    """stop.yml from another terminal, while the first of a boot's two workloads is measured."""
    lab, another = Lab(tmp_path), Lab(tmp_path / "another")
    stopped: list[int] = []

    def stop_at_the_first(event: dict) -> None:
        data = event.get("event_data", {})
        if not stopped and event["event"] == "runner_on_start" and data.get("task_action") == "plumbline_throughput":
            time.sleep(1)
            stopped.append(another.run("stop", simulated_root=str(tmp_path / "hosts")).rc)

    interrupted = lab.run("matrix", stop_at_the_first, experiment=experiment("two-workloads"))
    assert stopped == [0], another.text()[-4000:]
    assert interrupted.rc != 0 and processes_of(tmp_path) == []
    assert lab.run("matrix", experiment=experiment("two-workloads")).rc == 0, lab.text()[-4000:]
    store = Results(lab.results).experiment("two-workloads")
    assert len(store.runs()) == 1
    good = Counter(r["workload"] for r in store.measurements() if r["status"] == "ok")
    assert good == {"one-stream": 1, "four-streams": 1}


def test_a_boot_that_breaks_off_keeps_what_it_measured(tmp_path: Path):
    """The prompts of the second workload vanish from the host while the boot measures, and come back for the next."""
    lab = Lab(tmp_path)
    own = tmp_path / "own.jsonl"
    own.write_text("\n".join(json.dumps(f"Prompt {i} of the lab") for i in range(20)))
    sha256 = file_digest(own)
    book = yaml.safe_load((ROOT / "group_vars" / "all" / "workloads.yml").read_text())["plumbline_workloads"]
    four = {**book["four-streams"], "prompts": {"file": str(own), "sha256": sha256, "skip": 0, "take": 20}}
    there = tmp_path / "hosts" / "sim-1" / "prompts" / f"{sha256[:12]}.jsonl"
    aside = tmp_path / "aside"
    done: list[str] = []

    def take_and_give_back(event: dict) -> None:
        action = event.get("event_data", {}).get("task_action")
        moves = {"plumbline_ready": (there, aside), "plumbline_record": (aside, there)}
        if event["event"] == "runner_on_ok" and action in moves and action not in done:
            done.append(action)
            moves[action][0].rename(moves[action][1])

    result = lab.run("matrix", take_and_give_back, experiment=experiment("two-workloads"),
                     plumbline_workloads_lab={"four-streams": four})
    assert result.rc == 0, lab.text()[-4000:]
    records = Results(lab.results).experiment("two-workloads").measurements()
    assert [(r["workload"], r["status"]) for r in records] == [
        ("one-stream", "ok"), ("four-streams", "failed"), ("four-streams", "ok")]
    assert "no such prompt file" in records[1]["failure"]["detail"]
    assert records[0]["boot"] == records[1]["boot"] != records[2]["boot"]
    assert records[0]["server"]["version"]


def test_a_complete_run_is_followed_by_a_new_one(lab: Lab):
    for cmdline, variables in (None, {"plan_only": True}), ("--check", {}):
        assert lab.run("matrix", cmdline=cmdline, experiment="demo", **variables).rc == 0, lab.text()[-4000:]
    store = Results(lab.results).experiment("demo")
    assert len(store.runs()) == 1, "planning alone begins no run"
    assert store.choose_run()[1] is False
