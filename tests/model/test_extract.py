"""A plan is read from solved models only."""

from importlib import import_module

import pytest

from optmodels import load, shipped, tables
from optmodels.errors import SolverError


@pytest.mark.parametrize(
    "instance",
    [
        "cost_efficiency/textbook/hand-checkable",
        "fleet/day-and-night",
        "orchestration/textbook-two-servers",
        "reserved_capacity/textbook-two-regions",
    ],
)
def test_nothing_is_extracted_from_a_model_that_nobody_solved(instance):
    problem = load(shipped.root() / f"{instance}.yaml")
    table = tables(problem)
    formulation = import_module(f"formulations.{problem.formulation}")
    with pytest.raises(SolverError, match="no values"):
        formulation.extract(formulation.build(problem, table), table)
