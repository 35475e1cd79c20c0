"""The decision rule over thousands of labs at once, in NumPy: what `plan.next_boot` and `decide` do boot by boot.

One candidate, one workload, one boot a slot. `tests/unit/analysis/test_fastlab.py` shows that each lab's verdict,
boots and stop equal those of the real code on the same figures.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from plumbline.analysis import decide, weigh
from scipy import special

Array = NDArray[Any]
SLOTS = 40


@dataclass(frozen=True)
class Rule:
    """How long a run may be and what it is asked; the constants of the rule itself are `decide`'s and `weigh`'s."""

    alpha: float = 0.01
    margin: float = 0.02
    least: int = 2
    most: int = 10

    @property
    def sequential(self) -> bool:
        """Whether one looks after each block; a fixed number of blocks is judged once, at its end."""
        return self.least != self.most


@dataclass(frozen=True)
class Cell:
    """One kind of lab. Shares and rates relative; times in hours."""

    ratio: float = 1.0
    boot_sd: float = 0.01
    request_sd: float = 0.02 / 4
    noise: float = 1.0               # candidates' boot sd in units of the baselines'
    drift: float = 0.0               # an hour, random sign
    step: float = 0.0                # size of each step; hazard 1/40 a boot
    ramp: float = 0.0                # speed lost at first, gone within an hour
    heavy: float = 0.0               # share of boots at -10 %
    history: str = "none"            # none, both, baseline
    wrong: float = 1.0               # history's sd is that of the truth times this
    history_boots: int = 9
    boot_h: float = 7.5 / 60


@dataclass
class Draw:
    """The figures of n labs: levels by slot, and the noise of a boot there if it is a reference or a candidate."""

    level: Array
    reference: Array
    candidate: Array
    s_ref: Optional[Array] = None    # history sd and its degrees of freedom, by lab
    s_own: Optional[Array] = None
    history_df: float = 8.0

    def of(self, rows: Array) -> Draw:
        """The same of some labs."""
        return Draw(self.level[rows], self.reference[rows], self.candidate[rows],
                    None if self.s_ref is None else self.s_ref[rows], None if self.s_own is None else self.s_own[rows],
                    self.history_df)


def draw(cell: Cell, n: int, rng: np.random.Generator) -> Draw:
    """Make up ``n`` labs."""
    slots = np.arange(SLOTS)
    sign = rng.choice([-1.0, 1.0], size=(n, 1))
    level = np.log1p(cell.drift) * sign * slots * cell.boot_h
    if cell.step:
        hits = rng.random((n, SLOTS)) < 1 / 40
        hits[:, 0] = False
        level = level + np.cumsum(hits * math.log1p(-cell.step), axis=1)
    level = level - cell.ramp * np.exp(-slots * cell.boot_h / 0.25)

    def boots(sd: float, size: tuple[int, int]) -> Array:
        out = rng.normal(0, math.hypot(sd, cell.request_sd), size)
        return out + np.where(rng.random(size) < cell.heavy, math.log1p(-0.10), 0.0)

    out = Draw(np.broadcast_to(level, (n, SLOTS)), boots(cell.boot_sd, (n, SLOTS)),
               boots(cell.boot_sd * cell.noise, (n, SLOTS)) + math.log(cell.ratio))
    if cell.history != "none":
        out.history_df = cell.history_boots - 1.0
        out.s_ref = _history(boots(cell.boot_sd, (n, cell.history_boots))) * cell.wrong
        if cell.history == "both":
            out.s_own = _history(boots(cell.boot_sd * cell.noise, (n, cell.history_boots))) * cell.wrong
    return out


def _history(ys: Array) -> Array:
    """`history.scale_of` for each row (the boots that it drops do not change its degrees of freedom here)."""
    centre = np.median(ys, axis=1, keepdims=True)
    mad = np.maximum(1.4826 * np.median(np.abs(ys - centre), axis=1, keepdims=True), 0.005)
    kept = np.abs(ys - centre) <= 5 * mad
    count = kept.sum(axis=1)
    mean = (ys * kept).sum(axis=1) / count
    squares = (kept * (ys - mean[:, None]) ** 2).sum(axis=1)
    return np.maximum(np.sqrt(squares / np.maximum(count - 1, 1)), 0.005)


@dataclass
class Result:
    """By lab: +1 faster, -1 slower, 0 same, 9 inconclusive; candidate boots made; all boots made."""

    verdict: Array
    candidate_boots: Array
    boots: Array
    theta: Array
    extra: dict[str, Array] = field(default_factory=dict)


def run(d: Draw, rule: Rule = Rule()) -> Result:
    """Block after block until each lab has its verdict, as the planner would."""
    n = d.level.shape[0]
    out = Result(np.full(n, 9), np.zeros(n, int), np.zeros(n, int), np.full(n, np.nan))
    labs = np.arange(n)  # those that go on
    tau = np.full(n, decide.tolerance(None))
    if d.s_ref is not None:
        tau = np.maximum(decide.LEAST_TOLERANCE, decide.HISTORY_SDS * math.sqrt(2) * d.s_ref)
    slot = np.zeros(n, dtype=int)
    refs = _Boots(n, 2 * rule.most + 2)
    own = _Boots(n, rule.most)
    segment, left_out = np.zeros(n, dtype=int), np.zeros(n, int)
    previous = d.level[:, 0] + d.reference[:, 0]
    refs.add(np.ones(n, bool), previous, slot, segment)
    for block in range(1, rule.most + 1):
        rows = np.arange(len(labs))
        slot = slot + 1
        candidate, candidate_at = d.level[rows, slot] + d.candidate[rows, slot], slot
        slot = slot + 1
        right, right_at = d.level[rows, slot] + d.reference[rows, slot], slot
        wide = (np.abs(right - previous) > tau) & rule.sequential
        slot = slot + wide
        again, again_at = d.level[rows, slot] + d.reference[rows, slot], slot
        left_gap, right_gap = np.abs(again - previous), np.abs(again - right)
        outlier = wide & (left_gap <= tau) & (left_gap < right_gap)
        moved = wide & ~outlier & (right_gap <= tau)
        lost = wide & ~outlier & ~moved
        segment = segment + (moved | lost)
        own.add(~(moved | lost), candidate, candidate_at, segment)
        refs.add(~(outlier | lost), right, right_at, segment)
        refs.add(wide, again, again_at, segment)
        left_out = left_out + outlier + 2 * lost
        previous = np.where(wide, again, right)
        out.candidate_boots[labs], out.boots[labs] = block, slot + 1
        if block >= rule.least:
            verdict, theta, hopeless = look(refs, own, d, rule, left_out, tau)
            out.verdict[labs], out.theta[labs] = verdict, theta
            on = (verdict == 9) & ~hopeless
            if not on.any():
                break
            labs, d, tau, slot, segment = labs[on], d.of(on), tau[on], slot[on], segment[on]
            left_out, previous, refs, own = left_out[on], previous[on], refs.of(on), own.of(on)
    return out


class _Boots:
    """Boots of n labs in columns: values, times in slots, segments; ``used`` tells which count."""

    def __init__(self, n: int, size: int) -> None:
        self.y, self.t = np.zeros((n, size)), np.zeros((n, size))
        self.segment, self.used = np.zeros((n, size), int), np.zeros((n, size), bool)
        self.count = 0

    def add(self, used: Array, y: Array, t: Array, segment: Array) -> None:
        i = self.count
        self.y[:, i], self.t[:, i], self.segment[:, i], self.used[:, i] = y, t, segment, used
        self.count += 1

    def of(self, rows: Array) -> _Boots:
        """The same of some labs."""
        out = _Boots(0, 0)
        out.y, out.t, out.segment, out.used = self.y[rows], self.t[rows], self.segment[rows], self.used[rows]
        out.count = self.count
        return out

    def view(self) -> tuple[Array, Array, Array, Array]:
        i = self.count
        return self.y[:, :i], self.t[:, :i], self.segment[:, :i], self.used[:, :i]


def look(refs: _Boots, own: _Boots, d: Draw, rule: Rule, left_out: Array,
         tau: Array) -> tuple[Array, Array, Array]:
    """`decide.look`, `decide.verdict` and `decide.hopeless` for each lab: (verdict, theta, hopeless)."""
    y, t, seg, used = refs.view()
    yc, tc, segc, usedc = own.view()
    top = int(max(seg.max(), segc.max())) + 1
    n = y.shape[0]
    counts, mean_t, mean_y = np.zeros((n, top)), np.zeros((n, top)), np.zeros((n, top))
    for s in range(top):
        w = used & (seg == s)
        c = np.maximum(w.sum(1), 1)
        counts[:, s], mean_t[:, s], mean_y[:, s] = w.sum(1), (w * t).sum(1) / c, (w * y).sum(1) / c
    rows = np.arange(n)[:, None]
    dt = np.where(used, t - mean_t[rows, seg], 0.0)
    spread = (dt ** 2).sum(1)
    slope = np.where(spread > 0, (dt * y).sum(1) / np.where(spread > 0, spread, 1), 0.0)
    residual = np.where(used, y - mean_y[rows, seg] - slope[:, None] * dt, 0.0)
    rss = (residual ** 2).sum(1)
    df = np.maximum(0, used.sum(1) - (counts > 0).sum(1) - (spread > 0))
    rss, df = rss + decide.OUTLIER_WEIGHT * left_out * tau ** 2, df + left_out
    x = yc - mean_y[rows, segc] - slope[:, None] * (tc - mean_t[rows, segc])
    usedc = _drop(x, usedc, d)
    m = usedc.sum(1)
    safe = np.maximum(m, 1)
    theta = (x * usedc).sum(1) / safe
    rss_own = (usedc * (x - theta[:, None]) ** 2).sum(1)
    weight = np.zeros(n)
    for s in range(top):
        share = (usedc & (segc == s)).sum(1) / safe
        weight += np.where(counts[:, s] > 0, share ** 2 / np.maximum(counts[:, s], 1), 0.0)
    lever = (usedc * (tc - mean_t[rows, segc])).sum(1) / safe
    weight += np.where(spread > 0, lever ** 2 / np.where(spread > 0, spread, 1), 0.0)
    both = d.s_ref is not None and d.s_own is not None
    known = (m > 0) & (both | (df > 0)) & (both | (m > 1))
    enough = known & (m >= (2 if both else 3))
    seen = evidence(theta, safe, weight, rss, df, rss_own, np.maximum(m - 1, 0), d, rule)
    verdict = _verdict(seen, theta, m, enough, d, rule)
    left = decide.PATIENCE * (rule.most - own.count)
    hopeless = np.zeros(n, bool)
    if rule.sequential and left > 0:
        then = safe + left
        later = evidence(theta, then, 1.0 / (then + 1), seen.ref_sd ** 2 * np.maximum(then - 1, 1),
                         np.maximum(then - 1, 1), seen.own_sd ** 2 * (then - 1), then - 1, d, rule)
        inside = (theta > math.log1p(-rule.margin)) & (theta < math.log1p(rule.margin))
        decided = np.where(inside, np.maximum(later.up, later.down) <= decide.SAME_LEVEL,
                           later.e >= _wanted(then, d) / rule.alpha)
        hopeless = known & (m >= decide.PATIENT_BOOTS) & (verdict == 9) & ~decided
    return verdict, theta, hopeless


def _verdict(seen: Seen, theta: Array, m: Array, enough: Array, d: Draw, rule: Rule) -> Array:
    stands = enough & ((seen.e >= _wanted(m, d) / rule.alpha) if rule.sequential else (seen.p <= rule.alpha))
    high, low = math.log1p(rule.margin), math.log1p(-rule.margin)
    verdict = np.full(len(theta), 9)
    same = np.full(len(m), decide.SAME_LEVEL)
    for boots, level in decide.EARLY_SAME_LEVEL.items():
        same[m == boots] = level
    verdict[enough & (np.maximum(seen.up, seen.down) <= same)] = 0
    verdict[stands & (theta > high)] = 1
    verdict[stands & (theta < low)] = -1
    return verdict


def _wanted(boots: Array, d: Draw) -> Array:
    """`decide._wanted` for each lab."""
    place = np.clip(boots, 2, 5) - 2
    none, noisy, quiet = (np.array(decide.WANTED[kind])[place] for kind in ("none", "noisy", "quiet"))
    if d.s_ref is None or d.s_own is None:
        return none
    return np.where(d.s_own <= decide.EARLY_RATIO * d.s_ref, quiet, noisy)


@dataclass
class Seen:
    """`weigh.Evidence` of each lab: e-value, p-value, P(theta > margin), P(theta < -margin), the two sds."""

    e: Array
    p: Array
    up: Array
    down: Array
    ref_sd: Array
    own_sd: Array


def evidence(theta: Array, n: Array, w: Array, rss: Array, df: Array, rss_own: Array, own_df: Array, d: Draw,
             rule: Rule) -> Seen:
    """`weigh.Evidence` for each lab."""
    # One column for each change since history and each ratio of the scales.
    both = d.s_ref is not None and d.s_own is not None
    changes = weigh.CHANGES if both else ((1.0, 1.0),)
    columns = [(r, math.log(p * q), k) for r, p in changes for k, q in weigh.RATIOS]
    change, prior, k = (np.array(column)[None, :] for column in zip(*columns))
    nu_ref = nu_own = min(d.history_df, weigh.HISTORY_DF) if both else 0.0
    s_ref, s_own = (np.zeros(len(theta)) if s is None else s for s in (d.s_ref, d.s_own))
    floor = weigh.FLOOR_SD ** 2
    big_n = np.maximum((df + own_df)[:, None] + nu_ref + nu_own, 1e-9)
    ss = np.maximum(rss, floor)[:, None] + nu_ref * (change * s_ref[:, None]) ** 2 + (
        np.maximum(rss_own, floor)[:, None] + nu_own * (change * s_own[:, None]) ** 2) / k ** 2
    v = k ** 2 / n[:, None] + w[:, None]
    square = theta[:, None] ** 2
    common = prior - (own_df[:, None] + nu_own) * np.log(k) + (nu_ref + nu_own) * np.log(change)
    zero = common - 0.5 * np.log(v) - 0.5 * (big_n + 1) * np.log(ss + square / v)
    base = zero.max(1, keepdims=True)
    one = np.zeros(len(theta))
    for weight, g in weigh.MIXTURE:
        wide = v + g * k ** 2
        part = common - 0.5 * np.log(wide) - 0.5 * (big_n + 1) * np.log(ss + square / wide)
        one += weight * np.exp(np.minimum(part - base, 600)).sum(1)
    post = common - 0.5 * big_n * np.log(ss)
    post = np.exp(post - post.max(1, keepdims=True))
    likeliest = np.array([r for r, _ in changes])[post.reshape(len(theta), len(changes), -1).sum(2).argmax(1)]
    post /= post.sum(1, keepdims=True)
    se = np.sqrt(ss / big_n * v)
    high, low = math.log1p(rule.margin), math.log1p(-rule.margin)
    at = theta[:, None]
    up = (post * special.stdtr(big_n, (at - high) / se)).sum(1)
    down = (post * special.stdtr(big_n, (low - at) / se)).sum(1)
    p = np.minimum(1.0, weigh.ONE_LOOK_FACTOR * 2 * (post * special.stdtr(big_n, -np.abs(at) / se)).sum(1))

    def sd(squares: Array, own: Array, nu_arm: float, s: Array) -> Array:
        return np.sqrt((np.maximum(squares, floor) + nu_arm * (likeliest * s) ** 2) / np.maximum(own + nu_arm, 1e-9))

    return Seen(one / np.exp(zero - base).sum(1), p, up, down, sd(rss, df, nu_ref, s_ref),
                sd(rss_own, own_df, nu_own, s_own))


def _drop(x: Array, used: Array, d: Draw) -> Array:
    """`decide._drop_outliers` for each lab."""
    used = used.copy()
    allowed = used.sum(1) // 4
    rows = np.arange(len(allowed))
    while (allowed > 0).any():
        m = used.sum(1)
        nu = decide.OUTLIER_HISTORY_DF if d.s_own is not None else 0.0
        rest = np.maximum(m - 1, 1)[:, None]
        centre = ((x * used).sum(1)[:, None] - x) / rest
        rss = np.maximum((x * x * used).sum(1)[:, None] - x * x - rest * centre ** 2, 0.0)
        df = np.maximum(m - 2 + nu, 1e-9)
        if d.s_own is not None:
            rss = rss + nu * d.s_own[:, None] ** 2
        t = (x - centre) / np.sqrt(np.maximum(rss / df[:, None], weigh.FLOOR_SD ** 2) * (1 + 1 / rest))
        ok = used & (allowed > 0)[:, None]
        p = np.where(ok, 2 * special.stdtr(df[:, None], -np.abs(t)), 1.0)
        worst = p.argmin(1)
        hit = p[rows, worst] < decide.OUTLIER_TAIL
        if not hit.any():
            break
        used[rows[hit], worst[hit]] = False
        allowed = np.where(hit, allowed - 1, 0)
    return used
