"""The global coefficients as a file, and what they predict of one deployment, with an interval.

The interval says what was never measured. Rows were left out by workload, by LLM, by GPU and by engine; the ratios
measured/predicted of each leave-out give a quantile, and a prediction takes the widest that applies: of what is unseen
in the deployment at hand, or of an unseen workload where LLM, GPU and engine were all measured together. A few rows of
one's own pull the coefficients (`engines.own`): where LLM, GPU and engine are theirs, the interval is theirs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field, field_validator, model_validator

from optmodels import catalog
from optmodels.catalog import spelling
from optmodels.catalog.files import gpu_file, llm_file
from optmodels.catalog.spelling import llm_of
from optmodels.catalog.types import Entry
from optmodels.errors import Mistakes, did_you_mean, one_of
from optmodels.latency.calibration import MOST, Quantiles, quantile_factor
from optmodels.latency.engines.fit import Fitted
from optmodels.latency.engines.terms import (
    FIRST_TOKEN,
    MEASURED_AS,
    STEP,
    TRENDS,
    Deployment,
    Loads,
    first_token_terms,
    step_terms,
)
from optmodels.latency.fit.document import Errors, Range
from optmodels.latency.fit.loads import Values
from optmodels.latency.memory import kv_tokens
from optmodels.latency.work import Precision, layer_work

Array = npt.NDArray[np.float64]
LeftOut = Literal["workload", "llm", "gpu", "engine", "own_3", "own_5", "own_10"]
LEAST_OWN: dict[LeftOut, int] = {"own_10": 10, "own_5": 5, "own_3": 3}  # own rows over three workloads or more
OWN_WORKLOADS = 3
SPREAD_BY = "engine|llm"
MACHINE_GPUS = 8  # of most machines
GROUPINGS = (
    "engine", "gpu", "llm", "precision", "gpu|precision", "engine|llm", "llm|precision", "llm|gpu", "version",
    "configuration",
)  # fmt: skip


def _grouping(name: str) -> str:
    if name not in GROUPINGS:
        raise ValueError(f"one of {', '.join(GROUPINGS)}")
    return name


Grouping = Annotated[str, AfterValidator(_grouping)]
Positive = Annotated[float, Field(gt=0, le=MOST)]  # a coefficient, or a ratio measured/predicted
Logarithm = Annotated[float, Field(ge=-50, le=50)]  # of a factor, or its slope


class EngineTarget(Entry):
    """Coefficients of one target (`fit.Fitted`), and how wrong they were of what was left out of the fit."""

    coefficients: dict[str, Positive]
    adjustments: dict[Grouping, dict[str, dict[str, Logarithm]]]
    factors: dict[Grouping, dict[str, Logarithm]]
    trends: dict[Grouping, dict[str, dict[str, Logarithm]]] = {}
    left_out: dict[LeftOut, Errors] = Field(
        description="errors on rows of a workload, LLM, GPU or engine left out; own_n: of an LLM of which n were used"
    )
    residual_quantiles: dict[LeftOut, Quantiles] = Field(
        description="level → quantile of measured/predicted; of workloads to the power 1/`spread`"
    )
    spread: dict[str, Annotated[float, Field(gt=0, le=10)]] = Field(
        default={}, description="engine|llm → how far its ratios of unseen workloads lie apart, in multiples of all"
    )

    @model_validator(mode="after")
    def _how_wrong_it_may_be(self) -> EngineTarget:
        for what in get_args(LeftOut):
            if what not in self.residual_quantiles or what not in self.left_out:
                raise ValueError(f"left_out and residual_quantiles of every kind of row left out: {what} is missing")
            if "0.9" not in self.residual_quantiles[what]:
                raise ValueError(f"a residual quantile of {what} at 0.9")
        return self

    def of(self, deployment: Deployment) -> EngineTarget:
        """With the quantiles of unseen workloads as far apart as those of this engine and LLM were."""
        power = self.spread.get(labels(deployment)[SPREAD_BY], 1.0)
        own = {level: q**power for level, q in self.residual_quantiles["workload"].items()}
        return self.model_copy(update={"residual_quantiles": {**self.residual_quantiles, "workload": own}})

    @property
    def fitted(self) -> Fitted:
        """As the fit gives it."""
        return Fitted(self.coefficients, self.adjustments, self.factors, self.trends)


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


class EngineModel(Entry):
    """Global coefficients over engines, GPUs and LLMs."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    title: str
    source: str
    date: str
    rows: int
    rows_left_out: dict[str, int] = Field(description="reason → rows of the source that were not fitted")
    measured: dict[Literal["engine", "gpu", "llm", "precision"], tuple[str, ...]]
    together: tuple[tuple[str, str, str], ...] = Field(
        description="(engine, LLM, GPU) measured with one another, often enough"
    )
    precisions: dict[str, tuple[str, ...]] = Field(description="LLM → precisions it was measured at")
    domain: dict[str, Range]
    targets: dict[Literal["tpot_s", "ttft_s"], EngineTarget]
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

    @model_validator(mode="after")
    def _whole(self) -> EngineModel:
        for key, found, kinds in (("targets", self.targets, ("tpot_s", "ttft_s")),
                                  ("measured", self.measured, ("engine", "gpu", "llm", "precision"))):  # fmt: skip
            if missing := [k for k in kinds if k not in found]:
                raise ValueError(f"{' and '.join(kinds)} in {key}: {missing[0]} is missing")
        if missing := [llm for llm in self.measured["llm"] if llm not in self.precisions]:
            raise ValueError(f"the precisions of every measured LLM: those of {missing[0][:40]!r} are missing")
        return self

    @property
    def own_deployment(self) -> dict[str, str]:
        """Engine, GPU, LLM and precision of one's own rows, as far as all rows have the same."""
        found = {what: {getattr(o, what) for o in self.own} for what in ("engine", "gpu", "llm", "precision")}
        return {what: values.pop() for what, values in found.items() if len(values) == 1}

    def at(self, deployment: Deployment) -> Deployed:
        """What is predicted of one deployment."""
        return Deployed(self, deployment)


