"""The story that the project is for, told again on a simulated host: at each point Plumbline says what a careful
engineer would have said.

63 tok/s untuned, 88.8 tuned, 94 with EAGLE-3 and two steps; twelve days later, with another build and two edited
files, 82.2, and 60 with three steps.
"""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from plumbline.analysis.store import Results

from playbooks import ROOT, Lab, experiment, physics, server_args, short_workload

pytestmark = pytest.mark.story

LATER = {"sglang_build_lock": "sim-b", "sglang_build_lock_folders": [str(ROOT / "states")]}

# The story's host, and one where it ends otherwise.
HOST, OTHER = "sim-1", "sim-2"


def of(rows: list[dict], host: str = HOST) -> list[dict]:
    return [row for row in rows if row["host"] == host]


class Story:
    """The host of the story, and what was said on each day."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder)
        self.books: dict[str, dict] = {}

    def day(self, name: str, source: str, hosts: dict[str, dict] | None = None, **variables: Any) -> None:
        """Measure an experiment of the story on its host, and on others whose physics differ in ``hosts``."""
        # Two ranks: each is a process to pay for. The proof of the profile has all eight.
        self.lab.physics = physics(self.lab.folder / "physics", source, hosts=hosts or {}, ranks=2)
        done = self.lab.run("matrix", limit=",".join([HOST, *(hosts or {})]), experiment=experiment(name),
                            plumbline_workloads_lab=short_workload(),
                            sglang_server_args=server_args(2), **variables)
        assert done.rc == 0, self.lab.text()[-6000:]
        self.books[name] = Results(self.lab.results).experiment(name).verdict() or {}

    def comparison(self, day: str, arm: str) -> dict:
        (found,) = [c for c in of(self.books[day]["comparisons"]) if c["candidate_arm"]["name"] == arm]
        return found

    def records(self, day: str, arm: str) -> list[dict]:
        return [m for m in of(Results(self.lab.results).experiment(day).measurements()) if m["arm"] == arm]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Both days, measured once for all tests of this file."""
    told = Story(tmp_path_factory.mktemp("story"))
    told.day("story-a", "story-a", accept=True)
    other = yaml.safe_load((ROOT / "simulator" / "physics" / "no-draft-wins.yml").read_text())
    told.day("story-b", "story-b", {OTHER: {"steps": other["steps"]}}, simulator_advance="12d", **LATER)
    return told



def test_the_good_day(story: Story) -> None:
    book = story.books["story-a"]
    (baseline,) = of(book["baselines"])
    assert baseline["now_tok_s"] == pytest.approx(88.8, rel=0.015)
    assert baseline["status"] == "new"
    untuned = next(c for c in book["comparisons"] if c["candidate_arm"]["nccl_profile"] == "none")
    assert untuned["verdict"] == "slower"
    assert untuned["candidate_tok_s"] == pytest.approx(63.0, rel=0.015)
    assert untuned["differs_in"] == ["nccl_profile"]
    eagle = next(c for c in book["comparisons"] if c["candidate"] == "eagle3-2step")
    assert eagle["verdict"] == "faster"
    assert eagle["ratio"] == pytest.approx(1.06, abs=0.02)
    assert eagle["candidate_tok_s"] == pytest.approx(94.0, rel=0.015)
    assert {r["engine"] for r in Results(story.lab.results).experiment("story-a").measurements()} == {"simulator"}


def test_twelve_days_later_the_baseline_has_drifted_and_what_changed_is_listed(story: Story) -> None:
    (baseline,) = of(story.books["story-b"]["baselines"])
    assert baseline["status"] == "drifted", baseline
    assert baseline["now_tok_s"] == pytest.approx(82.2, rel=0.015)
    assert baseline["change"] == pytest.approx(-0.074, abs=0.012)
    assert baseline["change_split"]["step_time"] == pytest.approx(-0.074, abs=0.012)
    assert baseline["change_split"]["accept_length"] == pytest.approx(0.0, abs=1e-6)
    assert baseline["reference"]["kind"] == "accepted"
    listed = [(r["group"], r["item"].rsplit("site-packages/", 1)[-1], r["impact"]) for r in baseline["state_changes"]]
    assert listed[0] == ("build", "distribution.sglang", "performance")
    assert ("files", "sglang/srt/entrypoints/engine.py", "performance") in listed
    assert ("files", "sglang/srt/managers/scheduler.py", "performance") in listed
    ranks = [("invalidates", "performance", "possible", "noise").index(impact) for *_, impact in listed]
    assert ranks == sorted(ranks)
    build = baseline["state_changes"][0]
    assert (build["was"]["version"], build["now"]["version"]) == ("0.5.23+sim.a", "0.5.23+sim.b")
    assert all(r["remedy"] for r in baseline["state_changes"])


def test_the_days_lie_twelve_days_apart_by_the_records(story: Story) -> None:
    rows = [r for r in Results(story.lab.results).baselines("sim-1") if r["kind"] == "measured"]
    days = sorted({r["at"][:10] for r in rows})
    assert len(days) >= 2
    assert {r["experiment"] for r in rows} == {"story-a", "story-b"}


