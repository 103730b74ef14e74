"""Independent check of the requests table of an orchestration plan: the literal form's constraints, request by request.

Shares no code with what named them, nor with the tables (rates, memory and t_slice are `recomputed` from the instance).
Instances and their GPUs are `check`'s; here every request of the trace is listed once and served at most once by an
instance of its model that runs (MS a, b), is there before it starts, keeps its slot for prefill and decoding at the
full-batch rate and is in time (MS 2), and no instance serves more at once than its batch, no slot more than one. What
else a row states (model, lengths, deadline, first token) is recomputed; a refused request has neither slot nor times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.problem import Orchestration
from formulations.orchestration.recomputed import Recomputed, recompute
from optmodels.arrays import Array, Mask
from optmodels.errors import InputError, Mistake, printable
from optmodels.plans.findings import Findings
from optmodels.plans.outcome import CheckReport
from optmodels.traces.types import Trace

MOST_SHOWN = 20
CLOSE_S = 1e-6
NUMBERS = ("request", "arrival_s", "slot", "start_s", "finish_s")
STATED = ("input_tokens", "output_tokens", "due_s", "first_token_s")  # and model; not in every table


def check_files(problem: Orchestration, plan: Mapping[str, Any], folder: Path) -> CheckReport:
    """`check_requests` of the requests.csv in a result's folder, where there is one."""
    path = folder / "requests.csv"
    if not path.is_file():
        return CheckReport(ok=True)
    import pandas as pd

    wanted = [*NUMBERS, "instance"]
    try:
        blank = dict.fromkeys(("start_s", "first_token_s", "finish_s"), "")
        table = pd.read_csv(path, keep_default_na=False, na_values=blank, dtype={"instance": str, "model": str})
        if missing := [name for name in wanted if name not in table]:
            raise ValueError(f"no column {', '.join(missing)}")
        for name in ("instance", "model"):
            if name in table:
                table[name] = [_unquoted(str(cell)) for cell in table[name]]
    except ValueError as error:
        raise InputError(Mistake(str(path), "", printable(str(error), 200), f"columns {', '.join(wanted)}")) from None
    return check_requests(problem, plan, table)


def _unquoted(cell: str) -> str:
    """A text as it was before it was written: without the apostrophe before a spreadsheet's formula."""
    return re.sub(r"^'(?='*[=+\-@\t\r])", "", cell)


def check_requests(problem: Orchestration, plan: Mapping[str, Any], table: Any) -> CheckReport:
    """Verify named requests against the instance and the plan's instances.

    Args:
        problem: the instance, with a trace.
        plan: its plan as JSON data.
        table: the requests: a data frame, or columns, as written to requests.csv.

    Returns:
        Every requirement broken, with value and limit (at most twenty).
    """
    found = Findings()
    p = found.read(OrchestrationPlan, plan, "an orchestration plan")
    if p is None:
        return found.report()
    true = recompute(problem)
    trace = true.case.trace
    if trace is None:
        found.add("requests with names", "classes", "a trace")
        return found.report()
    if "prompt_tokens" in table:  # the column's older name
        table = {("input_tokens" if k == "prompt_tokens" else k): table[k] for k in table}
    column = {k: np.asarray(table[k]) for k in (*NUMBERS, "instance", *(x for x in (*STATED, "model") if x in table))}
    n = len(trace)
    for k in column.keys() - {"instance", "model"}:
        try:
            column[k] = column[k].astype(float)
        except ValueError as error:
            found.add(f"{k}: numbers", printable(str(error), 200), "a number in every row")
            return found.report()
    if sorted(column["request"].tolist()) != list(range(n)) or not np.isfinite(column["slot"]).all():
        found.add("every request of the trace once, with a slot (MS b)", len(column["request"]), n)
        return found.report()
    order = np.argsort(column["request"])
    column = {k: v[order] for k, v in column.items()}
    start, finish, slot = column["start_s"], column["finish_s"], column["slot"]
    served = np.isfinite(start)
    refused = ~served & ((column["instance"] != "") | (slot != -1) | ~np.isnan(finish))
    for r in np.flatnonzero(refused):
        found.add(f"request {r} is refused: neither instance nor slot nor times", str(column["instance"][r]), "none")
    names = {x.name: x for x in p.instances}
    _stated(found, true, trace, p, column, served)
    for name in {str(v) for v in column["instance"][served]} - names.keys():
        found.add("a request's instance runs (MS a)", name, "an instance of the plan")
    for name, instance in names.items():
        mine = np.flatnonzero(served & (column["instance"] == name))
        _instance(found, true, trace, p, instance.configuration, name, mine, start[mine], finish[mine], slot[mine])
    del found.violations[MOST_SHOWN:]
    return found.report()


