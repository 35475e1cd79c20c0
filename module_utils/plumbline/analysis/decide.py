"""Deciding between a candidate arm and the reference from boots bracketed by the reference.

The method and its sources stand in docs/method.md. In short, for one host and workload:

1. `screen`: a block whose two references differ by more than the tolerance is settled by a third reference boot: one
   of the two was an outlier, or the level moved and the block's candidates are void.
2. `look`: references are fitted by a level for each segment and one slope over time; a candidate's effect is the mean
   of its boots less that fit. Each arm has its own scale, from its own boots and (where it is of that arm) its history.
3. `weigh.Evidence`: the direction is decided by an anytime-valid t mixture (an e-value), or by one test where the
   number of blocks is fixed and nobody looks before; `same` by two one-sided tests.
4. `settle`: over a family, e-BH (or BH over the p-values of the one look) holds the false discovery rate.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Optional, Sequence

from . import stats
from .comparable import Boot
from .weigh import FLOOR_SD, Evidence, Scale

# The level of each of the two one-sided tests of `same`, and at early looks, by candidate boots.
SAME_LEVEL, EARLY_SAME_LEVEL = 0.02, {2: 0.005, 3: 0.005, 4: 0.0075, 5: 0.015}
# Evidence wanted, in units of 1/alpha, at 2, 3, 4 candidate boots and at more. Without history of both arms, or if by
# their history the candidate is EARLY_RATIO times as noisy as the reference, few boots make scales guesses. History is
# for the first look: what that could not decide is more often a history that is wrong.
EARLY_RATIO = 1.6
WANTED = {"none": (5.0, 5.0, 1.0, 1.0), "noisy": (5.0, 5.0, 3.0, 4.0), "quiet": (1.0, 8.0, 2.0, 5.0)}
# The noise assumed for screening where nothing is known, the least tolerance, and its width in sds of a difference.
SCREEN_SD, SCREEN_SDS, HISTORY_SDS, LEAST_TOLERANCE = 0.02, 3.0, 4.5, 0.04
# A reference left out as an outlier leaves this many squared tolerances behind in the reference's scale: leaving boots
# out must not make a noisy host look quiet.
OUTLIER_WEIGHT = 1.0
# An inconclusive comparison of so many boots or more is hopeless if PATIENCE times the boots that are left would not
# decide it, should estimate and scatter stay.
PATIENT_BOOTS, PATIENCE = 4, 4
# A candidate boot is an outlier beyond this tail; history counts for little there: were it wrong, good boots would go.
OUTLIER_TAIL, OUTLIER_HISTORY_DF = 0.0005, 1.0


@dataclass
class Screened:
    """The references by segment, the candidate boots that may be used, and what was noticed. Keys are positions."""

    segment: dict[int, int] = field(default_factory=dict)         # references
    candidate_segment: dict[int, int] = field(default_factory=dict)  # candidate boots between two references
    outliers: list[Boot] = field(default_factory=list)
    void: dict[int, str] = field(default_factory=dict)            # candidate boots, and why they are void
    left_out: int = 0                                             # degrees of freedom of what was left out
    kept_wide: list[tuple[int, float]] = field(default_factory=list)  # (block, log difference) that nobody could settle


@dataclass
class Look:
    """What the boots so far say about one candidate. Logs are natural; ``evidence`` is None without any scale."""

    arm: str
    candidate_boots: list[Boot]
    reference_boots: list[Boot]
    sequential: bool
    theta: Optional[float] = None
    evidence: Optional[Evidence] = None
    e: float = 0.0
    p: float = 1.0
    enough: bool = False
    discount: float = 1.0
    uses_history: bool = False
    dropped: list[tuple[Boot, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def half_width(self, alpha: float) -> float:
        """Half the interval's width (log) at confidence 1 - alpha; infinite where nothing is known of the noise."""
        if self.evidence is None:
            return math.inf
        return self.evidence.half_width(alpha * self.discount if self.sequential else alpha, self.sequential)


