"""The global coefficients as a file, and their predictions for one deployment, with an interval.

The file lists the groups (engine, LLM, GPU, precision) that were measured. The interval of a deployment follows from
its common parts with them (`engines.interval`). A few rows of one's own pull the coefficients (`engines.own`); the
interval of their group is the interval of groups with as many known rows.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, computed_field, field_validator, model_validator

from optmodels import catalog
from optmodels.arrays import Array
from optmodels.catalog import spelling
from optmodels.catalog.files import gpu_file, llm_file
from optmodels.catalog.spelling import llm_of
from optmodels.catalog.types import Entry, Gpu
from optmodels.errors import Mistakes, did_you_mean, one_of
from optmodels.latency.calibration import MOST, Quantiles, quantile_factor
from optmodels.latency.engines.fit import Fitted
from optmodels.latency.engines.interval import PAIRS, PARTS, Group, Interval, simplest, unseen_levels
from optmodels.latency.engines.terms import (
    FIRST_TOKEN,
    MEASURED_AS,
    STEP,
    TRENDS,
    Loads,
    ModelInstance,
    first_token_terms,
    step_terms,
)
from optmodels.latency.fit.document import Range
from optmodels.latency.fit.loads import Values
from optmodels.latency.memory import kv_tokens
from optmodels.latency.steps import ToMeasure, never_measured
from optmodels.latency.work import Precision, layer_work

OwnKind = Literal["own_3", "own_5", "own_10"]
LeftOut = Literal[
    "known", "gpu", "llm", "engine", "precision", "pair", "own_3", "own_5", "own_10",
    "own_3_chosen", "own_5_chosen", "own_10_chosen",
]  # fmt: skip
KINDS: tuple[LeftOut, ...] = ("known", "gpu", "llm", "engine", "precision", "pair")
LEAST_OWN: dict[OwnKind, int] = {"own_10": 10, "own_5": 5, "own_3": 3}  # own rows over three workloads or more
OWN_WORKLOADS = 3
RECOMMENDED: OwnKind = "own_5"  # rows of one's own
MACHINE_GPUS = 8  # of most machines
GROUPINGS = (
    "engine", "gpu", "llm", "precision", "gpu|precision", "engine|llm", "llm|precision", "llm|gpu", "version",
    "configuration", "maker", "chip",
)  # fmt: skip


def _grouping(name: str) -> str:
    if name not in GROUPINGS:
        raise ValueError(f"one of {', '.join(GROUPINGS)}")
    return name


Grouping = Annotated[str, AfterValidator(_grouping)]
Positive = Annotated[float, Field(gt=0, le=MOST)]  # a coefficient, or a ratio measured/predicted
Logarithm = Annotated[float, Field(ge=-50, le=50)]  # of a factor, or its slope


class Judged(Entry):
    """Errors and coverage on groups that were left out of the fit, with equal weight for groups."""

    groups: int
    rows: int
    median: float = Field(description="median of |predicted/measured − 1|")
    signed: float = Field(description="median of predicted/measured − 1")
    covered: float = Field(description="share of measurements below the prediction at safety 0.9")
    factor: float = Field(description="median factor of safety 0.9")


class EngineTarget(Entry):
    """Coefficients of one target (`fit.Fitted`), and their errors on rows left out of the fit."""

    coefficients: dict[str, Positive]
    adjustments: dict[Grouping, dict[str, dict[str, Logarithm]]]
    factors: dict[Grouping, dict[str, Logarithm]]
    trends: dict[Grouping, dict[str, dict[str, Logarithm]]] = {}
    reach: dict[Grouping, dict[str, dict[str, tuple[Logarithm, Logarithm]]]] = Field(
        default={}, description="least and most that was measured of a trend's variable; beyond them it is level"
    )
    interval: Interval
    left_out: dict[LeftOut, Judged] = Field(
        description="known: a workload of a measured group; pair: two parts never together; own_n: an LLM of which n "
        "rows were known, drawn at random or chosen by `rows-to-measure`"
    )
    residual_quantiles: dict[OwnKind, Quantiles] = Field(
        description="level → quantile of measured/predicted of groups of which n rows were known"
    )

    @model_validator(mode="after")
    def _how_wrong_it_may_be(self) -> EngineTarget:
        if missing := [what for what in KINDS if what not in self.left_out]:
            raise ValueError(f"left_out of every kind: {missing[0]} is missing")
        for what in get_args(OwnKind):
            if "0.9" not in self.residual_quantiles.get(what, {}):
                raise ValueError(f"a residual quantile of {what} at 0.9")
        return self

    @property
    def fitted(self) -> Fitted:
        """As the fit gives it."""
        return Fitted(self.coefficients, self.adjustments, self.factors, self.trends, self.reach)


class MakerRows(Entry):
    """Rows that adjusted the coefficients for one maker's GPUs, and the errors on rows left out."""

    maker: str = Field(description="first word of the GPUs' titles")
    rows: int
    source: str
    date: str
    left_out: dict[Literal["tpot_s", "ttft_s"], dict[LeftOut, Judged]] = Field(
        description="known: a workload; llm: where one LLM alone was measured, the coefficients without these rows"
    )