def test_three_steps_are_slower_and_why(story: Story) -> None:
    three = story.comparison("story-b", "eagle3-3step")
    assert three["verdict"] == "slower"
    assert three["ratio"] == pytest.approx(0.73, abs=0.015)
    assert three["accept_length"] == pytest.approx(2.16, abs=0.06)
    assert three["break_even_accept_length"] == pytest.approx(2.96, abs=0.06)
    assert three["max_accept_length"] == 4
    assert three["can_win"] is True
    assert "it would need 2.9" in three["advice"]
    assert any("the verify step runs without CUDA graph" in r for r in three["reasons"]), three["reasons"]
    flags = {f["name"]: f["detail"] for r in story.records("story-b", "eagle3-3step") for f in r["flags"]}
    assert "ran without CUDA graph" in flags["graph_off"]
    assert not any(f["name"] == "graph_off" for r in story.records("story-b", "baseline") for f in r["flags"])


def test_two_steps_are_still_faster_than_the_baseline_of_the_day(story: Story) -> None:
    two = story.comparison("story-b", "eagle3-2step")
    assert two["verdict"] == "faster"
    assert two["ratio"] == pytest.approx(1.06, abs=0.02)
    (steps,) = of(story.books["story-b"]["steps"])
    assert steps["best"] == "eagle3-2step"
    assert "fewer steps win here" in steps["advice"]


def test_the_other_ending_no_draft_of_this_accuracy_can_win(story: Story) -> None:
    (steps,) = of(story.books["story-b"]["steps"], OTHER)
    assert steps["best"] is None
    assert "every number of steps is under its break-even; no draft of this accuracy can win here" in steps["advice"]
    for row in steps["table"]:
        assert row["verdict"] == "slower"
        assert row["accept_length"] < row["break_even_accept_length"]
    near = min(r["break_even_accept_length"] for r in steps["table"])
    assert near == pytest.approx((28.4 + 2 * 1.8) / 12.17, abs=0.05)
    assert "which would take an accept length of 2." in steps["advice"]


def test_94_and_60_are_not_comparable(story: Story) -> None:
    good = story.records("story-a", "eagle3-2step/pcie-ll-ring")[-1]
    bad = story.records("story-b", "eagle3-3step")[-1]
    assert good["state"]["digest"] != bad["state"]["digest"]
    done = story.lab.run("compare", limit=None, was=f"measurement:{good['id']}", now=f"measurement:{bad['id']}",
                         strict=True)
    assert done.rc != 0, "with strict, differences are a failure"
    document = json.loads(next((story.lab.results / "compare").glob("*.json")).read_text())
    impacts = {(d["group"], d["impact"]) for d in document["differences"]}
    assert {("build", "performance"), ("files", "performance"), ("engine_args", "invalidates")} <= impacts


def test_the_profile_is_in_force_on_8_of_8_ranks_though_environ_shows_nothing(story: Story) -> None:
    story.lab.physics = physics(story.lab.folder / "physics", "story-b")
    done = story.lab.run("nccl", profile="pcie-ll-ring", **LATER)
    assert done.rc == 0, story.lab.text()[-4000:]
    (proof,) = Results(story.lab.results).proofs().values()
    assert proof["profile_in_force"] is True
    assert len(proof["ranks"]) == 8
    assert all(len(r["taken"]) == 6 for r in proof["ranks"])
    assert {tuple(e["visible"]) for e in proof["environ"]} == {()}
    assert "8 of 8 ranks seen" in story.lab.text()


def test_margin_and_confidence_do_what_the_words_say_and_old_records_give_the_same_bytes(story: Story) -> None:
    store = Results(story.lab.results).experiment("story-b")
    names = ["verdict.json", "measurements.csv"]
    kept = {n: (store.folder / n).read_bytes() for n in names}
    assert story.lab.run("report", limit=None, experiment="story-b", margin=0.12).rc == 0
    wide = {c["candidate"]: c["verdict"] for c in of((store.verdict() or {})["comparisons"])}
    assert wide == {"eagle3-2step": "same", "eagle3-3step": "slower"}
    assert story.lab.run("report", limit=None, experiment="story-b", confidence=0.9999999).rc == 0
    strict = {c["candidate"]: c for c in of((store.verdict() or {})["comparisons"])}
    two = story.comparison("story-b", "eagle3-2step")
    assert strict["eagle3-2step"]["verdict"] == "inconclusive"
    assert strict["eagle3-2step"]["ci"][1] > two["ci"][1]
    assert story.lab.run("report", limit=None, experiment="story-b").rc == 0
    assert {n: (store.folder / n).read_bytes() for n in names} == kept


def test_the_claim_of_the_day_cannot_be_true(story: Story) -> None:
    figures = {"tok_s": 60, "step_ms": 30.6, "accept_length": 1.17, "steps": 3, "baseline_tok_s": 82.2}
    assert story.lab.run("claim", limit=None, **figures).rc == 0
    said = story.lab.text()
    assert "cannot all be true" in said
    assert "1.84 tokens a cycle, not 1.17" in said
    assert "1.17 + 1 = 2.17" in said
    assert story.lab.run("claim", limit=None, **figures, strict=True).rc != 0
    assert story.lab.run("claim", limit=None, tok_s="60 tok/s").rc != 0