def labels(d: Deployment) -> dict[str, str]:
    """The deployment's level in every grouping of the fit.

    Weights of few bits whose products a GPU computes in 16 bits run other kernels than where it has their own peak.
    """
    llm, gpu, precision = d.llm_name, d.gpu_name, d.measured_as
    if not d.own_peak:
        precision += " in 16 bits"
    return {
        "engine": d.engine, "gpu": gpu, "llm": llm, "precision": precision, "gpu|precision": f"{gpu}|{precision}",
        "engine|llm": f"{d.engine}|{llm}", "llm|precision": f"{llm}|{d.measured_as}", "llm|gpu": f"{llm}|{gpu}",
        "version": f"{d.engine}|{d.version}|{llm}",
        "configuration": f"{d.engine}|{llm}|{gpu}|{d.measured_as}|{d.gpus}/{d.attention_ranks}",
    }  # fmt: skip


class Deployed:
    """An engine model of one deployment: predicts as a `LatencyModel` of served requests does."""

    measured: Literal["served"] = "served"

    def __init__(self, model: EngineModel, deployment: Deployment) -> None:
        self.source, self.deployment = model, deployment
        self.model = model.title
        self.targets = {name: target.of(deployment) for name, target in model.targets.items()}

    @property
    def unseen(self) -> tuple[LeftOut, ...]:
        """What of the deployment was never measured; the workload, or how many rows of one's own, where everything was.

        Where LLM, GPU and engine were measured, but never with one another: the one without which the others were. An
        LLM at another precision than measured is another LLM.
        """
        d = self.deployment
        names: dict[LeftOut, str] = {"llm": d.llm_name, "gpu": d.gpu_name, "engine": d.engine}
        found = tuple(what for what, name in names.items() if name not in self.source.measured[what])  # type: ignore[index]
        if "llm" not in found and d.measured_as not in self.source.precisions[d.llm_name]:
            found = ("llm", *found)
        if found:
            return found
        if (d.engine, d.llm_name, d.gpu_name) in self.source.together:
            return (self._own() or "workload",)
        pairs: tuple[tuple[LeftOut, int], ...] = (("gpu", 2), ("llm", 1), ("engine", 0))
        mine = (d.engine, d.llm_name, d.gpu_name)
        for what, i in pairs:
            if any(t[:i] + t[i + 1 :] == mine[:i] + mine[i + 1 :] for t in self.source.together):
                return (what,)
        return tuple(names)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What no interval covers, a sentence each: GPUs of another maker than any measured, links between machines."""
        d, said = self.deployment, []
        known = catalog.gpus()
        maker, *makers = (
            gpu.title.partition(" ")[0]
            for gpu in (d.gpu, *(known[g] for g in self.source.measured["gpu"] if g in known))
        )
        if maker and maker not in makers:
            said.append(
                f"nothing of {maker} was measured: the interval is of GPUs of {', '.join(sorted({*makers}))} and says "
                f"little of {d.gpu_name}"
            )
        if d.gpus > MACHINE_GPUS:
            said.append(
                f"{d.gpus} GPUs exchange as over the link inside a machine ({d.gpu.link_bytes_per_s / 1e9:g} GB/s each "
                "way): between machines they are slower, which is not modelled"
            )
        return tuple(said)

    @property
    def transfer(self) -> tuple[LeftOut, ...]:
        """What of the LLM, the GPU and the engine was never measured with the rest; empty where all were."""
        return tuple(what for what in self.unseen if what in ("llm", "gpu", "engine"))

    def kv_tokens(self, request_tokens: float) -> float:
        """Tokens of KV cache that its GPUs hold by the engines' own formula (`latency.memory`); 0: no room for weights.

        Args:
            request_tokens: length of the requests, which matters where layers have windows or recurrent states.
        """
        d = self.deployment
        work = layer_work(d.llm, d.precision, d.kv_precision)
        tp = d.gpus // d.attention_ranks
        vram = d.gpu.vram_gib * 2.0**30
        return kv_tokens(work, vram, tp, attention_ranks=d.attention_ranks, request_tokens=request_tokens)

    def _own(self) -> LeftOut | None:
        """The interval of rows of one's own, where there are enough of a deployment that nobody else measured."""
        d = self.deployment
        mine = (d.engine, d.llm_name, d.gpu_name, d.measured_as)
        own = (o for o in self.source.own if o.suffice and not o.known)
        return own_interval(max((o.rows for o in own if (o.engine, o.llm, o.gpu, o.precision) == mine), default=0))

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
        level = {k: [v] for k, v in labels(self.deployment).items()}
        found = self.targets["tpot_s"].fitted.predict(step_terms(self.deployment, loads), level)
        if name == "ttft_s":
            found = self.targets["ttft_s"].fitted.predict(first_token_terms(self.deployment, loads, found), level)
        quantiles = self.targets[name].residual_quantiles  # type: ignore[index]
        return found * max(quantile_factor(quantiles[what], safety) for what in self.unseen)

    def extrapolation(self, values: Values) -> tuple[str, ...]:
        """One sentence on the interval and one for each column that leaves what was measured."""
        d, said = self.deployment, []
        for target, what in (("tpot_s", "TPOT"), ("ttft_s", "TTFT")):
            t = self.targets[target]  # type: ignore[index]
            worst = max(self.unseen, key=lambda what: t.residual_quantiles[what]["0.9"])
            where = f"where the {worst} was left out of the fit"
            if worst in LEAST_OWN:
                where = f"pulled by {LEAST_OWN[worst]} rows of one's own or more; of an LLM measured so"
            said.append(
                f"{what} predicted, not measured: {d.llm_name} on {d.gpu_name} under {d.engine}; {where} "
                f"the median error was {t.left_out[worst].p50:.0%}, and 9 of 10 measurements "
                f"stayed below {t.residual_quantiles[worst]['0.9']:.2f}× the prediction"
            )
        for what in ("llm", "gpu", "engine"):
            if what in self.unseen:
                named = {"llm": d.llm_name, "gpu": d.gpu_name, "engine": d.engine}[what]
                known = self.source.measured[what]  # type: ignore[index]
                if named not in known:
                    said.append(f"{what} {named} was never measured: physics alone (measured: {', '.join(known)})")
        said += self.caveats
        for column, (low, high) in self.source.domain.items():
            if column in values and (np.min(values[column]) < low or np.max(values[column]) > high):
                said.append(f"{column} from {np.min(values[column]):g} to {np.max(values[column]):g} leaves the "
                            f"measured range {low:g} to {high:g}: an extrapolation")  # fmt: skip
        return tuple(said)


