"""A plan with continuous serving on engines that share their steps among prompts and decoding requests."""

from __future__ import annotations

from dataclasses import replace
from typing import cast, get_args

import numpy as np

from formulations.orchestration.engines import PlannedEngine as Level
from formulations.orchestration.making import rows_of
from formulations.orchestration.plan import Dispatcher, OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables
from optmodels.arrays import Array, Ints, Mask
from optmodels.engine.continuous import Stage, seconds_and_quantile
from optmodels.errors import InputError, Mistake
from optmodels.simulation.cluster import TOLERANCE, Outcomes, Requests, Shares
from optmodels.simulation.continuous import EDGES_S, Arrivals, Engine, Gaps, simulate
from optmodels.simulation.continuous import Dispatcher as EnginePolicy
from optmodels.simulation.options import ReplayOptions
from optmodels.traces.types import Prefixes


def engines_of(t: OrchestrationTables, p: OrchestrationPlan, caution: float) -> tuple[list[Engine], Ints]:
    """The engines of a plan's instances, one for every data-parallel replica, and whose each is.

    Dispatchers expect `caution` times the level's step at least: whom they admit decodes next to prompts yet to come.
    """
    rows, made, whose = rows_of(t, p), [], []
    for i, instance in enumerate(p.instances):
        x = t.configurations[rows[instance.configuration]]
        assert x.engine is not None
        e, line = x.engine, p.configurations[instance.configuration].engine
        if line is None:
            raise InputError(Mistake(None, "plan.configurations[].engine", None, "an engine, with continuous serving"))
        one = Engine(
            e.of.costs, int(e.kv_tokens / e.ranks), line.max_num_seqs, line.max_num_batched_tokens, line.chunk_tokens,
            pool=x.model, kind=instance.configuration, step_s=0.0 if x.stage == "prefill" else caution * e.step_s,
            ranks=x.ranks,
        )  # fmt: skip
        made += [one] * x.dp
        whose += [i] * x.dp
    return made, np.array(whose, dtype=np.int64)


def itl_edges(t: OrchestrationTables) -> Array | None:
    """Edges that times between tokens are counted by: `EDGES_S` and the limit on them; None: there is none."""
    limit = t.case.problem.slo.itl_s
    return None if limit is None else np.unique(np.append(EDGES_S, seconds_and_quantile(limit)[0] * (1 + 1e-9)))


def _counted(edges: Array | None, group: Ints, sent_s: Array | float = 0.0) -> Gaps | None:
    return None if edges is None else Gaps(edges, group, sent_s)


def _by_model(t: OrchestrationTables, counts: Ints | None) -> Ints | None:
    """Counts of every model; models without a request have none."""
    if counts is None:
        return None
    return np.concatenate((counts, np.zeros((len(t.case.models) - len(counts), counts.shape[1]), counts.dtype)))


def _shareable(prefixes: Prefixes | None, engines: list[Engine]) -> Prefixes | None:
    """Content blocks that are whole blocks of the engines' caches; others state nothing about shared prefixes."""
    if prefixes is None or any(prefixes.block_tokens % e.block_tokens for e in engines):
        return None
    return prefixes


def _in_turn(portion: Array, bin_s: float, arrival_s: Array, klass: Ints) -> Mask:
    """Mark requests of each class by its portion by bin, (T, K): the ones that bring the sum to a whole number."""
    found = np.zeros(len(klass), dtype=bool)
    bins = np.minimum(arrival_s / bin_s, len(portion) - 1).astype(np.int64)
    for k in np.unique(klass[klass >= 0]):
        mine = np.flatnonzero(klass == k)
        total = np.cumsum(portion[bins[mine], k]) + 0.5
        found[mine] = np.floor(total) > np.floor(np.append(0.5, total[:-1]))
    return found


