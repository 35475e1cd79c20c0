"""Deciding between a candidate arm and the reference from boots bracketed by the reference.

The method and its sources stand in docs/method.md. In short, for one host and workload:

1. `screen`: a block whose two references differ by more than the tolerance is settled by a third reference boot: one
   of the two was an outlier, or the level moved and the block's candidates are void.
2. `look`: references are fitted by a level for each segment and one slope over time; a candidate's effect is the mean
   of its boots less that fit. Each arm has its own scale, from its own boots and (where it is of that arm) its history.
   The effect's degrees of freedom are Welch's and Satterthwaite's.
3. The direction is decided by an anytime-valid t mixture (an e-value), or by one t-test where the number of blocks is
   fixed and nobody looks before; `same` by two one-sided t-tests.
4. `settle`: over a family, e-BH (or BH over the p-values of the one look) holds the false discovery rate.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Optional, Sequence

from . import stats
from .comparable import Boot

# Effect priors of the mixture, as (weight, variance in units of a boot's variance).
MIXTURE = ((0.8, 10.0), (0.2, 1000.0))
# History counts for at most so many degrees of freedom per arm: it may be wrong by half or double.
HISTORY_DF = 4.0
# A run whose own scatter is this improbable under its history (upper tail) forgets the history.
GUARD_TAIL = 0.20
# Two one-sided tests at this level each.
SAME_LEVEL = 0.05
# The noise assumed for screening where nothing is known: sd and its degrees of freedom.
SCREEN_SD, LEAST_TOLERANCE = 0.02, 0.04
FLOOR_SD = 1e-5
OUTLIER_TAIL = 0.0005


@dataclass(frozen=True)
class Scale:
    """What history says of an arm's boot-to-boot sd (of the log): ``sd`` with ``df`` degrees of freedom."""

    sd: float
    df: float


@dataclass
class Screened:
    """The references by segment, the candidate boots that may be used, and what was noticed. Keys are positions."""

    segment: dict[int, int] = field(default_factory=dict)         # references
    candidate_segment: dict[int, int] = field(default_factory=dict)  # candidate boots between two references
    outliers: list[Boot] = field(default_factory=list)
    void: dict[int, str] = field(default_factory=dict)            # candidate boots, and why they are void
    kept_wide: list[tuple[int, float]] = field(default_factory=list)  # (block, log difference) that nobody could settle


