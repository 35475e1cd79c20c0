"""Break-even: how many tokens a cycle must yield for speculation to pay, and what follows from it, in words.

R = step time with speculation / step time of the baseline, at equal batch size; the speed-up is accept length / R
(Leviathan et al. 2023, section 3, with the measured cost of a cycle in place of its model). With k steps and one
branch at most k + 1 tokens are accepted; with a tree at most depth + 1 and never more than the draft tokens; NGRAM: the
number of draft tokens.
"""
from __future__ import annotations

import math
from typing import Iterable, Optional

# Figures of one measurement agree within this share, as its own cross-checks demand.
IDENTITY_TOLERANCE = 0.02
# Below this many tokens a cycle nothing that the draft proposes is accepted.
NOTHING_ACCEPTED = 1.05


def most_accepted(args: dict) -> Optional[int]:
    """The most tokens a cycle can yield, bonus token included, under server arguments; None without speculation."""
    algorithm = str(args.get("speculative-algorithm") or "").upper()
    if not algorithm:
        return None
    draft_tokens, steps = args.get("speculative-num-draft-tokens"), args.get("speculative-num-steps")
    if algorithm == "NGRAM" or steps is None:
        return int(draft_tokens) if draft_tokens is not None else None
    most = int(steps) + 1
    return most if draft_tokens is None else min(most, int(draft_tokens))


def steps_of(args: dict) -> Optional[int]:
    """The number of speculative steps, None where there is none (no speculation, NGRAM)."""
    steps = args.get("speculative-num-steps")
    return int(steps) if args.get("speculative-algorithm") and steps is not None else None


def ratio(step_ms: Optional[float], baseline_step_ms: Optional[float]) -> Optional[float]:
    """R, the break-even accept length; None where either time is not known."""
    if not step_ms or not baseline_step_ms:
        return None
    return step_ms / baseline_step_ms


def acceptance_needed(accept_length: float, steps: int) -> Optional[float]:
    """The per-token acceptance a at which a chain of ``steps`` drafts yields ``accept_length``.

    Solves L = (1 - a^(k+1)) / (1 - a) = 1 + a + ... + a^k; None if no a in [0, 1] does.
    """
    if steps < 1 or not 1.0 <= accept_length <= steps + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        a = 0.5 * (low + high)
        if (1.0 - a ** (steps + 1)) / (1.0 - a) < accept_length:
            low = a
        else:
            high = a
    return 0.5 * (low + high)


def assess(accept_length: Optional[float], step_ms: Optional[float], baseline_step_ms: Optional[float],
           args: dict) -> dict:
    """{break_even_accept_length, accept_length, max_accept_length, speed_up, gap, can_win, advice} of one arm and load.

    ``gap``: accept length reached less the one needed. ``can_win``: False if even full acceptance would lose.
    """
    needed, most = ratio(step_ms, baseline_step_ms), most_accepted(args)
    out: dict = {"break_even_accept_length": needed, "accept_length": accept_length, "max_accept_length": most,
                 "speed_up": None, "gap": None, "can_win": None, "advice": ""}
    if needed is None or accept_length is None or most is None:
        return out
    out.update(speed_up=accept_length / needed, gap=accept_length - needed, can_win=needed < most)
    out["advice"] = _advice(accept_length, needed, most, steps_of(args))
    return out


def _advice(reached: float, needed: float, most: int, steps: Optional[int]) -> str:
    cycle = f"a cycle costs {needed:.2f} decode steps and yields {reached:.2f} tokens"
    if reached >= needed:
        return f"{cycle}: it pays by {reached / needed - 1:.1%}"
    if reached < NOTHING_ACCEPTED:
        return (f"{cycle}: nothing that the draft proposes is accepted, as when it does not belong to the model or to "
                "the algorithm; check that before anything else")
    if needed >= most:
        return (f"{cycle}, at most {most}: no draft can win with this cost of a cycle; "
                "a cheaper verify step or fewer steps is the only way")
    text = f"{cycle}: it would need {needed:.2f}, {needed - reached:.2f} more, of at most {most}"
    if steps:
        now, then = acceptance_needed(reached, steps), acceptance_needed(needed, steps)
        if now is not None and then is not None:
            text += f"; the draft's acceptance per token would have to rise from {now:.0%} to {then:.0%}"
    return text


