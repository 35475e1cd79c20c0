"""The figures of a measurement, from the time stamps of its chunks.

Definitions (times in seconds of the client's clock; all over the requests that ended well):

``decode_tok_s``    tokens after each request's first chunk / time after it, summed over requests: the speed of one
stream. ``output_tok_s``    tokens received while all streams were in flight / that time. A stream is in flight from
its first chunk until it has no further request to send; the time in which it waits for the first chunk of a later
request belongs to it. ``ttft_ms``         from sending to the first chunk. ``itl_ms``          time between two
chunks / tokens of the later, once for each of these tokens. ``accept_length``   completion tokens /
``spec_verify_ct`` of the same requests; 1 without speculation. ``step_ms``         one stream: decode time / cycles.
Several: the time that a cycle takes while all streams decode and none of them waits for a first chunk, so that it is
the time of a step and not of a step and prefills."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from operator import sub
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .stream import Sample

MS = 1000.0
# What a measurement records, in this order; null where it could not be measured.
METRICS = (
    "output_tok_s",
    "decode_tok_s",
    "ttft_ms",
    "itl_ms",
    "step_ms",
    "accept_length",
    "verify_ms",
    "draft_ms",
    "graph_share",
    "requests",
    "completion_tokens",
    "errors",
)


@dataclass
class Figures:
    """``metrics`` as a measurement records them; the rest is what checks and flags look at.

    ``window``: (from, to) with all streams in flight, or None; ``steps_ms``: step time of each request;
    ``accept_decode``: accept length with the token of the prefill left out, which is what the server's own figures
    count; ``pace``: seconds a token of a stream takes where only decoding goes on; ``gap_ms``: mean time between
    chunks there."""

    metrics: Dict[str, Any]
    window: Optional[Tuple[float, float]] = None
    steps_ms: List[float] = field(default_factory=list)
    accept_decode: Optional[float] = None
    pace: Optional[float] = None
    gap_ms: Optional[float] = None
    seconds: float = 0.0


def verify_ct(sample: Sample) -> int:
    """Verify cycles of a request (0 without speculation)."""
    count = sample.meta.get("spec_verify_ct")
    return count if isinstance(count, int) else 0


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of a sorted list, with linear interpolation (as NumPy's default)."""
    at = (len(ordered) - 1) * share
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def spread(values: Sequence[float]) -> Dict[str, Optional[float]]:
    """``{mean, p50, p90, p99}``, null for an empty list."""
    if not values:
        return {"mean": None, "p50": None, "p90": None, "p99": None}
    ordered = sorted(values)
    return {
        "mean": sum(ordered) / len(ordered),
        "p50": percentile(ordered, 0.5),
        "p90": percentile(ordered, 0.9),
        "p99": percentile(ordered, 0.99),
    }


