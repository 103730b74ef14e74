"""A release says one version everywhere, and what CITATION.cff holds can be cited."""

from __future__ import annotations

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
