"""The report as one HTML file that needs nothing else: no script, no font, no network."""
from __future__ import annotations

import json
from pathlib import Path

import jinja2

from . import charts, explain, text

_ENVIRONMENT = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True,
                                  trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)


def render(verdict: dict, measurements: list[dict], compares: list[Path], proofs: dict[str, dict]) -> str:
    """The page for one verdict and the measurements of its run.

    ``compares``: results of state comparisons to show; ``proofs``: NCCL proofs by id.
    """
    states = {m["state"]["digest"]: m["state"] for m in measurements if m["state"]["digest"]}
    used = {m["nccl"].get("proof") for m in measurements} - {None}
    return _ENVIRONMENT.get_template("report.html.j2").render(
        verdict=verdict, measurements=measurements, flags=explain.flags_seen(measurements), explain=explain,
        states=states, text=text, proofs={k: v for k, v in proofs.items() if k in used},
        interval_plot=charts.intervals(verdict["comparisons"], verdict["margin"]),
        breakeven_plot=charts.breakeven(verdict["comparisons"]),
        engines=sorted({m["engine"] for m in measurements}),
        compares=[(p.stem.replace("--", " -> "), json.loads(p.read_text())) for p in compares],
        failures=[m for m in measurements if m["status"] != "ok"])
