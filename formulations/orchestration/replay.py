"""A plan in the simulator: attainment, latency percentiles and throughput replayed, next to the prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, Literal, get_args

import numpy as np

from formulations.orchestration.clock import Clock
from formulations.orchestration.flow import weights
from formulations.orchestration.making import rows_of, with_limits
from formulations.orchestration.named import Named, figures, name_requests
from formulations.orchestration.plan import CAUTIONS, Dispatcher, OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables, build_tables
from formulations.orchestration.problem import Orchestration
from formulations.orchestration.served import itl_edges, serve
from optmodels.arrays import Array, Ints
from optmodels.engine.continuous import LatencyLimit, seconds_and_quantile
from optmodels.errors import InputError, Mistake, one_of
from optmodels.simulation.assigned import follow
from optmodels.simulation.cluster import Cluster, Outcomes, Policy, Queue, Requests, Shares, simulate
from optmodels.simulation.continuous import DISPATCHERS, gap_quantiles, of_edges
from optmodels.simulation.continuous import Dispatcher as EnginePolicy
from optmodels.simulation.controlled import controllers
from optmodels.simulation.options import ReplayOptions
from optmodels.simulation.reference import simulate_slowly
from optmodels.simulation.summary import QUANTILES, columns, summary
from optmodels.traces.shape import resampled
from optmodels.traces.types import Trace

Way = Policy | EnginePolicy | Literal["planned"]
WAYS: tuple[Way, ...] = (*get_args(Policy), "planned")
POLICIES: tuple[Way, ...] = ("planned", "shortest_queue", "maaso", "planned_shares")
ENGINE_POLICIES: tuple[Way, ...] = ("planned_shares", "earliest_finish", "least_kv", "shortest_queue")
MOST_DRAWN = 2_000_000
MOST_REQUESTS, MOST_INSTANCES = 200_000, 2_000  # simulated to choose a dispatcher
MOST_ADMITTED = 1e100  # in a bin: sums and shares stay finite
FOLLOWED = Dispatcher(policy="planned_shares", queue="deadline", refuse_rest=True)
ONLINE = (
    FOLLOWED,
    Dispatcher(policy="planned_shares", queue="deadline"),
    Dispatcher(policy="least_load", queue="deadline"),
    Dispatcher(policy="maaso", queue="deadline"),
    Dispatcher(policy="best_fit", queue="deadline"),
)
PLANNED = Dispatcher(policy="planned")
NARROW, WIDE = 0.7, 1.5  # times max_num_seqs as planned: what engines are let in to besides
OTHER_REQUESTS = 1  # seed of the blocks that requests out of sample are drawn in
JUDGED_ON = 2  # the same for the draws that a dispatcher is chosen on
MOST_PROMISING = 3  # ways to send that are tried with every caution
ENGINES_ONLINE = tuple(
    Dispatcher(policy=policy, queue="deadline", refuse_rest=rest, by_bin=by_bin)
    for policy, rest, by_bin in (
        ("earliest_finish", False, True), ("least_kv", False, True),
        ("planned_shares", True, True), ("earliest_finish", True, True), ("least_kv", True, True),
        ("planned_shares", True, False), ("earliest_finish", True, False), ("least_kv", True, False),
        ("planned_shares", False, True), ("planned_shares", False, False),
    )
)  # fmt: skip
KEEPS_PREFIXES = tuple(  # besides, where requests state what their prompts share
    Dispatcher(policy="prefix_affine", queue="deadline", refuse_rest=rest, by_bin=by_bin)
    for rest, by_bin in ((False, True), (True, True), (True, False))
)


def replay(
    problem: Orchestration, plan: Mapping[str, Any], trace: Trace | None = None, options: ReplayOptions | None = None,
    tables: OrchestrationTables | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Replay a plan on a trace, by default the instance's own.

    Args:
        problem: the instance.
        plan: its plan as JSON data.
        trace: other requests; None: the instance's, or Poisson arrivals at its class rates.
        options: policy (None: the plan's own, the named requests, shortest queue, MaaSO's distributor and the planned
            shares), speed, protection, seed. The plan's own policy is replayed with its sub-clusters and its
            protection. ``planned`` needs the plan's own requests; others are sent by the planned shares, with a note.
        tables: the instance's, where they are at hand.

    Returns:
        ``predicted``, ``named`` where requests have names, and, for each policy, the simulation's results.

    Raises:
        InputError: unknown policy, or requests of a model that the instance does not have.
    """
    options = options or ReplayOptions()
    if options.policy is not None:
        one_of("policy", options.policy, WAYS if problem.continuous is None else DISPATCHERS)
    p = OrchestrationPlan.model_validate(plan)
    t = build_tables(problem) if tables is None else tables
    own = trace is None or _same(t, trace)
    requests = requests_of(t, None if own else trace, options.seed)
    if own and trace is not None:  # the same requests, whose lengths may be known with error
        requests = replace(requests, expected_output_tokens=trace.expected_output_tokens, prefixes=trace.prefixes)
    cluster, shares = cluster_of(t, p), shares_of(t, p, None if own else requests)
    # Names are for batches that keep their limit.
    named = name_requests(t, p) if own and options.controller is None else None
    rows, notes = {}, []
    if t.taken is not None and own:
        notes.append("requests are not named: on an engine they share each other's steps, so no slot keeps a promise")
    if t.taken is None and not np.array_equal(requests.expected_output_tokens, requests.output_tokens):
        notes.append("predicted output lengths change nothing: dispatchers of slots go by the true ones")
    for policy in _ways(p, options.policy, named, POLICIES if t.taken is None else ENGINE_POLICIES):
        way = _way(p, policy, options, own)
        if policy == "planned" and named is None:
            way = p.online or FOLLOWED
            why = "the plan names none of these requests" if options.controller is None else "batch limits may change"
            notes.append(f"{why}: sent by {way.policy} in place of planned")
        seen = sent(t, p, requests, cluster, shares, way, options, named)
        rows[way.policy] = summary(seen, requests, cluster, t.classes.label, t.case.models).json() | _pauses(t, seen)
        if options.keep is not None:
            options.keep(way.policy, columns(seen, requests, cluster))
    found: dict[str, Any] = {
        "requests": len(requests), "speed": options.speed, "policy": options.policy or p.dispatcher.policy,
        "predicted": {"attainment": p.prediction.attainment, "ttft_s": {"mean": p.prediction.mean_latency_s},
                      "goodput_tokens_per_s": p.prediction.throughput_tokens_per_s},
        "policies": rows,
    }  # fmt: skip
    if found["policy"] not in rows:
        found["policy"] = next(iter(rows))
    if named is not None:
        found["named"] = figures(t, p, named)
    return found | ({"notes": notes} if notes else {})


