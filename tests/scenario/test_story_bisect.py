"""What carries the story's change: the build and the two edited files are tried, every boot is recorded, and the build
is named.
"""
from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from plumbline.analysis.store import Results
from plumbline.files import read_lines

from playbooks import ROOT, Lab, physics, server_args, short_workload

pytestmark = pytest.mark.story


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A host on which the search has been made."""
    folder = tmp_path_factory.mktemp("bisect")
    lab = Lab(folder, physics=physics(folder / "physics", "story-b", ranks=2))
    done = lab.run("bisect", good="sim-a", bad="sim-b", blocks=3, plumbline_workloads_lab=short_workload(),
                   sglang_server_args=server_args(2))
    assert done.rc == 0, lab.text()[-6000:]
    return lab


def test_the_build_is_named_and_the_edited_files_are_not(lab: Lab) -> None:
    found = json.loads((lab.results / "bisect-sim-a-sim-b" / "bisect.json").read_text())
    assert (found["outcome"], found["found"]) == ("found", ["build"]), found
    assert [u["name"] for u in found["units"]] == ["build", "file:sglang/srt/entrypoints/engine.py",
                                                   "file:sglang/srt/managers/scheduler.py"]
    assert [t["answer"]["result"] for t in found["tests"]] == ["carries", "carries"]
    assert found["ratio"] == pytest.approx(1 / 1.08, abs=0.015)
    assert found["whole"] == pytest.approx(1 / 1.08, abs=0.015)
    assert found["share"] == pytest.approx(1.0, abs=0.25)
    assert found["tests"][1]["margin"] == pytest.approx(0.0377, abs=0.008), "half of the whole change"
    assert "found: build: 0.9" in lab.text()


def test_every_boot_is_in_the_records(lab: Lab) -> None:
    store = Results(lab.results).experiment("bisect-sim-a-sim-b")
    tests = [e for e in read_lines(store.folder / "bisect.jsonl") if e["event"] == "test"]
    assert sorted(store.runs()) == sorted(t["run"] for t in tests)
    for test in tests:
        records = store.measurements(test["run"])
        assert len(records) == 7
        assert {r["status"] for r in records} == {"ok"}
        assert store.is_complete(test["run"])
    edited = [r for r in store.measurements(tests[0]["run"]) if r["role"] == "candidate"]
    states = Results(lab.results).states()
    for record in edited:
        files = states[record["state"]["digest"]]["groups"]["files"]["identity"]
        assert sorted(name.rsplit("/", 1)[-1] for name in files) == ["engine.py", "scheduler.py"]


def test_the_report_of_one_test_can_be_written_again(lab: Lab) -> None:
    store = Results(lab.results).experiment("bisect-sim-a-sim-b")
    assert lab.run("report", limit=None, experiment=store.name, run=store.runs()[0]).rc == 0
    (comparison,) = (store.verdict() or {})["comparisons"]
    assert comparison["verdict"] == "slower"


def test_one_host_and_two_states_are_asked_for(lab: Lab) -> None:
    assert lab.run("bisect", good="sim-a").rc != 0
    assert "-e good=STATE -e bad=STATE" in lab.text()
    assert lab.run("bisect", good="sim-a", bad="sim-bb").rc != 0
    assert "did you mean 'sim-b'" in lab.text()


def test_a_host_that_another_run_holds_is_no_answer(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lease = tmp_path / "hosts" / "sim-1" / "lease.json"
    lease.parent.mkdir(parents=True)
    lease.write_text(json.dumps({"controller": "ann@desk", "run": "01KB7Q9Z6T4M5N8P2R3S1V0W7X", "experiment": "demo",
                                 "ttl_s": 120, "acquired_at": 2e9, "renewed_at": 2e9, "expires_at": 2e9 + 120}))
    for _ in range(2):
        assert lab.run("bisect", good="sim-a", bad="sim-b").rc != 0
        assert "held by another run" in lab.text()
    entries = read_lines(lab.results / "bisect-sim-a-sim-b" / "bisect.jsonl")
    assert [e["event"] for e in entries] == ["begun", "test"], "started again, it is the same test"


def test_arguments_that_no_server_takes_are_an_answer(tmp_path: Path) -> None:
    known = yaml.safe_load((ROOT / "states" / "sim-a.yml").read_text())
    for name, policy in (("fine", "lpm"), ("wrong", "no-such-policy")):
        server = {"args": {"schedule-policy": policy}}
        (tmp_path / f"{name}.yml").write_text(yaml.safe_dump({**known, "name": name, "server": server}))
    lab = Lab(tmp_path)
    assert lab.run("bisect", good="fine", bad="wrong", states_folder=str(tmp_path)).rc != 0
    assert "could not be decided" in lab.text()
    found = json.loads((lab.results / "bisect-fine-wrong" / "bisect.json").read_text())
    (test,) = found["tests"]
    assert (found["outcome"], test["answer"]["result"]) == ("unresolved", "unresolved")
    assert "no-such-policy" in test["answer"]["detail"]
