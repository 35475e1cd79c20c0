"""Cross-checks: each figure beside another source than the one that it was computed from.

A check is ``{name, ours, theirs, source, difference, result, reason}``: ``ours`` by the client, ``theirs`` by
``source``, ``difference`` a fraction of theirs; ``result`` is ``agree``, ``differ`` or ``unchecked`` (then ``reason``
says why)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ..sglang.loglines import clean_rows
from . import figures as fig
from .stream import Sample

TOLERANCE = 0.02
LEAST_INTERVALS = 10
MS = 1000.0


@dataclass(frozen=True)
class Evidence:
    """What a measurement left behind. ``rows``: the decode lines of the window (`loglines.rows_of`); ``before`` and
    ``after``: the server's counters (None without metrics); ``state``: the scheduler's own figures afterwards."""

    figures: fig.Figures
    samples: Sequence[Sample]
    rows: Sequence[Mapping[str, Any]]
    before: Optional[Mapping[str, float]]
    after: Optional[Mapping[str, float]]
    state: Mapping[str, Any]
    concurrency: int
    speculative: bool

    def counted(self, name: str) -> Optional[float]:
        """By how much a counter moved in the window, or None if the server has no such counter."""
        if self.before is None or self.after is None or name not in self.after:
            return None
        return self.after[name] - self.before.get(name, 0.0)


def all_checks(evidence: Evidence) -> List[Dict[str, Any]]:
    """Every check that this measurement can be put to, in a fixed order."""
    found = [step_time(evidence), cycles(evidence), identity(evidence), tokens(evidence), latency(evidence)]
    if evidence.speculative:
        found[1:1] = [accept_length(evidence), accept_length_total(evidence)]
    return found


def compare(
    name: str, ours: Optional[float], theirs: Optional[float], source: str, missing: str = ""
) -> Dict[str, Any]:
    """A check of two figures; without one of them it is ``unchecked`` for the reason ``missing``."""
    if ours is None or theirs is None or not theirs:
        return unchecked(name, ours, source, missing or "one of the two figures is missing")
    difference = ours / theirs - 1.0
    return {
        "name": name,
        "ours": ours,
        "theirs": theirs,
        "source": source,
        "difference": difference,
        "result": "agree" if abs(difference) <= TOLERANCE else "differ",
        "reason": "",
    }


def unchecked(name: str, ours: Optional[float], source: str, reason: str) -> Dict[str, Any]:
    return {
        "name": name,
        "ours": ours,
        "theirs": None,
        "source": source,
        "difference": None,
        "result": "unchecked",
        "reason": reason,
    }


def full_rows(evidence: Evidence) -> List[Mapping[str, Any]]:
    """The clean intervals in which the server ran what the client had in flight."""
    ranks = {row.get("dp_rank") for row in evidence.rows}
    share = evidence.concurrency / max(1, len(ranks))
    return [
        row for row in clean_rows([dict(r) for r in evidence.rows]) if row["gen_throughput"] and row["running"] == share
    ]


def line_step_ms(rows: Sequence[Mapping[str, Any]]) -> Optional[float]:
    """Mean time of a step by decode lines: a line is an equal number of steps of ``running`` requests."""
    if not rows:
        return None
    return sum(row["running"] * (row["accept_len"] or 1.0) / row["gen_throughput"] for row in rows) / len(rows) * MS


def line_accept(rows: Sequence[Mapping[str, Any]]) -> Optional[float]:
    """Accept length by decode lines, each weighing as many verifications as requests were running."""
    counted = [(row["running"], row["accept_len"]) for row in rows if row["accept_len"] and row["running"]]
    weight = sum(running for running, _ in counted)
    return sum(running * accept for running, accept in counted) / weight if weight else None


def _few(rows: Sequence[Any]) -> str:
    return f"{len(rows)} clean intervals in the server's log, {LEAST_INTERVALS} are needed: lower --decode-log-interval"


def step_time(evidence: Evidence) -> Dict[str, Any]:
    rows, ours = full_rows(evidence), evidence.figures.metrics["step_ms"]
    if len(rows) < LEAST_INTERVALS:
        return unchecked("step_ms", ours, "decode lines", _few(rows))
    return compare("step_ms", ours, line_step_ms(rows), f"{len(rows)} decode lines")


def accept_length(evidence: Evidence) -> Dict[str, Any]:
    """The server counts verifications; the token of the prefill is none, so it is left out of ours."""
    rows = [row for row in evidence.rows if "first" not in row["why"]]
    ours = evidence.figures.accept_decode
    if len(rows) < LEAST_INTERVALS:
        return unchecked("accept_length", ours, "decode lines", _few(rows))
    return compare("accept_length", ours, line_accept(rows), f"{len(rows)} decode lines")


def accept_length_total(evidence: Evidence) -> Dict[str, Any]:
    """The server's average since the cache was flushed, which was just before the window."""
    theirs = evidence.state.get("avg_spec_accept_length")
    name, source = "accept_length_total", "server_info, since the flush before the window"
    return compare(
        name,
        evidence.figures.accept_decode,
        theirs if isinstance(theirs, (int, float)) else None,
        source,
        "this server does not report an average accept length",
    )