def _pauses(t: OrchestrationTables, seen: Outcomes) -> dict[str, Any]:
    """Times between tokens where they have a limit: quantiles, and the least share of a model's within it."""
    edges, limit = itl_edges(t), t.case.problem.slo.itl_s
    if edges is None or seen.gaps is None or not seen.gaps.any():
        return {}
    within = [pauses_within(edges, row, limit) for row in seen.gaps if row.any()]
    return {"itl_s": gap_quantiles(*of_edges(edges, seen.gaps.sum(axis=0)), QUANTILES), "itl_within": min(within)}


def pauses_within(edges: Array, counts: Ints, limit: LatencyLimit | None) -> float:
    """Share of counted times within their limit; of a limit on the mean how near their mean comes, at most 1."""
    seconds, quantile = seconds_and_quantile(limit)
    values, many = of_edges(edges, counts)
    if quantile is None:
        return min(1.0, seconds / float(np.average(values, weights=many)))
    return float(many[values <= seconds * (1 + 1e-9)].sum() / many.sum())


def out_of_sample(t: OrchestrationTables, p: OrchestrationPlan, found: Mapping[str, Any]) -> dict[str, Any]:
    """The plan on requests that it was not made for, next to its prediction and to a replay of its own requests.

    Args:
        t: tables of an instance with a trace.
        p: its plan.
        found: the replay of its own requests.

    Returns:
        ``trace``: blocks of the instance's drawn again; ``policy``; and by metric ``predicted``, ``replayed``,
        ``out_of_sample``.
    """
    assert t.case.trace is not None
    way = p.online if p.online is not None and p.dispatcher.policy == "planned" else p.dispatcher
    other = resampled(t.case.trace, OTHER_REQUESTS)
    options = ReplayOptions(policy=way.policy)
    seen = replay(t.case.problem, p.model_dump(mode="json"), other, options, t)
    [(policy, row)] = seen["policies"].items()
    own = found["policies"].get(policy)

    def three(metric: str) -> dict[str, float | None]:
        return {k: None if x is None else x[metric] for k, x in (
            ("predicted", found["predicted"]), ("replayed", own), ("out_of_sample", row))}  # fmt: skip

    metrics = {m: three(m) for m in ("attainment", "goodput_tokens_per_s")}
    return {"trace": other.name, "requests": len(other), "policy": policy, **metrics}


