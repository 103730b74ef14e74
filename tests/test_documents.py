"""No figure, name or row of a solve document or of its tables can be changed unnoticed, but for what is listed."""

from __future__ import annotations

import contextlib
import copy
import csv
import dataclasses
import functools
import io
import json
import re
import shutil
from pathlib import Path

import pytest
from conftest import tiny_problem
from document_cases import CASES, CERTIFIED
from orchestration_cases import two_models
from tampering import containers, leaves, mutants, pattern, table_mutants, value_at

import optmodels
from formulations.orchestration import check as orchestration_check
from formulations.orchestration import named
from optmodels import formulation
from optmodels.errors import InputError
from optmodels.loading import load
from optmodels.plans.outcome import Result
from optmodels.verification import verify


@dataclasses.dataclass
class Solved:
    """A document in its folder, and a check of others like it that makes tables and report of equal plans once."""

    form: formulation.Formulation
    problem: object
    document: dict
    folder: Path
    elsewhere: frozenset  # patterns of places that the formulation's first document tries in full

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


def once_each(function):
    """The function of an instance, called once for each: here only plans are changed."""
    made = {}

    def call(problem, *plan):
        if plan:  # recomputed from its lines
            return function(problem, *plan)
        if id(problem) not in made:
            made[id(problem)] = problem, function(problem)  # the instance is kept, so that no other has its id
        return made[id(problem)][1]

    return call


@functools.cache
def places_of_the_first(name):
    """Patterns of the scalars of a formulation's first document."""
    instance, method = next(iter(CASES[name].values()))
    return frozenset(map(pattern, leaves(optmodels.solve(instance, method).model_dump(mode="json", by_alias=True))))


@pytest.fixture(scope="module", params=[(f, name) for f in CASES for name in CASES[f]], ids=" ".join)
def solved(request, tmp_path_factory):
    name, case = request.param
    instance, method = CASES[name][case]
    out = tmp_path_factory.mktemp("out")
    result = optmodels.solve(instance, method, out=out)
    assert result.plan is not None, result.log
    folder = Path(result.log["folder"])
    document = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    elsewhere = frozenset() if case == next(iter(CASES[name])) else places_of_the_first(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orchestration_check, "recompute", once_each(orchestration_check.recompute))
        yield Solved(remembering(formulation.get(name)), load(document["problem"]), document, folder, elsewhere)


def test_the_document_as_written_passes(solved):
    first = not solved.elsewhere  # of a formulation
    for source in (*([solved.folder / "plan.json"] if first else []), solved.document, solved.folder):
        report = optmodels.check(source)
        assert report.ok, report.violations
    assert solved.check(solved.document, solved.folder).ok
    assert {p.name for p in solved.folder.glob("*.csv")} == {n for n in report.rebuilt if n.endswith(".csv")}


def solved_in(folder, document, **options):
    return Path(optmodels.solve(document, out=folder, **options).log["folder"])


