"""Cross-checks agree with the truth, differ from a lie, and say when they cannot tell; flags say what was seen."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from plumbline.measure import checks, figures, flags
from plumbline.measure.stream import Sample
from plumbline.sglang import loglines


def request(tokens: int = 251, step: float = 0.03, per_cycle: int = 2, **meta: Any) -> Sample:
    made = Sample(0)
    cycles = (tokens - 1) // per_cycle
    made.slot, made.sent = 0, 0.0
    made.stamps.extend(0.1 + step * i for i in range(cycles + 1))
    made.counts.extend(1 + per_cycle * i for i in range(cycles + 1))
    made.end = made.stamps[-1]
    made.final = {
        "output_ids": list(range(tokens)),
        "meta_info": {
            "completion_tokens": tokens,
            "spec_verify_ct": cycles,
            "prompt_tokens": 40,
            "cached_tokens": 1,
            "num_retractions": 0,
            "e2e_latency": made.end - 0.002,
            **meta,
        },
    }
    return made


def lines(
    step: float = 0.03,
    accept: float = 2.0,
    count: int = 20,
    running: int = 1,
    queue: int = 0,
    graph: str = "cuda graph: True",
) -> str:
    return "".join(
        f"[2026-01-01 10:00:{i:02d} TP0] Decode batch, #running-req: {running}, #token: 640, "
        f"token usage: 0.01, accept len: {accept:.2f}, "
        f"accept rate: 0.40, {graph}, gen throughput (token/s): {running * accept / step:.2f}, #queue-req: {queue}\n"
        for i in range(count)
    )


def evidence(samples: list[Sample] | None = None, log: str | None = None, **more: Any) -> checks.Evidence:
    samples = [request() for _ in range(8)] if samples is None else samples
    given: dict[str, Any] = {
        "figures": figures.compute(samples, 1, True),
        "samples": samples,
        "rows": loglines.rows_of(loglines.read(lines() if log is None else log)),
        "before": {"sglang:generation_tokens_total": 100.0, "sglang:spec_verify_calls_total": 10.0},
        "after": {
            "sglang:generation_tokens_total": 100.0 + 8 * 251,
            "sglang:spec_verify_calls_total": 10.0 + 8 * 125,
        },
        "state": {"avg_spec_accept_length": 2.0},
        "concurrency": 1,
        "speculative": True,
        **more,
    }
    return checks.Evidence(**given)


def by_name(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in found}


def test_everything_agrees_where_everything_is_true() -> None:
    found = checks.all_checks(evidence())
    assert {c["name"]: c["result"] for c in found} == dict.fromkeys(
        ("step_ms", "accept_length", "accept_length_total", "cycles", "identity", "completion_tokens", "request_s"),
        "agree",
    )
    assert all(abs(c["difference"]) < 0.001 for c in found)
    assert by_name(found)["step_ms"]["source"] == "19 decode lines", "the first counts what was before"


@pytest.mark.parametrize(
    ("log", "name", "difference"),
    [
        (lines(step=0.033), "step_ms", 0.03 / 0.033 - 1),
        (lines(accept=2.2), "accept_length", 2 / 2.2 - 1),
        # Step time and accept length both 10 % too high: each differs, and they fit each other.
        (lines(step=0.033, accept=2.2), "step_ms", 0.03 / 0.033 - 1),
    ],
)
def test_a_log_that_says_otherwise(log: str, name: str, difference: float) -> None:
    check = by_name(checks.all_checks(evidence(log=log)))[name]
    assert check["result"] == "differ" and check["difference"] == pytest.approx(difference, abs=0.003)


def test_the_identity_catches_figures_that_cannot_all_be_true() -> None:
    assert by_name(checks.all_checks(evidence(log=lines(step=0.033))))["identity"]["result"] == "differ"
    assert by_name(checks.all_checks(evidence(log=lines(step=0.033, accept=2.2))))["identity"]["result"] == "agree"


def test_counters_that_say_otherwise() -> None:
    after = {"sglang:generation_tokens_total": 100.0 + 8 * 251 * 1.03, "sglang:spec_verify_calls_total": 10.0 + 8 * 130}
    found = by_name(checks.all_checks(evidence(after=after)))
    assert found["completion_tokens"]["result"] == "differ"
    assert found["cycles"]["result"] == "differ" and found["cycles"]["theirs"] == 8 * 130


def test_cycles_without_speculation_are_decode_passes_of_one_stream() -> None:
    samples = [request(tokens=101, per_cycle=1) for _ in range(8)]
    counted = {
        "sglang:cuda_graph_passes_total:decode_none": 0.0,
        "sglang:cuda_graph_passes_total:decode_cuda_graph": 800.0,
    }
    made = evidence(samples, before={}, after=counted, speculative=False)
    assert by_name(checks.all_checks(made))["cycles"]["result"] == "agree"
    several = dataclasses.replace(made, concurrency=4)
    assert "counts once" in by_name(checks.all_checks(several))["cycles"]["reason"]


@pytest.mark.parametrize(
    ("passes", "result"), [(248, "agree"), (256, "agree"), (264, "differ"), (236, "differ")]
)
def test_a_pass_launched_ahead_of_a_requests_end_is_no_contradiction(passes: int, result: str) -> None:
    samples = [request(tokens=32, per_cycle=1) for _ in range(8)]
    counted = {"sglang:cuda_graph_passes_total:decode_cuda_graph": float(passes)}
    made = evidence(samples, before={}, after=counted, speculative=False)
    assert by_name(checks.all_checks(made))["cycles"]["result"] == result


def test_unchecked_with_the_reason() -> None:
    found = by_name(checks.all_checks(evidence(log=lines(count=8), before=None, after=None, state={})))
    assert {n for n, c in found.items() if c["result"] == "unchecked"} == set(found) - {"request_s"}
    assert "7 clean intervals" in found["step_ms"]["reason"] and "10 are needed" in found["step_ms"]["reason"]
    assert "--enable-metrics" in found["completion_tokens"]["reason"]


def test_intervals_with_other_batch_sizes_are_not_compared() -> None:
    found = by_name(checks.all_checks(evidence(log=lines(count=9) + lines(running=3, count=30))))
    assert found["step_ms"]["result"] == "unchecked" and "8 clean" in found["step_ms"]["reason"]


def around(**more: Any) -> flags.Surroundings:
    return flags.Surroundings(**{"checks": [], "eos": [None] * 8, **more})


def names(found: list[dict[str, Any]]) -> set[str]:
    return {one["name"] for one in found}


def test_a_clean_measurement_has_no_flag() -> None:
    assert flags.all_flags(evidence(), around(foreign=0.03)) == []


@pytest.mark.parametrize(
    ("name", "invalidates", "word", "ev", "surroundings"),
    [
        ("graph_off", False, "100%", {"log": lines(graph="cuda graph: False")}, {}),
        ("cached_tokens", False, "25%", {"samples": [request(cached_tokens=10) for _ in range(8)]}, {}),
        ("cached_tokens", True, "75%", {"samples": [request(cached_tokens=30) for _ in range(8)]}, {}),
        ("repeated_prompts", True, "p1", {}, {"repeated": ["p1", "p1"]}),
        ("foreign_load", False, "40%", {}, {"foreign": 0.4}),
        ("foreign_load", False, "90%", {}, {"foreign": 0.9}),
        ("foreign_load", True, "somebody else uses the server", {"log": lines() + lines(running=2)}, {}),
        ("queueing", True, "up to 3", {"log": lines(queue=3)}, {}),
        ("retracted", True, "8 retractions", {"samples": [request(num_retractions=1) for _ in range(8)]}, {}),
        ("retracted", True, "2 retractions", {}, {"retractions": 2}),
        ("few_samples", False, "7 requests", {"samples": [request() for _ in range(7)]}, {}),
        ("unstable", False, "CV", {"samples": [request(step=0.03 * (1 + 0.3 * (i % 2))) for i in range(8)]}, {}),
        ("past_eos", False, "200 of 2008 tokens", {}, {"eos": [51, *[None] * 7]}),
        (
            "simulated_acceptance",
            True,
            "SGLANG_SIMULATE_ACC_LEN=2.2",
            {},
            {"environment": {"SGLANG_SIMULATE_ACC_LEN": "2.2"}},
        ),
        (
            "throttled",
            True,
            "GPU 3: hw_thermal_slowdown",
            {},
            {"gpu": {"event_reasons": {"3": {"hw_thermal_slowdown": 2.0, "gpu_idle": 9.0}}}},
        ),
        (
            "pcie_narrow",
            True,
            "lanes 8 of 16",
            {},
            {"gpu": {"links": {"0": {"width": 8, "width_max": 16, "gen": 5, "gen_max": 5}}}},
        ),
        ("pcie_narrow", True, "generation 1 of 5", {}, {"gpu": {"links": {"0": {"gen": 1, "gen_max": 5}}}}),
    ],
)
def test_each_flag(name: str, invalidates: bool, word: str, ev: dict[str, Any], surroundings: dict[str, Any]) -> None:
    found = [f for f in flags.all_flags(evidence(**ev), around(**surroundings)) if f["name"] == name]
    assert len(found) == 1 and found[0]["invalidates"] is invalidates and word in found[0]["detail"], found


def test_no_graph_on_the_cpu_is_no_flag() -> None:
    made = evidence(log=lines(graph="cpu graph: False"))
    assert names(flags.all_flags(made, around())) == set() and flags.graph_share(made.rows) is None


def test_graph_share() -> None:
    mixed = lines(graph="cuda graph: False", count=5) + lines(count=15)
    assert flags.graph_share(evidence(log=mixed).rows) == 0.75


def test_a_draft_that_is_never_accepted() -> None:
    samples = [request(tokens=101, per_cycle=1) for _ in range(8)]
    found = flags.all_flags(evidence(samples, lines(accept=1.0)), around())
    assert "accept_length_one" in names(found)
    baseline = dataclasses.replace(evidence(samples), speculative=False)
    assert "accept_length_one" not in names(flags.all_flags(baseline, around()))


def test_errors_are_counted_by_class() -> None:
    samples = [request() for _ in range(8)]
    samples[2].fail("stalled", "no byte for 60 s", 1.0)
    found = by_name(flags.all_flags(evidence(samples), around()))
    assert (
        found["errors"]["invalidates"]
        and "1 of 8 requests failed: 1 stalled; no byte for 60 s" in found["errors"]["detail"]
    )


def test_a_contradiction_names_both_figures() -> None:
    for log, invalid in ((lines(step=0.0315), False), (lines(step=0.04), True)):
        made = evidence(log=log)
        found = by_name(flags.all_flags(made, around(checks=checks.all_checks(made))))["contradiction"]
        assert found["invalidates"] is invalid and "step_ms: 30 by the client" in found["detail"]


def test_simulated_acceptance_off_or_without_speculation_is_none() -> None:
    off = around(environment={"SGLANG_SIMULATE_ACC_LEN": "-1"})
    assert names(flags.all_flags(evidence(), off)) == set()
    on = around(environment={"SGLANG_SIMULATE_ACC_LEN": "2.2"})
    assert names(flags.all_flags(dataclasses.replace(evidence(), speculative=False), on)) == set()