def _same(t: OrchestrationTables, trace: Trace) -> bool:
    """Whether these are the instance's own requests."""
    own = t.case.trace
    return own is not None and all(
        np.array_equal(getattr(own, k), getattr(trace, k)) for k in ("arrival_s", "prompt_tokens", "output_tokens")
    )


def _ways(p: OrchestrationPlan, asked: str | None, named: Named | None, others: Sequence[Way]) -> list[Way]:
    """Dispatchers to replay: those asked for, else the plan's own and the default ones."""
    if asked is not None:
        return [x for x in (*WAYS, *DISPATCHERS) if x == asked][:1]
    usual: list[Way] = [p.dispatcher.policy, *([p.online.policy] if p.online is not None else []), *others]
    return [x for x in dict.fromkeys(usual) if x != "planned" or named is not None]


def _way(p: OrchestrationPlan, policy: Way, options: ReplayOptions, of_plan: bool) -> Dispatcher:
    """The dispatcher of a policy with the plan's settings or, where it has none, the default ones, and the options.

    On requests other than the plan's own, inadmissible ones are refused only if the plan states that it refuses them.
    """
    own = next((x for x in (p.dispatcher, p.online) if x is not None and x.policy == policy), None)
    # A plan lets groups of requests wait apart, so the one who follows it serves by urgency.
    followed = policy == "planned_shares"
    queue: Queue = "deadline" if followed and options.overflow_protection is not False else "fifo"
    way = own or Dispatcher(policy=policy, queue=queue, refuse_rest=followed and of_plan)
    if options.overflow_protection is not None:
        way = way.model_copy(update={"overflow_protection": options.overflow_protection})
    if options.queue is not None:
        way = way.model_copy(update={"queue": options.queue})
    return way


def sent(
    t: OrchestrationTables, p: OrchestrationPlan, requests: Requests, cluster: Cluster, shares: Shares,
    way: Dispatcher, options: ReplayOptions, named: Named | None = None,
) -> Outcomes:  # fmt: skip
    """One simulation of a plan."""
    if not way.by_bin:
        shares = _over_bins(t, shares)
    if t.taken is not None:
        return serve(t, p, requests, shares, way, options)
    if way.policy == "planned":
        assert named is not None
        return follow(requests, cluster, named.instance, named.slot, named.start_s, speed=options.speed)
    if way.strict_slo_factor is not None:
        requests, cluster = divided(requests, cluster, p, t)
    requests = replace(requests, model=t.servable(requests.model, requests.prompt_tokens + requests.output_tokens))
    run: Callable[..., Outcomes] = simulate
    if options.controller is not None:
        run = partial(simulate_slowly, controllers=controllers(options.controller, requests, cluster))
    return run(
        requests, cluster, way.policy, speed=options.speed, overflow_protection=way.overflow_protection,
        queue=way.queue, shares=replace(shares, refuse_rest=shares.refuse_rest and way.refuse_rest), seed=options.seed,
    )  # fmt: skip


