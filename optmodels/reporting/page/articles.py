"""Content of a page as articles of sections: a result, a comparison, a sweep."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import yaml

from optmodels import formulation as registry
from optmodels.errors import InputError, printable
from optmodels.plans.replayed import missed
from optmodels.reporting.charts import Chart
from optmodels.reporting.charts.generic import result_charts
from optmodels.reporting.decision import first_lines, is_refuted
from optmodels.reporting.page.figures import Figure, key_figures, number
from optmodels.reporting.page.words import Paragraph, Span, WordGrid, blocks, cut, made

_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times faster where libyaml is there
STATUS_WORDS = {
    "optimal": ("good", "optimal, proved"), "feasible": ("warn", "feasible, not proved optimal"),
    "infeasible": ("bad", "infeasible, proved"), "unbounded": ("bad", "unbounded"),
    "no_solution_found": ("bad", "no plan found"), "error": ("bad", "error"),
}  # fmt: skip


@dataclass(frozen=True)
class Code:
    """Text to copy: a command, an instance."""

    text: str
    summary: str = ""  # of the fold it hides in; empty: shown at once


Item = Paragraph | WordGrid | Chart | list[Figure] | Code


@dataclass
class Section:
    """A titled part of an article."""

    title: str
    items: Sequence[Item]
    lead: bool = False


@dataclass
class Article:
    """Everything about one document."""

    title: str
    kicker: str
    badge: tuple[str, str] | None = None
    sections: list[Section] = field(default_factory=list)
    command: str = ""

    def charts(self) -> list[Chart]:
        """The charts, in order."""
        return [item for section in self.sections for item in section.items if isinstance(item, Chart)]

    def reproduce(self, words: Iterable[object], *more: Item, before: Sequence[Item] = ()) -> None:
        """The last section: the command that makes the document again, and what else that takes."""
        self.command = shlex.join(printable(str(w)) for w in words)
        self.sections.append(Section("Reproduce", [*before, Code(self.command), *more]))


def of_result(document: Mapping[str, Any]) -> Article:
    """The article of a solve document."""
    form = _formulation(document.get("formulation"))
    problem, plan = document.get("problem") or {}, document.get("plan")
    title = problem.get("title") or problem.get("name") or document.get("instance") or "Result"
    method = document.get("method", "")
    kicker = f"{form.title if form else document.get('formulation', '')} · method {method}"
    article = Article(cut(str(title), 300), cut(kicker, 300), _badge(document))
    words: list[Paragraph | WordGrid] = list(blocks(form.summary(document))) if form else []
    decided = list(blocks(first_lines(document)))
    lead: list[Any] = [*decided]
    if plan is None:
        reason = (document.get("log") or {}).get("reason") or "No plan was found."
        lead.append(Paragraph([Span(cut(str(reason), 2000))]))
        lead += [Paragraph([Span(cut(str(line), 400))]) for line in (document.get("log") or {}).get("needs") or ()]
    while words and isinstance(words[0], Paragraph) and not decided:
        lead.append(words.pop(0))
    if plan is not None and words and isinstance(words[0], WordGrid):
        lead.append(words.pop(0))  # the table that a formulation shows first: what requests see, or what to rent
    article.sections.append(Section("The plan" if plan is not None else "The answer", lead, lead=True))
    article.sections.append(Section("Next", [Code("\n".join(next_commands(document)))]))
    article.sections.append(Section("Certificate", _certificate(document)))
    charts = (form.charts(document) if form and form.charts else []) + result_charts(document)
    charts = [c for c in charts if not _says_one_number(c)]
    if charts:
        article.sections.append(Section("Charts", list(charts)))
    if words:
        article.sections.append(Section("Details", words))
    if plan is not None:
        figures = _objective_figure(document) + key_figures(plan)
        article.sections.append(Section("Key figures", [_distinct(figures)]))
    version = document.get("optmodels_version", "")
    said = f"Made by optmodels {version}. The same problem, method and seed give the same plan:"
    article.reproduce(command(document), *instance_of(document), before=[Paragraph([Span(said)])])
    return article


def _badge(document: Mapping[str, Any]) -> tuple[str, str] | None:
    """The status as colour and words; an SLO that the replay or the prediction misses comes first."""
    if is_refuted(document):
        return "bad", "misses its SLO in the replay or prediction"
    return STATUS_WORDS.get(document.get("status", ""))


def _says_one_number(chart: Chart) -> bool:
    """Whether a chart would be a single bar."""
    values = (chart.spec.get("data") or {}).get("values")
    return isinstance(values, list) and len(values) <= 1


def next_commands(document: Mapping[str, Any]) -> list[str]:
    """Commands to run after reading a result, as lines of a shell."""
    again = command(document)
    asked = again[1:2] == ["plan"]
    file = "instance.yaml" if asked else again[2]
    saved = [shlex.join([*again, "--write", file])] if asked and "--write" not in again else []
    explain = f"optmodels explain {shlex.quote(printable(file))}"
    if document.get("plan") is None:
        return [*saved, f"{explain}  # which limits conflict, and the least change that helps"]
    lines = ["optmodels export plan.json --to vllm  # or kubernetes, terraform and others"]
    report = document.get("report") or {}
    if (report.get("latency") or {}).get("missed_at_the_pessimistic_end"):
        safer = shlex.join([*again, "--safety", "0.9"]) if asked else "# latency: {safety: 0.9} in the problem file"
        lines.append(f"{safer}  # a plan that meets the SLO with this margin")
    return [*lines, *saved, f"{explain}  # what each limit costs, and the next best plans"]


def _formulation(name: Any) -> registry.Formulation | None:
    """The formulation, or None where it is not installed: a page of its result still states the rest."""
    try:
        return registry.get(name)
    except InputError:
        return None


def _objective_figure(document: Mapping[str, Any]) -> list[Figure]:
    if document.get("objective") is None:
        return []
    goal = {"min": "Objective (minimised)", "max": "Objective (maximised)"}.get(document.get("sense", ""), "Objective")
    return [Figure(goal, number(document["objective"]), document.get("unit", ""))]


def _distinct(figures: list[Figure]) -> list[Figure]:
    """Without figures that repeat the value and unit of an earlier one."""
    seen: dict[tuple[str, str], Figure] = {}
    for f in figures:
        seen.setdefault((f.value, f.unit), f)
    return list(seen.values())


def _certificate(document: Mapping[str, Any]) -> list[Any]:
    status, unit = document.get("status", ""), document.get("unit", "")
    objective, bound, gap = (document.get(k) for k in ("objective", "bound", "gap"))
    limit = document.get("limit")
    rows: list[tuple[str, str]] = [("Status", (_badge(document) or ("", str(status)))[1])]
    for name, value in (("Objective", objective), ("Bound", bound)):
        rows.append((name, "none" if value is None else f"{number(value)} {unit}"))
    if document.get("certifies"):
        rows.append(("Scope of the bound", str(document["certifies"])))
    rows.append(("Gap", "none: no bound" if gap is None else f"{gap:.3%}"))
    rows.append(("Stopped early", {None: "no", "interrupt": "interrupted"}.get(limit, f"by the {limit} limit")))
    verdict = document.get("check")
    if verdict is not None:
        rows.append(("Independent check", "passed" if verdict["ok"] else "FAILED"))
    items: list[Any] = [Paragraph([Span(_promise(document))]), _facts(rows)]
    if verdict is not None and verdict.get("violations"):
        items.append(made("What the check found", ["requirement", "plan", "limit", "unit"],
                          [[v["requirement"], v["value"], v["limit"], v.get("unit", "")]
                           for v in verdict["violations"]]))  # fmt: skip
    seconds, size = document.get("seconds") or {}, document.get("size") or {}
    work = [(k.capitalize(), f"{v:.3g} s") for k, v in seconds.items() if k in ("build", "solve", "total")]
    work += [(k.capitalize(), f"{v:,}") for k, v in size.items() if v]
    return [*items, _facts(work, "Effort")] if work else items


def _promise(document: Mapping[str, Any]) -> str:
    status, gap, verdict = document.get("status"), document.get("gap"), document.get("check")
    better = "higher" if document.get("sense") == "max" else "lower"
    if verdict is not None and not verdict["ok"]:
        return "The independent check refutes this plan: do not use it. What it found is listed below."
    if (refuted := missed(document.get("report"))) is not None:
        return f"The replay refutes the plan's SLOs: {refuted}. The bound is one of the model, not of the trace."
    if status == "optimal":
        checked = (
            " An independent checker, sharing no code with the solver, recomputed the plan; the bound is the method's"
            " own (optmodels check --prove derives it again)."
        )
        proof = (
            f"No plan with a {better} objective exists under the stated model, prices and limits: a bound proves it."
        )
        return proof + (checked if verdict is not None else "")
    if status == "feasible" and gap is not None:
        return f"A better plan may exist, but none that is more than {gap:.2%} better: that is what the bound proves."
    if status == "feasible":
        return "The method found this plan and proves nothing about better ones; compare it with exact for a bound."
    if status == "infeasible":
        return "No plan meets every limit of the instance. This is proved, not given up on."
    return "The search stopped before it found a plan; nothing is proved."


def _facts(rows: Sequence[tuple[str, str]], caption: str = "") -> WordGrid:
    """A table of two columns whose first one heads the rows."""
    table = made(caption, ["", ""], rows)
    return WordGrid(table.caption, [], table.rows, [False, False])


def command(document: Mapping[str, Any]) -> list[str]:
    """The words of the command that makes the result again."""
    typed = (document.get("log") or {}).get("command")
    if isinstance(typed, str):  # of `optmodels plan`, whose instance is no file
        with suppress(ValueError):
            words = shlex.split(typed)
            if words[1:2] == ["plan"]:
                return words
    words = ["optmodels", "solve", str(document.get("instance") or "instance.yaml")]
    words += ["--method", str(document["method"])] if document.get("method", "exact") != "exact" else []
    for name, value in (document.get("options") or {}).items():
        if value not in (None, 0, 0.0, False):
            words += [f"--{name.replace('_', '-')}", str(value)]
    if (document.get("problem") or {}).get("certify") == "replay":  # the option is not one of the method's
        words.append("--certify-replay")
    return words


def _by_name(problem: Mapping[str, Any]) -> dict[str, Any]:
    """An instance whose latencies are the shipped coefficients as ``model: default``: 70 kB less."""
    from optmodels.latency.engines.document import EngineModel, read_engine_model

    latency = problem.get("latency")
    documents = latency.get("model") if isinstance(latency, Mapping) else None
    if not isinstance(latency, Mapping) or not isinstance(documents, list | tuple) or len(documents) != 1:
        return dict(problem)
    try:
        same = EngineModel.model_validate(documents[0]) == read_engine_model()
    except ValueError:  # of another kind, or damaged
        same = False
    return dict(problem) | ({"latency": dict(latency) | {"model": "default"}} if same else {})


def instance_of(
    document: Mapping[str, Any], what: str = "The problem, with everything it refers to written out"
) -> list[Code]:
    """The instance as a file, where the document has it."""
    if not document.get("problem"):
        return []
    text = yaml.dump(_by_name(document["problem"]), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return [Code(text, f"{what} (YAML)")]
