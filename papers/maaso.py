"""MaaSO's Fig. 4: cluster size, burstiness and number of requests on the six traces of Table I, method by method.

    python -m papers.maaso [--quick] [--traces 1,4] [--points 15] [--methods exact,greedy_dp,…] [--out DIR]

Every method plans the same requests and its plan is replayed on them by its own dispatcher, and by the same without
overflow protection. The rows of a point go into OUT/fig4.csv when they are done, and are not computed again; pictures
are drawn of what is there. What the paper's text has lost or never stated is chosen here, once: see `case`; weaker
readings of its methods are in `maaso_readings`. docs/papers/maaso.md discusses the outcome.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.problem import Orchestration
from optmodels.formulation import Options, get
from optmodels.reporting.charts import chart, coloured, save_chart
from optmodels.simulation.options import ReplayOptions
from optmodels.study.pool import pool
from papers.maaso_readings import READINGS

TITLES = {
    "exact": "exact", "greedy_dp_exchange": "MaaSO, then exchanges", "greedy_dp": "MaaSO (greedy_dp)",
    "maaso_star": "MaaSO*", "alpaserve": "AlpaServe", "selective_replication": "Selective Replication",
    "round_robin": "round robin",
}  # fmt: skip
GAPS = {"exact": 1e-3, "exact_half_percent": 5e-3}  # of plans within the gap, exact returns the one that replays best
METHODS = (*GAPS, *(m for m in TITLES if m != "exact"), "maaso_printed", *READINGS)
FOUND = (
    "objective", "predicted_attainment", "attainment", "attainment_unprotected", "attainment_by_name", "latency_s",
    "latency_unprotected_s", "goodput_tokens_per_s", "gpu_use", "policy", "instances", "check",
)  # fmt: skip
KEY = ["trace", "gpus", "cv", "requests"]
OURS = ("greedy_dp", "maaso_star", "maaso_printed")
TRACES = (1, 2, 3, 4, 5, 6)
SERIES: dict[str, tuple[float, ...]] = {
    "gpus": (8, 16, 24, 32, 48, 64),
    "cv": (1, 2, 4, 8),
    "requests": (2_000, 5_000, 10_000, 20_000, 40_000),
}
QUICK: dict[str, tuple[float, ...]] = {"gpus": (8, 16), "cv": (4,), "requests": (800,)}
DEFAULT = {"gpus": 24, "cv": 2.0, "requests": 10_000}
QUICK_DEFAULT = {"gpus": 8, "cv": 2.0, "requests": 1_500}
WINDOW_S = 300.0  # all requests arrive within about so long
TIME_LIMIT_S = 20.0  # of exact
BELOW = 0.005  # attainment by which exact may be below a heuristic in replay
BINS = {"lengths": 2, "slo": 3}

# Idle tokens/s of one GPU: 60 % of what a V100's 900 GB/s could read fp16 weights. The speed-up by tensor parallelism
# is sublinear. The paper's coefficients are not published; δ follows from its Fig. 1, where parallel instances
# converge: tp-d with 64·d requests is as slow as d instances on one GPU with 64 each, at half their idle speed.
TOKENS_PER_S = {"llama-3.2-3b": 84.0, "llama-2-7b": 40.0, "llama-2-13b": 21.0}
SPEEDUP = {1: 1.0, 2: 1.75, 4: 2.9, 8: 4.2}
DELTA = {tp: (1 - 0.5 / speed) / math.log(64 * tp) for tp, speed in SPEEDUP.items()}
BATCHES = (2, 4, 8, 16, 32, 64)


def case(trace: int, gpus: int = 24, cv: float = 2.0, requests: int = 10_000, seed: int = 0) -> Orchestration:
    """One point of Fig. 4: p3.16xlarge servers (8 V100 of 16 GB), three models, a trace of Table I.

    Args:
        trace: 1 to 6.
        gpus: a multiple of 8.
        cv: of the gamma arrivals.
        requests: within the window.
        seed: of the trace.
    """
    decay = [
        {"model": m, "tp": tp, "base_tokens_per_s": base * SPEEDUP[tp], "delta": DELTA[tp]}
        for m, base in TOKENS_PER_S.items() for tp in SPEEDUP
    ]  # fmt: skip
    generated = {
        "maaso": trace, "requests": requests, "requests_per_s": requests / WINDOW_S, "cv": cv, "seed": seed,
        "models": dict.fromkeys(TOKENS_PER_S, 1.0),
    }  # fmt: skip
    return Orchestration.model_validate({
        "formulation": "orchestration", "schema": 1, "name": f"maaso-trace-{trace}",
        "cluster": {"servers": [{"server": "p3", "count": gpus // 8, "gpu": "v100", "gpus": 8, "vram_gib": 16}]},
        "models": [{"model": m} for m in TOKENS_PER_S],
        "candidates": {"batch": BATCHES}, "latency": {"decay": decay}, "requests": {"trace": {"generated": generated}},
        "bins": BINS,
    })  # fmt: skip


def run(problem: Orchestration, tables: OrchestrationTables, method: str) -> dict[str, Any]:
    """One method on one point: planned and replayed figures."""
    form = get("orchestration")
    solve = READINGS.get(method) or form.method("exact" if method in GAPS else method)
    options = Options(time_limit=TIME_LIMIT_S, gap=GAPS[method]) if method in GAPS else Options()
    clock = time.perf_counter()
    outcome = solve(problem, tables, options)
    row: dict[str, Any] = {
        "status": outcome.status, "solver_s": time.perf_counter() - clock, "bound": outcome.bound,
    } | dict.fromkeys(FOUND)  # fmt: skip
    plan = cast(OrchestrationPlan | None, outcome.plan)
    if plan is None:
        return row
    data = plan.model_dump(mode="json")
    assert form.replay is not None
    # Exact may have named its requests; all plans are judged by a dispatcher that does not know them, and by name.
    policy = (plan.online or plan.dispatcher).policy
    replayed = form.replay(problem, data, None, None)["policies"]
    seen = replayed[policy]
    bare = form.replay(
        problem, data, None, ReplayOptions(policy=policy, overflow_protection=False, queue="fifo")
    )["policies"][policy]  # fmt: skip
    kinds = [f"{c.instances}×{c.model} {c.parallelism} B{c.batch}" for c in plan.configurations]
    found = (
        plan.score.total, plan.prediction.attainment, seen["attainment"], bare["attainment"],
        replayed.get("planned", {}).get("attainment"), seen["ttft_s"].get("mean"), bare["ttft_s"].get("mean"),
        seen["goodput_tokens_per_s"], seen["gpu_use"], policy, ", ".join(kinds), form.check(problem, data).ok,
    )  # fmt: skip
    return row | dict(zip(FOUND, found, strict=True))


def points(quick: bool = False, most: int | None = None) -> list[dict[str, Any]]:
    """Every point once, trace by trace; or `most` of them, spread evenly over series and traces."""
    series, default = (QUICK, QUICK_DEFAULT) if quick else (SERIES, DEFAULT)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, values in series.items():
        for value in values:
            for trace in TRACES:
                point = {"trace": trace} | default | {name: type(default[name])(value)}
                found.setdefault(tuple(point.values()), point)
    every = list(found.values())
    return every if most is None else [every[i] for i in np.linspace(0, len(every) - 1, most).round().astype(int)]


def solve_point(quick: bool, item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of one point: {"point": …, "methods": [...]}."""
    if not quick:
        _warm()
    problem = case(**item["point"])
    tables = get("orchestration").tables(problem)
    return [item["point"] | {"method": m} | run(problem, tables, m) for m in item["methods"]]


