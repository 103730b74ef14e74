"""`rows-to-measure`: the few closed-loop benchmark runs after which `calibrate --form default` is least uncertain."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from optmodels.api.sources import File, renamed
from optmodels.api.tables import tables
from optmodels.errors import InputError, Mistake, one_of
from optmodels.io.write import refuse_existing, write_frame
from optmodels.loading import load

if TYPE_CHECKING:
    from optmodels.latency.engines.choice import ChosenRows
    from optmodels.latency.engines.own import Loops
    from optmodels.latency.engines.terms import ModelInstance

LABELS = {"tpot_s": "TPOT", "ttft_s": "TTFT"}
TPS = (1, 2, 4, 8)
PROMPTS_A_USER = 10  # as the rows that the coefficients were fitted to
TOOLS = {  # a closed-loop run with fixed lengths, by benchmark; NAME is the model that the server serves
    "vllm": "vllm bench serve --backend {backend} --model NAME --dataset-name random --random-input-len {input_tokens} "
    "--random-output-len {output_tokens} --ignore-eos --max-concurrency {concurrency} --num-prompts {prompts} "
    "--save-result --result-filename {name}",
    "sglang": "python -m sglang.bench_serving --backend sglang --model NAME --dataset-name random "
    "--random-input-len {input_tokens} --random-output-len {output_tokens} --random-range-ratio 1 "
    "--max-concurrency {concurrency} --num-prompts {prompts} --output-file {name}",
    "guidellm": "guidellm benchmark --target http://localhost:8000 --rate-type concurrent --rate {concurrency} "
    "--max-requests {prompts} --data prompt_tokens={input_tokens},output_tokens={output_tokens} --output-path {name}",
}
NORMAL_P90 = NormalDist().inv_cdf(0.9)


@renamed({"instance": "problem", "llm": "model"})
def rows_to_measure(
    problem: File | None = None, *, rows: int = 5, engine: str | None = None, gpu: str | None = None,
    model: str | None = None, precision: str | None = None, attention_ranks: int | None = None,
    tp: Sequence[int] | None = None, concurrency: Sequence[int] = (1, 4, 16, 64, 256),
    input_tokens: Sequence[int] = (128, 512, 2048, 8192), output_tokens: Sequence[int] = (128, 512, 1024),
    candidates: File | None = None, measured: File | None = None, tool: str | None = None, out: File | None = None,
    force: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Choose the few closed-loop runs to measure, by the priors of ``default``: no measured value enters.

    Args:
        problem: problem file with the machines and lengths to choose rows for; None: every possible row.
        rows: number of rows to choose, 1 to 100.
        engine: ``vllm``, ``sglang`` or ``trtllm``; None: the problem's.
        gpu: GPU of the catalogue, or a YAML file of one; None: the problem's.
        model: LLM of the catalogue, or a YAML file of one; None: the problem's.
        precision: precision of weights: fp16, fp8, fp8_block, fp4, mxfp4 or int4; None: the problem's, or fp16.
        attention_ranks: data-parallel attention ranks; None: the problem's.
        tp: tensor-parallel degrees that may be measured; None: the problem's, or 1, 2, 4, 8.
        concurrency: numbers of concurrent requests that may be measured.
        input_tokens: prompt lengths that may be measured, besides the problem's.
        output_tokens: output lengths that may be measured, besides the problem's.
        candidates: CSV or Parquet file of runs instead: concurrency, input_tokens, output_tokens, tp.
        measured: rows of the deployment that are there already, as `calibrate` reads them.
        tool: benchmark whose commands are returned: ``vllm``, ``sglang`` or ``guidellm``; None: the engine's own.
        out: CSV file to write, to be filled in.
        force: replace an existing file.

    Returns:
        ``rows``; ``commands`` that measure them and fit the model; ``targets``: what safety 0.9 multiplies by before
        and after.

    Raises:
        InputError: a file or an argument is wrong, or no candidate fits the GPUs' memory.
    """
    from optmodels.latency.engines.choice import choose, measurable
    from optmodels.latency.engines.document import deployment, read_engine_model
    from optmodels.latency.engines.own import loops, served_rows
    from optmodels.latency.fit.measurements import read_loads, read_measurements

    target = None if out is None else Path(out)
    if target is not None:
        if target.suffix != ".csv":
            raise InputError(Mistake(None, "--out", str(target), "a file ending in .csv, to be filled in"))
        if not force:
            refuse_existing(target)
    if tool is not None:
        one_of("tool", tool, TOOLS)
    limits = {"rows": 100, "tp": 1024, "concurrency": 10**6, "input_tokens": 10**7, "output_tokens": 10**7}
    for name, numbers in zip(limits, ((rows,), tp or (), concurrency, input_tokens, output_tokens), strict=True):
        if not all(1 <= n <= limits[name] for n in numbers):
            raise InputError(Mistake(None, name, [*numbers], f"whole numbers from 1 to {limits[name]:,}"))
    lengths = list(itertools.product(sorted({*input_tokens}), sorted({*output_tokens})))
    at_once, degrees = sorted({*concurrency}), sorted({*(tp or ())})
    matter: list[Loops] = []
    if problem is not None:
        asked, stated = _deployments_of(Path(problem))
        home = _one_of(asked, engine, gpu, model, precision, attention_ranks)
        mine = [d for d in asked if _names(d) == _names(home)]
        matter = [measurable(d, at_once, stated or lengths) for d in asked]
        lengths = sorted({*lengths, *stated})
        of = [dataclasses.replace(home, gpus=t * home.attention_ranks) for t in degrees] or mine
    else:
        of = [deployment(engine, gpu, model, precision or "fp16", t, attention_ranks or 1) for t in degrees or TPS]
        home = of[0]
    named = (home.engine, gpu or home.gpu_name, model or home.llm_name, home.precision)
    if candidates is None:
        choices = [measurable(d, at_once, lengths) for d in of]
    else:
        choices = loops(read_loads(Path(candidates)), *named, home.attention_ranks)
    choices = [s for s in choices if len(s.loads.concurrency)]
    matter = [s for s in matter if len(s.loads.concurrency)] or choices
    if not choices:
        expected = f"GPUs that hold {home.llm_name} in {home.precision} and one of the requests"
        raise InputError(Mistake(None, "--tp", ",".join(str(d.gpus // d.attention_ranks) for d in of), expected))
    known = [] if measured is None else served_rows(
        read_measurements(Path(measured), kind="served"), *named, home.attention_ranks
    )  # fmt: skip
    targets = read_engine_model().targets
    chosen = choose((targets["tpot_s"].fitted, targets["ttft_s"].fitted), choices, matter, rows, known)
    table = _table(choices, chosen)
    document = {
        "engine": home.engine, "gpu": named[1], "llm": named[2], "precision": home.precision,
        "attention_ranks": home.attention_ranks, "candidates": _count(choices), "predicted": _count(matter),
        "rows": table, "targets": _targets(home, chosen, known, table),
    }  # fmt: skip
    if target is not None:
        import pandas as pd

        empty = pd.DataFrame(table).assign(ttft_s=None, tpot_s=None)  # to be filled in, as `calibrate` reads it
        write_frame(target, empty, overwrite=force)
    return document | {"commands": _commands(document, tool or ("sglang" if home.engine == "sglang" else "vllm"))}


def _deployments_of(instance: Path) -> tuple[list[ModelInstance], list[tuple[int, int]]]:
    """The deployments that a problem's tables ask about, and the (input, output) lengths that it states.

    Raises:
        InputError: its latencies are of no engine's steps.
    """
    from optmodels.latency.resolve import recorded

    with recorded() as found:
        problem = load(instance)
        tables(problem)
    stated = problem.model_dump(mode="json")
    if not found:
        expected = "latencies of engines' steps, such as latency: {model: default}"
        raise InputError(Mistake(str(instance), "latency", stated.get("latency"), expected))
    return list(found), sorted(set(_lengths(stated)))


def _lengths(value: Any) -> Iterator[tuple[int, int]]:
    """Every (input, output) length that a document states."""
    if isinstance(value, dict):
        pair = value.get("input_tokens"), value.get("output_tokens")
        if all(isinstance(n, int | float) and n >= 1 for n in pair):
            yield round(pair[0]), round(pair[1])  # type: ignore[arg-type]
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _lengths(part)


def _names(d: ModelInstance) -> tuple[str, str, str, str, str]:
    return d.engine, d.gpu_name, d.llm_name, d.precision, str(d.attention_ranks)


def _one_of(
    asked: Sequence[ModelInstance], engine: str | None, gpu: str | None, llm: str | None, precision: str | None,
    attention_ranks: int | None,
) -> ModelInstance:  # fmt: skip
    """The problem's deployment, whatever the TP, that the options name: a file of rows is one's.

    Raises:
        InputError: there is none, or several.
    """
    ranks = None if attention_ranks is None else str(attention_ranks)
    given = dict(zip(("--engine", "--gpu", "--model", "--precision", "--attention-ranks"),
                     (engine, gpu, llm, precision, ranks), strict=True))  # fmt: skip
    left = list(asked)
    for k, (option, name) in enumerate(given.items()):
        there = sorted({_names(d)[k] for d in left})
        if name is None and len(there) > 1:
            raise InputError(Mistake(None, option, None, f"one of the problem's: {', '.join(there)}"))
        if name is not None and name not in there:
            raise InputError(Mistake(None, option, name, f"of the problem: {', '.join(there)}"))
        left = [d for d in left if name in (None, _names(d)[k])]
    return left[0]


def _count(loops: Sequence[Loops]) -> int:
    return sum(len(s.loads.concurrency) for s in loops)


def _table(choices: Sequence[Loops], chosen: ChosenRows) -> list[dict[str, int]]:
    """The chosen rows, grouped by TP."""
    every = [
        {
            "concurrency": round(c), "input_tokens": round(i), "output_tokens": round(o),
            "tp": s.deployment.gpus // s.deployment.attention_ranks,
        }
        for s in choices
        for c, i, o in zip(s.loads.concurrency, s.loads.input_tokens, s.loads.output_tokens, strict=True)
    ]  # fmt: skip
    return sorted((every[i] for i in chosen.rows), key=lambda r: tuple(r.values())[::-1])


def _targets(
    home: ModelInstance, chosen: ChosenRows, known: Sequence[Loops], table: list[dict[str, int]]
) -> dict[str, Any]:
    """Of each target: what safety 0.9 multiplies by, and by the priors alone the median row's 0.9 quantile."""
    import numpy as np

    from optmodels.latency.engines.document import OWN_WORKLOADS, own_interval, read_engine_model

    deployed = read_engine_model().at(home)
    workloads = {(r["input_tokens"], r["output_tokens"]) for r in table}
    for s in known:
        workloads |= set(zip(s.loads.input_tokens.tolist(), s.loads.output_tokens.tolist(), strict=True))
    after = own_interval(len(table) + _count(known)) if len(workloads) >= OWN_WORKLOADS else None
    found = {}
    for target in LABELS:
        now = then = deployed.factors(target)["0.9"]
        if after is not None and deployed.levels:
            then = deployed.targets[target].residual_quantiles[after]["0.9"]  # type: ignore[index]
        by_prior = [float(np.exp(NORMAL_P90 * np.median(x[target]))) for x in (chosen.before, chosen.after)]
        found[LABELS[target]] = {
            "safety_09": {"now": now, "after": then},
            "by_the_priors": {"now": by_prior[0], "after": by_prior[1]},
        }
    return found


def _commands(document: dict[str, Any], tool: str) -> list[str]:
    """A benchmark's command for each row, and the commands that make one file for `calibrate` of its results."""
    from optmodels.reporting.latencies import deployment_options

    found, tps = [], sorted({r["tp"] for r in document["rows"]})
    for k, r in enumerate(document["rows"], 1):
        name = f"tp{r['tp']}-{k}.json{'l' * (tool == 'sglang')}"
        values = r | {"prompts": PROMPTS_A_USER * r["concurrency"], "name": name}
        found.append(TOOLS[tool].format(backend="vllm" if document["engine"] == "vllm" else "openai", **values))
    found += [f"optmodels measure tp{t}-*.json* --tp {t} --out tp{t}.csv" for t in tps]
    if len(tps) > 1:
        found.append(f"optmodels measure {' '.join(f'tp{t}.csv' for t in tps)} --out served.csv")
    table = "served.csv" if len(tps) > 1 else f"tp{tps[0]}.csv"
    return [*found, f"optmodels calibrate {table} --form default {deployment_options(document)} --out own.yaml"]