def serve(
    t: OrchestrationTables, p: OrchestrationPlan, requests: Requests, shares: Shares, way: Dispatcher,
    options: ReplayOptions,
) -> Outcomes:  # fmt: skip
    """One simulation of a plan.

    Raises:
        InputError: what engines do not have is asked for.
    """
    if options.controller is not None:
        raise InputError(Mistake(None, "controller", options.controller, "none: continuous serving has max_num_seqs"))
    if options.speed != "load":
        raise InputError(Mistake(None, "speed", options.speed, "load: a step takes what is in it"))
    engines, whose = engines_of(t, p, way.caution)
    n = len(requests)
    pools = {stage: [e.pool for e in engines if p.configurations[e.kind].stage == stage] for stage in get_args(Stage)}
    handed = np.isin(requests.model, pools["prefill"]) & (
        np.isin(requests.model, pools["decode"]) | (requests.output_tokens <= 1)
    )
    able = np.isin(requests.model, pools["both"]) | handed
    if shares.refuse_rest and way.refuse_rest and way.policy != "planned_shares":
        portion = np.minimum(shares.weight.sum(axis=2), 1.0)
        able &= _in_turn(portion, shares.bin_s, requests.arrival_s, requests.klass)
    index = np.full(n, -1, dtype=np.int64)
    start, first, finish = (np.full(n, np.inf) for _ in range(3))
    busy, gaps, edges = np.zeros(len(p.instances)), None, itl_edges(t)
    if able.any():
        r = requests.take(able)
        arrivals = Arrivals.of(
            r.arrival_s, np.maximum(r.prompt_tokens, 1), np.maximum(r.output_tokens, 1), pool=r.model,
            deadline_s=r.deadline_s * (1 + TOLERANCE), klass=np.maximum(r.klass, 0),
            ttft_limit_s=r.ttft_limit_s * (1 + TOLERANCE),
            priority=r.due_s if way.queue == "deadline" else 0.0,
            expected_output_tokens=np.maximum(r.expected_output_tokens, 1), prefixes=_shareable(r.prefixes, engines),
        )  # fmt: skip
        rest = np.maximum(0.0, 1.0 - shares.weight.sum(axis=2, keepdims=True)) * shares.refuse_rest * way.refuse_rest
        planned = np.concatenate((shares.weight, rest), axis=2)
        if any(c.stage != "both" for c in p.configurations):
            to = np.flatnonzero(able)
            return _apart(t, p, arrivals, engines, whose, way, planned, shares.bin_s, handed[able], at=to, of=n)
        seen = simulate(
            arrivals, engines, cast(EnginePolicy, way.policy), planned=planned, planned_bin_s=shares.bin_s,
            within="earliest_finish", refuse=way.overflow_protection, gaps=_counted(edges, r.model),
        )  # fmt: skip
        got, gaps = seen.served, _by_model(t, seen.gaps)
        at = np.flatnonzero(able)[got]
        index[at] = whose[seen.instance[got]]
        start[at], first[at], finish[at] = seen.start_s[got], seen.first_s[got], seen.finish_s[got]
        np.maximum.at(busy, whose, seen.busy_s)
    return Outcomes(index, start, first, finish, (index >= 0) & way.overflow_protection, busy, gaps)


