"""A simulation of one deployment, and shares of prefix caches, in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.reporting.replay import requests_of, shown, words
from optmodels.reporting.sources import source_lines
from optmodels.reporting.text import plain

SHADES = " ▁▂▃▄▅▆▇█"
WIDTH = 60
_TABLE = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s")
_OF_LIMITS = ("good_share", "goodput_requests_per_s", "goodput_tokens_per_s")
CALLED = {
    "seconds": "simulated time, s", "good_share": "share within the limits",
    "goodput_requests_per_s": "requests/s within the limits",
    "goodput_tokens_per_s": "output tokens/s within the limits",
    "busy_share": "share of time busy", "most_running": "most running requests", "running": "running requests",
    "kv_use": "share of the KV cache in use", "cached_prompt_share": "share of prompt tokens cached",
}  # fmt: skip
_OVER_TIME = ("busy_share", "running", "waiting", "kv_use")


def simulate_lines(found: Mapping[str, Any]) -> list[Any]:
    """Rich renderables of a simulation document."""
    from rich.table import Table

    d, report = found["deployment"], found["report"]
    what = f"{d['instances']} × {d['llm']} on {d['tp']} {d['gpu']}, {d['precision']}, {d['engine']}"
    faster = "" if found["rate_factor"] == 1 else f", {found['rate_factor']:g} times as fast"
    asked = f"{requests_of(report['requests'], found['trace'])}{faster}"
    unlimited = all(limit is None for limit in found["limits"].values())
    limits = ", ".join(f"{words(name)} {limit:g}" for name, limit in found["limits"].items() if limit is not None)
    lines: list[Any] = [
        f"{plain(what)}  [dim]{plain(asked)}[/dim]",
        *([] if unlimited else [f"{report['good_share']:.1%} of the requests within the limits: {plain(limits)}"]),
        *(f"[dim]{plain(note)}[/dim]" for note in found["trace_notes"]),
        *source_lines([found["latency"]]),
        *_cache(d),
    ]
    table = Table("", *report["ttft_s"], box=None)
    for key in _TABLE:
        table.add_row(plain(words(key)), *(shown(v) for v in report[key].values()))
    lines += ["", table, ""]
    if found.get("measured"):
        beside = Table("as in the log", "requests", "measured mean", "simulated mean", "error", "measured p95",
                       "simulated p95", box=None)  # fmt: skip
        for key, m in found["measured"].items():
            log, seen = m["measured"], m["simulated"]
            error = "" if m["error"] is None else f"{m['error']:+.1%}"
            cells = (log["mean"], seen["mean"], error, log["p95"], seen["p95"])
            beside.add_row(plain(words(key)), f"{m['requests']:,}", *(shown(v) for v in cells))
        lines += [beside, ""]
    left_out = ("over_time", *_TABLE, *(_OF_LIMITS if unlimited else ()))
    for key, value in report.items():
        if key in left_out:
            continue
        text = ", ".join(f"{k} {shown(v)}" for k, v in value.items()) if isinstance(value, Mapping) else shown(value)
        lines.append(plain(f"{CALLED.get(key, words(key))}: {text}"))
    lines.append("")
    lines += [plain(f"{words(key):<10} {_spark(report['over_time'][key])}") for key in _OVER_TIME]
    if "folder" in found:
        lines.append(f"[dim]Files: {plain(found['folder'])}[/dim]")
    return lines


def _cache(d: Mapping[str, Any]) -> list[str]:
    """KV cache of an engine, with its interval."""
    if not d.get("kv_tokens_between"):
        return []
    low, high = d["kv_tokens_between"]
    return [f"[bold]KV cache[/bold]: {d['kv_tokens']:,} tokens; {low:,.0f} to {high:,.0f} in 9 of 10 engines' logs"]


def prefix_lines(found: Mapping[str, Any]) -> list[Any]:
    """Rich renderables of prefix-cache hit rates: a row for a size and workload, a column for a number of engines."""
    from rich.table import Table

    rows, counts = found["hits"], list(found["busiest"])
    how = {"random": "at random", "first_block": "by their first block", "session": "by session"}[found["routing"]]
    table = Table("KV tokens", *([] if found["by"] is None else [found["by"]]), *counts, box=None)
    shares = {(r["kv_tokens"], r["workload"], str(r["engines"])): r["share"] for r in rows}
    for size, name in dict.fromkeys((r["kv_tokens"], r["workload"]) for r in rows):
        named = [] if name is None else [plain(str(name))]
        table.add_row(f"{size:,.0f}", *named, *(f"{shares[size, name, n]:.1%}" for n in counts))
    crowded = ", ".join(f"{v:.2f} with {n}" for n, v in found["busiest"].items() if n != "1")
    lines: list[Any] = [
        plain(f"Share of prompt tokens found in the cache: {requests_of(found['requests'], found['trace'])}, sent"
              f" {how} to as many engines as a column names, each with a cache of as many tokens as a row names"),
        "", table, "",
    ]  # fmt: skip
    return [*lines, plain(f"Requests of the busiest engine, in means: {crowded}")] if crowded else lines


def _spark(values: list[float]) -> str:
    """A line of bars, from 0 to the largest value, which is stated."""
    top = max(values, default=0.0)
    width = max(1, -(-len(values) // WIDTH))
    means = [sum(values[k : k + width]) / len(values[k : k + width]) for k in range(0, len(values), width)]
    bars = (SHADES[round(v / top * (len(SHADES) - 1))] if top > 0 else SHADES[0] for v in means)
    return f"{''.join(bars)}  up to {shown(float(top))}"
