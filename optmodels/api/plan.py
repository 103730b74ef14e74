"""`plan`: the machines for one workload, without a file."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from optmodels import question
from optmodels.api.next_measurement import CHEAP_S, OTHER_END_S
from optmodels.api.solve import at_the_other_end, solve
from optmodels.api.sources import File, written
from optmodels.errors import InputError, Mistake
from optmodels.io.write import path_text, write_text
from optmodels.loading import load
from optmodels.plans.outcome import Result
from optmodels.question import Duration, Question
from optmodels.solver.deadline import OTHER_END, deadline


def plan(
    model: str, *, input: int | str | None = None, output: int | str | None = None, rate: float | str | None = None,
    trace: File | None = None, column: Mapping[str, str] | None = None,
    where: Mapping[str, str | Sequence[str]] | None = None, skip_bad: bool = False, rate_factor: float = 1.0,
    longest: int | str | None = None, precision: str | None = None, kv: str = "fp16",
    ttft: Duration | None = None, ttft_p95: Duration | None = None, ttft_p99: Duration | None = None,
    tpot: Duration | None = None, tpot_p95: Duration | None = None, tpot_p99: Duration | None = None,
    itl_p95: Duration | None = None, itl_p99: Duration | None = None,
    e2e: Duration | None = None, e2e_p95: Duration | None = None, e2e_p99: Duration | None = None,
    cloud: Sequence[str] = ("aws",), region: str | None = None, gpu: Sequence[str] = (),
    market: Sequence[str] = ("on_demand",), quota: Mapping[str, int] | Sequence[str | tuple[str, int]] = (),
    survive: int = 0, budget: float | None = None, engine: str = "vllm", safety: float | None = None,
    disaggregate: bool = False, attention_ranks: Sequence[int] = (1,), max_num_seqs: int | None = None,
    certify_replay: bool | None = None, write: File | None = None,
    out: File | None = None, time_limit: float | None = None, force: bool = False,
    command: str | None = None, on_question: Callable[[Question, str], object] | None = None,
    on_result: Callable[[Result], object] | None = None, **how: Any,
) -> Result:  # fmt: skip
    """Find the cheapest machines for one workload that meet its SLO.

    Args:
        model: an LLM of the catalogue by any of its names, or a ``config.json`` or its folder.
        input: tokens of a prompt: 8000, or ``8k``.
        output: tokens of an answer.
        rate: requests/s, or a rate with its unit: 30, ``100/min``.
        trace: a trace of requests in place of these three: Azure, Mooncake, a request log. In Python also a data frame.
        column, where, skip_bad: how the trace is read, as in `replay`.
        rate_factor: multiply the trace's arrival rate by this factor.
        longest: tokens of the longest request, prompt and answer; every engine must admit it.
        precision: weight precision: bf16, fp8, int4, …; None: as the name states or as published.
        kv: precision of the KV cache: fp16 or fp8.
        ttft: limit on the mean time to the first token: 0.8 (seconds) or ``800ms``.
        ttft_p95, ttft_p99: limit on TTFT for this percentage of the requests.
        tpot: limit on the mean time per output token after the first.
        tpot_p95, tpot_p99: limit on TPOT for this percentage of the requests.
        e2e: limit on the mean time of a whole request.
        e2e_p95, e2e_p99: limit on this time for this percentage of the requests.
        itl_p95, itl_p99: limit on the time between two tokens, pauses for other prompts included, for this percentage.
        cloud: price lists: aws (default), gcp, azure; several: ``aws,gcp``.
        region: region; None: each cloud's default region.
        gpu: only this GPU type, or a YAML file with one; empty: types of `quota`, or all.
        market: markets: on_demand (default), spot, reserved_1y, reserved_3y.
        quota: GPU type → most GPUs. Other types need `gpu`.
        survive: number of simultaneous deployment failures the plan must survive.
        budget: largest cost, USD/h.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        safety: prediction quantile: with 0.9, latencies that 9 of 10 measurements stay below.
        disaggregate: consider disaggregated prefill and decode.
        attention_ranks: data-parallel attention ranks to choose from, experts spread over all.
        max_num_seqs: requests that an engine runs at a time; None: the plan decides.
        certify_replay: simulate until every SLO holds; None: with `trace`, on its own requests.
        write: file for the equivalent problem (YAML).
        out: folder for plan.json, report.html and tables as CSV; None: no files. A new folder per result is made in it.
        time_limit: seconds (or ``5min``, ``inf``), tables included; at the limit the best plan so far counts.
        force: replace an existing problem file.
        command: how this was asked, for the head of the problem file and the log of the result.
        on_question: called with the understood question and the text of its problem file, before the solve.
        on_result: called with the checked result, before its files are written.
        how: further arguments of `solve`.

    Raises:
        InputError: an option is wrong; mistakes name options as the command line has them.
        NotWrittenError: the result, which it carries, could not be written.
    """
    if unknown := [name for name in how if name not in ("apart", *inspect.signature(solve).parameters)]:
        raise TypeError(f"plan() got an unexpected keyword argument {unknown[0]!r}")
    if "apart" in how:
        warnings.warn("plan(apart=…) is called disaggregate now", DeprecationWarning, stacklevel=2)
        disaggregate = bool(how.pop("apart"))
    target, trace = None if write is None else Path(write), written(trace)
    file = None if trace is None else _on_disk(Path(trace), target)
    reading = {"columns": column, "where": where, "skip_bad": skip_bad}
    asked = Question(
        model=model, input_tokens=input, output_tokens=output, rate=rate, trace=file, rate_factor=rate_factor,
        reading={k: v for k, v in reading.items() if v}, weights=precision, kv=kv,
        ttft=one_limit("ttft", ttft, ttft_p95, ttft_p99), tpot=one_limit("tpot", tpot, tpot_p95, tpot_p99),
        itl=one_limit("itl", None, itl_p95, itl_p99),
        e2e=one_limit("e2e", e2e, e2e_p95, e2e_p99), clouds=_several(cloud), region=region, gpus=_several(gpu),
        markets=_several(market), quota=question.quotas(quota), survive=survive,
        budget=budget, engine=engine, safety=safety, longest=longest, disaggregate=disaggregate,
        attention_ranks=attention_ranks, certify=certify_replay, max_num_seqs=max_num_seqs,
    )  # fmt: skip
    folder = file.parent if file is not None and target is None else Path() if target is None else target.parent
    try:
        with _as_given(file, trace):
            made = question.instance(asked, folder)
    except InputError as error:
        raise InputError(replace(m, value=str(write)) if m.path == "--write" else m for m in error.mistakes) from None
    text = question.as_yaml(made, command or "optmodels.plan")
    try:
        with _as_given(file, trace):
            problem = load(made, folder=folder, computed=False)
    except InputError as error:
        percentiles = {
            "--ttft": (ttft_p95, ttft_p99),
            "--tpot": (tpot_p95, tpot_p99),
            "--itl": (itl_p95, itl_p99),
            "--e2e": (e2e_p95, e2e_p99),
        }
        given = {
            option: option + ("-p95" if p95 is not None else "-p99")
            for option, (p95, p99) in percentiles.items() if (p95, p99) != (None, None)
        }  # fmt: skip
        raise question.as_options(error, given) from None
    if target is not None:
        write_text(target, text, overwrite=force)
    if on_question is not None:
        on_question(question.read(asked), text)
    began = time.process_time()

    def note(found: Result) -> None:
        """Keep the command, and the plan at the other end of the latencies' interval where that is quickly known."""
        if command is not None:
            found.log["command"] = command
        if time.process_time() - began < CHEAP_S:
            at_the_other_end(found, problem, OTHER_END_S, question.written(asked))
        if on_result is not None:
            on_result(found)

    try:
        with deadline(None, (OTHER_END,)):  # `note` considers it by its own clock
            return solve(problem, out=out, time_limit=time_limit, on_result=note, **how)
    except InputError as error:  # latencies are looked up only on request
        if getattr(error, "result", None) is not None:
            raise
        raise question.as_options(error) from None


