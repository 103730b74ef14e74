"""Every command and every Python block of README and docs runs, and prints what the page shows."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from commands import python
from typer.main import get_group

from optmodels import load, tables
from optmodels.cli import command_line
from optmodels.model.document import written

ROOT = Path(__file__).parent.parent


def _outputs() -> Any:
    spec = spec_from_file_location("outputs", ROOT / "docs" / "site" / "outputs.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["outputs"] = module
    spec.loader.exec_module(module)
    return module


outputs = _outputs()
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "formulations").glob("*/README.md")])
FOLDERS = sorted(p.parent.name for p in (ROOT / "formulations").glob("*/model.py"))


def scripts(page: Path) -> list[str]:
    """Its Python blocks that are no files."""
    found = re.findall(r"^```python([^\n]*)\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return [text for info, text in found if "title=" not in info]


def forked(words: list[str], folder: Path) -> tuple[int, str]:
    """A command of a page, in a process forked from one that has the imports."""
    program, *rest = words
    typed = ["-m", program, *rest] if program == "optmodels" else rest
    done = python(*typed, cwd=folder, timeout_s=600, COLUMNS=outputs.COLUMNS)
    return done.status, done.out or done.err


def marked(page: Path) -> Any:
    """Pages that only run their commands are slow; those with documented output are compared in every run."""
    compared = any(b.has_output for b in outputs.blocks(page.read_text(encoding="utf-8")))
    name = f"{page.parent.name}-{page.stem}"
    return pytest.param(page, id=name) if compared else pytest.param(page, id=name, marks=pytest.mark.slow)


# Of several optima another HiGHS shows another: then only exit statuses are compared.
LOCKED = f"highspy=={version('highspy')} " in (ROOT / "requirements.lock").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [marked(p) for p in PAGES if outputs.blocks(p.read_text(encoding="utf-8"))])
def test_commands_of_the_page_run_and_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    """`make docs-outputs` writes today's output into the pages.

    Slow: each command is a process that imports all libraries and solves.
    """
    for block, step, status, printed in outputs.play(page, tmp_path, forked):
        assert status == block.exit_status, "\n".join([*step.words, *printed])
        if step.documented and LOCKED:
            shown = [outputs.masked(line) for line in block.shown(printed, step.documented)]
            assert [outputs.masked(line) for line in step.documented] == shown, " ".join(step.words)


def test_documented_output_that_differs_is_noticed() -> None:
    """Blocks are compared line by line: whole, first and last lines, and the lines of an excerpt."""
    text = "```console head=1 tail=1\n$ optmodels x\na 1\n…\nc 3\n```\n```console\n$ optmodels y\n…\nb is 2\n…\n```\n"
    first, second = outputs.blocks(text)
    printed = ["a 1", "b is 7", "c 3"]
    assert first.shown(printed, first.steps[0].documented) == first.steps[0].documented
    assert first.shown(["a 2", "c 3"], []) == ["a 2", "c 3"]
    assert second.shown(printed, second.steps[0].documented) == ["…", "b is 7", "…"]
    timing = "{} s: build {}, solve 0.01; 9 kept"
    assert outputs.masked(timing.format("1.24", "0.60")) == outputs.masked(timing.format("7.00", "5.00"))


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if scripts(p)], ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_python_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    """In a process of its own, as a reader runs it; what it writes is no part of the repository.

    Slow: each page is a process that imports all libraries and solves.
    """
    for name in ("instances", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    for text in scripts(page):
        done = python("-c", text, cwd=tmp_path, timeout_s=600)
        assert done.status == 0, done.out + done.err


def test_costs_of_the_comparison_are_current() -> None:
    """Of the ways that cost nothing to run again; their CPU is of the run that wrote the page."""
    spec = spec_from_file_location("comparison", ROOT / "benchmarks" / "comparison.py")
    assert spec is not None and spec.loader is not None
    comparison = module_from_spec(spec)
    spec.loader.exec_module(comparison)

    def without_cpu(line: str) -> str:
        cells = line.split(" | ")
        return " | ".join([*cells[:4], *cells[5:]])

    page = [without_cpu(line) for line in comparison.PAGE.read_text(encoding="utf-8").splitlines()]
    rows = [without_cpu(line) for line in comparison.slices() if "Mélange" in line]
    assert len(rows) == 5 and set(rows) <= set(page)
    problem = load(ROOT / "instances/fleet/aws-six-workloads.yaml")
    usd, words = comparison.sized(problem, tables(problem))
    assert sum(f"{usd:.5g}" in line and ", ".join(words) in line for line in page) == 1


@pytest.mark.parametrize("folder", FOLDERS)
def test_excerpt_of_a_problem_file_is_in_that_file(folder: str) -> None:
    page = (ROOT / f"formulations/{folder}/README.md").read_text(encoding="utf-8")
    ((name, excerpt),) = re.findall(r"```yaml\n# part of (.*?)\n(.*?)```", page, flags=re.S)
    lines = iter((ROOT / name).read_text(encoding="utf-8").splitlines())
    assert all(line in lines for line in excerpt.splitlines())  # in this order


def test_links_between_pages_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_tables_of_families_are_current(folder: str) -> None:
    """Every family of a formulation beside its inequality, as its code says it."""
    readme = ROOT / "formulations" / folder / "README.md"
    families = import_module(f"formulations.{folder}.model").FAMILIES
    assert readme.read_text(encoding="utf-8") == written(readme.read_text(encoding="utf-8"), families, str(readme))


def test_every_page_is_in_the_index_and_the_site_and_every_verb_has_its_page() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (p.name for p in (ROOT / "docs").glob("*.md")):
        assert page == "index.md" or f"]({page})" in index, page
        assert f"- {'Home: ' * (page == 'index.md')}{page}\n" in site, page
    links = re.findall(r"\]\(([^)]*)\)", index.split("## How-to guides")[1])  # above are first steps
    assert len(links) == len(set(links)), "a page is listed twice"
    pages = dict(re.findall(r"\[([^\]]*)\]\(([^)]*)\)", index))
    rows = re.findall(r"^\| (`.*?`) \| (?:\[.*?\]\((.*?)\)|(.*?), above) \| .* \|$", index, flags=re.M)
    explained = {verb: page or pages[above] for verbs, page, above in rows for verb in re.findall(r"`([\w-]+)`", verbs)}
    assert set(explained) == set(get_group(command_line()).commands)
    for verb, page in explained.items():
        assert f"optmodels {verb}" in (ROOT / "docs" / page).read_text(encoding="utf-8"), verb


@pytest.mark.parametrize("folder", FOLDERS)
def test_embedding_names_what_attach_puts_on_a_block(folder: str) -> None:
    """Every variable and expression that a formulation's model states, and none that it does not."""
    code = (ROOT / "formulations" / folder / "model.py").read_text(encoding="utf-8")
    stated = set(re.findall(r"self\.(?:variable|expression)\(\s*\"(\w+)\"", code))
    stated |= {name for names in re.findall(r"self\.variable\(name, .*for name in \(([^)]*)\)", code)
               for name in re.findall(r"\w+", names)}  # fmt: skip
    page = (ROOT / "docs/embedding.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith(f"| {folder.replace('_', ' ')} | "))
    named = set(re.findall(r"`(\w+)\[", row)) | set(re.findall(r"`(\w+)`", row.rpartition(" | ")[2]))
    assert stated - {"T"} == named, row  # T has no index