def own_interval(rows: int) -> LeftOut | None:
    """The interval of so many rows of one's own over `OWN_WORKLOADS` workloads; None: too few for one."""
    return next((what for what, least in LEAST_OWN.items() if rows >= least), None)


def is_engine_model(path: Path) -> bool:
    """Whether a file is one of engines' coefficients, rather than a model of one deployment's latencies."""
    from optmodels.io.read import read_document

    return path.is_file() and "together" in read_document(path)[0]


def read_engine_model(name: str | Path = "default") -> EngineModel:
    """The shipped global coefficients by their name, or those of a file that `calibrate --model default` wrote.

    Raises:
        InputError: every problem with the file.
    """
    if isinstance(name, Path):
        from optmodels.io.read import read_model

        return read_model(name, EngineModel)
    return EngineModel.model_validate(catalog.engine_model_document(name))


def deployment(
    engine: str | None, gpu: str | None, llm: str | None, precision: str = "fp16", tp: int = 1, attention_ranks: int = 1
) -> Deployment:
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
        ("--llm", llm, sorted(llms), FILE_TOO), ("--precision", precision, get_args(Precision), ""),
    ):  # fmt: skip
        if name not in known:
            nearest = did_you_mean(str(name).rpartition("/")[2], known, most=3) if name else None
            wrong.add(option, name, f"one of {', '.join(known)}{more}", nearest)
    wrong.raise_any()
    assert engine is not None and gpu is not None and llm is not None
    cache: Literal["fp8", "fp16"] = "fp8" if MEASURED_AS.get(precision, precision) in ("fp8", "fp4") else "fp16"
    return Deployment(
        llms[llm], llm, gpus[gpu], gpu,
        engine, cast(Precision, precision), cache, tp * attention_ranks, attention_ranks,
    )  # fmt: skip


FILE_TOO = ", a config.json (LLMs), or a YAML file with the keys of such an entry"


def deployed(
    engine: str | None, gpu: str | None, llm: str | None, precision: str = "fp16", tp: int = 1,
    attention_ranks: int = 1, model: EngineModel | None = None,
) -> Deployed:  # fmt: skip
    """The shipped coefficients, or those of a file, at a `deployment`."""
    return (model or read_engine_model()).at(deployment(engine, gpu, llm, precision, tp, attention_ranks))
