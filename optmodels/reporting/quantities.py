"""Names of fields as people read them: words without underscores, and the unit that a name carries."""

from __future__ import annotations

import re

from optmodels.reporting.text import CALLED

# Ending of a name → unit; the first that fits.
UNITS: tuple[tuple[str, str], ...] = (
    ("tps_per_usd_per_hour", "tokens/s per USD/h"), ("usd_per_million_tokens", "USD per million tokens"),
    ("usd_per_hour", "USD/h"), ("usd_per_month", "USD/month"), ("tokens_per_usd", "tokens/USD"), ("tps", "tokens/s"),
    ("tokens_per_s", "tokens/s"), ("requests_per_s", "requests/s"),
    ("per_s", "/s"), ("usd", "USD"),
    ("hours", "h"), ("_ms", "ms"), ("_s", "s"), ("share", "%"), ("probability", "%"), ("bytes", "bytes"),
    ("gib", "GiB"),
)  # fmt: skip
# Word for a number whose name is its unit alone.
BARE = {
    "USD/h": "Cost", "USD/month": "Cost", "USD": "Cost", "USD per million tokens": "Cost of tokens",
    "tokens/USD": "Cost efficiency", "tokens/s per USD/h": "Cost efficiency", "tokens/s": "Throughput",
}  # fmt: skip
KEPT = {"share": "share", "probability": "probability", "hours": "hours", "tps": "throughput"}  # of an ending
ACRONYMS = {"ttft": "TTFT", "tbt": "TPOT", "e2e": "E2E", "ce": "CE", "ao": "AO", "slo": "SLO", "usd": "USD", "kv": "KV",
            "tpot": "TPOT", "itl": "ITL", "gpu": "GPU", "gpus": "GPUs"}  # fmt: skip


def unit_of(name: str) -> str:
    """The unit that a name carries, empty for none."""
    return next((unit for ending, unit in UNITS if name.endswith(ending)), "")


def label(name: str) -> str:
    """``served_share`` as ``Served share``, ``ttft_s`` as ``TTFT``: the name without its unit."""
    for ending, _ in UNITS:
        if name.endswith(ending):
            name = f"{name[: -len(ending)]}_{KEPT.get(ending, '')}"
            break
    name = CALLED.get(name.strip("_"), name)
    text = " ".join(ACRONYMS.get(w, w) for w in name.split("_") if w)
    return text[:1].upper() + text[1:]


def _section(text: str) -> str:
    """A section of a path: ``workloads[chat]`` by the entry's own name, ``stock[0]`` as ``Stock 1``."""
    name, _, entries = text.partition("[")
    named = [e.rstrip("]") for e in entries.split("[") if e]
    own = [e.rpartition("=")[2] for e in named if e != "*" and not e.isdigit()]
    numbers = [str(int(e) + 1) for e in named if e.isdigit()]
    return own[-1] if own else " ".join([label(name), *numbers])


def title(path: str) -> str:
    """A path into an instance or a plan as an axis' title: ``workloads[chat].slo.ttft_s`` as ``chat SLO TTFT, s``."""
    *sections, last = re.findall(r"(?:[^.\[]|\[[^\]]*\])+", path)
    if sections[:1] == ["plan"]:
        sections = sections[1:]
    own = {s for s in sections if "[" in s}
    unit = unit_of(last)
    found = [_section(s) for s in sections]
    words = " ".join(
        w if i == 0 or sections[i] in own else re.sub(r"^[A-Z](?=[a-z])", lambda m: m[0].lower(), w)
        for i, w in enumerate(found) if w
    )  # fmt: skip
    ending = _section(last) if "[" in last else label(last)
    ending = re.sub(r"^[A-Z](?=[a-z])", lambda m: m[0].lower(), ending) if words else ending
    words = " ".join(w for w in (words, ending) if w) or BARE.get(unit, "")
    return f"{words}, {unit}" if words and unit else words or unit
