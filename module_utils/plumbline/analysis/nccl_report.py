"""What a sweep of NCCL profiles says: ratios against the profile `none`, size by size, as a table and as a plot."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

REFERENCE = "none"
DECODE_MOST = 1 << 20
_COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#b9770e", "#34495e")
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 420, 62, 34, 190, 46


def proof_words(proof: Mapping[str, Any]) -> list[str]:
    """What a proof says: one sentence on the whole, then each reason, and what matters beside it."""
    verdict = {True: "in force", False: "NOT in force", None: "not proven"}[proof["profile_in_force"]]
    ranks, expected = len(proof["ranks"]), proof["expected_ranks"]
    out = [
        f"NCCL profile {proof['profile']} by {proof['delivery']}: {verdict}; {ranks} of {expected} ranks seen, "
        f"NCCL {proof['nccl_version'] or 'unknown'}, proof {proof['id']}"
    ]
    out += proof["reasons"]
    unread = {f"{v['name']}: {v['why']}" for r in proof["ranks"] for v in r["not_read"] if v["certain"]}
    out += [f"not read because not needed: {text}" for text in sorted(unread)]
    added = {
        f"{v['name']}={v['value']} (from {v['source'] or 'an unknown source'})"
        for r in proof["ranks"]
        for v in r["additional"]
    }
    out += [f"beside the profile: {text}" for text in sorted(added)]
    reducer = proof["allreduce"] or "not to be told"
    out.append(
        f"all-reduce at decode: {reducer}"
        + ("; NCCL serves prefill only" if proof["matters_at_decode"] is False else "")
    )
    shown = sorted({name for e in proof["environ"] for name in e["visible"]})
    out.append(
        f"/proc/PID/environ shows {len(shown)} of {len(proof['asked'])} variables, which proves nothing either way"
    )
    return out


def newest(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The last record of each host, profile, mode and size; outcomes without a size stay all.

    A profile that was defined anew, or a host that has changed, has new records: the former are not shown beside them.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, record in enumerate(records):
        size = record["bytes"] if record["bytes"] is not None else -number - 1
        found[(record["host"], record["profile"], record["mode"], size)] = dict(record)
    return list(found.values())


def _time(record: Mapping[str, Any]) -> Optional[Mapping[str, float]]:
    """In a CUDA graph where there was one: that is how decode runs."""
    return record.get("graph_us") or record.get("eager_us")


def ratios(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each result beside the reference of the same host, mode and size, by size.

    ``[{host, mode, profile, bytes, us, reference_us, ratio, verdict, algo, proto, status}]``. ``ratio`` is time over
    the reference's time (below 1 is faster). ``verdict``: ``faster`` or ``slower`` only where the spreads (minimum
    to maximum of the repetitions) do not touch, else ``same``; null without a reference. One process made each
    column: a hint for what to measure, no claim about tok/s.
    """
    rows = [r for r in newest(records) if r["bytes"] is not None]
    reference = {
        (r["host"], r["mode"], r["bytes"]): _time(r)
        for r in rows
        if r["profile"] == REFERENCE and r["status"] == "ok"
    }
    out = []
    for r in sorted(rows, key=lambda r: (r["host"], r["mode"], r["profile"] != REFERENCE, r["profile"], r["bytes"])):
        mine, other = _time(r), reference.get((r["host"], r["mode"], r["bytes"]))
        ratio = verdict = None
        if mine and other:
            ratio = round(mine["median"] / other["median"], 3)
            verdict = "faster" if mine["max"] < other["min"] else "slower" if mine["min"] > other["max"] else "same"
        out.append(
            {
                "host": r["host"],
                "mode": r["mode"],
                "profile": r["profile"],
                "bytes": r["bytes"],
                "us": mine["median"] if mine else None,
                "reference_us": other["median"] if other else None,
                "ratio": ratio,
                "verdict": verdict,
                "algo": r.get("algo"),
                "proto": r.get("proto"),
                "status": r["status"],
            }
        )
    return out