def _stated(
    found: Findings, true: Recomputed, trace: Trace, p: OrchestrationPlan, column: Mapping[str, Any],
    served: Mask,
) -> None:  # fmt: skip
    """Fields of a row besides the instance and the times of its request."""
    case = true.case
    allowed = case.slo_factor * trace.output_tokens * true.t_slice_s[case.request_model]
    each = {}
    for i in p.instances:
        line = p.configurations[i.configuration] if 0 <= i.configuration < len(p.configurations) else None
        x = true.candidates.get(line.key) if line else None
        each[i.name] = x.prefill_s_per_token if x else np.nan
    prefill = np.array([each.get(str(name), np.nan) for name in column["instance"]], dtype=float)
    first = np.where(served, column["start_s"] + prefill * trace.prompt_tokens, np.nan)
    right = {
        "arrival_s": trace.arrival_s, "input_tokens": trace.prompt_tokens, "output_tokens": trace.output_tokens,
        "due_s": trace.arrival_s + allowed, "first_token_s": first,
    }  # fmt: skip
    for name, values in right.items():
        if name in column:
            wrong = np.flatnonzero(~np.isclose(column[name], values, rtol=1e-9, atol=CLOSE_S, equal_nan=True))
            for r in wrong:
                found.add(f"{name} of request {r}", float(column[name][r]), float(values[r]))
    if "model" in column:
        models = np.array(case.models, dtype=object)[case.request_model]
        for r in np.flatnonzero(column["model"] != models):
            found.add(f"model of request {r}", str(column["model"][r]), models[r])


def _instance(
    found: Findings, true: Recomputed, trace: Trace, p: OrchestrationPlan, j: int, name: str, mine: Any, start: Array,
    finish: Array, slot: Any,
) -> None:  # fmt: skip
    """One instance's requests."""
    case = true.case
    if not 0 <= j < len(p.configurations):
        found.add(f"configuration of {name}", j, f"0 to {len(p.configurations) - 1}")
        return
    line = p.configurations[j]
    x = true.candidates.get(line.key)
    if x is None or x.refused:
        allowed = "one of the problem's candidates" if x is None else x.refused
        found.add(f"configuration of {name} is a usable candidate", line.parallelism, allowed)
        return
    for r in mine[case.request_model[mine] != x.model]:
        found.add(f"model of request {r} on {name}", case.models[case.request_model[r]], line.model)
    prompt, output, arrival = trace.prompt_tokens[mine], trace.output_tokens[mine], trace.arrival_s[mine]
    first = x.prefill_s_per_token * prompt
    lasts = first + output / x.tokens_per_s
    due = arrival + case.slo_factor[mine] * output * true.t_slice_s[x.model]
    limit = case.problem.slo.ttft_s
    for what, values, bounds in (
        ("arrival before start", arrival, start), ("service before finish", start + lasts, finish),
        ("finish before the deadline", finish, due),
        *([("first token within slo.ttft_s", start + first - arrival, np.full(len(mine), limit))] if limit else []),
    ):  # fmt: skip
        for r in np.flatnonzero(~(values <= bounds + CLOSE_S * np.maximum(1.0, np.abs(bounds)))):
            found.add(f"{what}: request {mine[r]} on {name}", float(values[r]), float(bounds[r]), "s")
    slots = x.slots
    for r in np.flatnonzero((slot < 0) | (slot >= slots) | (slot != np.round(slot))):
        found.add(f"slot of request {mine[r]} on {name}", float(slot[r]), f"0 to {slots - 1}")
    by = np.lexsort((start, slot))
    overlap = (slot[by][1:] == slot[by][:-1]) & (start[by][1:] < finish[by][:-1] - CLOSE_S)
    for r in np.flatnonzero(overlap):
        before, after = float(finish[by][r]), float(start[by][r + 1])
        found.add(f"one request at a time in slot {slot[by][r]} of {name}", before, after, "s")
    times = np.concatenate((start, finish - CLOSE_S))
    change = np.concatenate((np.ones(len(mine)), -np.ones(len(mine))))[np.argsort(times, kind="stable")]
    found.at_most(f"requests at once on {name}", float(np.cumsum(change).max(initial=0.0)), slots)