def dispatched(
    t: OrchestrationTables, plans: Sequence[OrchestrationPlan], seed: int = 0, clock: Clock | None = None
) -> OrchestrationPlan:
    """Of some plans the one that does best in simulation, with the dispatcher that it does so with.

    When the clock is over, those not simulated yet do not count; where none is, the first is returned.
    """

    def over() -> bool:
        return clock is not None and clock.over

    judged = [_judged(t, plans[0], seed, over)]
    judged += [_judged(t, p, seed, over) for p in plans[1:] if not over()]
    return max(judged, key=lambda x: x[0])[1]  # the first of equals


def simulable(t: OrchestrationTables, p: OrchestrationPlan) -> bool:
    """Whether a plan is simulated to choose its dispatcher: some instances and requests, and not too many of either."""
    return 0 < len(p.instances) <= MOST_INSTANCES and t.classes.count.sum() <= MOST_REQUESTS


def _judged(
    t: OrchestrationTables, p: OrchestrationPlan, seed: int, over: Callable[[], bool]
) -> tuple[float, OrchestrationPlan]:
    """MS(6) in simulation, and the plan with its dispatcher; where it is too large to simulate, by its shares.

    Engines then send to whichever finishes first: on MaaSO's traces that was 7 points better than shares. A way to send
    is as good as it is on the worse of the plan's own requests and of others like them: shares by bin are one
    policy with known arrivals, and under overload may keep 77 % of its own and 35 % of the others.

    A plan knows all requests beforehand and refuses some so that others are in time. What of that a dispatcher can do,
    which knows only who is there, depends on the plan: where it refuses whole classes, following its shares is better;
    where single bins were lucky, it is not. Where the named requests do best, the best of the others is kept next to.

    Engines may let in fewer or more than the concurrency that is planned for: fewer where bursts would slow each other
    down, more where the level is pessimistic. The best way to send is tried with each.
    """
    # These dispatchers know no sub-clusters, which a heuristic's own may have had.
    instances = [x if x.subcluster == -1 else x.model_copy(update={"subcluster": -1}) for x in p.instances]
    ways = ONLINE if t.taken is None else ENGINES_ONLINE  # the first without a simulation
    first = p = p.model_copy(update={"dispatcher": ways[0], "instances": instances})
    if not simulable(t, p) or over():
        return 0.0, first
    requests, cluster, shares = requests_of(t, None, seed), cluster_of(t, p), shares_of(t, p)
    if not len(requests):
        return 0.0, first

    if t.taken is not None and requests.prefixes is not None:
        ways += KEEPS_PREFIXES

    def score(way: Dispatcher, named: Named | None = None, p: OrchestrationPlan = p) -> float:
        return replayed_score(t, requests, sent(t, p, requests, cluster, shares, way, ReplayOptions(seed=seed), named))

    others = _others(t, seed)
    by_all = shares if t.case.trace is None else shares_of(t, p, others)

    def lesser(way: Dispatcher, own: float, p: OrchestrationPlan = p) -> float:
        """Of its score on the plan's requests and on others, as many."""
        if others is None or over():
            return own
        seen = sent(t, p, others, cluster, by_all, way, ReplayOptions(seed=seed))
        return min(own, replayed_score(t, others, seen) * len(requests) / len(others))

    tried = [(score(ways[0]), ways[0])]
    tried += [(score(way), way) for way in ways[1:] if not over()]
    if t.taken is not None:
        promising = sorted(tried, key=itemgetter(0), reverse=True)[:MOST_PROMISING]
        slower = (way.model_copy(update={"caution": x}) for x in CAUTIONS[1:] for _, way in promising)
        tried += [(score(way), way) for way in slower if not over()]
    tried.sort(key=itemgetter(0), reverse=True)
    best, online = -np.inf, ways[0]
    for own, way in tried:
        if own > best and (found := lesser(way, own)) > best:
            best, online = found, way
    if t.taken is not None:
        alike = [online.model_copy(update={"caution": x}) for x in CAUTIONS]
        for limits in (with_limits(t, p, NARROW), with_limits(t, p, WIDE)):
            for way in alike:
                if over() or (own := score(way, p=limits)) <= best:
                    continue
                if (found := lesser(way, own, limits)) > best:
                    best, online, p = found, way, limits
    named = name_requests(t, p, over)
    if named is not None and (by_name := score(PLANNED, named)) > tried[0][0]:
        return by_name, p.model_copy(update={"dispatcher": PLANNED, "online": online})
    return best, p.model_copy(update={"dispatcher": online})


