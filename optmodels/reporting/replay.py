"""A replay in the terminal: predicted next to replayed, then whatever else the formulation reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.reporting.decision import at_words, short_seconds
from optmodels.reporting.quantities import ACRONYMS
from optmodels.reporting.text import CALLED, plain, titled

FIRST = ("demands", "policies", "period", "requests", "seconds")  # the decision, then its figures
OF_A_ROW = ("ttft", "tpot", "itl", "deadline")
MAX_ROWS = 40
BUCKETS_SHOWN = 8
MAX_FIGURES = 24


def replay_lines(found: Mapping[str, Any]) -> list[Any]:
    """Rich renderables of a replay document."""
    report = found["report"]
    speed = "" if found["speed"] == "load" else ", decoding as in full batches"
    faster = "" if found["rate_factor"] == 1 else f", {found['rate_factor']:g} times as fast"
    asked = (
        f"{requests_of(found['requests'], found['trace'])}{faster}"
        if found["trace"]
        else report.get("sent", "its own requests")
    )
    lines: list[Any] = [f"{plain(str(found['instance']))}  [dim]{plain(asked + speed)}[/dim]", ""]
    lines[1:1] = [f"[dim]{plain(note)}[/dim]" for note in found.get("trace_notes", ())]
    order = dict.fromkeys([*(k for k in FIRST if k in report), *report])
    for key in order:
        value = report[key]
        if key in ("predicted", "sent"):
            continue
        if key == "demands":
            lines += _slo_lines(value)
        elif key == "policies" and isinstance(value, Mapping):
            lines += ["", _beside(report.get("predicted", {}), value), ""]
        elif isinstance(value, list) and value and all(isinstance(r, Mapping) for r in value):
            lines += [f"[bold]{plain(words(key))}[/bold]", _table(value)]
        elif isinstance(value, list):
            lines += [plain(f"{words(key)}: {v}") for v in value[:MAX_ROWS]]
        elif isinstance(value, Mapping) and len(_flat(value)) > MAX_FIGURES:
            lines.append(f"{words(key)}: {len(_flat(value))} figures, see --json or replay.json")
        elif not isinstance(value, Mapping):
            lines.append(plain(f"{words(key)}: {shown(value)}"))
        else:
            lines.append(plain(f"{words(key)}: " + ", ".join(f"{k} {shown(v)}" for k, v in _flat(value).items())))
    if "folder" in found:
        lines.append(f"[dim]Files: {plain(found['folder'])}[/dim]")
    return lines


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, keys joined by a space."""
    flat: dict[str, Any] = {}
    for k, v in values.items():
        flat |= _flat(v, f"{prefix}{k} ") if isinstance(v, Mapping) else {f"{prefix}{k}": v}
    return flat


def _beside(predicted: Mapping[str, Any], policies: Mapping[str, Mapping[str, Any]]) -> Any:
    """One row a metric, one column for the prediction and for every policy.

    Of distributions mean, 95th and 99th percentile and the prediction; metrics that are zero in every column are left
    out, and metrics that agree in every column share a row. Everything is in the document.
    """
    from rich.table import Table

    runs = {
        name: _flat({k: v for k, v in run.items() if not k.startswith("by_")}) for name, run in policies.items()
    }  # fmt: skip
    expected = _flat(predicted)
    metrics = list(dict.fromkeys(k for columns in (expected, *runs.values()) for k in columns))
    rows: dict[tuple[Any, ...], list[str]] = {}  # replayed quantity → metrics; a prediction may state less
    for m in metrics:
        replayed = tuple(run.get(m) for run in runs.values())
        told = m in expected or not m.endswith((" p50", " p90"))
        if m != "requests" and told and any((*replayed, expected.get(m))):
            rows.setdefault(replayed, []).append(m)
    table = Table("", "predicted", *(plain(n.replace("_", " ")) for n in runs), box=None, caption_justify="left")
    for replayed, same in rows.items():
        said = next((expected[m] for m in same if m in expected), None)
        table.add_row(plain(" = ".join(map(words, same))), *(shown(v) for v in (said, *replayed)))
    table.caption = "Columns: how requests are dispatched. --json has p50, p90 and rows of zeros, too."
    return table


