"""A fleet plan for people: terminal summary and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.table import Table

from formulations.fleet.carried import headroom
from formulations.fleet.engines import provenance_of
from formulations.fleet.on_trace import replays
from formulations.fleet.over_time import over_time
from formulations.fleet.plan import CertificationLine, DeploymentLine, FleetPlan, PeriodLine, TransferLine
from formulations.fleet.points import FleetTables
from formulations.fleet.predicted import predicted, predicted_of
from formulations.fleet.problem import FleetCase
from formulations.fleet.replay import NO_TIMES
from optmodels.batch.points import NONE
from optmodels.catalog.types import MARKETS
from optmodels.engine.continuous import seconds_and_quantile
from optmodels.engine.stages import Link
from optmodels.io.write import columns_of
from optmodels.latency.steps import Provenance, ToMeasure
from optmodels.latency.strategies import FAMILIES
from optmodels.limits import quantity
from optmodels.plans.replayed import PLACES
from optmodels.reporting.certification import FOUND, certification_lines
from optmodels.reporting.decision import LATENCY_NAMES, at_words, is_refuted, short_seconds, slos_of, usd
from optmodels.reporting.sources import at_most, of_lengths, source_entries, source_lines
from optmodels.reporting.text import first_lines, plain, titled, told_apart
from optmodels.simulation.compiling import short_replay
from optmodels.solver.deadline import OUT_OF_SAMPLE

MAX_ROWS = 5000
PROMISES_SHOWN = 8
LATENCIES_SHOWN = 16
ROUTINGS = {
    "random": "requests go to any engine",
    "first_block": "prompts that begin alike go to the same engine",
    "session": "requests of a session go to the same engine",
}


def report(tables: FleetTables, plan: FleetPlan | None) -> dict[str, Any]:
    """The report next to the plan: sizes, and the demands that nothing can serve."""
    return {
        "candidates": {
            "points": len(tables.points), "demands": len(tables.demands),
            "pairs": int(np.isfinite(tables.load).sum()),
        },
        **({} if not tables.case.problem.continuous else {"levels_spread": tables.spread}),
        "blocked": [{"demand": k, "reason": v} for k, v in tables.blocked.items()],
        "notes": [*tables.case.notes, *_of_mean_lengths(tables.case)],
        **({} if plan is None or tables.case.points is not None else {"latency": _latency(tables.case, plan)}),
        "prices": tables.case.price_source,
        **({} if plan is None or not tables.case.problem.continuous else {"predicted": predicted(tables.case, plan)}),
        **({} if plan is None else _cost_of_output(tables.case, plan)),
        **({} if plan is None else {"headroom": headroom(tables, plan)}),
        **({} if plan is None else _of_trace(tables, plan)),
    }  # fmt: skip


def _cost_of_output(case: FleetCase, plan: FleetPlan) -> dict[str, Any]:
    """Cost of a million output tokens, where all tokens count alike."""
    lengths = {x.name: (x.input_tokens, x.output_tokens) for x in case.demands}
    total = output = 0.0
    hours = sum(q.hours for q in plan.periods)
    for q in plan.periods:
        for s in (s for d in q.deployments if d.stage != "prefill" for s in d.serves):
            prompt, answer = lengths.get(s.demand, (None, None))
            if prompt is None or answer is None:
                return {}
            total += q.hours / hours * 3600 * s.requests_per_s * (prompt + answer)
            output += q.hours / hours * 3600 * s.requests_per_s * answer
    stated = plan.usd_per_million_tokens
    if stated is None or output <= 0 or not math.isclose(1e6 * plan.total_usd_per_hour / total, stated, rel_tol=1e-6):
        return {}
    return {"usd_per_million_output_tokens": 1e6 * plan.total_usd_per_hour / output}


def _of_mean_lengths(case: FleetCase) -> list[str]:
    """What percentiles are of; certification has the lengths of a trace's requests."""
    if case.problem.certify != "none" or case.points is not None:
        return []
    limits = [x for w in case.workloads for x in (w.slo.ttft_s, w.slo.tpot_s, w.slo.itl_s, w.slo.deadline_s)]
    return of_lengths(limits, "the mean lengths of each bucket")