@cache
def _warm() -> None:
    """Load in this process what is compiled, so that no method's seconds pay for it."""
    problem = case(4, gpus=8, requests=300)
    tables = get("orchestration").tables(problem)
    for method in METHODS:
        run(problem, tables, method)


def study(
    out: Path, todo: Sequence[Mapping[str, Any]], methods: Sequence[str] = METHODS, quick: bool = False,
    workers: int = 1,
) -> pd.DataFrame:  # fmt: skip
    """Compute the rows that are not in OUT/fig4.csv yet."""
    path = out / ("fig4-quick.csv" if quick else "fig4.csv")
    out.mkdir(parents=True, exist_ok=True)
    rows = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=[*KEY, "method"])
    done = set(rows[[*KEY, "method"]].itertuples(index=False, name=None))
    items = {}
    for point in todo:
        left = [m for m in methods if (*point.values(), m) not in done]
        if left:
            items[" ".join(map(str, point.values()))] = {"point": dict(point), "methods": left}
    with pool(min(workers, max(1, len(items))), None) as started:
        for batch in started.run(solve_point, quick, items, str):
            for name, found in batch:
                if isinstance(found, str):
                    sys.stderr.write(f"{name}: {found}\n")
                    continue
                made = pd.DataFrame(found)
                rows = made if rows.empty else pd.concat((rows, made), ignore_index=True)
                order = rows["method"].map({m: i for i, m in enumerate(METHODS)})
                rows = rows.assign(order=order).sort_values([*KEY, "order"], ignore_index=True).drop(columns="order")
                rows.to_csv(path, index=False)
                for r in found:
                    sys.stderr.write(_line(r))
    return rows