@dataclass
class Look:
    """What the boots so far say about one candidate. Logs are natural; ``df`` None where there is no scale yet."""

    arm: str
    candidate_boots: list[Boot]
    reference_boots: list[Boot]
    theta: Optional[float] = None
    se: Optional[float] = None
    df: Optional[float] = None
    v: Optional[float] = None
    e: float = 0.0
    p: float = 1.0
    half_width: float = math.inf
    same_half_width: float = math.inf
    enough: bool = False
    dropped: list[tuple[Boot, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    uses_history: bool = False
    reference_sd: Optional[float] = None
    candidate_sd: Optional[float] = None


def tolerance(reference: Optional[Scale], given: Optional[float] = None) -> float:
    """By how much (log) a block's references may differ: as given, else max(4 %, 3 sd of a difference)."""
    if given is not None:
        return math.log1p(given)
    sd = reference.sd if reference else SCREEN_SD
    return max(LEAST_TOLERANCE, 3.0 * math.sqrt(2.0) * sd)


def screen(boots: Sequence[Boot], tau: float) -> Screened:
    """Segments, outliers and void boots, from the references alone: it cannot favour a direction.

    ``boots``: of one host and workload in the plan's order, a reference measured again right after the one it settles.
    """
    out = Screened()
    again_of = {b.remeasure_of: b for b in boots if b.remeasure_of is not None}
    segment = 0
    previous: Optional[Boot] = None
    between: list[Boot] = []
    for boot in boots:
        if boot.role != "baseline":
            between.append(boot)
            continue
        if boot.position in out.segment or boot in out.outliers:
            continue  # a second look at a reference, already settled with the first
        if previous is None:
            out.segment[boot.position] = segment
            previous, between = boot, []
            continue
        gap, again, why = boot.y - previous.y, again_of.get(boot.position), ""
        if abs(gap) <= tau or again is None:
            if abs(gap) > tau:
                out.kept_wide.append((boot.block, gap))
            out.segment[boot.position] = segment
        else:
            to_left, to_right = abs(again.y - previous.y), abs(again.y - boot.y)
            if to_left <= tau and to_left < to_right:
                out.outliers.append(boot)
            else:
                segment += 1
                if to_right <= tau:
                    out.segment[boot.position] = segment
                    why = f"the reference moved by {math.expm1(gap):+.1%} within this block"
                else:
                    out.outliers.append(boot)
                    why = "three reference boots around this block disagree"
        if again is not None:
            out.segment[again.position] = segment
        for candidate in between:
            if why:
                out.void[candidate.position] = why
            else:
                out.candidate_segment[candidate.position] = segment
        previous, between = again or boot, []
    return out


def look(boots: Sequence[Boot], arm: str, scales: dict[str, Scale], *, alpha: float, margin: float, sequential: bool,
         given_tolerance: Optional[float] = None, reference: str = "") -> Look:
    """What the boots of one host and workload say about candidate ``arm``.

    ``scales``: history by arm name, where it is usable. ``alpha``: 1 - confidence. ``sequential``: False only where
    the number of blocks is fixed and this is the planned end.
    """
    reference = reference or next((b.arm for b in boots if b.role == "baseline"), "")
    screened = screen(boots, tolerance(scales.get(reference), given_tolerance))
    by_position = {b.position: b for b in boots}
    refs = [by_position[p] for p in screened.segment if p in by_position]
    own = [b for b in boots if b.arm == arm and b.role == "candidate"]
    used = [b for b in own if b.position in screened.candidate_segment]
    out = Look(arm, used, refs)
    for boot in own:
        if boot.position in screened.void:
            out.dropped.append((boot, screened.void[boot.position]))
        elif boot.position not in screened.candidate_segment:
            out.dropped.append((boot, "no reference boot both before and after it"))
    out.dropped.extend((b, "outlier: the reference measured again agreed with the one before") for b in screened.outliers)
    for block, gap in screened.kept_wide:
        out.notes.append(f"the references around block {block} differ by {abs(math.expm1(gap)):.1%}; counted as noise")
    if not used or not refs:
        return out
    _estimate(out, refs, used, screened, scales.get(reference), scales.get(arm))
    if out.df is None or out.se is None or out.theta is None or out.v is None:
        return out
    t = abs(out.theta) / out.se
    out.p = stats.t_two_sided(t, out.df)
    if sequential:
        out.e = e_value(t, out.df, out.v)
        out.half_width = out.se * critical(out.df, out.v, alpha)
    else:
        out.half_width = out.se * stats.t_quantile(alpha, out.df)
    out.same_half_width = out.se * stats.t_quantile(2 * SAME_LEVEL, out.df)
    out.enough = len(out.candidate_boots) >= (2 if out.uses_history else 3)
    return out


def _estimate(out: Look, refs: list[Boot], used: list[Boot], screened: Screened, ref_scale: Optional[Scale],
              own_scale: Optional[Scale]) -> None:
    fit = fit_references(refs, screened.segment)
    used = _drop_outliers(out, fit, used, screened, own_scale)
    out.candidate_boots = used
    n = len(used)
    d = [b.y - fit.predict(screened.candidate_segment[b.position], b.at_h) for b in used]
    out.theta = stats.mean(d)
    rss_own = math.fsum((x - out.theta) ** 2 for x in d)
    ref_weight = fit.weight([(screened.candidate_segment[b.position], b.at_h) for b in used])
    ref_var, ref_df, ref_history = pooled(fit.rss, fit.df, ref_scale)
    own_var, own_df, own_history = pooled(rss_own, n - 1, own_scale)
    out.v = 1.0 / n + ref_weight
    out.uses_history = ref_history and own_history
    for label, scale, kept in (("reference", ref_scale, ref_history), (out.arm, own_scale, own_history)):
        if scale and not kept:
            out.notes.append(f"history of {label} not used: this run scatters more than it ({scale.sd:.2%})")
    if ref_df <= 0 or own_df <= 0:
        return
    a, b = own_var / n, ref_var * ref_weight
    out.se = math.sqrt(a + b)
    out.df = (a + b) ** 2 / (a * a / own_df + b * b / ref_df)
    out.reference_sd, out.candidate_sd = math.sqrt(ref_var), math.sqrt(own_var)


@dataclass
class Fit:
    """References fitted by a level for each segment and one slope: ``rss`` over ``df`` degrees of freedom."""

    means: dict[int, tuple[int, float, float]]  # segment -> (boots, mean time, mean y)
    slope: float
    spread: float   # sum of squared times within segments
    rss: float
    df: int

    def predict(self, segment: int, at_h: float) -> float:
        _, t, y = self.means[segment]
        return y + self.slope * (at_h - t)

    def weight(self, places: Sequence[tuple[int, float]]) -> float:
        """Variance of the mean prediction at ``places`` (segment, time), in units of a reference boot's."""
        n = len(places)
        total, lever = 0.0, 0.0
        for segment, (m, t, _) in self.means.items():
            times_here = [at for s, at in places if s == segment]
            share = len(times_here) / n
            total += share * share / m
            lever += math.fsum(at - t for at in times_here) / n
        return total + (lever * lever / self.spread if self.spread > 0 else 0.0)


def fit_references(refs: Sequence[Boot], segment: dict[int, int]) -> Fit:
    """Least squares y = level of the segment + slope x time; the slope is 0 while one boot a segment is all there is."""
    groups: dict[int, list[Boot]] = {}
    for boot in refs:
        groups.setdefault(segment[boot.position], []).append(boot)
    means = {s: (len(g), stats.mean([b.at_h for b in g]), stats.mean([b.y for b in g])) for s, g in groups.items()}
    spread = math.fsum((b.at_h - means[segment[b.position]][1]) ** 2 for b in refs)
    slope = 0.0
    if spread > 0:
        slope = math.fsum((b.at_h - means[segment[b.position]][1]) * b.y for b in refs) / spread
    fit = Fit(means, slope, spread, 0.0, 0)
    fit.rss = math.fsum((b.y - fit.predict(segment[b.position], b.at_h)) ** 2 for b in refs)
    fit.df = max(0, len(refs) - len(means) - (1 if spread > 0 else 0))
    return fit


def pooled(rss: float, df: int, history: Optional[Scale]) -> tuple[float, float, bool]:
    """(variance, its degrees of freedom, whether history is in it): history counts for `HISTORY_DF` at most, and not
    at all once the run's own scatter is improbable under it."""
    if history is None or (df > 0 and rss / df > history.sd ** 2 * _guard(df, history.df)):
        return max(rss / df, FLOOR_SD ** 2) if df > 0 else 0.0, float(df), False
    nu = min(history.df, HISTORY_DF)
    return max((nu * history.sd ** 2 + rss) / (nu + df), FLOOR_SD ** 2), nu + df, True


def _guard(df: int, history_df: float) -> float:
    return stats.f_quantile(GUARD_TAIL, df, history_df)


def _drop_outliers(out: Look, fit: Fit, used: list[Boot], screened: Screened, scale: Optional[Scale]) -> list[Boot]:
    """Leave out at most one candidate boot in four whose externally studentised residual is past chance."""
    allowed = len(used) // 4
    while allowed:
        d = {b.position: b.y - fit.predict(screened.candidate_segment[b.position], b.at_h) for b in used}
        worst, worst_p = None, OUTLIER_TAIL
        for boot in used:
            rest = [v for p, v in d.items() if p != boot.position]
            centre = stats.mean(rest)
            var, df, _ = pooled(math.fsum((v - centre) ** 2 for v in rest), len(rest) - 1, scale)
            t = (d[boot.position] - centre) / math.sqrt(var * (1 + 1 / len(rest)))
            p = stats.t_two_sided(t, df)
            if p < worst_p:
                worst, worst_p = boot, p
        if worst is None:
            break
        out.dropped.append((worst, f"outlier among the boots of {out.arm} (p = {worst_p:.1g})"))
        used = [b for b in used if b is not worst]
        allowed -= 1
    return used


def e_value(t: float, df: float, v: float) -> float:
    """The t mixture's evidence against 'no effect': expectation at most 1 under it, at every look.

    Each part is the Bayes factor of t under an effect ~ N(0, g sd^2) (Goenen et al. 2005; Lindon et al. 2022):
    G^(-1/2) [(1 + t^2/df) / (1 + t^2/(df G))]^((df+1)/2) with G = 1 + g/v, v = variance of the estimate / sd^2.
    """
    total = 0.0
    for weight, g in MIXTURE:
        big = 1.0 + g / v
        ratio = math.log1p(t * t / df) - math.log1p(t * t / (df * big))
        total += weight * math.exp(min(600.0, -0.5 * math.log(big) + 0.5 * (df + 1.0) * ratio))
    return total


def critical(df: float, v: float, alpha: float) -> float:
    """The t at which `e_value` reaches 1/alpha: the half-width of the confidence sequence in standard errors."""
    low, high = 0.0, 1.0
    while e_value(high, df, v) < 1.0 / alpha:
        low, high = high, high * 2.0
        if high > 1e9:
            return math.inf
    for _ in range(80):
        middle = 0.5 * (low + high)
        if e_value(middle, df, v) < 1.0 / alpha:
            low = middle
        else:
            high = middle
    return high


def settle(looks: Sequence[Look], alpha: float, sequential: bool, family: int) -> list[bool]:
    """For each look whether its direction stands, the false discovery rate over ``family`` comparisons at most alpha.

    Sequential: e-BH (Wang & Ramdas 2022), which needs nothing of the dependence. One look: BH over the p-values.
    """
    out = [False] * len(looks)
    able = [i for i, one in enumerate(looks) if one.enough and one.theta is not None]
    order = sorted(able, key=lambda i: (-looks[i].e, i) if sequential else (looks[i].p, i))
    keep = 0
    for k, i in enumerate(order, start=1):
        if looks[i].e >= family / (k * alpha) if sequential else looks[i].p <= k * alpha / family:
            keep = k
    for i in order[:keep]:
        out[i] = True
    return out


def verdict(one: Look, stands: bool, margin: float) -> str:
    """`faster`, `slower`, `same` or `inconclusive`."""
    if not one.enough or one.theta is None:
        return "inconclusive"
    low, high = math.log1p(-margin), math.log1p(margin)
    if stands and one.theta > high and one.theta - one.half_width > 0:
        return "faster"
    if stands and one.theta < low and one.theta + one.half_width < 0:
        return "slower"
    if one.theta - one.same_half_width >= low and one.theta + one.same_half_width <= high:
        return "same"
    return "inconclusive"


def more_boots(one: Look, margin: float, alpha: float, sequential: bool, family: int = 1, most: int = 100) -> Optional[int]:
    """How many more boots of the candidate an inconclusive comparison would take if the estimate and the noise stay.

    None where more than ``most`` would be needed, or where nothing is known of the noise.
    """
    n = len(one.candidate_boots)
    if one.theta is None or one.df is None or one.candidate_sd is None or one.reference_sd is None:
        return max(1, 3 - n)
    low, high = math.log1p(-margin), math.log1p(margin)
    least = 2 if one.uses_history else 3
    for extra in range(max(1, least - n), most + 1):
        total = n + extra
        a, b = one.candidate_sd ** 2 / total, one.reference_sd ** 2 / (total + 1)
        se = math.sqrt(a + b)
        own_df, ref_df = one.df + extra, one.df + extra
        df = (a + b) ** 2 / (a * a / own_df + b * b / ref_df)
        v = 1.0 / total + 1.0 / (total + 1)
        c = critical(df, v, alpha / family) if sequential else stats.t_quantile(alpha / family, df)
        if (one.theta > high or one.theta < low) and abs(one.theta) > c * se:
            return extra
        if abs(one.theta) + se * stats.t_quantile(2 * SAME_LEVEL, df) <= min(high, -low):
            return extra
    return None
