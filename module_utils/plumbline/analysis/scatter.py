"""How much a host's baseline scatters from boot to boot, where only a few boots tell: the sd averaged over a grid.

With three boots then and three now an estimate of the sd is off by half as often as not. A host is taken to be quiet
until its boots say otherwise (1 % is what quiet hosts showed), but never with certainty: each sd of the grid keeps the
weight that prior and boots give it, and what is said of a change is averaged over them.
"""
from __future__ import annotations

import math
from functools import cached_property
from typing import Sequence

from . import stats
from .history import FLOOR_SD, OUTLIER_MADS

QUIET_SD = 0.01
# The prior's weight falls by this power of e for each factor of two between an sd and a quiet host's.
PRIOR_FALL = 1.4
GRID = tuple(0.004 * 2.0 ** (i / 4) for i in range(25))
# Variance of the median of n normal values, in units of that of their mean (exact to 8, then a bound).
MEDIAN_COST = {1: 1.0, 2: 1.0, 3: 1.346, 4: 1.194, 5: 1.434, 6: 1.288, 7: 1.473, 8: 1.335}


def median_variance(n: int) -> float:
    """Variance of the median of ``n`` values of unit variance."""
    return MEDIAN_COST.get(n, math.pi / 2) / n


class Scatter:
    """The scatter of log values about the mean of each group, robustly: what lies beyond 5 MAD is left out.

    ``groups``: boots of one run and state each, natural logs of tok/s.
    """

    def __init__(self, groups: Sequence[Sequence[float]]) -> None:
        self.squares, self.df = 0.0, 0
        for ys in groups:
            if len(ys) < 2:
                continue
            centre, spread = stats.median(ys), max(stats.mad(ys), FLOOR_SD)
            kept = [y for y in ys if abs(y - centre) <= OUTLIER_MADS * spread]
            if len(kept) > 1:
                middle = stats.mean(kept)
                self.squares += math.fsum((y - middle) ** 2 for y in kept)
                self.df += len(kept) - 1

    @cached_property
    def weights(self) -> list[tuple[float, float]]:
        """(sd, its weight): prior x the likelihood of the sum of squares."""
        logs = [-PRIOR_FALL * abs(math.log2(sd / QUIET_SD)) - self.df * math.log(sd) - self.squares / (2 * sd * sd)
                for sd in GRID]
        top = max(logs)
        raw = [math.exp(x - top) for x in logs]
        total = math.fsum(raw)
        return [(sd, w / total) for sd, w in zip(GRID, raw)]

    @property
    def sd(self) -> float:
        """The root of the mean variance."""
        return math.sqrt(math.fsum(w * sd * sd for sd, w in self.weights))

    def tail(self, change: float, variance: float) -> float:
        """P(|noise| >= |change|), two-sided, for an estimate whose variance is ``variance`` in units of a boot's."""
        root = math.sqrt(2.0 * variance)
        return math.fsum(w * math.erfc(abs(change) / (sd * root)) for sd, w in self.weights)

    def half_width(self, level: float, variance: float) -> float:
        """The change whose tail is ``level``."""
        low, high = 0.0, 10.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.tail(middle, variance) > level else (low, middle)
        return high
