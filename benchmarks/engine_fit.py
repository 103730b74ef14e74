"""The engines' global coefficients fitted to all rows, in the two stages of `optmodels.latency.engines.fit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from optmodels.arrays import Array
from optmodels.latency.engines import fit as parts
from optmodels.latency.engines.fit import Fitted, Form, Labels


def fit(form: Form, terms: Mapping[str, Array], seconds: Array, labels: Labels) -> Fitted:
    """Fit both stages.

    Args:
        form: priors.
        terms: terms by the names of the form's priors and trends, (n,) each.
        seconds: measured, (n,).
        labels: labels for every grouping of the form, (n,).
    """
    names = list(form.prior)
    X = np.stack([terms[name] for name in names], axis=1)
    target = np.log(seconds)
    J = len(names)
    unknown = parts._Unknown()
    unknown.add(np.log([form.prior[n][0] for n in names]), [form.prior[n][1] for n in names])
    own, read_levels = parts._levels(form.spread, names, labels, unknown)
    theta = parts._mode(X, target, [np.broadcast_to(np.arange(J), X.shape), *own], [], unknown, form.noise[0])
    first = Fitted(dict(zip(names, np.exp(theta[:J]).tolist(), strict=True)), read_levels(theta), {})

    unknown = parts._Unknown()
    wholes, read = parts._wholes(form.factors, form.trends, terms, labels, unknown)
    theta = parts._mode(first.predict(terms, labels)[:, None], target, [], wholes, unknown, form.noise[1])
    return Fitted(first.coefficients, first.adjustments, *read(theta))


def extend(form: Form, fitted: Fitted, terms: Mapping[str, Array], seconds: Array, labels: Labels) -> Fitted:
    """A fit with factors and trends of further levels, by the priors of stage 2; every level that it has stays.

    Args:
        form: `factors`, `trends`, `noise[1]`.
        fitted: coefficients, adjustments, factors and trends of earlier rows.
        terms, seconds, labels: further rows, as for `fit`.
    """
    unknown = parts._Unknown()
    wholes, read = parts._wholes(form.factors, form.trends, terms, labels, unknown)
    groupings = [*form.factors, *(g for g, names in form.trends.items() for _ in names)]
    wholes = [  # along 0, where no known level counts
        (index, along * ~np.isin(np.asarray(labels[g], dtype=str), sorted(fitted.factors.get(g, ()))))
        for (index, along), g in zip(wholes, groupings, strict=True)
    ]
    theta = parts._mode(fitted.predict(terms, labels)[:, None], np.log(seconds), [], wholes, unknown, form.noise[1])
    factors, trends, reach = read(theta)

    def and_new(known: Mapping[str, Mapping[str, Any]], read_now: Mapping[str, Mapping[str, Any]]) -> Any:
        new = {g: {v: x for v, x in e.items() if v not in fitted.factors.get(g, ())} for g, e in read_now.items()}
        return {g: new.get(g, {}) | dict(known.get(g, {})) for g in {**known, **new}}

    return replace(
        fitted, trends=and_new(fitted.trends, trends), reach=and_new(fitted.reach, reach),
        factors={g: factors.get(g, {}) | fitted.factors.get(g, {}) for g in {**fitted.factors, **factors}},
    )  # fmt: skip
