"""Tokens per second of one request among W, by model, GPU type and parallelism: MS(1), roofline, fitted or measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from formulations.orchestration.problem import MeasuredRow, Orchestration, OrchestrationCase
from optmodels.arrays import Array
from optmodels.engine.continuous import EngineLimits
from optmodels.engine.costs import EngineCosts, ModelOnEngines, engine_costs, steps
from optmodels.errors import Mistakes
from optmodels.latency.fit.document import LatencyModel, decay_rate, read_latency_model
from optmodels.latency.memory import runtime_gib
from optmodels.latency.resolve import UNCALIBRATED, deployment, llm_name, read_source
from optmodels.latency.steps import Provenance, StepCosts
from optmodels.latency.strategies import BatchModel, Hardware, Variant
from optmodels.latency.work import layer_work, peak_flops
from optmodels.units import GIB


@dataclass(frozen=True)
class Rates:
    """Rates of a replica of one parallelism.

    Attributes:
        tokens_per_s: (W,) of one request among 1 … W; NaN beyond the known range.
        prefill_s_per_token: prefill seconds per token of the prompt.
        reason: why there is nothing, where there is nothing.
        provenance: provenance of the latencies.
    """

    tokens_per_s: Array
    prefill_s_per_token: float = 0.0
    reason: str = ""
    provenance: Provenance | None = None


@dataclass(frozen=True)
class CautiousSteps:
    """An engine's steps on one deployment.

    Attributes:
        costs: with the safety asked for.
        later: first tokens take this many times as long as these costs state.
        central: costs without safety and without draft tokens: the promise does not depend on them.
        provenance: provenance of the whole.
    """

    costs: StepCosts
    later: float
    central: StepCosts
    provenance: Provenance


def _shortest(case: OrchestrationCase, model: int) -> float:
    """Prompt and output of a model's shortest request, each counted as a token at least."""
    prompt, output, _ = case.lengths(model)
    return float((np.maximum(prompt, 1.0) + np.maximum(output, 1.0)).min()) if len(prompt) else 2.0