def _several(given: str | Sequence[str]) -> Sequence[str]:
    return [given] if isinstance(given, str) else given


@contextmanager
def _as_given(file: Path | None, trace: File | None) -> Iterator[None]:
    """Within the block mistakes in a copy of a trace name the trace as it was given."""
    try:
        yield
    except InputError as error:
        if file is None or file == Path(str(trace)):
            raise
        given = path_text(Path(str(trace)))
        raise InputError(replace(m, file=given) if m.file == str(file) else m for m in error.mistakes) from None


def _on_disk(trace: Path, write: Path | None) -> Path:
    """The trace as a file that a problem file can name: a pipe's content, or a copy where a name is not UTF-8."""
    import shutil
    import tempfile

    from optmodels.io.pipes import is_stream, settled
    from optmodels.io.write import safe_name

    stream = is_stream(trace)
    if not stream and path_text(trace.name) == trace.name:
        return trace
    if write is not None:
        expected = "a file with a name that problem files can have, since FILE of --write names it"
        raise InputError(Mistake(None, "--trace", path_text(trace), expected))
    if stream:
        return settled(trace, "a request trace")
    import atexit

    folder = Path(tempfile.mkdtemp(prefix="optmodels-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(shutil.copyfile(trace, folder / safe_name(path_text(trace.name))))


def one_limit(name: str, mean: Duration | None, p95: Duration | None, p99: Duration | None) -> question.Limit | None:
    """The one limit that was given: on the mean, or on a percentile."""
    given = [x for x in (mean, None if p95 is None else (p95, 0.95), None if p99 is None else (p99, 0.99))
             if x is not None]  # fmt: skip
    if len(given) > 1:
        raise InputError(Mistake(None, f"--{name}", given, "one limit: on the mean, for 95 % or for 99 %"))
    return given[0] if given else None
