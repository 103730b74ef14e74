"""Where a plan's latencies come from, how far they may be off, and for which requests, for every formulation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from optmodels.engine.continuous import LatencyLimit, Percentile
from optmodels.engine.lengths import Length
from optmodels.latency.steps import Provenance, never_measured
from optmodels.reporting.text import plain

LEVEL = 0.9  # of the pessimistic end, where this many were measured
PLANNED_FOR = 1.005  # below this factor a plan's latencies are at the upper prediction bound already


def end_level(provenance: Provenance) -> float | None:
    """Share of measurements that the pessimistic end is of: `LEVEL`, or the most that fewer rows support; or None."""
    if not provenance.tpot or not provenance.ttft:
        return None
    return min(LEVEL, max(level for level, _ in provenance.tpot), max(level for level, _ in provenance.ttft))


def at_most(provenance: Provenance, safety: float | None = None) -> tuple[float, float] | None:
    """Times a plan's latencies (TPOT, TTFT) at a safety level that `end_level` of measurements stay below, or None."""
    level = end_level(provenance)
    if level is None:
        return None
    end, planned = provenance.factors(level), provenance.factors(safety)
    return max(1.0, end[0] / planned[0]), max(1.0, end[1] / planned[1])


def source_entries(of: Iterable[tuple[str, Provenance]], safety: float | None = None) -> list[dict[str, Any]]:
    """One entry for all deployments with equal latencies' source and interval, in order.

    Args:
        of: deployment (GPU, LLM, …) and source of its latencies.
        safety: safety that the plan's latencies have.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for what, p in of:
        end = at_most(p, safety)
        margin = p.factors(safety) if end else (1.0, 1.0)
        notes = (*p.notes, *_memory(p, safety))
        entry = {
            "of": [], "model": p.model, "source": p.source, "transfer": list(p.transfer), "level": end_level(p),
            "tpot_at_most": end and end[0], "ttft_at_most": end and end[1], "notes": list(notes),
            "tpot_margin": margin[0], "ttft_margin": margin[1],
        }  # fmt: skip
        mine = found.setdefault((p.model, p.source, p.transfer, end_level(p), end, margin, notes), entry)
        if what not in mine["of"]:
            mine["of"].append(what)
    return list(found.values())


def _memory(p: Provenance, safety: float | None) -> list[str]:
    """How far the memory of engines may be off, where a plan has a safety level."""
    if safety is None or not p.runtime_gib:
        return []
    ends = dict(p.runtime_gib)
    level = min((x for x in ends if x >= safety - 1e-9), default=max(ends))
    low, high = ends[level]
    return [
        f"KV cache: {level:.0%} of engines' logs have at most {high:.2g} GiB less of it a GPU than predicted, and at"
        f" most {-low:.2g} GiB more; planned with the less, unless memory.runtime_gib is stated"
    ]


def source_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Entries as lines of a summary."""
    lines: list[str] = []
    by_source: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for e in entries:
        by_source.setdefault((e["model"], e["source"]), []).append(e)
    for (model, source), mine in by_source.items():
        said = f"{plain(model)} ({plain(source)})"
        several = sum(len(e["of"]) for e in mine) > 1
        if several:  # a source may take lines, and is the same for many
            lines.append(f"[bold]Latencies[/bold]: {said}")
        for e in mine:
            of = plain(_together(e["of"][:8]) + (" …" if len(e["of"]) > 8 else ""))
            begin = f"  {of}" if several else f"[bold]Latencies[/bold] of {of}: {said}"
            lines.append("; ".join(filter(None, (begin, never_measured(e["transfer"]), _end(e)))))
            lines += [f"  {plain(note)}" for note in e["notes"]]
    return lines


def _together(of: Sequence[str]) -> str:
    """``LLM on GPU`` of several with each LLM once."""
    where: dict[str, list[str]] = {}
    for what in of:
        llm, on, gpu = what.rpartition(" on ")
        where.setdefault(llm + on, []).append(gpu)
    return ", ".join(first + " and ".join(filter(None, (", ".join(g[:-1]), g[-1]))) for first, g in where.items())


def compared_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Alternatives of a plan whose latencies were measured on something else, or not at all."""
    by: dict[tuple[str, str], list[str]] = {}
    for e in entries:
        if e["transfer"]:
            mine = by.setdefault((never_measured(e["transfer"]), _end(e)), [])
            mine += [what for what in e["of"] if what not in mine]
    return [f"  compared with {plain(', '.join(of))}; {apart}; {end}" for (apart, end), of in by.items()]


def bound_words(entries: Sequence[Mapping[str, Any]]) -> tuple[str, bool] | None:
    """The upper prediction bound of all entries in words, and whether a plan's latencies are at it (`safety`).

    None where no measurement tells it. Documents of earlier versions have no level and call TPOT ``tbt``.
    """
    ends = [e for e in entries if e.get("tpot_at_most", e.get("tbt_at_most")) is not None]
    if not ends:
        return None
    level = min(e.get("level", LEVEL) for e in ends)
    share = f"{'nine of ten' if level == LEVEL else f'{level:.0%} of the'} comparable benchmarks"
    tpot, ttft = max(e.get("tpot_at_most", e.get("tbt_at_most")) for e in ends), max(e["ttft_at_most"] for e in ends)
    if max(tpot, ttft) >= PLANNED_FOR:
        return f"in {share} TPOT was at most {tpot:.2f}× and TTFT at most {ttft:.2f}× the prediction", False
    tpot, ttft = (max(e.get(f"{name}_margin", 1.0) for e in ends) for name in ("tpot", "ttft"))
    margin = "" if max(tpot, ttft) < PLANNED_FOR else f" of {tpot:.2f}× for TPOT and {ttft:.2f}× for TTFT"
    return f"predictions include a margin{margin}: {share} were faster than that", True


def _end(entry: Mapping[str, Any]) -> str:
    return (bound_words([entry]) or ("no measurement of their error available", False))[0]


def of_requests(limits: Iterable[LatencyLimit | None], lengths: Sequence[Length]) -> list[str]:
    """Note on the percentiles of a plan for requests of such lengths, in a sentence; empty without any."""
    if len(lengths) == 1:
        one = lengths[0]
        said = f"prompts of exactly {one.input_tokens:,} and answers of exactly {one.output_tokens:,} tokens"
        return of_lengths(limits, said)
    return [f"percentiles are over {len(lengths)} lengths"] if any(isinstance(x, Percentile) for x in limits) else []


def of_lengths(limits: Iterable[LatencyLimit | None], lengths: str) -> list[str]:
    """The same of requests of lengths in words: no percentile of equal requests knows those with longer answers."""
    if not any(isinstance(x, Percentile) for x in limits):
        return []
    return [
        f"percentiles are computed for {lengths}; with varying lengths attainment is lower"
        " (optmodels replay --trace FILE measures it)"
    ]
