"""No figure, name or row of a solve document or of its tables can be changed unnoticed, but for what is listed."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import shutil
from pathlib import Path

import pytest
from document_cases import CASES
from tampering import containers, leaves, mutants, pattern, table_mutants, value_at

import optmodels
from optmodels import formulation
from optmodels.loading import load
from optmodels.plan.outcome import Result
from optmodels.verification import verify


@dataclasses.dataclass
class Solved:
    """A document in its folder, and a check of others like it that makes tables and report of equal plans once."""

    form: formulation.Formulation
    problem: object
    document: dict
    folder: Path

    def check(self, document, folder=None):
        """The verdict as `optmodels.check` gives it, where the instance is not what is changed."""
        return verify(self.form, self.problem, document, folder)


def remembering(form):
    """The formulation, with what depends on an equal plan made once."""
    made = {}

    def once(name):
        function = getattr(form, name)

        def call(*arguments):
            key = name, *(x.model_dump_json() for x in arguments[1:])
            if key not in made:
                made[key] = function(*arguments)
            return made[key]

        return call

    return dataclasses.replace(form, **{name: once(name) for name in ("tables", "report", "frames")})


@pytest.fixture(scope="module", params=[(f, name) for f in CASES for name in CASES[f]], ids=" ".join)
def solved(request, tmp_path_factory):
    name, case = request.param
    instance, method = CASES[name][case]
    out = tmp_path_factory.mktemp("out")
    result = optmodels.solve(instance, method, out=out)
    assert result.plan is not None, result.log
    folder = Path(result.log["folder"])
    document = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    return Solved(remembering(formulation.get(name)), load(document["problem"]), document, folder)


def test_the_document_as_written_passes(solved):
    for source in (solved.folder, solved.folder / "plan.json", solved.document):
        report = optmodels.check(source)
        assert report.ok, report.violations
    assert solved.check(solved.document, solved.folder).ok
    report = optmodels.check(solved.folder)
    assert {p.name for p in solved.folder.glob("*.csv")} == {n for n in report.rebuilt if n.endswith(".csv")}


def listed(path, good, report):
    """Whether the check takes the place on trust and says so, or says of a part that it now does."""
    where = pattern(path)
    return {t.path for t in report.trusted} - {t.path for t in good.trusted} or any(
        where == t.path or where.startswith((f"{t.path}.", f"{t.path}[")) for t in good.trusted
    )


def same_statement(solved, mutant):
    """Whether a changed document reads as the same one (a default left out)."""
    try:
        one, other = (Result.model_validate(d).model_dump() for d in (solved.document, mutant))
        schema = solved.form.plan
        one["plan"], other["plan"] = (schema.model_validate(d["plan"]).model_dump() for d in (one, other))
        return one == other
    except ValueError:
        return False


@pytest.mark.slow
def test_every_change_of_the_document_is_found_or_listed(solved):
    missed, tried, good = set(), 0, solved.check(solved.document)
    for what, path, mutant in mutants(solved.document):
        if "plan" not in mutant or not isinstance(mutant["plan"], dict) or "problem" not in mutant:
            continue  # refused as no document
        tried += 1
        try:
            report = solved.check(mutant)
            if report.ok and not listed(path, good, report) and not same_statement(solved, mutant):
                missed.add(what)
        except Exception as error:
            missed.add(f"{what} crashes: {error!r}")
    assert not missed, "\n" + "\n".join(sorted(missed))
    assert tried > 100


@pytest.mark.slow
def test_every_change_of_a_table_is_found(solved, tmp_path):
    for file in solved.folder.glob("*.csv"):
        rows = list(csv.reader(io.StringIO(file.read_text(encoding="utf-8"))))
        shutil.copytree(solved.folder, tmp_path / file.stem)
        missed = []
        for what, mutant in table_mutants(rows):
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(mutant)
            (tmp_path / file.stem / file.name).write_text(text.getvalue(), encoding="utf-8")
            if solved.check(solved.document, tmp_path / file.stem).ok:
                missed.append(what)
        assert not missed, f"{file.name}:\n" + "\n".join(missed)


def fields(schema, node=None, prefix=""):
    """Patterns of the scalars of a JSON schema; * for any key."""
    node = schema if node is None else node
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    choices = [c for c in node.get("anyOf", [node]) if c.get("type") != "null"]
    for choice in choices:
        if "$ref" in choice:
            yield from fields(schema, choice, prefix)
        elif "properties" in choice:
            for name, inner in choice["properties"].items():
                yield from fields(schema, inner, f"{prefix}.{name}" if prefix else name)
        elif choice.get("type") == "array":
            yield from fields(schema, choice["items"], f"{prefix}[]")
        elif choice.get("type") == "object" and choice.get("additionalProperties"):
            yield from fields(schema, choice["additionalProperties"], f"{prefix}.*")
        else:
            yield prefix


@pytest.mark.parametrize("name", CASES)
def test_the_cases_fill_every_field_of_the_plan(name):
    """A field that no case fills would be a field that nobody has tried to change."""
    filled = set()
    for instance, method in CASES[name].values():
        plan = optmodels.solve(instance, method).plan
        filled |= {pattern(p) for p in leaves(plan) if value_at(plan, p) is not None}
        filled |= {f"{pattern(p)}" for p in containers(plan)}
    empty = [
        f for f in dict.fromkeys(fields(formulation.get(name).plan.model_json_schema()))
        if not any(re.fullmatch(re.escape(f).replace(r"\*", "[^.]+"), have) for have in filled)
    ]  # fmt: skip
    assert not empty, empty
