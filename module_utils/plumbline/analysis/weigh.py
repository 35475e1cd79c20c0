"""What a candidate's effect and the scatter of both arms weigh: e-value, p-value, interval and tails.

The arms' boot-to-boot sds are not known, and neither is their ratio k: candidates may be much noisier than the
reference. Given k the model is an ordinary linear one with one scale, for which the t mixture is an e-value
(docs/method.md). The unknown k is averaged over, with the same prior under both hypotheses: half of it on k = 1, the rest
spread evenly over powers of sqrt(2) up to 64. A candidate whose few boots agree by chance is thus never taken for quiet.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Optional

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

    def _squares(self) -> tuple[float, float, float, float]:
        """(reference's sum of squares, its df, candidate's, its df), history included."""
        nu_ref, nu_own = history_df(self.ref_scale, self.boots), history_df(self.own_scale, self.boots)
        ref = max(self.ref_ss, FLOOR_SD ** 2) + (nu_ref * self.ref_scale.sd ** 2 if self.ref_scale else 0.0)
        own = max(self.own_ss, FLOOR_SD ** 2) + (nu_own * self.own_scale.sd ** 2 if self.own_scale else 0.0)
        return ref, self.ref_df + nu_ref, own, self.own_df + nu_own

    @property
    def df(self) -> float:
        """Degrees of freedom of both scales together."""
        _, ref_df, _, own_df = self._squares()
        return ref_df + own_df

    @property
    def ref_sd(self) -> float:
        ref, df, _, _ = self._squares()
        return math.sqrt(ref / max(df, 1e-9))

    @property
    def own_sd(self) -> float:
        _, _, own, df = self._squares()
        return math.sqrt(own / max(df, 1e-9))

    def _terms(self) -> list[tuple[float, float, float, float]]:
        """For each ratio k: (log of prior and likelihood of the scales, sum of squares, variance of theta, k^2)."""
        ref, _, own, own_df = self._squares()
        out = []
        for k, prior in RATIOS:
            out.append((math.log(prior) - own_df * math.log(k), ref + own / k ** 2, k ** 2 / self.boots + self.weight,
                        k ** 2))
        return out

    def log_e(self, distance: float) -> float:
        """Log of the e-value against an effect that lies ``distance`` from the estimate.

        Sum over k of the likelihood under theta ~ N(0, g k^2), mixed over g, over that under theta = 0, each with the
        common scale integrated out by its right Haar prior 1/sd.
        """
        power = 0.5 * (self.df + 1.0)
        square = distance * distance
        zero, one = [], []
        for log_prior, ss, v, k2 in self._terms():
            zero.append(log_prior - 0.5 * math.log(v) - power * math.log(ss + square / v))
            for weight, g in MIXTURE:
                wide = v + g * k2
                one.append(math.log(weight) + log_prior - 0.5 * math.log(wide) - power * math.log(ss + square / wide))
        return _log_sum(one) - _log_sum(zero)

    def e_value(self) -> float:
        """Evidence against no effect; its expectation without an effect is at most 1, at every look."""
        return math.exp(min(600.0, self.log_e(self.theta)))

    def _posterior(self) -> list[tuple[float, float]]:
        """(weight, standard error of theta) for each ratio k, under a flat prior of theta: t with `df` each."""
        df = self.df
        logs = [(log_prior - 0.5 * df * math.log(ss), math.sqrt(ss / df * v)) for log_prior, ss, v, _ in self._terms()]
        total = _log_sum([x for x, _ in logs])
        return [(math.exp(x - total), se) for x, se in logs]

    def _beyond(self, distance: float) -> float:
        """P(theta is more than ``distance`` above the estimate)."""
        tail = 0.0
        for weight, se in self._posterior():
            half = 0.5 * stats.t_two_sided(distance / se, self.df)
            tail += weight * (half if distance >= 0 else 1.0 - half)
        return tail

    def tails(self, low: float, high: float) -> tuple[float, float]:
        """(P(theta > high), P(theta < low))."""
        return self._beyond(high - self.theta), self._beyond(self.theta - low)

    def p_value(self) -> float:
        """Two-sided, for one look: Behrens and Fisher's problem, with the ratio of the scales averaged over."""
        return min(1.0, 2.0 * self._beyond(abs(self.theta)))

    def half_width(self, alpha: float, sequential: bool) -> float:
        """Half the width of the set of effects that are not rejected at ``alpha``."""
        if sequential:
            target = -math.log(alpha)

            def rejected(distance: float) -> bool:
                return self.log_e(distance) >= target
        else:
            def rejected(distance: float) -> bool:
                return 2.0 * self._beyond(distance) <= alpha

        low, high = 0.0, 0.01
        while not rejected(high):
            low, high = high, high * 2.0
            if high > 50.0:
                return math.inf
        for _ in range(24):
            middle = 0.5 * (low + high)
            if rejected(middle):
                high = middle
            else:
                low = middle
        return high

    def projected(self, boots: int) -> Evidence:
        """The same effect and scatter after ``boots`` candidate boots, each between two references."""
        ref_df, own_df = max(boots - 1, 1), boots - 1
        return replace(self, boots=boots, weight=1.0 / (boots + 1), ref_ss=self.ref_sd ** 2 * ref_df, ref_df=ref_df,
                       own_ss=self.own_sd ** 2 * own_df, own_df=own_df)


def _log_sum(values: list[float]) -> float:
    top = max(values)
    return top + math.log(math.fsum(math.exp(v - top) for v in values))
