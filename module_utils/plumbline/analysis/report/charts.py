"""Charts as SVG text, without a library: an interval plot of ratios, and accept length against the cost of a cycle."""
from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

from .text import percent, ratio

WIDTH = 880
VERDICT_CLASS = {"faster": "faster", "slower": "slower", "same": "same", "inconclusive": "open",
                 "not_comparable": "void"}
SHAPES = ("circle", "square", "diamond", "triangle")


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round values that cover [low, high]: steps of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _axis(low: float, high: float, left: float, right: float) -> Callable[[float], float]:
    return lambda v: left + (v - low) / (high - low) * (right - left)


def intervals(comparisons: list[dict], margin: float) -> str:
    """The ratio of each candidate to its baseline with its confidence interval; the band is the margin around 1."""
    rows = [c for c in comparisons if c["ratio"] is not None]
    if not rows:
        return ""
    ends = [v for c in rows for v in (c["ratio"], *(c["ci"] or ())) if v is not None and math.isfinite(v)]
    low, high = min([*ends, 1 - 2 * margin]), max([*ends, 1 + 2 * margin])
    low, high = max(0.0, low - 0.05 * (high - low)), high + 0.05 * (high - low)
    names = [f"{c['host']}  {c['workload']}  {c['candidate_arm']['name']}" for c in rows]
    left, right, top, pitch = min(420, 24 + 7 * max(map(len, names))), WIDTH - 190, 18, 30
    x = _axis(low, high, left, right)
    bottom = top + pitch * len(rows)
    out = [f'<svg viewBox="0 0 {WIDTH} {bottom + 44}" role="img" aria-label="Ratio to the baseline, with intervals">',
           f'<rect class="band" x="{x(1 - margin):.1f}" y="{top}" width="{x(1 + margin) - x(1 - margin):.1f}" '
           f'height="{bottom - top}"/>']
    for t in ticks(low, high):
        out.append(f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{top}" y2="{bottom}"/>'
                   f'<text class="tick" x="{x(t):.1f}" y="{bottom + 16}" text-anchor="middle">{t:g}x</text>')
    out.append(f'<line class="one" x1="{x(1):.1f}" x2="{x(1):.1f}" y1="{top - 6}" y2="{bottom}"/>')
    for i, (c, name) in enumerate(zip(rows, names, strict=True)):
        y, kind = top + pitch * (i + 0.5), VERDICT_CLASS[c["verdict"]]
        out.append(f'<text class="name" x="{left - 12}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>')
        if c["ci"] and None not in c["ci"]:
            a, b = (min(max(x(v), left), right) for v in c["ci"])
            out.append(f'<line class="whisker {kind}" x1="{a:.1f}" x2="{b:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<circle class="dot {kind}" cx="{x(c["ratio"]):.1f}" cy="{y:.1f}" r="5"/>'
                   f'<text class="value" x="{right + 12}" y="{y + 4:.1f}">{escape(ratio(c))}</text>')
    out.append(f'<text class="tick" x="{(left + right) / 2:.1f}" y="{bottom + 36}" text-anchor="middle">'
               f'tok/s of the candidate / tok/s of the baseline (band: margin of {percent(margin)})</text></svg>')
    return "".join(out)


def _marker(shape: str, x: float, y: float, kind: str) -> str:
    if shape == "circle":
        return f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="6"/>'
    points = {"square": ((-5, -5), (5, -5), (5, 5), (-5, 5)), "diamond": ((0, -7), (7, 0), (0, 7), (-7, 0)),
              "triangle": ((0, -7), (6, 5), (-6, 5))}[shape]
    return f'<polygon class="dot {kind}" points="{" ".join(f"{x + a:.1f},{y + b:.1f}" for a, b in points)}"/>'


def breakeven(comparisons: list[dict]) -> str:
    """Accept length (tokens a cycle) against what a cycle costs (decode steps of the baseline), one shape a workload.

    On the line a candidate is as fast as its baseline: the speed-up is y / x.
    """
    rows = [c for c in comparisons if c["accept_length"] and c["break_even_accept_length"]]
    if not rows:
        return ""
    workloads = sorted({c["workload"] for c in rows})
    top_value = 1.15 * max(max(c["accept_length"], c["break_even_accept_length"]) for c in rows)
    size, left, top = 380, 60, 14
    x, y = _axis(0, top_value, left, left + size), _axis(0, top_value, top + size, top)
    out = [f'<svg viewBox="0 0 {WIDTH} {size + 64}" role="img" aria-label="Accept length against the cost of a cycle">']
    for t in ticks(0, top_value):
        out.append(f'<line class="grid" x1="{left}" x2="{left + size}" y1="{y(t):.1f}" y2="{y(t):.1f}"/>'
                   f'<text class="tick" x="{left - 8}" y="{y(t) + 4:.1f}" text-anchor="end">{t:g}</text>'
                   f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{top}" y2="{top + size}"/>'
                   f'<text class="tick" x="{x(t):.1f}" y="{top + size + 16}" text-anchor="middle">{t:g}</text>')
    out.append(f'<line class="one" x1="{x(0):.1f}" y1="{y(0):.1f}" x2="{x(top_value):.1f}" y2="{y(top_value):.1f}"/>'
               f'<text class="tick" x="{x(top_value * 0.62):.1f}" y="{y(top_value * 0.62) - 10:.1f}" text-anchor="end">'
               'break-even</text>')
    for i, c in enumerate(rows):
        cx, cy = x(c["break_even_accept_length"]), y(c["accept_length"])
        kind = VERDICT_CLASS[c["verdict"]]
        label = f"{i + 1}"
        out.append(_marker(SHAPES[workloads.index(c["workload"]) % len(SHAPES)], cx, cy, kind)
                   + f'<text class="name" x="{cx + 10:.1f}" y="{cy + 4:.1f}">{label}</text>')
        out.append(f'<text class="name" x="{left + size + 36}" y="{top + 20 + 22 * i}">{label}&#160;&#160;'
                   f'{escape(c["host"])} {escape(c["workload"])} {escape(c["candidate_arm"]["name"])}: '
                   f'{c["accept_length"]:.2f} / {c["break_even_accept_length"]:.2f} = '
                   f'{c["accept_length"] / c["break_even_accept_length"]:.2f}x</text>')
    out.append(f'<text class="tick" x="{left + size / 2}" y="{top + size + 38}" text-anchor="middle">'
               'cost of a cycle in decode steps of the baseline (break-even accept length)</text>'
               f'<text class="tick" transform="translate(16 {top + size / 2}) rotate(-90)" text-anchor="middle">'
               'accept length: tokens a cycle</text></svg>')
    return "".join(out)
