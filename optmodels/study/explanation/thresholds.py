"""How far a limit or price moves until something changes: bracketing, then bisection, to a stated tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from optmodels.limits import Restriction

TOLERANCE = 1e-3  # relative, of a needed value
FARTHEST = 2.0**40  # times the value, beyond which a number is not searched


def direction(limit: Restriction) -> int:
    """+1 where a larger number is looser, −1 where a smaller one is."""
    return 1 if limit.marker.side == "most" else -1


def tidy(limit: Restriction, value: float, looser: bool = True) -> float | int:
    """The value with four significant digits, rounded to the looser (or tighter) side; whole where it counts."""
    if limit.whole:
        return int(value)
    if value == 0 or not math.isfinite(value):
        return value
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
    up = (direction(limit) > 0) == looser
    rounded = (math.ceil(value / step - 1e-9) if up else math.floor(value / step + 1e-9)) * step
    rounded = float(f"{rounded:.12g}")
    end = limit.loosest
    return rounded if end is None or not looser else (min(rounded, end) if up else max(rounded, end))


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
        `FARTHEST`, or `enough` did not find out.
    """
    sign = direction(limit) * (1 if looser else -1)
    low: float = limit.value
    end = limit.loosest if looser else (None if sign > 0 else 0.0)
    if not looser and limit.marker.top is not None and sign > 0:
        end = limit.marker.top
    if not looser and sign > 0 and limit.unit == "%":
        end = 1.0
    if end is not None and end == low:
        return None
    if limit.whole:
        return _whole(int(low), sign, None if end is None else int(end), enough)
    high, step = low, 1.0
    while True:
        step *= 2.0
        high = (low * 2.0 if sign > 0 else low / 2.0) if low else sign * step / 2.0
        if (end is not None and (high - end) * sign >= 0) or (step > 64 and sign < 0):
            high = 0.0 if end is None else end
        verdict = enough(high)
        if verdict is None:
            return None
        if verdict:
            break
        if high == end or high == 0.0 or step > FARTHEST:
            return None
        low = high
    while abs(high - low) > tolerance * max(abs(high), abs(low), 0.01 * abs(limit.value), 1e-9):
        both = low > 0 and high > 0
        middle = math.sqrt(low * high) if both and max(low, high) > 4 * min(low, high) else (low + high) / 2.0
        verdict = enough(middle)
        if verdict is None:
            return None
        if verdict:
            high = middle
        else:
            low = middle
    return high, low


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
        if high == end or (sign < 0 and high <= 0) or step > FARTHEST:
            return None
        low, step = high, step * 2
    while abs(high - low) > 1:
        middle = (low + high) // 2
        verdict = enough(middle)
        if verdict is None:
            return None
        if verdict:
            high = middle
        else:
            low = middle
    return high, low
