"""The few special functions that a decision needs, in plain Python.

A boot's decision runs in a fresh process, where importing SciPy would take longer than deciding. The functions agree
with SciPy's to ten digits (a test compares them); the simulation in `benchmarks/` uses SciPy's own.
"""
from __future__ import annotations

import math
from typing import Callable, Sequence


def betainc(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by the continued fraction of Lentz (DLMF 8.17.22)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - betainc(b, a, 1.0 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
                     + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    total = a + b
    c, d = 1.0, 1.0 - total * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    f = d
    for m in range(1, 500):
        m2 = 2 * m
        step = m * (b - m) * x / ((a + m2 - 1.0) * (a + m2))
        d = 1.0 + step * d
        c = 1.0 + step / c
        d = 1.0 / (d if abs(d) > tiny else tiny)
        c = c if abs(c) > tiny else tiny
        f *= d * c
        step = -(a + m) * (total + m) * x / ((a + m2) * (a + m2 + 1.0))
        d = 1.0 + step * d
        c = 1.0 + step / c
        d = 1.0 / (d if abs(d) > tiny else tiny)
        c = c if abs(c) > tiny else tiny
        change = d * c
        f *= change
        if abs(change - 1.0) < 1e-13:
            break
    return front * f


def t_two_sided(t: float, df: float) -> float:
    """P(|T| >= |t|) of Student's t with ``df`` degrees of freedom (any positive number)."""
    if math.isinf(t):
        return 0.0
    if df == int(df) and 1 <= df <= 60:
        outside = 1.0 - _t_central(abs(t), int(df))
        if outside > 1e-5:  # not far out: the difference keeps eleven digits
            return outside
    return betainc(df / 2.0, 0.5, df / (df + t * t))


def _t_central(t: float, df: int) -> float:
    """P(|T| < t) for whole degrees of freedom, as a finite sum (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    cos2 = df / (df + t * t)
    sine = t / math.sqrt(df + t * t)
    if df == 1:
        return 2.0 / math.pi * math.atan(t)
    term, total = 1.0, 1.0
    if df % 2:
        for i in range(3, df, 2):
            term *= cos2 * (i - 1) / i
            total += term
        return 2.0 / math.pi * (math.atan(t / math.sqrt(df)) + sine * math.sqrt(cos2) * total)
    for i in range(2, df, 2):
        term *= cos2 * (i - 1) / i
        total += term
    return sine * total


def t_quantile(two_sided: float, df: float) -> float:
    """The t with P(|T| >= t) = ``two_sided``."""
    return _decreasing_root(lambda t: t_two_sided(t, df) - two_sided)


def f_upper(x: float, d1: float, d2: float) -> float:
    """P(F >= x) of Fisher's F."""
    return 1.0 if x <= 0 else betainc(d2 / 2.0, d1 / 2.0, d2 / (d2 + d1 * x))


def f_quantile(upper: float, d1: float, d2: float) -> float:
    """The x with P(F >= x) = ``upper``."""
    return _decreasing_root(lambda x: f_upper(x, d1, d2) - upper)


def _decreasing_root(f: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    while f(high) > 0:
        low, high = high, high * 2
        if high > 1e300:
            return math.inf
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if f(middle) > 0:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones; raises on an empty sequence."""
    ordered = sorted(values)
    n = len(ordered)
    return ordered[n // 2] if n % 2 else 0.5 * (ordered[n // 2 - 1] + ordered[n // 2])


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation times 1.4826, which is the sd of normal values."""
    centre = median(values)
    return 1.4826 * median([abs(v - centre) for v in values])


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean, summed exactly (so that the order of records does not matter)."""
    return math.fsum(values) / len(values)