def size_text(size: int) -> str:
    """4096 -> ``4 KiB``."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def conclusions(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """One sentence for each profile and mode: what it does at decode and at prefill sizes; and every outcome that is
    not a result.
    """
    kept = newest(records)
    out = []
    rows = [r for r in ratios(kept) if r["ratio"] is not None and r["profile"] != REFERENCE]
    for host, mode, profile in dict.fromkeys((r["host"], r["mode"], r["profile"]) for r in rows):
        mine = [r for r in rows if (r["host"], r["mode"], r["profile"]) == (host, mode, profile)]
        parts = []
        for name, chosen in (
            ("decode", [r for r in mine if r["bytes"] <= DECODE_MOST]),
            ("prefill", [r for r in mine if r["bytes"] > DECODE_MOST]),
        ):
            if chosen:
                low, high = min(r["ratio"] for r in chosen), max(r["ratio"] for r in chosen)
                counts = [f"{sum(r['verdict'] == v for r in chosen)} {v}" for v in ("faster", "same", "slower")]
                parts.append(f"{name} sizes {low:.2f} to {high:.2f} times the reference's time ({', '.join(counts)})")
        out.append(f"{host}, {mode}, {profile}: " + "; ".join(parts))
    for r in kept:
        if r["status"] == "wrong_data":
            out.append(f"{r['host']}, {r['mode']}, {r['profile']}: wrong data at {size_text(r['bytes'])}")
        elif r["bytes"] is None:
            out.append(f"{r['host']}, {r['mode']}, {r['profile']}: {r['status']}: {r['diagnosis']['what']}")
    return out


def markdown(records: Sequence[Mapping[str, Any]]) -> str:
    """The sweep as Markdown: conclusions, then a table for each host and mode (us in a graph, else eager; ratio in
    brackets).
    """
    lines = ["# NCCL profiles: all-reduce, data checked", "", *(f"- {text}" for text in conclusions(records)), ""]
    rows = ratios(records)
    facts = {(r["host"], r["mode"]): r for r in newest(records) if r["bytes"] is not None}
    for host, mode in dict.fromkeys((r["host"], r["mode"]) for r in rows):
        mine = [r for r in rows if (r["host"], r["mode"]) == (host, mode)]
        about = facts[(host, mode)]
        profiles = list(dict.fromkeys(r["profile"] for r in mine))
        lines += [
            f"## {host}, {mode}",
            "",
            f"{about['world']} x {about['device']}, {about['backend']}"
            + (f", NCCL {about['nccl']}" if about.get("nccl") else "")
            + ("" if about["backend"] == "nccl" else " (no GPU: these times say nothing about one)")
            + "; median us of the slowest rank",
            "",
            "| size | " + " | ".join(profiles) + " |",
            "|---|" + "---|" * len(profiles),
        ]
        for size in sorted({r["bytes"] for r in mine}):
            cells = []
            for profile in profiles:
                r = next((r for r in mine if r["profile"] == profile and r["bytes"] == size), None)
                cells.append(_cell(r))
            lines.append(f"| {size_text(size)} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _cell(row: Optional[Mapping[str, Any]]) -> str:
    if row is None:
        return "-"
    if row["us"] is None:
        return f"**{row['status']}**"
    chosen = f" {row['algo']}/{row['proto']}" if row["algo"] else ""
    ratio = (
        f" ({row['ratio']:.2f}, {row['verdict']})" if row["ratio"] is not None and row["profile"] != REFERENCE else ""
    )
    return f"{row['us']:.1f}{ratio}{chosen}"


def svg(records: Sequence[Mapping[str, Any]], host: str, mode: str) -> str:
    """Time against size, both logarithmic, one line a profile; bars from minimum to maximum. Self-contained SVG; ""
    without results.
    """
    rows = [
        r for r in newest(records) if r["bytes"] is not None and (r["host"], r["mode"]) == (host, mode) and _time(r)
    ]
    if not rows:
        return ""
    xs = [math.log2(r["bytes"]) for r in rows]
    ys = [math.log10(v) for r in rows for v in (_time(r) or {}).values() if v > 0]
    x0, x1, y0, y1 = min(xs), max(max(xs), min(xs) + 1), math.floor(min(ys)), math.ceil(max(ys) + 1e-9)

    def x(size: int) -> float:
        return _LEFT + (math.log2(size) - x0) / (x1 - x0) * (_WIDTH - _LEFT - _RIGHT)

    def y(us: float) -> float:
        return _HEIGHT - _BOTTOM - (math.log10(us) - y0) / max(1, y1 - y0) * (_HEIGHT - _TOP - _BOTTOM)

    title = html.escape(f"All-reduce on {host}, {mode}: {rows[0]['world']} x {rows[0]['device']}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{title}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{title}</text>',
    ]
    for power in range(y0, y1 + 1):
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(10**power):.1f}" y2="{y(10**power):.1f}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 6}" y="{y(10**power) + 4:.1f}" text-anchor="end">{10**power:g} us</text>'
        )
    sizes = sorted({r["bytes"] for r in rows})
    for size in sizes[:: max(1, len(sizes) // 7)]:
        parts.append(
            f'<text x="{x(size):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{size_text(size)}</text>'
        )
    for number, profile in enumerate(
        dict.fromkeys(r["profile"] for r in sorted(rows, key=lambda r: (r["profile"] != REFERENCE, r["profile"])))
    ):
        colour = _COLOURS[number % len(_COLOURS)]
        mine = sorted((r for r in rows if r["profile"] == profile), key=lambda r: r["bytes"])
        points = " ".join(f"{x(r['bytes']):.1f},{y((_time(r) or {})['median']):.1f}" for r in mine)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for r in mine:
            t = _time(r) or {}
            parts.append(
                f'<line x1="{x(r["bytes"]):.1f}" x2="{x(r["bytes"]):.1f}" y1="{y(t["min"]):.1f}" '
                f'y2="{y(t["max"]):.1f}" stroke="{colour}"/>'
                f'<circle cx="{x(r["bytes"]):.1f}" cy="{y(t["median"]):.1f}" r="3" fill="{colour}"/>'
            )
        parts.append(
            f'<rect x="{_WIDTH - _RIGHT + 12}" y="{_TOP + number * 20}" width="12" height="12" fill="{colour}"/>'
            f'<text x="{_WIDTH - _RIGHT + 30}" y="{_TOP + number * 20 + 10}">{html.escape(profile)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])
