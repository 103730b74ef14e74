"""`optmodels new formulation`: what it writes runs where it lies, passes its test, and installed is a full citizen."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import commands
import pytest

import optmodels
from formulations.fleet import FORMULATION
from optmodels import formulation as registry
from optmodels.errors import InputError
from optmodels.model.golden import parse
from optmodels.study.explanation.margins import _gain

ROOT = Path(__file__).parents[2]
WALK = ROOT / "docs" / "own-formulation.md"


@pytest.fixture
def beside(tmp_path):
    """A folder with a new formulation my_counts, and Python started in it."""
    assert optmodels.new("formulation", "my_counts", tmp_path) == str(tmp_path / "my_counts")

    def python(*arguments: str, site: str = "", **environment: str) -> commands.Run:
        path = os.pathsep.join(p for p in (site, str(ROOT)) if p)
        return commands.python(*arguments, cwd=tmp_path, timeout_s=300, PYTHONPATH=path, **environment)

    return tmp_path, python


def test_it_has_the_files_of_the_example_under_its_own_name(beside):
    folder, _ = beside
    example = ROOT / "optmodels" / "scaffold" / "machine_counts"
    expected = {p.relative_to(example).as_posix() for p in example.rglob("*") if p.is_file()}
    expected = {p.replace("machine_counts", "my_counts").replace(".py.txt", ".py") for p in expected}
    found = {p.relative_to(folder / "my_counts").as_posix(): p for p in folder.rglob("*") if p.is_file()}
    assert found.keys() == expected and "test_my_counts.py" in expected
    assert not [name for name, path in found.items() if "machine_counts" in path.read_text(encoding="utf-8")]


@pytest.mark.slow
def test_it_runs_without_being_installed(beside):
    """Slow: each verb is a process that imports all libraries."""
    _, python = beside
    done = python("-m", "my_counts", "my_counts/template.yaml", "--out", "results")
    assert done.status == 0 and "Independent check: passed" in done.out, done.err
    assert python("-m", "my_counts", "check", "results/template-exact").status == 0
    done = python("-m", "my_counts", "report", "results/template-exact", "--out", "page.html")
    assert done.status == 0, done.err
    rows = json.loads(python("-m", "my_counts", "compare", "my_counts/template.yaml", "--json").out)
    assert [(r["method"], r["status"], r["check"]["ok"]) for r in rows] == [
        ("exact", "optimal", True), ("greedy", "feasible", True)
    ]  # fmt: skip
    assert rows[0]["objective"] < rows[1]["objective"]


def test_its_script_refuses_instances_of_another_formulation(beside):
    _, python = beside
    done = python("-m", "my_counts", str(ROOT / "instances" / "fleet" / "day-and-night.yaml"))
    assert done.status == 2 and "expected my_counts" in done.err


def test_before_it_is_installed_the_command_says_how(beside):
    folder, python = beside
    done = python("-m", "optmodels", "solve", "my_counts/template.yaml")
    assert done.status == 2 and done.err.strip().endswith("pip install -e my_counts")
    (folder / "my_counts" / "pyproject.toml").write_text("[project", encoding="utf-8")
    done = python("-m", "optmodels", "solve", "my_counts/template.yaml")
    assert done.status == 2 and "expected one of cost_efficiency" in done.err


@pytest.mark.slow
def test_installed_it_is_known_to_every_verb(beside):
    """Slow: pip installs a package, and each verb is a process."""
    folder, python = beside
    done = python("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index",
                  "--no-build-isolation", "--target", "site", "./my_counts")  # fmt: skip
    assert done.status == 0, done.err
    (folder / "my_counts").rename(folder / "away")  # what runs now is what was installed

    def verb(*arguments: str) -> str:
        done = python("-m", "optmodels", *arguments, site=str(folder / "site"))
        assert done.status == 0, done.err + done.out
        return done.out

    assert "my_counts" in verb("list", "formulations") and "my_counts" in verb("list", "methods")
    verb("new", "my_counts", "mine.yaml")
    verb("solve", "mine.yaml", "--out", "results")
    solved = json.loads((folder / "results" / "mine-exact" / "plan.json").read_text(encoding="utf-8"))
    assert solved["status"] == "optimal" and solved["bound"] == pytest.approx(solved["objective"])
    assert "ok" in verb("check", "results/mine-exact")
    verb("report", "results/mine-exact", "--out", "page.html")
    assert len(json.loads(verb("compare", "mine.yaml", "--json"))) == 2
    explained = json.loads(verb("explain", "mine.yaml", "--max-solves", "20", "--json"))
    assert "demand of chat at least 9,000 tokens/s" in {line["limit"]["words"] for line in explained["limits"]}
    assert len(json.loads(verb("tables", "mine.yaml", "--json"))["operating_points"]) == 7
    assert json.loads(verb("schema", "my_counts"))["properties"]["services"]
    assert "demand_met(0)" in verb("export", "results/mine-exact", "--to", "lp")
    swept = verb("sweep", "mine.yaml", "--vary", "budget_usd_per_hour=13:15:2", "--workers", "2", "--json")
    assert [r["status"] for r in json.loads(swept)["rows"]] == ["optimal", "optimal"]


@pytest.mark.slow
def test_it_passes_its_own_test(beside):
    """Slow: pytest in a process of its own."""
    _, python = beside
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "my_counts")
    assert done.status == 0, done.out


@pytest.mark.slow
def test_the_walk_through_adds_a_constraint(beside):
    """The change printed on the page applies; its rows and table are new to the tests, and right once written.

    Slow: pytest in processes of its own, before and after the change.
    """
    folder, python = beside
    page = WALK.read_text(encoding="utf-8")
    change = re.search(r"^```diff\n(.*?)^```", page, flags=re.M | re.S)
    assert change is not None
    subprocess.run(["git", "apply", "-"], cwd=folder, input=change[1], text=True, check=True)
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "my_counts")
    failed = set(re.findall(r"^FAILED \S+::(\w+)", done.out, flags=re.M))
    assert failed == {"test_rows_are_those_reviewed", "test_readme_has_the_families"}, done.out
    assert python("-m", "optmodels.model.document", "my_counts.model", "my_counts/README.md").status == 0
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "my_counts", OPTMODELS_REGENERATE="1")
    assert done.status == 0, done.out
    golden = parse((folder / "my_counts" / "golden.txt").read_text(encoding="utf-8"))
    printed = parse("\n".join(re.findall(r"^\+(spot_share\[\d\]: .*)$", page, flags=re.M)))
    assert len(printed.rows) == 2
    assert {name: row for name, row in golden.rows.items() if name.startswith("spot_share")} == printed.rows
    done = python("-m", "my_counts", "explain", "my_counts/template.yaml")
    [said] = re.findall(r"^  • spot share at most 20 %: .*?, at 20\.2 % nothing changes;", page, flags=re.M)
    assert said in done.out


def test_pages_say_what_limits_do_in_the_words_of_explain():
    """Cheap, so that every run has it: pages whose command is not run have sentences of `explain`, too."""
    printed = [line for page in sorted((ROOT / "docs").glob("*.md")) for line in page.read_text("utf-8").splitlines()
               if ": binds; without it " in line]  # fmt: skip
    assert any("spot share" in line for line in printed) and len(printed) > 1
    words = _gain(1.0, "USD/h").split(" by ")[0]
    assert [line for line in printed if f": binds; without it {words} by " not in line] == []


@pytest.mark.parametrize(
    "name",
    ["fleet", "formulation", "plan", "numpy", "json", "optmodels", "class", "My_counts", "a-b", "a__b", "a_", "1a", "",
     "../a", "ä", "a" * 61],
)  # fmt: skip
def test_a_name_that_is_none_or_taken_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="name: got"):
        optmodels.new("formulation", name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "file").write_text("", encoding="utf-8")
    for parent in (tmp_path, tmp_path / "file"):
        with pytest.raises(InputError):
            optmodels.new("formulation", "mine", parent)
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["formulation"], "a name for the new formulation"),
        (["formulation", "mine", "--force"], "neither --from nor --force"),
        (["formulation", "mine", "--from", "day"], "neither --from nor --force"),
        (["fleet", "a.yaml", "b"], "nothing after the problem file"),
    ],
)
def test_arguments_that_do_not_go_together(cli, arguments, expected):
    done = cli("new", *arguments)
    assert done.status == 2 and expected in done.err


def test_the_command_line_writes_it_where_it_is_told(cli, tmp_path):
    done = cli("new", "formulation", "mine", "below/here")
    assert (done.status, done.out) == (0, f"{Path('below/here/mine')}\n")


def test_a_formulation_may_be_registered_for_one_process():
    mine = replace(FORMULATION, name="mine")
    with pytest.raises(InputError, match="expected one of"):
        registry.get("mine")
    try:
        registry.register(mine)
        assert registry.get("mine") is mine and "mine" in registry.names()
    finally:
        registry._registered().pop("mine", None)
        registry.get.cache_clear()