class OwnRows(Entry):
    """Rows of one's own that pulled the coefficients."""

    engine: str
    llm: str
    gpu: str
    precision: str
    rows: int
    workloads: int
    known: bool = Field(description="whether others' rows of it were fitted: its interval stays theirs")
    source: str = ""
    date: str = ""

    @property
    def suffice(self) -> bool:
        """Whether they narrow the interval; fewer pull, but count as unmeasured."""
        return self.rows >= min(LEAST_OWN.values()) and self.workloads >= OWN_WORKLOADS


def _with_derived(schema: dict[str, Any]) -> None:
    """`never_together`, which documents have and files may have."""
    names = {"type": "array", "items": {"type": "string"}}
    schema["properties"]["never_together"] = {
        "type": "object", "additionalProperties": names, "readOnly": True,
        "description": "pair of parts → names, each measured, but never with one another",
    }  # fmt: skip


class EngineModel(Entry):
    """Global coefficients over engines, GPUs and LLMs."""

    model_config = ConfigDict(json_schema_extra=_with_derived)

    schema_version: Literal[1] = Field(default=1, alias="schema")
    title: str
    source: str
    date: str
    rows: int
    rows_left_out: dict[str, int] = Field(description="reason → rows of the source that were not fitted")
    together: tuple[Group, ...] = Field(
        min_length=1, description="(engine, LLM, GPU, precision) measured with one another, often enough"
    )
    domain: dict[str, Range]
    targets: dict[Literal["tpot_s", "ttft_s"], EngineTarget]
    makers: tuple[MakerRows, ...] = ()
    own: tuple[OwnRows, ...] = ()

    @property
    def said(self) -> str:
        """Title, number of rows, source and date in a sentence, and the same of rows of one's own."""
        own = [
            f"; own rows: {o.rows} of {o.llm} {o.precision} on {o.gpu} under {o.engine}"
            f" ({', '.join(filter(None, (o.source, o.date)))})"
            for o in self.own
        ]
        return "".join((f"{self.title}, {self.rows:,} rows: {self.source}, {self.date}", *own))

    @field_validator("targets")
    @classmethod
    def _known_terms(cls, targets: dict[str, EngineTarget]) -> dict[str, EngineTarget]:
        for name, known in (("tpot_s", STEP), ("ttft_s", FIRST_TOKEN)):
            if name in targets:
                found = targets[name]
                trends = {t for levels in found.trends.values() for each in levels.values() for t in each}
                if unknown := sorted({*found.coefficients} - {*known}) + sorted(trends - {*TRENDS}):
                    raise ValueError(f"{name}: terms and trends by their names, not {unknown[0]!r}")
        return targets

    @model_validator(mode="before")
    @classmethod
    def _derived(cls, given: Any) -> Any:
        if isinstance(given, dict):  # `never_together` follows from `together`, whatever a file states
            return {k: v for k, v in given.items() if k != "never_together"}
        return given

    @model_validator(mode="after")
    def _both_targets(self) -> EngineModel:
        if missing := [k for k in ("tpot_s", "ttft_s") if k not in self.targets]:
            raise ValueError(f"tpot_s and ttft_s in targets: {missing[0]} is missing")
        return self

    @property
    def measured(self) -> dict[str, tuple[str, ...]]:
        """Part of `PARTS` → names that were measured."""
        return {what: tuple(sorted({g[i] for g in self.together})) for i, what in enumerate(PARTS)}

    @computed_field(description="pair of parts → names, each measured, but never with one another")  # type: ignore[prop-decorator]
    @property
    def never_together(self) -> dict[str, tuple[str, ...]]:
        """Pair of parts → names that were measured, but never with one another."""
        found, measured = {}, self.measured
        for pair in PAIRS:
            a, b = pair.split("|")
            places = PARTS.index(a), PARTS.index(b)
            known = {(g[places[0]], g[places[1]]) for g in self.together}
            found[pair] = tuple(f"{x}|{y}" for x in measured[a] for y in measured[b] if (x, y) not in known)
        return found

    @property
    def adjusted(self) -> dict[str, MakerRows]:
        """Makers whose GPUs have adjustments of their own."""
        return {m.maker: m for m in self.makers}

    @property
    def makers_measured(self) -> dict[str, list[Group]]:
        """Maker → groups that were measured on its GPUs, as far as the catalogue has these."""
        known, found = catalog.gpus(), dict[str, list[Group]]()
        for g in self.together:
            if g[PARTS.index("gpu")] in known:
                found.setdefault(maker(known[g[PARTS.index("gpu")]]), []).append(g)
        return found

    def measurements(self, name: str, gpu: Gpu) -> str:
        """What of a GPU was measured, in words: engines, kernels, other GPUs of its maker, or nothing.

        Args:
            name: name of the GPU in the groups.
            gpu: its data.
        """
        engines = sorted({g[0] for g in self.together if g[2] == name})
        if engines:
            return f"measured under {', '.join(engines)}"
        kernels = self.targets["tpot_s"].adjustments.get("gpu|precision", {})
        if any(level.startswith(f"{name}|") for level in kernels):
            return "never measured (single kernels of vLLM)"
        others = ", ".join(sorted({g[2] for g in self.makers_measured.get(maker(gpu), [])}))
        return f"never measured ({f'coefficients of {others}' if others else f'nothing of {maker(gpu)}'})"

    @property
    def own_deployment(self) -> dict[str, str]:
        """Engine, GPU, LLM and precision of one's own rows, as far as all rows have the same."""
        found = {what: {getattr(o, what) for o in self.own} for what in ("engine", "gpu", "llm", "precision")}
        return {what: values.pop() for what, values in found.items() if len(values) == 1}

    def at(self, deployment: ModelInstance) -> Deployed:
        """Predictions for one deployment."""
        return Deployed(self, deployment)