def cycles(evidence: Evidence) -> Dict[str, Any]:
    """Cycles of the requests against those that the server counted: verifications with speculation, otherwise decode
    passes (of one stream only, since a pass over several requests counts once).

    SGLang's overlap schedule launches a pass before it knows that the request has ended with the one before, so up to
    one pass a request carries no token."""
    good = [s for s in evidence.samples if s.error is None]
    missing = "the server has no such counter (--enable-metrics)"
    if evidence.speculative:
        name = "sglang:spec_verify_calls_total"
        ours = float(sum(fig.verify_ct(s) for s in good))
        return compare("cycles", ours, evidence.counted(name), "counter spec_verify_calls_total", missing)
    source = "counter cuda_graph_passes_total"
    if evidence.concurrency > 1:
        return unchecked("cycles", None, source, "a pass over several requests counts once")
    names = [n for n in (evidence.after or {}) if n.startswith("sglang:cuda_graph_passes_total:decode")]
    moved = [evidence.counted(n) or 0.0 for n in names]
    ours, passes = float(sum(s.counts[-1] - 1 for s in good)), sum(moved) if moved else None
    ahead = min(max((passes or 0.0) - ours, 0.0), float(len(good)))
    if ahead:
        source += f", {ahead:.0f} of them launched ahead of a request's end"
    return compare("cycles", ours + ahead, passes, source, missing)


def identity(evidence: Evidence) -> Dict[str, Any]:
    """tok/s x step time = accept length, with the client's tok/s and the server's step time and accept length."""
    name, rows = "identity", full_rows(evidence)
    source = "tok/s by the client x step time by decode lines = accept length by decode lines"
    pace = evidence.figures.pace
    step = line_step_ms(rows)
    if len(rows) < LEAST_INTERVALS or pace is None or step is None:
        return unchecked(name, None, source, _few(rows))
    accept = line_accept(rows) if evidence.speculative else 1.0
    return compare(name, step / MS / pace, accept, source)


def tokens(evidence: Evidence) -> Dict[str, Any]:
    """Tokens received against tokens that the server counted."""
    name, source = "completion_tokens", "counter generation_tokens_total"
    ours = float(evidence.figures.metrics["completion_tokens"])
    if evidence.figures.metrics["errors"]:
        return unchecked(name, ours, source, "requests failed: what they had received is not counted")
    return compare(
        name,
        ours,
        evidence.counted("sglang:generation_tokens_total"),
        source,
        "the server has no such counter (--enable-metrics)",
    )


def latency(evidence: Evidence) -> Dict[str, Any]:
    """Time from sending to the last chunk, against the server's own time from receiving to the last token."""
    good = [s for s in evidence.samples if s.error is None and isinstance(s.meta.get("e2e_latency"), (int, float))]
    ours = sum(s.stamps[-1] - s.sent for s in good) if good else None
    return compare(
        "request_s",
        ours,
        sum(s.meta["e2e_latency"] for s in good) if good else None,
        "meta_info.e2e_latency",
        "this server does not report e2e_latency",
    )
