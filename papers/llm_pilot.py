"""LLM-Pilot reproduced from the shipped instances: Table VIII, Table IX, Fig. 1 and the decision map of Fig. 3.

    python -m papers.llm_pilot [--only table-viii|table-ix|fig1|fig3] [--instances DIR] [--out DIR]

Prints, for every figure of the paper that can be recomputed, ours beside it, and says where they differ and why.
docs/papers/llm-pilot.md discusses the outcome.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from formulations.cost_efficiency.making import best_row, family_line, make_plan
from formulations.cost_efficiency.plan import CostPlan
from formulations.cost_efficiency.points import CostTables, build_tables
from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.batch.points import NONE
from optmodels.formulation import Options, get
from optmodels.latency.strategies import FAMILIES, FAMILY_TITLES
from optmodels.loading import load
from optmodels.reporting.charts import chart, coloured, save_chart
from optmodels.reporting.colours import FAMILY_COLOURS

WORKLOADS = {"generative": (128, 1024), "balanced": (512, 512), "summarization": (1024, 128)}
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)

# Table VIII: (family, main, AO, N) → workload → (real, predicted) E2E seconds at B = 32, α = 1.
TABLE_VIII: dict[tuple[str, str, str | None, int], dict[str, tuple[float, float]]] = {
    ("high_end", "g6e.2xlarge", None, 1): {
        "generative": (39.4, 38.5), "balanced": (20.8, 20.3), "summarization": (8.2, 8.0)},
    ("ao", "g5.xlarge", "g4dn.4xlarge", 1): {
        "generative": (68.5, 65.2), "balanced": (36.4, 34.5), "summarization": (11.8, 10.9)},
    ("ao_shared", "g5.xlarge", "g4dn.4xlarge", 2): {
        "generative": (78.6, 73.1), "balanced": (41.2, 38.5), "summarization": (13.5, 12.4)},
    ("kvo_disk", "g4dn.xlarge", None, 1): {
        "generative": (368.5, 335.2), "balanced": (189.2, 172.5), "summarization": (49.8, 45.6)},
}  # fmt: skip

# Table IX and §V-C: (service, budget) → method → CE in tokens/s per USD/h; None: infeasible.
TABLE_IX: dict[tuple[str, float], dict[str, float | None]] = {
    ("real_time", 1.0): {"LLM-Pilot": 110.0, "infersave": None, "high_end": None},
    ("real_time", 2.0): {"LLM-Pilot": 110.0, "infersave": None, "high_end": 53.7},
    ("batch", 1.0): {"LLM-Pilot": 121.0, "infersave": 87.0, "high_end": 87.0},
    ("batch", 2.0): {"LLM-Pilot": 121.0, "infersave": 52.3, "high_end": 80.6},
}


def paper_pick(workload: str, service: str, batch: int) -> str | None:
    """The strategy of Fig. 3, as §V-D words it; None where it says that none is feasible."""
    if service == "real_time":
        if batch <= 2:
            return None
        if batch <= 32:
            return "ao"
        if batch == 64:
            return "multi_pass" if workload == "summarization" else "ao_parallel"
        return "ao_shared"
    if batch == 1:
        return "high_end" if workload == "summarization" else "ao"
    if batch <= 8:
        return "ao"
    return "kvo_ram" if batch <= 64 else "ao_shared"


# -------------------------------------------------------------------------------------------------- Table VIII


def table_viii() -> pd.DataFrame:
    """E2E of Table VIII's configurations under both variants, uncalibrated, beside the paper's two columns."""
    rows = []
    for (family, main, ao, count), cells in TABLE_VIII.items():
        for workload, (real, predicted) in cells.items():
            row: dict[str, Any] = {
                "configuration": FAMILY_TITLES[family], "workload": workload, "real_s": real, "paper_s": predicted,
            }  # fmt: skip
            for variant in ("paper", "roofline"):
                first, decode, load_ = _raw(variant, workload, family, main, ao, count)
                row |= {f"{variant}_prefill_s": first, f"{variant}_decode_s": decode}
                row[f"{variant}/real"] = (first + decode) / real
                row[f"{variant}_load"] = load_
            rows.append(row)
    return pd.DataFrame(rows)


def _raw(variant: str, workload: str, family: str, main: str, ao: str | None, count: int) -> tuple[float, float, float]:
    """Prefill and decode seconds and AO load of one Table VIII cell, B = 32, α = 1 (0 without offloading)."""
    tables = build_tables(_table_viii_problem(variant, workload, family))
    c, names = tables.configurations, [m.machine for m in tables.machines]
    found = [
        i for i in range(len(c))
        if names[c.main[i]] == main and (ao is None or names[c.ao[i]] == ao) and c.count[i] == count
    ]  # fmt: skip
    curve = tables.curves.take(np.array(found))
    alpha = np.array([0.0 if family == "high_end" else 1.0])
    tbt = float(curve.tbt(alpha)[0])
    return float(curve.ttft(alpha)[0]), curve.steps * tbt, float(curve.load(alpha)[0])


def _table_viii_problem(variant: str, workload: str, family: str) -> CostEfficiency:
    s_in, s_out = WORKLOADS[workload]
    return CostEfficiency.model_validate({
        "formulation": "cost_efficiency", "schema": 1, "serving": "static", "model": "opt-6.7b",
        "workload": {"batch": 32, "input_tokens": s_in, "output_tokens": s_out},
        "slo": {"kind": "batch", "tps": 1}, "pool": {"catalog": "llm-pilot-table-vii"},
        "strategies": {"families": [family], "replicas": [1]}, "latency": {"variant": variant},
        "memory": {"vram_usable": 1.0, "ram_usable": 1.0},
    })  # fmt: skip


def fit_table_viii(frame: pd.DataFrame, variant: str, configuration: str) -> tuple[float, float, float]:
    """LP(18) slopes of prefill and decode for one configuration's three workloads, and the largest relative error."""
    from scipy.optimize import nnls

    mine = frame[frame["configuration"] == configuration]
    times = mine[[f"{variant}_prefill_s", f"{variant}_decode_s"]].to_numpy()
    real = mine["real_s"].to_numpy()
    slopes, _ = nnls(times / real[:, None], np.ones(len(real)))
    return float(slopes[0]), float(slopes[1]), float(np.abs(times @ slopes / real - 1).max())


