"""A world that nobody has seen before: physics drawn by chance, the shipped experiment, and what must come out."""
from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml
from plumbline.analysis.store import Results

from playbooks import Lab, server_args, short_workload

pytestmark = pytest.mark.story

SEED = 20
STEPS = (1, 2, 3)


def draw(seed: int, folder: Path) -> tuple[Path, dict[int, dict]]:
    """A physics file, and for each number of steps its true ratio and break-even accept length."""
    rng = random.Random(seed)
    decode = rng.uniform(8.0, 14.0)
    targets = [rng.uniform(1.12, 1.3), rng.uniform(0.82, 0.9), rng.uniform(0.6, 0.75)]
    rng.shuffle(targets)
    steps, truth = {}, {}
    for k, ratio in zip(STEPS, targets):
        draft, length = rng.uniform(0.5, 1.5), 1.0 + k * rng.uniform(0.3, 0.8)
        steps[k] = {"verify_ms": length / ratio * decode - k * draft, "draft_ms": draft, "accept_length": length,
                    "cuda_graph": True}
        truth[k] = {"ratio": ratio, "break_even": length / ratio}
    path = folder / f"drawn-{seed}.yml"
    path.write_text(yaml.safe_dump({
        "schema": "plumbline.simulator-physics/1", "ranks": 2, "seed": seed, "time_scale": 600,
        "load_s": {"mean": rng.uniform(300, 540), "sd": 20}, "decode_ms": decode, "steps": steps,
        "noise": {"boot_sd": 0.002, "request_sd": 0.001}, "build_factor": {"sim-a": rng.uniform(0.9, 1.1)}}))
    return path, truth


def test_the_shipped_experiment_finds_what_is_true_of_a_drawn_world(tmp_path: Path) -> None:
    path, truth = draw(SEED, tmp_path)
    lab = Lab(tmp_path, hosts="sim-4", physics=path)
    done = lab.run("matrix", experiment="eagle3-steps", plumbline_workloads_lab=short_workload(),
                   sglang_server_args=server_args(2))
    assert done.rc == 0, lab.text()[-6000:]
    store = Results(lab.results).experiment("eagle3-steps")
    book = store.verdict() or {}
    assert len(book["comparisons"]) == len(STEPS)
    for comparison in book["comparisons"]:
        true = truth[int(comparison["candidate"].removeprefix("eagle3-").removesuffix("step"))]
        assert comparison["verdict"] == ("faster" if true["ratio"] > 1 else "slower"), comparison
        assert comparison["ratio"] == pytest.approx(true["ratio"], rel=0.02)
        assert comparison["ci"][0] < true["ratio"] < comparison["ci"][1]
        assert comparison["break_even_accept_length"] == pytest.approx(true["break_even"], rel=0.02)
    best = max(truth, key=lambda k: truth[k]["ratio"])
    (steps,) = book["steps"]
    assert steps["best"] == f"eagle3-{best}step"
    assert book["hosts"][0]["stopped"] == "verdict", "it stops as soon as all is known"
    assert len(book["hosts"]) == 1
    assert book["hosts"][0]["boots"] <= 17
    assert {m["engine"] for m in store.measurements()} == {"simulator"}
    kept = (store.folder / "verdict.json").read_bytes()
    assert lab.run("report", limit=None, experiment="eagle3-steps").rc == 0
    assert (store.folder / "verdict.json").read_bytes() == kept
