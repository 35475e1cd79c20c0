"""Readiness on real processes. Lags are asserted against the limits that are promised, with room for a busy machine."""
from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plumbline.errors import PlumblineError
from plumbline.ids import ulid
from plumbline.server import lease, ready
from plumbline.server.supervisor import alive, process_start

Make = Callable[..., Any]


def wait(one: Any, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"model": "/models/m", "timeout_s": 30, "hang_s": 30, "silence_s": 60, **more}
    return ready.wait(one.root, one.id, f"http://127.0.0.1:{one.port}", **given)


@pytest.mark.parametrize("old", [False, True])
def test_ready_with_the_phases_and_a_real_generation(boot: Make, old: bool) -> None:
    one = boot("--warm-up-s", "0.3", *(["--old"] if old else []))
    found = wait(one)
    lag = time.monotonic() - one.marks()["fired"]
    assert found["ready"] and found["failure"] is None
    assert lag < 1.0
    assert [entry["phase"] for entry in found["phases"]] == [
        "starting", "distributed_init", "weight_load", "kv_pool", "graph_capture", "warm_up", "ready"]
    at = [entry["at_s"] for entry in found["phases"]]
    assert at == sorted(at) and 0.3 < found["start_s"] < 10
    assert found["port_s"] <= found["start_s"] - 0.2
    assert found["proof"]["probe"] == ("/health_generate" if old else "/ready")
    assert found["proof"]["generated_tokens"] == 4 and found["proof"]["model_path"] == "/models/m"


def test_death_is_told_at_once_with_its_cause(boot: Make) -> None:
    one = boot("--fail", "crash", "--workers", "3")
    found = wait(one)
    assert time.monotonic() - one.marks()["dying"] < 1.0
    failure = found["failure"]
    assert not found["ready"] and failure["class"] == "cuda_oom" and failure["phase"] == "graph_capture"
    assert any("CUDA out of memory" in line for line in failure["lines"])
    assert failure["exit_code"] == -signal.SIGKILL and failure["remedy"]


def test_refused_arguments_are_told_as_such(boot: Make) -> None:
    failure = wait(boot("--fail", "arguments"))["failure"]
    assert (failure["class"], failure["exit_code"]) == ("bad_arguments", 2)


def test_death_without_a_word_is_not_given_a_cause(boot: Make) -> None:
    failure = wait(boot("--fail", "exit"))["failure"]
    assert (failure["class"], failure["exit_code"]) == ("unknown", 3)


def test_a_hang_is_found_with_the_stacks_of_the_workers(boot: Make) -> None:
    one = boot("--fail", "hang", "--workers", "2")
    began = time.monotonic()
    found = wait(one, hang_s=1.5)
    assert 1.5 <= time.monotonic() - began < 30
    failure = found["failure"]
    assert failure["class"] == "hang" and "phase graph_capture" in failure["detail"]
    dump = found["stacks"]
    assert {entry["pid"] for entry in dump["processes"]} == set(one.pids()) - {one.started["supervisor"]}
    for process in dump["processes"]:
        assert process["threads"][0]["state"] == "S"
        assert process["stack"] or process["error"] or dump["tool"] == "none"
    assert f"process {one.started['pid']}" in (one.folder / "stacks.txt").read_text()


def test_a_stopped_process_hangs(boot: Make) -> None:
    one = boot("--load-s", "20")
    os.kill(one.started["pid"], signal.SIGSTOP)
    found = wait(one, hang_s=1.0)
    assert found["failure"]["class"] == "hang" and found["stacks"]["processes"][0]["state"] in "Tt"


def test_computing_is_no_hang_until_the_silence_is_too_long(boot: Make) -> None:
    one = boot("--fail", "spin")
    began = time.monotonic()
    found = wait(one, hang_s=1.0, silence_s=3.0)
    assert time.monotonic() - began >= 3.0
    assert found["failure"]["class"] == "hang" and "although its processes compute" in found["failure"]["detail"]


def test_a_time_limit_says_how_far_it_came(boot: Make) -> None:
    found = wait(boot("--load-s", "30"), timeout_s=1.0)
    assert found["failure"]["class"] == "timeout" and "phase weight_load" in found["failure"]["detail"]
    assert found["phase"] == "weight_load"


@pytest.mark.parametrize(("kind", "cls"), [
    ("garbage", "garbage"), ("short", "garbage"), ("nan", "garbage"), ("wrong-model", "wrong_model"),
    ("never-ready", "not_ready"), ("no-answer", "no_generation")])
def test_a_200_is_no_proof(boot: Make, kind: str, cls: str) -> None:
    found = wait(boot("--fail", kind), proof_s=1.5)
    assert not found["ready"] and found["failure"]["class"] == cls and found["failure"]["remedy"]


def test_the_draft_is_asked_for(boot: Make) -> None:
    one = boot("--speculative-draft-model-path", "/models/d")
    assert wait(one, draft="/models/other")["failure"]["class"] == "wrong_draft"
    found = wait(one, draft="/models/d")
    assert found["ready"] and found["proof"]["draft_path"] == "/models/d"


def test_death_during_the_proof_is_death(boot: Make) -> None:
    one = boot("--fail", "no-answer", "--die-after-s", "0.5")
    found = wait(one)
    assert time.monotonic() - one.marks()["dying"] < 1.0
    assert not found["ready"] and found["failure"]["exit_code"] == -signal.SIGKILL


def test_a_stop_from_outside_is_no_failure_of_the_server(boot: Make) -> None:
    one = boot("--load-s", "20")
    os.kill(one.started["supervisor"], signal.SIGTERM)
    assert wait(one)["failure"]["class"] == "stopped"


def test_the_lease_is_renewed_while_waiting_and_its_loss_ends_the_wait(boot: Make, root: Path) -> None:
    holder = lease.acquire(root, {"run": "R", "controller": "elsewhere"}, ttl_s=1.2)["lease"]
    one = boot("--load-s", "3", holder=holder)
    assert wait(one, holder=holder)["ready"]
    assert alive(one.started["pid"], process_start(one.started["pid"]))
    lease.acquire(root, {"run": "S", "controller": "other"}, now=time.time() + 10)
    with pytest.raises(PlumblineError, match="no longer held by run R"):
        wait(one, holder=holder)


def test_a_boot_that_was_never_started_is_named(root: Path) -> None:
    with pytest.raises(PlumblineError, match="has not been started"):
        ready.wait(root, ulid(), "http://127.0.0.1:1")
