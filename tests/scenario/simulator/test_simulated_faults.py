"""Each declared fault shows itself as the real failure does, and is classified as such."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from plumbline.sglang import failures
from simulated_servers import Server

Start = Callable[..., Server]
Physics = Callable[..., dict[str, Any]]
DEAD = -signal.SIGKILL


def faulty(physics: Physics, when: str, do: str, **more: Any) -> dict[str, Any]:
    """Two ranks, a load of two seconds, and one fault at every boot."""
    fault = {"when": when, "do": do, "every": 1, **more}
    return physics("story-a", ranks=2, time_scale=60, load_s={"mean": 120, "sd": 0}, decode_ms=4, faults=[fault])


def ask(server: Server, tokens: int = 400) -> threading.Thread:
    """A request under way; its end does not matter."""
    body = {"text": "What happens next?", "sampling_params": {"max_new_tokens": tokens, "temperature": 0}}

    def send() -> None:
        try:
            server.get("/generate", method="POST", body=body, timeout=30)
        except OSError:
            return

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("do", "rank", "cls", "status"),
    [("crash", 1, "scheduler_died", 1), ("oom", 0, "cuda_oom", DEAD)],
)
def test_death_while_loading(start: Start, physics: Physics, do: str, rank: int, cls: str, status: int) -> None:
    server = start(faulty(physics, "load", do, rank=rank))
    assert server.wait_end() == status
    failure = failures.classify_exit(server.log, status)
    assert failure.cls == cls
    assert "fired up" not in server.log
    if do == "oom":
        assert failure.phase == "graph_capture"
    else:
        assert failure.exit_code == DEAD


def test_a_load_that_hangs_says_nothing_and_listens_nowhere(start: Start, physics: Physics) -> None:
    server = start(faulty(physics, "load", "hang"))
    time.sleep(5)
    log = server.log
    time.sleep(2)
    assert server.process.poll() is None and server.log == log and server.get("/ping")[0] == 0
    assert failures.classify(log) is None
    assert "[2" in log and "TP1] Load weight end." in log and "TP0] Load weight end." not in log


def test_a_slow_load_takes_the_factor(start: Start, physics: Physics) -> None:
    began = time.monotonic()
    start(faulty(physics, "load", "slow", factor=4)).wait_ready()
    assert 7.0 < time.monotonic() - began < 15


def test_garbage_in_the_log_hides_nothing(start: Start, physics: Physics) -> None:
    server = start(faulty(physics, "load", "garbage")).wait_ready()
    assert failures.classify(server.log) is None
    assert b"\xff\xfe" in server.log_path.read_bytes()


def test_warm_up_that_hangs_ends_as_a_failed_warm_up(start: Start, physics: Physics) -> None:
    document = faulty(physics, "warmup", "hang")
    document["time_scale"] = 200
    server = start(document)
    seen = set()
    until = time.monotonic() + 20
    while server.process.poll() is None and time.monotonic() < until:
        seen.add(server.get("/ready")[0])
        time.sleep(0.05)
    assert 503 in seen and 200 not in seen
    assert server.wait_end() == DEAD
    failure = failures.classify_exit(server.log, DEAD)
    assert failure.cls in ("exception", "warmup_failed") and "timed out" in "".join(failure.lines)


@pytest.mark.parametrize(("do", "cls"), [("crash", "scheduler_died"), ("oom", "cuda_oom")])
def test_death_while_decoding(start: Start, physics: Physics, do: str, cls: str) -> None:
    server = start(faulty(physics, "decode", do, rank=1, after_steps=50)).wait_ready()
    ask(server)
    assert server.wait_end() == DEAD
    assert "SIGQUIT received. signum=None, frame=None." in server.log
    assert failures.classify_exit(server.log, DEAD).cls == cls


def test_a_step_that_hangs_wakes_the_watchdog(start: Start, physics: Physics) -> None:
    server = start(faulty(physics, "decode", "hang", after_steps=50)).wait_ready()
    ask(server)
    assert server.wait_end(30) == DEAD
    failure = failures.classify_exit(server.log, DEAD)
    assert failure.cls == "watchdog_timeout" and failure.facts["timeout_s"] == 300


def test_slow_and_garbage_while_decoding(start: Start, physics: Physics) -> None:
    healthy = start(physics("story-a", ranks=1, decode_ms=4, build_factor={}), folder="healthy").wait_ready()
    wanted = healthy.generate("Say the same again.", 100)
    slow = start(faulty(physics, "decode", "slow", after_steps=1, factor=3), folder="slow").wait_ready()
    slow.generate("Begin.", 8)
    answer = slow.generate("Say the same again.", 100)
    assert answer["output_ids"] == wanted["output_ids"]
    assert answer["meta_info"]["e2e_latency"] > 2 * wanted["meta_info"]["e2e_latency"]
    garbage = start(faulty(physics, "decode", "garbage", after_steps=50), folder="garbage").wait_ready()
    assert garbage.generate("Say the same again.", 100)["output_ids"] == wanted["output_ids"], "before it sets in"
    assert garbage.generate("Say the same again.", 100)["output_ids"] != wanted["output_ids"]


def test_a_shutdown_that_hangs_needs_sigkill(start: Start, physics: Physics) -> None:
    server = start(faulty(physics, "shutdown", "hang")).wait_ready()
    server.process.send_signal(signal.SIGTERM)
    time.sleep(2)
    assert server.process.poll() is None
    assert server.log.count("Gracefully exiting...") > 1


def test_a_shutdown_that_crashes_says_so(start: Start, physics: Physics) -> None:
    server = start(faulty(physics, "shutdown", "crash")).wait_ready()
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_end() == DEAD
    assert "Subprocess scheduler_0" in server.log


def test_every_second_boot_and_one_boot(start: Start, physics: Physics) -> None:
    document = faulty(physics, "load", "crash")
    document["faults"] = [{"when": "load", "do": "crash", "every": 2}, {"when": "load", "do": "oom", "boot": 3}]
    seen = []
    for _ in range(4):
        server = start(document, folder="host")
        while server.process.poll() is None and server.get("/ready")[0] != 200:
            time.sleep(0.05)
        failure = failures.classify(server.log)
        seen.append(failure.cls if failure else "ready")
        server.stop()
    assert seen == ["ready", "scheduler_died", "cuda_oom", "scheduler_died"]


def test_a_token_that_nccl_refuses_is_fatal(start: Start, physics: Physics) -> None:
    server = start(
        physics("story-a", ranks=2),
        profile={"NCCL_PROTO": "LL64", "NCCL_DEBUG": "WARN"},
    )
    assert server.wait_end() == DEAD
    failure = failures.classify_exit(server.log, DEAD)
    assert failure.cls == "nccl_bad_config" and failure.facts["token"] == "LL64"
