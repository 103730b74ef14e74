"""Instance schema of the cost-efficiency problem (LLM-Pilot §III): one workload, one pool, one best deployment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from optmodels.batch.static import BatchCase, BatchMix, StaticBatch
from optmodels.catalog.types import Entry
from optmodels.engine.continuous import EngineLimits, Percentile, seconds_and_quantile
from optmodels.engine.costs import ONE_OF_STATIC, ModelOnEngines, check_speculation, written_out
from optmodels.engine.lengths import (
    ALIKE_OF_STATIC,
    Length,
    LengthsOfTrace,
    in_words,
    mean_tokens,
    shortest_tokens,
)
from optmodels.engine.spelling import with_engines
from optmodels.errors import InputError, Mistake, Mistakes
from optmodels.latency.memory import runtime_gib
from optmodels.latency.resolve import read_source
from optmodels.limits import Limit
from optmodels.traces.buckets import lengths_of
from optmodels.units import BudgetUsdPerHour

Reading = Literal["capped", "uncapped"]


class AoPair(Entry):
    """A main machine and its attention-offload machine."""

    main: str = Field(description="machine of the pool for decoding")
    ao: str = Field(description="machine of the pool for offloaded attention")


class ScaleUp(Entry):
    """InferSave's base machine and the one it scales up to."""

    base: str = Field(description="machine of the pool to start from")
    plus: str | None = Field(default=None, description="machine of the pool to scale up to")


class Baselines(Entry):
    """Machines that the fixed baselines of LP §V-A4 use; without them each has a rule of its own."""

    high_end: str | None = Field(
        default=None, description="machine of the pool for method high_end; default: the fastest"
    )
    kvo_disk: str | None = Field(
        default=None, description="machine of the pool for method kvo_disk; default: the least expensive that fits"
    )
    ao_cluster: AoPair | None = Field(default=None, description="machines of method ao_cluster")
    infersave: ScaleUp | None = Field(default=None, description="machines of methods infersave and infersave_plus")


ROUNDING = 1e-12  # relative, of sums of prices
APART = "formulation: fleet, which plans prefill and decode apart; cost efficiency plans engines that do both"
WRITTEN_OUT = "python -m formulations.cost_efficiency.as_fleet FILE prints that fleet problem"


