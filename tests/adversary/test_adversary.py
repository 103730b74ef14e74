"""The adversary on some hundred seeds, what its instances say of the schema, and the harness itself."""

from __future__ import annotations

import ast
import json
import multiprocessing
import sys
from pathlib import Path

import pytest

from optmodels import formulation
from tests.adversary import harness
from tests.adversary.harness import FORMULATIONS, Answer, Instance, Verdict

HERE = Path(__file__).parent
SEEDS = {"cost_efficiency": 40, "fleet": 40, "orchestration": 20, "reserved_capacity": 40}
PARTS = 5  # tests that share a formulation's seeds
LONG = {  # references that enumerate for seconds to minutes
    "fleet-209", "fleet-731", "fleet-102504", "fleet-103015", "fleet-401242", "orchestration-80",
    "orchestration-215", "orchestration-111119",
}  # fmt: skip


def test_every_formulation_has_an_adversary() -> None:
    assert set(FORMULATIONS) == set(SEEDS) == set(formulation.names())


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", FORMULATIONS)
def test_answers_are_those_of_the_reference(name: str, part: int) -> None:
    """Slow: references solve instances without pruning, and settle which of two answers is wrong."""
    seeds = range(part, SEEDS[name], PARTS)
    drawn = {seed: harness.instance(name, seed) for seed in seeds}
    found = {s: harness.judge(name, data, s % 4 == 0) for s, data in drawn.items()}
    assert {s: v for s, v in found.items() if v.outcome == "differs"} == {}
    settled = [v for v in found.values() if v.outcome == "same"]
    assert len(settled) >= 0.7 * len(found)  # on a busy machine one of four may reach its time limit


@pytest.mark.parametrize("file", [
    pytest.param(p.name, marks=pytest.mark.slow if p.stem in LONG else ())
    for p in sorted((HERE / "once_differed").glob("*.json"))
])  # fmt: skip
def test_instances_that_once_differed(file: str) -> None:
    """A row scaled up to what HiGHS refuses (cost efficiency, seed 2123 of its day); a master problem at costs of 10¹⁴
    (fleet 773); three million starts (fleet 1131); a budget of 28.45 for 5 × 5.69 (cost efficiency 1584); starts that
    end after the last bin (orchestration 357); a sum that cancels (reserved capacity 220); experts that no layer has
    (fleet 209); no engine at all, one whose cache has no end as every layer has a window, and a crowd and work that are
    largest after the last bin (orchestration 13, 80 and 215); coefficients over twelve orders, pools without load,
    equal service times, and a budget for one idle deployment (fleet 1361, 1368, 1753 and 1801); both stages of a
    request on spot (fleet 731); an E2E thousands of times longer at another offload ratio, where the solver's was
    4·10⁻⁶ off (cost efficiency 1663); a service that no machine can serve, at a price of being unserved (reserved
    capacity 341), and at a demand below HiGHS's tolerance (1137); flows that are the rounding of 10¹⁵ requests/s (693);
    users out of reach whose demand is 0 in every scenario (717), and a service that no machine can serve (70258, made
    small); machines alike on spot and not, filled equally beyond what may be on spot, and loads that only the reference
    lost (fleet 101402 and 101156), a pool that its load fills but for 5·10⁻⁷, of which rounding decided how many may be
    lost (103015), a fleet that can serve nothing, to be had at 0 tokens/USD (102504), and a first objective whose
    weights are too far apart for a row of HiGHS (104535), passes of engines named otherwise in the headroom (9002),
    nothing on offer for most tokens per USD (9020), machines of 10⁻⁵ USD/h beside requests of 10¹³ that hid them
    from HiGHS (211181, a false optimum), a full pool on spot that cannot lose anything (401242), made small; engines
    whose steps take as long however prompts are charged for (orchestration 111119), and prompts that fill their chunks
    to the last token (cost efficiency 300112), made small; a price of requests that are always served, beside which
    machines cost nothing (801199, a false optimum), and a ratio of 10²¹ tokens/USD to begin with, at which HiGHS gave
    up (800525), an instance of several engines that send caches, running prefill engines that a plan without stages
    stops, and decode engines without any that prefill (orchestration 900384, 920084 and 920164), an offload family with
    nothing to offload beside a calibration of the other (fleet 1001904), made small, and what is served of a demand
    10¹⁶ times as large (1000896); a demand 10⁻⁶ below what two machines carry (fleet hair); prompts too late once their
    caches are sent, which left blocks for others (orchestration prefill-ttft); reservations below a minimum among plans
    of the same cost (reserved capacity 8000502, made small); two lengths whose waits are promised at 63 %, below which
    the longest wait was negative (cost efficiency lengths); a closed loop with one slot a rank, whose users wait for
    it (cost efficiency 12006); a GPU with a peak in 4 bits alone (fleet 12024), and a plan of simpler engines than the
    tables keep, which the headroom refused (12030); a loop of few tokens whose drafts make a decode dearer than a
    prompt, predicted to be slower than the level's bound (cost efficiency 16), and draws of slow machines where no
    machine can serve anything (fleet 14046). Others are kept whole: seeds mean other instances when a generator
    learns a field.

    Slow: the longest references build every operating point of an engine anew.
    """
    data = json.loads((HERE / "once_differed" / file).read_text(encoding="utf-8"))
    outcome = harness.judge(data["formulation"], data, True).outcome
    assert outcome == "same" or (outcome == "unsettled" and file.removesuffix(".json") in LONG)


