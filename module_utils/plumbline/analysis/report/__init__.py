"""The report of a verdict: one self-contained HTML page, Markdown and CSV, all from the same records."""
from __future__ import annotations

from pathlib import Path

from ...files import write_atomic
from ..store import ExperimentResults, Results
from . import html, tabular, text


def write(results: Results, store: ExperimentResults, verdict: dict) -> list[Path]:
    """Write report.html, report.md and measurements.csv into the experiment's folder; returns their paths."""
    measurements = store.measurements()
    mine = [m for m in measurements if m["run"] == verdict["run"]]
    compares = sorted((results.root / "compare").glob("*.json")) if (results.root / "compare").is_dir() else []
    pages = {"report.html": html.render(verdict, mine, compares=compares, proofs=results.proofs()),
             "report.md": text.markdown(verdict, mine), "measurements.csv": tabular.csv_text(measurements)}
    for name, content in pages.items():
        write_atomic(store.folder / name, content)
    return [store.folder / name for name in pages]
