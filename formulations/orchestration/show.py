"""How an orchestration result reads in the terminal, and its tables as data frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.table import Table

from formulations.orchestration.certify import planned
from formulations.orchestration.flow import busiest
from formulations.orchestration.making import assignment_of, routes_of, rows_of
from formulations.orchestration.named import name_requests, requests_table
from formulations.orchestration.plan import ConfigurationLine, OrchestrationPlan, ReplayCertification
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.replay import out_of_sample, replay
from optmodels.reporting.certification import FOUND, certification_lines
from optmodels.reporting.sources import at_most, source_entries, source_lines
from optmodels.reporting.text import beside_limit, plain, seconds, titled
from optmodels.simulation.compiling import short_replay
from optmodels.solver.deadline import OUT_OF_SAMPLE, seconds_for, wanted

ROWS_SHOWN = 40
LATENCIES_SHOWN = CLASSES_SHOWN = 8
CLASSES_NAMED = 3
MOST_REPLAYED = 200_000  # requests simulated with every solve
MOST_OUT_OF_SAMPLE = 50_000  # a second's simulation, or more
MAX_ROWS = 100_000
BINS_SHOWN = 300
LINES_SHOWN = 10
KINDS = {"in_time": "attainment", "itl_s": "times between tokens within their limit"}


def report(t: OrchestrationTables, plan: OrchestrationPlan | None) -> dict[str, Any]:
    """The report next to the plan: unusable and unserved parts, busy slots over time, the replay."""
    reasons: dict[str, int] = {}
    for d in t.discarded:
        ranks = f" ranks {d.ranks}" if d.ranks > 1 else ""
        key = f"{d.model} tp {d.tp} pp {d.pp}{ranks} on {d.gpu}: {d.reason}"
        reasons[key] = reasons.get(key, 0) + 1
    hopeless = ~t.admissible.any(axis=1) & (t.classes.count > 0)
    extra: dict[str, Any] = {
        "t_slice_s": dict(zip(t.case.models, t.t_slice_s.tolist(), strict=True)),
        "candidates": len(t.configurations),
        "unusable": [{"what": k, "batches": v} for k, v in sorted(reasons.items())],
        "never_in_time": [
            {"class": t.classes.label[k], "requests": float(t.classes.count[k])} for k in np.flatnonzero(hopeless)
        ],
        "notes": list(t.case.notes),
    }
    if plan is not None:
        of = planned(t, plan)
        extra["latency"] = _latency(of, plan)
        if plan.bins:
            extra["timeline"] = _timeline(of, plan)
            taken = busiest(of, assignment_of(of, plan)) / np.maximum(of.capacity, 1e-300)
            extra["busiest_capacity"] = float(taken.max(initial=0.0))  # share taken in its busiest bin
    trace = t.case.trace
    if plan is not None and trace is not None and len(trace) <= MOST_REPLAYED and _time_for("the replay", t):
        extra["replay"] = replay(t.case.problem, plan.model_dump(mode="json"))
        if len(trace) > MOST_OUT_OF_SAMPLE:
            extra["notes"].append(f"not replayed out of sample: more than {MOST_OUT_OF_SAMPLE:,} requests")
        elif trace.duration_s > 0 and _time_for(OUT_OF_SAMPLE, t):
            extra["out_of_sample"] = out_of_sample(t, plan, extra["replay"])
    return extra


def _time_for(what: str, t: OrchestrationTables) -> bool:
    """Whether a replay is made: short ones are whatever the time limit."""
    if t.case.trace is None or len(t.case.trace) > MOST_OUT_OF_SAMPLE:
        return seconds_for(what, np.inf) > 0
    return wanted(what) if t.taken is None else short_replay(what)


def _latency(t: OrchestrationTables, plan: OrchestrationPlan) -> dict[str, Any]:
    """Source and interval of the plan's latencies, and the share of its requests in time at their pessimistic end.

    Requests are in time then which may still wait as long as their prefill and decoding take longer. None: not known of
    all of them.
    """
    safety, rows, s = t.case.problem.latency.safety, rows_of(t, plan), plan.shares
    used = [t.configurations[c] for c in rows]
    of = [(f"{t.case.models[x.model]} on {x.tp * x.ranks} × {t.case.gpu_types[x.gpu]}", x.provenance)
          for x in used if x.provenance is not None]  # fmt: skip
    ends = [None if x.provenance is None else at_most(x.provenance, safety) for x in used]
    share = None
    if sum(s.admitted) > 0 and all(end is not None for end in ends):
        k, j, admitted = np.array(s.request_class), np.array(s.configuration), np.array(s.admitted)
        c, bounds = routes_of(t, plan), np.array(ends, dtype=float)
        ttft, tbt = bounds[j, 1], bounds[s.decode or j, 0]
        first, service = t.first_s[k, c], t.service_s[k, c]
        later = first * (ttft - 1.0) + (service - first) * (tbt - 1.0)
        share = float(admitted[later <= t.wait_s[k, c]].sum() / admitted.sum())
    return {"sources": source_entries(of, safety), "in_time_at_the_pessimistic_end": share}


def _timeline(t: OrchestrationTables, plan: OrchestrationPlan) -> dict[str, Any]:
    """Arrivals, and the busy share of the slots of the configurations with most GPUs; a few hundred steps of time.

    Returns:
        ``step_s``; ``arriving``, requests/s by step; ``busy``: ``configuration`` (index) and ``share`` by step.
    """
    size = -(-plan.bins // BINS_SHOWN)
    starts = np.arange(0, plan.bins, size)

    def steps(values: Any, unit: float) -> list[float]:
        mean = np.add.reduceat(np.asarray(values, dtype=float), starts) / np.diff([*starts, plan.bins]) / unit
        return [float(f"{v:.4g}") for v in mean]

    s, rows = plan.shares, rows_of(t, plan)
    of, kind, bins = (np.array(x, dtype=np.int64) for x in (routes_of(t, plan), s.request_class, s.bin))
    started = np.array(s.started)
    largest = sorted(range(len(plan.configurations)), key=lambda j: -plan.configurations[j].gpus)[:LINES_SHOWN]
    busy = []
    for j in largest:
        c, total = plan.configurations[j], np.zeros(plan.bins)
        on = (t.legs[of] == rows[j]).any(axis=1)
        for k, r in np.unique(np.column_stack((kind, of))[on], axis=0).tolist():
            mine = (of == r) & (kind == k)
            shares = dict(t.uses(k, r))[rows[j]][0]  # slots, or with continuous serving the engines' time
            total += np.convolve(np.bincount(bins[mine], started[mine], plan.bins), shares)[: plan.bins]
        busy.append({"configuration": j, "share": steps(total, max(c.instances * t.capacity[0, rows[j]], 1))})
    arriving = steps(t.classes.arrivals.sum(axis=0), plan.bin_s)
    return {"step_s": size * plan.bin_s, "arriving": arriving, "busy": busy}


def summary(result: Mapping[str, Any]) -> list[Any]:
    """Rich renderables of a solve document."""
    out: list[Any] = []
    plan, extra = result.get("plan"), result.get("report", {})
    if plan is not None:
        p = OrchestrationPlan.model_validate(plan)
        out += [_instances(p), "", _classes(p)]
        if (seen := _seen(p, result.get("problem", {}).get("slo", {}).get("ttft_s"))) is not None:
            out += ["", seen]
        if p.apart:
            out += ["", _apart(p), _links(p)]
        out += _stages(result.get("log", {}).get("stages"))
        if p.shortfalls:
            out += [f"[yellow]{plain(m)} misses its attainment by {100 * v:.2g} points[/yellow]"
                    for m, v in p.shortfalls.items()]  # fmt: skip
        if p.stopped or p.moved or p.score.changes:
            out.append(f"changes: {p.started} started, {p.stopped} stopped, {p.moved} moved")
        if p.certification is not None:
            out += ["", *_certification(p.certification)]
        if "replay" in extra:
            over = "tokens/s: predicted over the planning horizon, replayed from first arrival to last completion"
            out += ["", replay_table(extra["replay"]), f"[dim]{over}[/dim]", "", latency_table(extra["replay"])]
        if "out_of_sample" in extra:
            out.append(_out_of_sample(extra["out_of_sample"]))
        known = extra.get("latency") or {"sources": [], "in_time_at_the_pessimistic_end": None}
        out += source_lines(known["sources"])
        if (share := known["in_time_at_the_pessimistic_end"]) is not None:
            some = "none" if share < 5e-4 else f"{share:.1%}"
            out.append(f"  In the pessimistic case {some} of the requests planned within the SLO meet it, without"
                       " queueing")  # fmt: skip
    if late := extra.get("never_in_time"):
        largest = sorted(late, key=lambda row: -row["requests"])[:CLASSES_NAMED]
        named = ", ".join(f"{row['requests']:,.0f} × {plain(row['class'])}" for row in largest)
        more = f" and {len(late) - len(largest)} more classes" if len(late) > len(largest) else ""
        out.append(f"[yellow]Cannot meet the SLO: {sum(row['requests'] for row in late):,.0f} requests. No candidate"
                   f" is fast enough or holds their tokens: {named}{more}[/yellow]")  # fmt: skip
    if plan is None or not plan.get("instances"):
        out += [f"[dim]cannot be used: {plain(r['what'])}[/dim]" for r in extra.get("unusable", [])[:ROWS_SHOWN]]
    return out + [f"[dim]note: {plain(n)}[/dim]" for n in extra.get("notes", [])]


def _certification(c: ReplayCertification) -> list[Any]:
    over = "the trace" if not c.copies else f"{c.copies} draws of the requests, with {c.confidence:.4g} confidence,"
    return certification_lines(
        c,
        f"replays of {over} reach the stated SLO attainment of every model",
        {
            "margins": lambda r: "relaxed" if r.looser else "unchanged",
            "stated": lambda r: f"{r.attainment:.2%}",
            "replayed": lambda r: f"{r.replayed:.2%}",
        },
        [
            f"cut: engines of {plain(x.model)} planned {1 - x.keep:.1%} less full"
            + (f"; at most {x.in_time:.1%} of a class count as eligible" if x.in_time < 1 else "")
            for x in c.cuts
        ],
        [
            f"[red]{FOUND[x.found]}[/red]: {plain(x.model)}: {KINDS[x.metric]} {x.seen:.2%}, stated {x.promised:.2%}"
            for x in c.promises if x.found != "kept"
        ],
    )  # fmt: skip


def _out_of_sample(found: Mapping[str, Any]) -> str:
    """Attainment of the plan on other requests, in a line."""
    shares = found["attainment"]
    replayed = "" if shares["replayed"] is None else f", replayed {shares['replayed']:.2%}"
    outside = f"out of sample [bold]{shares['out_of_sample']:.2%}[/bold]"
    return (
        f"SLO attainment: predicted {shares['predicted']:.2%}{replayed}, {outside}"
        f" ({plain(found['trace'])}; {found['policy'].replace('_', ' ')})"
    )


def _instances(p: OrchestrationPlan) -> Table:
    table = titled("Instances", "model", "parallelism", "batch", "GPUs each", "count", "requests", "where")
    for j, c in enumerate(p.configurations[:ROWS_SHOWN]):
        mine = [i for i in p.instances if i.configuration == j]
        where = "; ".join(_where(i.placement) for i in mine[:4]) + (
            f"; … {len(mine) - 4} more" if len(mine) > 4 else ""
        )
        level = str(c.batch) if c.engine is None else f"{c.batch}, {1000 * c.engine.step_s:.3g} ms a step"
        if c.engine is not None and c.engine.itl_s is not None:
            level += f", ITL {1000 * c.engine.itl_s:.3g} ms"
        table.add_row(plain(c.model), c.parallelism, level, f"{c.gpus_each} {plain(c.gpu)}{_stage(c)}",
                      f"{c.instances:,}", f"{c.requests:,.0f}", plain(where))  # fmt: skip
    return table


def _where(placement: Mapping[str, list[int]]) -> str:
    return " + ".join(f"{server}:{_span(gpus)}" for server, gpus in placement.items())


def _span(gpus: list[int]) -> str:
    """0–3 rather than 0, 1, 2, 3."""
    if len(gpus) > 1 and gpus == list(range(gpus[0], gpus[-1] + 1)):
        return f"{gpus[0]}–{gpus[-1]}"
    return ",".join(map(str, gpus))


def _stage(c: ConfigurationLine) -> str:
    """Stage of a configuration that serves one stage only."""
    return "" if c.stage == "both" else f" {c.stage}"


def _apart(p: OrchestrationPlan) -> Table:
    """Requests that are prefilled on one configuration and decoded on another, slowest first token first."""
    left_out = len(p.apart) - CLASSES_SHOWN
    more = f" ({left_out} rows with a shorter TTFT not shown)" if left_out > 0 else ""
    table = titled(f"Disaggregated prefill and decode{more}", "class", "prefilled on", "decoded on", "requests",
                   "TTFT s", "TPOT ms", "KV GB")  # fmt: skip
    for x in sorted(p.apart, key=lambda x: (-x.ttft_s, -x.requests))[:CLASSES_SHOWN]:
        on = [f"{c.gpu} {c.parallelism} B{c.batch}" for c in (p.configurations[x.prefill], p.configurations[x.decode])]
        table.add_row(
            plain(p.classes[x.request_class].label), *map(plain, on), f"{x.requests:,.1f}", f"{x.ttft_s:.3g}",
            f"{1e3 * x.tpot_s:.3g}", f"{x.kv_gb:,.3g}",
        )  # fmt: skip
    return table


def _stages(stages: Mapping[str, Any] | None) -> list[str]:
    """Whether disaggregated prefill and decode pay."""
    if stages is None:
        return []
    if not stages["used"]:
        proved = "[green]Proved:[/green] no" if stages["none_is_better"] else "No"
        said = "is" if stages["none_is_better"] else "was found that is"
        return [f"  {proved} plan with disaggregated prefill and decode {said} better than one without."]
    without = stages["without"]
    most = "" if without["bound"] is None else f" (at most {without['bound']:.5g})"
    return [f"  The best plan without disaggregated prefill and decode: attainment {without['attainment']:.2%},"
            f" objective {without['objective']:.5g}{most}"]  # fmt: skip


def _links(p: OrchestrationPlan) -> Table:
    """KV caches through the network of the engines of one stage."""
    columns = ("stage", "on", "instances", "Gbit/s in the busiest bin", "planned", "network")
    table = titled("KV caches through the network of each engine", *columns)
    for c in p.configurations:
        if c.link is not None:
            table.add_row(
                c.stage, plain(f"{c.gpu} {c.parallelism} B{c.batch}"), f"{c.instances:,}",
                f"{c.link.busiest_gbps:,.3g}", f"{c.link.planned_gbps:,.3g}", f"{c.link.net_gbps:,.3g}",
            )  # fmt: skip
    return table


def _classes(p: OrchestrationPlan) -> Table:
    left_out = len(p.classes) - CLASSES_SHOWN
    more = f" ({left_out} classes with higher attainment not shown)" if left_out > 0 else ""
    table = titled(f"Requests, lowest attainment first{more}", "class", "requests", "deadline s", "in SLO", "on")
    best: dict[int, dict[int, float]] = {}
    for k, j, m in zip(p.shares.request_class, p.shares.configuration, p.shares.admitted, strict=True):
        best.setdefault(k, {})
        best[k][j] = best[k].get(j, 0.0) + m
    shares = [c.in_time / c.requests if c.requests > 0 else 1.0 for c in p.classes]
    order = sorted(range(len(p.classes)), key=lambda k: (round(shares[k], 3), p.classes[k].model, p.classes[k].label))
    for k in order[:CLASSES_SHOWN]:
        c = p.classes[k]
        where = sorted(best.get(k, {}).items(), key=lambda x: -x[1])[:3]
        on = [(p.configurations[j], m / max(c.requests, 1e-9)) for j, m in where]
        names = ", ".join(f"{x.parallelism} B{x.batch}{_stage(x)} {part:.0%}" for x, part in on)
        table.add_row(plain(c.label), f"{c.requests:,.0f}", f"{c.deadline_s:.3g}", f"{shares[k]:.1%}", names)
    return table


def _seen(p: OrchestrationPlan, ttft_limit_s: float | None) -> Table | None:
    """Latencies on engines of requests that meet their deadline, nearest to a limit first; None: not known."""
    rows = []
    for c in p.classes:
        if c.ttft_s is None or c.token_s is None or c.e2e_s is None or c.e2e_at_most_s is None:
            continue
        tight = max(c.e2e_s / c.e2e_at_most_s, 0.0 if ttft_limit_s is None else c.ttft_s / ttft_limit_s)
        ttft = seconds(c.ttft_s) if ttft_limit_s is None else beside_limit(c.ttft_s, ttft_limit_s, None)
        e2e = beside_limit(c.e2e_s, c.e2e_at_most_s, None)
        rows.append((tight, [plain(c.label), f"{c.in_time:,.0f}", ttft, seconds(c.token_s), e2e]))
    if not rows:
        return None
    rows.sort(key=lambda row: -row[0])
    left_out = len(rows) - LATENCIES_SHOWN
    more = f" ({left_out} classes with more slack not shown)" if left_out > 0 else ""
    table = titled(f"Mean latencies within the SLO{more}", "class", "requests", "TTFT", "TPOT", "E2E, limit")
    for _, cells in rows[:LATENCIES_SHOWN]:
        table.add_row(*cells)
    return table


def replay_table(found: Mapping[str, Any]) -> Table:
    """Predicted against replayed, by policy."""
    columns = ("dispatch", "in SLO", "refused", "late", "cascaded", "tokens/s in SLO", "GPU use")
    table = titled(f"Replay of {found['requests']:,} requests", *columns)
    for name, key in (("predicted", "predicted"), ("by name", "named")):
        if key in found:
            x = found[key]
            table.add_row(name, f"{x['attainment']:.2%}", "", "", "", f"{x['goodput_tokens_per_s']:,.0f}", "")
    for policy, r in found["policies"].items():
        table.add_row(policy.replace("_", " "), f"{r['attainment']:.2%}", f"{r['refused']:.2%}", f"{r['late']:.2%}",
                      f"{r['cascaded']:.2%}", f"{r['goodput_tokens_per_s']:,.0f}", f"{r['gpu_use']:.0%}")  # fmt: skip
    return table


def latency_table(found: Mapping[str, Any]) -> Table:
    """Latencies of served requests, by policy: mean, 95th and 99th percentile; of predictions the mean of TTFT."""
    rows = {"predicted": found["predicted"], "by name": found.get("named"), **found["policies"]}
    kinds = [("TTFT, s", "ttft_s", 1), ("TPOT, ms", "tpot_s", 1e3), ("ITL, ms", "itl_s", 1e3), ("E2E, s", "e2e_s", 1)]
    kinds = [x for x in kinds if x[1] != "itl_s" or any((r or {}).get("itl_s") for r in rows.values())]
    table = titled("Latencies, mean / p95 / p99", "dispatch", *(title for title, _, _ in kinds))
    for policy, r in rows.items():
        if r is not None:
            table.add_row(policy.replace("_", " "), *(
                " / ".join(f"{scale * seen[q]:.3g}" for q in ("mean", "p95", "p99") if seen.get(q) is not None)
                for seen, scale in ((r.get(name, {}), scale) for _, name, scale in kinds)
            ))  # fmt: skip
    return table


def frames(t: OrchestrationTables, plan: OrchestrationPlan | None) -> dict[str, Any]:
    """Data frames by file name: candidates, classes, instances, shares, and the requests where they have names."""
    import pandas as pd

    several = any(x.ranks > 1 for x in t.configurations) or any(x.ranks > 1 for x in t.discarded)
    candidates = pd.DataFrame([{
        "model": t.case.models[x.model], "gpu": t.case.gpu_types[x.gpu], "tp": x.tp, "pp": x.pp, "dp": x.dp,
        **({"attention_ranks": x.ranks} if several else {}),
        "batch": x.batch, "gpus": x.gpus, "tokens_per_s_alone": float(x.tokens_per_s[0]),
        "tokens_per_s_full": x.worst_rate, "prefill_s_per_token": x.prefill_s_per_token, "gib_per_gpu": x.gib_per_gpu,
        "usable": True, "reason": "",
    } for x in t.configurations] + [
        {"model": d.model, "gpu": d.gpu, "tp": d.tp, "pp": d.pp, "dp": d.dp,
         **({"attention_ranks": d.ranks} if several else {}), "batch": d.batch,
         "gpus": d.tp * d.pp * d.ranks * d.dp, "usable": False, "reason": d.reason} for d in t.discarded
    ])  # fmt: skip
    made = {"candidates": candidates}
    if plan is None:
        return made
    made["classes"] = pd.DataFrame([c.model_dump() for c in plan.classes])
    made["instances"] = pd.DataFrame([{
        "instance": i.name, **{k: v for k, v in plan.configurations[i.configuration].model_dump().items()
                               if k in ("model", "gpu", "tp", "pp", "dp", "attention_ranks", "batch")},
        "placement": _where(i.placement), "kept": i.kept,
    } for i in plan.instances[:MAX_ROWS]])  # fmt: skip
    s = plan.shares
    names = [f"{c.model} {c.parallelism} B{c.batch} {c.gpu}" for c in plan.configurations]
    made["shares"] = pd.DataFrame({
        "class": [plan.classes[k].label for k in s.request_class], "configuration": [names[j] for j in s.configuration],
        "from_s": np.array(s.bin) * plan.bin_s, "admitted": s.admitted, "started": s.started,
    }).head(MAX_ROWS)  # fmt: skip
    named = name_requests(t, plan)
    return made if named is None else made | {"requests": pd.DataFrame(requests_table(t, plan, named))}
