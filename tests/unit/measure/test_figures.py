"""The figures against samples whose truth is known, and against a server with a known pace."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from plumbline.measure import figures, workload
from plumbline.measure.client import LoadClient
from plumbline.measure.stream import Sample


def sample(
    slot: int, sent: float, stamps: Sequence[float], counts: Sequence[int], verify_ct: int | None = None
) -> Sample:
    made = Sample(0)
    made.slot, made.sent, made.end = slot, sent, stamps[-1]
    made.stamps.extend(stamps)
    made.counts.extend(counts)
    meta: dict[str, Any] = {"completion_tokens": counts[-1]}
    if verify_ct is not None:
        meta["spec_verify_ct"] = verify_ct
    made.final = {"meta_info": meta, "output_ids": list(range(counts[-1]))}
    return made


def ramp(start: float, step: float, count: int) -> list[float]:
    return [start + step * i for i in range(count)]


def test_one_stream_without_speculation() -> None:
    samples = [sample(0, 10 * i, ramp(10 * i + 0.5, 0.01, 101), range(1, 102)) for i in range(3)]
    got = figures.compute(samples, 1, speculative=False)
    assert got.metrics["decode_tok_s"] == pytest.approx(100)
    assert got.metrics["step_ms"] == pytest.approx(10)
    assert got.metrics["accept_length"] == 1.0
    assert got.metrics["ttft_ms"]["mean"] == pytest.approx(500)
    assert got.metrics["itl_ms"]["p99"] == pytest.approx(10)
    assert (got.metrics["requests"], got.metrics["completion_tokens"], got.metrics["errors"]) == (3, 303, 0)


def test_one_stream_with_speculation() -> None:
    """1 token by the prefill, then 40 cycles of 3 tokens, 30 ms each."""
    got = figures.compute([sample(0, 0, ramp(0.2, 0.03, 41), range(1, 122, 3), 40)], 1, speculative=True)
    assert got.metrics["accept_length"] == pytest.approx(121 / 40)
    assert got.accept_decode == pytest.approx(3)
    assert got.metrics["step_ms"] == pytest.approx(30)
    assert got.metrics["decode_tok_s"] == pytest.approx(100)
    # The identity that every measurement is checked by.
    assert got.metrics["decode_tok_s"] * got.metrics["step_ms"] / 1000 == pytest.approx(got.accept_decode)


def test_chunks_that_a_server_merges_change_no_step() -> None:
    """Every other chunk missing: two cycles arrive as one. Cycles are counted by the server, not by chunks."""
    stamps, counts = ramp(0.2, 0.03, 41)[::2], list(range(1, 122, 3))[::2]
    assert figures.compute([sample(0, 0, stamps, counts, 40)], 1, True).metrics["step_ms"] == pytest.approx(30)


def test_several_streams_in_waves() -> None:
    """Four streams in lock step, 25 steps a wave, prefills of 0.1 s between the waves."""
    samples = []
    for wave in range(3):
        begin = wave * 0.6
        samples += [sample(slot, begin, ramp(begin + 0.1, 0.02, 26), range(1, 27)) for slot in range(4)]
    got = figures.compute(samples, 4, speculative=False)
    assert got.metrics["step_ms"] == pytest.approx(20), "the prefills between are no part of a step"
    assert got.window == (pytest.approx(0.1), pytest.approx(1.8))
    # From the first wave's first chunks (not counted) to the last chunks: 3 x 26 - 1 tokens of each of 4 streams.
    assert got.metrics["output_tok_s"] == pytest.approx(4 * 77 / 1.7)


def test_a_prefill_of_one_stream_stalls_the_others_and_is_no_step() -> None:
    """Stream 1 prefills from 0.5 to 0.7: stream 0 gets nothing meanwhile."""
    first = ramp(0.0, 0.01, 50) + ramp(0.71, 0.01, 50)
    samples = [
        sample(0, -0.1, first, range(1, 101)),
        sample(1, -0.1, ramp(0.0, 0.01, 50), range(1, 51)),
        sample(1, 0.5, ramp(0.7, 0.01, 50), range(1, 51)),
    ]
    assert figures.compute(samples, 2, speculative=False).metrics["step_ms"] == pytest.approx(10)


def test_the_last_step_counts_whole() -> None:
    """Chunks of one step arrive one after the other, 0.1 ms apart: the window does not end between them."""
    samples = [sample(slot, 0, ramp(0.1 + slot * 1e-4, 0.02, 101), range(1, 102)) for slot in range(16)]
    got = figures.compute(samples, 16, speculative=False)
    assert got.metrics["output_tok_s"] == pytest.approx(16 / 0.02, rel=1e-6)


def test_failed_requests_count_as_errors_only() -> None:
    bad = sample(0, 0, [1.0, 99.0], [1, 2])
    bad.fail("stalled", "", 99.0)
    got = figures.compute([sample(0, 0, ramp(0.5, 0.01, 11), range(1, 12)), bad], 1, False).metrics
    assert (got["errors"], got["requests"], got["completion_tokens"]) == (1, 1, 11)
    assert got["decode_tok_s"] == pytest.approx(100)


def test_nothing_measured_is_null_and_no_error() -> None:
    bad = Sample(0)
    bad.fail("connection_refused", "", 1.0)
    got = figures.compute([bad], 1, True)
    assert got.metrics["decode_tok_s"] is None and got.metrics["errors"] == 1 and got.window is None


def test_latency_of_a_chunk_counts_for_each_of_its_tokens() -> None:
    """Gaps of 10 ms with 1 token, 30 ms with 3, 40 ms with 2: 10, 10, 10, 10, 20, 20 ms a token."""
    got = figures.compute([sample(0, 0, [0.1, 0.11, 0.14, 0.18], [1, 2, 5, 7], 3)], 1, True).metrics["itl_ms"]
    assert got["mean"] == pytest.approx(80 / 6) and got["p50"] == pytest.approx(10) and got["p99"] == pytest.approx(20)


def test_percentiles_as_numpy() -> None:
    import numpy

    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    got = figures.spread(values)
    for name, share in (("p50", 50), ("p90", 90), ("p99", 99)):
        assert got[name] == pytest.approx(numpy.percentile(values, share))


def test_variation() -> None:
    assert figures.variation([2.0, 4.0]) == pytest.approx(statistics.stdev([2.0, 4.0]) / 3)
    assert figures.variation([2.0]) is None


@pytest.mark.parametrize("streams", [1, 4])
def test_a_server_that_knows_its_own_pace(standin: Callable[..., str], streams: int) -> None:
    """2 and 3 tokens in turn, about 10 ms a cycle: the figures are the server's own, by its own clock."""
    url = standin("--step-ms", "10", "--accept", "2,3")
    bodies = [workload.body(f"p{i}", 251, 0.0) for i in range(2 * streams)]
    samples = LoadClient(url, concurrency=streams).run(bodies)
    got = figures.compute(samples, streams, speculative=True)
    decode_s = sum(s.meta["standin_decode_s"] for s in samples)
    assert got.accept_decode == pytest.approx(2.5)
    assert got.metrics["decode_tok_s"] == pytest.approx(sum(s.counts[-1] - 1 for s in samples) / decode_s, rel=0.02)
    assert got.metrics["step_ms"] == pytest.approx(decode_s / (100 * len(samples)) * 1000, rel=0.02)
