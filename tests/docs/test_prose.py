"""How README, docs, docstrings, comments and ``--help`` are written: short sentences, the field's words, word budgets.

``PYTHONPATH=tests:. python tests/docs/test_prose.py`` prints the figures of every page.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest
import yaml
from prose import CEILINGS, MEAN_WORDS, MOST_WORDS, ROOT, blocks, code_prose, entries, measure, rates, sentences
from typer.main import get_group

from optmodels.cli import command_line

README = ROOT / "README.md"
FORMULATIONS = sorted((ROOT / "formulations").glob("*/README.md"))
DOCS = sorted(p for p in (ROOT / "docs").rglob("*.md") if "keys" not in p.relative_to(ROOT).parts)  # keys/ is generated
PAGES = [README, *DOCS, *FORMULATIONS]
HOUSE = [ROOT / name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]  # no budget
CODE = sorted([*(ROOT / "optmodels").rglob("*.py"), *(ROOT / "formulations").rglob("*.py")])
TOTAL_WORDS = 40_000
BUDGETS = {"README.md": 900, "docs/engine.md": 2_420, "formulations": 2_000, "Tutorial": 2_000, "How-to guides": 800}


def key(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def kinds() -> dict[str, str]:
    """Section of the navigation by page of docs/."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]

    def pages(part: object) -> list[str]:
        if isinstance(part, str):
            return [part]
        return [p for inner in (part if isinstance(part, list) else part.values()) for p in pages(inner)]

    sections = [each for each in nav if isinstance(each, dict)]
    return {f"docs/{page}": section for each in sections for section, part in each.items() for page in pages(part)}


def budget(page: Path) -> int:
    """Most words of a page; a page without a budget of its own has that of a formulation's README."""
    name = key(page)
    if name.startswith("docs/results/"):
        return 4_000
    return BUDGETS.get(name) or BUDGETS.get(kinds().get(name, ""), BUDGETS["formulations"])


@pytest.mark.parametrize("page", [*PAGES, *HOUSE], ids=key)
def test_page_is_short_and_plain(page: Path) -> None:
    m = measure(page.read_text(encoding="utf-8"))
    assert m.mean <= MEAN_WORDS, "words a sentence"
    assert m.longest <= MOST_WORDS, m.longest_sentence
    assert not m.banned
    assert page in HOUSE or m.words <= budget(page), "words on the page"


def documentation() -> str:
    return "\n".join(
        s for p in [*PAGES, *HOUSE] for _, b in blocks(p.read_text(encoding="utf-8")) for s in sentences(b)
    )


def help_text() -> str:
    """Help of every verb and option."""
    found = []
    for command in get_group(command_line()).commands.values():
        found += [command.help or "", *(getattr(p, "help", None) or "" for p in command.params)]
    return "\n".join(found)


def test_documentation_has_at_most_40_000_words() -> None:
    assert sum(measure(p.read_text(encoding="utf-8")).words for p in PAGES) <= TOTAL_WORDS


@pytest.mark.parametrize("where", ["docs", "code", "help"])
def test_patterns_are_rare(where: str) -> None:
    text = {"docs": documentation, "code": lambda: code_prose(CODE), "help": help_text}[where]()
    found = rates(text)
    assert {n: r for n, r in found.items() if r > CEILINGS[n]} == {}, CEILINGS


def test_entries_of_args_begin_with_a_noun() -> None:
    total, bad = entries(CODE)
    assert bad <= 0.01 * total


@pytest.mark.parametrize(
    ("text", "longest", "banned"),
    [
        ("One two three. Four five, e.g. six.\n\n* Item of words\n  goes on.\n", 5, ()),
        ("| head |\n|---|\n| one two. Three `code of many words` four |\n", 3, ()),
        ("Prefill and decode apart; a crowd of drafts.\n", 8, ("apart", "drafts", "crowd")),
        ("Draft tokens of a draft model, in time bins of a closed-loop run.\n", 13, ()),
        ("```text\nnot counted, by chance\n```\nOver $a + b$ the row\nholds.\n", 5, ()),
    ],
)
def test_measure(text: str, longest: int, banned: tuple[str, ...]) -> None:
    m = measure(text)
    assert (m.longest, sorted(m.banned)) == (longest, sorted(banned))


if __name__ == "__main__":
    for each in PAGES:
        got = measure(each.read_text(encoding="utf-8"))
        sys.stdout.write(f"{key(each):42} {got.mean:5.1f} {got.longest:4} {len(got.banned):4} {got.words:6}\n")
