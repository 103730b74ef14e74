"""The formulation's own test: optima by hand and by brute force, golden rows, a check that notices, words."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optmodels
from optmodels.errors import InputError
from optmodels.formulation import register
from optmodels.model.document import written
from optmodels.model.golden import differences, parse, statement, text

from . import FORMULATION
from .making import make_plan
from .model import FAMILIES, CountsModel
from .points import build_tables
from .problem import Instance

HERE = Path(__file__).parent
GOLDEN = HERE / "golden.txt"
register(FORMULATION)


def small(**changes: Any) -> dict[str, Any]:
    """Two services, three machine types, every limit set."""
    return {
        "formulation": "machine_counts", "schema": 1, "name": "small", "budget_usd_per_hour": 20,
        "services": [{"service": "a", "tokens_per_s": 10}, {"service": "b", "tokens_per_s": 7}],
        "machines": [
            {"machine": "slow", "usd_per_hour": 1, "stock": 5, "tokens_per_s": {"a": 2, "b": 3}},
            {"machine": "fast", "usd_per_hour": 3, "stock": 2, "tokens_per_s": {"a": 8}},
            {"machine": "slow", "market": "spot", "usd_per_hour": 0.5, "stock": 1, "tokens_per_s": {"a": 2, "b": 3}},
        ],
    } | changes  # fmt: skip


def model_of(data: dict[str, Any]) -> CountsModel:
    """The stated model of an instance."""
    problem = optmodels.load(data)
    assert isinstance(problem, Instance)
    return CountsModel(problem, build_tables(problem))


def cheapest(data: dict[str, Any]) -> float:
    """The optimum by trying every count of every machine for every service."""
    tables = build_tables(Instance.model_validate(data))
    pairs = list(zip(*np.nonzero(tables.rate), strict=True))
    best = np.inf
    for counts in itertools.product(*(range(int(tables.stock[j]) + 1) for _, j in pairs)):
        n = np.zeros(tables.rate.shape)
        n[tuple(zip(*pairs, strict=True))] = counts
        cost = float((n @ tables.usd_per_hour).sum())
        served = (n * tables.rate).sum(axis=1) >= tables.demand
        if served.all() and (n.sum(axis=0) <= tables.stock).all() and cost <= tables.budget:
            best = min(best, cost)
    return best


@pytest.mark.parametrize("demand", [(10, 7), (3, 12), (16, 1)])
def test_exact_is_the_optimum(demand: tuple[int, int]) -> None:
    """By brute force."""
    services = [{"service": name, "tokens_per_s": d} for name, d in zip("ab", demand, strict=True)]
    result = optmodels.solve(small(services=services))
    assert result.status == "optimal" and result.objective == pytest.approx(cheapest(small(services=services)))


@pytest.mark.parametrize("method", FORMULATION.methods)
def test_every_method_solves_the_template(method: str, tmp_path: Path) -> None:
    """With a plan that the check accepts, no better than the optimum."""
    file = tmp_path / "template.yaml"
    file.write_text(FORMULATION.template, encoding="utf-8")
    result = optmodels.solve(file, method)
    best = optmodels.solve(file).bound
    assert result.check is not None and result.check.ok
    assert result.objective is not None and best is not None and result.objective >= best * (1 - 1e-9)


def test_too_little_budget_is_proved_and_explained() -> None:
    """In the instance's own words: these two limits have no plan together."""
    poor = small(budget_usd_per_hour=4)
    assert optmodels.solve(poor).status == "infeasible"
    assert optmodels.solve(poor, "greedy").status == "no_solution_found"
    found = [member.limit.words for member in optmodels.explain(poor).conflicts[0].members]
    assert "budget at most 4 USD/h" in found and "demand of a at least 10 tokens/s" in found


def test_rows_are_those_reviewed() -> None:
    """OPTMODELS_REGENERATE=1 writes them anew: read the difference."""
    model = model_of(small())
    if os.environ.get("OPTMODELS_REGENERATE"):
        GOLDEN.write_text(text(statement(model)), encoding="utf-8")
    assert differences(parse(GOLDEN.read_text(encoding="utf-8")), statement(model)) == []
    assert [f.__name__ for f in FAMILIES if not len(model.rows(f))] == []


def test_readme_has_the_families() -> None:
    """``python -m optmodels.model.document machine_counts.model machine_counts/README.md`` writes them."""
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    assert readme == written(readme, FAMILIES)


TAMPERED: list[tuple[str, Any]] = [
    ("usd_per_hour", 1.0), ("name", "other"), ("lines.0.count", 2), ("lines.0.count", 0), ("lines.0.tokens_per_s", 1.0),
    ("lines.0.usd_per_hour_each", 0.1), ("lines.0.machine", "none"), ("lines.0.market", "spot"),
    ("lines.0.service", "b"), ("lines", []), ("surplus", 1),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), TAMPERED)
def test_check_notices(path: str, value: Any) -> None:
    """Every figure that is changed."""
    problem = optmodels.load(small(budget_usd_per_hour=8))
    plan = optmodels.solve(problem).plan
    assert plan is not None and optmodels.check({"plan": plan}, problem).ok
    node: Any = plan
    *above, last = path.split(".")
    for key in above:
        node = node[int(key) if key.isdigit() else key]
    node[last] = value
    assert not optmodels.check({"plan": plan}, problem).ok


@pytest.mark.parametrize(
    ("counts", "broken"),
    [
        ([[1, 1, 0], [3, 0, 0]], []),
        ([[0, 1, 0], [3, 0, 0]], ["demand of a"]),
        ([[1, 1, 0], [1, 0, 2]], ["stock of slow (spot)"]),
        ([[0, 2, 0], [3, 0, 0]], ["budget"]),
    ],
)
def test_check_knows_every_limit(counts: list[list[int]], broken: list[str]) -> None:
    """In plans whose figures are right."""
    problem = Instance.model_validate(small(budget_usd_per_hour=8))
    plan = make_plan(build_tables(problem), np.array(counts, dtype=float))
    assert [v.requirement for v in FORMULATION.check(problem, plan.model_dump()).violations] == broken


@pytest.mark.parametrize(
    "change",
    [
        {"catalog": "nowhere"},
        {"services": [{"service": "a", "tokens_per_s": 10}]},
        {"services": [{"service": "a", "tokens_per_s": 10}] * 2},
        {"machines": [{"machine": "unpriced", "tokens_per_s": {"a": 1}}]},
        {"machines": [{"machine": "twice", "usd_per_hour": 1, "tokens_per_s": {"a": 1}}] * 2},
    ],
)
def test_a_wrong_instance_is_refused(change: dict[str, Any]) -> None:
    """Before anything is solved."""
    with pytest.raises(InputError):
        optmodels.load(small(**change))