def _of_trace(tables: FleetTables, plan: FleetPlan) -> dict[str, Any]:
    """Of a plan made for a trace: GPUs over time and the replays, on its own requests and out of sample, or why none.

    The replay of its own requests is as short as a check; out of sample is optional.
    """
    case, over = tables.case, over_time(tables, plan)
    found: dict[str, Any] = {} if over is None else {"over_time": over}
    traced = [w.name for w in case.workloads if w.trace is not None or w.requests is not None]
    if traced and case.trace is None:
        rates = [w.name for w in case.workloads if w.name not in traced]
        return found | {"not_out_of_sample": f"{', '.join(rates)} given as rates, without a trace"}
    if case.trace is None:
        return found
    if any(d.point is not None and d.stage != "both" for q in plan.periods for d in q.deployments):
        return found | {"not_out_of_sample": NO_TIMES}
    if case.problem.continuous and not short_replay("the replay of its own requests"):
        return found
    return found | replays(case, plan, short_replay(OUT_OF_SAMPLE))


def _latency(case: FleetCase, plan: FleetPlan) -> dict[str, Any]:
    """Source and interval of the plan's latencies, and the limits that are missed at their pessimistic end.

    Every bucket's worst: the prediction for engines whose steps take as long as 9 of 10 measurements stay below, or,
    where nothing is predicted, this multiple of the bound at the planned steps; how much fuller slower
    deployments are is in the former only. None: the end is not known for every one.
    """
    safety, known = case.problem.latency.safety, True
    of: list[tuple[str, Provenance]] = []
    worst: dict[tuple[str, str], tuple[float, float]] = {}
    open_: list[tuple[float, DeploymentLine, ToMeasure]] = []  # pessimistic over limit, of what may be measured
    for d in (d for q in plan.periods for d in q.deployments):
        if (found := provenance_of(case, d)) is None:
            continue
        of.append(found)
        end = at_most(found[1], safety)
        if end is None:
            known = False
            continue
        seen, most_pressed = predicted_of(case, d, end), 0.0
        for k, s in enumerate(d.serves):
            slo, wait = case.workload(s.demand.partition("/")[0]).slo, 0.0 if case.problem.continuous else s.wait_s
            slower = seen[k] if seen is not None else {
                "ttft_s": end[1] * (s.ttft_s or 0.0) + wait, "tpot_s": end[0] * (s.tpot_s or 0.0),
                "deadline_s": max(end) * (s.e2e_s or 0.0) + wait,
            }  # fmt: skip
            for name, seconds in slower.items():
                most, _ = seconds_and_quantile(getattr(slo, name))
                most_pressed = max(most_pressed, seconds / most)
                if seconds > most * (1 + 1e-6) and seconds > worst.get((s.demand, name), (0.0, 0.0))[0]:
                    worst[s.demand, name] = seconds, most
        if found[1].to_measure is not None and d.engine is not None:
            open_.append((most_pressed, d, found[1].to_measure))
    missed = [
        {"demand": d, "latency": name, "pessimistic_s": value if math.isfinite(value) else None, "limit_s": most}
        for (d, name), (value, most) in worst.items()
    ]
    return {
        "sources": source_entries(of, safety),
        "missed_at_the_pessimistic_end": missed if known else None,
        "to_measure": _shape(case, *max(open_, key=lambda x: x[0])[1:]) if open_ else None,
    }


def _shape(case: FleetCase, d: DeploymentLine, rows: ToMeasure) -> dict[str, Any]:
    """A deployment whose measurement narrows the interval, its mean running requests, and its main lengths."""
    tokens = {x.name: (x.input_tokens or 1, x.output_tokens or 1) for x in case.demands}
    most = max(d.serves, key=lambda s: s.requests_per_s * sum(tokens[s.demand]))
    lengths = dict(zip(("input_tokens", "output_tokens"), tokens[most.demand], strict=True))
    seen, slots = predicted_of(case, d) or [], d.batch * (d.attention_ranks or 1)
    running = sum(s.requests_per_s * x["deadline_s"] for s, x in zip(d.serves, seen, strict=False))
    each = running / (d.count * (d.replicas_per_machine or 1))  # Little's law
    return vars(rows) | lengths | {"concurrency": math.ceil(min(each, slots)) if seen else slots}


