"""Pruning of the configuration tree: dominance cuts nothing optimal; the paper's rules do what they say."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formulations.orchestration import points
from formulations.orchestration.model import FlowModel
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.problem import Orchestration
from formulations.orchestration.pruning import dominated, paper_rules, restrict
from formulations.orchestration.rounding import Fits, scheduled
from optmodels.solver.highs import solve_compiled
from papers.maaso import case
from tests.maaso_cases import MODELS, problem, rows, tables, whole

M = MODELS[0]
SMALL = {"lengths": 1, "slo": 2}


def names(t: OrchestrationTables, keep: np.ndarray) -> set[str]:
    return {f"{t.configurations[c].parallelism} B{t.configurations[c].batch}" for c in np.flatnonzero(keep)}


def test_dominance_by_hand() -> None:
    """Two dp serve all that one slower tp-2 does; pp-2 is slower than dp with as many slots and twice the GPUs."""
    rates = {(M, 1, 1): (10.0,), (M, 1, 2): (9.0,), (M, 2, 1): (9.5, 9.5)}
    found = dominated(t := whole(problem(rates, rows(1, 40, MODELS[:1]), bins=SMALL)))
    assert names(t, found.keep) == {"dp B1"}
    reasons = {t.name(c): why for c, why in found.cut.items()}
    assert reasons[f"{M} tp-2 B2"] == f"2 of {M} dp B1 serve all it serves"
    # A faster tp-2 is kept, and so is one with more slots a GPU.
    rates = {(M, 1, 1): (10.0,), (M, 2, 1): (15.0, 9.5, 9.5)}
    found = dominated(t := whole(problem(rates, rows(1, 40, MODELS[:1]), bins=SMALL)))
    assert names(t, found.keep) == {"dp B1", "tp-2 B1", "tp-2 B3"}


def test_dominance_keeps_what_a_maximum_or_a_running_instance_needs() -> None:
    rates = {(M, 1, 1): (10.0,), (M, 2, 1): (9.5, 9.5)}
    asked = rows(1, 40, MODELS[:1])
    most = whole(problem(rates, asked, bins=SMALL, models=[{"model": M, "maximum_instances": 1}]))
    assert names(most, dominated(most).keep) == {"dp B1", "tp-2 B2"}
    change = {"running": [{"model": M, "tp": 2, "batch": 2}], "score_per_stop": 0.1}
    held = whole(problem(rates, asked, bins=SMALL, change=change))
    assert names(held, dominated(held).keep) == {"dp B1", "tp-2 B2"}


def test_two_small_need_the_servers_room_of_one_large() -> None:
    """Three GPUs hold one unit of tp-3 or one of tp-2: two of tp-2 do not stand in for one of tp-4 cut in 1 + 3."""
    rates = {(M, 3, 1): (10.0,), (M, 4, 1): (9.0, 9.0)}
    t = whole(problem(rates, rows(1, 30, MODELS[:1]), (4, 4), bins=SMALL,
                       models=[{"model": M, "t_slice_s": 0.1}]))  # fmt: skip
    # tp-3 stands in for one slot on four GPUs, not for two.
    assert names(t, dominated(t).keep) == {"tp-3 B1", "tp-4 B2"}


@st.composite
def small(draw: st.DrawFn) -> Orchestration:
    rates = {}
    for m in MODELS[: draw(st.integers(1, 2))]:
        for tp, pp in ((1, 1), (2, 1), (1, 2)):
            first = draw(st.sampled_from([6.0, 9.0, 10.0, 12.0, 18.0]))
            rates[m, tp, pp] = (first, first * draw(st.sampled_from([0.7, 0.9, 1.0])))
    asked = rows(draw(st.integers(0, 10**6)), draw(st.integers(5, 15)), tuple(dict.fromkeys(m for m, _, _ in rates)),
                 rate=draw(st.floats(0.3, 1.0)))  # fmt: skip
    extra = {}
    if draw(st.booleans()):
        extra["models"] = [{"model": m, "maximum_instances": 2} for m in dict.fromkeys(m for m, _, _ in rates)]
    return problem(
        rates,
        asked,
        draw(st.sampled_from([(2,), (3,), (2, 1)] if len(rates) == 3 else [(2,)])),
        bins={**SMALL, "seconds": 20.0},
        **extra,
    )


def best(t: OrchestrationTables) -> float:
    """The best objective over all numbers of instances that fit, each with its exact schedule."""
    fits = Fits(t)
    most = [int(t.case.free_gpus[x.gpu]) // x.gpus for x in t.configurations]
    found = -np.inf
    for counts in product(*(range(n + 1) for n in most)):
        n = np.array(counts, dtype=np.int64)
        larger = any(fits(n + np.eye(len(n), dtype=np.int64)[c]) for c in range(len(n)))
        if fits(n) and not larger:  # more instances never hurt
            made = scheduled(t, n)
            found = max(found, made.objective if made is not None else -np.inf)
    return found


@settings(max_examples=4, deadline=None)
@given(small())
def test_dominance_cuts_nothing_optimal(p: Orchestration) -> None:
    """Every way to use the GPUs, with and without what is dominated; and the pooled form's optimum likewise."""
    t = whole(p)
    kept = restrict(t, dominated(t).keep)
    best_pooled = solve_compiled(FlowModel(t).compiled()).objective
    assert solve_compiled(FlowModel(kept).compiled()).objective == pytest.approx(best_pooled, abs=1e-6)
    assert best(kept) == pytest.approx(best(t), abs=1e-6)