def _others(t: OrchestrationTables, seed: int) -> Requests | None:
    """Requests like the instance's: blocks of its trace drawn again, or others at its rates; None: there are none."""
    if t.case.trace is None:
        found = requests_of(t, None, seed + JUDGED_ON)
    elif t.case.trace.duration_s > 0:
        found = requests_of(t, resampled(t.case.trace, seed + JUDGED_ON))
    else:
        return None
    return found if len(found) else None


def replayed_score(t: OrchestrationTables, requests: Requests, seen: Outcomes) -> float:
    """MS(6) of a simulation, or the first metric of a lexicographic order and a little of the next."""
    w = weights(t)
    first = seen.first_token_s - requests.arrival_s
    met = seen.met(requests)
    k = requests.klass[met]
    tokens = w.throughput[k] / t.classes.output_tokens[k] * requests.output_tokens[met]
    S, T, L = t.case.problem.objective.weights
    latency = w.latency * len(k) - w.waiting * float(first[met].sum())
    return S * float(w.satisfaction[k].sum()) + T * min(1.0, float(tokens.sum())) + L * latency


def requests_of(t: OrchestrationTables, trace: Trace | None = None, seed: int = 0) -> Requests:
    """The requests to simulate, with model codes, limits and classes."""
    if trace is None and t.class_of is not None and t.case.trace is not None and t.deadline_s is not None:
        own = t.case.trace
        return Requests.of(own.arrival_s, own.prompt_tokens, own.output_tokens, model=t.case.request_model,
                           deadline_s=t.deadline_s, klass=t.class_of,
                           expected_output_tokens=own.expected_output_tokens, ttft_limit_s=t.case.ttft_limit_s,
                           prefixes=own.prefixes)  # fmt: skip
    if trace is None:
        return _drawn(t, seed)
    names = list(t.case.models)
    label = trace.labels.get("model")
    if label is None and len(names) > 1 and t.case.problem.requests.model is None:
        raise InputError(Mistake(trace.name, "model", None, f"a column with one of {', '.join(names)}"))
    asked = [n for n in (label.names if label is not None else ()) if n not in names]
    if asked:
        raise InputError(Mistake(trace.name, "model", asked[0], f"one of {', '.join(names)}"))
    only = names.index(t.case.problem.requests.model or names[0])
    model = np.full(len(trace), only) if label is None else np.array([names.index(n) for n in label.names])[label.codes]
    factor = trace.slo_factor if trace.slo_factor is not None else t.case.problem.slo.factor
    if factor is None:
        raise InputError(
            Mistake(trace.name, "slo_factor", None, "a column of θ > 0, or slo.factor in the problem file")
        )
    per_token = np.broadcast_to(np.asarray(factor, dtype=float), (len(trace),)) * t.t_slice_s[model]
    return Requests.of(
        trace.arrival_s, trace.prompt_tokens, trace.output_tokens, model=model,
        deadline_s=per_token * trace.output_tokens, klass=_nearest(t, model, trace, per_token),
        expected_output_tokens=trace.expected_output_tokens, ttft_limit_s=t.case.ttft_limit_s, prefixes=trace.prefixes,
    )  # fmt: skip


