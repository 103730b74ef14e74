"""MaaSO's Fig. 4: cluster size, burstiness and number of requests on the six traces of Table I, method by method.

    python -m optmodels.study.maaso [--quick] [--traces 1,4] [--methods exact,greedy_dp,…] [--out DIR]

Every method plans the same requests and its plan is replayed on them by its own dispatcher. A row goes into
OUT/fig4.csv when it is done, and is not computed again; pictures are drawn of what is there. What the paper's text has
lost or never stated is chosen here, once: see `case`. docs/papers/maaso.md discusses the outcome.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from optmodels.formulation import Options, get
from optmodels.plan.orchestration import OrchestrationPlan
from optmodels.points.orchestration import OrchestrationTables
from optmodels.problem.orchestration import Orchestration

METHODS = ("exact", "greedy_dp", "maaso_star", "alpaserve", "selective_replication", "round_robin")
TITLES = {
    "exact": "exact", "greedy_dp": "MaaSO (greedy_dp)", "maaso_star": "MaaSO*", "alpaserve": "AlpaServe",
    "selective_replication": "Selective Replication", "round_robin": "round robin",
}  # fmt: skip
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
GAP, TIME_LIMIT_S = 1e-3, 10.0  # of exact
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
    clock = time.perf_counter()
    options = Options(time_limit=TIME_LIMIT_S, gap=GAP) if method == "exact" else Options()
    outcome = form.method(method)(problem, tables, options)
    row: dict[str, Any] = {
        "status": outcome.status, "solver_s": time.perf_counter() - clock, "bound": outcome.bound, "objective": None,
        "predicted_attainment": None, "attainment": None, "latency_s": None, "throughput_tokens_per_s": None,
        "gpu_use": None, "policy": None, "attainment_by_name": None, "instances": "", "check": None,
    }  # fmt: skip
    plan = cast(OrchestrationPlan | None, outcome.plan)
    if plan is None:
        return row
    data = plan.model_dump(mode="json")
    assert form.replay is not None
    replayed = form.replay(problem, data, None, None)
    # Exact may have named its requests; all plans are judged by a dispatcher that does not know them, and by name.
    policy = (plan.online or plan.dispatcher).policy
    seen = replayed["policies"][policy]
    kinds = [f"{c.instances}×{c.model} {c.parallelism} B{c.batch}" for c in plan.configurations]
    return row | {
        "objective": plan.score.total, "predicted_attainment": plan.prediction.attainment,
        "attainment": seen["attainment"], "latency_s": seen["mean_latency_s"],
        "throughput_tokens_per_s": seen["throughput_tokens_per_s"], "gpu_use": seen["gpu_use"],
        "attainment_by_name": replayed["policies"].get("planned", {}).get("attainment"),
        "policy": policy, "instances": ", ".join(kinds), "check": form.check(problem, data).ok,
    }  # fmt: skip


def points(quick: bool = False) -> list[dict[str, Any]]:
    """Every point once, with the series that it belongs to."""
    series, default = (QUICK, QUICK_DEFAULT) if quick else (SERIES, DEFAULT)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, values in series.items():
        for value in values:
            point = default | {name: type(default[name])(value)}
            found.setdefault(tuple(point.values()), point)
    return list(found.values())


def study(
    out: Path, traces: Sequence[int] = TRACES, methods: Sequence[str] = METHODS, quick: bool = False
) -> pd.DataFrame:
    """Compute the rows that are not in OUT/fig4.csv yet."""
    path = out / ("fig4-quick.csv" if quick else "fig4.csv")
    out.mkdir(parents=True, exist_ok=True)
    rows: list[Any] = pd.read_csv(path).to_dict("records") if path.exists() else []
    done = {(r["trace"], r["gpus"], r["cv"], r["requests"], r["method"]) for r in rows}
    for point in points(quick):
        for trace in traces:
            todo = [m for m in methods if (trace, *point.values(), m) not in done]
            if not todo:
                continue
            problem = case(trace, **point)
            tables = get("orchestration").tables(problem)
            for method in todo:
                rows.append({"trace": trace, **point, "method": method} | run(problem, tables, method))
                pd.DataFrame(rows).to_csv(path, index=False)
                r = rows[-1]
                sys.stderr.write(
                    f"trace {trace}, {point['gpus']} GPUs, CV {point['cv']:g}, {point['requests']:,} requests,"
                    f" {method}: {_text(r['attainment'], '.1%')} in time, first token {_text(r['latency_s'], '.2f')} s,"
                    f" {r['solver_s']:.2f} s\n"
                )
    return pd.DataFrame(rows)


def _text(value: float | None, form: str) -> str:
    return "none" if value is None or pd.isna(value) else format(value, form)


def compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Means by method over the points that every method solved: attainment, latency, throughput, seconds, gap.

    The gap is to the bound that exact proved at the same point, as a share of it.
    """
    key = ["trace", "gpus", "cv", "requests"]
    bound = rows[rows.method == "exact"].set_index(key)["bound"].rename("best_bound").astype(float)
    rows = rows.join(bound, on=key)
    rows["gap"] = 1 - rows["objective"].astype(float) / rows["best_bound"]
    solved = rows.groupby(key)["attainment"].transform("count") == rows["method"].nunique()
    columns = ["attainment", "latency_s", "throughput_tokens_per_s", "gpu_use", "solver_s", "gap"]
    table = rows[solved].groupby("method")[columns].mean()
    table["solver_s_max"] = rows[solved].groupby("method")["solver_s"].max()
    table["points"] = rows[solved].groupby("method").size()
    return table.reindex([m for m in METHODS if m in table.index])