def maker(gpu: Gpu) -> str:
    """Who makes a GPU, by the first word of its title."""
    return gpu.title.partition(" ")[0]


def chip(gpu: Gpu) -> str:
    """The processor of a GPU: GPUs of one maker with the same 16-bit peak have the same one, with other memory."""
    return f"{maker(gpu)} {float(gpu.fp16_flops or 0.0) / 1e12:g} TFLOP/s"


def labels(d: ModelInstance) -> dict[str, str]:
    """The deployment's level in every grouping of the fit.

    Weights of few bits whose products a GPU computes in 16 bits run other kernels than where it has their own peak.
    """
    llm, gpu, precision = d.llm_name, d.gpu_name, d.measured_as
    if not d.own_peak:
        precision += " in 16 bits"
    return {
        "maker": maker(d.gpu), "chip": chip(d.gpu), "engine": d.engine, "gpu": gpu, "llm": llm, "precision": precision,
        "gpu|precision": f"{gpu}|{precision}",
        "engine|llm": f"{d.engine}|{llm}", "llm|precision": f"{llm}|{d.measured_as}", "llm|gpu": f"{llm}|{gpu}",
        "version": f"{d.engine}|{d.version}|{llm}",
        "configuration": f"{d.engine}|{llm}|{gpu}|{d.measured_as}|{d.gpus}/{d.attention_ranks}",
    }  # fmt: skip