def _line(r: Mapping[str, Any]) -> str:
    return (
        f"trace {r['trace']}, {r['gpus']} GPUs, CV {r['cv']:g}, {r['requests']:,} requests, {r['method']}:"
        f" {_text(r['attainment'], '.1%')} in time, first token {_text(r['latency_s'], '.2f')} s,"
        f" {r['solver_s']:.2f} s\n"
    )


def _text(value: float | None, form: str) -> str:
    return "none" if value is None or pd.isna(value) else format(value, form)


def compared(rows: pd.DataFrame) -> pd.DataFrame:
    """By method over the points that every method solved: means, and the gap's median and most.

    The gap is to the bound that exact proved at the same point, as a share of it; `exact_below` counts the points where
    exact's replayed attainment is more than 0.5 points below the method's.
    """
    bound = rows[rows.method == "exact"].set_index(KEY)[["bound", "attainment"]].astype(float)
    rows = rows.join(bound.rename(columns={"bound": "best_bound", "attainment": "exact_attainment"}), on=KEY)
    rows["gap"] = 1 - rows["objective"].astype(float) / rows["best_bound"]
    rows["exact_below"] = rows["exact_attainment"] < rows["attainment"].astype(float) - BELOW
    solved = rows.groupby(KEY)["attainment"].transform("count") == rows["method"].nunique()
    by = rows[solved].groupby("method")
    means = ["predicted_attainment", "attainment", "attainment_unprotected", "latency_s", "latency_unprotected_s",
             "goodput_tokens_per_s", "gpu_use"]  # fmt: skip
    table = by[means].mean()
    table[["gap", "gap_median", "gap_max"]] = by["gap"].agg(["mean", "median", "max"])
    table[["solver_s", "solver_s_median", "solver_s_max"]] = by["solver_s"].agg(["mean", "median", "max"])
    table["exact_below"], table["points"] = by["exact_below"].sum(), by.size()
    return table.reindex([m for m in METHODS if m in table.index])


def claims(rows: pd.DataFrame) -> pd.DataFrame:
    """By trace, the paper's claims for MaaSO over each baseline: points of SLO attainment, relative latency."""
    slo = 100 * rows.pivot_table(index=KEY, columns="method", values="attainment")
    wait = rows.pivot_table(index=KEY, columns="method", values="latency_s")
    table = {}
    for ours, theirs in (("greedy_dp", "alpaserve"), ("greedy_dp", "selective_replication"), ("exact", "alpaserve")):
        if ours in slo and theirs in slo:
            gain = (slo[ours] - slo[theirs]).groupby("trace")
            later = wait[[ours, theirs]].groupby("trace").mean()
            table[f"{TITLES[ours]} over {TITLES[theirs]}"] = pd.DataFrame({
                "points": gain.mean(), "most": gain.max(), "latency": later[ours] / later[theirs] - 1,
            })  # fmt: skip
    return pd.concat(table, axis=1) if table else pd.DataFrame()


def readings(rows: pd.DataFrame) -> pd.DataFrame:
    """Points of attainment and relative latency of MaaSO over each reading of each baseline.

    MaaSO keeps its overflow protection; a baseline has it (it is the third step of MaaSO's distributor) or not.
    """
    seen = ["attainment", "attainment_unprotected", "latency_s", "latency_unprotected_s"]
    means = rows.groupby("method")[seen].mean()
    theirs = means.loc[[m for m in means.index if m not in (*GAPS, "greedy_dp_exchange", *OURS)]]
    table = {}
    for ours in (m for m in ("greedy_dp", "maaso_printed") if m in means.index):
        slo, wait = (means[k].to_dict()[ours] for k in ("attainment", "latency_s"))
        for kept, end in (("protected", ""), ("not protected", "_unprotected")):
            table[ours, kept, "points"] = 100 * (slo - theirs[f"attainment{end}"])
            table[ours, kept, "latency"] = wait / theirs["latency_unprotected_s" if end else "latency_s"] - 1
    return pd.DataFrame(table)


def worse_than_heuristics(rows: pd.DataFrame, value: str = "attainment", exact: str = "exact") -> pd.DataFrame:
    """Points where the exact plan's replayed attainment is below the best heuristic's by more than 0.5 points."""
    wide = rows.pivot_table(index=KEY, columns="method", values=value)
    if exact not in wide:
        return pd.DataFrame()
    others = wide.drop(columns=[m for m in GAPS if m in wide])
    found = pd.DataFrame({"exact": wide[exact], "best": others.max(axis=1), "by": others.idxmax(axis=1)})
    return found[found["exact"] < found["best"] - BELOW]


