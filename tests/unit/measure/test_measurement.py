"""A measurement as a whole: what lies in the spool, whatever the server does meanwhile."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from plumbline.errors import PlumblineError
from plumbline.measure import endpoint, measurement
from plumbline.server import lease
from plumbline.server.supervisor import machine_id, process_start

BOOT, ID = "01KB7QA4D0E8T1XMV2R7S9WZ3C", "01KB7QB1M6W3C9Y5T0N8XK2R7D"
SPEC = {
    "concurrency": 1,
    "requests": 8,
    "output_tokens": 41,
    "warmup_requests": 1,
    "idle_timeout_s": 1,
    "prompts": {"take": 9},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "boots" / BOOT).mkdir(parents=True)
    (tmp_path / "prompts.jsonl").write_text(
        "".join(json.dumps({"id": f"p{i}", "text": f"text {i}"}) + "\n" for i in range(20))
    )
    return tmp_path


def task(root: Path, url: str, **more: Any) -> measurement.Task:
    given: dict[str, Any] = {
        "root": root,
        "boot": BOOT,
        "base_url": url,
        "id": ID,
        "spec": SPEC,
        "prompts": root / "prompts.jsonl",
        "engine": "simulator",
        "workload": "one-stream",
        **more,
    }
    return measurement.Task(**given)


def poison(root: Path, fault: str, first: int = 1, count: int = 99) -> None:
    """From the ``first`` measured prompt on, prompts ask for a fault."""
    (root / "prompts.jsonl").write_text(
        "".join(
            json.dumps({"id": f"p{i}", "text": f"fault:{fault} x" if first <= i < first + count else f"text {i}"})
            + "\n"
            for i in range(20)
        )
    )


def spooled(root: Path) -> Any:
    return json.loads((root / "spool" / f"{ID}.json").read_text())


def own(root: Path, pid: int, environment: dict[str, str] | None = None) -> None:
    """Make a process the server of the boot."""
    folder = root / "boots" / BOOT
    start = process_start(pid)
    (folder / "spec.json").write_text(json.dumps({"environment": environment or {}}))
    (folder / "pid.json").write_text(
        json.dumps(
            {
                "supervisor": pid,
                "supervisor_start": start,
                "server": pid,
                "server_start": start,
                "pgid": pid,
                "machine": machine_id(),
            }
        )
    )


def server_pid(url: str) -> int:
    """The process that listens on the port of ``url``: the stand-in."""
    port = f"{urlsplit(url).port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inode = next(row[9] for row in rows if row[1].endswith(f":{port}") and row[3] == "0A")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if any(str(fd.readlink()) == f"socket:[{inode}]" for fd in (entry / "fd").iterdir()):
                    return int(entry.name)
            except OSError:
                continue
    raise AssertionError("nobody listens")


def test_a_measurement_is_in_the_spool_when_it_returns(root: Path, standin: Callable[..., str]) -> None:
    result = measurement.measure(task(root, standin("--step-ms", "5", "--accept", "2"), repeat=2))
    assert spooled(root) == json.loads(json.dumps(result))
    assert result["status"] == "ok" and result["failure"] is None
    assert (result["id"], result["boot"], result["workload"], result["repeat"]) == (ID, BOOT, "one-stream", 2)
    assert next(c for c in result["checks"] if c["name"] == "request_s")["result"] == "agree"
    assert 4.9 < result["metrics"]["step_ms"] < 50, "5 ms, and more where the machine is busy"
    assert result["metrics"]["accept_length"] == pytest.approx(41 / 20)
    assert (result["metrics"]["requests"], result["metrics"]["completion_tokens"]) == (8, 328)
    assert [s["prompt"] for s in result["samples"]] == [f"p{i}" for i in range(1, 9)], "the warm-up is not counted"
    first = result["samples"][0]
    assert first["output_ids"] == list(range(300, 341)) and first["verify_ct"] == 20 and first["decode_tokens"] == 40
    assert len({s["output_digest"] for s in result["samples"]}) == 1 and len(first["output_digest"]) == 64
    assert {c["name"] for c in result["checks"]} >= {"step_ms", "accept_length", "identity", "completion_tokens"}
    assert result["server_info"]["version"] == "0.5.23"


def test_what_is_in_the_spool_is_not_measured_again(root: Path, url: str) -> None:
    first = measurement.measure(task(root, url))
    again, new = measurement.from_parameters(
        {
            "root": str(root),
            "boot": BOOT,
            "base_url": "http://127.0.0.1:9",
            "measurement": ID,
            "workload": SPEC,
            "prompts": str(root / "prompts.jsonl"),
            "engine": "simulator",
        }
    )
    assert not new and again["started_at"] == first["started_at"] and again["status"] == "ok"


def test_it_is_marked_while_it_lasts_and_renews_the_lease(root: Path, standin: Callable[..., str]) -> None:
    held = lease.acquire(root, {"run": "R", "controller": "me"}, ttl_s=3.0)["lease"]
    seen: list[tuple[Any, float]] = []
    done = threading.Event()

    def watch() -> None:
        mark = root / "boots" / BOOT / "measuring.json"
        while not done.wait(0.1):
            if mark.exists():
                seen.append((json.loads(mark.read_text()), json.loads((root / "lease.json").read_text())["expires_at"]))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        result = measurement.measure(task(root, standin("--step-ms", "5"), lease=held))
    finally:
        done.set()
        thread.join()
    assert result["status"] == "ok"
    assert seen[0][0]["pid"] == os.getpid() and seen[0][0]["start"] == process_start(os.getpid())
    assert len({expires for _, expires in seen}) >= 3, "renewed more than once"
    assert not (root / "boots" / BOOT / "measuring.json").exists()


def test_a_lost_lease_ends_the_measurement(root: Path, standin: Callable[..., str]) -> None:
    held = lease.acquire(root, {"run": "R", "controller": "me"}, ttl_s=0.1)["lease"]
    time.sleep(0.2)
    lease.acquire(root, {"run": "OTHER", "controller": "you"})
    result = measurement.measure(task(root, standin(), lease=held))
    assert result["failure"]["class"] == "lease_lost" and "run OTHER of you" in result["failure"]["detail"]
    assert spooled(root)["status"] == "failed"


@pytest.mark.parametrize(
    ("fault", "cls", "word"),
    [
        ("stall", "stalled", "after 3 tokens"),
        ("garbage", "garbage", "not a chunk"),
        ("http500", "http_error", "out of cheese"),
        ("nothttp", "garbage", "not an HTTP reply"),
        ("error", "server_error", "longer than the context"),
    ],
)
def test_a_server_that_only_fails_is_a_failed_measurement(
    root: Path, url: str, fault: str, cls: str, word: str
) -> None:
    poison(root, fault)
    result = measurement.measure(task(root, url))
    assert result["status"] == "failed" and result["failure"]["class"] == cls and word in result["failure"]["detail"]
    assert spooled(root)["failure"] == result["failure"]
    assert result["samples"][0]["error"]["class"] == cls


def test_a_failed_warm_up(root: Path, url: str) -> None:
    poison(root, "http500", first=0)
    failure = measurement.measure(task(root, url))["failure"]
    assert failure["class"] == "http_error" and failure["detail"].startswith("in the warm-up: HTTP 500")


def test_one_failed_request_invalidates_and_does_not_fail(root: Path, url: str) -> None:
    poison(root, "reset", first=3, count=1)
    result = measurement.measure(task(root, url))
    assert result["status"] == "ok" and result["metrics"]["errors"] == 1 and result["metrics"]["requests"] == 7
    flag = next(f for f in result["flags"] if f["name"] == "errors")
    assert flag["invalidates"] and "connection_reset" in flag["detail"]


def test_a_server_that_dies_is_classified_by_its_log(root: Path, standin: Callable[..., str]) -> None:
    url = standin("--step-ms", "5")
    own(root, server_pid(url))
    (root / "boots" / BOOT / "server.log").write_text(
        "[2026-01-01 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total\n"
    )
    poison(root, "die", first=4)
    result = measurement.measure(task(root, url))
    assert result["failure"]["class"] == "server_died" and "cuda_oom" in result["failure"]["detail"]


def test_a_server_that_was_stopped_is_no_server_that_died(root: Path, standin: Callable[..., str]) -> None:
    url = standin("--step-ms", "5")
    own(root, server_pid(url))
    (root / "boots" / BOOT / "exit.json").write_text(json.dumps(
        {"code": None, "signal": 15, "reason": "controller_died", "detail": "the controller's process is gone"}))
    poison(root, "die", first=4)
    result = measurement.measure(task(root, url))
    assert result["failure"]["class"] == "controller_died" and "is gone" in result["failure"]["detail"]


def test_nobody_answers(root: Path) -> None:
    result = measurement.measure(task(root, "http://127.0.0.1:9"))
    assert result["status"] == "failed" and result["failure"]["class"] == "no_answer"


def test_bad_input_raises_before_anything_is_sent(root: Path) -> None:
    with pytest.raises(PlumblineError, match="concurrency"):
        measurement.measure(task(root, "http://127.0.0.1:9", spec={**SPEC, "concurrency": 0}))
    with pytest.raises(PlumblineError, match="not what the workload says"):
        measurement.measure(task(root, "http://127.0.0.1:9", spec={**SPEC, "prompts": {"take": 9, "sha256": "0" * 64}}))
    assert not (root / "spool").exists()


def test_flags_of_the_surroundings(root: Path, standin: Callable[..., str], tmp_path: Path) -> None:
    """Imposed acceptance by the boot's environment; texts that end early by the model's own end token."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"eos_token_id": [310, 2]}')
    url = standin("--accept", "2", "--model", str(model))
    own(root, server_pid(url), {"SGLANG_SIMULATE_ACC_LEN": "2.0"})
    result = measurement.measure(task(root, url))
    found = {f["name"]: f for f in result["flags"]}
    assert found["simulated_acceptance"]["invalidates"]
    assert "248 of 328 tokens" in found["past_eos"]["detail"] and result["samples"][0]["eos_at"] == 10
    assert result["conditions"]["cpu_share"]["server"] is not None