def changed(folder, change):
    """The verdict with plan.json changed in place."""
    path = folder / "plan.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    return optmodels.check(folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"objective": 1.0}, "objective: of the plan"), ({"bound": 1.0}, "objective: no better than the bound"),
        ({"gap": 0.5}, "gap: between"), ({"status": "feasible"}, "only feasible"),
        ({"sense": "min"}, "sense"), ({"unit": "USD"}, "unit"), ({"limit": "time"}, "none stopped"),
        ({"status": "infeasible"}, "status: of a plan"), ({"formulation": "fleet"}, "formulation"),
        ({"check": None}, "verdict"), ({"schema": 1}, "schema"), ({"problem_sha256": "0" * 64}, "as it was written"),
        ({"report": {}}, "report."), ({"surplus": 1}, "document is well-formed"),
        ({"bound": None, "gap": None}, "proves that"),
    ],
)  # fmt: skip
def test_claims_around_the_plan(change, named):
    document = optmodels.solve(tiny_problem()).model_dump(mode="json", by_alias=True)
    assert optmodels.check(document).ok
    found = [v.requirement for v in optmodels.check(document | change).violations]
    assert any(named in requirement for requirement in found), found


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"objective": 1.0}, "objective"), ({"report": {}}, "report."), ({"check": None}, "check"),
        ({"surplus": 1}, ""), ({"usd_per_hour": 1.0}, "plan"),
    ],
)  # fmt: skip
def test_what_its_check_refuses_is_not_exported(change, path):
    document = optmodels.solve(tiny_problem()).model_dump(mode="json", by_alias=True)
    assert optmodels.export(document, "vllm").files
    in_plan = {"plan": document["plan"] | change} if path == "plan" else change
    with pytest.raises(InputError) as error:
        optmodels.export(document | in_plan, "vllm")
    first = error.value.mistakes[0]
    assert first.path.startswith(path) and bool(first.path) == bool(path)
    assert first.hint.startswith("optmodels check: ")


def test_a_slip_in_the_instance_of_a_document_is_noticed():
    document = optmodels.solve(tiny_problem()).model_dump(mode="json", by_alias=True)
    document["problem"] = dict(reversed(document["problem"].items()))  # as tools write JSON again
    assert optmodels.check(document).ok
    document["problem"]["title"] = "another"
    found = optmodels.check(document).violations
    assert [v.requirement for v in found] == ["problem: as it was written"]


@pytest.mark.parametrize("stated", ["", None])
def test_a_document_without_the_digest_of_its_instance_is_not_verified(stated):
    document = optmodels.solve(tiny_problem()).model_dump(mode="json", by_alias=True)
    document.pop("problem_sha256")
    assert not optmodels.check(document if stated is None else document | {"problem_sha256": stated}).ok
    old = document | {"schema": 1, "optmodels_version": "0.1.9"}  # 0.1 wrote none
    assert "problem" in {t.path for t in optmodels.check(old).trusted}


def test_another_instance_or_version_leaves_report_and_tables_on_trust(tmp_path):
    folder = solved_in(tmp_path, tiny_problem())
    report = optmodels.check(folder, tiny_problem(name="other"))
    assert report.ok and not report.rebuilt
    assert {"report", "check", "problem", "*.csv"} <= {t.path for t in report.trusted}
    assert not optmodels.check(folder, tiny_problem(slo={"kind": "batch", "tps": 1e6})).ok
    (folder / "operating_points.csv").write_text("nothing\n", encoding="utf-8")
    assert not optmodels.check(folder).ok
    report = changed(folder, lambda d: d.update(optmodels_version="0.1.9", schema=1))
    assert report.ok and not report.rebuilt
    assert "*.csv" in {t.path for t in report.trusted}


def test_a_time_limit_that_stopped_nothing_leaves_nothing_on_trust(tmp_path):
    folder = solved_in(tmp_path, two_models(24, 3), method="maaso_star", time_limit=60)
    report = optmodels.check(folder)
    assert report.ok and {"report", "requests.csv"} <= set(report.rebuilt)
    assert not {"requests.csv", "report.replay", "report.out_of_sample"} & {t.path for t in report.trusted}
    assert not changed(folder, lambda d: d["report"]["replay"].update(attainment=0.99)).ok


def test_requests_named_against_the_clock_are_listed_and_their_rows_checked(tmp_path):
    folder = solved_in(tmp_path, two_models(24, 3), method="maaso_star", time_limit=60)
    changed(folder, lambda d: d["log"].update(left_out=[named.NAMES]))
    report = optmodels.check(folder)
    assert report.ok
    assert {"requests.csv", "report.replay"} <= {t.path for t in report.trusted}
    assert "requests.csv" not in report.rebuilt
    path = folder / "requests.csv"
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    rows[3]["due_s"] = "1000.0"
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    assert [v.requirement for v in optmodels.check(folder).violations] == ["due_s of request 3"]


