"""What a candidate's effect and the scatter of both arms weigh: e-value, p-value, interval and tails.

The arms' boot-to-boot sds are not known, and neither is their ratio k: candidates may be much noisier than the
reference. Given k the model is an ordinary linear one with one scale, for which the t mixture is an e-value
(docs/method.md). The unknown k is averaged over, with the same prior under both hypotheses: 0.8 of it on k = 1, the
rest spread evenly over powers of sqrt(2) up to 64. A candidate whose few boots agree by chance is thus not taken for
quiet. What history says of the scatter is averaged over in the same way: today's sd may be what it was, half or double.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Callable, Optional

from . import stats

# Effect priors of the mixture, as (weight, variance in units of a candidate boot's variance).
MIXTURE = ((0.97, 25.0), (0.03, 1000.0))
# Prior of the ratio of the candidate's sd to the reference's: (ratio, weight).
SPIKE = 0.8
RATIOS = ((1.0, SPIKE), *((2.0 ** (i / 2), (1.0 - SPIKE) / 12) for i in range(1, 13)))
# History counts for so many degrees of freedom per arm at most, and today's sd is r times what it says: (r, prior).
HISTORY_DF = 8.0
CHANGES = ((1.0, 0.8), (2.0, 0.12), (0.5, 0.08))
FLOOR_SD = 1e-5
# The p-value of one look is this many times the posterior tail: with candidates ten times as noisy the prior of their
# ratio makes the tail up to 2.4 times too small (simulated).
ONE_LOOK_FACTOR = 2.5
# Log weight under which a ratio adds nothing to a tail.
NEGLIGIBLE = -14.0


@dataclass(frozen=True)
class Scale:
    """What history says of an arm's boot-to-boot sd (of the log): ``sd`` with ``df`` degrees of freedom."""

    sd: float
    df: float


def history_df(scale: Optional[Scale]) -> float:
    """For how many degrees of freedom history counts."""
    return 0.0 if scale is None else min(scale.df, HISTORY_DF)


