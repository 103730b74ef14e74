"""Every command and every Python block of README and docs runs."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from commands import python
from typer.main import get_group

from optmodels import load, tables
from optmodels.cli import app
from optmodels.model.document import written

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "formulations").glob("*/README.md")])
COMMANDS = ("optmodels", "python")


def blocks(page: Path, language: str) -> list[tuple[str, str]]:
    """(info string, text) of the fenced blocks of one language."""
    found = re.findall(r"^```(\w+)([^\n]*)\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return [(info, text) for name, info, text in found if name == language]


def commands(page: Path) -> list[tuple[list[str], int]]:
    """Command lines of ``console`` blocks with the exit status their info string promises."""
    lines = []
    for info, text in blocks(page, "console"):
        expected = int(m[1]) if (m := re.search(r"exit=(\d)", info)) else 0
        typed = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
        lines += [(shlex.split(line), expected) for line in typed if line.split()[0] in COMMANDS]
    return lines


def files(page: Path) -> dict[str, str]:
    """The files that a reader types: blocks with a title."""
    found = re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return dict(found)


def scripts(page: Path) -> list[str]:
    """Its Python blocks that are no files."""
    return [text for info, text in blocks(page, "python") if "title=" not in info]


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_commands_of_the_page_run(page: Path, tmp_path: Path) -> None:
    (tmp_path / "instances").symlink_to(ROOT / "instances")
    for name, text in files(page).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for words, expected in commands(page):
        program, *rest = words
        done = python(*(["-m", program, *rest] if program == "optmodels" else rest), cwd=tmp_path, timeout_s=600)
        assert done.status == expected, f"{words}: {done.out}{done.err}"


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if scripts(p)], ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_python_of_the_page_runs(page: Path) -> None:
    """In a process of its own, as a reader runs it."""
    for text in scripts(page):
        done = python("-c", text, cwd=ROOT, timeout_s=600)
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


def test_links_between_pages_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("folder", sorted(p.parent.name for p in (ROOT / "formulations").glob("*/model.py")))
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
        assert f"- {page}\n" in site, page
    links = re.findall(r"\]\(([^)]*)\)", index)
    assert len(links) == len(set(links)), "a page is listed twice"
    pages = dict(re.findall(r"\[([^\]]*)\]\(([^)]*)\)", index))
    rows = re.findall(r"^\| (`.*?`) \| (?:\[.*?\]\((.*?)\)|(.*?), above) \| .* \|$", index, flags=re.M)
    explained = {verb: page or pages[above] for verbs, page, above in rows for verb in re.findall(r"`([\w-]+)`", verbs)}
    assert set(explained) == set(get_group(app).commands)
    for verb, page in explained.items():
        assert f"optmodels {verb}" in (ROOT / "docs" / page).read_text(encoding="utf-8"), verb


@pytest.mark.parametrize("folder", sorted(p.parent.name for p in (ROOT / "formulations").glob("*/model.py")))
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
