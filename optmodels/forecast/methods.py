"""Median forecasts by name."""

from __future__ import annotations

from optmodels.forecast.points import METHODS, Method

NAMES = (*METHODS, "boosting")  # auto chooses of METHODS alone, so that it chooses the same without the extra


def method_of(name: str) -> Method:
    """A method by its name, of `NAMES`."""
    if name in METHODS:
        return METHODS[name]
    from optmodels.forecast.boosting import boosting

    return boosting