def summary(result: Mapping[str, Any]) -> list[Any]:
    """Rich renderables of a solve document."""
    out: list[Any] = []
    if result.get("plan") is not None:
        problem = result.get("problem", {})
        report = result.get("report") or {}
        out += _plan(FleetPlan.model_validate(result["plan"]), problem, report, is_refuted(result))
        unqueued = problem.get("queueing", {}).get("model", "none") == "none" and problem.get("max_load", 1.0) == 1.0
        if unqueued and problem.get("serving") != "continuous":
            apart = any(q.get("transfers") for q in result["plan"]["periods"])  # measured: they have no queueing
            advice = f"add {'max_load:' if apart else 'queueing: (or max_load:)'} to keep the plan under load"
            out.append(f"[yellow]Planned without waiting, up to 100 % load: {advice}.[/yellow]")
    other = (result.get("report") or {}).get("out_of_sample")
    if other:
        out += ["", _shares(other)]
    if why := (result.get("report") or {}).get("not_out_of_sample"):
        out.append(f"  Not replayed out of sample: {plain(why)}.")
    latency = (result.get("report") or {}).get("latency")
    if latency:
        out += ["", *source_lines(latency["sources"])]
        if missed := latency["missed_at_the_pessimistic_end"]:
            each = dict.fromkeys(
                f"{plain(m['demand'])} exceeds capacity" if m["pessimistic_s"] is None else
                f"{plain(m['demand'])} {LATENCY_NAMES[m['latency']]}"
                f" {', SLO '.join(told_apart(m['pessimistic_s'], m['limit_s'], short_seconds))}" for m in missed
            )  # fmt: skip
            said = [*each][:PROMISES_SHOWN]
            more = f"; and {len(each) - len(said)} more" if len(each) > len(said) else ""
            out.append(f"  Pessimistic case: [yellow]SLO missed[/yellow]: {'; '.join(said)}{more}")
    if prices := (result.get("report") or {}).get("prices"):
        out.append(f"[bold]Prices:[/bold] {plain(prices)}")
    bounds = result.get("problem", {}).get("serving") == "continuous"
    out += _stages(result.get("log", {}).get("stages"), result.get("unit", "USD/h"), bounds)
    conflict = result.get("log", {}).get("conflict")
    if conflict and not all(c in result["log"].get("reason", "") for c in conflict):  # there, it is stated already
        out += ["[bold]Cannot hold together:[/bold]", *first_lines([f"  {plain(c)}" for c in conflict])]
    blocked = result.get("report", {}).get("blocked") or []
    if blocked and not conflict:
        why = [f"  {plain(b['demand'])}: {plain(b['reason'])}" for b in blocked]
        out += ["", "[bold]Buckets that nothing serves:[/bold]", *first_lines(why)]
    return out + first_lines([f"[dim]note: {plain(n)}[/dim]" for n in result.get("report", {}).get("notes", [])])


