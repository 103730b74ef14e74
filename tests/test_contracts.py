"""The import contract of the checks is in force for every formulation, and holds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
CONTRACT = next(c for c in CONTRACTS if c["name"].startswith("A check shares nothing"))
CHECKS = [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in sorted(ROOT.glob("formulations/*/check*.py"))]


def named(module: str, patterns: list[str]) -> bool:
    """Whether import-linter's patterns name it (a star stands for one name)."""
    return any(re.fullmatch(re.escape(p).replace(r"\*", r"[^.]+"), module) for p in patterns)


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("optmodels", "formulations", "papers", cache_dir=None)


def test_the_contract_counts_indirect_imports() -> None:
    assert CONTRACT["type"] == "forbidden"
    assert not {"allow_indirect_imports", "ignore_imports"} & set(CONTRACT)


def test_every_folder_of_a_formulation_has_a_check() -> None:
    folders = {p.parent.name for p in ROOT.glob("formulations/*/__init__.py")}
    assert folders == {m.split(".")[1] for m in CHECKS}


@pytest.mark.parametrize("module", CHECKS)
def test_no_check_reaches_what_makes_plans(module: str, graph: grimp.ImportGraph) -> None:
    assert named(module, CONTRACT["source_modules"])
    folder = module.rpartition(".")[0]
    makers = {f"{folder}.{x}" for x in ("points", "making", "model", "flow", "methods")} & graph.modules
    assert len(makers) >= 4
    assert all(named(m, CONTRACT["forbidden_modules"]) for m in makers)
    reached = {m for m in graph.find_upstream_modules(module) if named(m, CONTRACT["forbidden_modules"])}
    assert not reached
