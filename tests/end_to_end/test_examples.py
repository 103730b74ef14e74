"""The examples: two formulations in one model, and a package of somebody else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest
from commands import python

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def test_sharing_machines_beats_planning_one_after_the_other():
    bills = run_path(str(EXAMPLES / "shared_machines" / "shared_machines.py"))["compare"]()
    assert bills["together"] < bills["sequence"] < bills["apart"]
    assert bills["bound"] == pytest.approx(bills["together"], rel=1e-6)


def test_apart_is_what_the_two_files_cost_alone():
    import optmodels

    folder = EXAMPLES / "shared_machines"
    alone = optmodels.solve(folder / "interactive.yaml").objective
    alone += 730 * optmodels.solve(folder / "batch.yaml").objective
    bills = run_path(str(folder / "shared_machines.py"))["compare"]()
    assert bills["apart"] == pytest.approx(alone, rel=1e-6)


@pytest.fixture(scope="module")
def third_party(tmp_path_factory):
    """The example package installed into a folder of its own, and a command line that sees it."""
    folder = tmp_path_factory.mktemp("third_party")
    source = shutil.copytree(EXAMPLES / "third_party", folder / "source")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index",
         "--no-build-isolation", "--target", str(folder / "site"), str(source)],
        check=True, capture_output=True,
    )  # fmt: skip

    def run(*arguments: str, status: int = 0) -> str:
        done = python("-m", "optmodels", *arguments, cwd=folder, PYTHONPATH=str(folder / "site"))
        assert done.status == status, done.err + done.out
        return done.out

    run("new", "prefill_decode", "split.yaml")
    return run


@pytest.mark.slow
def test_third_party_formulation_is_a_full_citizen(third_party):
    """Slow: pip installs a package, and each verb is a process that imports all libraries."""
    assert "prefill_decode" in third_party("list", "formulations")
    solved = json.loads(third_party("solve", "split.yaml", "--json"))
    assert solved["status"] == "optimal" and solved["check"]["ok"]
    rows = json.loads(third_party("compare", "split.yaml", "--json"))
    by_method = {r["method"]: r["objective"] for r in rows}
    assert by_method["exact"] <= by_method["one_type"]
    third_party("solve", "split.yaml", "--out", "results")
    assert "ok" in third_party("check", "results/split-exact/plan.json")


def test_third_party_formulation_brute_force(third_party):
    solved = json.loads(third_party("solve", "split.yaml", "--json"))
    rate = 20.0
    rates = solved["report"]["rates"]

    def cheapest(key: str) -> float:
        """Least cost of instances with Σ rate ≥ 20, by dynamic programming over counts of each type."""
        best = {0.0: 0.0}
        for row in rates:
            new = dict(best)
            for done, cost in best.items():
                for n in range(1, 40):
                    total = min(done + n * row[key], rate)
                    if row[key] > 0 and cost + n * row["usd_per_hour"] < new.get(total, 1e9):
                        new[total] = cost + n * row["usd_per_hour"]
            best = new
        return best[rate]

    assert solved["objective"] == pytest.approx(cheapest("prefills_per_s") + cheapest("decodes_per_s"))


@pytest.mark.slow
def test_third_party_method_joins_a_formulation(third_party):
    """Slow: pip installs a package."""
    instance = str(ROOT / "instances" / "fleet" / "day-and-night.yaml")
    assert "cheapest_machine" in third_party("list", "methods")
    rows = json.loads(third_party("compare", instance, "--methods", "exact,cheapest_machine", "--json"))
    exact, theirs = rows
    assert theirs["check"]["ok"] and theirs["objective"] >= exact["objective"]