def _shares(found: Mapping[str, Any]) -> Table:
    """Promised, replayed and out of sample: the share of requests within each limit, least first."""
    rows = sorted(found["promises"], key=lambda r: 1.0 if r["out_of_sample"] is None else r["out_of_sample"])
    title = f"SLO attainment ({found['trace']})"
    table = titled(title, "bucket", "latency", "SLO", "required", "replayed", "out of sample")
    for r in rows[:PROMISES_SHOWN]:
        promised, own, new = (r[k] for k in ("promised", "replayed", "out_of_sample"))
        table.add_row(
            plain(r["demand"]), {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL"}.get(r["latency"], "E2E"),
            short_seconds(r["limit_s"]), "mean" if promised is None else f"{promised:.1%}", _attained(own, promised),
            "none came" if new is None else _attained(new, promised),
        )  # fmt: skip
    if len(rows) > PROMISES_SHOWN:
        table.add_row(f"… {len(rows) - PROMISES_SHOWN} more")
    return table


def _attained(share: float, required: float | None) -> str:
    """A share of requests, by colour at least the requirement or less."""
    if required is None:
        return f"{share:.2%}"
    return f"[{'green' if share >= required else 'red'}]{share:.2%}[/]"


def _stages(stages: Mapping[str, Any] | None, unit: str, bounds: bool = True) -> list[str]:
    """Whether disaggregated prefill and decode pay; `bounds`: by the model's on latencies, not by measurements."""
    if stages is None:
        return []
    fleet = "certified fleet" if stages.get("certified") else "fleet"
    if not stages["used"]:
        found = "is" if stages["none_is_better"] else "was found that is"
        said = f"fleet with disaggregated prefill and decode {found} better"
        proved = "[green]Proved:[/green] no" if stages["none_is_better"] else "No"
        return [f"  {proved} {said} than one without.", *_pays(stages)]
    without = stages["without"]
    if without["objective"] is None:
        return ["  Without disaggregated prefill and decode no plan was found" + (
            ": there is none." if without["status"] == "infeasible" else ".")]  # fmt: skip
    certified, bound = stages.get("certified"), without["bound"]
    found = "" if without["status"] == "optimal" and not certified else "found "  # rounds prove no least cost
    lines = [f"  The best {fleet} {found}without disaggregated prefill and decode: {usd(without['objective'])} {unit}"]
    if found and not certified and bound is not None:
        lines[0] += f" (bound {usd(bound)})"
    if bounds and not certified:
        lines.append(
            "  [dim]By the model's bounds on tails, which are wider for engines that do both: [/dim]certify: replay"
            "[dim] compares fleets that meet their SLOs in simulation.[/dim]"
        )
    return lines


def _pays(stages: Mapping[str, Any]) -> list[str]:
    """The price of prefill and decode deployments at which one would be."""
    if (pays := stages.get("pays_below")) is None:
        return []
    known = f"At {pays['found']:.1%} of their prices one is" if pays["found"] else "None is known at a lower price"
    proof = f"none is at {pays['none_from']:.1%} or more (proved)" if pays["none_from"] < 1 else "more is not settled"
    return [f"  {known}; {proof}."]


def _promises(
    p: FleetPlan, problem: Mapping[str, Any], report: Mapping[str, Any], refuted: bool = False
) -> Table | None:
    """Predicted latencies next to their SLOs, tightest first; None: measured points do not state.

    Predicted at the planned rates where engines batch continuously, next to the most that their levels allow. Figures
    of a plan that its own replay refutes have no colour.
    """
    limits = slos_of(problem)
    at_rates: dict[str, Mapping[str, Any]] = {x["demand"]: x for x in report.get("predicted") or ()}
    continuous = problem.get("serving") == "continuous"
    late = {
        (x["demand"], x["latency"]): x["seen_s"]
        for place in PLACES
        for x in (report.get(place) or {}).get("missed", ())
    }
    rows: dict[str, dict[str, float]] = {}
    simulated = p.certification.promises if p.certification is not None else []
    for x in simulated:
        row = rows.setdefault(x.demand, {})
        row[x.latency] = max(row.get(x.latency, 0.0), x.seen_s)
    parts: dict[str, dict[str, float]] = {}  # of a whole request, by stage
    shares = [(d.stage, s) for q in p.periods for d in q.deployments for s in d.serves]
    for stage, share in () if simulated else shares:
        wait = 0.0 if continuous else share.wait_s
        seen = [
            ("ttft_s", share.ttft_s, wait),
            ("tpot_s", share.tpot_s, 0.0),
            ("itl_s", share.itl_s, 0.0),
            ("deadline_s", share.e2e_s, wait),
        ]
        row = rows.setdefault(share.demand, {})
        if stage != "both" and share.e2e_s is not None:
            part = parts.setdefault(share.demand, {})
            part[stage] = max(part.get(stage, 0.0), share.e2e_s)
            seen = seen[:3]
        for key, value, more in seen:
            if value is not None:
                row[key] = max(row.get(key, 0.0), value + more)
    for demand, part in parts.items():  # the slowest go together only if that is in time
        deadline = limits.get(demand.partition("/")[0], {}).get("deadline_s")
        most = deadline["at_most"] if isinstance(deadline, Mapping) else deadline
        together = sum(part.values()) if most is None else min(sum(part.values()), most)
        rows[demand]["deadline_s"] = max(rows[demand].get("deadline_s", 0.0), together)
    kinds: list[tuple[float, list[tuple[bool, list[str]]]]] = []
    for demand, row in rows.items():
        slo, tight = limits.get(demand.partition("/")[0], {}), 0.0
        lines: list[tuple[bool, list[str]]] = []  # has a limit, cells
        for key, name in LATENCY_NAMES.items():
            if (value := row.get(key)) is None:
                continue
            limit, at = slo.get(key), None
            if isinstance(limit, Mapping):
                limit, at = limit["at_most"], limit["percentile"]
            cells = [
                _of(x, limit, not refuted) for x in (at_rates.get(demand, {}).get(key), late.get((demand, key)), value)
            ]
            tight = max(tight, 0.0 if limit is None else value / limit)
            lines.append((limit is not None, [f"{name} {at_words(at)}", *cells, _of(limit, None)]))
        if lines:
            kinds.append((tight, [(limited, [plain(demand), *cells]) for limited, cells in lines]))
    kinds.sort(key=lambda kind: -kind[0])
    if sum(len(found) for _, found in kinds) > LATENCIES_SHOWN:
        kinds = [(tight, [x for x in found if x[0]] or found[:1]) for tight, found in kinds]
    shown: list[list[str]] = []
    left_out = 0
    for _, found in kinds:
        fits = not left_out and (not shown or len(shown) + len(found) <= LATENCIES_SHOWN)
        shown += [["" if i else cells[0], *cells[1:]] for i, (_, cells) in enumerate(found)] if fits else []
        left_out += not fits
    if not shown:
        return None
    title = "What requests see, by bucket (workload/input × output tokens)" + (
        f" ({left_out} with more slack not shown)" if left_out else ""
    )
    columns = [
        "requests",
        "latency",
        "predicted",
        "on the trace",
        "in simulation" if simulated else "worst case",
        "SLO",
    ]
    here = [i for i in range(len(columns)) if i not in (2, 3) or any(cells[i] for cells in shown)]
    table = titled(title, *(columns[i] for i in here))
    for cells in shown:
        table.add_row(*(cells[i] for i in here))
    return table


def _of(seconds: float | None, limit: float | None, coloured: bool = True) -> str:
    """Seconds, by colour within a limit or beyond it; nothing where they are not known."""
    if seconds is None or limit is None:
        return "" if seconds is None else short_seconds(seconds)
    text = told_apart(seconds, limit, short_seconds)[0]
    if seconds > limit * (1 + 1e-6):
        return f"[red]{text}[/red]"
    return f"[green]{text}[/green]" if coloured else text


def _certification(c: CertificationLine) -> list[Any]:
    pairs = sum(len(x.forbidden) for x in c.cuts)
    cuts = f"cuts: {len(c.cuts)} operating points planned less full; {pairs} pairs of bucket and point excluded"
    drawn = (
        f"all SLOs hold in simulation, jointly with {c.confidence:.4g} confidence, for Poisson arrivals,"
        " with lengths from the trace or, without one, the bucket's mean"
    )
    own = "all SLOs hold when the trace's own requests are replayed, sent in turn and at random"
    return certification_lines(
        c,
        own if c.arrivals == "trace" else drawn,
        {
            "limits": lambda r: "unchanged" if r.stretch == 1 else f"× {r.stretch:g}",
            "worst, of its limit": lambda r: f"{r.worst:.1%}, {_of_latency(r.worst_of)}",
            "requests": lambda r: f"{r.requests:,}",
        },
        [cuts] if c.cuts else [],
        [
            f"[red]{FOUND[x.found]}[/red]: {plain(x.demand)} on {plain(x.deployment)}: {LATENCY_NAMES[x.latency]}"
            f" {at_words(x.percentile)}  {' of '.join(told_apart(x.seen_s, x.at_most_s, short_seconds))}"
            for x in c.promises if x.found != "kept"
        ],
    )  # fmt: skip


def _of_latency(name: str) -> str:
    """A demand and its latency, "chat/600x200: tpot_s", in words."""
    demand, _, latency = name.rpartition(": ")
    return plain(f"{demand} {LATENCY_NAMES[latency]}" if latency in LATENCY_NAMES else name)


def _plan(p: FleetPlan, problem: Mapping[str, Any], report: Mapping[str, Any], refuted: bool = False) -> list[Any]:
    out: list[Any] = []
    parts = {"machines": p.usd_per_hour, "penalties": p.penalty_usd_per_hour, "changes": p.change_usd_per_hour,
             "unserved in draws": 0.0 if p.scenarios is None else p.scenarios.usd_per_hour}  # fmt: skip
    if p.total_usd_per_hour > p.usd_per_hour:
        out.append("Cost in USD/h: " + ", ".join(f"{name} {usd(value)}" for name, value in parts.items() if value))
    if (over := report.get("over_time")) is not None:
        out += over_time_lines(over)
    seen = report.get("predicted") or ()
    promises = _promises(p, problem, report, refuted)
    if promises is not None:
        out += ["", promises] if over else [promises]
    if lost := [plain(x["demand"]) for x in seen if any(x.get(name, 0.0) is None for name in LATENCY_NAMES)]:
        more = f" and {len(lost) - PROMISES_SHOWN} more" if len(lost) > PROMISES_SHOWN else ""
        out.append(
            f"  Not predicted, for their engines could not serve the rates planned in the long run:"
            f" {', '.join(lost[:PROMISES_SHOWN])}{more}"
        )
    for x in seen:
        if named := x.get("at_bound"):
            names = " and ".join(LATENCY_NAMES[name] for name in named)
            out.append(
                f"  {plain(x['demand'])}: the estimate of {names} exceeds the bound, which is shown as predicted"
            )
    if p.routing is not None:
        out.append(f"  Routing: {ROUTINGS[p.routing]}, as the prefix-cache hits were measured")
    if p.survival_probability is not None:
        out.append(f"  every spot pool keeps its load with probability {p.survival_probability:.6f}")
    if (drawn := p.scenarios) is not None:
        out.append(
            f"  {drawn.draws} draws of demand and slow machines: {drawn.unserved_share:.2%} of the requests unserved in"
            f" the mean, {drawn.worst_share:.1%} in the worst; all served in {drawn.all_served:.0%}"
        )
    for q in p.periods:
        which = "Deployments" if len(p.periods) == 1 else f"Deployments, {q.name}"
        served = f"{q.served_requests_per_s:.4g} of {q.requests_per_s:.4g} requests/s"
        title = f"{which}: {usd(q.usd_per_hour)} USD/h, {served}"
        levels = any(d.load_level < 1 for d in q.deployments)  # of static batches
        columns = ["deployments", "USD/h each", *(["load at most"] if levels else []), "in use", "serves"]
        table = titled(plain(title), *columns)
        for d in q.deployments:
            serves = ", ".join(
                f"{s.share:.0%} of {s.demand}" + (" (late)" if s.misses_slo else "") for s in d.serves[:6]
            )
            serves += f" and {len(d.serves) - 6} more" if len(d.serves) > 6 else ""
            table.add_row(
                f"{d.count} × {plain(d.name)}{_of_point(d)}{_replicas(d)}", usd(d.usd_per_hour_each),
                *([f"{d.load_level:.0%}"] if levels else []), f"{d.utilisation:.0%}" + _scarcest(d),
                plain(serves or "spare"),
            )  # fmt: skip
        out += ["", table]
        if q is p.periods[-1]:
            out.append(
                "[dim]In use: share of the scarcest capacity at the planned rates. The SLO holds up to 100 %.[/dim]"
            )
        for sent in q.transfers:
            apart = [f"{share:.0%} of {name}" for name, share in sent.demands.items()]
            where = f" in {plain(sent.region)}" if sent.region else ""
            out.append(
                f"  KV caches from prefill to decode{where}: "
                + ("" if sent.gb_per_s is None else f"{sent.gb_per_s:.3g} GB/s, ")
                + f"{sent.requests_per_s:.4g} requests/s ({plain(', '.join(apart[:6]))}"
                + (f" and {len(apart) - 6} more)" if len(apart) > 6 else ")")
                + _through(q, sent, problem)
            )
        if q.unserved:
            out += [f"  not served: {plain(u.demand)} {u.share:.1%} ({u.requests_per_s:.4g} requests/s)"
                    for u in q.unserved[:10]]  # fmt: skip
            out += [f"  and {len(q.unserved) - 10} more buckets"] if len(q.unserved) > 10 else []
        if q.limits:
            limits = Table("limit", "plan", "bound", "", box=None)
            for line in q.limits:
                text = "[yellow]binds[/yellow]" if line.binding else ""
                sign = {"<=": "≤", ">=": "≥"}[line.sense]
                limits.add_row(plain(line.name), f"{line.value:.5g}", f"{sign} {quantity(line.limit, line.unit)}", text)
            out.append(limits)
    if p.certification is not None:
        out += ["", *_certification(p.certification)]
    for w in p.shadow_prices:
        how = "" if w.exact else " (linear relaxation)"
        out.append(f"  shadow price of {plain(w.limit)}: {w.gain:.4g} USD/h per {w.unit}{how}")
    return out


def over_time_lines(found: Mapping[str, Any]) -> list[str]:
    """The busiest time of a trace, and the GPUs that its pieces need."""
    lines = (
        [] if found["busiest"] is None else [f"  Trace: {plain(found['busiest'])}. The plan carries its busiest piece."]
    )
    if len(found["pieces"]) > 1 and "peak_gpus" in found:
        lines.append(
            f"  A fleet that followed the trace: peak {found['peak_gpus']:,} GPUs, mean {found['mean_gpus']:.1f},"
            f" {found['gpu_hours']:,.3g} GPU-hours, {found['usd']:,.2f} USD (by the model, not simulated)"
        )
    return lines


def _through(q: PeriodLine, sent: TransferLine, problem: Mapping[str, Any]) -> str:
    """Largest use of the machines' networks by transfers, by stage."""
    most_used = ((problem.get("deployment") or {}).get("link") or {}).get("most_used", Link().most_used)
    used: dict[str, float] = {}
    for d in q.deployments:
        if d.stage != "both" and d.engine is not None and d.machines[0].region == sent.region and any(
            s.demand in sent.demands for s in d.serves
        ):  # fmt: skip
            share = most_used * d.engine.capacities.get("transfer", 0.0)
            used[d.stage] = max(used.get(d.stage, 0.0), share)
    said = [f"{used[stage]:.0%} of one that {does}" for stage, does in (("prefill", "prefills"), ("decode", "decodes"))
            if stage in used]  # fmt: skip
    return f"; of a machine's network at most {', '.join(said)}" if said else ""


def _of_point(d: DeploymentLine) -> str:
    """Stage and model of a measured point; other deployments have these in their names."""
    does = None if d.stage == "both" else f"{d.stage} only"
    said = [] if d.point is None else [x for x in (does, d.model) if x is not None]
    return f" ({plain(', '.join(said))})" if said else ""


def _replicas(d: DeploymentLine) -> str:
    """Number of engines on a machine, with the settings of one; nothing for one engine."""
    replicas = d.replicas_per_machine or 1
    return f"; {replicas} replicas on each machine" if replicas > 1 else ""


def _scarcest(d: DeploymentLine) -> str:
    """The capacity of its engines that is most in use."""
    if d.engine is None or not d.serves:
        return ""
    use = d.engine.capacities
    return f" of {max(use, key=lambda name: use[name])}"


def frames(tables: FleetTables, plan: Any) -> dict[str, Any]:
    """Columns by file name: points with the cost of every demand on them, and the plan's shares."""
    x = tables.points
    order = np.argsort(x.usd_per_hour, kind="stable")[:MAX_ROWS]
    rows = []
    for p in order:
        machines = " + ".join(f"{c}x {r[0]} {r[1]} {r[2]}".strip() for r, c in tables.machines_of(int(p)))
        row: dict[str, Any] = {"machines": machines, "usd_per_hour": x.usd_per_hour[p], "batch": x.slots[p],
                               "load_level": x.rho[p]}  # fmt: skip
        if x.block[p] != NONE:
            c, k = tables.blocks[x.block[p]].configurations, x.configuration[p]
            row |= {"family": FAMILIES[c.family[k]], "tensor_parallel": c.tp[k], "replicas": c.dp[k],
                    "main_market": MARKETS[x.main_market[p]]}  # fmt: skip
            if tables.case.problem.strategies.attention_ranks != (1,):
                row |= {"attention_ranks": c.ranks[k]}
        elif tables.case.points is not None:
            point = tables.case.points[x.configuration[p]]
            row |= {"point": point.name, "stage": point.stage, "model": point.model or ""}
        rows.append(row)
    points = columns_of(rows)
    wide = {
        f"requests_per_s {d.name}": np.where(np.isfinite(tables.load[w, order]), 1.0 / tables.load[w, order], 0.0)
        for w, d in enumerate(tables.demands)
    }
    found: dict[str, Any] = {"points": points | wide}
    if plan is not None:
        shares = [
            {"period": q.name, "deployment": d.name, "count": d.count, "usd_per_hour_each": d.usd_per_hour_each,
             **s.model_dump()}
            for q in plan.periods for d in q.deployments for s in d.serves
        ]  # fmt: skip
        found["shares"] = columns_of(shares)
    return found
