"""What the profiler's traces say of a cycle: on a GPU by what ran on it, without one by the marks themselves."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from plumbline.measure import stages


def mark(name: str, ts: float, dur: float, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": ts, "dur": dur, "tid": tid}


def launch(correlation: int, ts: float, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": ts, "dur": 5, "tid": tid,
            "args": {"correlation": correlation}}


def kernel(correlation: int, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": "k", "ts": ts, "dur": dur, "tid": 7,
            "args": {"correlation": correlation}}


def test_without_a_gpu_the_marks_are_the_stages() -> None:
    events: list[dict[str, Any]] = []
    for cycle in range(10):
        at = cycle * 30_000.0
        # The drafter's own forward pass borrows the mode of a verify step.
        events += [mark("draft", at, 4_000), mark("step[TARGET_VERIFY bs=1]", at + 100, 3_000),
                   mark("step[VERIFY bs=1]", at + 4_000, 20_000), mark("draft_extend", at + 24_000, 2_000),
                   mark("scheduler.run_batch", at, 29_000)]
    found = stages.summary([stages.stages({"traceEvents": events})], 3)
    assert found is not None
    assert (found["timed_on"], found["ranks"], found["batch"], found["cycles"]) == ("cpu", 1, 1, 10)
    assert (found["verify_ms"], found["drafting_ms"], found["cycle_ms"]) == (20.0, 6.0, 30.0)
    assert found["draft_ms"] == 2.0 and found["decode_ms"] is None


def test_on_a_gpu_a_stage_is_what_was_launched_in_it_though_the_host_runs_ahead() -> None:
    events = []
    for cycle in range(5):
        host, device = cycle * 1_000.0, cycle * 10_000.0 + 500
        events += [mark("draft", host, 100), launch(cycle * 10, host + 50), kernel(cycle * 10, device, 1_000)]
        verify = cycle * 10 + 1
        events += [mark("step[TARGET_VERIFY bs=2]", host + 200, 100), launch(verify, host + 210),
                   kernel(verify, device + 1_500, 3_000), kernel(verify, device + 5_000, 1_000),
                   # Another thread's launch within the same time is none of it.
                   launch(900 + cycle, host + 220, tid=2), kernel(900 + cycle, device + 9_000, 900)]
    found = stages.summary([stages.stages({"traceEvents": events})], 2)
    assert found is not None and found["timed_on"] == "gpu"
    assert (found["batch"], found["verify_ms"], found["drafting_ms"], found["draft_ms"]) == (2, 4.5, 1.0, 0.5)
    assert found["cycle_ms"] == 10.0


def test_of_a_baseline_it_is_the_decode_steps_of_the_commonest_batch_on_every_rank() -> None:
    def rank(step: float) -> tuple[list[stages.Stage], str]:
        marks = [mark("step[DECODE bs=4]", i * 20_000.0, step) for i in range(8)]
        return stages.stages({"traceEvents": [*marks, mark("step[DECODE bs=1]", 200_000.0, 90_000)]})

    found = stages.summary([rank(9_000), rank(11_000)], None)
    assert found is not None
    assert (found["ranks"], found["batch"], found["decode_ms"], found["verify_ms"]) == (2, 4, 10.0, None)
    assert found["spread"]["decode_ms"] == [9.0, 11.0]


def test_what_is_drafted_in_a_prefill_is_of_no_cycle_and_a_prefill_alone_says_nothing(tmp_path: Path) -> None:
    prefill = [mark("step[EXTEND bs=1 toks=40]", 0, 50_000), mark("draft_extend", 51_000, 9_000)]
    with gzip.open(tmp_path / "1.0-TP-0.trace.json.gz", "wt") as file:
        json.dump({"traceEvents": prefill}, file)
    (path,) = stages.traces(tmp_path)
    assert stages.summary([stages.stages(stages.read(path))], 2) is None
    cycles = [e for i in range(3) for e in (mark("step[VERIFY bs=1]", 100_000 + i * 30_000, 20_000),
                                            mark("draft_extend", 121_000 + i * 30_000, 4_000))]
    found = stages.summary([stages.stages({"traceEvents": prefill + cycles})], 2)
    assert found is not None and (found["verify_ms"], found["drafting_ms"]) == (20.0, 4.0)
