"""Independent check of what a plan says of its certification: its cuts are kept, its figures fit one another.

What the simulation saw is taken on trust (`optmodels replay` shows it with any seed); how many promises the plan makes,
which limits they are, and that a certified plan has none that is not kept are counted anew.
"""

from __future__ import annotations

from collections.abc import Mapping

from formulations.fleet.plan import CutLine, DeploymentLine, FleetPlan
from formulations.fleet.problem import Fleet, FleetCase, Percentile
from optmodels.plan.findings import Findings

SLACK = 1e-6
SAME = 1e-9


def _near(a: float | None, b: float | None) -> bool:
    return a == b if a is None or b is None else abs(a - b) <= SAME * max(abs(a), abs(b))


def cut_of(case: FleetCase, p: FleetPlan, models: Mapping[str, str], d: DeploymentLine) -> CutLine | None:
    """The cut that a line of engines is under."""
    if p.certification is None or d.engine is None:
        return None
    e, main = d.engine, d.machines[0]
    listed = next((m for m in case.machines if (m.machine, m.region) == (main.machine, main.region)), None)
    if listed is None:
        return None
    for c in p.certification.cuts:
        same = models.get(c.loads) == models.get(d.loads or "") and c.gpu == listed.gpu
        same &= c.tensor_parallel == d.tensor_parallel and _near(c.gpu_gib, listed.vram_gib / listed.gpu_count)
        if same and all(_near(getattr(c, k), getattr(e, k)) for k in ("step_s", "wait_s", "most_of_wait")):
            return c
    return None


def check_certification(
    found: Findings, problem: Fleet, case: FleetCase, models: Mapping[str, str], p: FleetPlan, objective: float
) -> None:
    """All that a plan says of its certification; `objective` is its value, recomputed."""
    c, rules = p.certification, problem.certification
    asked = problem.certify == "replay"
    found.require("certification exactly where it is asked for", (c is not None) == asked, c is not None, asked)
    if c is None:
        return
    stated, true = (c.confidence, c.seed), (rules.confidence, rules.seed)
    found.require("certification: confidence and seed are the instance's", stated == true, stated, true)
    found.at_most("certification: rounds", len(c.rounds), rules.rounds)
    demands = {d.name: d for d in case.demands}
    keys = []
    for cut in c.cuts:
        name = f"cut of {cut.gpu} at steps of {cut.step_s:g} s"
        found.require(f"{name}: a workload's model", cut.loads in models, cut.loads, sorted(models))
        unknown = [x for x in cut.forbidden if x not in demands]
        found.require(f"{name}: demands of the instance", not unknown, unknown, sorted(demands))
        gpus = {(m.gpu, m.vram_gib / m.gpu_count) for m in case.machines}
        there = any(cut.gpu == gpu and _near(cut.gpu_gib, gib) for gpu, gib in gpus)
        found.require(f"{name}: a GPU of the pool", there, cut.gpu, sorted(str(gpu) for gpu, _ in gpus))
        keys.append((models.get(cut.loads), *(getattr(cut, k) for k in (
            "gpu", "gpu_gib", "tensor_parallel", "step_s", "wait_s", "most_of_wait"))))  # fmt: skip
    found.require("certification: one cut a point", len(set(keys)) == len(keys), len(keys), len(set(keys)))
    promises: dict[tuple[str, str, str, str], tuple[float, float | None]] = {}
    count = 0
    for q in p.periods:
        for d in q.deployments:
            cut_here = cut_of(case, p, models, d)
            for s in d.serves:
                if cut_here is not None and s.demand in cut_here.forbidden:
                    found.add(f"{q.name}: {d.name}: {s.demand} is cut off", s.requests_per_s, 0.0, "1/s")
                w = case.workload(demands[s.demand].workload)
                for metric in ("ttft_s", "tbt_s", "deadline_s"):
                    limit = getattr(w.slo, metric)
                    if limit is None or s.requests_per_s <= 0:
                        continue
                    if metric == "tbt_s" and demands[s.demand].output_tokens == 1:
                        continue
                    seconds, q_ = (limit.at_most, limit.percentile) if isinstance(limit, Percentile) else (limit, None)
                    up_to = w.soft.up_to if w.soft is not None and s.misses_slo else 1.0
                    promises[q.name, d.name, s.demand, metric] = seconds * up_to, q_
                    count += 1
    for x in c.unkept:
        known = promises.get((x.period, x.deployment, x.demand, x.latency))
        limits = (x.at_most_s, x.percentile)
        right = known is not None and x.percentile == known[1] and _near(x.at_most_s, known[0])
        found.require(f"unkept promise to {x.demand}: one of the plan", right, limits, known)
        if x.found == "broken":
            beyond = x.seen_s > x.at_most_s * (1 - SLACK)
            found.require(f"broken promise to {x.demand}: seen beyond its limit", beyond, x.seen_s, x.at_most_s)
    found.at_most("certification: the plan is of one of the rounds", c.of_round, len(c.rounds))
    held = c.of_round > 0 and not c.unkept
    found.require("certified exactly if all promises hold", (c.status == "certified") == held, c.status, held)
    for number, r in enumerate(c.rounds, 1):
        found.at_most(f"round {number}: promises not kept", r.broken + r.undecided, r.promises)
        perfect = r.broken + r.undecided == 0
        last = number == len(c.rounds) and c.status == "certified"
        found.require(
            f"round {number}: all promises kept exactly in a last, certified one", perfect == last, perfect, last
        )
    if not 0 < c.of_round <= len(c.rounds):
        found.require("no cuts on a plan that was not simulated", not c.cuts and not c.unkept, len(c.cuts), 0)
        return
    mine = c.rounds[c.of_round - 1]
    found.close("certification: objective of the plan's round", mine.objective, objective)
    found.require("certification: promises of the plan", mine.promises == count, mine.promises, count)
    for what in ("broken", "undecided"):
        number = sum(x.found == what for x in c.unkept)
        found.require(f"certification: promises {what}", getattr(mine, what) == number, getattr(mine, what), number)
    found.require("certification: no cuts before the first simulation", c.of_round > 1 or not c.cuts, len(c.cuts), 0)