@pytest.fixture
def busy() -> Iterator[None]:
    """Somebody else who keeps every CPU busy."""
    children = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(os.cpu_count() or 1)]
    yield
    for child in children:
        child.send_signal(signal.SIGKILL)
        child.wait()


@pytest.mark.usefixtures("busy")
def test_foreign_load_is_seen(root: Path, standin: Callable[..., str]) -> None:
    url = standin("--step-ms", "5")
    own(root, server_pid(url))
    result = measurement.measure(task(root, url, engine="sglang-cpu"))
    assert "foreign_load" in {f["name"] for f in result["flags"]}
    assert result["conditions"]["cpu_share"]["foreign"] > 0.5
    simulated = measurement.measure(task(root, url, id="01KB7QB1M6W3C9Y5T0N8XK2R7E"))
    assert "foreign_load" not in {f["name"] for f in simulated["flags"]}, "its time is declared"


def test_the_simulators_clock_is_the_start(root: Path, standin: Callable[..., str]) -> None:
    url = standin("--info", '{"simulator": {"now": 1800000000.5}}')
    assert measurement.measure(task(root, url))["started_at"] == "2027-01-15T08:00:00.500Z"


def test_secrets_of_the_server_are_not_kept() -> None:
    kept = endpoint.kept(
        {
            "api_key": "hunter2",
            "tokenizer_path": "/m",
            "internal_states": [{"admin_api_key": "x", "tokenizer_path": "/m", "last": 1}],
        }
    )
    assert kept == {"tokenizer_path": "/m", "internal_states": [{"last": 1}]}