def draw(rows: pd.DataFrame, path: Path, quick: bool = False) -> None:
    """Fig. 4: one column a trace; rows as in the paper."""
    default = QUICK_DEFAULT if quick else DEFAULT
    panels = [
        ("gpus", "attainment", "SLO attainment, %", 100.0), ("gpus", "latency_s", "first token, s", 1.0),
        ("gpus", "solver_s", "solver, s", 1.0), ("cv", "attainment", "SLO attainment, %", 100.0),
        ("cv", "latency_s", "first token, s", 1.0), ("cv", "goodput_tokens_per_s", "1,000 tokens/s in time", 1e-3),
        ("requests", "attainment", "SLO attainment, %", 100.0),
    ]  # fmt: skip
    named = {"gpus": "GPUs", "cv": "CV of arrivals", "requests": "requests"}
    symlog = {"solver_s": (0.1, 1, 10, 100), "latency_s": (1, 10, 100, 1000)}  # marks; linear below the first
    colours = ("#999999", "#aa3377", "#cc3311", "#ee8866", "#4477aa", "#228833", "#999933")
    points: list[dict[str, Any]] = []
    specs = []
    for i, (series, metric, title, factor) in enumerate(panels):
        rest = {k: v for k, v in default.items() if k != series}
        chosen = rows[np.logical_and.reduce([rows[k] == v for k, v in rest.items()])]
        points += [
            # The exact plan is thick and behind, so that a heuristic that finds the same does not hide it.
            {"panel": i, "trace": f"trace {r['trace']}", "method": TITLES[r["method"]], "x": r[series],
             "y": factor * r[metric], "width": 4.0 if r["method"] == "exact" else 1.5}
            for r in chosen.to_dict("records") if r["method"] in TITLES
        ]  # fmt: skip
        ticks = sorted(chosen[series].unique().tolist())
        x = {
            "field": "x", "type": "quantitative", "title": named[series],
            "axis": {"values": ticks, "labelOverlap": True, "labelExpr": "format(datum.value, '~s')"},
            "scale": {"type": "linear" if series == "gpus" else "log", "domain": [0.85 * ticks[0], 1.15 * ticks[-1]],
                      "nice": False},
        }  # fmt: skip
        y: dict[str, Any] = {"field": "y", "type": "quantitative", "title": title, "axis": {"tickCount": 5}}
        if metric in symlog:
            y["scale"] = {"type": "symlog", "constant": symlog[metric][0]}
            y["axis"] = {"values": [0, *symlog[metric]], "labelExpr": "format(datum.value, '~g')"}
        place = {"x": x, "y": y, "color": coloured("method", TITLES.values(), colours)}
        width = {"field": "width", "type": "quantitative", "scale": None, "legend": None}
        layers = [
            {"mark": {"type": "line"}, "encoding": place | {"strokeWidth": width}},
            {"mark": {"type": "point", "filled": True, "size": 16, "opacity": 1}, "encoding": place},
        ]
        header = None if i else {"labelFontSize": 12}
        trace = {"field": "trace", "type": "nominal", "title": None, "header": header}
        specs.append({"spacing": 12, "transform": [{"filter": f"datum.panel === {i}"}], "facet": {"column": trace},
                      "spec": {"width": 150, "height": 110, "layer": layers}})  # fmt: skip
    picture = chart("MaaSO Fig. 4 recomputed", "One column a trace; rows as in the paper.", points, {"vconcat": specs})
    save_chart(picture, path, overwrite=True)


def main(arguments: list[str] | None = None) -> int:
    """Compute, draw and summarise."""
    from optmodels.cli.console import show

    parser = argparse.ArgumentParser(prog="python -m papers.maaso", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few hundred requests on 8 to 16 GPUs")
    parser.add_argument("--traces", default=",".join(map(str, TRACES)))
    parser.add_argument("--points", type=int, help="so many of all, spread evenly")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, default=Path("results/maaso"))
    given = parser.parse_args(arguments)
    traces = [int(x) for x in given.traces.split(",")]
    todo = [p for p in points(given.quick, given.points) if p["trace"] in traces]
    rows = study(given.out, todo, given.methods.split(","), given.quick, given.workers)
    draw(rows, given.out / ("fig4-quick.png" if given.quick else "fig4.png"), given.quick)
    with pd.option_context("display.width", 250, "display.max_columns", 30, "display.float_format", "{:.4g}".format):
        show([str(compared(rows).T), str(claims(rows)), str(readings(rows).T)])
        for exact, value in product(GAPS, ("attainment", "attainment_by_name")):
            worse = worse_than_heuristics(rows, value, exact)
            show([f"{len(worse)} points where a heuristic's {value} is more than 0.5 points above that of {exact}"])
            if len(worse):
                show([str(worse)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
