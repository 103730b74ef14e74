"""A few rows of one's own pull the engines' global coefficients, for all machines that are compared."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from optmodels.arrays import Array
from optmodels.errors import InputError, Mistake
from optmodels.latency.engines.document import (
    LEAST_OWN,
    OWN_WORKLOADS,
    EngineModel,
    OwnRows,
    deployment,
    labels,
    read_engine_model,
)
from optmodels.latency.engines.fit import Fitted, Form, pull
from optmodels.latency.engines.forms import FIRST_TOKEN_FORM, STEP_FORM
from optmodels.latency.engines.terms import Loads, ModelInstance, first_token_terms, step_terms
from optmodels.latency.fit.measurements import Measurements

TARGETS: tuple[Literal["tpot_s", "ttft_s"], ...] = ("tpot_s", "ttft_s")


@dataclass(frozen=True)
class Loops:
    """Closed-loop runs of one deployment, n of them."""

    deployment: ModelInstance
    loads: Loads


@dataclass(frozen=True)
class ServedRows(Loops):
    """Closed-loop runs that were measured: seconds, (n,) each."""

    tpot_s: Array
    ttft_s: Array


class JoinedLoops:
    """Closed-loop runs of several deployments as one table, N rows: labels, and terms of the step and the first
    token.
    """

    def __init__(self, loops: Sequence[Loops]) -> None:
        self.loops = loops
        self.sizes = [len(s.loads.concurrency) for s in loops]
        each = [(labels(s.deployment), n) for s, n in zip(loops, self.sizes, strict=True)]
        self.labels = {k: [level[k] for level, n in each for _ in range(n)] for k in each[0][0]}
        self.step = _joined([step_terms(s.deployment, s.loads) for s in loops])

    def first(self, step: Fitted) -> dict[str, Array]:
        """Terms of the first token, whose step is the predicted one."""
        seconds = np.split(step.predict(self.step, self.labels), np.cumsum(self.sizes)[:-1])
        return _joined([first_token_terms(s.deployment, s.loads, t) for s, t in zip(self.loops, seconds, strict=True)])


def pulled(
    models: tuple[Fitted, Fitted], own: Sequence[ServedRows], forms: tuple[Form, Form] = (STEP_FORM, FIRST_TOKEN_FORM)
) -> tuple[Fitted, Fitted]:
    """Coefficients of the step and of the first token, pulled by a few rows of one's own."""
    rows = JoinedLoops(own)
    tpot, ttft = (np.concatenate([getattr(s, target) for s in own]) for target in TARGETS)
    step = pull(forms[0], models[0], rows.step, tpot, rows.labels)
    return step, pull(forms[1], models[1], rows.first(step), ttft, rows.labels)