def claims(rows: pd.DataFrame) -> pd.DataFrame:
    """By trace, the paper's claims for MaaSO over each baseline: points of SLO attainment, relative latency."""
    key = ["trace", "gpus", "cv", "requests"]
    slo = 100 * rows.pivot_table(index=key, columns="method", values="attainment")
    wait = rows.pivot_table(index=key, columns="method", values="latency_s")
    table = {}
    for ours, theirs in (("greedy_dp", "alpaserve"), ("greedy_dp", "selective_replication"), ("exact", "alpaserve")):
        if ours in slo and theirs in slo:
            gain = (slo[ours] - slo[theirs]).groupby("trace")
            later = wait[[ours, theirs]].groupby("trace").mean()
            table[f"{TITLES[ours]} over {TITLES[theirs]}"] = pd.DataFrame({
                "points": gain.mean(), "most": gain.max(), "latency": later[ours] / later[theirs] - 1,
            })  # fmt: skip
    return pd.concat(table, axis=1) if table else pd.DataFrame()


def worse_than_heuristics(rows: pd.DataFrame, points_: float = 0.005, value: str = "attainment") -> pd.DataFrame:
    """Points where the exact plan's replayed attainment is below the best heuristic's by more than `points_`."""
    key = ["trace", "gpus", "cv", "requests"]
    wide = rows.pivot_table(index=key, columns="method", values=value)
    if "exact" not in wide:
        return pd.DataFrame()
    others = wide.drop(columns="exact")
    found = pd.DataFrame({"exact": wide["exact"], "best": others.max(axis=1), "by": others.idxmax(axis=1)})
    return found[found["exact"] < found["best"] - points_]


def draw(rows: pd.DataFrame, path: Path, quick: bool = False) -> None:
    """Fig. 4: one column a trace; rows as in the paper."""
    from optmodels.reporting.plots import plt, save_figure

    default = QUICK_DEFAULT if quick else DEFAULT
    panels = [
        ("gpus", "attainment", "SLO attainment, %", 100.0), ("gpus", "latency_s", "first token, s", 1.0),
        ("gpus", "solver_s", "solver, s", 1.0), ("cv", "attainment", "SLO attainment, %", 100.0),
        ("cv", "latency_s", "first token, s", 1.0), ("cv", "throughput_tokens_per_s", "1,000 tokens/s in time", 1e-3),
        ("requests", "attainment", "SLO attainment, %", 100.0),
    ]  # fmt: skip
    label = {"gpus": "GPUs", "cv": "coefficient of variation of arrivals", "requests": "requests"}
    traces = sorted(rows["trace"].unique())
    figure, axes = plt.subplots(
        len(panels), len(traces), figsize=(2.7 * len(traces) + 0.6, 1.9 * len(panels)), sharey="row", squeeze=False
    )
    style = dict(zip(METHODS, ("#222222", "#cc3311", "#ee8866", "#4477aa", "#228833", "#999933"), strict=True))
    for i, (series, metric, title, factor) in enumerate(panels):
        rest = {k: v for k, v in default.items() if k != series}
        chosen = rows[np.logical_and.reduce([rows[k] == v for k, v in rest.items()])]
        for j, trace in enumerate(traces):
            ax = axes[i][j]
            for method in METHODS:
                mine = chosen[(chosen["trace"] == trace) & (chosen["method"] == method)].sort_values(series)
                # The exact plan is thick and behind, so that a heuristic that finds the same does not hide it.
                ax.plot(mine[series], mine[metric].astype(float) * factor, label=TITLES[method], color=style[method],
                        marker="o", markersize=3, linewidth=3.0 if method == "exact" else 1.2,
                        alpha=0.45 if method == "exact" else 1.0)  # fmt: skip
            if metric == "solver_s" or (metric == "latency_s"):
                ax.set_yscale("symlog", linthresh=0.1 if metric == "solver_s" else 1.0)
            if series != "gpus":
                ax.set_xscale("log")
            ticks = sorted(chosen[series].unique())
            ax.set_xticks(ticks, [f"{x / 1000:g}k" if series == "requests" else f"{x:g}" for x in ticks], fontsize=7)
            ax.minorticks_off()
            ax.tick_params(axis="y", labelsize=7)
            ax.grid(alpha=0.3)
            ax.set_xlabel(label[series], fontsize=7)
            if i == 0:
                ax.set_title(f"trace {trace}", fontsize=9)
            if j == 0:
                ax.set_ylabel(title, fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="upper center", ncols=len(METHODS), fontsize=9, frameon=False)
    save_figure(figure, path)


def main(arguments: list[str] | None = None) -> int:
    """Compute, draw and summarise."""
    from optmodels.cli.console import show

    parser = argparse.ArgumentParser(prog="python -m optmodels.study.maaso", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few hundred requests on 8 to 16 GPUs")
    parser.add_argument("--traces", default=",".join(map(str, TRACES)))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--out", type=Path, default=Path("results/maaso"))
    given = parser.parse_args(arguments)
    rows = study(given.out, [int(x) for x in given.traces.split(",")], given.methods.split(","), given.quick)
    draw(rows, given.out / ("fig4-quick.png" if given.quick else "fig4.png"), given.quick)
    worse = {value: worse_than_heuristics(rows, value=value) for value in ("attainment", "attainment_by_name")}
    with pd.option_context("display.width", 200, "display.max_columns", 20, "display.float_format", "{:.4g}".format):
        show([str(compared(rows)), str(claims(rows))])
        for value, table in worse.items():
            show([f"{len(table)} points where a heuristic's {value} is more than 0.5 points above exact's"])
            if len(table):
                show([str(table)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