def test_paper_rules_by_hand() -> None:
    """pp is no faster than dp: gone. B1 admits no more than B2; B3 admits nobody; B2 stays."""
    rates = {(M, 1, 1): (10.0, 9.0, 4.0), (M, 1, 2): (10.0, 10.0, 10.0), (M, 2, 1): (18.0, 12.0, 11.0)}
    asked = {"rows": {"arrival_s": [0.0, 1.0], "output_tokens": [100, 100], "slo_factor": [1.2, 1.5]}}
    t = whole(problem(rates, asked))
    found = paper_rules(t)
    assert names(t, found.keep) == {"dp B2", "tp-2 B3"}
    why = {names(t, np.arange(len(found.keep)) == c).pop(): reason for c, reason in found.cut.items()}
    assert why["pp-2 B3"] == "parallelism: no faster than dp with fewer GPUs"
    assert why["dp B1"] == "batch: 2 admits as many requests"
    assert why["dp B3"] == "batch: too slow for any request"


def test_restricted_tables_score_alike() -> None:
    """The latency threshold of a plan does not depend on what was pruned."""
    t = whole(problem({(M, 1, 1): (10.0, 8.0), (M, 2, 1): (18.0, 15.0)}, rows(2, 30, MODELS[:1]), bins=SMALL))
    keep = np.zeros(len(t.configurations), dtype=bool)
    keep[0] = True
    only = np.array([2], dtype=np.int64)
    full = np.zeros(len(keep), dtype=np.int64)
    full[0] = 2
    a, b = scheduled(t, full), scheduled(restrict(t, keep), only)
    assert a is not None
    assert b is not None
    assert a.objective == pytest.approx(b.objective, abs=1e-9)


def test_a_load_level_of_a_batch_is_a_smaller_batch() -> None:
    """B4 held at two requests is B2 with memory for four: as a column of its own it adds nothing beside B2."""
    asked = {"rows": {"arrival_s": [0.0, 0.0, 1.0], "output_tokens": [100] * 3, "slo_factor": [1.2, 1.2, 3.0]}}
    p = problem({(M, 1, 1): (20.0, 18.0, 15.0, 10.0)}, asked, (2,), memory={"tokens_per_slot": 1000})
    t = whole(p)
    two, four = (next(x for x in t.configurations if x.batch == b) for b in (2, 4))
    level = replace(four, batch=2, tokens_per_s=four.tokens_per_s[:2])
    assert (level.slots, level.worst_rate, level.gpus, level.unit) == (two.slots, two.worst_rate, two.gpus, two.unit)
    assert level.gib_per_gpu > two.gib_per_gpu
    assert points.dominated(t.case, [two, level]) == {0: 1}  # either does the other's work, so one goes
    assert points.dominated(t.case, [level, two]) == {0: 1}
    # Where B2 is no candidate it adds what B2 would: the two urgent requests need 16.7 tokens/s, and B4 has 10.
    only = problem({(M, 1, 1): (20.0, 18.0, 15.0, 10.0)}, asked, (2,), memory={"tokens_per_slot": 1000},
                   candidates={"tp": [1], "batch": [4]})  # fmt: skip
    with_level = replace(
        whole(only), configurations=(four, level), **{
            name: getattr(t, name)[:, [t.configurations.index(four), t.configurations.index(two)]]
            for name in ("service_s", "first_s", "share", "wait_s")
        },
    )  # fmt: skip
    assert best(with_level) > best(whole(only)) + 0.3
    assert best(with_level) == pytest.approx(best(restrict(t, np.array([x.batch in (2, 4) for x in t.configurations]))))


def test_candidates_are_all_levels_that_memory_holds() -> None:
    """Batches by powers of two to 1,024: a prefix of them fits each parallelism, the next ones lack memory."""
    batches = tuple(2**i for i in range(11))
    p = case(4, requests=500)
    p = p.model_copy(update={"candidates": p.candidates.model_copy(update={"batch": batches})})
    t = whole(p)
    for m in range(len(t.case.models)):
        for tp in p.candidates.tp:
            fit = sorted(x.batch for x in t.configurations if (x.model, x.tp) == (m, tp))
            not_ = {d.batch: d.reason for d in t.discarded if (d.model, d.tp) == (t.case.models[m], tp)}
            assert fit == list(batches[: len(fit)])
            assert set(not_) == set(batches[len(fit) :])
            assert all("GiB usable" in reason for reason in not_.values())
    kept = tables(p)
    assert len(kept.configurations) < len(t.configurations)
    assert any("does its work" in d.reason for d in kept.discarded)
