"""Exports of a plan: vLLM, Kubernetes and its operators, SkyPilot, Terraform; its model as MPS or LP.

Each target is a module with a function ``Deployments → (files by name, notes)``. A note names a fact that the plan
states and the target cannot express: it stands in a comment of the file and on stderr, never nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain, count, groupby
from typing import Any

import yaml

from optmodels import catalog
from optmodels.catalog.spelling import precision_of
from optmodels.errors import InputError, Mistake, printable
from optmodels.io.write import safe_name
from optmodels.plans.deployment import Deployment, Deployments

PLACEHOLDER = "SET-THE-MODEL"  # where the plan knows no checkpoint
DRAFT_PLACEHOLDER = "SET-THE-DRAFT"
UNKNOWN_LONGEST = (
    "max-model-len auto: the problem says how long requests are on average, not how long the longest is, so the engine"
    " admits what model and KV memory allow; longest_tokens of every bucket (optmodels plan --longest) sets it."
)


@dataclass(frozen=True)
class Export:
    """Files to write, by name, and the facts that they do not state."""

    files: dict[str, str]
    notes: list[str] = field(default_factory=list)


Target = Callable[[Deployments], Export]


MODELS = ("mps", "lp")
SPANNING = "lws"  # the target whose servers may span machines
NAMES = ("vllm", "kubernetes", SPANNING, "kserve", "keda", "llm-d", "dynamo", "skypilot", "terraform", *MODELS)


def of_plan(plan: Deployments, to: str) -> Export:
    """The files of one target.

    Raises:
        InputError: there is nothing in the plan for this target.
    """
    if to == "terraform":
        if not plan.purchases:
            raise InputError(Mistake(None, "to", to, "a plan that buys something"))
    elif not plan.deployments:
        expected = "terraform: this plan buys machines and does not say what they run" if plan.purchases else "a plan"
        raise InputError(Mistake(None, "to", to, expected))
    elif to != SPANNING and (spanning := [d for d in plan.deployments if d.nodes > 1]):
        notes = [
            f"{d.name}: one server of the engine takes GPUs of {d.nodes} machines ({', '.join(d.hosts)}): start it on"
            f" them as one Ray cluster, or export --to {SPANNING}."
            for d in spanning
        ]
        rest = [d for d in plan.deployments if d.nodes == 1]
        if not rest:
            raise InputError(Mistake(None, "to", to, f"{SPANNING}: {notes[0]}"))
        plan = plan.model_copy(update={"deployments": rest, "notes": [*plan.notes, *notes]})
    noted = dict.fromkeys(f"{p.machine}: {p.note}" for p in plan.purchases if p.note)
    plan = plan.model_copy(update={"notes": [*plan.notes, *noted]})
    target: Target = import_module(f"optmodels.targets.{to.replace('-', '')}").export
    made = target(plan)
    return Export(made.files, _together(made.notes, [d.name for d in plan.deployments]))


def _together(notes: list[str], deployments: list[str]) -> list[str]:
    """Notes of several deployments, each stated once, in the order of the first."""
    of: dict[str, dict[str, None]] = {}
    for note in notes:
        name = next((x for x in deployments if note.startswith(f"{x}: ")), "")
        of.setdefault(note.removeprefix(f"{name}: "), {})[name] = None
    return [": ".join(x for x in (_several([*names]), text) if x) for text, names in of.items()]


def _several(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def of_model(model: Any, to: str, name: str) -> Export:
    """A Pyomo model as an MPS or LP file."""
    from optmodels.solver.write import model_text

    return Export({f"{safe_name(name)}.{to}": model_text(model, to)})


class _Plain(yaml.SafeDumper):
    """YAML as people write it: what occurs twice stands there twice, and lines are lines."""

    def ignore_aliases(self, data: Any) -> bool:
        """No anchors."""
        return True


class Lines(str):
    """A text that stands in YAML line by line."""


_Plain.add_representer(Lines, lambda d, text: d.represent_scalar("tag:yaml.org,2002:str", str(text), style="|"))


def as_yaml(*documents: Any, start: bool = False, width: int = 110) -> str:
    """Documents as plain YAML; `start`: each after a line of dashes, as one of several in a file."""
    text: str = yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, explicit_start=start, width=width)
    return text


def comment(text: str, mark: str = "#") -> list[str]:
    """Comment lines; nothing in `text` can end them."""
    words = " ".join(printable(text, 2000).split())
    return [f"{mark} {words}"]


def head(plan: Deployments) -> list[str]:
    """First comment lines of every file."""
    return [*comment(f"{plan.name}: written by optmodels from a plan; regenerate instead of editing."),
            *(line for note in plan.notes for line in comment(note))]  # fmt: skip


def names(deployments: list[Deployment]) -> list[str]:
    """A distinct DNS label for each deployment."""
    return dns_labels([f"{d.model or 'model'} {d.machine}" for d in deployments])


def dns_labels(texts: list[str], limit: int = 40) -> list[str]:
    """A distinct DNS label for each text: lower-case letters, digits and dashes, beginning with a letter."""
    found: list[str] = []
    for whole in texts:
        text = re.sub(r"[^a-z0-9]+", "-", whole.lower()).strip("-")[:limit].strip("-")
        text = text if text[:1].isalpha() else f"d-{text}".strip("-")
        free = (t for t in chain([text], (f"{text}-{i}" for i in count(len(found) + 1))) if t not in found)
        found.append(next(free))
    return found


@dataclass(frozen=True)
class NodePool:
    """Deployments that one router stands before.

    Attributes:
        name: a DNS label.
        apart: each does one stage of its requests.
        members: each with a DNS label.
    """

    name: str
    apart: bool
    members: list[tuple[str, Deployment]]


def pools(deployments: list[Deployment]) -> list[NodePool]:
    """Deployments of one model, precision and region; single-stage ones separate from the others.

    No router of requests has a setting for which of them go one way and which the other.
    """

    def key(member: tuple[str, Deployment]) -> tuple[str, ...]:
        d = member[1]
        return d.model, d.checkpoint, d.weights, d.kv, d.region, "apart" if d.stage != "both" else ""

    labelled = sorted(zip(names(deployments), deployments, strict=True), key=key)
    groups = [(k, list(members)) for k, members in groupby(labelled, key)]
    labels = dns_labels([f"{k[0] or 'model'} {k[-1]} pool" for k, _ in groups])
    return [NodePool(name, bool(k[-1]), members) for name, (k, members) in zip(labels, groups, strict=True)]


QUANTISED = {
    "fp8_block": "8-bit weights with a scale for each block", "fp4": "4-bit weights (NVFP4)",
    "mxfp4": "4-bit weights (MXFP4)", "int4": "4-bit weights (AWQ or GPTQ)",
}  # fmt: skip


def _published() -> set[tuple[str, str]]:
    """Checkpoints of the catalogue, and the precision that each has as it is."""
    return {(x.checkpoint, catalog.published_precision(name)) for name, x in catalog.llms().items()}


def said(d: Deployment) -> list[str]:
    """Notes of a deployment: its own, and the values to fill in."""
    notes = list(d.notes)
    if not d.checkpoint:
        notes.append(f"The plan names no checkpoint for {d.model or 'its model'}: replace {PLACEHOLDER}.")
    if d.weights in QUANTISED and precision_of(d.checkpoint) is None and (d.checkpoint, d.weights) not in _published():
        notes.append(f"The plan assumes {QUANTISED[d.weights]}: name a checkpoint quantised so.")
    if d.drafts is not None:
        notes.append(
            f"The plan counts on {d.drafts.tokens:.3g} tokens of a step with {d.drafts.drafts} drafts: measure how many"
            " are accepted; no setting of the engine makes them so."
        )
        if d.drafts.by == "head":
            notes.append(f"Replace {DRAFT_PLACEHOLDER} by the draft head's checkpoint, or the method by mtp.")
        elif d.drafts.by == "model" and not d.drafts.checkpoint:
            notes.append(f"The plan names no checkpoint for the draft model: replace {DRAFT_PLACEHOLDER}.")
    return notes


def about(d: Deployment, notes: list[str]) -> list[str]:
    """Comment lines on one deployment: its contents, then its notes."""
    size = d.gpus_per_replica
    place = f" in {d.region}" if d.region else ""
    terms = f" ({d.market.replace('_', '-')})" if d.market else ""
    runs = (
        f"{d.replicas_per_machine} × vLLM on {size} of its {d.gpus_per_machine} GPUs" if d.nodes == 1
        else f"a {d.nodes}th of one vLLM on {size // d.nodes} of its {d.gpus_per_machine} GPUs"
    )  # fmt: skip
    what = f"{d.machines} × {d.machine}{place}{terms}, on each {runs}"
    hosts = [f"On {', '.join(d.hosts)}."] if d.hosts else []
    longest = [] if d.max_model_len else [UNKNOWN_LONGEST]
    return [line for text in (d.name, what, *hosts, *longest, *notes) for line in comment(text)]


def prefixed(d: Deployment, notes: list[str]) -> list[str]:
    """The notes as they stand outside of the file."""
    return [f"{d.name}: {n}" for n in notes]