class CostEfficiency(StaticBatch):
    """One workload, its SLO and budget, a pool of machines: find the deployment with the best cost efficiency."""

    formulation: Literal["cost_efficiency"] = Field(description="formulation of the file")
    budget_usd_per_hour: Annotated[BudgetUsdPerHour | None, Limit("budget", "most", "USD/h")] = Field(
        default=None, description="most USD/h for all machines together"
    )
    objective: Reading = Field(
        default="capped",
        description="capped: least expensive plan that meets the SLO (LP 9); uncapped: most tokens per dollar",
    )
    baselines: Baselines = Baselines()
    alternatives: int = Field(
        default=3, strict=True, ge=0, le=100, description="number of further distinct plans to show"
    )
    serving: Literal["static", "continuous"] = Field(
        description="continuous: engines such as vLLM, with `batch` requests always in flight; static: batches that "
        "start and end together, as in LLM-Pilot"
    )
    engine: EngineLimits = Field(default=EngineLimits(), description="engine limits, with serving: continuous")

    _cut: tuple[LengthsOfTrace, tuple[Length, ...]] | None = PrivateAttr(default=None)  # classes cut from a trace

    @model_validator(mode="before")
    @classmethod
    def _as_asked(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "deployment" in data:
            section = data["deployment"]
            stages = section.get("stages", ["both"]) if isinstance(section, Mapping) else section
            if stages not in (["both"], ("both",)):
                raise InputError(Mistake(None, "deployment.stages", stages, APART, hint=WRITTEN_OUT))
            data = {k: v for k, v in data.items() if k != "deployment"}
        return with_engines(data)

    def lengths(self) -> tuple[Length, ...]:
        """Classes of a trace are read once."""
        w = self.workload
        if not isinstance(w, BatchMix) or not isinstance(w.lengths, LengthsOfTrace):
            return super().lengths()
        if self._cut is None or self._cut[0] != w.lengths:
            file = self.beside(w.lengths.trace, "workload.lengths.trace")
            self._cut = w.lengths, lengths_of(file, w.lengths)
        return self._cut[1]

    def resolve(self) -> BatchCase:
        """Look up model, machines, GPUs, calibration and operating points.

        Raises:
            InputError: every unknown name, every contradiction, each with its path.
        """
        wrong = Mistakes()
        if self.serving == "continuous":
            if self.latency.model is None:
                wrong.add(
                    "latency.model", None, "default, roofline or a file of engines' steps, with serving: continuous"
                )
            if self.latency.calibration is not None or self.latency.operating_points is not None:
                wrong.add("serving", "continuous", "static beside a calibration or operating points of batches")
            if "high_end" not in self.strategies.families:
                expected = "high_end among them: with serving: continuous the KV cache is on the GPUs"
                wrong.add("strategies.families", list(self.strategies.families), expected)
        else:
            for name, limit in zip(("ttft_s", "tpot_s", "deadline_s"), self.slo.latencies, strict=True):
                if isinstance(limit, Percentile):
                    expected = "a number: percentiles are of serving: continuous"
                    wrong.add(f"slo.{name}", limit.model_dump(), expected)
            if self.slo.itl is not None:
                wrong.add(
                    "slo.itl_s", seconds_and_quantile(self.slo.itl)[0], "none with serving: static: tpot_s is the same"
                )
        if isinstance(self.workload, BatchMix) and self.serving == "static":
            wrong.add("workload.lengths", in_words(self.workload.lengths), ALIKE_OF_STATIC)
        ranks = list(self.strategies.attention_ranks)
        if ranks != [1] and self.serving == "static":
            wrong.add("strategies.attention_ranks", ranks, ONE_OF_STATIC)
        wrong.raise_any()
        case = super().resolve()
        check_speculation(self.engine, [case.architecture], self.serving == "continuous", wrong)
        wrong.raise_any()
        return case

    def inline(self) -> Self:
        """The same problem with catalogue entries and side files written out."""
        workload = self.workload
        if isinstance(workload, BatchMix):
            workload = workload.model_copy(update={"lengths": self.lengths()})
        return super().inline().model_copy(update={"engine": written_out(self.engine), "workload": workload})

    def engines(self, case: BatchCase) -> ModelOnEngines:
        """The model as engines serve it."""
        of = self.latency
        source = case.source or read_source(self, of.model or "roofline", of.engine)
        return ModelOnEngines(
            source, of.safety, self.model, case.architecture, self.precision.weights, self.precision.kv,
            self.memory.vram_usable, runtime_gib(self.memory.runtime_gib, of.safety, case.architecture.routed),
            mean_tokens(case.lengths)[0], float(shortest_tokens(case.lengths)),
        )  # fmt: skip

    def ranks(self, case: BatchCase) -> tuple[int, ...]:
        """Attention ranks to choose from: one of models without routed experts."""
        return self.strategies.attention_ranks if case.architecture.routed else (1,)

    @property
    def usd_per_hour_at_most(self) -> float:
        """Largest cost of the machines: the budget with room for rounding; infinite without a budget."""
        return math.inf if self.budget_usd_per_hour is None else self.budget_usd_per_hour * (1 + ROUNDING)

    def named_machines(self) -> Mapping[str, str]:
        """The machines of the baselines."""
        b = self.baselines
        named = {
            "high_end": b.high_end, "kvo_disk": b.kvo_disk,
            "ao_cluster.main": b.ao_cluster and b.ao_cluster.main, "ao_cluster.ao": b.ao_cluster and b.ao_cluster.ao,
            "infersave.base": b.infersave and b.infersave.base, "infersave.plus": b.infersave and b.infersave.plus,
        }  # fmt: skip
        return {f"baselines.{role}": machine for role, machine in named.items() if machine}