def test_the_command_says_what_is_verified_and_what_is_claimed(cli, write, folder):
    name = write(tiny_problem(), "small.yaml")
    assert cli("solve", name, "--out", "results").status == 0
    run = cli("check", "results/small-exact")
    assert run.status == 0
    assert "plan verified; bound as claimed (optmodels check --prove derives it)" in run.out
    assert "and equal: report, summary, operating_points.csv" in run.out
    assert "every figure" not in run.out
    said = json.loads(cli("check", "results/small-exact", "--json").out)
    assert said["ok"] and "bound" in {t["path"] for t in said["trusted"]}
    path = folder / "results/small-exact/operating_points.csv"
    path.write_text(path.read_text(encoding="utf-8").replace("high_end", "ao", 1), encoding="utf-8")
    run = cli("check", "results/small-exact")
    assert run.status == 1
    assert "operating_points.csv: family in row" in run.out


def listed(path, good, report):
    """Whether the check takes the place on trust and says so, or says of a part that it now does."""
    where = pattern(path)
    return {t.path for t in report.trusted} - {t.path for t in good.trusted} or any(
        where == t.path or where.startswith((f"{t.path}.", f"{t.path}[")) for t in good.trusted
    )


def unsaid(solved, what, path):
    """Whether the change only leaves unsaid what need not be said."""
    if path[-1] in ("committed_usd", "committed_beyond_horizon_usd"):
        return what.endswith(("None", "left out"))  # as in documents of earlier versions
    if what == "report.headroom left out":  # as where its solves exceed a second
        return True
    line = value_at(solved.document, path)
    if path[-1] == "limits" and what.endswith("left out"):  # machines that can serve nothing have no line
        i = int(what.rpartition("[")[2].partition("]")[0])
        return line[i]["name"].startswith("stock") and line[i]["value"] == 0
    return False


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
    """Slow: a check for each field of a document; those of certified plans simulate."""
    missed, tried, good = set(), 0, solved.check(solved.document)
    for what, path, mutant in mutants(solved.document, solved.elsewhere):
        if "plan" not in mutant or not isinstance(mutant["plan"], dict) or "problem" not in mutant:
            continue  # refused as no document
        tried += 1
        try:
            report = solved.check(mutant)
            if report.ok and not listed(path, good, report) and not same_statement(solved, mutant):
                missed |= set() if unsaid(solved, what, path) else {what}
        except Exception as error:
            missed.add(f"{what} crashes: {error!r}")
    assert not missed, "\n" + "\n".join(sorted(missed))
    assert tried > 100


@pytest.mark.slow
def test_every_change_of_a_table_is_found(solved, tmp_path):
    """Slow: a check for each cell of every table."""
    for file in solved.folder.glob("*.csv"):
        rows = list(csv.reader(io.StringIO(file.read_text(encoding="utf-8"))))
        shutil.copytree(solved.folder, tmp_path / file.stem)
        missed = []
        for what, mutant in table_mutants(rows):
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(mutant)
            (tmp_path / file.stem / file.name).write_text(text.getvalue(), encoding="utf-8")
            with contextlib.suppress(InputError):  # no table of the kind: refused with its name
                if solved.check(solved.document, tmp_path / file.stem).ok:
                    missed.append(what)
        assert not missed, f"{file.name}:\n" + "\n".join(missed)