def variation(values: Sequence[float]) -> Optional[float]:
    """Coefficient of variation (standard deviation of the sample / mean), None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) / mean if mean else None


def in_flight(samples: Sequence[Sample], concurrency: int) -> Optional[Tuple[float, float]]:
    """(from, to) with all streams in flight, or None if they never were. ``samples``: all, the failed ones too."""
    first: Dict[int, float] = {}
    last: Dict[int, float] = {}
    for sample in samples:
        if sample.slot < 0 or not sample.stamps:
            continue
        first[sample.slot] = min(first.get(sample.slot, math.inf), sample.stamps[0])
        last[sample.slot] = max(last.get(sample.slot, 0.0), sample.stamps[-1])
    if len(first) < concurrency:
        return None
    begin, end = max(first.values()), min(last.values())
    return (begin, end) if end > begin else None


def only_decoding(samples: Sequence[Sample], window: Tuple[float, float]) -> List[Tuple[float, float]]:
    """The parts of the window in which no request waits for its first chunk."""
    waits = sorted((s.sent, s.stamps[0] if s.stamps else s.end) for s in samples if s.slot >= 0)
    parts, at = [], window[0]
    for begin, end in waits:
        if begin > at:
            parts.append((at, min(begin, window[1])))
        at = max(at, end)
        if at >= window[1]:
            break
    if at < window[1]:
        parts.append((at, window[1]))
    return [(a, b) for a, b in parts if b > a]


def _received(samples: Sequence[Sample], begin: float, end: float) -> int:
    """Tokens whose chunk came in (begin, end]."""
    total = 0
    for s in samples:
        if not s.stamps or s.stamps[0] > end or s.stamps[-1] <= begin:
            continue
        a, b = bisect_right(s.stamps, begin), bisect_right(s.stamps, end)
        if b > a:
            total += s.counts[b - 1] - (s.counts[a - 1] if a else 0)
    return total


def _decoding(samples: Sequence[Sample], parts: Sequence[Tuple[float, float]]) -> Tuple[float, int, int]:
    """(seconds, tokens, chunks) of all streams between the first and the last chunk of each within each part."""
    seconds, tokens, chunks = 0.0, 0, 0
    ends = [end for _, end in parts]
    for s in samples:
        if not s.stamps:
            continue
        for begin, end in parts[bisect_left(ends, s.stamps[0]) :]:
            if begin > s.stamps[-1]:
                break
            a, b = bisect_left(s.stamps, begin), bisect_right(s.stamps, end) - 1
            if b > a:
                seconds += s.stamps[b] - s.stamps[a]
                tokens += s.counts[b] - s.counts[a]
                chunks += b - a
    return seconds, tokens, chunks


def compute(samples: Sequence[Sample], concurrency: int, speculative: bool) -> Figures:
    """The figures of all samples of a measurement; those that failed count as errors and nothing else."""
    good = [s for s in samples if s.error is None and s.stamps]
    metrics: Dict[str, Any] = dict.fromkeys(METRICS)
    metrics.update(
        ttft_ms=spread([]),
        itl_ms=spread([]),
        requests=len(good),
        completion_tokens=sum(s.counts[-1] for s in good),
        errors=len([s for s in samples if s.error is not None]),
    )
    if not good:
        return Figures(metrics)
    figures = Figures(metrics, seconds=max(s.end for s in good) - min(s.sent for s in good))
    tokens = [s.counts[-1] - s.counts[0] for s in good]
    seconds = [s.stamps[-1] - s.stamps[0] for s in good]
    cycles = [_cycles(s, speculative) for s in good]
    if sum(seconds) > 0:
        metrics["decode_tok_s"] = sum(tokens) / sum(seconds)
    metrics["ttft_ms"] = spread([(s.stamps[0] - s.sent) * MS for s in good])
    metrics["itl_ms"] = spread(_latencies(good))
    metrics["accept_length"], figures.accept_decode = _accept(good, speculative)
    figures.steps_ms = [second / cycle * MS for second, cycle in zip(seconds, cycles) if cycle]
    figures.window = in_flight(samples, concurrency)
    if figures.window:
        begin, end = figures.window
        # The chunks of one step come one after the other: the window ends with the last of its last step, as it begins.
        typical = metrics["itl_ms"]["p50"] / MS * (figures.accept_decode or 1.0)
        end = max(
            [end]
            + [
                s.stamps[bisect_right(s.stamps, end + typical / 4) - 1]
                for s in good
                if s.stamps[0] <= end <= s.stamps[-1]
            ]
        )
        metrics["output_tok_s"] = _received(good, begin, end) / (end - begin)
        parts = [(begin, end)] if concurrency == 1 else only_decoding(samples, (begin, end))
        if concurrency > 1:
            spent, got, chunks = _decoding(good, parts)
            if got:
                figures.pace, figures.gap_ms = spent / got, spent / chunks * MS
    after_first = sum(tokens)
    if concurrency == 1 and after_first:
        figures.pace = sum(seconds) / after_first
        chunks = sum(len(s.stamps) - 1 for s in good)
        figures.gap_ms = sum(seconds) / chunks * MS
        metrics["step_ms"] = sum(seconds) / sum(cycles) * MS if sum(cycles) else None
    elif figures.pace and figures.accept_decode:
        metrics["step_ms"] = figures.pace * figures.accept_decode * MS
    return figures


def _cycles(sample: Sample, speculative: bool) -> float:
    """Forward cycles after the first chunk. All verify cycles are after it, unless it brought more than one token."""
    tokens = sample.counts[-1] - sample.counts[0]
    verified = verify_ct(sample)
    if not speculative or not verified:
        return float(tokens)
    return verified * tokens / max(1, sample.counts[-1] - 1)


def _accept(good: Sequence[Sample], speculative: bool) -> Tuple[Optional[float], Optional[float]]:
    if not speculative:
        return 1.0, 1.0
    counted = [s for s in good if verify_ct(s)]
    cycles = sum(verify_ct(s) for s in counted)
    if not cycles:
        return None, None
    return (sum(s.counts[-1] for s in counted) / cycles, sum(s.counts[-1] - 1 for s in counted) / cycles)


def _latencies(good: Sequence[Sample]) -> array[float]:
    """Milliseconds between two chunks / tokens of the later, once for each of these tokens."""
    out = array("d")
    for s in good:
        stamps, counts = s.stamps, s.counts
        if counts[-1] - counts[0] == len(counts) - 1:  # a token a chunk
            out.extend(map(sub, stamps[1:], stamps))
            continue
        for before, at, had, has in zip(stamps, stamps[1:], counts, counts[1:]):
            out.extend([(at - before) / (has - had)] * (has - had))
    return array("d", [seconds * MS for seconds in out])