def tolerance(reference: Optional[Scale], given: Optional[float] = None) -> float:
    """By how much (log) a block's references may differ: as given, else some sds of a difference, at least 4 %."""
    if given is not None:
        return math.log1p(given)
    width = HISTORY_SDS * reference.sd if reference else SCREEN_SDS * SCREEN_SD
    return max(LEAST_TOLERANCE, math.sqrt(2.0) * width)


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
                out.left_out += 1
            else:
                segment += 1
                if to_right <= tau:
                    out.segment[boot.position] = segment
                    why = f"the reference moved by {math.expm1(gap):+.1%} within this block"
                else:
                    out.outliers.append(boot)
                    out.left_out += 2
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


@dataclass
class References:
    """What all candidates of a host and workload share: the references, screened and fitted."""

    scale: Optional[Scale]
    tau: float
    screened: Screened
    boots: list[Boot]
    fit: Optional[Fit]  # None without references


def references(boots: Sequence[Boot], scales: dict[str, Scale], given_tolerance: Optional[float] = None,
               reference: str = "") -> References:
    """Screen and fit the references among ``boots``; ``scales``: history by arm name, where it is usable."""
    scale = scales.get(reference or next((b.arm for b in boots if b.role == "baseline"), ""))
    tau = tolerance(scale, given_tolerance)
    screened = screen(boots, tau)
    by_position = {b.position: b for b in boots}
    refs = [by_position[p] for p in screened.segment if p in by_position]
    return References(scale, tau, screened, refs, fit_references(refs, screened.segment) if refs else None)


def look(boots: Sequence[Boot], arm: str, scales: dict[str, Scale], *, sequential: bool,
         shared: Optional[References] = None) -> Look:
    """What the boots of one host and workload say about candidate ``arm``.

    ``scales``: history by arm name, where it is usable. ``sequential``: False only where the number of blocks is fixed.
    ``shared``: what `references` says of the same boots.
    """
    shared = shared or references(boots, scales)
    screened, refs = shared.screened, shared.boots
    own = [b for b in boots if b.arm == arm and b.role == "candidate"]
    used = [b for b in own if b.position in screened.candidate_segment]
    out = Look(arm, used, refs, sequential)
    for boot in own:
        if boot.position in screened.void:
            out.dropped.append((boot, screened.void[boot.position]))
        elif boot.position not in screened.candidate_segment:
            out.dropped.append((boot, "no reference boot both before and after it"))
    out.dropped.extend((b, "outlier: the reference measured again disagreed with it") for b in screened.outliers)
    for block, gap in screened.kept_wide:
        out.notes.append(f"the references around block {block} differ by {abs(math.expm1(gap)):.1%}; counted as noise")
    if used and shared.fit:
        _estimate(out, shared, shared.fit, scales.get(arm))
    return out


def _estimate(out: Look, shared: References, fit: Fit, own_scale: Optional[Scale]) -> None:
    screened, tau, ref_scale = shared.screened, shared.tau, shared.scale
    if ref_scale is None or own_scale is None:
        # History of one arm says nothing of their ratio: with the reference's alone a noisy candidate looks quiet.
        ref_scale = own_scale = None
    used = out.candidate_boots = _drop_outliers(out, fit, out.candidate_boots, screened, own_scale)
    n = len(used)
    places = [(screened.candidate_segment[b.position], b.at_h) for b in used]
    d = [b.y - fit.predict(*place) for b, place in zip(used, places)]
    out.theta = stats.mean(d)
    evidence = Evidence(
        theta=out.theta, boots=n, weight=fit.weight(places),
        ref_ss=fit.rss + OUTLIER_WEIGHT * screened.left_out * tau * tau, ref_df=fit.df + screened.left_out,
        own_ss=math.fsum((x - out.theta) ** 2 for x in d), own_df=n - 1, ref_scale=ref_scale, own_scale=own_scale)
    if not evidence.known:
        return
    out.evidence = evidence
    out.uses_history = ref_scale is not None and own_scale is not None
    out.enough = n >= (2 if out.uses_history else 3)
    out.discount = 1.0 / _wanted(n, ref_scale, own_scale)
    if out.sequential:
        out.e = evidence.e_value() * out.discount
    else:
        out.p = evidence.p_value()


