"""The key reference: whole, current, and its links lead somewhere."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

import optmodels
from optmodels import formulation
from optmodels.errors import InputError
from optmodels.keys import keys, reference

NAMES = formulation.names()
INSTANCES = optmodels.list("instances", ROOT / "instances")
PAGES = ROOT / "docs/keys"
SHIPPED = {
    name: sorted((r for r in INSTANCES if r["formulation"] == name), key=lambda r: Path(r["file"]).stat().st_size)[:12]
    for name in NAMES
}


@pytest.mark.parametrize("name", NAMES)
def test_the_published_page_is_current(name):
    text, file = reference(name), PAGES / f"{name}.md"
    if os.environ.get("OPTMODELS_REGENERATE"):
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text, "OPTMODELS_REGENERATE=1 pytest tests/test_keys.py writes it"


@pytest.mark.parametrize("name", NAMES)
def test_every_key_says_what_it_means(name):
    assert [key for key, meaning in keys(name) if not meaning] == []


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_headings(name):
    text = reference(name)
    anchors = [re.sub(r"[^a-z0-9_ -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^## (.*)$", text, re.M)]
    assert len(set(anchors)) == len(anchors)
    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= set(anchors)


def written(value, holder=""):
    """(key of the section, key) of everything in an instance."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield holder, str(key)
            yield from written(inner, str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from written(inner, holder)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_of_template_and_shipped_instances_is_there(name):
    known = {key.rpartition(".")[2] for key, _ in keys(name)}
    by_name = set(re.findall(r"^\| `(\w+)` \| [^|]*name → ", reference(name), re.M))  # whose keys are the user's
    found = 0
    for text in [optmodels.new(name), *(Path(r["file"]).read_text(encoding="utf-8") for r in SHIPPED[name])]:
        for holder, key in written(yaml.safe_load(text)):
            assert key in known or holder in by_name or holder not in known, f"{holder}.{key}"
            found += key in known
    assert found > 50


def test_rows_say_type_unit_default_and_limit():
    text = reference("fleet")
    assert "| `budget_usd_per_hour` | number ≥ 0 | USD/h † | none | upper limit | most USD/h for all machines" in text
    assert "| `recovery_s` | number > 0 | s † | `600.0` |  | time until the replacement serves |" in text
    assert "| `requests_per_s` | number ≥ 0 | requests/s † | none |" in text
    assert "| `on_demand` | number > 0 | USD/h † | none | price |" in text
    assert "| `percentile` | number > 0, < 1 |  | required |" in text
    assert "## `services[].demand`, kind: diurnal" in reference("reserved_capacity")


def test_the_command_line_prints_it(cli):
    done = cli("schema", "cost_efficiency", "--keys")
    assert (done.status, done.out) == (0, reference("cost_efficiency"))
    assert cli("schema", "plan", "--keys").status == 2
    with pytest.raises(InputError, match="fleet"):
        reference("flet")
