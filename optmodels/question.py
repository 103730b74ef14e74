"""One workload asked for without a file: the fleet instance that the words of ``optmodels plan`` stand for."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic_core import PydanticCustomError

from optmodels import catalog
from optmodels.catalog import spelling
from optmodels.catalog.files import GpuFile, gpu_file, llm_file
from optmodels.errors import InputError, Mistake, Mistakes
from optmodels.units import REQUESTS, convert, tokens

# Of each GPU: 0.16 to 0.25 GiB for context and communication in vLLM's logs (vllm-project/vllm pulls 12126,
# 14447), 0.36 for CUDA graphs (gpustack/runner pull 251), and 0.9 of the memory that a device reports less than is
# marketed: an H100 79.22 of its 80 GiB (vllm pull 10511).

STRETCH = 1.4  # of the limits in the second pass of a fleet that is certified on a trace

Duration = float | str  # seconds, or a number with its unit
Limit = Duration | tuple[Duration, float]  # of the mean; or of a share of the requests


@dataclass(frozen=True)
class Question:
    """Workload, SLOs and possible machines.

    Attributes:
        model: an LLM of the catalogue, by any of its names (`catalog.spelling`), or a `config.json` or its folder.
        input_tokens, output_tokens: of a request, 8k or 8000; None: a trace states.
        rate: requests/s, or a rate with its unit; None: the trace's.
        trace: a file of requests, in place of these three.
        rate_factor: its requests come this many times as often.
        reading: how its file is read: `columns`, `where`, `skip_bad` of the workload's trace.
        weights, kv: precision; None: the weights as the model's name states or as they are published.
        ttft, tpot, itl, e2e: limits, None for none.
        clouds: machine lists of the catalogue.
        region: region of every cloud; None: each list's default.
        gpus: the only types to use, by name or by a YAML file; empty: those with a quota, or all without quotas.
        markets: markets that machines are bought on.
        quota: (GPU type, GPUs at most).
        survive: deployments that may be lost at a time.
        budget: USD/h.
        engine: whose step latencies are planned with.
        safety: share of measurements that stay below the latencies that are planned with; None: about half.
        longest: input and output tokens of the longest request, which engines have to admit; None: not known.
        disaggregate: whether prefill and decode may have machines of their own.
        attention_ranks: attention ranks of an engine of a model with routed experts, to choose from.
        certify: whether the SLOs have to hold in simulation; None: where there is a trace, on its requests.
        max_num_seqs: requests that an engine runs at a time; None: the plan decides.
        own_gpus: GPU types that `gpus` gives by files, by their keys.
    """

    model: str
    input_tokens: int | str | None = None
    output_tokens: int | str | None = None
    rate: float | str | None = None
    trace: Path | None = None
    rate_factor: float = 1.0
    reading: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    weights: str | None = None
    kv: str = "fp16"
    ttft: Limit | None = None
    tpot: Limit | None = None
    itl: Limit | None = None
    e2e: Limit | None = None
    clouds: Sequence[str] = ("aws",)
    region: str | None = None
    gpus: Sequence[str] = ()
    markets: Sequence[str] = ("on_demand",)
    quota: Sequence[tuple[str, int]] = ()
    survive: int = 0
    budget: float | None = None
    engine: str = "vllm"
    safety: float | None = None
    longest: int | str | None = None
    disaggregate: bool = False
    attention_ranks: Sequence[int] = (1,)
    certify: bool | None = None
    max_num_seqs: int | None = None
    own_gpus: Mapping[str, GpuFile] = dataclasses.field(default_factory=dict)


# Place in an instance of each option's value: the longest that a mistake's path begins with is named.
OPTIONS = {
    "workloads[0].model": "--model", "workloads[0].name": "--model", "workloads[0].precision": "--precision",
    "workloads[0].precision.kv": "--kv",
    "workloads[0].buckets[0].input_tokens": "--input", "workloads[0].buckets[0].output_tokens": "--output",
    "workloads[0].buckets[0].requests_per_s": "--rate", "workloads[0].trace.rate_factor": "--rate-factor",
    "workloads[0].trace": "--trace", "workloads[0].buckets[0].longest_tokens": "--longest",
    "workloads[0].slo.ttft_s": "--ttft",
    "workloads[0].slo.tpot_s": "--tpot", "workloads[0].slo.itl_s": "--itl",
    "workloads[0].slo.deadline_s": "--e2e", "pool": "--cloud",
    "markets": "--market", "quota": "--quota", "reserve": "--survive", "budget_usd_per_hour": "--budget",
    "engine.max_num_seqs": "--max-num-seqs", "latency.engine": "--engine", "latency.safety": "--safety",
    "deployment": "--disaggregate", "strategies.attention_ranks": "--attention-ranks",
}  # fmt: skip


def instance(q: Question, folder: Path | None = None) -> dict[str, Any]:
    """The fleet instance of a question, for a file in a folder (default: the trace's).

    Raises:
        InputError: an unknown cloud, region or GPU, a name given twice, a longest request below the mean, requests
            stated twice or not at all, a rate of 0 or below, fewer than 0 lost, or a folder that the trace is not in or
            below.
    """
    if q.survive < 0:
        raise InputError(Mistake(None, "--survive", q.survive, "a whole number of deployments ≥ 0"))
    q = read(q)
    model, written, _ = named(q.model)
    requests = _requests(q, folder)
    slo = {"ttft_s": q.ttft, "tpot_s": q.tpot, "itl_s": q.itl, "deadline_s": q.e2e}
    precision = {"weights": q.weights, "kv": q.kv}
    said = assumptions(q)
    found: dict[str, Any] = {
        "formulation": "fleet", "schema": 1, "name": f"{model}-plan",
        "title": f"{model}, {_title(q)}", **({"notes": " ".join(said)} if said else {}),
        "workloads": [{
            "name": model, "model": written,
            **({} if precision == {"weights": "fp16", "kv": "fp16"} else {"precision": precision}),
            **requests, "slo": {k: _limit(v) for k, v in slo.items() if v is not None},
        }],
        "pool": _pools(q), "markets": {"main": list(q.markets)},
        "strategies": {"families": ["high_end"]}, "serving": "continuous", "latency": {"engine": q.engine},
    }  # fmt: skip
    if q.own_gpus:
        found["gpus"] = {key: gpu.data for key, gpu in q.own_gpus.items()}
    if q.max_num_seqs is not None:
        found["engine"] = {"max_num_seqs": q.max_num_seqs}
    if q.safety is not None:
        found["latency"]["safety"] = q.safety
    if q.quota:
        found["quota"] = [{"gpu": gpu, "unit": "gpus", "at_most": most} for gpu, most in q.quota]
    if tuple(q.attention_ranks) != (1,):
        found["strategies"]["attention_ranks"] = list(q.attention_ranks)
    if q.disaggregate:
        found["deployment"] = {"stages": ["both", "prefill", "decode"]}
    if q.certify if q.certify is not None else q.trace is not None:
        found["certify"] = "replay"
    if found.get("certify") and q.trace is not None:
        found["certification"] = {"stretch": STRETCH}
    if q.survive:
        found["reserve"] = {"lost": q.survive}
    if q.budget is not None:
        found["budget_usd_per_hour"] = q.budget
    return found


def named(model: str) -> tuple[str, Any, str | None]:
    """An LLM's name, a file's data on it, and the weight precision it states.

    A repository of Hugging Face stays as it is, so that exports start it; a `config.json` becomes its shape.

    Raises:
        InputError: an unknown model, or a configuration that is not read.
    """
    own = llm_file(model)
    if own is not None:
        return own[1].title or own[0], own[1].model_dump(mode="json", exclude_defaults=True), own[2]
    key = spelling.llm_of(model)
    if key is None:
        other = "a config.json of Hugging Face"
        if Path(model).is_dir():
            other = "a folder with a config.json, which this one has not"
        raise InputError(spelling.unknown_llm("--model", model, f", or {other}"))
    return key, key if spelling.llm(model) == key else model, spelling.precision_of(model)


def written(q: Question) -> dict[str, str]:
    """Names of an LLM and of GPUs that a question gives by files → these files."""
    own = llm_file(q.model)
    files = {found[0]: name for name in q.gpus if (found := gpu_file(name)) is not None}
    return files if own is None else files | {own[1].title or own[0]: q.model}


def _plain(value: Any) -> Any:
    """The number that a text is, ``inf`` too; else the text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def read(q: Question) -> Question:
    """The same question with numbers in their units and with the catalogue's names, the model's excepted.

    Raises:
        InputError: an unknown model, a precision that its name contradicts, or a number that cannot be read.
    """
    wrong = Mistakes()

    def number(option: str, value: Any, unit: str) -> Any:
        try:
            found = tokens(value) if unit == "tokens" else convert(_plain(value), unit)
        except PydanticCustomError as error:
            wrong.add(option, value, error.message())
            return None
        return found

    numbers = {
        "input_tokens": number("--input", q.input_tokens, "tokens"),
        "output_tokens": number("--output", q.output_tokens, "tokens"),
        "longest": number("--longest", q.longest, "tokens"), "rate": number("--rate", q.rate, REQUESTS),
    }  # fmt: skip
    key, stated, weights = "", None, spelling.precision(q.weights)
    with wrong.collecting():
        key, _, stated = named(q.model)
    if weights is not None and stated is not None and spelling.differ(weights, stated):
        wrong.add(
            "--precision", q.weights, f"{stated}, which {q.model} says, or a model without a precision in its name"
        )
    if isinstance(weights, str) and (reason := spelling.not_modelled(weights)):
        wrong.add("--precision", q.weights, reason)
    wrong.raise_any()
    names = [g for text in q.gpus for g in ([text] if gpu_file(text) else text.split(","))]
    files = {name: found for name in names if (found := gpu_file(name)) is not None}
    return dataclasses.replace(
        q, **numbers, own_gpus=dict(q.own_gpus) | dict(files.values()), kv=spelling.kv_precision(q.kv),
        weights=weights or stated or catalog.published_precision(key),
        clouds=[spelling.cloud(c) for text in q.clouds for c in text.split(",") if c.strip()],
        region=None if q.region is None else spelling.region(q.region.strip()),
        gpus=[files[g][0] if g in files else g if g in q.own_gpus else spelling.gpu(g) for g in names],
        markets=[spelling.market(m) for text in q.markets for m in text.split(",")],
        quota=[(spelling.gpu(g), most) for g, most in q.quota], engine=spelling.engine(q.engine),
    )  # fmt: skip


def quota_of(text: str) -> tuple[str, int]:
    """A GPU type and how many of them at most, of ``h100=16``, ``16xH100``, ``16 H100`` or ``H100 x16``.

    Raises:
        InputError: none of these.
    """
    most = r"(?P<most>[0-9]{1,9})"
    forms = (
        rf"(?P<gpu>[^=]+?)\s*[=:]\s*{most}", rf"{most}\s*[x×*]\s*(?P<gpu>[a-z].*)", rf"{most}\s+(?P<gpu>[a-z].*)",
        rf"(?P<gpu>.*?\S)\s+[x×*]\s*{most}", rf"(?P<gpu>[a-z]+[0-9]+[a-z]*)\s+{most}",
    )  # fmt: skip
    for form in forms:
        found = re.fullmatch(form, text.strip(), re.I)
        if found is not None and (form is not forms[-1] or not spelling.gpus_of(text)):  # A100 40 may be GB
            return found["gpu"].strip(), int(found["most"])
    raise InputError(Mistake(None, "--quota", text, "a GPU type and how many of them, as in h100=16"))


def quotas(given: Mapping[str, int] | str | Sequence[str | tuple[str, int]]) -> list[tuple[str, int]]:
    """GPU types with how many of them at most, of a mapping, pairs, or texts as on the command line.

    Raises:
        InputError: a text that is none.
    """
    if isinstance(given, Mapping):
        return list(given.items())
    several = given.split(",") if isinstance(given, str) else given
    return [quota_of(entry) if isinstance(entry, str) else entry for entry in several]


def allowed_gpus(q: Question) -> Sequence[str]:
    """The GPU types that may be rented: the types of --gpu; without it the types with a quota; empty: all."""
    return q.gpus or list(dict.fromkeys(g for g, most in q.quota if most > 0))


def assumptions(q: Question) -> list[str]:
    """Defaults of a question that was read, a sentence each."""
    found, pools = [], catalog.pools()
    left_out = []
    for cloud in (c for c in dict.fromkeys(q.clouds) if c in pools):
        default = pools[cloud].default_region
        if q.region is not None and q.region not in {m.region for m in catalog.machines(cloud)}:
            left_out.append(cloud)
        elif q.region is None and default is not None:
            found.append(f"Region of {cloud}: {default} (--region for another).")
    if left_out and len(left_out) < len(set(q.clouds)):
        found.append(f"Left out: {', '.join(left_out)} (no region {q.region} there).")
    if q.quota and not q.gpus and (named := allowed_gpus(q)):
        found.append(f"GPUs: {', '.join(named)} only, which --quota names (--gpu for others, without a quota).")
    elif free := [g for g in q.gpus if q.quota and g not in dict(q.quota)]:
        found.append(f"No quota for {', '.join(free)}: any number.")
    return found


def _title(q: Question) -> str:
    if q.trace is None:
        return f"{q.rate:g} requests/s of {q.input_tokens} + {q.output_tokens} tokens"
    return f"the requests of {q.trace.name}" + (f", {q.rate_factor:g} times as often" if q.rate_factor != 1 else "")


def _requests(q: Question, folder: Path | None) -> dict[str, Any]:
    """Of the workload: one bucket of its options, or the trace."""
    stated = {"--input": q.input_tokens, "--output": q.output_tokens, "--rate": q.rate}
    if q.trace is None:
        wrong = Mistakes()
        for option, value in stated.items():
            if value is None:
                wrong.add(option, None, "a number, or a --trace of requests")
        if isinstance(q.rate, float | int) and q.rate <= 0:
            wrong.add("--rate", q.rate, "requests/s > 0")
        if q.rate_factor != 1:
            wrong.add("--rate-factor", q.rate_factor, "beside a --trace of requests")
        if q.reading:
            option = {"columns": "--column", "where": "--where", "skip_bad": "--skip-bad"}[next(iter(q.reading))]
            wrong.add(option, next(iter(q.reading.values())), "beside a --trace of requests")
        wrong.raise_any()
        assert isinstance(q.input_tokens, int) and isinstance(q.output_tokens, int)
        bucket = {"input_tokens": q.input_tokens, "output_tokens": q.output_tokens, "requests_per_s": q.rate}
        if isinstance(q.longest, int):
            mean = q.input_tokens + q.output_tokens
            if q.longest < mean:
                expected = f"at least the {mean} tokens of --input and --output"
                raise InputError(Mistake(None, "--longest", q.longest, expected))
            bucket["longest_tokens"] = q.longest
        return {"buckets": [bucket]}
    for option, value in (stated | {"--longest": q.longest}).items():
        if value is not None:
            raise InputError(Mistake(None, option, value, "nothing beside --trace, which says it"))
    folder, file = folder or q.trace.parent, q.trace.resolve()
    if not file.is_relative_to(folder.resolve()):
        expected = f"a file in {q.trace.parent} or above it, since problem files name traces beside them or below"
        raise InputError(Mistake(None, "--write", str(folder), expected))
    factor = {} if q.rate_factor == 1 else {"rate_factor": q.rate_factor}
    return {"trace": {"file": os.path.relpath(file, folder.resolve()), **factor, **q.reading}}


def _limit(limit: Limit) -> Any:
    return {"at_most": limit[0], "percentile": limit[1]} if isinstance(limit, tuple) else limit


def _pools(q: Question) -> Any:
    """The pool, or the list of them; machines by name where only some GPU types may be used."""
    wrong, allowed = Mistakes(), allowed_gpus(q)
    known = catalog.pools()
    pools: list[dict[str, Any]] = []
    regions: set[str] = set()
    gpus: set[str] = set()
    sold = {"on_demand"}  # of one's own machines, too
    for cloud in dict.fromkeys(q.clouds):
        if cloud not in known:
            wrong.unknown("--cloud", cloud, "a machine list of the catalogue", known)
            continue
        listed = catalog.machines(cloud)
        there = {m.region for m in listed}
        regions |= there
        region = q.region or known[cloud].default_region
        if region is not None and region not in there:
            continue  # another cloud's
        mine = [m for m in listed if region is None or m.region == region]
        gpus |= {m.gpu for m in mine if m.gpu}
        sold |= {market for m in mine for market in catalog.MARKETS if getattr(m.prices, market) is not None}
        pool: dict[str, Any] = {"catalog": cloud} | ({} if q.region is None else {"region": q.region})
        if allowed:
            pool["include"] = sorted({m.machine for m in mine if m.gpu in allowed})
        if not allowed or pool["include"]:
            pools.append(pool)
    for key, gpu in q.own_gpus.items():
        if gpu.usd_per_hour is not None:
            gpus.add(key)
            pools.append(_own_machines(key, gpu))
        elif key not in gpus:
            expected = f"usd_per_hour in the file: no machine of {', '.join(q.clouds)} has this GPU"
            wrong.add("--gpu", key, expected)
    if not wrong and q.region is not None and q.region not in regions:
        wrong.unknown("--region", q.region, f"a region of {', '.join(q.clouds)}", regions)
    for market in q.markets if not wrong else ():
        if market in catalog.MARKETS and market not in sold:
            wrong.add(
                "--market", market, f"a market that {', '.join(q.clouds)} has prices of: {', '.join(sorted(sold))}"
            )
    rented = f"a GPU of the machines of {', '.join(q.clouds)}"
    own = f"{rented}, or a YAML file with its usd_per_hour and gpu: NAME"
    for option, names, expected in (("--gpu", q.gpus, own), ("--quota", [gpu for gpu, _ in q.quota], rented)):
        for name in names if not wrong else ():
            if name not in gpus:
                wrong.append(spelling.unknown_gpu(option, name, gpus, expected))
    wrong.raise_any()
    return pools[0] if len(pools) == 1 else pools


def _own_machines(key: str, gpu: GpuFile) -> dict[str, Any]:
    """Machines of 1, 2, 4 and 8 GPUs of one's own at their price."""
    return {
        "machines": [
            {
                "machine": f"{key}-x{n}", "gpu": key, "gpu_count": n, "vram_gib": n * gpu.usable_gib,
                "prices": {"on_demand": n * float(gpu.usd_per_hour or 0.0)},
            } for n in (1, 2, 4, 8)
        ],
        "price_source": f"usd_per_hour of {key}.yaml",
    }  # fmt: skip


def as_options(error: InputError, given: Mapping[str, str] = MappingProxyType({})) -> InputError:
    """The mistakes of an instance that was made of options, by option; `given`: by which of its names one was given."""

    def named(m: Mistake) -> Mistake:
        where = max((path for path in OPTIONS if m.path.startswith(path)), key=len, default=None)
        if where is None:
            return m
        expected = m.expected.split(", or a section")[0]  # an option is a number, where a file may have one
        return dataclasses.replace(m, path=given.get(OPTIONS[where], OPTIONS[where]), expected=expected)

    return InputError([named(m) for m in error.mistakes])


def as_yaml(found: dict[str, Any], command: str) -> str:
    """The instance as a file, with the command it stands for."""
    import yaml

    text = yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
    return f"# {command}\n{text}"
