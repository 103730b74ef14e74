"""Independent check of a plan's statements about its certification: its cuts are kept, its figures fit one another.

The replays' results are not recomputed (`optmodels replay` shows it, with any seed); which promises the plan makes,
that a certified plan has none that is not kept, and that it keeps to its cuts and margins are recomputed.
"""

from __future__ import annotations

import math
from dataclasses import replace

from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.problem import Orchestration
from formulations.orchestration.recomputed import Recomputed, recompute
from optmodels.certification.check import SAME, KnownPlan, check_rounds, is_expected, same_settings
from optmodels.engine.continuous import seconds_and_quantile
from optmodels.plans.findings import Findings

COPIES_OF_RATES = 32


def under(true: Recomputed, p: OrchestrationPlan) -> Recomputed:
    """The instance as a certified plan was made for it: engines with the margins of its pass, less the cuts."""
    c = p.certification
    if c is None:
        return true
    problem = true.case.problem
    candidates = dict(true.candidates)
    if c.planned is not None and c.planned.looser:
        candidates = dict(recompute(problem.looser(), p).candidates)
    cuts = {x.model: x for x in c.cuts}
    for key, candidate in candidates.items():
        of = cuts.get(key[0])
        if of is not None and candidate.level is not None:
            level = replace(candidate.level, keep=of.keep)
            candidates[key] = replace(candidate, level=level, able=of.in_time)
    return replace(true, candidates=candidates)


def check_certification(found: Findings, problem: Orchestration, true: Recomputed, p: OrchestrationPlan) -> None:
    """All that a plan states about its certification."""
    c, rules = p.certification, problem.certification
    if not is_expected(found, c, problem.certify) or c is None:
        return
    copies = rules.copies or (0 if true.case.trace is not None else COPIES_OF_RATES)
    same_settings(found, {"confidence": c.confidence, "seed": c.seed, "copies": c.copies},
                  {"confidence": rules.confidence, "seed": rules.seed, "copies": copies})  # fmt: skip
    same = c.planned is None or c.bound_looser == c.planned.looser  # where none was replayed, what time left
    found.require("certification: the bound is of the plan's pass", same, c.bound_looser, not c.bound_looser)
    models = [x.model for x in c.cuts]
    known = set(models) <= set(true.case.models) and len(set(models)) == len(models)
    found.require("certification: one cut a model of the problem", known, models, list(true.case.models))
    promised = dict.fromkeys(true.case.models, math.nan)
    for name in promised:
        mine = [x for x in p.classes if x.model == name]
        came = sum(x.requests for x in mine)
        promised[name] = min(sum(x.in_time for x in mine) / came, 1.0) if came > 0 else math.nan
    limit, q = problem.slo.itl_s, seconds_and_quantile(problem.slo.itl_s)[1]
    for x in c.promises:
        share = promised.get(x.model, math.nan) if x.metric == "in_time" else 1.0 if q is None else q
        found.close(f"promise to {x.model}: promised", x.promised, share, scale=1.0)
        near = x.found == "undecided" or (x.seen < x.promised - SAME) == (x.found == "broken")
        found.require(f"promise to {x.model}: {x.found} by what was seen", near, x.seen, x.promised)
        sure = x.found != "undecided" or copies > 0
        found.require(f"promise to {x.model}: one replay decides", sure, x.found, "kept or broken")
        if not copies and true.case.trace is not None and x.metric == "in_time":
            came = sum(q.requests for q in p.classes if q.model == x.model)
            found.close(f"promise to {x.model}: requests", x.requests, came, scale=max(came, 1.0))
    replayed = 0.0 if c.planned is None else c.planned.replayed
    one_weight = len({m.weight for m in problem.models}) == 1
    metrics = ("in_time",) if limit is None else ("in_time", "itl_s")
    made = [(m, metric) for m, share in promised.items() if not math.isnan(share) for metric in metrics]
    known_plan = KnownPlan(
        made, p.score.total, lambda r: r.looser, lambda r: r.looser,
        lambda _, r: one_weight and r.replayed > replayed + SAME, scale=1.0,
    )  # fmt: skip
    check_rounds(found, c, known_plan, [(x.model, x.metric) for x in c.promises], 2, rules.rounds)
    passes = [r.looser for r in c.rounds]
    found.require("certification: the looser pass is the second", passes == sorted(passes), passes, sorted(passes))
    if (own := c.planned) is None:
        return
    found.close("certification: attainment of the plan's round", own.attainment, p.prediction.attainment, scale=1.0)
    some = [x for x in c.promises if x.metric == "in_time"]
    requests = sum(x.requests for x in some)
    seen = sum(x.seen * x.requests for x in some) / requests if requests > 0 else 0.0
    found.close("certification: replayed in the plan's round", own.replayed, seen, scale=1.0)
    found.close("certification: requests of the plan's round", own.requests, requests, scale=max(requests, 1.0))
