"""Student's t distribution with whole degrees of freedom: probabilities, quantiles and the test, without scipy."""

import functools
import math


def t_two_sided(t: float, freedom: int) -> float:
    """Return P(|T| >= |t|) of Student's t with whole degrees of freedom.

    Uses the finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4; accurate to about 1e-15.
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    if freedom == 1:
        total = 0.0
    for step in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine**2 * (step - 1) / step
        total += term
    inner = math.sin(angle) * total
    inside = (angle + inner) * 2 / math.pi if odd else inner
    return min(1.0, max(0.0, 1.0 - inside))


@functools.lru_cache(maxsize=4096)
def t_quantile(share: float, freedom: int) -> float:
    """Return the quantile of Student's t for a share over 0.5."""
    low, high = 0.0, 1.0
    while 1 - t_two_sided(high, freedom) / 2 < share:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        if 1 - t_two_sided(middle, freedom) / 2 < share:
            low = middle
        else:
            high = middle
    return high


def t_test(centre: float, error: float, freedom: int, alpha: float) -> tuple[float, float]:
    """Return the half-width of the interval around a mean with a standard error, and the p-value of "the mean is 0"."""
    if error == 0:  # counters that repeat exactly: any difference is real
        return 0.0, 1.0 if centre == 0 else 0.0
    return t_quantile(1 - alpha / 2, freedom) * error, t_two_sided(centre / error, freedom)
