"""The fewest GPUs that attain a share of the requests, by trying every number of every instance."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from orchestration_cases import handful

import optmodels
from formulations.orchestration.place import place
from formulations.orchestration.points import build_tables
from formulations.orchestration.rounding import scheduled
from optmodels.cli import run
from optmodels.errors import InputError
from optmodels.plans.fewest import least_number
from optmodels.plans.outcome import Result


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("attainment", [0.4, 0.8, 1.0])
def test_it_is_that_of_brute_force(seed, attainment):
    given = handful(6, seed=seed)
    t = build_tables(optmodels.load(given | {"objective": {"kind": "lexicographic", "order": ["attainment"]}}))
    most = int(t.case.free_gpus[0])
    fewest = None
    for counts in itertools.product(*(range(most // g + 1) for g in t.gpus_of)):
        gpus = int(np.dot(counts, t.gpus_of))
        if gpus > most or (fewest is not None and gpus >= fewest) or place(t, np.array(counts)) is None:
            continue
        best = scheduled(t, np.array(counts))
        if best is not None and best.objective >= attainment - 1e-6:
            fewest = gpus
    found = optmodels.fewest_gpus(given, attainment)
    assert found["gpus"] == fewest
    assert found["bound"] == fewest


def solved(attained, bound, status="feasible"):
    return Result.model_construct(objective=attained, bound=bound, status=status)


def test_a_number_that_nothing_is_shown_of_keeps_the_bound():
    """10 GPUs attain 1.0; each attains a tenth. Up to 5 the bound proves it, from 6 to 8 a limit stops the solves."""

    def solve(gpus):
        return solved(gpus / 10, 1.0 if 6 <= gpus <= 8 else gpus / 10)

    found = least_number(10, 0.85, solve, lambda r: round(10 * r.objective))
    assert (found.gpus, found.bound) == (9, 6)
    assert [x["gpus"] for x in found.tried] == [10, 5, 7, 8, 9]
    none = least_number(10, 0.85, lambda g: solved(g / 20, g / 20), lambda r: 0)
    assert (none.gpus, none.bound) == (None, None)


def test_gpus_of_several_types_are_not_counted(capsys, tmp_path):
    servers = [{"server": "a", "gpu": "v100-16g-pcie", "gpus": 1}, {"server": "b", "gpu": "h100", "gpus": 1}]
    with pytest.raises(InputError, match="GPUs of one type"):
        optmodels.fewest_gpus(handful(3, cluster={"servers": servers}), 0.5)
    assert run(["fewest-gpus", str(tmp_path / "none.yaml")]) == 2