class RateSource:
    """Answers for every (model, GPU type, tp, pp); reads files once."""

    def __init__(self, case: OrchestrationCase, prompt_tokens: Array, output_tokens: Array) -> None:
        self.case, self.prompt, self.output = case, prompt_tokens, output_tokens
        latency = case.problem.latency
        self.measured: dict[tuple[str, str, int, int], list[MeasuredRow]] = {}
        for row in case.problem.measured_rows():
            self.measured.setdefault((row.model, row.gpu, row.tp, row.pp), []).append(row)
        self.source = None if latency.model is None else read_source(case.problem, latency.model, latency.engine)
        self._steps: dict[tuple[int, ...], CautiousSteps] = {}
        self.fitted: dict[str, LatencyModel] = {}
        wrong = Mistakes()
        for name, file in (latency.fitted or {}).items():
            path = f"latency.fitted.{name}"
            with wrong.collecting():
                self.fitted[name] = read_latency_model(_file(case.problem, file, path))
            if name not in self.fitted:
                continue
            if name not in case.models:
                wrong.add(path, name, f"a model of this file: {', '.join(case.models)}")
            if self.fitted[name].measured == "pairs":
                wrong.add(path, file, "a model of static batches, single steps or served requests")
        wrong.raise_any()

    def rates(self, model: int, gpu: int, tp: int, pp: int, most: int) -> Rates:
        """Rates at loads 1 … `most` of one replica of tp·pp GPUs."""
        latency = self.case.problem.latency
        if latency.model is not None:
            return self._stepped(model, gpu, tp, pp, most)
        if latency.decay is not None:
            return self._decay(model, gpu, tp, pp, most)
        if latency.roofline is not None:
            return self._roofline(latency.roofline, model, gpu, tp, pp, most)
        if latency.fitted is not None:
            return self._fitted(model, gpu, tp, pp, most)
        return self._measured(model, gpu, tp, pp, most)

    def engine(self, model: int, gpu: int, tp: int, pp: int = 1, ranks: int = 1) -> EngineCosts | str:
        """Costs and KV cache of an engine on `ranks` times tp GPUs, or why there are none.

        Raises:
            InputError: no measurement of the level of safety asked for.
        """
        case = self.case
        if (reason := self._unknown(model, gpu, tp, pp)) is not None:
            return reason
        served, p = case.problem.models[model], case.problem
        assert p.continuous is not None and self.source is not None
        of = ModelOnEngines(
            self.source, p.latency.safety, served.architecture or case.models[model], case.architectures[model],
            served.weights, served.kv, p.memory.vram_usable,
            runtime_gib(p.memory.runtime_gib, p.latency.safety, case.architectures[model].routed),
            max(1.0, float(self.prompt[model])), _shortest(case, model),
        )  # fmt: skip
        found = engine_costs(of, p.continuous, case.gpus[gpu], case.gpu_types[gpu], tp, case.vram_gib[gpu], ranks)
        return found if found.kv_tokens > 0 else "no memory for a KV cache beside the weights"

    def _unknown(self, model: int, gpu: int, tp: int, pp: int) -> str | None:
        """Why no step of an engine is known."""
        if pp != 1:
            return "models of engines' steps know no pipelines"
        if self.case.architectures[model].heads % tp:
            return f"tp {tp} does not divide its {self.case.architectures[model].heads} heads"
        if self.case.gpus[gpu].fp16_flops is None:
            return f"no compute peak of {self.case.gpu_types[gpu]}"
        return None

    def steps(self, model: int, gpu: int, tp: int, pp: int = 1) -> CautiousSteps | str:
        """Costs of an engine's step on one replica, as `latency.model` has them, or why not.

        Raises:
            InputError: no measurement of the level of safety asked for.
        """
        case, name = self.case, self.case.models[model]
        if (reason := self._unknown(model, gpu, tp, pp)) is not None:
            return reason
        key = (model, gpu, tp)
        if key not in self._steps:
            served, latency = case.problem.models[model], case.problem.latency
            assert latency.model is not None and self.source is not None
            d = deployment(
                self.source, case.architectures[model], llm_name(served.architecture or name), case.gpus[gpu],
                case.gpu_types[gpu], served.weights, served.kv, tp,
            )  # fmt: skip
            limits = case.problem.continuous or EngineLimits()
            found = steps(self.source, limits, d, max(1.0, float(self.prompt[model])))
            slower, later = found.provenance.factors(latency.safety)
            self._steps[key] = CautiousSteps(found.costs.scaled(slower), later / slower, found.alone, found.provenance)
        return self._steps[key]

    def idle_s(self, model: int, gpu: int) -> float:
        """Seconds per token of one request alone on one GPU (MaaSO's t_slice); NaN where that cannot be told.

        Central and without draft tokens, whatever the engines do: it states the promise.
        """
        if self.case.problem.latency.model is None:
            return float(1.0 / self.rates(model, gpu, 1, 1, 1).tokens_per_s[0])
        found = self.steps(model, gpu, 1)
        return np.nan if isinstance(found, str) else float(self._decoding(model, found.central, np.ones(1))[0])

    def _decoding(self, model: int, costs: StepCosts, load: Array) -> Array:
        """Seconds of a step of this many decoding requests half-way through their outputs."""
        experts = 0.0 if costs.experts is None else costs.experts.seconds(load)
        context = float(costs.seen(max(1.0, self.prompt[model]) + self.output[model] / 2))
        return costs.fixed_s + experts + load * (costs.decode_request_s + costs.context_s * context)

    def _stepped(self, model: int, gpu: int, tp: int, pp: int, most: int) -> Rates:
        """Slots on an engine whose steps only decode; a prompt takes the time of its own steps."""
        found = self.steps(model, gpu, tp, pp)
        if isinstance(found, str):
            return _nothing(most, found)
        prompt = max(1.0, float(self.prompt[model]))
        first = found.costs.step(np.array([prompt]), np.zeros(1), np.zeros(0)) + found.costs.request_s
        rate = 1.0 / self._decoding(model, found.costs, _loads(most))
        return Rates(rate, first * found.later / prompt, provenance=found.provenance)

    def _decay(self, model: int, gpu: int, tp: int, pp: int, most: int) -> Rates:
        name, kind = self.case.models[model], self.case.gpu_types[gpu]
        rows = [r for r in self.case.problem.latency.decay or ()
                if r.model == name and r.gpu in (None, kind) and (r.tp, r.pp) == (tp, pp)]  # fmt: skip
        if not rows:
            return _nothing(most, f"no decay coefficients of tp {tp}, pp {pp} on {kind}")
        row = max(rows, key=lambda r: r.gpu is not None)
        rate = decay_rate(row.base_tokens_per_s, row.delta, row.epsilon, _loads(most), None)
        prefill = 1.0 / row.prefill_tokens_per_s if row.prefill_tokens_per_s else 0.0
        return Rates(rate, prefill, provenance=Provenance("decay", "MaaSO's MS(1), coefficients of the problem"))

    def _roofline(self, variant: Variant, model: int, gpu: int, tp: int, pp: int, most: int) -> Rates:
        """A pipeline's stages take turns on pp micro-batches: a token costs the time of one GPU at load W/pp."""
        served, g = self.case.problem.models[model], self.case.gpus[gpu]
        flops = peak_flops(g, served.weights)
        if flops is None:
            return _nothing(most, f"no compute peak of {self.case.gpu_types[gpu]}")
        if self.case.architectures[model].heads % tp:
            return _nothing(most, f"tp {tp} does not divide its {self.case.architectures[model].heads} heads")
        loads = np.ceil(_loads(most) / pp)
        n = len(loads)
        hardware = Hardware.of_gpu(g, flops, np.full(n, float(tp)), tp * pp * self.case.vram_gib[gpu] * GIB)
        prompt, output = max(1, round(self.prompt[model])), max(2, round(self.output[model]))
        work = layer_work(self.case.architectures[model], served.weights, served.kv)
        curves = BatchModel(work, prompt, output, variant).resident(hardware, loads, np.ones(n))
        first = float(curves.take(np.array([0])).ttft(np.zeros(1))[0])
        peaks = Provenance(variant, "peaks of the catalogue", notes=(UNCALIBRATED,))
        return Rates(1.0 / curves.tbt(np.zeros(n)), first / prompt, provenance=peaks)

    def _fitted(self, model: int, gpu: int, tp: int, pp: int, most: int) -> Rates:
        name = self.case.models[model]
        fitted = self.fitted.get(name)
        if fitted is None:
            return _nothing(most, "no fitted latency model")
        if pp != 1:
            return _nothing(most, "fitted models know no pipelines")
        if fitted.gpu is not None and fitted.gpu != self.case.gpu_types[gpu]:
            return _nothing(most, f"its latency model was fitted on {fitted.gpu}")
        low, high = fitted.domain.get("tp", (tp, tp))
        if not low <= tp <= high:
            return _nothing(most, f"its latency model was fitted for tp {low:g} to {high:g}")
        load, one = _loads(most), np.ones(most)
        prompt, output = max(1.0, self.prompt[model]), max(2.0, self.output[model])
        safety = self.case.problem.latency.safety
        where = _fitted_from(fitted)
        whole = {"input_tokens": prompt * one, "output_tokens": output * one, "tp": tp * one}
        if fitted.measured == "served":
            tpot = fitted.predict(whole | {"concurrency": load}, "tpot_s", safety=safety)
            ttft = fitted.predict(whole | {"concurrency": load}, "ttft_s", safety=safety)
            return Rates(1.0 / tpot, float(ttft[0]) / prompt, provenance=where)
        if fitted.measured == "static":
            return Rates(output / fitted.predict(whole | {"batch": load}, safety=safety), provenance=where)
        step = {
            "prefill_tokens": 0 * one, "prefill_context_tokens": 0 * one, "prefill_requests": 0 * one,
            "decode_requests": load, "decode_context_tokens": (prompt + output / 2) * one, "tp": tp * one,
        }  # fmt: skip
        rate = 1.0 / fitted.predict(step, safety=safety)
        first = {k: np.array([v]) for k, v in
                 {"prefill_tokens": prompt, "prefill_context_tokens": 0.0, "prefill_requests": 1.0,
                  "decode_requests": 0.0, "decode_context_tokens": 0.0, "tp": float(tp)}.items()}  # fmt: skip
        return Rates(rate, float(fitted.predict(first, safety=safety)[0]) / prompt, provenance=where)

    def _measured(self, model: int, gpu: int, tp: int, pp: int, most: int) -> Rates:
        name, kind = self.case.models[model], self.case.gpu_types[gpu]
        rows = sorted(self.measured.get((name, kind, tp, pp), ()), key=lambda r: r.load)
        if not rows:
            return _nothing(most, f"not measured: tp {tp}, pp {pp} on {kind}")
        load = [float(r.load) for r in rows]
        # Seconds per token, not tokens per second, are close to linear in the load between two measurements.
        seconds = np.interp(_loads(most), load, [1.0 / r.tokens_per_s for r in rows])
        rate = np.where(_loads(most) <= load[-1], 1.0 / seconds, np.nan)
        prefill = next((1.0 / r.prefill_tokens_per_s for r in rows if r.prefill_tokens_per_s), 0.0)
        where = Provenance("measured", "rates of the problem")
        return Rates(rate, prefill, f"not measured beyond {rows[-1].load} requests", where)


def _fitted_from(model: LatencyModel) -> Provenance:
    """Where a model of the user's own comes from, with the quantiles it keeps of decoding and of first tokens."""
    known = {k: tuple(sorted((float(q), x) for q, x in t.residual_quantiles.items())) for k, t in model.targets.items()}
    tpot = known.get("tpot_s", next(iter(known.values())))
    source = ", ".join(filter(None, (model.source, model.date))) or "a model file of the problem"
    return Provenance(model.title or model.model, source, (), tpot, known.get("ttft_s", tpot))


def _loads(most: int) -> Array:
    return np.arange(1, most + 1, dtype=float)


def _nothing(most: int, reason: str) -> Rates:
    return Rates(np.full(most, np.nan), 0.0, reason)


def _file(p: Orchestration, file: str, path: str) -> Path:
    from optmodels import catalog

    return Path(file) if file in catalog.latency_models() else p.beside(file, path)
