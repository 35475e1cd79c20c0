"""Counter-stories: what looks like the story and is another. Eight simulated hosts at once, each with a trouble of its
own, then a second look at some of them on another day.
"""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plumbline.analysis.store import Results

from playbooks import Lab, experiment, physics, server_args, short_workload

pytestmark = pytest.mark.story

STEPS = {2: {"verify_ms": 20.5, "draft_ms": 1.8, "accept_length": 2.1, "cuda_graph": True}}
# The accept length at which two steps are exactly as fast as none: R = (20.5 + 2 x 1.8) / 12.17.
EVEN = {2: {**STEPS[2], "accept_length": (20.5 + 2 * 1.8) / 12.17}}
DIES, DRIFTS, FAULTS, EQUAL, MISMATCH, FOREIGN, STEPS_DOWN, BARE = (f"sim-{i}" for i in range(1, 9))
FIRST = {
    DIES: {"faults": [{"when": "load", "do": "crash", "boot": n} for n in range(3, 12)]},
    DRIFTS: {"drift": {"per_hour": -0.06}},
    FAULTS: {"faults": [{"when": "load", "do": "crash", "every": 2}]},
    EQUAL: {"steps": EVEN},
    MISMATCH: {"draft_mismatch": True},
    STEPS_DOWN: {"drift": {"step_after_boots": 3, "step": -0.07}},
}
SECOND = {
    DRIFTS: {"drift": {"per_hour": -0.06}},
    FOREIGN: {"foreign_load": {"share": 1.0, "cost": 0.074}},
    BARE: {"rank_without_profile": 1},
}


