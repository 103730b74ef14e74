"""`plan`: the machines for one workload, without a file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import optmodels
from optmodels.cli.console import show
from optmodels.cli.options import (
    Columns,
    Force,
    Json,
    RateFactor,
    SkipBad,
    TimeLimit,
    Where,
    duration,
    listed,
    reading,
    timed,
)
from optmodels.cli.solve import solved
from optmodels.errors import InputError, Mistake, printable
from optmodels.io.write import path_text

if TYPE_CHECKING:
    from optmodels.plans.outcome import Result
    from optmodels.question import Question


def plan(
    model: Annotated[str, typer.Option("--model", help="An LLM (optmodels list catalog), or a config.json.")],
    input: Annotated[str | None, typer.Option("--input", help="Tokens of a prompt: 8000 or 8k.")] = None,
    output: Annotated[str | None, typer.Option("--output", help="Tokens of an answer.")] = None,
    rate: Annotated[str | None, typer.Option(help="Requests/s: 30, 30/s, 100/min.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="A trace of requests in place of these three: Azure, Mooncake, a request log, …")
    ] = None,
    column: Columns = None,
    where: Where = None,
    skip_bad: SkipBad = False,
    rate_factor: RateFactor = 1.0,
    longest: Annotated[
        str | None, typer.Option(help="Longest request in tokens, prompt and answer; every engine must admit it.")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="Weight precision: bf16, fp8, int4, …; default: as the name states or as published."),
    ] = None,
    kv: Annotated[str, typer.Option(help="Precision of the KV cache: fp16 or fp8.")] = "fp16",
    ttft: Annotated[Any, timed("Time to the first token, mean: 0.8 (seconds) or 800ms.", duration)] = None,
    ttft_p95: Annotated[Any, timed("… for 95 % of the requests.", duration)] = None,
    ttft_p99: Annotated[Any, timed("… for 99 %.", duration)] = None,
    tpot: Annotated[Any, timed("Time per output token after the first, mean.", duration)] = None,
    tpot_p95: Annotated[Any, timed("… for 95 % of the requests.", duration)] = None,
    tpot_p99: Annotated[Any, timed("… for 99 %.", duration)] = None,
    itl_p95: Annotated[
        Any, timed("Time between two tokens, pauses for other prompts included, for 95 % of them.", duration)
    ] = None,
    itl_p99: Annotated[Any, timed("… for 99 %.", duration)] = None,
    e2e: Annotated[Any, timed("Time of a whole request, mean.", duration)] = None,
    e2e_p95: Annotated[Any, timed("… for 95 % of the requests.", duration)] = None,
    e2e_p99: Annotated[Any, timed("… for 99 %.", duration)] = None,
    cloud: Annotated[list[str] | None, typer.Option(help="aws (default), gcp, azure; several: aws,gcp.")] = None,
    region: Annotated[str | None, typer.Option(help="Region; default: each cloud's default region.")] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this GPU type, or a YAML file with one; may be repeated. Default: types of --quota, or all."
        ),
    ] = None,
    market: Annotated[
        list[str] | None, typer.Option(help="on_demand (default), spot, reserved_1y, reserved_3y.")
    ] = None,
    quota: Annotated[
        list[str] | None,
        typer.Option(help="GPUs of a type at most: h100=16; may be repeated. Other GPU types need --gpu."),
    ] = None,
    survive: Annotated[int, typer.Option(help="Number of simultaneous deployment failures the plan must survive.")] = 0,
    budget: Annotated[float | None, typer.Option(help="Largest cost in USD/h.")] = None,
    engine: Annotated[str, typer.Option(help="vllm, sglang or trtllm.")] = "vllm",
    safety: Annotated[
        float | None,
        typer.Option(help="Prediction quantile: 0.9 plans with latencies that 9 of 10 measurements stay below."),
    ] = None,
    disaggregate: Annotated[
        bool, typer.Option("--disaggregate", help="Consider disaggregated prefill and decode.")
    ] = False,
    attention_ranks: Annotated[
        str, typer.Option(help="Data-parallel attention ranks, experts spread over all: 1,2,4,8 to choose from.")
    ] = "1",
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="Requests that an engine runs at a time (default: the plan decides).")
    ] = None,
    certify_replay: Annotated[
        bool | None,
        typer.Option(
            "--certify-replay/--no-certify",
            help="Simulate until every SLO holds; default: with --trace, on its own requests.",
        ),
    ] = None,
    write: Annotated[Path | None, typer.Option(help="Write the equivalent problem file (YAML).")] = None,
    show_instance: Annotated[
        bool, typer.Option("--show-problem", help="Print the equivalent problem file (YAML).")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for plan.json, report.html and tables as CSV (default: none).")
    ] = None,
    time_limit: TimeLimit = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Find the cheapest machines for one workload. It prints machines and cost first, then SLO, proof, next steps."""
    from optmodels.question import assumptions
    from optmodels.reporting.text import plain

    understood: list[tuple[Question, str]] = []
    result = solved(
        optmodels.plan, as_json, model, input=input, output=output, rate=rate, trace=trace,
        **reading(column, where, skip_bad), rate_factor=rate_factor, longest=longest, precision=precision, kv=kv,
        ttft=ttft, ttft_p95=ttft_p95, ttft_p99=ttft_p99, tpot=tpot, tpot_p95=tpot_p95, tpot_p99=tpot_p99,
        itl_p95=itl_p95, itl_p99=itl_p99,
        e2e=e2e, e2e_p95=e2e_p95, e2e_p99=e2e_p99, cloud=cloud or ["aws"], region=region, gpu=gpu or [],
        market=market or ["on_demand"], survive=survive,
        quota=[quota_of(part) for text in quota or [] for part in text.split(",")], budget=budget,
        engine=engine, safety=safety, disaggregate=disaggregate,
        attention_ranks=listed(attention_ranks, "--attention-ranks", int), max_num_seqs=max_num_seqs,
        certify_replay=certify_replay, write=write, out=out, time_limit=time_limit, force=force,
        command=path_text(shlex.join(["optmodels", *sys.argv[1:]])),
        on_question=lambda asked, text: understood.append((asked, text)),
    )  # fmt: skip
    if not as_json:
        asked, text = understood[0]
        if assumed := assumptions(asked):
            show(["", "[bold]Assumed[/bold]", *(f"  {plain(line)}" for line in assumed)])
        if show_instance:
            show(["", "[bold]The equivalent problem file[/bold] (--write FILE saves it)"])
            sys.stdout.write(printable(text.rstrip()) + "\n")  # to be copied: unchanged, however wide
        show(["", "[bold]Next[/bold]", *(f"  {plain(line)}" for line in _next(asked, result, write))])
    return int(result.exit_status)


def quota_of(text: str) -> tuple[str, int]:
    """A GPU type and how many of them at most, of ``h100=16``."""
    gpu, equals, most = (part.strip() for part in text.replace(":", "=").partition("="))
    if not (gpu and equals and most.isascii() and most.isdigit()):
        raise InputError(Mistake(None, "--quota", text, "a GPU type and how many of them, as in h100=16"))
    return gpu, int(most)


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