def _wanted(boots: int, ref_scale: Optional[Scale], own_scale: Optional[Scale]) -> float:
    """The evidence that a look at so many candidate boots wants, in units of 1/alpha."""
    kind = "none"
    if ref_scale and own_scale:
        kind = "quiet" if own_scale.sd <= EARLY_RATIO * ref_scale.sd else "noisy"
    return WANTED[kind][min(max(boots, 2), 5) - 2]


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
    """Least squares y = level of the segment + slope x time; the slope is 0 while there is one boot a segment."""
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


def _drop_outliers(out: Look, fit: Fit, used: list[Boot], screened: Screened, scale: Optional[Scale]) -> list[Boot]:
    """Leave out at most one candidate boot in four whose externally studentised residual is past chance."""
    allowed = len(used) // 4
    while allowed:
        d = {b.position: b.y - fit.predict(screened.candidate_segment[b.position], b.at_h) for b in used}
        worst, worst_p = None, OUTLIER_TAIL
        for boot in used:
            rest = [v for p, v in d.items() if p != boot.position]
            centre = stats.mean(rest)
            nu = OUTLIER_HISTORY_DF if scale else 0.0
            squares, df = math.fsum((v - centre) ** 2 for v in rest), len(rest) - 1 + nu
            if scale:
                squares += nu * scale.sd ** 2
            t = (d[boot.position] - centre) / math.sqrt(max(squares / df, FLOOR_SD ** 2) * (1 + 1 / len(rest)))
            p = stats.t_two_sided(t, df)
            if p < worst_p:
                worst, worst_p = boot, p
        if worst is None:
            break
        out.dropped.append((worst, f"outlier among the boots of {out.arm} (p = {worst_p:.1g})"))
        used = [b for b in used if b is not worst]
        allowed -= 1
    return used


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
    """`faster`, `slower`, `same` or `inconclusive`. ``stands``: the direction is settled, as `settle` says."""
    if not one.enough or one.theta is None or one.evidence is None:
        return "inconclusive"
    low, high = math.log1p(-margin), math.log1p(margin)
    if stands and one.theta > high:
        return "faster"
    if stands and one.theta < low:
        return "slower"
    if low < one.theta < high and max(one.evidence.tails(low, high)) <= _same_level(len(one.candidate_boots)):
        return "same"
    return "inconclusive"


def _same_level(boots: int) -> float:
    return EARLY_SAME_LEVEL.get(boots, SAME_LEVEL)


def more_boots(one: Look, margin: float, alpha: float, family: float = 1, most: int = 100) -> Optional[int]:
    """How many more boots of the candidate an inconclusive comparison would take if the estimate and the noise stay.

    None where more than ``most`` would be needed.
    """
    n = len(one.candidate_boots)
    if one.evidence is None or one.theta is None:
        return max(1, 3 - n)
    low, high = math.log1p(-margin), math.log1p(margin)
    least = 2 if one.uses_history else 3
    level = alpha / family

    def decided(total: int) -> bool:
        then = one.evidence.projected(total) if one.evidence else None
        if then is None or one.theta is None:
            return False
        if not low < one.theta < high:
            wanted = _wanted(total, then.ref_scale, then.own_scale) / level
            return then.e_value() >= wanted if one.sequential else then.p_value() <= level
        return max(then.tails(low, high)) <= _same_level(total)

    first = max(n + 1, least)
    if not decided(n + most):
        return None
    below, above = first - 1, n + most
    while above - below > 1:  # more boots never decide less: halve the range
        middle = (below + above) // 2
        if decided(middle):
            above = middle
        else:
            below = middle
    return above - n


def hopeless(one: Look, margin: float, alpha: float, family: float, left: int) -> bool:
    """Whether an inconclusive comparison is not worth the ``left`` boots of the candidate that are still planned."""
    if len(one.candidate_boots) < PATIENT_BOOTS or left < 1:
        return False
    return more_boots(one, margin, alpha, family, most=PATIENCE * left) is None
