"""Independent check of a plan's statements about its certification: its cuts are kept, its figures fit one another.

The simulation's results are not recomputed (`optmodels replay` shows it with any seed); how many promises the plan
makes, which limits they are, and that a certified plan has none that is not kept are counted again.
"""

from __future__ import annotations

import math

from formulations.fleet.check_engines import Models
from formulations.fleet.plan import CutLine, DeploymentLine, FleetPlan, RoundLine
from formulations.fleet.problem import Fleet, FleetCase
from optmodels.certification.check import SAME, KnownPlan, check_rounds, is_expected, same_settings
from optmodels.engine.continuous import seconds_and_quantile
from optmodels.plans.findings import Findings

SLACK = 1e-6


def _near(a: float | None, b: float | None) -> bool:
    return a == b if a is None or b is None else abs(a - b) <= SAME * max(abs(a), abs(b))


def cut_of(case: FleetCase, p: FleetPlan, models: Models, d: DeploymentLine) -> CutLine | None:
    """The cut that a line of engines is under."""
    if p.certification is None or d.engine is None:
        return None
    e, main = d.engine, d.machines[0]
    listed = next((m for m in case.machines if (m.machine, m.region) == (main.machine, main.region)), None)
    if listed is None:
        return None
    for c in p.certification.cuts:
        same = models.get((c.loads, c.model)) == models.get((d.loads or "", d.model)) and c.gpu == listed.gpu
        same &= (
            c.tensor_parallel == d.tensor_parallel
            and c.attention_ranks == d.attention_ranks
            and c.stage == d.stage
            and _near(c.gpu_gib, listed.vram_gib / listed.gpu_count)
        )
        if same and all(
            _near(getattr(c, k), getattr(e, k)) for k in ("step_s", "wait_s", "most_of_wait", "place_wait_s")
        ):
            return c
    return None


def check_certification(
    found: Findings, problem: Fleet, case: FleetCase, models: Models, p: FleetPlan, objective: float
) -> None:
    """All that a plan states about its certification; `objective` is its value, recomputed."""
    c, rules = p.certification, problem.certification
    if not is_expected(found, c, problem.certify) or c is None:
        return
    same_settings(found, {"confidence": c.confidence, "seed": c.seed},
                  {"confidence": rules.confidence, "seed": rules.seed})  # fmt: skip
    of = {c.bound_stretch, c.bound_stretch_alone or c.bound_stretch}
    near = of <= set(rules.stretches) and max(of) >= max((r.stretch for r in c.rounds), default=1.0)
    found.require("certification: a pass's model, none looser, has the bound", near, max(of), rules.stretches)
    apart = c.bound_stretch_alone is None or problem.deployment.apart
    found.require("certification: a bound of fleets without stages apart only where there are others", apart,
                  c.bound_stretch_alone, None)  # fmt: skip
    demands = {d.name: d for d in case.demands}
    keys = []
    for cut in c.cuts:
        name = f"cut of {cut.gpu} at steps of {cut.step_s:g} s"
        loads = cut.loads, cut.model
        found.require(f"{name}: a workload's model", loads in models, loads, sorted(map(str, models)))
        unknown = [x for x in cut.forbidden if x not in demands]
        found.require(f"{name}: demands of the problem", not unknown, unknown, sorted(demands))
        gpus = {(m.gpu, m.vram_gib / m.gpu_count) for m in case.machines}
        there = any(cut.gpu == gpu and _near(cut.gpu_gib, gib) for gpu, gib in gpus)
        found.require(f"{name}: a GPU of the pool", there, cut.gpu, sorted(str(gpu) for gpu, _ in gpus))
        keys.append((models.get((cut.loads, cut.model)), *(getattr(cut, k) for k in CutLine.POINT[2:])))
    found.require("certification: one cut a point", len(set(keys)) == len(keys), len(keys), len(set(keys)))
    promises: dict[tuple[str, str, str, str], tuple[float, float | None]] = {}
    for q in p.periods:
        for d in q.deployments:
            line = cut_of(case, p, models, d)
            for s in d.serves:
                if line is not None and s.demand in line.forbidden:
                    found.add(f"{q.name}: {d.name}: {s.demand} is cut off", s.requests_per_s, 0.0, "1/s")
                w = case.workload(demands[s.demand].workload)
                for metric in ("ttft_s", "tpot_s", "itl_s", "deadline_s"):
                    limit = getattr(w.slo, metric)
                    one_token = metric in ("tpot_s", "itl_s") and demands[s.demand].output_tokens == 1
                    others = {"both": (), "prefill": ("tpot_s", "itl_s", "deadline_s"), "decode": ("ttft_s",)}[d.stage]
                    if limit is None or s.requests_per_s <= 0 or one_token or metric in others:
                        continue
                    seconds, at = seconds_and_quantile(limit)
                    up_to = w.soft.up_to if w.soft is not None and s.misses_slo else 1.0
                    promises[q.name, d.name, s.demand, metric] = seconds * up_to, at
    for x in c.promises:
        at_most_s, at = promises.get((x.period, x.deployment, x.demand, x.latency), (math.nan, None))
        same = x.percentile == at and _near(x.at_most_s, at_most_s)
        found.require(f"promise to {x.demand}: its limit", same, x.at_most_s, at_most_s)
        near = x.found == "undecided" or (x.seen_s > x.at_most_s) == (x.found == "broken")
        found.require(f"promise to {x.demand}: {x.found} by what was seen", near, x.seen_s, x.at_most_s)

    def is_better(number: int, r: RoundLine) -> bool:
        better = problem.objective == "min_cost" and r.objective < objective * (1 - SLACK)
        better |= problem.objective != "min_cost" and r.objective > objective * (1 + SLACK)
        return better or (
            number < c.of_round and abs(r.objective - objective) <= SAME * objective
        )  # of equals the first

    stated = [(x.period, x.deployment, x.demand, x.latency) for x in c.promises]
    true = KnownPlan(promises, objective, lambda r: r.stretch != 1, lambda r: r.stretch, is_better)
    held = check_rounds(found, c, true, stated, len(rules.stretches), rules.rounds)
    found.require("limits stretched only where certified", p.stretch == 1 or held, p.stretch, 1)
    for number, r in enumerate(c.rounds, 1):
        found.require(f"round {number}: limits as asked for", r.stretch in rules.stretches, r.stretch, rules.stretches)
