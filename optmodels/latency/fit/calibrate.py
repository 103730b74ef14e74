"""Fit, cross-validate over whole workloads, choose.

A random row has near-twins among the others (the next batch size, the same prompt), so random folds flatter every
model. Whole workloads are held back together; with at most 12 of them each is held back once, otherwise they are
dealt into 5 folds in a fixed order. Residual quantiles come from those held-back predictions.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from optmodels.arrays import Array, Index
from optmodels.errors import InputError, Mistake, one_of
from optmodels.io.read import validate
from optmodels.latency.calibration import Calibration
from optmodels.latency.calibration import ScaledCoefficient as ScaledCoefficient
from optmodels.latency.fit.document import (
    Frame,
    LatencyModel,
    Target,
    errors,
    predict_segments,
    residual_quantiles,
)
from optmodels.latency.fit.forms import MODELS, STEPS, FitOptions, fit_segments, targets_of
from optmodels.latency.fit.measurements import TARGETS, Measurements

LEAVE_ONE_OUT = 12
FOLDS = 5
FEW_WORKLOADS = 3
FEW_SERVED = "; use them to pull the shipped coefficients (--form default), or measure more"


@dataclass(frozen=True)
class Calibrated:
    """A fitted model with the held-back predictions it was judged by.

    Attributes:
        model: The model.
        held_back: Target → (n,) predictions for each row by a model that never saw its workload (NaN: none).
        candidates: With ``auto``, the score of every model tried (`_auto`), or why it has none.
    """

    model: LatencyModel
    held_back: dict[str, Array]
    candidates: dict[str, float | str] = field(default_factory=dict)

    def calibration(self) -> Calibration:
        """The LP(18) coefficients file that instance files read (``scaled`` only).

        Raises:
            InputError: another model.
        """
        return to_calibration(self.model)


def folds(workload: Index) -> Index:
    """Fold of each row; rows of one workload share it."""
    kinds = np.unique(workload)
    if len(kinds) <= LEAVE_ONE_OUT:
        return np.searchsorted(kinds, workload)
    order = np.random.default_rng(0).permutation(len(kinds)) % FOLDS
    return order[np.searchsorted(kinds, workload)]


def calibrate_measurements(
    m: Measurements, model: str = "auto", options: FitOptions | None = None, *, title: str = "", source: str = "",
    date: str | None = None,
) -> Calibrated:  # fmt: skip
    """Fit a latency model and judge it by cross-validation over whole workloads.

    Args:
        m: The measurements.
        model: One of `forms.MODELS`, ``steps``, or ``auto``.
        options: GPU and LLM, weighting, batch limit of MS(1).
        title: Title of the model file.
        source: Source of the measurements; kept in the model file.
        date: ISO date of the measurements; today if not given.

    Raises:
        InputError: the model does not apply to such measurements, or the data cannot support it.
    """
    options = options or FitOptions()
    if model == "auto":
        return _auto(m, options, title, source, date)
    one_of("model", model, (*MODELS, STEPS, "auto"))
    names = targets_of(model, m.kind)
    if not names:
        apply = [x for x in (*MODELS, STEPS) if targets_of(x, m.kind)]
        raise InputError(Mistake(None, "model", model, f"a model for {m.kind} measurements: {', '.join(apply)}"))
    reference = options.reference
    kept: dict[str, Any] = {
        "schema": 1,
        "model": model,
        "measured": m.kind,
        "title": title,
        "source": source,
        "date": date or datetime.date.today().isoformat(),
        "engine": options.engine,
        "batch_limit": options.batch_limit,
        "domain": {k: (float(v.min()), float(v.max())) for k, v in m.values.items() if k not in TARGETS[m.kind]},
        "provenance": {k: str(v) for k, v in m.source.items()}
        | {"rows": str(len(m)), "weighting": "relative" if options.relative else "absolute"},
    }
    if reference is not None:
        kept |= {
            "gpu": reference.gpu,
            "llm": reference.llm,
            "precision": reference.precision,
            "kv_precision": reference.kv_precision,
        }
    targets, warnings, held_back = {}, [], {}
    for target in names:
        targets[target], said, held_back[target] = _target(m, model, target, options)
        warnings += said
    if "mixes" in m.source:
        warnings.append(f"several deployments as one: {m.source['mixes']}; keep one with --where")
    count = len(np.unique(m.workload))
    if count <= FEW_WORKLOADS and m.kind != "pairs":
        by = " × ".join(m.workload_by)
        few = f"{count} workload{'s' * (count != 1)} by {by}: too few to tell models apart or how far this one errs"
        warnings.append(few + (FEW_SERVED if m.kind == "served" else ""))
    final = LatencyModel.model_validate(kept | {"targets": targets, "warnings": tuple(dict.fromkeys(warnings))})
    return Calibrated(final, held_back)


def _target(m: Measurements, model: str, target: str, options: FitOptions) -> tuple[Target, list[str], Array]:
    segments, said = fit_segments(model, m, target, options)
    warnings = list(said)
    y = m.values[target]
    frame = Frame(model, m.kind, options.reference, options.batch_limit)
    predicted = predict_segments(frame, segments, m.values, target)
    held = np.full(len(y), np.nan)
    fold = folds(m.workload)
    failed = 0
    for k in np.unique(fold):
        test = fold == k
        try:
            part, _ = fit_segments(model, m.take(~test), target, options)
        except InputError:
            failed += int(test.sum())
            continue
        held[test] = predict_segments(frame, part, m.take(test).values, target)
    ok = np.isfinite(held) & (held > 0)
    if failed:
        warnings.append(
            f"{target}: {failed} of {len(y)} rows could not be held back: without them the rest cannot be fitted"
        )
    by = " × ".join(m.workload_by)
    cross = errors(y[ok], held[ok]) if ok.any() else None
    count = len(np.unique(fold))
    if cross is None:
        warnings.append(
            f"{target}: no cross-validation is possible (one workload by {by}): "
            "residual quantiles are in sample and optimistic"
        )
    elif cross.p90 > 3 * max(errors(y, predicted).p90, 0.01):
        warnings.append(
            f"{target}: held-back workloads err {cross.p90:.0%} at p90 against "
            f"{errors(y, predicted).p90:.0%} in sample: do not extrapolate"
        )
    return (
        Target(
            segments=segments,
            in_sample=errors(y, predicted),
            cross_validated=cross,
            held_back=f"whole workloads ({by}), {count} folds" if cross is not None else "",
            residual_quantiles=residual_quantiles(y[ok], held[ok]) if ok.any() else residual_quantiles(y, predicted),
        ),
        warnings,
        held,
    )


def _auto(m: Measurements, options: FitOptions, title: str, source: str, date: str | None) -> Calibrated:
    """The model of least cross-validated error; a simpler one if it comes within one standard error (or 2 %).

    Every target counts: a model's score is its MAPE over the least of any model, in the mean over the targets (TTFT and
    time per output token of served requests), and a simpler one has to come as near in each of them.
    """
    names = TARGETS[m.kind]
    tried: dict[str, float | str] = {}
    fitted: dict[str, Calibrated] = {}
    mape: dict[str, Array] = {}  # by target
    spread: dict[str, Array] = {}
    for model in MODELS:
        if not targets_of(model, m.kind) or (model == "scaled" and m.kind != "pairs" and options.reference is None):
            continue
        try:
            found = calibrate_measurements(m, model, options, title=title, source=source, date=date)
        except InputError as error:
            tried[model] = error.mistakes[0].expected
            continue
        cross = [found.model.targets[name].cross_validated for name in names]
        if any(c is None for c in cross):
            tried[model] = "cannot be cross-validated: one workload"
            continue
        fitted[model] = found
        mape[model] = np.array([c.mape for c in cross if c is not None])
        spread[model] = np.array([_spread(m, name, found.held_back[name]) for name in names])
    if not fitted:
        raise InputError(
            Mistake(
                None,
                "model",
                "auto",
                "measurements that some model can be fitted to and cross-validated on: "
                + "; ".join(f"{k}: {v}" for k, v in tried.items()),
            )
        )
    least = np.maximum(np.min(list(mape.values()), axis=0), 1e-4)
    tried |= {k: float((mape[k] / least).mean()) for k in mape}
    best = min(fitted, key=lambda k: float(tried[k]))
    within = mape[best] + np.minimum(spread[best], 0.02 * mape[best] + 0.005)
    chosen = next(k for k in MODELS if k in fitted and (mape[k] <= within).all())
    labels = {"ttft_s": "TTFT ", "tpot_s": "TPOT "} if len(names) > 1 else {}
    why = [
        f"{k}: held-back MAPE " + ", ".join(f"{labels.get(n, '')}{e:.1%}" for n, e in zip(names, mape[k], strict=True))
        if k in mape else f"{k}: {v}" for k, v in tried.items()
    ]  # fmt: skip
    why.append(
        f"chose {chosen}: least error on held-back workloads"
        if chosen == best
        else f"chose {chosen}: simpler than {best} and as good within the spread between workloads"
    )
    result = fitted[chosen]
    return Calibrated(result.model.model_copy(update={"why": tuple(why)}), result.held_back, tried)


def _spread(m: Measurements, target: str, held: Array) -> float:
    """Standard error over workloads of the mean held-back error."""
    ok = np.isfinite(held)
    error_of = np.abs(held[ok] / m.values[target][ok] - 1.0)
    means = np.array([error_of[m.workload[ok] == w].mean() for w in np.unique(m.workload[ok])])
    return float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else 0.0


def to_calibration(model: LatencyModel) -> Calibration:
    """A ``scaled`` model as the coefficients file (`latency.calibration`) that instance files name.

    Raises:
        InputError: another model.
    """
    if model.model != "scaled":
        raise InputError(
            Mistake(None, "model", model.model, "scaled: only β₁, β₀ of LP(18) apply to a problem's own curves")
        )
    found = []
    phases: dict[str, tuple[tuple[str, str, str], ...]] = {
        "served": (("prefill", "ttft_s", "_prefill"), ("decode", "tpot_s", "_decode")),
        "static": (("prefill", "latency_s", "_prefill"), ("decode", "latency_s", "_decode")),
    }
    for phase, target, suffix in phases.get(model.measured, ()):
        names = f"roofline{suffix}", f"offset{suffix}"
        found.append(_scaled(model.targets[target], *names, None, gpu=model.gpu or "*", phase=phase))
    return Calibration.model_validate(
        {
            "schema": 1,
            "title": model.title or f"{model.llm} on {model.gpu}: LP(18) from {model.measured} measurements",
            "source": model.source,
            "date": model.date,
            "coefficients": found,
            "model": model,
        }
    )


def _scaled(target: Target, slope: str, intercept: str, file: str | None, **where: str) -> ScaledCoefficient:
    """LP(18) of a fitted target by the names of its two coefficients; `where`: GPU, family and phase."""
    value = {c.name: c.value for c in target.segments[0].terms}
    lp18 = {"slope": max(value.get(slope, 0.0), 1e-9), "intercept_s": value.get(intercept, 0.0)}
    return validate(ScaledCoefficient, where | lp18 | {"residual_quantiles": target.residual_quantiles}, file)


def calibrate_pairs(m: Measurements, *, title: str = "", source: str = "", date: str | None = None) -> Calibration:
    """LP(18) for each (GPU, family, phase) among pairs of predicted and measured latency.

    Raises:
        InputError: fewer than three pairs of some group, an unknown family or phase.
    """
    families = set(m.labels["family"].tolist())
    groups = sorted(
        set(zip(m.labels["gpu"].tolist(), m.labels["family"].tolist(), m.labels["phase"].tolist(), strict=True))
    )
    found = []
    for gpu, family, phase in groups:
        rows = (m.labels["gpu"] == gpu) & (m.labels["family"] == family) & (m.labels["phase"] == phase)
        target, file = calibrate_measurements(m.take(rows), "scaled").model.targets["latency_s"], m.source.get("file")
        # A pass of LP(17) is a high-end run: measured once, it counts for both.
        found += [
            _scaled(target, "predicted_s", "offset", file, gpu=gpu, family=name, phase=phase)
            for name in ((family, "multi_pass") if family == "high_end" and "multi_pass" not in families else (family,))
        ]
    return Calibration.model_validate(
        {
            "schema": 1,
            "title": title,
            "source": source,
            "date": date or datetime.date.today().isoformat(),
            "coefficients": found,
        }
    )
