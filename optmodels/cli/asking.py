"""plan: an answer without a file."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from optmodels.cli.options import Columns, Force, Json, SkipBad, TimeLimit, Where, duration, reading

SAFER_S = 10.0  # of the plan for latencies at the pessimistic end


def register(app: typer.Typer) -> None:
    """Add this module's verb."""
    app.command()(plan)


def plan(
    model: Annotated[str, typer.Option("--model", "--llm", help="An LLM (optmodels list catalog), or a config.json.")],
    input_tokens: Annotated[str | None, typer.Option("--input", help="Tokens of a prompt: 8000 or 8k.")] = None,
    output_tokens: Annotated[str | None, typer.Option("--output", help="Tokens of an answer.")] = None,
    rate: Annotated[str | None, typer.Option(help="Requests/s: 30, 30/s, 100/min.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="A trace of requests in place of these three: Azure, Mooncake, a request log, …")
    ] = None,
    column: Columns = None,
    where: Where = None,
    skip_bad: SkipBad = False,
    rate_factor: Annotated[float, typer.Option(help="The trace's requests come so many times as often.")] = 1.0,
    longest: Annotated[
        str | None, typer.Option(help="Tokens of the longest request, prompt and answer; engines have to admit it.")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="Of the weights: bf16, fp8, int4, …; default: as the name says or as the LLM is published."),
    ] = None,
    kv: Annotated[str, typer.Option(help="Precision of the KV cache: fp16 or fp8.")] = "fp16",
    ttft: Annotated[
        Any,
        typer.Option(parser=duration, metavar="SECONDS", help="Time to the first token, mean: 0.8 (seconds) or 800ms."),
    ] = None,
    ttft_p95: Annotated[
        Any, typer.Option(parser=duration, metavar="SECONDS", help="… of 95 % of the requests.")
    ] = None,
    ttft_p99: Annotated[Any, typer.Option(parser=duration, metavar="SECONDS", help="… of 99 %.")] = None,
    tpot: Annotated[
        Any, typer.Option(parser=duration, metavar="SECONDS", help="Seconds per output token after the first, mean.")
    ] = None,
    tpot_p95: Annotated[
        Any, typer.Option(parser=duration, metavar="SECONDS", help="… of 95 % of the requests.")
    ] = None,
    tpot_p99: Annotated[Any, typer.Option(parser=duration, metavar="SECONDS", help="… of 99 %.")] = None,
    e2e: Annotated[
        Any, typer.Option(parser=duration, metavar="SECONDS", help="Seconds of a whole request, mean.")
    ] = None,
    e2e_p95: Annotated[Any, typer.Option(parser=duration, metavar="SECONDS", help="… of 95 % of the requests.")] = None,
    e2e_p99: Annotated[Any, typer.Option(parser=duration, metavar="SECONDS", help="… of 99 %.")] = None,
    cloud: Annotated[list[str] | None, typer.Option(help="aws (default), gcp, azure; several: aws,gcp.")] = None,
    region: Annotated[str | None, typer.Option(help="Region; default: that of each cloud's list.")] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this GPU type, or a YAML file with one; may be repeated. Default: those of --quota, or all."
        ),
    ] = None,
    market: Annotated[
        list[str] | None, typer.Option(help="on_demand (default), spot, reserved_1y, reserved_3y.")
    ] = None,
    quota: Annotated[
        list[str] | None,
        typer.Option(help="GPUs of a type at most: h100=16; may be repeated. Other types: only by --gpu."),
    ] = None,
    survive: Annotated[int, typer.Option(help="Deployments that may be lost at a time.")] = 0,
    budget: Annotated[float | None, typer.Option(help="USD/h at most.")] = None,
    engine: Annotated[str, typer.Option(help="vllm, sglang or trtllm.")] = "vllm",
    safety: Annotated[
        float | None, typer.Option(help="Plan with latencies that this share of measurements stay below: 0.9.")
    ] = None,
    apart: Annotated[bool, typer.Option("--apart", help="Prefill and decode may have machines of their own.")] = False,
    attention_ranks: Annotated[
        str, typer.Option(help="Data-parallel attention ranks, experts spread over all: 1,2,4,8 to choose from.")
    ] = "1",
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="Requests that an engine runs at a time (default: the plan decides).")
    ] = None,
    certify: Annotated[
        bool | None,
        typer.Option(
            "--certify-replay/--no-certify",
            help="Simulate until every SLO holds; default: with --trace, on its own requests.",
        ),
    ] = None,
    write: Annotated[Path | None, typer.Option(help="Write the equivalent instance file (YAML).")] = None,
    show_instance: Annotated[
        bool, typer.Option("--show-instance", help="Print the equivalent instance file (YAML).")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for plan.json, report.html and tables as CSV (default: none).")
    ] = None,
    time_limit: TimeLimit = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """What to rent for one workload, without a file. Machines and cost first, then SLO, proof and next commands."""
    from optmodels import question
    from optmodels.cli.planning import CHEAP_S, solved, whole_numbers
    from optmodels.errors import InputError
    from optmodels.io.write import path_text
    from optmodels.loading import load

    trace = None if trace is None else _on_disk(trace, write)
    asked = question.Question(
        model=model, input_tokens=input_tokens, output_tokens=output_tokens, rate=rate, trace=trace,
        rate_factor=rate_factor, reading={k: v for k, v in reading(column, where, skip_bad).items() if v},
        weights=precision, kv=kv,
        ttft=_one("ttft", ttft, ttft_p95, ttft_p99), tpot=_one("tpot", tpot, tpot_p95, tpot_p99),
        e2e=_one("e2e", e2e, e2e_p95, e2e_p99), clouds=cloud or ["aws"], region=region, gpus=gpu or [],
        markets=market or ["on_demand"], quota=[quota_of(text) for text in quota or []], survive=survive, budget=budget,
        engine=engine, safety=safety, longest=longest, apart=apart,
        attention_ranks=whole_numbers(attention_ranks, "--attention-ranks"), certify=certify,
        max_num_seqs=max_num_seqs,
    )  # fmt: skip
    folder = trace.parent if trace is not None and write is None else Path() if write is None else write.parent
    try:
        made = question.instance(asked, folder)
    except InputError as error:
        raise InputError(replace(m, value=str(write)) if m.path == "--write" else m for m in error.mistakes) from None
    command = path_text(shlex.join(["optmodels", *sys.argv[1:]]))
    text = question.as_yaml(made, command)
    try:
        problem = load(made, folder=folder, computed=False)
    except InputError as error:
        percentiles = {"--ttft": (ttft_p95, ttft_p99), "--tpot": (tpot_p95, tpot_p99), "--e2e": (e2e_p95, e2e_p99)}
        given = {
            option: option + ("-p95" if p95 is not None else "-p99")
            for option, (p95, p99) in percentiles.items() if (p95, p99) != (None, None)
        }  # fmt: skip
        raise question.as_options(error, given) from None
    if write is not None:
        from optmodels.io.write import write_text

        write_text(write, text, overwrite=force)

    def note(found: Any) -> None:
        """Keep the command, and what a plan for the pessimistic latencies costs where that is quickly known."""
        found.log["command"] = command
        if time.process_time() - began < CHEAP_S and is_worth_a_safer_plan(found, safety):
            found.log["safer"] = safer(made, folder, found)

    began = time.process_time()
    try:
        result = solved(problem, out, as_json, note, time_limit=time_limit)
    except InputError as error:  # what is known of latencies is seen when they are asked for
        raise question.as_options(error) from None
    if not as_json:
        from optmodels.cli.console import show
        from optmodels.errors import printable
        from optmodels.reporting.text import plain

        if said := question.assumptions(question.read(asked)):
            show(["", "[bold]Assumed[/bold]", *(f"  {plain(line)}" for line in said)])
        if show_instance:
            show(["", "[bold]The equivalent instance file[/bold] (--write FILE saves it)"])
            sys.stdout.write(printable(text.rstrip()) + "\n")  # to be copied: as it is, however wide
        show(["", "[bold]Next[/bold]", *(f"  {plain(line)}" for line in _next(asked, result, write))])
    return int(result.exit_status)


