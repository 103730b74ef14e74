"""LP(18): measured latency = β₁ · predicted latency + β₀, per GPU, strategy family and phase.

At a safety level 1 − ε both coefficients are multiplied by the (1 − ε) quantile of measured/predicted on held-back
measurements, so that a measured latency stays below the calibrated one with that probability.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from optmodels.catalog.types import Entry
from optmodels.errors import InputError, Mistake
from optmodels.latency.strategies import Curves, Family

Phase = Literal["prefill", "decode"]
ANY = "*"
MOST = 1e12  # of any measured number
MOST_RATIO = 1e24  # of measured to predicted: of the longest to the shortest time
Quantiles = dict[  # safety level → quantile of measured/predicted on held-back measurements
    Annotated[str, Field(pattern=r"^0?\.\d+$")], Annotated[float, Field(gt=0, le=MOST_RATIO)]
]


TOLERANCE = 1e-9  # of a level


def quantile_factor(quantiles: dict[str, float], safety: float | None) -> float:
    """Residual quantile at the least stored level ≥ `safety`; 1 where safety is None.

    Raises:
        InputError: level outside (0, 1) or beyond the measurements' range.
    """
    if safety is None:
        return 1.0
    if not 0 < safety < 1:
        raise InputError(Mistake(None, "safety", safety, "a probability between 0 and 1, e.g. 0.95"))
    stored = sorted((float(k), v) for k, v in quantiles.items())
    for level, value in stored:
        if level >= safety - TOLERANCE:
            return value
    top = f"at most {stored[-1][0]:g}" if stored else "none: this file keeps no residuals"
    raise InputError(Mistake(None, "safety", safety, f"a level that the calibration data support ({top})"))


class ScaledCoefficient(Entry):
    """β₁ and β₀ of one phase: TTFT for prefill, mean time between tokens for decode; ``*`` matches any."""

    gpu: str = Field(default=ANY, description="GPU that it is of; *: any")
    family: Family | Literal["*"] = Field(default="*", description="strategy that it is of; *: any")
    phase: Phase = Field(description="prefill: TTFT; decode: time between tokens")
    slope: float = Field(gt=0, le=MOST_RATIO, description="β₁, of the predicted latency")
    intercept_s: float = Field(default=0.0, ge=0, le=MOST, description="β₀, added")
    residual_quantiles: Quantiles = Field(
        default={}, description="safety level → quantile of measured/predicted on held-back measurements"
    )


class Calibration(Entry):
    """A coefficients file: the first entry that matches (gpu, family, phase) applies."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    title: str = ""
    source: str = ""
    date: str = ""
    coefficients: tuple[ScaledCoefficient, ...] = Field(min_length=1)
    model: Any = Field(default=None, description="the fitted model these come from: errors, intervals, provenance")

    def find(self, gpu: str, family: str, phase: Phase) -> ScaledCoefficient | None:
        """The coefficient that applies, or None where the file states nothing."""
        for c in self.coefficients:
            if c.phase == phase and c.gpu in (ANY, gpu) and c.family in (ANY, family):
                return c
        return None


def calibrate(
    curves: Curves, calibration: Calibration, gpus: list[str], families: list[str], *, safety: float | None = None,
) -> Curves:  # fmt: skip
    """Curves with LP(18) applied; `gpus` and `families` name each row's (main) GPU and strategy family.

    Args:
        curves: Latency curves of n configurations.
        calibration: The coefficients; curves that it states nothing about stay as they are.
        gpus: GPU of each row.
        families: Strategy family of each row.
        safety: Probability with which measured latencies stay below, or None for the central estimate.

    Raises:
        InputError: a safety level that some coefficient in use keeps no residual quantile for, or that applies to
            rows without a coefficient, whose error was never measured.
    """
    pairs = sorted(set(zip(gpus, families, strict=True)))
    row = np.array([pairs.index(p) for p in zip(gpus, families, strict=True)], dtype=np.intp)
    columns = {}
    phases: tuple[Phase, ...] = ("prefill", "decode")
    for phase in phases:
        found = [calibration.find(gpu, family, phase) for gpu, family in pairs]
        factor = np.array([_factor(c, safety, pair, phase) for c, pair in zip(found, pairs, strict=True)])
        columns[f"{phase}_slope"] = (np.array([c.slope if c else 1.0 for c in found]) * factor)[row]
        columns[f"{phase}_intercept"] = (np.array([c.intercept_s if c else 0.0 for c in found]) * factor)[row]
    return replace(curves, **columns)


def _factor(coefficient: ScaledCoefficient | None, safety: float | None, pair: tuple[str, str], phase: Phase) -> float:
    if safety is None:
        return 1.0
    if coefficient is None:
        where = f"a calibration that covers {phase} on GPU {pair[0]}, family {pair[1]}"
        raise InputError(Mistake(None, "latency.safety", safety, f"{where}: its error is unknown"))
    try:
        return quantile_factor(coefficient.residual_quantiles, safety)
    except InputError as error:
        raise InputError([replace(m, path="latency.safety") for m in error.mistakes]) from None