def _nearest(t: OrchestrationTables, model: Ints, trace: Trace, per_token: Array) -> Ints:
    """The class most like each request: of its model, by length and allowance on log scales."""
    q = t.classes
    klass = np.full(len(trace), -1, dtype=np.int64)
    for m in range(len(t.case.models)):
        mine, of = np.flatnonzero(model == m), np.flatnonzero(q.model == m)
        if len(mine) and len(of):
            allowed = np.log(q.deadline_s[of] / q.output_tokens[of])
            far = np.abs(np.log(trace.output_tokens[mine])[:, None] - np.log(q.output_tokens[of])[None])
            far += 3 * np.abs(np.log(per_token[mine])[:, None] - allowed[None])
            klass[mine] = of[far.argmin(axis=1)]
    return klass


def _drawn(t: OrchestrationTables, seed: int) -> Requests:
    """Poisson arrivals at the class rates."""
    q = t.classes
    if q.count.sum() > MOST_DRAWN:
        raise InputError(Mistake(None, "trace", f"{q.count.sum():,.0f} requests as classes",
                                 f"a trace file, or at most {MOST_DRAWN:,} to draw"))  # fmt: skip
    rng = np.random.default_rng(seed)
    drawn = rng.poisson(q.arrivals)
    k, b = np.nonzero(drawn)
    klass, bin_ = np.repeat(k, drawn[k, b]), np.repeat(b, drawn[k, b])
    at = (bin_ + rng.random(len(bin_))) * t.bin_s
    order = np.argsort(at, kind="stable")
    klass = klass[order]
    prompt, output = (np.maximum(1, np.round(v[klass])) for v in (q.prompt_tokens, q.output_tokens))
    return Requests.of(
        at[order], prompt, output, model=q.model[klass], deadline_s=q.deadline_s[klass], klass=klass,
        ttft_limit_s=t.case.ttft_limit_s,
    )  # fmt: skip


def cluster_of(t: OrchestrationTables, p: OrchestrationPlan) -> Cluster:
    """The plan's instances for the simulator."""
    lines = [t.configurations[c] for c in rows_of(t, p)]
    widest = max((x.slots for x in lines), default=1)
    if t.taken is not None:  # for the figures only: `served` has the engines
        widest = max((widest, *(x.most_admitted for x in lines)))
    rate = np.ones((len(lines), widest))
    for j, x in enumerate(lines):
        rate[j, : x.slots] = x.tokens_per_s
        rate[j, x.slots :] = x.worst_rate
    of = np.array([i.configuration for i in p.instances], dtype=np.int64)
    slots = [x.most_admitted for x in lines]
    return Cluster.of(
        np.array(slots, dtype=np.int64)[of], rate[of], names=[i.name for i in p.instances],
        model=np.array([x.model for x in lines], dtype=np.int64)[of],
        prefill_s_per_token=np.array([x.prefill_s_per_token for x in lines])[of],
        gpus=np.array([x.gpus for x in lines], dtype=np.int64)[of],
    )  # fmt: skip


def divided(
    requests: Requests, cluster: Cluster, p: OrchestrationPlan, t: OrchestrationTables
) -> tuple[Requests, Cluster]:
    """Requests and instances with their sub-clusters (MaaSO §IV-E), where the plan has any."""
    limit = p.dispatcher.strict_slo_factor
    if limit is None:
        return requests, cluster
    factor = requests.deadline_s / (requests.output_tokens * t.t_slice_s[requests.model])
    group = np.where(factor <= limit * (1 + 1e-9), 0, 1).astype(np.int64)
    side = np.array([i.subcluster for i in p.instances], dtype=np.int64)
    return replace(requests, group=group), replace(cluster, group=side)


