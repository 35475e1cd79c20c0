"""From a results tree to a verdict: reads the records of a run and asks `verdict` and `baselines`.

Everything that decides is in those modules; here is only what they are given.
"""
from __future__ import annotations

from datetime import datetime, timezone
from typing import Optional

from ..errors import PlumblineError, unknown_name
from ..state.compare import compare
from . import baselines, ledger, plan, verdict
from .store import ExperimentResults, Results
from .variables import fraction


def now_text() -> str:
    """The wall clock as RFC 3339, UTC, milliseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def differences(was: dict, now: dict) -> list[dict]:
    """The ranked differences of two state documents."""
    return compare(was, now)["differences"]


def judge(results: Results, store: ExperimentResults, run: str = "", margin: Optional[float] = None,
          confidence: Optional[float] = None) -> dict:
    """The verdict document of ``run`` (the newest if empty), with another margin or confidence if one is given."""
    runs = store.runs()
    if not runs:
        raise unknown_name("measured experiment", store.name, results.experiments(),
                           str(results.root))
    if run and run not in runs:
        raise PlumblineError(f"experiment {store.name!r} has no such run", "-e run", run, ", ".join(runs),
                             "name one of its runs, or none for the newest")
    run = run or runs[-1]
    experiment = dict(store.experiment_of(run))
    for name, value in (("margin", margin), ("confidence", confidence)):
        if value is not None:
            experiment[name] = fraction(name, value)
    return verdict.build(experiment, run, store.plan(), store.measurements(), results.all_baselines(),
                         results.states(), differences)


def next_boot(results: Results, store: ExperimentResults, experiment: dict, host: str, run: str) -> dict:
    """What `plan.next_boot` says, and `progress`: {boots_done, boots_planned, left_s}."""
    entries, measurements = store.plan(), store.measurements()
    answer = plan.next_boot(entries, measurements, results.baselines(host), experiment, host, run, now_text(),
                            states=results.states(), compare_states=differences)
    book = ledger.fold(entries, host, run)
    wanted, made = book.wanted(), ledger.Records(book, measurements).boots()
    return {**answer, "progress": {"boots_done": len(made), "boots_planned": max(len(wanted), len(made)),
                                   "left_s": plan.eta(entries, measurements, host, run)}}


def remember_baseline(results: Results, record: dict, spec: dict) -> None:
    """Add a baseline measurement to the host's history, once."""
    if record["role"] != "baseline":
        return
    if any(row.get("measurement") == record["id"] for row in results.baselines(record["host"])):
        return
    results.append_baseline(record["host"], baselines.record(record, spec))


def accept(results: Results, store: ExperimentResults, run: str, reason: str) -> list[dict]:
    """Make the baselines of ``run`` the reference of each host that it measured; returns what was appended.

    A series whose reference these boots are already gets no further row. One that was accepted when a part of the run
    was measured does, with all boots that there are now.
    """
    out = []
    for host in sorted({m["host"] for m in store.measurements(run)}):
        rows = results.baselines(host)
        accepted = {baselines.series_key(r): (r["run"], r["boots"]) for r in rows if r["kind"] == "accepted"}
        for row in baselines.accept(rows, run, now_text(), reason, results.states(), differences):
            if accepted.get(baselines.series_key(row)) != (run, row["boots"]):
                results.append_baseline(host, row)
                out.append(row)
    return out