def _apart(
    t: OrchestrationTables, p: OrchestrationPlan, a: Arrivals, engines: list[Engine], whose: Ints, way: Dispatcher,
    planned: Array, planned_bin_s: float, able: Mask, at: Ints, of: int,
) -> Outcomes:  # fmt: skip
    """The same where some engines only prefill and others only decode; of `of` requests those `at` are sent.

    Those `able` have engines for either stage.

    Which requests of a class are served apart follows the plan's shares in turn, whatever the dispatcher. They go to a
    prefill engine, their deadline there being less what sending and the fastest of the plan's decoding take; and with
    their cache to a decode engine of the pairs that the plan has with the first, which refuses no request. A
    first token counts when its cache is sent, and a cache comes as late as to the engine that receives it slowest.
    """
    rows, n, K = rows_of(t, p), len(a), len(t.classes)
    lines = [_engine_of(t, c) for c in rows]
    stage = np.array([e.stage for e in lines])
    kind = np.array([e.kind for e in engines], dtype=np.int64)
    begins, ends = np.flatnonzero(stage[kind] != "decode"), np.flatnonzero(stage[kind] == "decode")
    prefill = stage == "prefill"
    some = planned[:, :, :-1].sum(axis=2)
    portion = planned[:, :, :-1][:, :, prefill].sum(axis=2) / np.where(some > 0, some, 1.0)
    apart = _in_turn(portion, planned_bin_s, a.arrival_s, a.klass)
    whole = np.isin(a.pool, [engines[i].pool for i in begins if not prefill[engines[i].kind]])
    apart = (apart & able) | ~whole
    prompt, output = a.input_tokens.astype(float), a.output_tokens.astype(float)
    sends, rest, slowest = np.zeros(n), np.full(n, np.inf), np.zeros(n)
    for j, e in enumerate(lines):
        mine = apart & (a.pool == t.configurations[rows[j]].model)
        if e.stage == "prefill":
            assert e.transfer is not None
            sends[mine] = np.maximum(sends[mine], e.transfer.seconds(prompt[mine], latency=True))
        elif e.stage == "decode":
            assert e.transfer is not None
            rest[mine] = np.minimum(rest[mine], e.joins_s(prompt[mine]) + e.rest_s(output[mine]))
            slowest[mine] = np.maximum(slowest[mine], e.transfer.seconds(prompt[mine], latency=False))
    later = np.where(apart, sends + np.where(np.isfinite(rest) & (output > 1), rest, 0.0), 0.0)
    edges = itl_edges(t)
    # Of a class those served apart are a class of their own, and the engines that prefill a pool of theirs.
    weights = np.zeros((len(planned), 2 * K, planned.shape[2]))
    weights[:, :K, :-1] = planned[:, :, :-1] * ~prefill / np.where(portion < 1, 1 - portion, 1.0)[:, :, None]
    weights[:, K:, :-1] = planned[:, :, :-1] * prefill / np.where(portion > 0, portion, 1.0)[:, :, None]
    weights[:, :, -1] = np.tile(planned[:, :, -1], (1, 2))
    policy = cast(EnginePolicy, way.policy)
    seen = simulate(
        replace(
            a, output_tokens=np.where(apart, 1, a.output_tokens), klass=a.klass + K * apart, pool=2 * a.pool + apart,
            expected_output_tokens=np.where(apart, 1, a.expected_output_tokens), deadline_s=a.deadline_s - later,
            ttft_limit_s=a.ttft_limit_s - sends,
        ),
        [replace(engines[i], pool=2 * engines[i].pool + int(prefill[engines[i].kind])) for i in begins], policy,
        planned=_kinds(weights, kind[begins]), planned_bin_s=planned_bin_s, within="earliest_finish",
        refuse=way.overflow_protection, gaps=_counted(edges, a.pool),
    )  # fmt: skip
    got, first, finish = seen.served, seen.first_s + sends, np.where(apart, seen.first_s + sends, seen.finish_s)
    busy_s, gaps = np.zeros(len(engines)), _by_model(t, seen.gaps)
    busy_s[begins] = seen.busy_s
    on = np.flatnonzero(got & apart & (a.output_tokens > 1))
    arrival = first + slowest
    on = on[np.argsort(arrival[on], kind="stable")]
    pairs = np.zeros((len(rows), K, len(rows) + 1))
    s = p.shares
    np.add.at(pairs, (np.array(s.configuration, dtype=np.int64), np.array(s.request_class, dtype=np.int64),
                      np.array(s.decode or s.configuration, dtype=np.int64)), np.array(s.admitted))  # fmt: skip
    pairs[:, :, :-1] *= ~prefill & (stage == "decode")
    pairs /= np.maximum(pairs.sum(axis=2, keepdims=True), 1e-300)
    if len(on) and len(ends):
        from_kind = kind[begins[seen.instance[on]]]
        decoded = simulate(
            Arrivals.of(
                arrival[on], a.input_tokens[on], a.output_tokens[on], pool=a.pool[on], priority=a.priority[on],
                expected_output_tokens=a.expected_output_tokens[on], received_tokens=a.input_tokens[on],
                klass=from_kind * K + a.klass[on],
            ),
            [engines[i] for i in ends], policy, planned=_kinds(pairs.reshape(len(rows) * K, -1), kind[ends]),
            within="earliest_finish", gaps=_counted(edges, a.pool[on], slowest[on]),
        )  # fmt: skip
        late = _by_model(t, decoded.gaps)
        gaps = late if gaps is None or late is None else gaps + late
        finish[on] = decoded.finish_s
        busy_s[ends] = decoded.busy_s
    index, start = np.full(of, -1, dtype=np.int64), np.full(of, np.inf)
    firsts, finishes, busy = np.full(of, np.inf), np.full(of, np.inf), np.zeros(len(p.instances))
    index[at[got]] = whose[begins[seen.instance[got]]]
    start[at[got]], firsts[at[got]], finishes[at[got]] = seen.start_s[got], first[got], finish[got]
    np.maximum.at(busy, whose, busy_s)
    return Outcomes(index, start, firsts, finishes, (index >= 0) & way.overflow_protection, busy, gaps)


def _kinds(shares: Array, kinds: Ints) -> Array:
    """Shares of this many kinds of instances as there are, the last refused; no request goes to those left out."""
    most = int(kinds.max()) + 1
    return np.concatenate((shares[..., :most], shares[..., -1:]), axis=-1)


def _engine_of(t: OrchestrationTables, c: int) -> Level:
    found = t.configurations[c].engine
    assert found is not None
    return found
