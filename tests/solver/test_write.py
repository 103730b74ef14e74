"""MPS and LP files: what is read back is the model, whatever its names."""

from __future__ import annotations

import dataclasses
import functools
import shutil
import subprocess

import highspy
import numpy as np
import pyomo.environ as pyo
import pytest
from conftest import ROOT

from optmodels import formulation
from optmodels.errors import InputError
from optmodels.loading import load
from optmodels.solver import compile_model, solve_compiled
from optmodels.solver.write import FORMATS, file_names, model_text, write_model

INSTANCES = [
    "cost_efficiency/textbook/hand-checkable.yaml", "cost_efficiency/table_ix/batch-budget-2.0.yaml",
    "fleet/stock-limited.yaml", "fleet/day-and-night.yaml", "fleet/spot-heavy.yaml",
    "reserved_capacity/textbook-two-regions.yaml", "reserved_capacity/textbook-growth-and-scenarios.yaml",
]  # fmt: skip


def read_back(path):
    h = highspy.Highs()
    h.setOptionValue("output_flag", False)
    assert h.readModel(str(path)) == highspy.HighsStatus.kOk
    return h


RELAXED = {"fleet/day-and-night.yaml"}  # long to prove: integers are counted, and every row is in the relaxation


@functools.cache
def built(name):
    """The model, what is compiled of it, and its optimum."""
    problem = load(ROOT / "instances" / name)
    form = formulation.get(problem.formulation)
    model = form.build(problem, form.tables(problem))
    compiled = compile_model(model)
    counted = dataclasses.replace(compiled, integer=compiled.integer & (name not in RELAXED))
    return model, compiled, solve_compiled(counted).objective


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", INSTANCES)
def test_the_file_has_the_same_optimum_and_size(name, kind, tmp_path):
    model, compiled, optimum = built(name)
    path = tmp_path / f"m.{kind}"
    write_model(model, path)
    h = read_back(path)
    lp = h.getLp()
    used = (np.diff(compiled.A.indptr) > 0) | (compiled.costs[0] != 0)
    assert lp.num_row_ == compiled.size["constraints"]
    assert used.sum() <= lp.num_col_ <= compiled.size["variables"]
    assert sum(v == highspy.HighsVarType.kInteger for v in lp.integrality_) >= (compiled.integer & used).sum()
    h.setOptionValue("mip_rel_gap", 0.0)
    h.setOptionValue("solve_relaxation", name in RELAXED)
    h.run()
    assert h.getModelStatus() == highspy.HighsModelStatus.kOptimal
    assert h.getInfo().objective_function_value == pytest.approx(optimum, rel=1e-6)


def awkward():
    m = pyo.ConcreteModel()
    m.names = pyo.Set(initialize=["a b", "a_b", "<script>", "é🎈", "x" * 400, "x" * 400 + "y", "$1", "-", "a,b]"])
    m.x = pyo.Var(m.names, bounds=(0, 3), within=pyo.Integers)
    m.e1 = pyo.Var(bounds=(None, 4.5))
    m.free = pyo.Var(bounds=(-2, None))
    m.End = pyo.Var(bounds=(1, 1.5))
    m.cap = pyo.Constraint(expr=sum(m.x[n] for n in m.names) + m.e1 - m.free <= 7.25)
    m.between = pyo.Constraint(expr=pyo.inequality(-1, m.e1 + m.free, 10))
    m.st = pyo.Constraint(expr=m.End + m.e1 == 5.5)
    worth = sum((i + 1) * m.x[n] for i, n in enumerate(m.names)) + 0.1 * m.e1 - m.free - m.End + 12.5
    m.value = pyo.Objective(expr=worth, sense=pyo.maximize)
    return m


@pytest.mark.parametrize("kind", FORMATS)
def test_awkward_names_senses_bounds_and_constants_survive(kind, tmp_path):
    path = tmp_path / f"m.{kind}"
    write_model(awkward(), path)
    h = read_back(path)
    h.run()
    found = solve_compiled(compile_model(awkward()))
    assert found.objective is not None and found.objective > 0
    negated = kind == "mps"
    assert h.getLp().sense_ == (highspy.ObjSense.kMinimize if negated else highspy.ObjSense.kMaximize)
    assert path.read_text().startswith("* A maximisation") is negated
    sign = -1 if negated else 1
    assert sign * h.getInfo().objective_function_value == pytest.approx(found.objective, rel=1e-9)
    names = list(h.allVariableNames())
    assert len(set(names)) == len(names)
    assert "x(a_b)" in names and "x(a_b)_2" in names


