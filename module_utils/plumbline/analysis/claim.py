"""Claims: figures that somebody reports, and which of them cannot all be true.

The identities: tok/s = streams x accept length / step time; speed-up = accept length / R with R = step time / baseline
step time; 1 <= accept length <= steps + 1. For a server without speculation the accept length is 1.
"""
from __future__ import annotations

import math
from typing import Any, Optional

from ..errors import PlumblineError
from .breakeven import IDENTITY_TOLERANCE

CONTRADICTION, NOTE, CONSEQUENCE = "contradiction", "note", "consequence"
# What a claim may hold, with its unit; the last three are whole numbers.
FIGURES = {"tok_s": "tok/s", "step_ms": "ms a cycle", "accept_length": "tokens a cycle", "baseline_tok_s": "tok/s",
           "baseline_step_ms": "ms a step", "steps": "steps", "draft_tokens": "draft tokens", "concurrency": "streams"}
WHOLE = ("steps", "draft_tokens", "concurrency")


def figures(given: dict[str, Any]) -> dict[str, Any]:
    """The figures of `check` from what a person typed, those not given left out. Raises PlumblineError naming each."""
    out: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or value == "":
            continue
        try:
            number = math.nan if isinstance(value, bool) else float(str(value).strip())
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or number <= 0 or (name in WHOLE and number != int(number)):
            raise PlumblineError("not a figure that can be checked", f"-e {name}={value}", value,
                                 "a whole number above 0" if name in WHOLE else "a number above 0, such as 88.8",
                                 "give a plain number without a unit; leave it out if it is not known")
        out[name] = int(number) if name in WHOLE else number
    return out


def text(given: dict[str, Any], found: dict) -> str:
    """What `check` found, for a person: the figures, then each finding, contradictions first."""
    order = [CONTRADICTION, NOTE, CONSEQUENCE]
    said = ", ".join(f"{name} {value:g}" for name, value in given.items())
    rows = sorted(found["findings"], key=lambda f: order.index(f["kind"]))
    if not rows:
        return (f"nothing contradicts or follows from {said} alone: tok_s, step_ms and accept_length can be checked "
                "against each other")
    lines = ["these figures " + ("can all be true: " if found["consistent"] else "cannot all be true: ") + said]
    lines += [f"  {'x' if f['kind'] == CONTRADICTION else '-'} {f['says']}" for f in rows]
    return "\n".join(lines)


def check(tok_s: Optional[float] = None, step_ms: Optional[float] = None, accept_length: Optional[float] = None,
          steps: Optional[int] = None, baseline_tok_s: Optional[float] = None,
          baseline_step_ms: Optional[float] = None, draft_tokens: Optional[int] = None, concurrency: int = 1,
          tolerance: float = IDENTITY_TOLERANCE) -> dict:
    """Which of the reported figures cannot all be true.

    Times in ms, rates in tokens per second over all ``concurrency`` streams; ``step_ms`` is the whole cycle (a verify
    time alone is a lower bound of it). Returns {consistent, findings: [{kind, figures, says}], implied: {name: value}}.
    Raises PlumblineError on figures that are not positive numbers, or if there is none.
    """
    given = {"tok_s": tok_s, "step_ms": step_ms, "accept_length": accept_length, "steps": steps,
             "baseline_tok_s": baseline_tok_s, "baseline_step_ms": baseline_step_ms, "draft_tokens": draft_tokens,
             "concurrency": concurrency}
    for name, value in given.items():
        if value is not None and (not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0):
            raise PlumblineError("not a figure that can be checked", name, value, "a number above 0",
                                 "leave it out if it is not known")
    if all(v is None for k, v in given.items() if k != "concurrency"):
        raise PlumblineError("nothing to check", "the figures given", "none", ", ".join(given),
                             "give at least two, such as -e tok_s=60 -e step_ms=30.6")
    book = _Book(tolerance, concurrency)
    most = int(draft_tokens or 0) if steps is None else int(steps) + 1
    book.accept(tok_s, step_ms, accept_length, most or None, steps)
    book.baseline(baseline_tok_s, baseline_step_ms)
    book.economics(tok_s, step_ms, accept_length, most or None, baseline_tok_s, baseline_step_ms)
    return {"consistent": not any(f["kind"] == CONTRADICTION for f in book.findings), "findings": book.findings,
            "implied": book.implied}