def _joined(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def served_rows(
    m: Measurements, engine: str | None, gpu: str | None, llm: str | None, precision: str = "fp16",
    attention_ranks: int = 1,
) -> list[ServedRows]:  # fmt: skip
    """Served measurements of catalogue entries, by tensor-parallel degree.

    Raises:
        InputError: measurements of another kind; every name that is missing or unknown.
    """
    if m.kind != "served":
        raise InputError(Mistake(None, "measurements", m.kind, "served requests (concurrency, lengths, TTFT and TPOT)"))
    found = []
    by_tp = loops(m.values, engine, gpu, llm, precision, attention_ranks)
    for tp, s in zip(np.unique(m.values["tp"]), by_tp, strict=True):
        mine = m.take(m.values["tp"] == tp).values
        found.append(ServedRows(s.deployment, s.loads, mine["tpot_s"], mine["ttft_s"]))
    return found


def loops(
    values: Mapping[str, Array], engine: str | None, gpu: str | None, llm: str | None, precision: str = "fp16",
    attention_ranks: int = 1,
) -> list[Loops]:  # fmt: skip
    """Closed-loop runs of catalogue entries, by tensor-parallel degree.

    Args:
        values: `concurrency`, `input_tokens`, `output_tokens` and `tp`, (n,) each.
        engine, gpu, llm, precision, attention_ranks: as for `document.deployment`.

    Raises:
        InputError: every name that is missing or unknown.
    """
    found = []
    for tp in np.unique(values["tp"]):
        mine = values["tp"] == tp
        d = deployment(engine, gpu, llm, precision, int(tp), attention_ranks)
        found.append(
            Loops(d, Loads(*(values[name][mine] for name in ("concurrency", "input_tokens", "output_tokens"))))
        )
    return found


def with_own_rows(
    own: Sequence[ServedRows], model: EngineModel | None = None, source: str = "", date: str | None = None
) -> EngineModel:
    """The global coefficients pulled towards one's own engine, on every GPU compared.

    Args:
        own: rows of one's own.
        model: coefficients to correct; None: the shipped ones.
        source: source of the rows.
        date: date of the rows, ISO; None for today.
    """
    model = model or read_engine_model()
    found = pulled((model.targets["tpot_s"].fitted, model.targets["ttft_s"].fitted), own)
    said = _said(model, own, source, date or datetime.date.today().isoformat())
    enough = [o for o in said if o.suffice]
    together = {*model.together, *((o.engine, o.llm, o.gpu, o.precision) for o in enough)}
    domain = dict(model.domain)
    for column, (low, high) in model.domain.items():
        values = np.concatenate([getattr(s.loads, column) for s in own])
        domain[column] = (min(low, float(values.min())), max(high, float(values.max())))
    targets = {
        name: model.targets[name].model_copy(update={"adjustments": f.adjustments, "factors": f.factors})
        for name, f in zip(TARGETS, found, strict=True)
    }
    return model.model_copy(update={
        "title": f"{model.title}, pulled by rows of one's own",
        "together": tuple(sorted(together)), "domain": domain, "targets": targets,
        "own": (*model.own, *said),
    })  # fmt: skip


def _said(model: EngineModel, own: Sequence[ServedRows], source: str, date: str) -> list[OwnRows]:
    """One entry an engine, LLM, GPU and precision, whatever the parallelism."""
    rows: dict[tuple[str, str, str, str], list[tuple[float, float]]] = {}
    known = {}
    for s in own:
        d = s.deployment
        lengths = zip(s.loads.input_tokens.tolist(), s.loads.output_tokens.tolist(), strict=True)
        key = (d.engine, d.llm_name, d.gpu_name, d.measured_as)
        rows.setdefault(key, []).extend(lengths)
        known[key] = not model.at(d).levels
    return [
        OwnRows(
            engine=e, llm=m, gpu=g, precision=p, rows=len(r), workloads=len(set(r)), known=known[e, m, g, p],
            source=source, date=date,
        )
        for (e, m, g, p), r in rows.items()
    ]  # fmt: skip


def described(model: EngineModel, own: Sequence[ServedRows]) -> list[str]:
    """Lines of text: how wrong the coefficients were of these rows before and after, and what interval applies."""
    before = read_engine_model()
    lines = [model.title]
    lines += [
        f"  {o.rows} rows of {o.engine}, {o.llm} in {o.precision} on {o.gpu}; workloads: {o.workloads}"
        for o in model.own
    ]
    for target in TARGETS:
        seen = np.concatenate([getattr(s, target) for s in own])
        medians = []
        for m in (before, model):
            predicted = np.concatenate([m.at(s.deployment).predict(vars(s.loads), target) for s in own])
            medians.append(float(np.median(np.abs(predicted / seen - 1.0))))
        lines.append(f"{target}: median error of these rows {medians[0]:.1%} before, {medians[1]:.1%} after")
    lines += [f"  {said}" for said in model.at(own[0].deployment).extrapolation(vars(own[0].loads))]
    if not all(o.suffice for o in model.own):
        lines.append(f"warning: fewer than {min(LEAST_OWN.values())} rows over {OWN_WORKLOADS} workloads: the interval "
                     "is that of coefficients without rows of one's own")  # fmt: skip
    return lines