def test_names_keep_the_mathematics_and_are_unique():
    assert file_names(["n[0,1]", "demand_met[0,chat/256x128]"]) == ["n(0,1)", "demand_met(0,chat_256x128)"]
    assert file_names(["a b", "a_b", "a_b_2"]) == ["a_b", "a_b_2", "a_b_2_2"]
    assert file_names(["e1", "9", "", "free", "Bounds", "freely"]) == ["_e1", "_9", "_", "_free", "_Bounds", "freely"]


def test_only_known_endings_and_never_over_a_file(tmp_path):
    with pytest.raises(InputError, match=r"mps or \.lp"):
        write_model(awkward(), tmp_path / "m.txt")
    path = tmp_path / "m.lp"
    write_model(awkward(), path)
    with pytest.raises(InputError, match="existing"):
        write_model(awkward(), path)
    write_model(awkward(), path, overwrite=True)
    assert path.read_text() == model_text(awkward(), "lp")


def test_sections_have_the_names_that_every_reader_knows_and_content():
    """CBC took the shorter ``gen`` for a variable and solved without integers: 32.42 in place of 65.87."""
    text = model_text(_integer_model(), "lp")
    sections = [line for line in text.splitlines() if line and not line.startswith((" ", "\\"))]
    assert sections == ["min", "st", "bounds", "general", "end"]


@pytest.mark.skipif(shutil.which("cbc") is None, reason="cbc is not on PATH")
@pytest.mark.parametrize("kind", FORMATS)
def test_cbc_finds_the_same_optimum(kind, tmp_path):
    path = tmp_path / f"m.{kind}"
    write_model(_integer_model(), path)
    said = subprocess.run(["cbc", path, "solve"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "Objective value:                4.00000000" in said


def _integer_model():
    """min x + y, 2x + 3y ≥ 9.5, x ≤ 1 whole, y whole: 4 at (1, 3); without integers 3.17."""
    m = pyo.ConcreteModel()
    m.x, m.y = pyo.Var(within=pyo.NonNegativeIntegers, bounds=(0, 2)), pyo.Var(within=pyo.NonNegativeIntegers)
    m.lacking = pyo.Constraint(expr=2 * m.x + 3 * m.y >= 9.5)
    m.few = pyo.Constraint(expr=m.x <= 1)
    m.cost = pyo.Objective(expr=m.x + m.y)
    return m


def _choice(sense):
    """max 5x + 4y, 6x + 4y ≤ 24, x + 2y ≤ 6, whole: 20 at (4, 0)."""
    m = pyo.ConcreteModel()
    m.x, m.y = (pyo.Var(within=pyo.NonNegativeIntegers, bounds=(0, 9)) for _ in range(2))
    m.first = pyo.Constraint(expr=6 * m.x + 4 * m.y <= 24)
    m.second = pyo.Constraint(expr=m.x + 2 * m.y <= 6)
    sign = 1 if sense == "max" else -1
    m.value = pyo.Objective(expr=sign * (5 * m.x + 4 * m.y) + 3, sense=pyo.maximize if sign > 0 else pyo.minimize)
    return m


@pytest.mark.parametrize("solver", ["cbc", "glpsol"])
def test_maximisation_as_mps_is_read_alike_by_other_solvers(solver, tmp_path):
    if shutil.which(solver) is None:
        pytest.skip(f"{solver} is not on PATH")
    path = tmp_path / "m.mps"
    write_model(_choice("max"), path)
    found = tmp_path / "found.txt"
    words = {"cbc": ["cbc", path, "solve", "solution", found],
             "glpsol": ["glpsol", "--freemps", path, "--output", found]}[solver]  # fmt: skip
    subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    text = found.read_text()
    assert "-23" in text.split("\n")[0 if solver == "cbc" else 5], text
