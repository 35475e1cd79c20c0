"""Measurements as CSV: one row each, one column a figure."""
from __future__ import annotations

import csv
import io

from ...measure import figures

IDENTITY = ("id", "run", "experiment", "engine", "host", "boot", "block", "position", "role", "arm", "variant",
            "nccl_profile", "build", "workload", "repeat", "started_at", "duration_s", "status")
SPREADS = ("ttft_ms", "itl_ms")
METRICS = tuple(name for name in figures.METRICS if name not in SPREADS)
POINTS = ("mean", "p50", "p90", "p99")


def csv_text(measurements: list[dict]) -> str:
    """The CSV document, header included; empty cells where a figure could not be measured."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*IDENTITY, *METRICS, *[f"{s}_{p}" for s in SPREADS for p in POINTS], "state", "profile_in_force",
                     "flags", "failure"])
    for m in measurements:
        metrics = m["metrics"]
        spreads = [(metrics.get(s) or {}).get(p) for s in SPREADS for p in POINTS]
        writer.writerow([*[m.get(k) for k in IDENTITY], *[metrics.get(k) for k in METRICS], *spreads,
                         m["state"]["digest"], m["nccl"].get("profile_in_force"),
                         " ".join(f["name"] for f in m["flags"]), (m.get("failure") or {}).get("class")])
    return out.getvalue()
