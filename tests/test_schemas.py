"""The published JSON Schemas are current, and every shipped instance and every result fits them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest
import yaml
from conftest import ROOT

import optmodels
from optmodels import api, formulation
from optmodels.errors import InputError
from optmodels.schemas import names, schema

PUBLISHED = ROOT / "docs/schema"
INSTANCES = api.listing("instances", ROOT / "instances")


def plain(text):
    """YAML as JSON data; YAML reads dates, JSON has them as text."""
    return json.loads(json.dumps(yaml.safe_load(text), default=str))


def validator(name):
    found = schema(name)
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


@pytest.mark.parametrize("name", names())
def test_the_published_file_is_current(name):
    text = json.dumps(schema(name), indent=2, ensure_ascii=False) + "\n"
    file = PUBLISHED / f"{name}.schema.json"
    if os.environ.get("OPTMODELS_REGENERATE"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text, "OPTMODELS_REGENERATE=1 pytest tests/test_schemas.py writes it"


def test_no_published_file_is_of_something_gone():
    assert {p.name for p in PUBLISHED.iterdir()} == {f"{n}.schema.json" for n in names()}


@pytest.mark.parametrize("name", formulation.names())
def test_every_shipped_instance_fits(name):
    check = validator(name)
    mine = [Path(r["file"]) for r in INSTANCES if r["formulation"] == name]
    check.validate(plain(api.new(name)))
    for file in mine:
        document = plain(file.read_text(encoding="utf-8"))
        check.validate(document)
        document["not_a_key"] = 1
        assert not check.is_valid(document)


@pytest.mark.parametrize(
    "file",
    [
        "cost_efficiency/table_ix/batch-budget-2.0.yaml", "cost_efficiency/textbook/nobody-is-fast-enough.yaml",
        "fleet/stock-limited.yaml", "fleet/day-and-night.yaml", "reserved_capacity/textbook-growth-and-scenarios.yaml",
    ],
)  # fmt: skip
def test_results_fit_and_others_do_not(file):
    check = validator("plan")
    document = json.loads(optmodels.solve(ROOT / "instances" / file).to_json())
    check.validate(document)
    if document["plan"] is not None:
        document["plan"]["not_a_key"] = 1
        assert not check.is_valid(document)


def test_quantities_may_carry_a_unit_and_must_be_in_range():
    check = validator("cost_efficiency")
    document = yaml.safe_load((ROOT / "instances/cost_efficiency/table_ix/batch-budget-2.0.yaml").read_text())
    for good in (2, 2.5, "2.5 USD/h"):
        check.validate(document | {"budget_usd_per_hour": good})
    for bad in (-1, "two", True, []):
        assert not check.is_valid(document | {"budget_usd_per_hour": bad}), bad


def test_unknown_names_and_the_command_line(cli):
    with pytest.raises(InputError, match="did you mean fleet"):
        schema("flet")
    run = cli("schema", "fleet")
    assert run.status == 0
    assert json.loads(run.out) == schema("fleet")
    assert cli("schema", "nothing").status == 2