def _slo_lines(rows: list[Mapping[str, Any]]) -> list[Any]:
    """Whether every SLO was met, by dispatch policy, and the tightest buckets with their replayed latencies.

    Args:
        rows: rows by bucket and policy: seconds and the share within each limit (`formulations.fleet.replay`).
    """
    seen: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}  # (bucket, latency) → by policy
    for row in rows:
        for one in _by_latency(row):
            key = (
                str(one["demand"]),
                str(one.get("latency") or next(words(n) for n in OF_A_ROW if f"{n}_limit_s" in one)),
            )
            named = {k.removeprefix(f"{n}_"): v for n in OF_A_ROW for k, v in one.items() if k.startswith(f"{n}_")}
            seen.setdefault(key, {})[str(row["policy"])] = {**one, **named}
    if not seen:
        return []
    policies = list(dict.fromkeys(str(row["policy"]) for row in rows))
    missed = [policy for policy in policies if any(_is_missed(x[policy]) for x in seen.values() if policy in x)]
    met = [policy.replace("_", " ") for policy in policies if policy not in missed]
    lines: list[Any] = [f"[green]Every SLO is met with dispatch by: {', '.join(met)}.[/green]"] if met else []
    if missed:
        lines.append(
            f"[red]SLOs are missed with dispatch by: {', '.join(policy.replace('_', ' ') for policy in missed)}.[/red]"
        )
    worst: dict[str, float] = {}
    for (bucket, _), by in seen.items():
        worst[bucket] = max(worst.get(bucket, 0.0), *((x["replayed_s"] or 0.0) / x["limit_s"] for x in by.values()))
    shown_first = sorted(worst, key=lambda bucket: -worst[bucket])[:BUCKETS_SHOWN]
    left_out = len(worst) - len(shown_first)
    title = "Replayed latencies by bucket" + (f", the {BUCKETS_SHOWN} tightest of {len(worst)}" if left_out else "")
    table = titled(title, "requests", "latency", "SLO", *(policy.replace("_", " ") for policy in policies))
    for bucket in shown_first:
        for (of, latency), by in seen.items():
            if of == bucket:
                first = next(iter(by.values()))
                cells = [_replayed(by[policy]) if policy in by else "" for policy in policies]
                at = at_words(first.get("percentile"))
                table.add_row(plain(bucket), f"{latency} {at}", short_seconds(first["limit_s"]), *cells)
    return [*lines, "", table]


def _is_missed(x: Mapping[str, Any]) -> bool:
    if x.get("percentile") is not None:
        return bool(x["within"] is not None and x["within"] < x["percentile"])
    return bool(x["replayed_s"] is not None and x["replayed_s"] > x["limit_s"] * (1 + 1e-6))


def _replayed(x: Mapping[str, Any]) -> str:
    """Replayed seconds and the share of the requests within the limit."""
    if x["replayed_s"] is None:
        return "no requests"
    colour = "red" if _is_missed(x) else "green"
    within = "" if x["within"] is None else f", {x['within']:.1%} within"
    return f"[{colour}]{short_seconds(x['replayed_s'])}{within}[/{colour}]"


def _by_latency(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row with several latencies (``ttft_limit_s``, ``tpot_limit_s``, …) as one of each, for which there is room."""
    each = [name for name in OF_A_ROW if f"{name}_limit_s" in row]
    if len(each) < 2:
        return [dict(row)]
    shared = {k: v for k, v in row.items() if k.partition("_")[0] not in each}
    return [
        {**shared, "latency": words(name)}
        | {k.removeprefix(f"{name}_"): v for k, v in row.items() if k.startswith(f"{name}_")}
        for name in each
    ]


def _table(rows: list[Mapping[str, Any]]) -> Any:
    from rich.table import Table

    rows = [one for r in rows for one in _by_latency(_flat(r))]
    flat = rows[:MAX_ROWS]
    columns = list(dict.fromkeys(k for r in flat for k in r))
    table = Table(*(plain(words(c)) for c in columns), box=None)
    for r in flat:
        table.add_row(*(plain(shown(r.get(c))) for c in columns))
    if len(rows) > MAX_ROWS:
        table.add_row(f"… {len(rows) - MAX_ROWS} more in replay.json")
    return table


def requests_of(count: int, trace: str) -> str:
    """Number of requests, and their trace."""
    return f"{count:,} request{'' if count == 1 else 's'} of {trace}"


def words(key: str) -> str:
    """``throughput_tokens_per_s`` as ``throughput tokens/s``, ``ttft_s p99`` as ``TTFT p99, s``."""
    first, _, rest = key.replace("_per_s", "/s").partition(" ")
    seconds = first.endswith("_s")
    first = first.removesuffix("_s")
    words = " ".join(ACRONYMS.get(w, w) for w in f"{CALLED.get(first, first)} {rest}".replace("_", " ").split())
    return f"{words}, s" if seconds else words


def shown(value: Any) -> str:
    """A figure for people: four digits, thousands apart."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
