"""GET /metrics: Prometheus text with SGLang's names."""

from __future__ import annotations

import bisect
from typing import Any, Dict, List, Sequence, Tuple

TTFT = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
ITL = (
    0.002,
    0.004,
    0.006,
    0.008,
    0.01,
    0.015,
    0.02,
    0.025,
    0.03,
    0.035,
    0.04,
    0.06,
    0.08,
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1,
    2,
    4,
    6,
    8,
)
E2E = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200, 1800, 2400)


class Histogram:
    """Counts by bucket."""

    def __init__(self, buckets: Sequence[float]) -> None:
        self.buckets, self.counts = tuple(buckets), [0] * (len(buckets) + 1)
        self.total, self.number = 0.0, 0

    def add(self, value: float, times: int = 1) -> None:
        """Count ``value`` ``times`` times."""
        self.counts[bisect.bisect_left(self.buckets, value)] += times
        self.total += value * times
        self.number += times

    def lines(self, name: str, labels: str) -> List[str]:
        """The histogram's sample lines."""
        found, seen = [f"{name}_sum{{{labels}}} {self.total}"], 0
        for edge, count in zip([*map(str, map(float, self.buckets)), "+Inf"], self.counts):
            seen += count
            found.append(f'{name}_bucket{{le="{edge}",{labels}}} {float(seen)}')
        return [*found, f"{name}_count{{{labels}}} {float(self.number)}"]


class Latencies:
    """The request histograms."""

    def __init__(self) -> None:
        self.first, self.between, self.whole, self.queue = (
            Histogram(TTFT),
            Histogram(ITL),
            Histogram(E2E),
            Histogram(E2E),
        )

    def finished(self, request: Any) -> None:
        """Count a finished request."""
        if request.first_at is None or request.done_at is None or request.quiet:
            return
        self.first.add(request.first_at - request.arrived)
        self.whole.add(request.done_at - request.arrived)
        self.queue.add(request.queue_s)
        if len(request.ids) > 1:
            self.between.add((request.done_at - request.first_at) / (len(request.ids) - 1), len(request.ids) - 1)


def text(values: Dict[str, Any], latencies: Latencies, model: str) -> str:
    """All metrics. ``values``: numbers by name without the ``sglang:`` prefix, more labels behind it in braces;
    names in _total are counters."""
    short = f'engine_type="unified",model_name="{model}"'
    rank = f'{short},moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    lines: List[str] = []
    for key, value in values.items():
        name, _, extra = key.partition("{")
        kind = "counter" if name.endswith("_total") else "gauge"
        base = rank if kind == "gauge" or "mode=" in extra else short
        labels = f"{extra[:-1]},{base}" if extra else base
        if f"# TYPE sglang:{name} {kind}" not in lines:
            lines += [f"# HELP sglang:{name} {name.replace('_', ' ')}.", f"# TYPE sglang:{name} {kind}"]
        lines.append(f"sglang:{name}{{{labels}}} {float(value)}")
    histograms: Tuple[Tuple[str, Histogram], ...] = (
        ("time_to_first_token_seconds", latencies.first),
        ("inter_token_latency_seconds", latencies.between),
        ("e2e_request_latency_seconds", latencies.whole),
        ("queue_time_seconds", latencies.queue),
    )
    for name, histogram in histograms:
        lines += [
            f"# HELP sglang:{name} Histogram of {name.replace('_', ' ')}.",
            f"# TYPE sglang:{name} histogram",
            *histogram.lines(f"sglang:{name}", short),
        ]
    return "\n".join(lines) + "\n"