@dataclass(frozen=True)
class Evidence:
    """An effect ``theta`` (log) of ``boots`` candidate boots; ``weight``: the variance that the references' fit adds to
    it, in units of a reference boot's; sums of squares and degrees of freedom of each arm's scatter; its history."""

    theta: float
    boots: int
    weight: float
    ref_ss: float
    ref_df: int
    own_ss: float
    own_df: int
    ref_scale: Optional[Scale] = None
    own_scale: Optional[Scale] = None

    @property
    def known(self) -> bool:
        """Whether there is a scale for each arm."""
        return (self.ref_df > 0 or self.ref_scale is not None) and (self.own_df > 0 or self.own_scale is not None)

    @cached_property
    def _dfs(self) -> tuple[float, float]:
        """Degrees of freedom of the reference's scale and of the candidate's, history included."""
        return self.ref_df + history_df(self.ref_scale), self.own_df + history_df(self.own_scale)

    def _squares(self, change: float) -> tuple[float, float]:
        """Sums of squares of the reference and of the candidate if today's sd is ``change`` times that of history."""
        ref, own = max(self.ref_ss, FLOOR_SD ** 2), max(self.own_ss, FLOOR_SD ** 2)
        if self.ref_scale:
            ref += history_df(self.ref_scale) * (change * self.ref_scale.sd) ** 2
        if self.own_scale:
            own += history_df(self.own_scale) * (change * self.own_scale.sd) ** 2
        return ref, own

    @property
    def df(self) -> float:
        """Degrees of freedom of both scales together."""
        return self._dfs[0] + self._dfs[1]

    @property
    def ref_sd(self) -> float:
        return math.sqrt(self._squares(self._change)[0] / max(self._dfs[0], 1e-9))

    @property
    def own_sd(self) -> float:
        return math.sqrt(self._squares(self._change)[1] / max(self._dfs[1], 1e-9))

    @cached_property
    def _change(self) -> float:
        """The likeliest change of the sd since history, by the boots of this run."""
        ranked: dict[float, list[float]] = {}
        for change, log_prior, ss, _, _ in self._terms:
            ranked.setdefault(change, []).append(log_prior - 0.5 * self.df * math.log(ss))
        return max(ranked, key=lambda change: _log_sum(ranked[change]))

    @cached_property
    def _terms(self) -> list[tuple[float, float, float, float, float]]:
        """For each ratio k and change r since history: (r, log of prior and likelihood of the scales, sum of squares,
        variance of theta, k^2)."""
        own_df = self._dfs[1]
        old_df = history_df(self.ref_scale) + history_df(self.own_scale)
        out = []
        for change, likely in CHANGES if old_df else ((1.0, 1.0),):
            ref, own = self._squares(change)
            common = math.log(likely) + old_df * math.log(change)
            for k, prior in RATIOS:
                out.append((change, common + math.log(prior) - own_df * math.log(k), ref + own / k ** 2,
                            k ** 2 / self.boots + self.weight, k ** 2))
        return out

    @cached_property
    def _log_e(self) -> Callable[[float], float]:
        """Log of the e-value against an effect, as a function of its distance from the estimate.

        Sum over k of the likelihood under theta ~ N(0, g k^2), mixed over g, over that under theta = 0, each with the
        common scale integrated out by its right Haar prior 1/sd.
        """
        power = 0.5 * (self.df + 1.0)
        zero = [(log_prior - 0.5 * math.log(v), ss, v) for _, log_prior, ss, v, _ in self._terms]
        one = [(math.log(weight) + log_prior - 0.5 * math.log(v + g * k2), ss, v + g * k2)
               for _, log_prior, ss, v, k2 in self._terms for weight, g in MIXTURE]

        def log_e(distance: float) -> float:
            square = distance * distance
            return (_log_sum([c - power * math.log(ss + square / v) for c, ss, v in one])
                    - _log_sum([c - power * math.log(ss + square / v) for c, ss, v in zero]))

        return log_e

    def e_value(self) -> float:
        """Evidence against no effect; its expectation without an effect is at most 1, at every look."""
        return math.exp(min(600.0, self._log_e(self.theta)))

    @cached_property
    def _tail(self) -> Callable[[float], float]:
        """P(theta is more than a distance above the estimate): t's with `df` each, mixed over k, under a flat prior."""
        df = self.df
        logs = [(log_prior - 0.5 * df * math.log(ss), math.sqrt(ss / df * v)) for _, log_prior, ss, v, _ in self._terms]
        total = _log_sum([x for x, _ in logs])
        parts = [(math.exp(x - total), se) for x, se in logs if x - total > NEGLIGIBLE]

        def beyond(distance: float) -> float:
            half = sum(weight * 0.5 * stats.t_two_sided(distance / se, df) for weight, se in parts)
            return half if distance >= 0 else sum(weight for weight, _ in parts) - half

        return beyond

    def tails(self, low: float, high: float) -> tuple[float, float]:
        """(P(theta > high), P(theta < low))."""
        beyond = self._tail
        return beyond(high - self.theta), beyond(self.theta - low)

    def p_value(self) -> float:
        """Two-sided, for one look: Behrens and Fisher's problem, with the ratio of the scales averaged over."""
        return min(1.0, ONE_LOOK_FACTOR * 2.0 * self._tail(abs(self.theta)))

    def half_width(self, alpha: float, sequential: bool) -> float:
        """Half the width of the set of effects that are not rejected at ``alpha``."""
        if sequential:
            log_e = self._log_e
            return _crossing(lambda x: log_e(x) + math.log(alpha), self._start())
        beyond = self._tail
        return _crossing(lambda x: math.log(alpha) - math.log(max(ONE_LOOK_FACTOR * 2.0 * beyond(x), 1e-300)),
                         self._start())

    def _start(self) -> float:
        return 4.0 * math.sqrt(self.own_sd ** 2 / self.boots + self.ref_sd ** 2 * self.weight)

    def projected(self, boots: int) -> Evidence:
        """The same effect and scatter after ``boots`` candidate boots, each between two references."""
        ref_df, own_df = max(boots - 1, 1), boots - 1
        return replace(self, boots=boots, weight=1.0 / (boots + 1), ref_ss=self.ref_sd ** 2 * ref_df, ref_df=ref_df,
                       own_ss=self.own_sd ** 2 * own_df, own_df=own_df)


def _crossing(f: Callable[[float], float], start: float) -> float:
    """Where the increasing ``f`` crosses 0, by regula falsi (Illinois); infinite if it does not below 50."""
    low, f_low, high = 0.0, f(0.0), start
    f_high = f(high)
    while f_high < 0:
        low, f_low, high = high, f_high, high * 1.7
        if high > 50.0:
            return math.inf
        f_high = f(high)
    side = 0
    for _ in range(60):
        middle = high - f_high * (high - low) / (f_high - f_low)
        value = f(middle)
        if abs(value) < 1e-9 or high - low < 1e-12:
            return middle
        if value > 0:
            high, f_high, f_low = middle, value, f_low * (0.5 if side > 0 else 1.0)
            side = 1
        else:
            low, f_low, f_high = middle, value, f_high * (0.5 if side < 0 else 1.0)
            side = -1
    return high


def _log_sum(values: list[float]) -> float:
    top = max(values)
    return top + math.log(math.fsum(math.exp(v - top) for v in values))