class _Book:
    def __init__(self, tolerance: float, concurrency: int) -> None:
        self.tolerance, self.streams = tolerance, concurrency
        self.findings: list[dict] = []
        self.implied: dict[str, float] = {}

    def say(self, kind: str, figures: list[str], text: str) -> None:
        self.findings.append({"kind": kind, "figures": figures, "says": text})

    def near(self, a: float, b: float) -> bool:
        return abs(a / b - 1.0) <= self.tolerance

    def accept(self, tok_s: Optional[float], step_ms: Optional[float], length: Optional[float], most: Optional[int],
               steps: Optional[int]) -> None:
        limit = f"{steps} steps accept at most {most}" if steps is not None else f"at most {most} can be accepted"
        if length is not None and length < 1.0:
            self.say(CONTRADICTION, ["accept_length"],
                     f"an accept length of {length:g} is impossible: each cycle yields at least its bonus token. Read "
                     f"without the bonus token it would be {length + 1:g}")
        if length is not None and most is not None and length > most:
            self.say(CONTRADICTION, ["accept_length", "steps"],
                     f"an accept length of {length:g} is impossible: {limit}")
        if tok_s is None or step_ms is None:
            return
        implied = tok_s / self.streams * step_ms / 1000.0
        self.implied["accept_length"] = implied
        each = f"{tok_s:g} tok/s" + (f" over {self.streams} streams" if self.streams > 1 else "")
        if implied < 1.0 - self.tolerance:
            self.say(CONTRADICTION, ["tok_s", "step_ms"],
                     f"{each} at {step_ms:g} ms a cycle is {implied:.2f} tokens a cycle, under the 1 that every cycle "
                     "yields")
        if most is not None and implied > most * (1.0 + self.tolerance):
            self.say(CONTRADICTION, ["tok_s", "step_ms", "steps"],
                     f"{each} at {step_ms:g} ms a cycle needs {implied:.2f} tokens a cycle, but {limit}")
        if length is not None and not self.near(implied, length):
            text = f"{each} at {step_ms:g} ms a cycle means {implied:.2f} tokens a cycle, not {length:g}"
            if self.near(implied, length + 1.0) or (0.75 <= implied / (length + 1.0) <= 1.1 and implied > length):
                text += (f". The figure read probably left the bonus token out: {length:g} + 1 = {length + 1:g} tokens "
                         "a cycle")
                text += " fits" if self.near(implied, length + 1.0) else (
                    f" is near; a cycle would then take {(length + 1) / tok_s * self.streams * 1000:.1f} ms, of which "
                    f"{step_ms:g} ms may be the verify step alone")
            elif implied > length:
                text += (f". If {step_ms:g} ms is right, {length:g} tokens a cycle give "
                         f"{length / step_ms * 1000:.1f} tok/s a stream")
            else:
                text += f". If all three were right, a cycle would take {length / tok_s * self.streams * 1000:.1f} ms"
            self.say(CONTRADICTION, ["tok_s", "step_ms", "accept_length"], text)

    def baseline(self, tok_s: Optional[float], step_ms: Optional[float]) -> None:
        if tok_s is None or step_ms is None:
            return
        implied = tok_s / self.streams * step_ms / 1000.0
        if not self.near(implied, 1.0):
            self.say(CONTRADICTION, ["baseline_tok_s", "baseline_step_ms"],
                     f"without speculation a step yields 1 token, but {tok_s:g} tok/s at {step_ms:g} ms is "
                     f"{implied:.2f}; {tok_s:g} tok/s means {self.streams * 1000 / tok_s:.2f} ms a step")

    def economics(self, tok_s: Optional[float], step_ms: Optional[float], length: Optional[float], most: Optional[int],
                  base_tok_s: Optional[float], base_step: Optional[float]) -> None:
        if base_step is None and base_tok_s is not None:
            base_step = self.streams * 1000.0 / base_tok_s
        if step_ms is None and tok_s is not None and length is not None and length >= 1.0:
            step_ms = length * self.streams * 1000.0 / tok_s
            self.implied["step_ms"] = step_ms
        if step_ms is None or base_step is None:
            return
        needed = step_ms / base_step
        self.implied["break_even_accept_length"] = needed
        reached = self.implied.get("accept_length", length)
        text = f"a cycle costs {needed:.2f} decode steps, so it breaks even at {needed:.2f} tokens a cycle"
        if reached is not None:
            self.implied["speed_up"] = reached / needed
            text += f"; with {reached:.2f} it is {reached / needed:.2f}x"
        if most is not None and needed > most:
            text += f"; at most {most} can be accepted, so no draft can win"
        self.say(CONSEQUENCE, ["step_ms", "baseline_step_ms"], text)
        if tok_s is not None and base_tok_s is not None and reached is not None:
            said = tok_s / base_tok_s
            if not self.near(said, reached / needed):
                self.say(CONTRADICTION, ["tok_s", "baseline_tok_s", "step_ms", "baseline_step_ms"],
                         f"{tok_s:g} against {base_tok_s:g} tok/s is {said:.2f}x, but accept length and step times "
                         f"give {reached / needed:.2f}x")