def _on_disk(trace: Path, write: Path | None) -> Path:
    """The trace as a file that an instance can name: a pipe's content, or a copy of a file whose name is not UTF-8."""
    import shutil
    import tempfile

    from optmodels.errors import InputError, Mistake
    from optmodels.io.pipes import is_stream, settled
    from optmodels.io.write import path_text, safe_name

    stream = is_stream(trace)
    if not stream and path_text(trace.name) == trace.name:
        return trace
    if write is not None:
        expected = "a file with a name that instances can have, since FILE of --write names it"
        raise InputError(Mistake(None, "--trace", path_text(trace), expected))
    if stream:
        return settled(trace, "a request trace")
    import atexit

    folder = Path(tempfile.mkdtemp(prefix="optmodels-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(shutil.copyfile(trace, folder / safe_name(path_text(trace.name))))


def _one(name: str, mean: float | None, p95: float | None, p99: float | None) -> Any:
    """The one limit that was given: on the mean, or on a percentile."""
    from optmodels.errors import InputError, Mistake

    given = [x for x in (mean, None if p95 is None else (p95, 0.95), None if p99 is None else (p99, 0.99))
             if x is not None]  # fmt: skip
    if len(given) > 1:
        raise InputError(Mistake(None, f"--{name}", given, "one limit: on the mean, for 95 % or for 99 %"))
    return given[0] if given else None


def quota_of(text: str) -> tuple[str, int]:
    """A GPU type and how many of them at most, of ``h100=16``."""
    from optmodels.errors import InputError, Mistake

    gpu, equals, most = (part.strip() for part in text.partition("="))
    if not (gpu and equals and most.isascii() and most.isdigit()):
        raise InputError(Mistake(None, "--quota", text, "a GPU type and how many of them, as in h100=16"))
    return gpu, int(most)


def is_worth_a_safer_plan(result: Any, safety: float | None) -> bool:
    """Whether a plan of the usual latencies misses its SLO at the pessimistic end."""
    latency = (result.report or {}).get("latency") or {}
    missed = bool(latency.get("missed_at_the_pessimistic_end"))
    return safety is None and result.limit is None and missed


def safer(made: dict[str, Any], folder: Path, result: Any) -> dict[str, Any]:
    """The cost of the plan for latencies at the pessimistic end; None in it: there is no such plan.

    Args:
        made: the instance.
        folder: of the files it names.
        result: of the instance.
    """
    from optmodels import api
    from optmodels.errors import InputError
    from optmodels.loading import load

    level = min(e["level"] for e in result.report["latency"]["sources"])
    asked = made | {"latency": made["latency"] | {"safety": level}, "certify": "none"}
    try:
        found = api.solve(load(asked, folder=folder, computed=False), out_of_sample=False, time_limit=SAFER_S)
    except InputError:  # a machine's latencies are not known at that level
        return {}
    if found.plan is None:
        return {"safety": level, "usd_per_hour": None} if found.status == "infeasible" else {}
    return {"safety": level, "usd_per_hour": found.summary["usd_per_hour"], "headline": found.summary["headline"]}


def _has_experts(result: Any) -> bool:
    """Whether the model that was planned has routed experts."""
    return any((w.get("model") or {}).get("moe") for w in result.problem["workloads"])


def _next(asked: Any, result: Any, write: Path | None) -> list[str]:
    """What to try after this answer, the most useful first."""
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
        lines.append("--safety 0.9: a plan that also meets the SLO at the pessimistic end of the latencies")
    if not asked.survive:
        lines.append("--survive 1: the cost of losing any one deployment without missing the SLO")
    if not asked.apart:
        lines.append("--apart: whether disaggregated prefill and decode cost less")
    if list(asked.attention_ranks) == [1] and _has_experts(result):
        lines.append("--attention-ranks 1,2,4,8: what data-parallel attention saves")
    if "spot" not in asked.markets:
        lines.append("--market on_demand --market spot: what spot machines save")
    if len(asked.clouds) == 1:
        lines.append("--cloud aws --cloud gcp --cloud azure: prices of other clouds")
    lines.append(f"optmodels explain {shlex.quote(file)}{keep}: what each limit costs, and the next best plans")
    return lines