class Deployed:
    """An engine model of one deployment: predicts as a `LatencyModel` of served requests does."""

    measured: Literal["served"] = "served"

    def __init__(self, model: EngineModel, deployment: ModelInstance) -> None:
        self.source, self.deployment = model, deployment
        self.model = model.title
        self.targets = model.targets
        parts = {"engine": deployment.engine, "llm": deployment.llm_name, "gpu": deployment.gpu_name,
                 "precision": deployment.measured_as}  # fmt: skip
        self.levels = unseen_levels(parts, model.together)
        self.labels = {k: [v] for k, v in labels(deployment).items()}

    @property
    def transfer(self) -> tuple[str, ...]:
        """Unmeasured parts of the deployment, or pairs of parts; empty where its group was."""
        return simplest(self.levels)

    @property
    def said(self) -> str:
        """The model's title, rows and sources in a sentence, with the rows of the GPU's maker where it has its own."""
        adjusted = self.source.adjusted.get(maker(self.deployment.gpu))
        if adjusted is None:
            return self.source.said
        a = adjusted
        return f"{self.source.said}; adjusted for {a.maker} by {a.rows:,} rows: {a.source}, {a.date}"

    @property
    def caveats(self) -> tuple[str, ...]:
        """Causes of error that no interval covers, a sentence each: an unmeasured maker of GPUs, links."""
        d, said = self.deployment, []
        makers = self.source.makers_measured
        mine, others = makers.pop(maker(d.gpu), []), [m for m in makers if m not in self.source.adjusted]
        if not mine and maker(d.gpu):
            said.append(
                f"nothing of {maker(d.gpu)} was measured: the interval is of GPUs of {' and '.join(sorted(others))} "
                f"and says little of {d.gpu_name}"
            )
        elif maker(d.gpu) in self.source.adjusted:
            named = (d.engine, d.llm_name, d.gpu_name, d.measured_as)
            places = [i for i in (0, 1, 3) if named[i] not in {g[i] for g in mine}]
            if missing := [named[i] for i in places if named[i] in self.source.measured[PARTS[i]]]:
                only = ", ".join(sorted({f"{g[1]} in {g[3]} under {g[0]}" for g in mine}))
                said.append(
                    f"of {maker(d.gpu)}'s GPUs only {only} was measured, never {' and '.join(missing)}: "
                    f"the interval is of GPUs of {' and '.join(sorted(others))}"
                )
        if d.gpus > MACHINE_GPUS:
            said.append(
                f"{d.gpus} GPUs exchange as over the link inside a machine ({d.gpu.link_bytes_per_s / 1e9:g} GB/s each "
                "way): between machines they are slower, which is not modelled"
            )
        return tuple(said)

    def kv_tokens(self, request_tokens: float) -> float:
        """Tokens of KV cache that its GPUs hold by the engines' own formula (`latency.memory`); 0: no room for weights.

        Args:
            request_tokens: length of the requests, which matters where layers have windows or recurrent states.
        """
        d = self.deployment
        work = layer_work(d.llm, d.precision, d.kv_precision)
        tp = d.gpus // d.attention_ranks
        vram = d.gpu.usable_gib * 2.0**30
        return kv_tokens(work, vram, tp, attention_ranks=d.attention_ranks, request_tokens=request_tokens)

    @property
    def own(self) -> OwnKind | None:
        """The interval of rows of one's own, where there are enough of a group that was not measured without them."""
        d = self.deployment
        mine = (d.engine, d.llm_name, d.gpu_name, d.measured_as)
        own = (o for o in self.source.own if o.suffice and not o.known)
        return own_interval(max((o.rows for o in own if (o.engine, o.llm, o.gpu, o.precision) == mine), default=0))

    @property
    def to_measure(self) -> ToMeasure | None:
        """The rows of one's own that narrow the interval; None where the group was measured."""
        if not self.levels or self.own is not None:
            return None
        d = self.deployment
        tpot, ttft = (self.targets[t].residual_quantiles[RECOMMENDED]["0.9"] for t in ("tpot_s", "ttft_s"))
        return ToMeasure(
            d.engine, d.gpu_name, d.llm_name, d.precision, d.gpus // d.attention_ranks, d.attention_ranks,
            LEAST_OWN[RECOMMENDED], tpot, ttft,
        )  # fmt: skip

    def factors(self, target: str, more: Collection[str] = ()) -> dict[str, float]:
        """Safety level → quantile of measured/predicted.

        Args:
            target: ``tpot_s`` or ``ttft_s``.
            more: further levels that count as unseen.
        """
        of = self.targets[target]  # type: ignore[index]
        if self.own is not None and not more:
            return of.residual_quantiles[self.own]
        return of.interval.factors({*self.levels, *more})

    def predict(self, values: Values, target: str | None = None, *, safety: float | None = None) -> Array:
        """Latency in seconds, (n,).

        Args:
            values: `concurrency`, `input_tokens` and `output_tokens`, (n,) each.
            target: ``tpot_s`` or ``ttft_s``.
            safety: probability that a fresh measurement stays below, or None for the central prediction.

        Raises:
            InputError: no such target, a safety level the measurements do not support.
        """
        name = target or "tpot_s"
        one_of("target", name, self.targets)
        loads = Loads(values["concurrency"], values["input_tokens"], values["output_tokens"])
        found = self.targets["tpot_s"].fitted.predict(step_terms(self.deployment, loads), self.labels)
        if name == "ttft_s":
            found = self.targets["ttft_s"].fitted.predict(first_token_terms(self.deployment, loads, found), self.labels)
        return found * quantile_factor(self.factors(name), safety)

    def extrapolation(self, values: Values) -> tuple[str, ...]:
        """One sentence on the interval and one for each column that leaves the measured range."""
        d, said = self.deployment, []
        where = f"{d.llm_name} in {d.measured_as} on {d.gpu_name} under {d.engine}"
        for target, what in (("tpot_s", "TPOT"), ("ttft_s", "TTFT")):
            above = self.factors(target)["0.9"]
            if self.own is not None:
                how = f"9 of 10 measurements stay below {above:.2f}× the prediction of {LEAST_OWN[self.own]} own rows"
            elif self.levels:
                how = f"{never_measured(self.transfer)}: it may be {above:.2f} times as long (9 of 10 stay below)"
            else:
                how = f"measured together: 9 of 10 measurements stay below {above:.2f}× the prediction"
            said.append(f"{what} predicted, not measured: {where}; {how}")
        for what in ("llm", "gpu", "engine"):
            if what in self.levels:
                named = {"llm": d.llm_name, "gpu": d.gpu_name, "engine": d.engine}[what]
                known = ", ".join(self.source.measured[what])
                said.append(f"{what} {named} was never measured: physics alone (measured: {known})")
        said += self.caveats
        for column, (low, high) in self.source.domain.items():
            if column in values and (np.min(values[column]) < low or np.max(values[column]) > high):
                said.append(f"{column} from {np.min(values[column]):g} to {np.max(values[column]):g} leaves the "
                            f"measured range {low:g} to {high:g}: an extrapolation")  # fmt: skip
        return tuple(said)


