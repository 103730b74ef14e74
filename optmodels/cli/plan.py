"""`plan`: the machines for one workload, without a file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import optmodels
from optmodels.cli.console import show
from optmodels.cli.options import Json, verb
from optmodels.cli.solve import solved
from optmodels.errors import printable
from optmodels.io.write import path_text

if TYPE_CHECKING:
    from optmodels.plans.outcome import Result
    from optmodels.question import Question

Shown = Annotated[bool, typer.Option("--show-problem", help="Print the equivalent problem file (YAML).")]


Precision = Annotated[
    str | None,
    typer.Option(
        "--precision", help="Weight precision: bf16, fp8, int4, …; default: as the name states or as published."
    ),
]


@verb(how=None, command=None, precision=Precision)  # as it was written: the question reads it
def plan(given: dict[str, Any], show_problem: Shown = False, as_json: Json = False) -> int:
    """Find the cheapest machines for one workload. It prints machines and cost first, then SLO, proof, next steps."""
    from optmodels.question import assumptions
    from optmodels.reporting.text import plain

    understood: list[tuple[Question, str]] = []
    result = solved(
        optmodels.plan, as_json, **given, command=path_text(shlex.join(["optmodels", *sys.argv[1:]])),
        on_question=lambda asked, text: understood.append((asked, text)),
    )  # fmt: skip
    if not as_json:
        asked, text = understood[0]
        if assumed := assumptions(asked):
            show(["", "[bold]Assumed[/bold]", *(f"  {plain(line)}" for line in assumed)])
        if show_problem:
            show(["", "[bold]The equivalent problem file[/bold] (--write FILE saves it)"])
            sys.stdout.write(printable(text.rstrip()) + "\n")  # to be copied: unchanged, however wide
        show(["", "[bold]Next[/bold]", *(f"  {plain(line)}" for line in _next(asked, result, given.get("write")))])
    return int(result.exit_status)


def _has_experts(result: Result) -> bool:
    """Whether the model that was planned has routed experts."""
    return any((w.get("model") or {}).get("moe") for w in result.problem["workloads"])


def _next(asked: Question, result: Result, write: Path | None) -> list[str]:
    """Commands to try after this answer, the most useful first."""
    file = str(write) if write is not None else "FILE"
    keep = "" if write is not None else " (after --write FILE)"
    if result.plan is None:
        return [
            f"optmodels explain {shlex.quote(file)}{keep}: which limits conflict, and the least change that helps",
            *(["without --quota, or with a larger one"] if asked.quota else []),
            *(["with more --cloud or another --region"] if len(asked.clouds) == 1 else []),
        ]
    lines = []
    if "folder" in result.log:
        lines.append(f"optmodels export {shlex.quote(result.log['folder'])} --to vllm: the commands that start it")
    else:
        lines.append("--out results: plan.json, report.html and tables; then optmodels export FOLDER --to vllm")
    if ((result.report or {}).get("latency") or {}).get("missed_at_the_pessimistic_end"):
        lines.append("--safety 0.9: a plan that meets the SLO with this margin")
    if not asked.survive:
        lines.append("--survive 1: the cost of losing any one deployment without missing the SLO")
    if not asked.disaggregate:
        lines.append("--disaggregate: whether disaggregated prefill and decode cost less")
    if list(asked.attention_ranks) == [1] and _has_experts(result):
        lines.append("--attention-ranks 1,2,4,8: what data-parallel attention saves")
    if "spot" not in asked.markets:
        lines.append("--market on_demand --market spot: what spot machines save")
    if len(asked.clouds) == 1:
        lines.append("--cloud aws --cloud gcp --cloud azure: prices of other clouds")
    lines.append(f"optmodels explain {shlex.quote(file)}{keep}: what each limit costs, and the next best plans")
    return lines
