"""The controller's filter, and the clock's file."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
from ansible.errors import AnsibleFilterError
from sglang.simulation import clock

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def plugin() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "simulator_filter", ROOT / "filter_plugins" / "plumbline_simulator.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_names_and_paths_give_json(plugin: ModuleType, tmp_path: Path) -> None:
    text = plugin.plumbline_physics("story-a")
    assert json.loads(text)["build_factor"] == {"sim-a": 1.08, "sim-b": 1.0}
    assert text == plugin.plumbline_physics(str(ROOT / "simulator" / "physics" / "story-a.yml"))
    file = tmp_path / "mine.yml"
    file.write_text("decode_ms: 10\nbatch_factor: {1: 1.0, 16: 2}\n")
    assert json.loads(plugin.plumbline_physics(str(file)))["batch_factor"] == {"1": 1.0, "16": 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("decode_ms: -1", "decode_ms: found -1"),
        ("decode_ms: [", "is not YAML"),
        ("- 1", "allowed: object"),
        ("decode_ms: 1\nhosts: {sim-2: {rank_without_profile: 9}}", "rank_without_profile"),
    ],
)
def test_mistakes_are_named_before_any_host_is_touched(
    plugin: ModuleType, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "mine.yml"
    file.write_text(text)
    with pytest.raises(AnsibleFilterError, match="mine") as caught:
        plugin.plumbline_physics(str(file))
    assert words in str(caught.value)
    with pytest.raises(AnsibleFilterError, match="story-a, story-b"):
        plugin.plumbline_physics("story-z")


def test_the_clock_counts_for_many_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "sub" / "clock.json")
    with ThreadPoolExecutor(8) as pool:
        boots = list(pool.map(lambda _number: clock.Clock(path).boot(), range(40)))
        list(pool.map(lambda _number: clock.Clock(path).advance(10), range(40)))
    assert sorted(boots) == list(range(1, 41))
    one = clock.Clock(path)
    assert one.hours == pytest.approx(400 / 3600)


def test_windows_run_in_true_time_and_idle_time_does_not(tmp_path: Path) -> None:
    import time

    one = clock.Clock(str(tmp_path / "clock.json"))
    began = one.now
    time.sleep(0.05)
    assert one.now == began
    one.window_opens()
    time.sleep(0.1)
    one.window_closes(going_on=True)
    time.sleep(0.1)
    one.window_closes()
    assert 0.2 <= one.now - began < 0.5
    assert clock.Clock(str(tmp_path / "clock.json")).now == one.now


def test_the_clock_can_be_moved_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "clock.json"
    began = clock.Clock(str(file)).now
    source = ROOT / "simulator" / "server" / "src" / "sglang" / "simulation" / "clock.py"
    done = subprocess.run(
        [sys.executable, str(source), str(file), "--advance", "12d"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["hours"] == pytest.approx(288)
    assert clock.Clock(str(file)).now - began == pytest.approx(12 * 86400)
    assert clock.seconds("90") == 90 and clock.seconds("2.5h") == 9000
    with pytest.raises(ValueError, match="not a time"):
        clock.seconds("soon")