def test_the_other_model_of_a_bound_is_looser_and_one_that_was_gone_through():
    """`bound_stretch_alone`, which solves leave out unless a pass with stages apart was stopped: written in by hand."""
    slo = {"ttft_s": {"at_most": 0.2, "percentile": 0.9}, "tpot_s": {"at_most": 0.03, "percentile": 0.9}}
    document = optmodels.solve(CERTIFIED | {
        "workloads": [CERTIFIED["workloads"][0] | {"slo": slo}], "certification": {"stretch": [1.5, 3.0]},
        "deployment": {"stages": ["both", "prefill", "decode"], "link": {"net_gbps": 400}},
    }).model_dump(mode="json", by_alias=True)  # fmt: skip
    line = document["plan"]["certification"]
    assert line["status"] == "certified" and line["bound_stretch_alone"] is None

    def said(**stretches):
        line.update(stretches)
        report = optmodels.check(document)
        assert "plan.certification.bound_stretch_alone" in {t.path for t in report.trusted} or not report.ok
        return report.ok

    assert said(bound_stretch=1.5, bound_stretch_alone=3.0)  # the loosest of its three models is named
    for other in (None, 1.0, 1.5, 2.2, 2.99, 3.01, 4.0, 0.0, -3.0, float("nan"), "3 times", True):
        assert not said(bound_stretch_alone=other), other
    assert not said(bound_stretch=3.0, bound_stretch_alone=3.0)  # no longer than the other one
    easy = {"ttft_s": {"at_most": 6.0, "percentile": 0.9}, "tpot_s": {"at_most": 0.9, "percentile": 0.9}}
    whole = optmodels.solve(CERTIFIED | {
        "workloads": [CERTIFIED["workloads"][0] | {"slo": easy}], "certification": {"stretch": [3.0, 4.0]},
    }).model_dump(mode="json", by_alias=True)  # fmt: skip
    whole["plan"]["certification"] |= {"bound_stretch": 3.0}
    assert not optmodels.check(whole).ok  # the log says another
    for name in ("certification", "reason"):
        whole["log"][name] = whole["log"][name].replace("limits 4 times", "limits 3 times")
    assert optmodels.check(whole).ok
    other = whole | {"optmodels_version": "0.2.1"}
    assert "plan.certification" not in {t.path for t in optmodels.check(other).trusted}  # simulated again, the same
    other["plan"] = copy.deepcopy(other["plan"])
    other["plan"]["certification"]["promises"][0]["seen_s"] *= 0.9
    report = optmodels.check(other)
    assert report.ok and {"plan.certification", "log.certification", "plan: labels"} <= {t.path for t in report.trusted}
    whole["plan"]["certification"] |= {"bound_stretch_alone": 4.0}  # of what, where no stages are apart?
    assert not optmodels.check(whole).ok


def test_a_cut_that_takes_out_what_is_served_or_is_of_other_ranks_is_found():
    """`forbidden` and `attention_ranks`, which solves hardly ever fill: written in by hand."""
    document = optmodels.solve(CERTIFIED).model_dump(mode="json", by_alias=True)
    line = next(d for q in document["plan"]["periods"] for d in q["deployments"])
    cut = next(c for c in document["plan"]["certification"]["cuts"] if c["step_s"] == line["engine"]["step_s"])
    assert optmodels.check(document).ok
    assert optmodels.check(document | {"limit": "time"}).rebuilt[-1] == "plan.certification"  # whatever stopped it
    for log in ({"certification": "certified: all 3 SLOs hold"}, {"reason": ""}):
        assert not optmodels.check(document | {"log": document["log"] | log}).ok
    for change in ({"forbidden": [line["serves"][0]["demand"]]}, {"attention_ranks": 2}):
        before = copy.deepcopy(cut)
        cut.update(change)
        assert not optmodels.check(document).ok, change
        cut.clear()
        cut.update(before)


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
        if not any(re.fullmatch(re.escape(f).replace(r"\*", ".+"), have) for have in filled)
    ]  # fmt: skip
    # No such dispatcher is made, the check refuses it; and the others, which solves hardly ever fill, are tried above.
    rare = {"online.strict_slo_factor", "configurations[].engine.most_of_wait", "configurations[].engine.itl_s",
            "certification.bound_stretch_alone",
            "certification.cuts[].forbidden[]", "certification.cuts[].attention_ranks"}  # fmt: skip
    assert set(empty) <= rare, empty