# ---------------------------------------------------------------------------------------------------- Table IX


def table_ix(folder: Path) -> pd.DataFrame:
    """Best CE with Table IX's throughputs and Table VI's prices, under three readings of which market is allowed."""
    readings: dict[str, dict[str, Any]] = {
        "any market": {},
        "on demand + spot AO": {"main": ("on_demand",), "ao": ("on_demand", "spot")},
        "on demand": {"main": ("on_demand",), "ao": ("on_demand",)},
    }
    rows = []
    for (service, budget), stated in TABLE_IX.items():
        problem = cast(CostEfficiency, load(folder / "table_ix" / f"{service}-budget-{budget:.1f}.yaml"))
        row: dict[str, Any] = {"service": service, "budget": budget, "paper": stated["LLM-Pilot"]}
        for reading, markets in readings.items():
            changed = problem.model_copy(update={"markets": problem.markets.model_copy(update=markets)})
            changed._folder = problem._folder
            plan = _best(build_tables(changed))
            row[reading] = None if plan is None else _ce(changed, plan)
            row[f"{reading}: plan"] = "infeasible" if plan is None else _machines(plan)
        rows.append(row)
    return pd.DataFrame(rows)


def _best(tables: CostTables, mask: Any = None) -> CostPlan | None:
    row = best_row(tables, mask)
    if row is None:
        return None
    return make_plan(tables, row, float(tables.optimum.alpha[tables.candidates.configuration[row]]))


def _ce(problem: CostEfficiency, plan: CostPlan) -> float:
    """CE in the paper's unit and this problem's reading."""
    value = plan.ce_capped if problem.objective == "capped" else plan.ce_uncapped
    return value.tps_per_usd_per_hour


def _machines(plan: CostPlan) -> str:
    short = {"on_demand": "od", "spot": "spot", "reserved_1y": "1y", "reserved_3y": "3y"}
    return " + ".join(f"{f'{m.count}×' if m.count > 1 else ''}{m.machine} {short[m.market]}" for m in plan.machines)


# ----------------------------------------------------------------------------------------------------- figures


FIG1_METHODS = ("exact", "high_end", "kvo_disk", "infersave_plus", "ao_cluster")


