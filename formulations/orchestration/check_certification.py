"""Independent check of what a plan says of its certification: its cuts are kept, its figures fit one another.

What the replays saw is taken on trust (`optmodels replay` shows it, with any seed); which promises the plan makes, that
a certified plan has none that is not kept, and that it keeps to its cuts and margins are recomputed.
"""

from __future__ import annotations

import math
from dataclasses import replace

from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.problem import Orchestration
from formulations.orchestration.recomputed import Recomputed, recompute
from optmodels.plans.findings import Findings

SAME = 1e-9
COPIES_OF_RATES = 32


def under(true: Recomputed, p: OrchestrationPlan) -> Recomputed:
    """The instance as a certified plan was made for it: engines with the margins of its pass, less what was cut."""
    c = p.certification
    if c is None:
        return true
    problem = true.case.problem
    candidates = dict(true.candidates)
    if c.planned is not None and c.planned.looser:
        candidates = dict(recompute(problem.looser()).candidates)
    cuts = {x.model: x for x in c.cuts}
    for key, candidate in candidates.items():
        of = cuts.get(key[0])
        if of is not None and candidate.level is not None:
            limits = {name: most * of.keep for name, most in candidate.level.limits.items()}
            level = replace(candidate.level, limits=limits)
            candidates[key] = replace(candidate, level=level, able=of.in_time)
    return replace(true, candidates=candidates)


def check_certification(found: Findings, problem: Orchestration, true: Recomputed, p: OrchestrationPlan) -> None:
    """All that a plan says of its certification."""
    c, rules = p.certification, problem.certification
    asked = problem.certify == "replay"
    found.require("certification exactly where it is asked for", (c is not None) == asked, c is not None, asked)
    if c is None:
        return
    copies = rules.copies or (0 if true.case.trace is not None else COPIES_OF_RATES)
    stated, right = (c.confidence, c.seed, c.copies), (rules.confidence, rules.seed, copies)
    found.require("certification: confidence, seed and copies are the instance's", stated == right, stated, right)
    same = c.planned is None or c.bound_looser == c.planned.looser  # where none was replayed, what time left
    found.require("certification: the bound is of the plan's pass", same, c.bound_looser, not c.bound_looser)
    found.at_most("certification: rounds", len(c.rounds), 2 * rules.rounds)
    models = [x.model for x in c.cuts]
    known = set(models) <= set(true.case.models) and len(set(models)) == len(models)
    found.require("certification: one cut a model of the instance", known, models, list(true.case.models))
    found.at_most("certification: the plan is of one of the rounds", c.of_round, len(c.rounds))
    promised = dict.fromkeys(true.case.models, math.nan)
    for name in promised:
        mine = [x for x in p.classes if x.model == name]
        came = sum(x.requests for x in mine)
        promised[name] = min(sum(x.in_time for x in mine) / came, 1.0) if came > 0 else math.nan
    expected = [m for m, share in promised.items() if not math.isnan(share)] if c.planned is not None else []
    listed = [x.model for x in c.promises]
    found.require("certification: the promises of the plan", sorted(listed) == sorted(expected), listed, expected)
    for x in c.promises:
        found.close(f"promise to {x.model}: promised", x.promised, promised.get(x.model, math.nan), scale=1.0)
        near = x.found == "undecided" or (x.seen < x.promised - SAME) == (x.found == "broken")
        found.require(f"promise to {x.model}: {x.found} by what was seen", near, x.seen, x.promised)
        sure = x.found != "undecided" or copies > 0
        found.require(f"promise to {x.model}: one replay decides", sure, x.found, "kept or broken")
        if not copies and true.case.trace is not None:
            came = sum(q.requests for q in p.classes if q.model == x.model)
            found.close(f"promise to {x.model}: requests", x.requests, came, scale=max(came, 1.0))
    held = c.planned is not None and all(x.found == "kept" for x in c.promises)
    found.require("certified exactly if all promises hold", (c.status == "certified") == held, c.status, held)
    passes = [r.looser for r in c.rounds]
    found.require("certification: the looser pass is the second", passes == sorted(passes), passes, sorted(passes))
    replayed = 0.0 if c.planned is None else c.planned.replayed
    weights = {m.weight for m in problem.models}
    for number, r in enumerate(c.rounds, 1):
        found.at_most(f"round {number}: promises not kept", r.broken + r.undecided, r.promises)
        better = r.replayed > replayed + SAME and len(weights) == 1
        unused = r.broken + r.undecided == 0 and (better or not held)
        found.require(f"round {number}: no better plan was certified", not unused, r.replayed, replayed)
    if c.planned is None:
        found.require("no cuts on a plan that was not replayed", not c.cuts, len(c.cuts), 0)
        return
    own = c.planned
    found.require("margins looser only where certified", held or not own.looser, own.looser, False)
    found.close("certification: objective of the plan's round", own.objective, p.score.total, scale=1.0)
    found.close("certification: attainment of the plan's round", own.attainment, p.prediction.attainment, scale=1.0)
    requests = sum(x.requests for x in c.promises)
    seen = sum(x.seen * x.requests for x in c.promises) / requests if requests > 0 else 0.0
    found.close("certification: replayed in the plan's round", own.replayed, seen, scale=1.0)
    found.close("certification: requests of the plan's round", own.requests, requests, scale=max(requests, 1.0))
    number = len(c.promises)
    found.require("certification: promises of the plan's round", own.promises == number, own.promises, number)
    for what in ("broken", "undecided"):
        number = sum(x.found == what for x in c.promises)
        found.require(f"certification: promises {what}", getattr(own, what) == number, getattr(own, what), number)
    first = c.of_round == 1 or c.rounds[c.of_round - 2].looser != own.looser
    found.require("certification: no cuts before the first replay", not first or not c.cuts, len(c.cuts), 0)