def test_metrics_are_summed_over_labels_and_ranks_left_out() -> None:
    text = (
        '# HELP x y\nx_total{tp_rank="0",mode="a"} 2.0\n'
        'x_total{tp_rank="0",mode="b"} 3\nx_total{tp_rank="1",mode="a"} 50\n'
        'y NaN\nz{is_streaming="true"} 1\nz{is_streaming="false"} 4\n'
    )
    assert endpoint.read_metrics(text) == {"x_total": 5.0, "x_total:a": 2.0, "x_total:b": 3.0, "z": 5.0}


def profiling(traces: list[list[str]], refused: str = "") -> Callable[..., str | None]:
    """In place of `Endpoint.start_profile`: leaves a trace a rank whose cycles have the named marks, 10 ms each."""

    def start(_server: endpoint.Endpoint, folder: Path) -> str | None:
        folder.mkdir(parents=True)
        for rank, names in enumerate(traces):
            events = [
                {"cat": "user_annotation", "name": name, "ts": 1e4 * (i + 1), "dur": 1e4, "tid": 1}
                for i, name in enumerate(names * 3)
            ]
            with gzip.open(folder / f"1.0-TP-{rank}.trace.json.gz", "wt") as file:
                json.dump({"traceEvents": events}, file)
        return refused or None

    return start


def test_a_profiled_workload_gives_stages_and_no_speed_to_compare(
    root: Path, standin: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {**SPEC, "profiled": True}
    url = standin("--step-ms", "2", "--accept", "2")
    monkeypatch.setattr(endpoint.Endpoint, "start_profile", profiling([["draft", "step[VERIFY bs=1]"]]))
    result = measurement.measure(task(root, url, spec=spec))
    assert result["status"] == "ok", result["failure"]
    assert result["metrics"]["verify_ms"] == result["conditions"]["stages"]["verify_ms"] == 10.0
    assert result["conditions"]["stages"]["drafting_ms"] == 10.0
    assert [f["invalidates"] for f in result["flags"] if f["name"] == "profiled"] == [True]


@pytest.mark.parametrize(
    ("start", "failure"),
    [
        (profiling([], refused="400: Profiling is already in progress"), "profile_refused"),
        (profiling([["step[EXTEND bs=1 toks=9]"]]), "profile_empty"),
    ],
    ids=["refused", "empty"],
)
def test_a_server_that_does_not_profile_fails_the_measurement(
    root: Path, url: str, monkeypatch: pytest.MonkeyPatch, start: Callable[..., str | None], failure: str
) -> None:
    monkeypatch.setattr(endpoint.Endpoint, "start_profile", start)
    result = measurement.measure(task(root, url, spec={**SPEC, "profiled": True}))
    assert (result["status"], result["failure"]["class"]) == ("failed", failure)


def test_traces_of_every_rank_are_waited_for(tmp_path: Path) -> None:
    server = endpoint.Endpoint("http://127.0.0.1:9")
    profiling([["step[DECODE bs=1]"]])(server, tmp_path / "traces")
    assert len(server.profiled(tmp_path / "traces", 1) or ()) == 1
    assert server.profiled(tmp_path / "traces", 2, patience_s=0.3) is None
