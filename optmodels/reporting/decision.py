"""The decision that a plan asks for, stated first: machines, cost, latencies of requests, how sure.

A formulation's `decision(problem, plan, report)` returns a `summary`, which is kept in the document under that key.
`first_lines` renders it for the terminal and for the page.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from optmodels.catalog import geography
from optmodels.latency.steps import never_measured
from optmodels.limits import SPELLED
from optmodels.plans.deployment import note_on
from optmodels.reporting.sources import bound_words
from optmodels.reporting.text import plain, told_apart

HOURS_PER_MONTH = 730
PLACES_NAMED, TYPES_NAMED = 4, 8
CLOUDS = {"aws": "AWS", "gcp": "GCP", "azure": "Azure"}
COLOURS = {"good": "green", "warn": "yellow", "bad": "red"}
LATENCY_NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "deadline_s": "E2E"}


class Rented(NamedTuple):
    """Equal machines rented on equal terms."""

    machine: str
    region: str
    market: str
    number: int
    usd_per_hour_each: float
    gpu: str | None
    gpus_each: int


class SeenLatency(NamedTuple):
    """One latency next to its limit; `at` names the statistic, `of` the requests, `how` where the figure is from."""

    latency: str
    at: str
    predicted_s: float | None
    limit_s: float
    of: str
    how: str = "predicted"


def slos_of(problem: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Limits of every workload of a problem document by the names of `LATENCY_NAMES`, in either spelling."""
    return {
        w["name"]: {SPELLED.get(key, key): limit for key, limit in (w.get("slo") or {}).items()}
        for w in problem.get("workloads") or ()
    }