def own_interval(rows: int) -> OwnKind | None:
    """The interval of this many rows of one's own over `OWN_WORKLOADS` workloads; None: too few for one."""
    return next((what for what, least in LEAST_OWN.items() if rows >= least), None)


def is_engine_model(path: Path) -> bool:
    """Whether a file is one of engines' coefficients, rather than a model of one deployment's latencies."""
    from optmodels.io.read import read_document

    return path.is_file() and "together" in read_document(path)[0]


def read_engine_model(name: str | Path = "default") -> EngineModel:
    """The shipped global coefficients by their name, or the coefficients of a file that `calibrate --form default`
    wrote.

    Raises:
        InputError: every problem with the file.
    """
    if isinstance(name, Path):
        from optmodels.io.read import read_model

        return read_model(name, EngineModel)
    return EngineModel.model_validate(catalog.engine_model_document(name))


def deployment(
    engine: str | None, gpu: str | None, llm: str | None, precision: str = "fp16", tp: int = 1, attention_ranks: int = 1
) -> ModelInstance:
    """A deployment of catalogue entries, or of a YAML file's LLM or GPU, under an engine with shipped coefficients.

    The cache has 8 bits where the weights have 8 or 4, as the rows they are fitted to are taken to have.

    Raises:
        InputError: every name that is missing or unknown; every mistake in a file.
    """
    wrong = Mistakes()
    own, device = llm_file(llm), gpu_file(gpu)
    if own is not None and own[2] is not None and precision == "fp16":
        precision = own[2]
    llm, gpu = (own[0] if own else llm and (llm_of(llm) or llm)), (device[0] if device else gpu)
    gpu, engine, precision = spelling.gpu(gpu), spelling.engine(engine), spelling.precision(precision)
    llms = catalog.llms() | ({own[0]: own[1]} if own else {})
    gpus = catalog.gpus() | ({device[0]: device[1]} if device else {})
    for option, name, known, more in (
        ("--engine", engine, read_engine_model().measured["engine"], ""), ("--gpu", gpu, sorted(gpus), FILE_TOO),
        ("--model", llm, sorted(llms), FILE_TOO), ("--precision", precision, get_args(Precision), ""),
    ):  # fmt: skip
        if name not in known:
            nearest = did_you_mean(str(name).rpartition("/")[2], known, most=3) if name else None
            wrong.add(option, name, f"one of {', '.join(known)}{more}", nearest)
    wrong.raise_any()
    assert engine is not None and gpu is not None and llm is not None
    cache: Literal["fp8", "fp16"] = "fp8" if MEASURED_AS.get(precision, precision) in ("fp8", "fp4") else "fp16"
    return ModelInstance(
        llms[llm], llm, gpus[gpu], gpu,
        engine, cast(Precision, precision), cache, tp * attention_ranks, attention_ranks,
    )  # fmt: skip


FILE_TOO = ", a config.json (LLMs), or a YAML file with the keys of such an entry"


def deployed(
    engine: str | None, gpu: str | None, llm: str | None, precision: str = "fp16", tp: int = 1,
    attention_ranks: int = 1, model: EngineModel | None = None,
) -> Deployed:  # fmt: skip
    """The shipped coefficients, or a file's, at a `deployment`."""
    return (model or read_engine_model()).at(deployment(engine, gpu, llm, precision, tp, attention_ranks))
