"""Step times, the story's figures, and the draws behind them."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any, Optional

import pytest
import yaml
from sglang.simulation import model, physics
from sglang.simulation.model import Speculation, StepModel

ROOT = Path(__file__).resolve().parents[3]
EAGLE = {steps: Speculation("EAGLE3", steps, steps + 1) for steps in (1, 2, 3)}


def read(name: str, **change: Any) -> dict[str, Any]:
    document = yaml.safe_load((ROOT / "simulator" / "physics" / f"{name}.yml").read_text())
    document.update({"noise": {}, **change})
    return physics.resolve(document, "sim-1")


def speed(
    world: dict[str, Any],
    version: str,
    steps: int = 0,
    tuned: bool = True,
    batch: int = 1,
    graphs: int = 16,
    edited: Optional[list[str]] = None,
) -> float:
    """tok/s of one stream, as the model gives it."""
    speculation = EAGLE[steps] if steps else None
    one = StepModel(world, 1, version, edited or [], tuned, speculation, graphs)
    return one.accept_length / one.cycle_s(batch, 1.0, 0.0, 0.0)


A, B = "0.5.23+sim.a", "0.5.23+sim.b"


def test_the_story() -> None:
    before, after = read("story-a"), read("story-b")
    files = ["srt/managers/scheduler.py", "srt/entrypoints/engine.py"]
    assert speed(before, A, tuned=False) == pytest.approx(63, abs=0.1)
    assert speed(before, A) == pytest.approx(88.8, abs=0.1)
    assert speed(before, A, 2) == pytest.approx(94, abs=0.2)
    assert speed(after, B, tuned=False, edited=files) == pytest.approx(63, abs=0.1)
    assert speed(after, B, edited=files) == pytest.approx(82.2, abs=0.05)
    assert 59 <= speed(after, B, 3, edited=files) <= 61
    assert speed(after, B, 2) / speed(after, B) == pytest.approx(1.06, abs=0.002)
    assert speed(after, B, 3) / speed(after, B) == pytest.approx(0.73, abs=0.002)
    assert speed(after, B) / speed(before, A) - 1 == pytest.approx(-0.074, abs=0.001)
    three = StepModel(after, 1, B, files, True, EAGLE[3], 16)
    assert three.cycle_s(1, 1, 0, 0) * speed(after, B) == pytest.approx(2.96, abs=0.005)
    assert not three.has_graph(1) and StepModel(after, 1, B, files, True, EAGLE[2], 16).has_graph(1)


def test_the_other_ending_has_no_winner() -> None:
    world = read("no-draft-wins")
    for steps in (1, 2, 3):
        cycle = StepModel(world, 1, A, [], True, EAGLE[steps], 16)
        needed = cycle.cycle_s(1, 1, 0, 0) * speed(world, A)
        assert cycle.accept_length < 0.9 * needed
        # With one step even a perfect draft cannot win; more steps could, with a better draft.
        assert (needed > steps + 1) == (steps == 1)


def test_pure_noise_has_no_difference() -> None:
    world = read("pure-noise")
    base = speed(world, A)
    assert [speed(world, A, steps) / base for steps in (1, 2, 3)] == [pytest.approx(1.0, abs=1e-6)] * 3


def test_factors_multiply_time_or_speed() -> None:
    world = read(
        "story-a",
        decode_ms=10,
        build_factor={"sim-a": 2.0, "0.5.23+sim.b": 4.0, "0.5.23": 8.0},
        edited_file_factor={"srt/x.py": 0.5, "srt/y.py": 0.9},
        eager_factor={"decode": 1.6, "verify": 1.5},
        untuned_factor={"decode": 1.3, "verify": 1.4},
        steps={2: {"verify_ms": 20, "draft_ms": 1, "accept_length": 2, "cuda_graph": True}},
        batch_factor={1: 1.0, 4: 1.2, 8: 2.0},
    )
    assert speed(world, A) == pytest.approx(200)
    assert speed(world, B) == pytest.approx(400), "the whole version"
    assert speed(world, "0.5.23+other") == pytest.approx(800), "the public version"
    assert speed(world, "0.6.0") == pytest.approx(100), "a build that is not listed"
    assert speed(world, "0.6.0", edited=["srt/x.py", "srt/y.py", "srt/z.py"]) == pytest.approx(45)
    assert speed(world, "0.6.0", tuned=False) == pytest.approx(100 / 1.3)
    assert speed(world, "0.6.0", graphs=0) == pytest.approx(100 / 1.6)
    assert speed(world, "0.6.0", batch=4) == pytest.approx(100 / 1.2)
    assert speed(world, "0.6.0", batch=6) == pytest.approx(100 / 1.6), "between the points"
    assert speed(world, "0.6.0", batch=16) == pytest.approx(100 / 2.0), "beyond the last"
    assert speed(world, "0.6.0", 2) == pytest.approx(2 * 1000 / 22)
    assert speed(world, "0.6.0", 2, tuned=False) == pytest.approx(2 * 1000 / (20 * 1.4 + 2 * 1.3))
    assert speed(world, "0.6.0", 2, graphs=0) == pytest.approx(2 * 1000 / (20 * 1.5 + 2))


def test_drift_and_foreign_load() -> None:
    world = read(
        "story-a",
        drift={"per_hour": -0.1, "step_after_boots": 2, "step": -0.2, "first_boot": -0.5},
        foreign_load={"share": 0.25, "cost": 0.4},
    )
    boots = [StepModel(world, boot, "1", [], True, None, 16).boot_speed for boot in (1, 2, 3, 4)]
    assert boots == pytest.approx([0.5, 1.0, 0.8, 0.8])
    one = StepModel(world, 2, "1", [], True, None, 16)
    quiet = next(slot * 5.0 for slot in range(100) if not one.foreign(slot * 5.0))
    assert one.speed(quiet, 2.0) == pytest.approx(0.9**2)
    shares = [one.foreign(slot * model.SLOT_S) for slot in range(4000)]
    assert sum(shares) / len(shares) == pytest.approx(0.25, abs=0.03)
    busy = shares.index(True) * model.SLOT_S
    assert one.foreign(busy + 4.9) and one.speed(busy, 0.0) == pytest.approx(0.6)


def test_noise_has_the_declared_spread_and_repeats() -> None:
    world = read(
        "story-a",
        noise={"boot_sd": 0.02, "request_sd": 0.01, "candidate_boot_factor": 5, "outlier_share": 0.1, "outlier": -0.5},
    )

    def draws(speculation: Optional[Speculation]) -> list[float]:
        return [StepModel(world, boot, "1", [], True, speculation, 16).boot_speed for boot in range(2, 1500)]

    base, spec = draws(None), draws(EAGLE[2])
    outliers = [value for value in base if value < 0.75]
    assert len(outliers) / len(base) == pytest.approx(0.1, abs=0.025)
    usual = [math.log(value) for value in base if value >= 0.75]
    assert statistics.stdev(usual) == pytest.approx(0.02, rel=0.1)
    assert statistics.stdev([math.log(v) for v in spec if v > 0.75]) == pytest.approx(0.1, rel=0.15)
    assert base == draws(None), "the same seed, host and boot give the same draw"
    elsewhere = StepModel({**world, "host": "sim-2"}, 2, "1", [], True, None, 16).boot_speed
    assert elsewhere != base[0]
    one = StepModel(world, 3, "1", [], True, None, 16)
    requests = [math.log(one.request_factor(3, number)) for number in range(2000)]
    assert statistics.stdev(requests) == pytest.approx(0.01, rel=0.1)


def test_replaced_accept_length_and_ngram() -> None:
    world = read("story-a")
    assert StepModel(world, 1, A, [], True, EAGLE[3], 16, 1.0).accept_length == 1.0
    ngram = StepModel(world, 1, B, [], True, Speculation("NGRAM", 0, 8), 16)
    assert ngram.accept_length / ngram.cycle_s(1, 1, 0, 0) == pytest.approx(1.5 * 1000 / 18)


def test_edited_files_are_found_by_the_wheels_record(tmp_path: Path) -> None:
    import hashlib
    from base64 import urlsafe_b64encode
    from importlib import metadata

    package, info = tmp_path / "sglang", tmp_path / "sglang-1.dist-info"
    (package / "srt").mkdir(parents=True)
    info.mkdir()
    lines = []
    for name, text in (("srt/a.py", "one"), ("srt/b.py", "two"), ("srt/c.py", "three")):
        (package / name).write_text(text)
        digest = urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"sglang/{name},sha256={digest},{len(text)}")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 1\n")
    (info / "RECORD").write_text("\n".join(lines))
    (package / "srt/b.py").write_text("changed")
    (package / "srt/c.py").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "distribution", lambda _name: metadata.PathDistribution(info))
        assert model.edited_files() == ["srt/b.py", "srt/c.py"]