def summary(
    *, machines: Sequence[Rented], notes: Mapping[tuple[str, str], str] | None = None, slo: Iterable[str] = (),
    verdict: Iterable[tuple[str, str]] = (), usd_per_hour: float | None = None, per_token: str = "",
    headline: str | None = None, cost: str | None = None, headroom: Mapping[str, Any] | None = None,
    own: Collection[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """The summary of a plan as JSON data.

    Args:
        machines: everything that is rented at the same time; equal lines are added up.
        notes: notes of machine types, by machine and region.
        slo: predictions next to their limits, in sentences.
        verdict: (good, warn or bad; sentence) on how sure the plan is, the most important first.
        usd_per_hour: USD per hour of the machines together; None: nothing has a price.
        per_token: cost of tokens, in words.
        headline, cost: in place of lines made from the machines.
        own: machines whose prices are the file's: a region states where they are, not whose they are.
        headroom: `share` of the planned rate (None: not computed) and `text`; None: requests have no rates.
    """
    counts: dict[Rented, int] = {}
    for m in machines:
        key = m._replace(number=0)
        counts[key] = counts.get(key, 0) + m.number
    rented = [key._replace(number=n) for key, n in counts.items()]
    rented.sort(key=lambda m: -m.number * m.usd_per_hour_each)
    lines = []
    for m in rented:
        place = geography.places().get(m.region)
        note = note_on((notes or {}).get((m.machine, m.region), ""), m.market)
        lines.append({
            "machine": m.machine, "provider": "" if place is None or m.machine in own else place.provider,
            "region": m.region,
            "market": m.market, "count": m.number, "gpu": m.gpu, "gpus": m.number * m.gpus_each,
            "usd_per_hour": m.number * m.usd_per_hour_each, "note": note,
        })  # fmt: skip
    return {
        "headline": headline if headline is not None else rented_words(lines),
        "cost": cost if cost is not None else "" if usd_per_hour is None else cost_words(usd_per_hour, per_token),
        "usd_per_hour": usd_per_hour, "usd_per_month": None if usd_per_hour is None else usd_per_hour * HOURS_PER_MONTH,
        "machines": lines, "slo": [*slo], "verdict": [{"level": level, "text": text} for level, text in verdict],
        "headroom": None if headroom is None else dict(headroom),
    }  # fmt: skip


def rented_words(lines: Sequence[Mapping[str, Any]]) -> str:
    """``2× p5.48xlarge (AWS us-east-1, on demand): 16 H100``: machines by place and market, then GPUs by type."""
    if not lines:
        return "nothing to rent"
    places: dict[tuple[str, str], None] = {(m["provider"], m["region"]): None for m in lines}
    several = len(places) > PLACES_NAMED  # too many to name each: machines by cloud and market
    groups: dict[str, dict[str, int]] = {}
    for m in lines:
        cloud, region = CLOUDS.get(m["provider"], m["provider"]), m["region"]
        if several:
            region = f"{sum(provider == m['provider'] for provider, _ in places)} regions"
        where = ", ".join(x for x in (f"{cloud} {region}".strip(), market_words(m["market"])) if x)
        kinds = groups.setdefault(where, {})
        kinds[m["machine"]] = kinds.get(m["machine"], 0) + m["count"]
    text = " + ".join(f"{_listed([f'{n:,}× {kind}' for kind, n in kinds.items()])} ({where})"
                      for where, kinds in groups.items())  # fmt: skip
    gpus: dict[str, int] = {}
    for m in lines:
        if m["gpu"]:
            gpus[m["gpu"]] = gpus.get(m["gpu"], 0) + m["gpus"]
    in_all = " + ".join(f"{n:,} {gpu.upper()}" for gpu, n in gpus.items())
    return f"{text}: {in_all}" if in_all else text


def _listed(kinds: Sequence[str]) -> str:
    more = len(kinds) - TYPES_NAMED
    return " + ".join(kinds[:TYPES_NAMED]) + (f" + {more} more types" if more > 0 else "")


def market_words(market: str) -> str:
    """``reserved_1y`` as ``reserved 1y``, ``on_demand`` as ``on demand``."""
    return market.replace("_", " ")


def cost_words(usd_per_hour: float, per_token: str = "") -> str:
    """Cost by the hour and by the month of 730 hours."""
    each_month = rounded(usd_per_hour * HOURS_PER_MONTH)
    month = f"{usd(usd_per_hour)} USD/h ≈ {each_month:,.0f} USD/month"
    return f"{month}; {per_token}" if per_token else month


def usd(value: float) -> str:
    """An amount of money for people: whole from 1,000 on, cents below, three digits below 10 cents."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.2f}" if abs(value) >= 0.1 else f"{value:.3g}"


def rounded(value: float, digits: int = 3) -> float:
    """A number to this many digits."""
    return float(f"{value:.{digits}g}")


def headroom_words(factor: float, until: str, bound: float | None = None) -> str:
    """``Headroom: the request rate may rise by 4.5% until …. However requests are routed, 4.6% is the most.``"""
    share, most = f"{factor - 1:.1%}", "" if bound is None else f"{bound - 1:.1%}"
    proved = "No other routing of the requests carries more." if most == share else (
        f"However requests are routed, these machines carry at most {most} more."
    )  # fmt: skip
    return f"Headroom: the request rate may rise by {share} {until}.{f' {proved}' if most else ''}"


def machine_notes(problem: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Notes of an instance's machines, by machine and region."""
    found: dict[tuple[str, str], str] = {}
    pools = [problem.get("pool"), problem]
    for pool in (p for x in pools for p in (x if isinstance(x, list) else [x])):
        for m in pool.get("machines") or () if isinstance(pool, Mapping) else ():
            if isinstance(m, Mapping) and m.get("note"):
                found[m["machine"], m.get("region", "")] = m["note"]
    return found


def latency_words(rows: Iterable[SeenLatency]) -> list[str]:
    """Of every latency with a limit the tightest prediction, in a sentence."""
    tightest: dict[tuple[str, str], SeenLatency] = {}
    several = set()
    for row in rows:
        key, other = (row.latency, row.at), tightest.get((row.latency, row.at))
        several |= {key} if other is not None else set()
        if other is None or _share(row) > _share(other):
            tightest[key] = row
    said = []
    for key, row in tightest.items():
        of = f" ({row.of}, the closest to its limit)" if key in several else ""
        name = f"{row.latency} {row.at}"
        if row.predicted_s is None or not math.isfinite(row.predicted_s):
            said.append(f"{name} not predicted, SLO {short_seconds(row.limit_s)}{of}")
        else:
            predicted, limit = told_apart(row.predicted_s, row.limit_s, short_seconds)
            said.append(f"{name} {predicted} {row.how}, SLO {limit}{of}")
    return said


def short_seconds(value: float, more: int = 0) -> str:
    """A latency with three digits: 287 ms, 9.96 s."""
    return f"{value * 1e3:.{3 + more}g} ms" if value < 0.9995 else f"{value:.{3 + more}g} s"


def _share(row: SeenLatency) -> float:
    return math.inf if row.predicted_s is None else row.predicted_s / row.limit_s


def at_words(percentile: float | None) -> str:
    """``p95``, or ``mean``."""
    return "mean" if percentile is None else f"p{100 * percentile:g}"


def source_verdict(sources: Iterable[Mapping[str, Any]], missed: Sequence[str] | None) -> list[tuple[str, str]]:
    """How sure latencies are: parts without a measurement, and SLOs missed at the upper prediction bound.

    Args:
        sources: entries of `reporting.sources.source_entries`.
        missed: SLOs missed there, in words; None: the bound is not known.
    """
    sources = [*sources]
    if not sources:
        return []
    known, bound, is_planned = sure_words(sources)
    if missed is None or bound is None:
        return [("warn", f"{known}The error of these latencies is not known.")]
    if missed:
        return [("warn", f"{known}{bound} In this pessimistic case the plan misses its SLO: {listed(missed)}.")]
    kept = "" if is_planned else " The plan meets every SLO in this pessimistic case too."
    return [("good", f"{known}{bound}{kept}")]


def sure_words(sources: Sequence[Mapping[str, Any]]) -> tuple[str, str | None, bool]:
    """How far latencies may be off, in words.

    Returns:
        Parts without a measurement in a sentence, or nothing; the upper prediction bound in a sentence, None where it
        is not known; whether the plan's latencies are at that bound (`safety`).
    """
    unseen = never_measured([*dict.fromkeys(x for e in sources for x in e["transfer"])])
    known = f"{unseen[0].upper()}{unseen[1:]}. " if unseen else ""
    bound, is_planned = bound_words(sources) or (None, False)
    return known, bound and f"{bound[0].upper()}{bound[1:]}.", is_planned


def listed(items: Sequence[str], most: int = 3) -> str:
    """The first of some items, and how many more there are."""
    unique = [*dict.fromkeys(items)]
    more = len(unique) - most
    return "; ".join(unique[:most]) + (f"; and {more} more" if more > 0 else "")


def first_lines(document: Mapping[str, Any]) -> list[str]:
    """The decision as markup: machines, cost, SLO, how sure; nothing where a document has no summary."""
    said = document.get("summary") or {}
    if not said:
        return []
    lines = [f"[bold]{plain(said['headline'])}[/bold]"]
    lines += [f"  [bold]{plain(said['cost'])}[/bold]"] if said["cost"] else []
    lines += [f"  {plain('; '.join(said['slo']))}"] if said["slo"] else []
    lines += [f"  [{COLOURS[v['level']]}]{plain(v['text'])}[/{COLOURS[v['level']]}]" for v in said["verdict"]]
    lines += [f"  {plain(said['headroom']['text'])}"] if said.get("headroom") and not is_refuted(document) else []
    lines += [f"  {plain(text)}" for text in (*_safer(document), *_next_measurement(document))]
    noted = dict.fromkeys(f"{m['machine']}: {m['note']}" for m in said["machines"] if m["note"])
    return lines + [f"  [yellow]note: {plain(text)}[/yellow]" for text in noted]


def _safer(document: Mapping[str, Any]) -> list[str]:
    """The cost of a plan with the latencies of the other end of the interval, where it was solved."""
    safer = (document.get("log") or {}).get("safer")
    if not isinstance(safer, Mapping) or "safety" not in safer:
        return []
    level, cost = safer["safety"], safer.get("usd_per_hour")
    option = "Without --safety" if level is None else f"--safety {level:g}"
    if cost is None:
        return [f"{option}: no plan meets the SLO in that case."]
    now = (document.get("summary") or {}).get("usd_per_hour")
    more = f" ({cost / now - 1:+.0%})" if now else ""
    plans = "" if level is None else " plans for that case"
    return [f"{option}{plans}: {cost_words(cost)}{more}, {safer['headline']}."]


def _next_measurement(document: Mapping[str, Any]) -> list[str]:
    """The runs that tell which of two plans is right, and the command that chooses them."""
    found = (document.get("log") or {}).get("next_measurement")
    if not isinstance(found, Mapping):
        return []
    gpus, ranks = found["tp"] * found["attention_ranks"], found["attention_ranks"]
    split = f"TP{found['tp']}" + (f" × DP{ranks}" if ranks > 1 else "")
    narrows = found["narrows"].items()
    narrower = [f"{name} from {now:.2f}× to {then:.2f}×" for name, (now, then) in narrows if then < now]
    text = (
        f"To choose between {' and '.join(found['between'])}, measure {found['llm']} in {found['precision']} on {gpus}"
        f" {found['gpu'].upper()} ({found['engine']}, {split}): {found['rows']} runs near {found['concurrency']}"
        f" concurrent requests of {found['input_tokens']:,} + {found['output_tokens']:,} tokens. They narrow the margin"
        f" of {' and of '.join(narrower)}."
    )
    if not found.get("command"):
        return [text]
    return [f"{text} This command chooses the runs:", f"  {found['command']}"]


def is_refuted(document: Mapping[str, Any]) -> bool:
    """Whether a plan's own replay, or prediction, misses the plan's SLOs."""
    return any(v["level"] == "bad" for v in (document.get("summary") or {}).get("verdict") or ())