def shares_of(t: OrchestrationTables, p: OrchestrationPlan, others: Requests | None = None) -> Shares:
    """The plan's shares for the dispatcher: of the requests of a class arriving in a bin, how many to each kind.

    Requests that the plan does not admit may be refused. Of requests `others` than the instance's own, whose bins it
    does not know, a class gets its shares over all bins; one that it admits in part no more a second than it does.
    Nobody is refused of requests that ask for no more tokens a second than it admits.

    Raises:
        InputError: the plan's classes or bins are not the instance's, or a share is no number of requests.
    """
    s = p.shares
    if (p.bins, len(p.classes)) != (t.bins, len(t.classes)):
        value = f"{p.bins} bins, {len(p.classes)} classes"
        raise InputError(Mistake(None, "plan", value, f"the problem's {t.bins} bins and {len(t.classes)} classes"))
    for count in s.admitted:
        if not 0 <= count <= MOST_ADMITTED:
            raise InputError(Mistake(None, "plan.shares.admitted", count, "0 or more requests"))
    admitted = np.zeros((t.bins, len(t.classes), max(1, len(p.configurations))))
    np.add.at(admitted, (np.array(s.bin, dtype=np.int64), np.array(s.request_class, dtype=np.int64),
                         np.array(s.configuration, dtype=np.int64)), np.array(s.admitted))  # fmt: skip
    refuse = bool(admitted.any())
    if others is None:
        arrivals = np.asarray(t.classes.arrivals.T, dtype=float)[:, :, None]
        came = arrivals > 1e-9
        overall = admitted.sum(axis=0) / np.maximum(arrivals.sum(axis=0), 1e-12)
        weight = np.where(came, admitted / np.where(came, arrivals, 1.0), overall)
    else:
        some, asks = _on_others(t, admitted.sum(axis=0), others)
        weight, refuse = some[None], refuse and asks
    weight /= np.maximum(weight.sum(axis=2, keepdims=True), 1.0)
    kind = np.array([i.configuration for i in p.instances], dtype=np.int64)
    return Shares(kind, np.ascontiguousarray(weight), t.bin_s if others is None else np.inf, refuse_rest=refuse)


def _over_bins(t: OrchestrationTables, shares: Shares) -> Shares:
    """The same for every bin: of a class its mean over the requests that came."""
    if len(shares.weight) == 1:
        return shares
    came = np.asarray(t.classes.arrivals.T, dtype=float)[:, :, None]
    weight = (came * shares.weight).sum(axis=0) / np.maximum(came.sum(axis=0), 1e-300)
    return replace(shares, weight=np.ascontiguousarray(weight[None]), bin_s=np.inf)


def _on_others(t: OrchestrationTables, admitted: Array, others: Requests) -> tuple[Array, bool]:
    """Shares of other requests, (K, J), of the admitted own requests, (K, J); whether they ask for more than that."""
    q, own = t.classes, t.case.trace
    span_s = t.bins * t.bin_s if own is None else own.duration_s
    other_s = float(np.ptp(others.arrival_s)) if len(others) else 0.0
    if not min(span_s, other_s) > 0:  # at once: there are no rates
        span_s = other_s = 1.0
    came = np.asarray(q.arrivals, dtype=float).sum(axis=1)
    comes = np.bincount(others.klass[others.klass >= 0], minlength=len(q)) / other_s
    shares: Array = admitted / np.maximum(came, 1e-12)[:, None]
    asked = float((others.prompt_tokens + others.output_tokens).sum()) / other_s
    if asked <= float(admitted.sum(axis=1) @ (q.prompt_tokens + q.output_tokens)) / span_s:
        for m in np.unique(q.model):  # whom the plan would refuse goes where the model's others go
            mine, nobody = q.model == m, ~admitted.any(axis=1)
            shares[mine & nobody] = admitted[mine].sum(axis=0) / max(float(admitted[mine].sum()), 1e-300)
        return shares, False
    partly = shares.sum(axis=1) < 1 - 1e-9
    scarcer = np.where(partly & (comes > 0), came / span_s / np.where(comes > 0, comes, 1.0), 1.0)
    return shares * np.minimum(scarcer, 1.0)[:, None], True
