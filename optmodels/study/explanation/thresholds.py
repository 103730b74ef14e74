"""How far a limit or price moves until something changes: bracketing, then bisection, to a stated tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from optmodels.limits import Restriction

TOLERANCE = 1e-3  # relative, of a needed value
STEPS = 40  # doublings beyond which a number is not searched
HALVINGS = 12
N = TypeVar("N", int, float)


def direction(limit: Restriction) -> int:
    """+1 where a larger number is looser, −1 where a smaller one is."""
    return 1 if limit.marker.side == "most" else -1


def rounded(value: float, up: bool, digits: int = 4) -> float:
    """The value with this many significant digits, rounded up or down; one that has no more stays."""
    if not math.isfinite(value) or value == 0:
        return value
    step = 10.0 ** (math.floor(math.log10(abs(value))) + 1 - digits)
    whole = math.ceil(value / step - 1e-9) if up else math.floor(value / step + 1e-9)
    return float(f"{whole * step:.12g}")


def tidy(limit: Restriction, value: float, looser: bool = True) -> float | int:
    """The value with four significant digits, rounded to the looser (or tighter) side; whole where it counts.

    Rounding takes nothing past the limit's own value.
    """
    if limit.whole:
        return int(value)
    if not math.isfinite(value):
        return value
    if abs(value) <= 1e-5 * abs(limit.value):
        return 0.0
    up = (direction(limit) > 0) == looser
    found = rounded(value, up)
    if (value - limit.value) * (found - limit.value) <= 0:
        found = float(limit.value)
    end = limit.loosest
    return found if end is None or not looser else (min(found, end) if up else max(found, end))


def roundest(enough: float, not_enough: float) -> float | None:
    """The number of fewest significant digits (at most four) from `enough` to `not_enough`, this one excluded."""
    if not enough * not_enough > 0:
        return None
    for digits in range(1, 5):
        found = rounded(enough, up=enough < not_enough, digits=digits)
        if (found - not_enough) * (enough - not_enough) > 0:
            return found
    return None


def loosened(limit: Restriction, relative: float) -> float | int:
    """The value that is looser by at most a relative amount (of 1 where the value is 0), within the limit's range."""
    scale = abs(limit.value) or 1.0
    value = limit.value + direction(limit) * relative * scale
    if limit.whole:
        value = math.floor(value + 1e-9) if direction(limit) > 0 else math.ceil(value - 1e-9)
    end = limit.loosest
    if end is not None:
        value = min(value, end) if direction(limit) > 0 else max(value, end)
    return int(value) if limit.whole else float(value)


def relative_change(limit: Restriction, value: Any) -> float:
    """How much looser a value is, relative to the limit's own (to 1 where that is 0); lists and switches: 1."""
    if not limit.number:
        return 1.0
    return abs(value - limit.value) / (abs(limit.value) or 1.0)


def least_change(
    limit: Restriction, enough: Callable[[Any], bool | None], looser: bool = True, tolerance: float = TOLERANCE
) -> tuple[Any, Any] | None:
    """The smallest move of a number, to the looser (or tighter) side, at which `enough` becomes true and stays so.

    Returns:
        (enough, not enough), whole numbers next to each other, others within `tolerance`; None: nowhere up to
        `STEPS` doublings, or `enough` did not find out.
    """
    sign = direction(limit) * (1 if looser else -1)
    end = limit.loosest if looser else _tightest(limit)
    low: float = limit.value
    if end is not None and end == low:
        return None
    if limit.whole:
        return _whole(int(low), sign, None if end is None else int(end), enough)
    for high in _outwards(limit, sign, end):
        verdict = enough(high)
        if verdict is None:
            return None
        if verdict:
            break
        low = high
    else:
        return None

    def close(high: float, low: float) -> bool:
        return abs(high - low) <= tolerance * max(abs(high), abs(low), 0.01 * abs(limit.value), 1e-9)

    def middle(high: float, low: float) -> float:
        wide = low > 0 and high > 0 and max(low, high) > 4 * min(low, high)
        return math.sqrt(low * high) if wide else (low + high) / 2.0

    return _narrowed(high, low, enough, close, middle)


def _tightest(limit: Restriction) -> float | None:
    """The end of the scale on the tight side, if it has one."""
    if limit.marker.tight is not None:
        return limit.marker.tight
    if limit.whole and direction(limit) > 0:
        return 0.0
    return 1.0 if limit.unit == "%" and direction(limit) < 0 else None


def _outwards(limit: Restriction, sign: int, end: float | None) -> Iterator[float]:
    """Values farther and farther from the limit's own, the end of the scale last.

    Steps double the value or halve it; a number that may be negative moves by doubling steps.
    """
    value, scale = limit.value, abs(limit.value) or 1.0
    for k in range(1, STEPS + 1):
        if limit.marker.signed:
            high = value + sign * scale * 2.0 ** (k - 1)
        elif sign > 0:
            high = value * 2.0**k if value else 2.0 ** (k - 1)
        else:
            high = value / 2.0**k if k <= HALVINGS else 0.0
        if end is not None and (high - end) * sign >= 0:
            yield end
            return
        if high == 0.0 and not limit.marker.signed:  # a latency of nothing is no limit one could ask about
            return
        yield high


def _whole(low: int, sign: int, end: int | None, enough: Callable[[Any], bool | None]) -> tuple[int, int] | None:
    step, high = 1, low
    while True:
        high = low + sign * step
        if sign < 0:
            high = max(high, 0)
        if end is not None and (high - end) * sign > 0:
            high = end
        verdict = enough(high)
        if verdict is None:
            return None
        if verdict:
            break
        if high == end or (sign < 0 and high <= 0) or step > 2**STEPS:
            return None
        low, step = high, step * 2
    return _narrowed(high, low, enough, lambda a, b: abs(a - b) <= 1, lambda a, b: (a + b) // 2)


def _narrowed(
    high: N, low: N, enough: Callable[[Any], bool | None], close: Callable[[N, N], bool], middle: Callable[[N, N], N]
) -> tuple[N, N] | None:
    """(enough, not enough) brought close; None: `enough` did not find out."""
    while not close(high, low):
        between = middle(high, low)
        verdict = enough(between)
        if verdict is None:
            return None
        high, low = (between, low) if verdict else (high, between)
    return high, low
