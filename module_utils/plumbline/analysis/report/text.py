"""The verdict as text: the table that a run ends with, and the Markdown report."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Optional

from . import explain


def number(value: Optional[float], digits: int = 2, unit: str = "") -> str:
    """A figure with its unit, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def percent(share: float) -> str:
    """`0.5%`, as exact as it was given: a margin of 0.005 is not one of nothing."""
    return f"{share * 100:g}%"


def ratio(comparison: dict) -> str:
    """`1.86x [1.80, 1.93]`."""
    if comparison["ratio"] is None:
        return "-"
    low, high = comparison["ci"] or (None, None)
    interval = f" [{number(low)}, {number(high)}]" if low is not None and high is not None else " [no interval]"
    return f"{comparison['ratio']:.2f}x{interval}"


COMPARISON_HEAD = ("host", "workload", "candidate", "verdict", "ratio to baseline", "accept length",
                   "break-even", "step ms", "baseline step ms", "boots")
BASELINE_HEAD = ("host", "workload", "NCCL profile", "status", "now tok/s", "reference tok/s", "change")


def comparison_rows(verdict: dict) -> list[tuple[str, ...]]:
    """One row of texts a comparison, in the order of COMPARISON_HEAD."""
    return [(c["host"], c["workload"], c["candidate_arm"]["name"], c["verdict"].replace("_", " "), ratio(c),
             number(c["accept_length"]), number(c["break_even_accept_length"]), number(c["step_ms"]),
             number(c["baseline_step_ms"]), f"{c['boots']['candidate']} / {c['boots']['baseline']}")
            for c in verdict["comparisons"]]


def baseline_rows(verdict: dict) -> list[tuple[str, ...]]:
    """One row of texts a baseline, in the order of BASELINE_HEAD."""
    return [(b["host"], b["workload"], b["nccl_profile"], b["status"], number(b["now_tok_s"], 1),
             number(b["reference_tok_s"], 1), "-" if b["change"] is None else f"{b['change']:+.1%}")
            for b in verdict["baselines"]]


def columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for a terminal: padded columns."""
    table = [list(head), *[list(r) for r in rows]]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars in cells are escaped."""
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |"
    return "\n".join([line(head), "|" + "---|" * len(head), *[line(r) for r in rows]])


def table(verdict: dict) -> str:
    """What a run ends with on the terminal: comparisons, their reasons, and the baselines."""
    parts = []
    if verdict["comparisons"]:
        parts.append(columns(COMPARISON_HEAD, comparison_rows(verdict)))
        said = [f"{c['host']}, {c['workload']}, {c['candidate_arm']['name']}: {r}"
                for c in verdict["comparisons"] for r in c["reasons"]]
        parts.append("\n".join(said))
    if verdict["baselines"]:
        parts.append(columns(BASELINE_HEAD, baseline_rows(verdict)))
    return "\n\n".join(p for p in parts if p)


