"""A replay in the terminal: predicted beside replayed, then whatever else the formulation reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.reporting.quantities import ACRONYMS
from optmodels.reporting.text import CALLED, plain

FIRST = ("period", "requests", "seconds", "demands", "policies")  # what was promised, then what is predicted
OF_A_ROW = ("ttft", "tpot", "deadline")
MAX_ROWS = 40
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
        if key == "policies" and isinstance(value, Mapping):
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

    Of distributions mean, 95th and 99th percentile and what is predicted; what is zero in every column is left out, and
    metrics that agree in every column share a row. Everything is in the document.
    """
    from rich.table import Table

    runs = {
        name: _flat({k: v for k, v in run.items() if not k.startswith("by_")}) for name, run in policies.items()
    }  # fmt: skip
    expected = _flat(predicted)
    metrics = list(dict.fromkeys(k for columns in (expected, *runs.values()) for k in columns))
    rows: dict[tuple[Any, ...], list[str]] = {}  # what is replayed → metrics; a prediction may say less
    for m in metrics:
        replayed = tuple(run.get(m) for run in runs.values())
        told = m in expected or not m.endswith((" p50", " p90"))
        if m != "requests" and told and any((*replayed, expected.get(m))):
            rows.setdefault(replayed, []).append(m)
    table = Table("", "predicted", *(plain(n.replace("_", " ")) for n in runs), box=None, caption_justify="left")
    for replayed, same in rows.items():
        said = next((expected[m] for m in same if m in expected), None)
        table.add_row(plain(" = ".join(map(words, same))), *(shown(v) for v in (said, *replayed)))
    table.caption = "replayed by dispatch policy; p50, p90 and what is zero everywhere: see --json"
    return table


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
    """How many of which trace."""
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