def fig1(folder: Path) -> pd.DataFrame:
    """CE by budget and method on Table VI's pool (Fig. 1)."""
    form = get("cost_efficiency")
    rows = []
    for path in sorted((folder / "fig1").glob("*.yaml")):
        problem = cast(CostEfficiency, load(path))
        tables = build_tables(problem)
        for method in FIG1_METHODS:
            plan = form.method(method)(problem, tables, Options()).plan
            rows.append({
                "service": "batch" if problem.slo.kind == "batch" else "real_time",
                "budget": problem.budget_usd_per_hour, "method": method,
                "ce": np.nan if plan is None else _ce(problem, plan),
                "plan": "infeasible" if plan is None else plan.headline(),
            })  # fmt: skip
    return pd.DataFrame(rows)


def ao_pair_by_batch(folder: Path) -> pd.DataFrame:
    """TTFT, TBT and TPS of the paper's first pick, Sim-D + Sim-A 1:1, by batch size and variant."""
    shipped = cast(CostEfficiency, load(folder / "fig1" / "real_time-budget-2.0.yaml"))
    rows = []
    for variant, calibration in (("roofline", shipped.latency.calibration), ("paper", None)):
        latency = shipped.latency.model_copy(update={"variant": variant, "calibration": calibration})
        for batch in BATCHES[:6]:
            workload = shipped.workload.model_copy(update={"batch": batch})
            tables = build_tables(shipped.model_copy(update={"workload": workload, "latency": latency}))
            c, names = tables.configurations, np.array([m.machine for m in tables.machines])
            pair = (c.family == FAMILIES.index("ao")) & (names[c.main] == "Sim-D") & (names[c.ao] == "Sim-A")
            o, i = tables.optimum, int(np.flatnonzero(pair)[0])
            rows.append({
                "variant": variant, "batch": batch, "alpha": o.alpha[i], "ttft_ms": 1e3 * o.ttft_s[i],
                "tbt_ms": 1e3 * o.tpot_s[i], "tps": tables.case.tokens / o.e2e_s[i],
            })  # fmt: skip
    return pd.DataFrame(rows)


def testbed_only(tables: CostTables) -> Any:
    """Candidates of the machines that LP §V-A4 fixes for each strategy."""
    names = np.array([m.machine for m in tables.machines])
    c, of = tables.configurations, tables.candidates.configuration
    main, ao = names[c.main], np.where(c.ao == NONE, "", names[c.ao])
    family = np.array(FAMILIES)[c.family]
    ok = np.isin(family, ["high_end", "multi_pass"]) & (main == "g6e.2xlarge")
    ok |= (family == "kvo_disk") & (main == "g4dn.xlarge")
    ok |= (family == "kvo_ram") & np.isin(main, ["g5.4xlarge", "g5.8xlarge"])
    ok |= np.isin(family, ["ao", "ao_parallel", "ao_shared"]) & (main == "g5.xlarge") & (ao == "g4dn.4xlarge")
    return ok[of]


def fig3(folder: Path) -> pd.DataFrame:
    """Our pick for every cell of Fig. 3, by variant and by whether machines are free or the testbed's."""
    rows = []
    for path in sorted((folder / "fig3").glob("*.yaml")):
        workload, service, batch = path.stem.rsplit("-", 2)
        shipped = cast(CostEfficiency, load(path))
        printed = shipped.model_copy(
            update={"latency": shipped.latency.model_copy(update={"variant": "paper", "calibration": None})}
        )
        row: dict[str, Any] = {"workload": workload, "service": service, "batch": int(batch[1:])}
        row["paper"] = paper_pick(workload, service, row["batch"]) if workload != "balanced" else ""
        for name, problem in (("roofline", shipped), ("paper", printed)):
            tables = build_tables(problem)
            for scope, mask in (("free", None), ("testbed", testbed_only(tables))):
                plan = _best(tables, mask)
                row[f"{name}/{scope}"] = None if plan is None else plan.family
                row[f"{name}/{scope} CE"] = np.nan if plan is None else _ce(problem, plan)
            pick = row["paper"]
            row[f"{name} on the paper's pick"] = "" if not pick else _verdict(tables, pick)
        rows.append(row)
    return pd.DataFrame(rows)


def _verdict(tables: CostTables, family: str) -> str:
    """What the model says of a family: feasible, or the limit that kills it."""
    line = family_line(tables, cast(Any, family), lambda row: row)
    if line["plan"] is not None:
        return "feasible"
    return ", ".join(k["name"] for k in line["killed_by"]) or line["reason"]