class Counter:
    """The hosts, and the two verdicts."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder)
        self.shared = folder / "hosts" / "shared-builds"
        self.codes: dict[str, int] = {}

    def measure(self, name: str, hosts: list[str], overrides: dict[str, dict], **variables: Any) -> dict:
        self.lab.hosts = ",".join(hosts)
        # Loads at the pace of the story: what a busy machine adds to a load makes drift go on sixty times as fast, not
        # six hundred.
        self.lab.physics = physics(self.lab.folder / "physics", "story-a", ranks=2, steps=STEPS, hosts=overrides,
                                   time_scale=60)
        # The hosts are one machine: each build is made once for all of them.
        self.shared.mkdir(parents=True, exist_ok=True)
        for host in hosts:
            root = self.lab.folder / "hosts" / host
            root.mkdir(exist_ok=True)
            if not (root / "builds").exists():
                (root / "builds").symlink_to(self.shared)
        self.codes[name] = self.run("matrix", experiment=experiment(name), **variables)
        return Results(self.lab.results).experiment(name).verdict() or {}

    def run(self, playbook: str, **variables: Any) -> int:
        """Exit status of a playbook on the hosts chosen last."""
        return self.lab.run(playbook, plumbline_workloads_lab=short_workload(), sglang_server_args=server_args(2),
                            **variables).rc

    def records(self, name: str, host: str) -> list[dict]:
        return [m for m in Results(self.lab.results).experiment(name).measurements() if m["host"] == host]


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Counter:
    return Counter(tmp_path_factory.mktemp("counter"))


@pytest.fixture(scope="module")
def first(counter: Counter) -> dict:
    """The matrix over eight hosts."""
    book = counter.measure("counter", [f"sim-{i}" for i in range(1, 9)], FIRST)
    assert book.get("comparisons"), counter.lab.text()[-6000:]
    return book


@pytest.fixture(scope="module")
def second(counter: Counter, first: dict) -> dict:
    """The baselines of some of them, an hour later."""
    assert first
    book = counter.measure("nightly", [DRIFTS, EQUAL, FOREIGN, BARE], SECOND, simulator_advance="1h")
    assert book.get("baselines"), counter.lab.text()[-6000:]
    return book


def nothing_that_matters(baseline: dict) -> bool:
    """Whether the state is the same but for what may always change on a machine that others use, too (a sysctl)."""
    return not [c for c in baseline["state_changes"] if c["impact"] in ("invalidates", "performance")]


def said_to_be_unexplained(baseline: dict) -> bool:
    words = "no difference of class invalidates or performance" if baseline["state_changes"] else "same captured state"
    return any(words in r for r in baseline["reasons"])


def of(book: dict, part: str, host: str) -> dict:
    (found,) = [row for row in book[part] if row["host"] == host]
    return found


@pytest.mark.parametrize("host", [DRIFTS, FAULTS, FOREIGN, BARE])
def test_drift_and_faults_do_not_change_what_is_true(first: dict, host: str) -> None:
    comparison = of(first, "comparisons", host)
    assert comparison["verdict"] == "faster", comparison
    assert comparison["ratio"] == pytest.approx(1.06, abs=0.025)


def test_the_host_that_died_stops_alone_and_is_named(counter: Counter, first: dict) -> None:
    host = of(first, "hosts", DIES)
    assert host["stopped"] == "failed"
    assert host["failures"]
    assert of(first, "comparisons", DIES)["verdict"] in ("inconclusive", "not_comparable")
    others = [h for h in first["hosts"] if h["host"] != DIES]
    assert {h["stopped"] for h in others} == {"blocks"}
    assert counter.codes["counter"] != 0, "the play says that one host could not be measured"


def test_a_fault_at_every_second_load_is_tried_again_and_nothing_is_missing(counter: Counter, first: dict) -> None:
    assert of(first, "hosts", FAULTS)["stopped"] == "blocks"
    records = counter.records("counter", FAULTS)
    good = [r for r in records if r["status"] == "ok"]
    failed = [r for r in records if r["status"] == "failed"]
    assert len({(r["position"], r["workload"]) for r in good}) == len(good) == 7
    assert len(failed) >= 3
    assert all(r["failure"]["class"] for r in failed)


def test_the_records_of_the_matrix_are_complete(counter: Counter, first: dict) -> None:
    assert len(first["hosts"]) == 8
    store = Results(counter.lab.results).experiment("counter")
    records = store.measurements()
    assert len({r["id"] for r in records}) == len(records)
    for host in (h["host"] for h in first["hosts"] if h["host"] != DIES):
        assert len({r["position"] for r in records if r["host"] == host and r["status"] == "ok"}) == 7
    assert all((store.evidence_folder(r["id"])).is_dir() for r in records)
    assert {r["state"]["digest"] for r in records if r["status"] == "ok"} <= set(Results(counter.lab.results).states())


def test_of_equal_speeds_nothing_is_claimed(first: dict, second: dict) -> None:
    assert of(first, "comparisons", EQUAL)["verdict"] in ("same", "inconclusive")
    baseline = of(second, "baselines", EQUAL)
    assert baseline["status"] == "stable", baseline
    assert nothing_that_matters(baseline)


def test_a_draft_that_does_not_match_is_no_slow_draft(counter: Counter, first: dict) -> None:
    comparison = of(first, "comparisons", MISMATCH)
    assert comparison["verdict"] == "slower", comparison
    assert comparison["ratio"] == pytest.approx(12.17 / (20.5 + 2 * 1.8), abs=0.03)
    assert any("accept_length_one" in r for r in comparison["reasons"])
    assert "does not belong to the model or to the algorithm" in comparison["advice"]
    candidates = [r for r in counter.records("counter", MISMATCH) if r["role"] == "candidate"]
    assert {round(r["metrics"]["accept_length"], 1) for r in candidates} == {1.0}


def test_a_step_in_the_middle_of_a_run_is_not_taken_for_the_candidates(first: dict) -> None:
    assert of(first, "comparisons", STEPS_DOWN)["verdict"] in ("faster", "inconclusive")


def test_thermal_drift_alone_is_said_to_be_unexplained(second: dict) -> None:
    baseline = of(second, "baselines", DRIFTS)
    assert baseline["status"] == "drifted", baseline
    assert nothing_that_matters(baseline)
    assert said_to_be_unexplained(baseline), baseline["reasons"]


def test_foreign_load_is_named_and_its_figures_are_not_used(second: dict) -> None:
    baseline = of(second, "baselines", FOREIGN)
    assert baseline["status"] == "uncertain", baseline
    assert any("foreign_load" in r and "somebody else uses the server" in r for r in baseline["reasons"])
    assert baseline["now_tok_s"] is None


def test_a_rank_without_the_profile_is_found_by_the_proof(counter: Counter, second: dict) -> None:
    baseline = of(second, "baselines", BARE)
    assert baseline["status"] == "drifted"
    assert baseline["change"] == pytest.approx(1 / 1.41 - 1, abs=0.02)
    assert said_to_be_unexplained(baseline), baseline["reasons"]
    counter.lab.hosts = BARE
    assert counter.run("nccl", profile="pcie-ll-ring") != 0
    assert "rank 1 of 2: nothing of the profile reached it in time" in counter.lab.text()


def test_a_budget_ends_the_run_and_says_so(counter: Counter, second: dict) -> None:
    assert second
    path = counter.lab.folder / "budget.yml"
    text = Path(experiment("counter")).read_text().replace("name: counter", "name: budget")
    path.write_text(text.replace("blocks: 3", "blocks: {min: 2, max: 10}\nbudget: {boots: 3}"))
    counter.lab.hosts = EQUAL
    assert counter.run("matrix", experiment=str(path)) == 0, counter.lab.text()[-4000:]
    book = Results(counter.lab.results).experiment("budget").verdict() or {}
    host = of(book, "hosts", EQUAL)
    assert (host["boots"], host["stopped"]) == (3, "budget")
    comparison = of(book, "comparisons", EQUAL)
    assert comparison["verdict"] == "inconclusive"
    assert comparison["more_boots"] >= 1
