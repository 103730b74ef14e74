"""From the `latency` section of an instance to the costs of a step on one deployment: the one way, in all formulations.

``model: default``   the engines' global coefficients (`latency.engines`): physics × engine × GPU × precision
``model: roofline``  times at the peaks of the catalogue, added up; nobody's engine reaches them
``model: FILE``      fitted models (`latency.fit`), one or a list; the one that fits a deployment best is taken

What was measured on another LLM, GPU, precision, engine or parallelism than the deployment's is a *transfer*: its
ratio to the global coefficients at home is carried over to the global coefficients of the deployment, it is named, and
the interval is that of something never measured. Machines compared with one another are all treated so: calibrating
one and leaving its rival at peak picks the wrong machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from optmodels import catalog
from optmodels.catalog.types import Architecture
from optmodels.errors import one_of
from optmodels.latency.engines.document import Deployed, EngineModel, labels, read_engine_model
from optmodels.latency.engines.terms import STEP, Deployment, Loads, step_terms
from optmodels.latency.steps import Experts, Provenance, StepCosts, Window
from optmodels.problem import Problem

Engine = Literal["vllm", "sglang", "trtllm"]
UNCALIBRATED = "uncalibrated: real engines took 1.5–7× these times"
PROMPT_TOKENS = 1024.0  # of a prompt, where nobody says

# Which seconds of a step a term of `engines.terms` becomes.
_FIXED = ("dense", "layer", "moe", "mla", "comm")
_AT_PEAK = ("dense", "experts", "kv", "decode", "prefill", "attention", "collective")


ModelChoice = Annotated[
    str | tuple[EngineModel, ...],
    Field(
        description="default: the engines' global coefficients; roofline: times at peak; or the documents themselves"
    ),
]


@dataclass(frozen=True, eq=False)
class Source:
    """The `latency` section of an instance, read.

    Attributes:
        engine: that the deployments run.
        coefficients: of the engines; None for times at peak.
    """

    engine: Engine
    coefficients: EngineModel | None

    @property
    def documents(self) -> str | tuple[EngineModel, ...]:
        """The same, to be written out in an instance that stands alone."""
        return "roofline" if self.coefficients is None else (self.coefficients,)


def read_source(problem: Problem, model: ModelChoice, engine: Engine = "vllm", path: str = "latency") -> Source:
    """Read what an instance's `latency` section names.

    Args:
        problem: the instance, beside which files lie.
        model: ``default``, ``roofline``, or documents.
        engine: that all deployments run.
        path: of the section in the instance.

    Raises:
        InputError: no such file, or not a latency model.
    """
    if not isinstance(model, str):
        return Source(engine, model[0])
    one_of(f"{path}.model", model, ("default", "roofline"))
    return Source(engine, None if model == "roofline" else _shipped())


def llm_name(model: str | Architecture) -> str:
    """The catalogue's name of an LLM, also of one written out in the instance; else its title."""
    if isinstance(model, str):
        return model
    return next((name for name, known in catalog.llms().items() if known == model), model.title)


def resolve(source: Source, d: Deployment, prompt_tokens: float = PROMPT_TOKENS) -> tuple[StepCosts, Provenance]:
    """Seconds of a step on one deployment, central, and where they come from.

    Args:
        source: what predicts.
        d: one model instance; its engine is the source's.
        prompt_tokens: typical length of a prompt, for what depends on it and is no sum over tokens.
    """
    if source.coefficients is None:
        return roofline_costs(d), Provenance("roofline", "peaks of the catalogue", notes=(UNCALIBRATED,))
    return engine_costs(source.coefficients.at(d), prompt_tokens)


def roofline_costs(d: Deployment) -> StepCosts:
    """Times at the peaks of the catalogue, added up: reading weights, experts touched and KV, products, collectives.

    Engines overlap some of these; the latency curves of static batches take the longer of products and reading.
    """
    return _costs(d, dict.fromkeys(_AT_PEAK, 1.0), PROMPT_TOKENS)


def engine_costs(deployed: Deployed, prompt_tokens: float) -> tuple[StepCosts, Provenance]:
    """The global coefficients at a deployment.

    Their mean step in a closed loop (`engines.terms`) is the mean of the steps that these costs give, but for the
    experts that a step with a short prompt leaves untouched. What a request costs outside the steps is what a lone
    one's first token takes longer than its prompt's steps.
    """
    costs = _costs(deployed.deployment, _weights(deployed), prompt_tokens)
    alone = {"concurrency": 1.0, "input_tokens": prompt_tokens, "output_tokens": 1e6}
    ttft = float(deployed.predict({k: np.array([v]) for k, v in alone.items()}, "ttft_s")[0])
    own = costs.step(np.array([prompt_tokens]), np.zeros(1), np.zeros(0))
    costs = StepCosts(**vars(costs) | {"request_s": max(0.0, ttft - own)})
    model = deployed.source
    transfer = () if deployed.unseen == ("workload",) else deployed.unseen
    return costs, Provenance(
        "default", f"{model.title}, {model.rows:,} rows: {model.source}, {model.date}", transfer,
        _quantiles(deployed, "tpot_s"), _quantiles(deployed, "ttft_s"),
    )  # fmt: skip


@cache
def _shipped() -> EngineModel:
    return read_engine_model()


def _quantiles(deployed: Deployed, target: Literal["tpot_s", "ttft_s"]) -> tuple[tuple[float, float], ...]:
    """Level → quantile of measured/predicted, the widest of what applies."""
    found = [deployed.targets[target].residual_quantiles[what] for what in deployed.unseen]
    common = sorted(set.intersection(*(set(q) for q in found)), key=float)
    return tuple((float(level), max(q[level] for q in found)) for level in common)


def _weights(deployed: Deployed) -> dict[str, float]:
    """What a term of the step is multiplied by at this deployment: coefficient, adjustments and factors."""
    level = {k: [v] * len(STEP) for k, v in labels(deployed.deployment).items()}
    one = np.eye(len(STEP))
    found = deployed.targets["tpot_s"].fitted.predict({name: one[j] for j, name in enumerate(STEP)}, level)
    return dict(zip(STEP, found.tolist(), strict=True))


def _costs(d: Deployment, weights: Mapping[str, float], prompt_tokens: float) -> StepCosts:
    """Costs from terms of the mean step, each times its weight (0 where there is none).

    One request of one prompt and one output token takes one step with a prompt: 1 prompt token that sees ½ an earlier
    one, 1 decode token over 1½, every expert touched. `prompt` grows with the prompt's length and is taken at
    `prompt_tokens`.
    """
    one = np.ones(1)
    found = step_terms(d, Loads(one, one, one))
    unknown = set(found) - set(STEP)
    assert not unknown, f"terms without a place in a step: {unknown}"
    term = {name: weights.get(name, 0.0) * float(value[0]) for name, value in found.items()}
    prompt = weights.get("prompt", 0.0) * float(step_terms(d, Loads(one, prompt_tokens * one, one))["prompt"][0])
    collective = term["collective"] / 2.0  # of a prompt token and of a decode token
    moe, window = d.llm.moe, d.llm.window
    return StepCosts(
        fixed_s=sum(term[name] for name in _FIXED),
        prompt_step_s=prompt,
        prompt_token_s=term["prefill"] + collective,
        prompt_pair_s=term["attention"] / 0.5,
        decode_request_s=term["decode"] + term["running"] + collective,
        context_s=term["kv"] / 1.5,
        mixed_context_s=term["kv"] / 1.5,
        experts=None if moe is None else Experts(term["experts"], moe.experts, moe.active),
        window=None if window is None else Window(window.layers / d.llm.layers, window.tokens),
    )