# ----------------------------------------------------------------------------------------------------- pictures


def draw_fig1(frame: pd.DataFrame, path: Path) -> None:
    """CE against budget, one line a method."""
    named = {"exact": "optimum", "high_end": "High-End", "kvo_disk": "KVO (disk)", "infersave_plus": "InferSave(+)",
             "ao_cluster": "AO cluster (fixed pair)"}  # fmt: skip
    panels = {"real_time": "Real-time: CE capped at 100 tokens/s", "batch": "Batch: CE uncapped, SLO 10 tokens/s"}
    rows = [
        {"panel": panels[r["service"]], "method": named[r["method"]], "budget": r["budget"], "ce": r["ce"],
         "width": 3.0 if r["method"] == "exact" else 1.5}
        for r in frame.to_dict("records") if r["method"] in named and np.isfinite(r["ce"])
    ]  # fmt: skip
    encoding = {
        "x": {"field": "budget", "type": "quantitative", "title": "budget, USD per hour"},
        "y": {"field": "ce", "type": "quantitative", "title": "tokens/s per USD/h"},
        "color": coloured("method", named.values()),
        "shape": coloured("method", named.values(), ("circle", "square", "diamond", "triangle-up", "triangle-down")),
    }
    width = {"strokeWidth": {"field": "width", "type": "quantitative", "scale": None, "legend": None}}
    lines = {"mark": {"type": "line"}, "encoding": {k: v for k, v in encoding.items() if k != "shape"} | width}
    points = {"mark": {"type": "point", "filled": True, "opacity": 1, "size": 40}, "encoding": encoding}
    spec = {
        "facet": {"field": "panel", "type": "nominal", "sort": list(panels.values()), "title": None},
        "spec": {"width": 380, "height": 260, "layer": [lines, points]},
        "resolve": {"scale": {"y": "independent"}},
    }
    title = "LLM-Pilot Fig. 1 recomputed"
    of = "Balanced, B = 4, roofline variant, Table VI's pool; no marker: infeasible"
    save_chart(chart(title, of, rows, spec), path, of, overwrite=True)


def draw_fig3(frame: pd.DataFrame, path: Path) -> None:
    """Decision maps: the paper's, and ours with the testbed's machines and with free choice."""
    columns = {"paper": "as printed in Fig. 3", "roofline/testbed": "ours, the testbed's machines",
               "roofline/free": "ours, any machine of Table VII"}  # fmt: skip
    services, workloads = {"real_time": "real-time", "batch": "batch"}, {"generative": "Gen", "summarization": "Sum"}
    titles: dict[str | None, str] = {**{f: FAMILY_TITLES[f] for f in FAMILIES}, None: "infeasible"}
    rows = []
    for cell in frame[frame["workload"].isin(workloads)].to_dict("records"):
        for column, of in columns.items():
            family = cell[column] if isinstance(cell[column], str) and cell[column] else None
            ce = cell.get(f"{column} CE", np.nan)
            rows.append({
                "map": of, "service": services[cell["service"]], "workload": workloads[cell["workload"]],
                "batch": cell["batch"], "family": titles[family],
                "ce": "–" if family is None else ("" if np.isnan(ce) else f"{ce:.0f}"),
            })  # fmt: skip
    place = {
        "x": {"field": "batch", "type": "ordinal", "title": "batch size", "axis": {"labelAngle": 0}},
        "y": {"field": "workload", "type": "nominal", "title": None, "sort": list(workloads.values())},
    }
    colour = coloured("family", titles.values(), [FAMILY_COLOURS[f] for f in titles])
    layers = [
        {"mark": {"type": "rect", "stroke": "#fff"}, "encoding": place | {"color": colour}},
        {"mark": {"type": "text", "fontSize": 11}, "encoding": place | {"text": {"field": "ce"}}},
    ]
    spec = {
        "facet": {
            "column": {"field": "map", "type": "nominal", "sort": list(columns.values()), "title": None},
            "row": {"field": "service", "type": "nominal", "sort": list(services.values()), "title": None},
        },
        "spec": {"width": 290, "height": 70, "layer": layers},
    }
    of = "The strategy with the best CE by batch size, workload and service; numbers are CE, tokens/s per USD/h"
    save_chart(chart("LLM-Pilot Fig. 3 recomputed", of, rows, spec), path, of, overwrite=True)


