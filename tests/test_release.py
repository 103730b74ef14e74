"""A release says one version everywhere, and what CITATION.cff holds can be cited."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_one_version():
    version = PROJECT["project"]["version"]
    heading = re.search(
        r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M
    )
    assert heading is not None
    assert heading[1] == CITATION["version"] == version


def test_the_citation_has_what_the_format_requires_and_dates_what_is_released():
    assert {"cff-version", "message", "title", "authors", "license"} <= CITATION.keys()
    assert CITATION["license"] == PROJECT["project"]["license"]
    released = "(unreleased)" not in CHANGELOG.partition("\n## ")[2].partition("\n")[0]
    assert ("date-released" in CITATION) == released


def test_the_lock_pins_what_development_needs_without_an_index():
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pinned = {m.lower() for m in re.findall(r"^([\w.-]+)==", lock, re.M)}
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.match(r"[\w.-]+", w)[0].lower() for w in wanted} - {"optmodels"}
    assert names <= pinned
    assert "://" not in lock
    assert "--index" not in lock


def test_nothing_is_imported_that_only_some_systems_have():
    """Such imports stand inside of a function with another way beside them."""
    posix = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
    for package in ("optmodels", "formulations"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert not posix & {n.partition(".")[0] for n in names}, file


def test_classifiers_name_every_python_that_is_allowed():
    lowest = re.fullmatch(r">=3\.(\d+)", PROJECT["project"]["requires-python"])
    named = re.findall(r"Python :: 3\.(\d+)$", "\n".join(PROJECT["project"]["classifiers"]), re.M)
    assert [int(n) for n in named] == list(range(int(lowest[1]), int(lowest[1]) + len(named)))
    assert len(named) == 3
