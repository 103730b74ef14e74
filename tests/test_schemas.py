"""The published JSON Schemas are current, and every shipped instance and every result fits them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from conftest import ROOT

import optmodels
from optmodels import formulation
from optmodels.errors import InputError
from optmodels.schemas import names, schema

PUBLISHED = ROOT / "docs/schema"
INSTANCES = optmodels.list("instances", ROOT / "instances")


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


@pytest.mark.parametrize("name", names())
def test_bounds_are_named_as_json_schema_names_them(name):
    """Editors ignore any other word."""
    assert not {'"ge":', '"gt":', '"le":', '"lt":'} & set(json.dumps(schema(name)).split())


def test_no_published_file_is_of_something_gone():
    assert {p.name for p in PUBLISHED.iterdir()} == {f"{n}.schema.json" for n in names()}


@pytest.mark.parametrize("name", formulation.names())
def test_every_shipped_instance_fits(name):
    check = validator(name)
    mine = [Path(r["file"]) for r in INSTANCES if r["formulation"] == name]
    check.validate(plain(optmodels.new(name)))
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


def spoilt(document):
    """Copies with an unknown key, and without each of the keys that are always there."""
    yield document | {"not_a_key": 1}
    for key in ("formulation", "instance", "status", "rows", "speed"):
        if key in document:
            yield {k: v for k, v in document.items() if k != key}


@pytest.mark.parametrize(
    "file", ["cost_efficiency/textbook/nobody-is-fast-enough.yaml", "cost_efficiency/table_ix/batch-budget-2.0.yaml",
             "fleet/stock-limited.yaml"],
)  # fmt: skip
def test_explanations_fit_and_others_do_not(file):
    check = validator("explanation")
    found = optmodels.explain(ROOT / "instances" / file, time_limit=20, max_solves=12)
    document = json.loads(found.to_json())
    check.validate(document)
    assert all(not check.is_valid(d) for d in spoilt(document))
    document["problem"]["not_a_key"] = 1
    assert not check.is_valid(document)


def test_comparisons_sweeps_and_replays_fit_and_others_do_not(cli, tmp_path):
    """As the command line writes them, with plan and without, replayed and not."""
    small, none, fleet, servers = (
        ROOT / "instances" / f for f in (
            "cost_efficiency/table_ix/batch-budget-2.0.yaml", "cost_efficiency/textbook/nobody-is-fast-enough.yaml",
            "fleet/stock-limited.yaml", "orchestration/textbook-two-servers.yaml",
        )
    )  # fmt: skip
    check = validator("compare")
    methods = "exact,greedy_dp,kvo_disk,melange,maaso_star"
    run = cli("compare", small, none, fleet, servers, "--methods", methods, "--replay", "--time-limit", 10, "--json",
              "--out", tmp_path)  # fmt: skip
    rows = json.loads(run.out)
    check.validate(rows)
    check.validate(json.loads((tmp_path / "compare" / "compare.json").read_text()))
    assert {r["formulation"] for r in rows} == {"cost_efficiency", "fleet", "orchestration"}
    assert any(k.startswith("replay.policies.") for r in rows for k in r) and any(r["objective"] is None for r in rows)
    assert all(not check.is_valid([row]) for row in spoilt(rows[0]))

    check = validator("sweep")
    for more in ((), ("--pareto", "budget_usd_per_hour:min,objective:max", "--out", tmp_path / "swept")):
        run = cli("sweep", small, "--vary", "budget_usd_per_hour=0.1:3:3", "--workers", 1, "--json", *more)
        document = json.loads(run.out)
        check.validate(document)
    check.validate(json.loads((tmp_path / "swept" / "sweep.json").read_text()))
    assert all(not check.is_valid(d) for d in spoilt(document))

    check = validator("replay")
    cli("solve", servers, "--out", tmp_path / "solved")
    (plan,) = (tmp_path / "solved").rglob("plan.json")
    for more in ((), ("--out", tmp_path / "replayed", "--policy", "least_load")):
        run = cli("replay", plan, "--json", *more)
        assert run.status == 0, run.err
        document = json.loads(run.out)
        check.validate(document)
    (file,) = (tmp_path / "replayed").rglob("replay.json")
    check.validate(json.loads(file.read_text()))
    assert all(not check.is_valid(d) for d in spoilt(document))


def test_what_runs_today_fits_and_mistakes_do_not():
    """The examples of the guide, and what `evaluate` refuses for its form."""
    check = validator("current")
    texts = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/evaluate.md").read_text(encoding="utf-8"), flags=re.S)
    today, cluster = map(plain, texts)
    check.validate(today)
    check.validate(cluster)
    assert not check.is_valid(cluster | {"refuse_late": "perhaps"})
    first = today["deployments"][0]
    nothing, nobody = first | {"replicas": 0}, first | {"workloads": []}
    for wrong in ({"not_a_key": 1}, {"dispatcher": "fifo"}, {"schema": 2}, {"deployments": []},
                  {"deployments": [nothing]}, {"deployments": [nobody]}):  # fmt: skip
        assert not check.is_valid(today | wrong), wrong
        with pytest.raises(InputError):
            optmodels.evaluate(today | wrong, problem=ROOT / "instances/fleet/day-and-night.yaml")


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