# ------------------------------------------------------------------------------------------------------- report


def _say(text: str) -> None:
    print(text)  # noqa: T201 - a report on stdout is what this module is for


def _show(title: str, frame: pd.DataFrame) -> None:
    with pd.option_context("display.width", 250, "display.max_columns", 40, "display.max_rows", 200):
        _say(f"\n## {title}\n\n{frame.to_string(index=False, na_rep='–', float_format='{:.3g}'.format)}")


def run_table_viii(folder: Path, out: Path) -> None:
    """Print Table VIII."""
    frame = table_viii()
    _show("Table VIII: E2E at B = 32, α = 1; ours without calibration", frame)
    for configuration in frame["configuration"].unique():
        for variant in ("paper", "roofline"):
            mine = frame[frame["configuration"] == configuration]
            if not np.isfinite(mine[f"{variant}_decode_s"]).all():
                _say(f"{configuration}, {variant}: AO machine saturated (ρ ≥ 1), no fit")
                continue
            prefill, decode, error = fit_table_viii(frame, variant, configuration)
            _say(f"{configuration}, {variant}: LP(18) slopes prefill {prefill:.3f}, decode {decode:.3f},"
                  f" largest error {error:.1%}")  # fmt: skip


def run_table_ix(folder: Path, out: Path) -> None:
    """Print Table IX."""
    _show("Table IX: CE in tokens/s per USD/h, from the throughputs the table implies", table_ix(folder))


def run_fig1(folder: Path, out: Path) -> None:
    """Print and draw Fig. 1."""
    frame = fig1(folder)
    frame.to_csv(out / "fig1.csv", index=False)
    table = frame.pivot_table(index=["service", "budget"], columns="method", values="ce", dropna=False).reset_index()
    _show("Fig. 1: CE by budget", table[["service", "budget", *FIG1_METHODS]])
    for service in ("real_time", "batch"):
        best = frame[(frame["service"] == service) & (frame["method"] == "exact")]
        _say(f"{service}: " + "; ".join(f"{b:.1f} $/h: {p}" for b, p in zip(best["budget"], best["plan"], strict=True)))
    _show(
        "Fig. 1: the paper's pick Sim-D + Sim-A (SLO: TTFT 200 ms, TBT 50 ms, 100 tokens/s)", ao_pair_by_batch(folder)
    )
    draw_fig1(frame, out / "fig1.png")
    _say(f"picture: {out / 'fig1.png'}")


def run_fig3(folder: Path, out: Path) -> None:
    """Print and draw Fig. 3."""
    frame = fig3(folder)
    frame.to_csv(out / "fig3.csv", index=False)
    shown = frame.drop(columns=[c for c in frame.columns if c.endswith(" CE")])
    _show("Fig. 3: strategy per cell", shown)
    cells = frame[frame["workload"] != "balanced"]
    for column in ("roofline/free", "roofline/testbed", "paper/free", "paper/testbed"):
        same = (cells[column].fillna("") == cells["paper"].fillna("")).sum()
        _say(f"{column}: agrees with the paper's pick in {same} of {len(cells)} cells")
    picks = cells[cells["paper"].notna()]
    for name in ("roofline", "paper"):
        killed = picks[picks[f"{name} on the paper's pick"] != "feasible"]
        _say(f"{name}: the paper's own pick is infeasible in {len(killed)} of {len(picks)} cells, by "
              f"{killed[f'{name} on the paper' + chr(39) + 's pick'].value_counts().to_dict()}")  # fmt: skip
    draw_fig3(frame, out / "fig3.png")
    _say(f"picture: {out / 'fig3.png'}")


PARTS: dict[str, Callable[[Path, Path], None]] = {
    "table-viii": run_table_viii,
    "table-ix": run_table_ix,
    "fig1": run_fig1,
    "fig3": run_fig3,
}


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=list(PARTS))
    parser.add_argument("--instances", type=Path, default=Path("instances/cost_efficiency"))
    parser.add_argument("--out", type=Path, default=Path("results/llm_pilot"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, part in PARTS.items():
        if arguments.only in (None, name):
            part(arguments.instances, arguments.out)


if __name__ == "__main__":
    main()
