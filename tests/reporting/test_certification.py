"""What summaries say of a certification."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from formulations.fleet.plan import CertificationLine
from formulations.fleet.show import _certification
from formulations.orchestration.plan import ReplayCertification as Replayed
from formulations.orchestration.show import _certification as _replayed
from optmodels.reporting.page.articles import command


def text(lines: list[Any]) -> list[str]:
    """As a terminal shows it, without spaces that only align."""
    console = Console(width=200, file=StringIO(), record=True)
    for line in lines:
        console.print(line)
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


def test_a_fleets_rounds_cuts_and_broken_promises():
    each = {"stretch": 1, "promises": 3, "worst": 1.25, "worst_of": "chat: ttft_s", "requests": 12_000}
    promise = {"period": "all", "deployment": "2 × H100", "demand": "chat", "latency": "ttft_s", "at_most_s": 0.5}
    cut = {"loads": "chat", "gpu": "H100", "gpu_gib": 80, "tensor_parallel": 1, "step_s": 0.03, "wait_s": 0.1}
    seen = text(_certification(CertificationLine.model_validate({
        "status": "incomplete", "confidence": 0.95, "seed": 0, "of_round": 2, "bound_stretch": 1.5,
        "rounds": [each | {"objective": 10, "broken": 2, "undecided": 0},
                   each | {"objective": 1012.5, "broken": 1, "undecided": 1, "stretch": 1.5}],
        "cuts": [cut | {"keep": 0.9, "forbidden": ["a", "b"]}],
        "promises": [promise | {"seen_s": 0.625, "found": "broken", "percentile": 0.95},
                     promise | {"seen_s": 0.4, "found": "kept"}] + [
                     promise | {"seen_s": 0.5, "found": "undecided"}] * 25,
    })))  # fmt: skip
    assert seen[0] == "Certification: not certified: the rounds were stopped"
    assert "│ 1 │ 10 │ 3 │ 2 │ 0 │ unchanged │ 125.0%, chat TTFT │ 12,000 │" in seen
    assert "│ 2 (this plan) │ 1,012.5 │ 3 │ 1 │ 1 │ × 1.5 │ 125.0%, chat TTFT │ 12,000 │" in seen
    assert "cuts: 1 operating points planned less full; 2 pairs of bucket and point excluded" in seen
    assert "violated: chat on 2 × H100: TTFT p95 625 ms of 500 ms" in seen
    assert seen[-1] == "and 6 more" and not any(line.startswith("satisfied") for line in seen)


def test_replayed_rounds_cuts_and_promises():
    seen = text(_replayed(Replayed.model_validate({
        "status": "certified", "confidence": 0.95, "copies": 4, "seed": 0, "of_round": 1, "bound_looser": True,
        "rounds": [{"looser": True, "objective": 0.98, "attainment": 0.99, "replayed": 0.985, "promises": 2,
                    "broken": 0, "undecided": 0, "requests": 400}],
        "cuts": [{"model": "m", "keep": 0.95, "in_time": 0.97}],
    })))  # fmt: skip
    assert seen[0] == (
        "Certification: replays of 4 draws of the requests, with 0.95 confidence, reach the stated SLO attainment of"
        " every model"
    )
    assert "│ 1 │ 0.98 │ 2 │ 0 │ 0 │ relaxed │ 99.00% │ 98.50% │" in seen
    assert seen[-1] == "cut: engines of m planned 5.0% less full; at most 97.0% of a class count as eligible"


def test_rounds_with_the_same_limits_are_one_line():
    """Of three after the plan's own: the one that broke fewest promises, with all their numbers."""
    each = {"promises": 3, "undecided": 0, "worst": 1.1, "worst_of": "chat: tpot_s", "requests": 10}
    rounds = [each | {"stretch": 1, "objective": 7, "broken": 0}] + [
        each | {"stretch": 1.4, "objective": 5 + k, "broken": broken} for k, broken in enumerate((3, 1, 2))
    ]
    seen = text(_certification(CertificationLine.model_validate({
        "status": "certified", "confidence": 0.95, "seed": 0, "of_round": 1, "bound_stretch": 1.4, "rounds": rounds,
        "cuts": [], "promises": [],
    })))  # fmt: skip
    assert [line for line in seen if line.startswith("│")] == [
        "│ 1 (this plan) │ 7 │ 3 │ 0 │ 0 │ unchanged │ 110.0%, chat TPOT │ 10 │",
        "│ 2 to 4 │ 6 │ 3 │ 1 │ 0 │ × 1.4 │ 110.0%, chat TPOT │ 10 │",
    ]


def test_the_command_of_a_certified_plan_certifies_it():
    """`--certify-replay` may have been asked for beside a file that says nothing of it."""
    document = {"instance": "small.yaml", "options": {"seed": 2}, "problem": {"certify": "replay"}}
    assert command(document) == ["optmodels", "solve", "small.yaml", "--seed", "2", "--certify-replay"]
    assert "--certify-replay" not in command(document | {"problem": {"certify": "none"}})