@pytest.mark.parametrize("name", FORMULATIONS)
def test_instances_say_everything_that_the_schema_lets_one_say(name: str) -> None:
    """In every run, of few seeds. A new field belongs in the generator and the reference, or with a reason in
    ``LEFT_OUT``; ``python -m tests.adversary --cover --seeds 0:500`` then finds other seeds.
    """
    schema, given = harness.coverage(name)
    left_out = set(harness.module(name).LEFT_OUT)
    assert sorted(schema - given - left_out) == [], "fields that no instance has"
    assert sorted(left_out - schema) == [], "left out, but not in the schema"
    assert sorted(left_out & given) == [], "left out, but given"


ALLOWED = {
    "optmodels.catalog", "optmodels.latency", "optmodels.traces", "optmodels.units", "formulations", "tests.adversary",
    "numpy", "scipy", "highspy", "yaml",
}  # fmt: skip


@pytest.mark.parametrize("file", sorted(p.name for p in HERE.glob("*.py")))
def test_references_import_nothing_that_they_judge(file: str) -> None:
    if file in ("harness.py", "__main__.py", "test_adversary.py", "test_equivalent.py", "test_references.py"):
        return
    for node in ast.walk(ast.parse((HERE / file).read_text(encoding="utf-8"))):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            assert name is not None
            if name == "optmodels":  # from optmodels import catalog
                assert isinstance(node, ast.ImportFrom)
                assert {a.name for a in node.names} == {"catalog"}
            elif name.startswith("formulations"):
                assert name.endswith(".problem"), name
            else:
                known = any(name == a or name.startswith(f"{a}.") for a in ALLOWED)
                assert known or name.partition(".")[0] in sys.stdlib_module_names, name


SMALL: Instance = {
    "formulation": "fleet", "schema": 1,
    "workloads": [
        {"name": "w", "buckets": [{"name": "b", "requests_per_s": 1.0}, {"name": "c", "requests_per_s": 0.5}]},
    ],
    "points": [
        {"name": "p", "usd_per_hour": 2.0, "requests_per_s": {"w/b": 2.0, "w/c": 2.0}},
        {"name": "q", "usd_per_hour": 3.0, "requests_per_s": {"w/b": 1.0}},
    ],
}  # fmt: skip


def judged(monkeypatch: pytest.MonkeyPatch, answer: Answer, data: Instance = SMALL) -> Verdict:
    monkeypatch.setattr(harness.module("fleet"), "reference", lambda _: answer)
    return harness.judge("fleet", data)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer.optimal(2.0), ""), (Answer.optimal(1.9), "false-optimal"),
        (Answer.optimal(2.1), "better-than-reference"),
        (Answer.infeasible(), "feasible-where-nothing-is"), (Answer(1.9, 2.1), ""), (Answer(1.9, None), ""),
        (Answer.optimal(2.0, figures={"periods.0.usd_per_hour": 1.0}), "figure-periods.0.usd_per_hour"),
    ],
)  # fmt: skip
def test_a_difference_is_seen(monkeypatch: pytest.MonkeyPatch, answer: Answer, kind: str) -> None:
    found = judged(monkeypatch, answer)
    assert (found.outcome, found.kind) == ("differs" if kind else "same", kind)


def test_a_false_infeasible_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(monkeypatch, Answer.optimal(2.0), {**SMALL, "budget_usd_per_hour": 1.0})
    assert (found.outcome, found.kind, found.status) == ("differs", "false-infeasible", "infeasible")
    assert judged(monkeypatch, Answer.infeasible(), {**SMALL, "budget_usd_per_hour": 1.0}).outcome == "same"


def test_a_wrong_instance_is_refused_and_no_pass() -> None:
    assert harness.judge("fleet", {**SMALL, "points": []}).outcome == "refused"


def test_minimised_instances_fail_still_and_are_smallest() -> None:
    def fails(data: Instance) -> bool:
        return any(q.get("usd_per_hour", 0) > 2 for q in data.get("points", []))

    assert harness.minimise(SMALL, fails) == {
        "formulation": "fleet", "schema": 1, "points": [{"usd_per_hour": 3.0}],
    }  # fmt: skip


@pytest.mark.parametrize(("whose", "outcome"), [("product", "differs"), ("reference", "unsettled")])
def test_only_a_product_that_is_late_hangs(monkeypatch: pytest.MonkeyPatch, whose: str, outcome: str) -> None:
    monkeypatch.setattr(harness, "KILL_S", -1.0)
    child = harness._Child(since=0.0)
    child.pipe, theirs = multiprocessing.Pipe()
    theirs.send(whose)
    found = child.answer()
    assert found is not None
    assert found.outcome == outcome


@pytest.mark.slow
def test_runs_are_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow: five instances, each solved and judged in a process of its own."""
    log = tmp_path / "fleet.csv"
    said: list[str] = []
    given: list[int] = []
    monkeypatch.setattr(harness, "instance", lambda name, seed, of=1: given.append(seed) or SMALL)
    found = harness.run("fleet", range(2), log, say=said.append)
    again = harness.run("fleet", range(3), log, say=said.append)
    assert given == [0, 1, 2] and said == []
    assert sum(found.values()) == 2
    assert sum(again.values()) == 3
    lines = log.read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in lines] == ["seed", "0", "1", "2"]
