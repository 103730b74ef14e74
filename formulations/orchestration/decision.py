"""The decision of an orchestration plan: instances on GPUs, SLO attainment, how sure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.problem import AttainmentObjective
from optmodels.reporting.decision import headroom_words, source_verdict, summary, sure_words

REPLAY_MISS = 0.01  # share of requests by which a replay may fall short before the headline names it


def decision(problem: Mapping[str, Any], plan: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a solve document; GPUs have no price here."""
    p = OrchestrationPlan.model_validate(plan)
    verdict = [*_verdict(p, report), *_objective(problem, p)]
    return summary(machines=(), headline=p.headline(), verdict=verdict, headroom=_headroom(report))


def _headroom(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """All rows are proportional to the requests: at the planned shares the busiest capacity of a bin ends the SLOs."""
    most = report.get("busiest_capacity")
    if not most:
        return None
    factor = max(1.0 / most, 1.0)
    text = headroom_words(factor, "at the same predicted SLO attainment and planned shares")
    return {"share": factor - 1.0, "text": text}


def _objective(problem: Mapping[str, Any], p: OrchestrationPlan) -> Iterator[tuple[str, str]]:
    """On GPUs, which no objective counts: a plan may use all of them."""
    asked = AttainmentObjective.model_validate(problem.get("objective") or {})
    maximised = asked.order[0] if asked.kind == "lexicographic" else (
        "SLO attainment" if asked.alpha == 1 else f"{asked.alpha:g} × SLO attainment + throughput and latency"
    )  # fmt: skip
    if p.prediction.gpus_used == p.prediction.gpus:
        yield (
            "warn",
            (
                f"All {p.prediction.gpus:,} GPUs are used: the objective is {maximised}, and GPUs cost nothing."
                " The fewest: optmodels fewest-gpus FILE --attainment 0.99."
            ),
        )


def _verdict(p: OrchestrationPlan, report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """On the replay, on certification, on the latencies."""
    predicted = p.prediction.attainment
    if shares := (report.get("replay") or {}).get("policies"):
        named = report["replay"].get("named")
        best, share = max(
            [(k.replace("_", " "), v["attainment"]) for k, v in shares.items()]
            + ([("by name", named["attainment"])] if named else []),
            key=lambda row: row[1],
        )  # fmt: skip
        level = "warn" if share < predicted - REPLAY_MISS else "good"
        yield level, f"The replay of its requests attains {share:.2%} (dispatch: {best})."
    if p.shortfalls:
        models = ", ".join(f"{m} by {100 * v:.2g} points" for m, v in p.shortfalls.items())
        yield "bad", f"Attainment below the required share: {models}."
    if p.certification is not None and p.certification.status != "certified":
        yield "bad", "Simulation did not confirm the attainment (certification below)."
    known = report.get("latency") or {"sources": (), "in_time_at_the_pessimistic_end": None}
    share = known["in_time_at_the_pessimistic_end"]
    unseen, bound, is_planned = sure_words(known["sources"])
    if share is None or bound is None:
        yield from source_verdict(known["sources"], None)
    else:
        level = "good" if share > 1 - 1e-9 else "warn"
        some = "none" if share < 5e-4 else f"{share:.1%}"
        rest = "" if is_planned else f" In this pessimistic case {some} of the requests planned within the SLO meet it."
        yield level, f"{unseen}{bound}{rest}"
