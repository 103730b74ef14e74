"""Pictures of an orchestration plan: what sits on which GPU, and slots in use over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from formulations.orchestration.flow import busy_shares
from formulations.orchestration.making import rows_of
from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#cc3311")
SERVERS_SHOWN = 24
LINES_SHOWN = 10


def draw(t: OrchestrationTables, plan: OrchestrationPlan, folder: Path, kind: str) -> list[Path]:
    """Write both pictures; the files written."""
    from optmodels.reporting.plots import plt, save_all

    drawn = (("cluster", _cluster), ("timeline", _timeline))
    return save_all(((name, picture(plt, t, plan)) for name, picture in drawn), folder, kind)


def _colour(t: OrchestrationTables, model: str) -> str:
    return COLOURS[t.case.models.index(model) % len(COLOURS)]


def _cluster(plt: Any, t: OrchestrationTables, plan: OrchestrationPlan) -> Any:
    """A row of GPUs for each server; instances as blocks with their parallelism and batch, failed GPUs crossed out."""
    every = {name: s for s in t.case.problem.cluster.servers for name in s.names}
    shown = list(every)[:SERVERS_SHOWN]
    if not shown:
        return None
    row = {name: len(shown) - 1 - i for i, name in enumerate(shown)}
    widest = max(every[name].gpus for name in shown)
    figure, axes = plt.subplots(figsize=(max(6.0, 1.0 * widest + 2), 0.55 * len(shown) + 1.4))
    working = {s.name: set(s.free) for s in t.case.servers}
    for name in shown:
        for g in range(every[name].gpus):
            dead = g not in working.get(name, set())
            axes.add_patch(plt.Rectangle((g + 0.04, row[name] + 0.08), 0.92, 0.84, fc="#f2f2f2", ec="#999999", lw=0.6))
            if dead:
                axes.plot([g + 0.2, g + 0.8], [row[name] + 0.25, row[name] + 0.75], color="#cc3311", lw=1.5)
                axes.plot([g + 0.2, g + 0.8], [row[name] + 0.75, row[name] + 0.25], color="#cc3311", lw=1.5)
    for i in plan.instances:
        c = plan.configurations[i.configuration]
        for server, gpus in i.placement.items():
            if server not in row:
                continue
            for first, last in _runs(gpus):
                axes.add_patch(plt.Rectangle((first + 0.04, row[server] + 0.08), last - first + 0.92, 0.84,
                                             fc=_colour(t, c.model), ec="black", lw=0.8))  # fmt: skip
                axes.text((first + last + 1) / 2, row[server] + 0.5, f"{c.parallelism} B{c.batch}", ha="center",
                          va="center", fontsize=7 if last > first else 5.5, color="white")  # fmt: skip
    axes.set_xlim(0, widest)
    axes.set_ylim(0, len(shown))
    axes.set_yticks([row[n] + 0.5 for n in shown], [f"{n} ({every[n].gpu})" for n in shown], fontsize=8)
    axes.set_xticks(np.arange(widest) + 0.5, [str(g) for g in range(widest)], fontsize=8)
    axes.set_xlabel("GPU")
    models = list(dict.fromkeys(c.model for c in plan.configurations))
    handles = [plt.Rectangle((0, 0), 1, 1, fc=_colour(t, m)) for m in models]
    axes.legend(handles, models, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
    more = f", {len(every) - len(shown):,} servers more" if len(every) > len(shown) else ""
    axes.set_title(f"{len(plan.instances):,} instances on {plan.prediction.gpus_used:,} GPUs{more}", fontsize=10)
    for side in axes.spines.values():
        side.set_visible(False)
    return figure


def _runs(gpus: list[int]) -> list[tuple[int, int]]:
    """Maximal runs of neighbours."""
    found: list[tuple[int, int]] = []
    for g in gpus:
        if found and found[-1][1] == g - 1:
            found[-1] = (found[-1][0], g)
        else:
            found.append((g, g))
    return found


def _timeline(plt: Any, t: OrchestrationTables, plan: OrchestrationPlan) -> Any:
    """Requests arriving, admitted and refused by bin; below, busy slots of each kind of instance as a share of them."""
    s, T = plan.shares, plan.bins
    if not T:
        return None
    time = np.arange(T) * plan.bin_s
    admitted = np.bincount(np.array(s.bin, dtype=np.int64), np.array(s.admitted), T)
    arrivals = t.classes.arrivals.sum(axis=0)
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(9, 6), sharex=True)
    top.step(time, arrivals / plan.bin_s, where="post", color="black", lw=1.0, label="arriving")
    top.fill_between(time, admitted / plan.bin_s, step="post", color="#4477aa", alpha=0.8, label="planned in time")
    top.fill_between(time, admitted / plan.bin_s, arrivals / plan.bin_s, step="post", color="#cc3311", alpha=0.7,
                     label="refused")  # fmt: skip
    top.set_ylabel("requests/s")
    top.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
    rows = rows_of(t, plan)
    order = sorted(range(len(plan.configurations)), key=lambda j: -plan.configurations[j].gpus)[:LINES_SHOWN]
    of, k = np.array(s.configuration, dtype=np.int64), np.array(s.request_class, dtype=np.int64)
    bin_, started = np.array(s.bin, dtype=np.int64), np.array(s.started)
    seen: dict[str, int] = {}
    for j in order:
        c = plan.configurations[j]
        row = rows[j]
        busy = np.zeros(T)
        for one in np.unique(k[of == j]):
            mine = (of == j) & (k == one)
            starts = np.bincount(bin_[mine], started[mine], T)
            busy += np.convolve(starts, busy_shares(float(t.service_s[one, row]), plan.bin_s))[:T]
        style = ("-", "--", ":", "-.")[seen.get(c.model, 0) % 4]
        seen[c.model] = seen.get(c.model, 0) + 1
        slots = c.instances * c.batch * c.dp
        bottom.plot(time + plan.bin_s / 2, 100 * busy / max(slots, 1), style, color=_colour(t, c.model), lw=1.2,
                    label=f"{c.instances} × {c.model} {c.parallelism} B{c.batch}")  # fmt: skip
    bottom.set_ylabel("busy slots, %")
    bottom.set_xlabel("seconds")
    bottom.set_ylim(0, 105)
    if bottom.lines:
        bottom.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1))
    top.set_title(f"{plan.prediction.attainment:.1%} of {plan.prediction.requests:,.0f} requests planned in time",
                  fontsize=10)  # fmt: skip
    return figure
