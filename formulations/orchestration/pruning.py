"""Pruning of the configuration tree (MaaSO §IV-D): by dominance, which cuts nothing optimal, and by the paper's rules.

*Dominance.* Let r instances of configuration a need no more GPUs than one of b, fit the servers wherever it does, and
have as many slots; and let a serve every class that b may serve no slower, as large a share, with as long a wait
allowed and as early a first token. Then any assignment of the column form moves from b to a: busy shares grow with the
service time, deadlines loosen with the wait, MS(6–8) only gain. So b is never needed. A configuration that no class may
use is never needed either, unless a model's minimum of instances asks for it. (The tables leave out dominated ones
whatever the requests; this looks at the classes there are.)

*The paper's rules*, which are rules of thumb: a parallelism that is no faster than one with fewer GPUs goes; so does a
batch size that admits no request, or no more than a larger one does. They ignore that many slow slots can beat few fast
ones, so they may cut an optimal plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from formulations.orchestration.flow import latency_threshold
from formulations.orchestration.place import running_counts
from formulations.orchestration.points import Configuration, OrchestrationTables
from optmodels.arrays import Array, Mask


@dataclass(frozen=True)
class PrunedConfigurations:
    """Candidates that survive.

    Attributes:
        keep: (C,) survives.
        cut: configuration → why it went.
    """

    keep: Mask
    cut: dict[int, str]


def dominated(t: OrchestrationTables) -> PrunedConfigurations:
    """Configurations without which the best plan is as good."""
    C = len(t.configurations)
    keep = np.ones(C, dtype=bool)
    cut: dict[int, str] = {}
    p = t.case.problem
    running = running_counts(t) > 0
    priced = bool(p.change.running) and bool(p.change.score_per_start or p.change.score_per_stop)
    present = t.classes.count > 0
    useful = t.admissible & present[:, None]
    prefill = np.array([x.prefill_s_per_token for x in t.configurations])
    for b in range(C):
        x = t.configurations[b]
        if priced and running[b]:
            continue  # stopping it costs
        served = p.models[x.model]
        if not useful[:, (t.legs == b).any(axis=1)].any() and not served.minimum_instances:
            keep[b], cut[b] = False, "no class of requests may use it"
            continue
        if t.taken is not None:
            continue  # levels keep other promises each
        single = priced or served.maximum_instances is not None
        rows = useful[:, b]
        for a in np.flatnonzero(keep & (t.model_of == x.model) & (t.gpu_of == x.gpu)):
            if a == b:
                continue
            y = t.configurations[a]
            copies = _copies(y, x, single)
            if not copies or prefill[a] > prefill[b]:
                continue
            slower = t.service_s[rows, a] > t.service_s[rows, b]
            less = (t.wait_s[rows, a] < t.wait_s[rows, b]) | (t.share[rows, a] < t.share[rows, b])
            if (slower | less).any() or not t.admissible[rows, a].all():
                continue
            keep[b] = False
            cut[b] = f"{f'{copies} of ' if copies > 1 else ''}{t.name(int(a))} serve all it serves"
            break
    return PrunedConfigurations(keep, cut)


def _copies(a: Configuration, b: Configuration, single: bool) -> int:
    """Instances of a that stand in for one of b with no more GPUs, at least as many slots, wherever b fits; 0: none."""
    copies = -(-b.slots // a.slots)
    if copies * a.gpus > b.gpus or (single and copies > 1):
        return 0
    return copies if copies * a.units <= (b.unit // a.unit) * b.units else 0


def paper_rules(t: OrchestrationTables) -> PrunedConfigurations:
    """The two rules of MaaSO §IV-D as printed; running instances are left alone."""
    keep = np.ones(len(t.configurations), dtype=bool)
    cut: dict[int, str] = {}
    running = running_counts(t) > 0
    share = admitted_share(t)
    groups: dict[tuple[int, int], list[int]] = {}
    for c, x in enumerate(t.configurations):
        groups.setdefault((x.model, x.gpu), []).append(c)
    for members in groups.values():
        for b in members:
            x = t.configurations[b]
            for a in members if not running[b] else ():
                y = t.configurations[a]
                if y.gpus < x.gpus and y.tokens_per_s[0] >= x.tokens_per_s[0]:
                    keep[b], cut[b] = False, f"parallelism: no faster than {y.parallelism} with fewer GPUs"
                    break
        for b in members:
            x = t.configurations[b]
            if not keep[b] or running[b]:
                continue
            if share[b] <= 0:
                keep[b], cut[b] = False, "batch: too slow for any request"
                continue
            larger = [a for a in members if keep[a] and (y := t.configurations[a]).batch > x.batch
                      and y.degrees == x.degrees and share[a] >= share[b]]  # fmt: skip
            if larger:
                keep[b], cut[b] = False, f"batch: {t.configurations[larger[0]].batch} admits as many requests"
    return PrunedConfigurations(keep, cut)


def admitted_share(t: OrchestrationTables) -> Array:
    """(C,) share of its model's requests that a configuration serves in time when they do not wait."""
    share = np.zeros(len(t.configurations))
    for c, x in enumerate(t.configurations):
        mine = t.classes.model == x.model
        total = float(t.classes.count[mine].sum())
        able = t.classes.count * t.share[:, c] * t.admissible[:, c]
        share[c] = float(able[mine].sum()) / total if total > 0 else 0.0
    return share


def together(t: OrchestrationTables) -> OrchestrationTables:
    """The tables without what does one stage only."""
    if not t.case.problem.deployment.apart:
        return t
    return restrict(t, np.array([x.stage == "both" for x in t.configurations], dtype=bool))


def restrict(t: OrchestrationTables, keep: Mask) -> OrchestrationTables:
    """The tables with some of the configurations only; scores stay the full tables' scores."""
    keep = np.asarray(keep, dtype=bool)
    chosen, routes = np.flatnonzero(keep), np.logical_and(*keep[t.legs].T)
    place = np.cumsum(keep) - 1
    p = t.case.problem
    objective = p.objective.model_copy(update={"latency_threshold_s": latency_threshold(t)})
    case = replace(t.case, problem=p.model_copy(update={"objective": objective}))
    return replace(
        t, case=case, configurations=tuple(t.configurations[c] for c in chosen),
        taken=None if t.taken is None else tuple(t.taken[c] for c in chosen),
        service_s=t.service_s[:, routes], first_s=t.first_s[:, routes], share=t.share[:, routes],
        wait_s=t.wait_s[:, routes], apart=place[t.apart[routes[len(keep) :]]],
    )  # fmt: skip
