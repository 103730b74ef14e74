"""Labels of a plan for people: names of instances and of classes of requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from formulations.orchestration.place import instance_name
from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables


def labels(t: OrchestrationTables, plan: OrchestrationPlan) -> Iterator[tuple[str, str, str]]:
    """Path, stated label and label of every class and instance."""
    for k, c in enumerate(plan.classes):
        yield f"plan.classes[{k}].label", c.label, t.classes.label[k]
    number = Counter[int]()
    for k, i in enumerate(plan.instances):
        x = plan.configurations[i.configuration]
        number[i.configuration] += 1
        name = instance_name(t, x.model, x.gpu, x)
        yield f"plan.instances[{k}].name", i.name, f"{name}-{number[i.configuration]}"
