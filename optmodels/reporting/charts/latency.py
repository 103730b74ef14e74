"""Charts of latency models: residuals of a calibration, a piecewise-linear table against its curve."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from optmodels.latency.fit.calibrate import Calibrated
from optmodels.latency.fit.measurements import Measurements
from optmodels.latency.piecewise import Table
from optmodels.reporting.charts import Chart, chart, coloured, shortened
from optmodels.reporting.charts.channels import amounts
from optmodels.reporting.colours import SERIES

HELD_BACK, IN_SAMPLE = "workload held back", "in sample"
QUANTILE = 0.995  # of the residuals; the axis ends there


def residuals(m: Measurements, fitted: Calibrated) -> Chart:
    """Predicted/measured against measured, in sample and held back, one panel for each target."""
    rows: list[dict[str, Any]] = []
    panels = []
    for target in fitted.model.targets:
        y = m.values[target]
        inside = fitted.model.predict(m.values, target) / y - 1.0
        held = fitted.held_back[target] / y - 1.0
        for kind, error in ((HELD_BACK, held), (IN_SAMPLE, inside)):
            rows += [{"target": target, "kind": kind, "measured": float(y[i]), "error": float(error[i])}
                     for i in np.flatnonzero(np.isfinite(error))]  # fmt: skip
        shown = np.concatenate([inside, held[np.isfinite(held)]])
        limit = float(np.quantile(np.abs(shown), QUANTILE)) + 0.01
        encoding = {
            "x": amounts("measured", f"measured {shortened(target)}", axis={"format": ",~r", "tickCount": 6},
                         scale={"type": "log", "nice": False, "padding": 10}),
            "y": amounts("error", "predicted / measured − 1", "~%", scale={"domain": [-limit, limit], "nice": False}),
            "color": coloured("kind", [HELD_BACK, IN_SAMPLE], (SERIES[1], SERIES[0])),
        }  # fmt: skip
        dots = {"mark": {"type": "point", "filled": True, "size": 18, "opacity": 0.6, "clip": True},
                "encoding": encoding, "transform": [{"filter": {"field": "target", "equal": target}}]}  # fmt: skip
        zero = {"mark": {"type": "rule", "color": "#333"}, "encoding": {"y": {"datum": 0}}}
        panels.append({"width": 420, "height": 280, "layer": [dots, zero]})
    return chart(
        f"Residuals of the {fitted.model.model} model",
        "Relative error of every measurement, of the fit to all and of fits that held its workload back.",
        rows, {"hconcat": panels},
    )  # fmt: skip


def table(t: Table, x: npt.ArrayLike, y: npt.ArrayLike) -> Chart:
    """A curve with its table's breakpoints; below, the table's relative error within its certified bound."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    curve, points = f"curve, {len(x)} points", f"table, {len(t.x)} breakpoints ({t.encoding})"
    rows = [{"kind": curve, "x": float(a), "y": float(b), "error": float(e)}
            for a, b, e in zip(x, y, t(x) / y - 1.0, strict=True)]  # fmt: skip
    rows += [{"kind": points, "x": float(a), "y": float(b)} for a, b in zip(t.x, t.y, strict=True)]
    axis = amounts("x", scale={"zero": False, "nice": False})
    kind = coloured("kind", [curve, points])
    layers = [
        {"mark": mark, "transform": [{"filter": {"field": "kind", "equal": which}}],
         "encoding": {"x": axis | {"title": None}, "color": kind, "y": amounts("y", shortened(t.name_y))}}
        for which, mark in ((curve, {"type": "point", "filled": True, "size": 14}),
                            (points, {"type": "line", "strokeWidth": 1.5, "point": {"size": 45}}))
    ]  # fmt: skip
    bounds = [{"mark": {"type": "rule", "strokeDash": [4, 3]}, "encoding": {"y": {"datum": sign * t.max_error}}}
              for sign in (-1, 1)]  # fmt: skip
    error = {"mark": {"type": "line", "color": "#333"}, "transform": [{"filter": {"field": "kind", "equal": curve}}],
             "encoding": {"x": axis | {"title": shortened(t.name_x)},
                          "y": amounts("error", "error", axis={"format": "~%", "tickCount": 4})}}  # fmt: skip
    panels = [{"width": 560, "height": 280, "layer": layers}, {"width": 560, "height": 90, "layer": [error, *bounds]}]
    return chart(
        f"{shortened(t.name_y)} by {shortened(t.name_x)}",
        "The curve and the table's breakpoints; below, the table's relative error and its certified bound, dashed.",
        rows, {"vconcat": panels},
    )  # fmt: skip
