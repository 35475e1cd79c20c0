"""What a candidate's effect and the scatter of both arms weigh: e-value, p-value, interval and tails.

The arms' boot-to-boot sds are not known, and neither is their ratio k: candidates may be much noisier than the
reference. Given k the model is an ordinary linear one with one scale, for which the t mixture is an e-value
(docs/method.md). The unknown k is averaged over, with the same prior under both hypotheses: 0.6 of it on k = 1, the
rest spread evenly over powers of sqrt(2) up to 64. A candidate whose few boots agree by chance is thus not taken for
quiet.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Callable, Optional

from . import stats

# Effect priors of the mixture, as (weight, variance in units of a candidate boot's variance).
MIXTURE = ((0.9, 20.0), (0.1, 1000.0))
# Prior of the ratio of the candidate's sd to the reference's: (ratio, weight).
SPIKE = 0.6
RATIOS = ((1.0, SPIKE), *((2.0 ** (i / 2), (1.0 - SPIKE) / 12) for i in range(1, 13)))
# History counts for so many degrees of freedom per arm at two candidate boots, less as the run has its own: it may be
# wrong by half or double.
HISTORY_DF, HISTORY_FADE = 3.4, 2.0
FLOOR_SD = 1e-5
# The p-value of one look is this many times the posterior tail: with candidates ten times as noisy the prior of their
# ratio makes the tail up to 1.7 times too small (simulated).
ONE_LOOK_FACTOR = 2.0
# Log weight under which a ratio adds nothing to a tail.
NEGLIGIBLE = -14.0


@dataclass(frozen=True)
class Scale:
    """What history says of an arm's boot-to-boot sd (of the log): ``sd`` with ``df`` degrees of freedom."""

    sd: float
    df: float


def history_df(scale: Optional[Scale], boots: int) -> float:
    """For how many degrees of freedom history counts beside ``boots`` boots of the candidate."""
    return 0.0 if scale is None else min(scale.df, HISTORY_DF * (2.0 / max(boots, 1)) ** HISTORY_FADE)


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
    def _squares(self) -> tuple[float, float, float, float]:
        """(reference's sum of squares, its df, candidate's, its df), history included."""
        nu_ref, nu_own = history_df(self.ref_scale, self.boots), history_df(self.own_scale, self.boots)
        ref = max(self.ref_ss, FLOOR_SD ** 2) + (nu_ref * self.ref_scale.sd ** 2 if self.ref_scale else 0.0)
        own = max(self.own_ss, FLOOR_SD ** 2) + (nu_own * self.own_scale.sd ** 2 if self.own_scale else 0.0)
        return ref, self.ref_df + nu_ref, own, self.own_df + nu_own

    @property
    def df(self) -> float:
        """Degrees of freedom of both scales together."""
        _, ref_df, _, own_df = self._squares
        return ref_df + own_df

    @property
    def ref_sd(self) -> float:
        ref, df, _, _ = self._squares
        return math.sqrt(ref / max(df, 1e-9))

    @property
    def own_sd(self) -> float:
        _, _, own, df = self._squares
        return math.sqrt(own / max(df, 1e-9))

    @cached_property
    def _terms(self) -> list[tuple[float, float, float, float]]:
        """For each ratio k: (log of prior and likelihood of the scales, sum of squares, variance of theta, k^2)."""
        ref, _, own, own_df = self._squares
        out = []
        for k, prior in RATIOS:
            out.append((math.log(prior) - own_df * math.log(k), ref + own / k ** 2, k ** 2 / self.boots + self.weight,
                        k ** 2))
        return out

    @cached_property
    def _log_e(self) -> Callable[[float], float]:
        """Log of the e-value against an effect, as a function of its distance from the estimate.

        Sum over k of the likelihood under theta ~ N(0, g k^2), mixed over g, over that under theta = 0, each with the
        common scale integrated out by its right Haar prior 1/sd.
        """
        power = 0.5 * (self.df + 1.0)
        zero = [(log_prior - 0.5 * math.log(v), ss, v) for log_prior, ss, v, _ in self._terms]
        one = [(math.log(weight) + log_prior - 0.5 * math.log(v + g * k2), ss, v + g * k2)
               for log_prior, ss, v, k2 in self._terms for weight, g in MIXTURE]

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
        logs = [(log_prior - 0.5 * df * math.log(ss), math.sqrt(ss / df * v)) for log_prior, ss, v, _ in self._terms]
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