def markdown(verdict: dict, measurements: list[dict]) -> str:
    """The report as Markdown, with the same figures as the HTML page."""
    out = [f"# {verdict['experiment']}", "",
           f"Run `{verdict['run']}`, margin {percent(verdict['margin'])}, "
           f"confidence {percent(verdict['confidence'])}.", "",
           f"Engine: {', '.join(sorted({m['engine'] for m in measurements})) or 'none'}. {verdict_family(verdict)}", ""]
    if verdict["comparisons"]:
        out += ["## Comparisons", "", markdown_table(COMPARISON_HEAD, comparison_rows(verdict)), ""]
        for c in verdict["comparisons"]:
            if c["reasons"] or c["differences"] or c["excluded"]:
                out += [f"### {c['host']}, {c['workload']}, {c['candidate_arm']['name']}", ""]
                out += [f"- {r}" for r in c["reasons"]]
                out += [f"- differs: {describe_difference(d)}" for d in c["differences"]]
                out += [f"- left out: {e['measurement']}: {e['why']}" for e in c["excluded"]]
                out.append("")
    if verdict["baselines"]:
        out += ["## Baselines", "", markdown_table(BASELINE_HEAD, baseline_rows(verdict)), ""]
        for b in verdict["baselines"]:
            out += [f"- {b['host']}, {b['workload']}: {r}" for r in b["reasons"]]
            out += [f"- {b['host']}, {b['workload']}: {describe_difference(d)}" for d in b["state_changes"]]
        out.append("")
    stages = stage_rows(measurements)
    if stages:
        out += ["## What a cycle is made of", "", markdown_table(STAGE_HEAD, stages), ""]
    out += ["## Measurements", "", markdown_table(MEASUREMENT_HEAD, measurement_rows(measurements)), ""]
    flags = explain.flags_seen(measurements)
    if flags:
        out += ["## Flags", ""]
        for name, seen in flags.items():
            out.append(f"- `{name}`: {explain.flag_meaning(name)}")
            out += [f"  - {f['says']}" for f in seen[:explain.SHOWN]]
            out += [f"  - and {len(seen) - explain.SHOWN} more"] if len(seen) > explain.SHOWN else []
        out.append("")
    failed = [m for m in measurements if m["status"] != "ok"]
    if failed:
        out += ["## Failures", ""]
        out += [f"- {m['host']}, {m['arm']}, {m['workload']} ({m['id']}): {m['failure']['class']}: "
                f"{m['failure']['detail']}" for m in failed]
        out.append("")
    return "\n".join(out)


def verdict_family(verdict: dict) -> str:
    """What the error rate is held for, in words."""
    family = verdict["family"]
    return family if isinstance(family, str) else family.get("description", "")


def describe_difference(d: dict[str, Any]) -> str:
    """`performance: build/sglang: 0.5.22 -> 0.5.23 (remedy)`."""
    remedy = f" ({d['remedy']})" if d.get("remedy") else ""
    return f"{d['impact']}: {d['group']}/{d['item']}: {d['was']} -> {d['now']}{remedy}"


MEASUREMENT_HEAD = ("started", "host", "block", "arm", "workload", "tok/s", "accept length", "step ms", "TTFT p50 ms",
                    "flags", "status")


def headline(measurement: dict) -> Optional[float]:
    """The tok/s that is compared: decode_tok_s of a single stream, else output_tok_s."""
    alone = measurement["conditions"].get("concurrency", 1) == 1
    return measurement["metrics"]["decode_tok_s" if alone else "output_tok_s"]


def measurement_rows(measurements: list[dict]) -> list[tuple[str, ...]]:
    """One row of texts a measurement, in the order of MEASUREMENT_HEAD."""
    return [(m["started_at"][:19], m["host"], str(m["block"]), m["arm"], m["workload"], number(headline(m), 1),
             number(m["metrics"]["accept_length"]), number(m["metrics"]["step_ms"]),
             number((m["metrics"]["ttft_ms"] or {}).get("p50"), 0),
             ", ".join(f["name"] + ("!" if f["invalidates"] else "") for f in m["flags"]),
             m["status"] if m["status"] == "ok" else f"failed: {m['failure']['class']}") for m in measurements]


STAGE_HEAD = ("host", "arm", "workload", "batch", "decode ms", "verify ms", "drafting ms", "cycle ms", "cycles",
              "timed on")


def stage_rows(measurements: list[dict]) -> list[tuple[str, ...]]:
    """One row of texts a profiled measurement, in the order of STAGE_HEAD."""
    profiled = [(m, m["conditions"]["stages"]) for m in measurements if m["conditions"].get("stages")]
    return [(m["host"], m["arm"], m["workload"], str(s["batch"]), number(s["decode_ms"]), number(s["verify_ms"]),
             number(s["drafting_ms"]), number(s["cycle_ms"]), f"{s['cycles']} of {s['ranks']} ranks", s["timed_on"])
            for m, s in profiled]