def imposed(environment: dict) -> Optional[float]:
    """The accept length that a server's environment imposes (SGLang's simulated acceptance), None where it does not."""
    for name in ("SGLANG_SIMULATE_ACC_LEN", "SIMULATE_ACC_LEN"):
        try:
            value = float(environment.get(name) or 0.0)
        except ValueError:
            continue
        if value > 0:
            return value
    return None


def curve(points: Iterable[dict], baseline_step_ms: Optional[float]) -> dict:
    """What speculation would give at each accept length, from arms whose acceptance is imposed.

    ``points``: [{arm, steps, accept_length, step_ms}]. Such text is garbage and no verdict; the step times are real.
    Returns {curve: [{arm, steps, accept_length, step_ms, break_even_accept_length, speed_up, simulated: True}] by
    steps and accept length, advice}.
    """
    out = []
    for point in sorted(points, key=lambda p: (p["steps"] or 0, p["accept_length"], p["arm"])):
        needed = ratio(point["step_ms"], baseline_step_ms)
        if needed:
            out.append({**point, "break_even_accept_length": needed, "speed_up": point["accept_length"] / needed,
                        "simulated": True})
    texts = []
    for steps in sorted({p["steps"] for p in out if p["steps"]}):
        mine = [p for p in out if p["steps"] == steps]
        near = min(mine, key=lambda p: abs(p["speed_up"] - 1.0))
        figures = ", ".join(f"{p['accept_length']:.2f}: {p['speed_up']:.2f}x" for p in mine)
        texts.append(f"with an imposed accept length (simulated, not a verdict) {steps} step{'s' if steps > 1 else ''} "
                     f"would give {figures}; break-even at {near['break_even_accept_length']:.2f}")
    return {"curve": out, "advice": "; ".join(texts)}


def compare_steps(rows: Iterable[dict]) -> dict:
    """Which number of steps wins, by figures.

    ``rows``: [{arm, steps, accept_length, break_even_accept_length, max_accept_length, verdict, ratio}] of one host and
    workload. Returns {table, best, advice}: the table sorted by steps with `speed_up` and `marginal` = tokens and cost
    that each further step brings; ``best`` is the arm of the largest ratio among those that are `faster`, or None.
    """
    table = []
    for row in sorted((r for r in rows if r.get("steps") is not None), key=lambda r: (r["steps"], r["arm"])):
        needed, reached = row.get("break_even_accept_length"), row.get("accept_length")
        table.append({**row, "speed_up": reached / needed if reached and needed else None, "marginal": None})
    for before, after in zip(table, table[1:]):
        if after["steps"] > before["steps"] and None not in (after["speed_up"], before["speed_up"]):
            after["marginal"] = {"accept_length": after["accept_length"] - before["accept_length"],
                                 "break_even": after["break_even_accept_length"] - before["break_even_accept_length"]}
    known = [r for r in table if r.get("ratio") is not None]
    best = max((r for r in known if r["verdict"] == "faster"), key=lambda r: r["ratio"], default=None)
    return {"table": table, "best": best["arm"] if best else None, "advice": _steps_advice(known, best)}


def _steps_advice(rows: list[dict], best: Optional[dict]) -> str:
    if not rows:
        return ""
    figures = ", ".join(f"{r['steps']} step{'s' if r['steps'] > 1 else ''}: {r['ratio']:.2f}x" for r in rows)
    if best is None:
        gaps = [r for r in rows if r.get("break_even_accept_length") and r.get("accept_length")]
        if gaps and all(r["accept_length"] < r["break_even_accept_length"] for r in gaps):
            near = min(gaps, key=lambda r: r["break_even_accept_length"] / r["accept_length"])
            if all(r["break_even_accept_length"] >= (r.get("max_accept_length") or math.inf) for r in gaps):
                return f"{figures}: no draft can win here, whatever its accuracy"
            return (f"{figures}: every number of steps is under its break-even; no draft of this accuracy can win "
                    f"here; nearest is {near['arm']}, which would take an accept length of "
                    f"{near['break_even_accept_length']:.2f}")
        return f"{figures}: none is faster than the baseline"
    if len(rows) == 1:
        return figures
    larger = [r for r in rows if r["ratio"] > best["ratio"]]
    if larger:
        return (f"{figures}: {best['arm']} is the best that is decided; larger and not decided: "
                + ", ".join(r["arm"] for r in larger))
    if any(r["steps"] > best["steps"] for r in rows):
        return f"{figures}: fewer steps win here, {best['arm']} is the best measured"
    return f"{figures}: {best['arm']} is the best measured"
