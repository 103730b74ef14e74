"""`check`: a result verified against its problem file."""

from __future__ import annotations

import sys
from typing import Any

import optmodels
from optmodels.cli.console import show, violation_lines
from optmodels.cli.options import Json, verb
from optmodels.cli.results import result_of
from optmodels.plans.claims import HISTORY

PARTS_SHOWN = 8


@verb("plan")
def check(given: dict[str, Any], as_json: Json = False) -> int:
    """Verify a result against its problem file, independently. The exit status is 1 if something is violated."""
    from optmodels.reporting.text import plain

    report = optmodels.check(**given | {"plan": result_of(given["plan"])})
    if as_json:
        sys.stdout.write(report.model_dump_json(indent=2) + "\n")
    elif report.ok and not report.rebuilt and not report.trusted and report.proof is not None:
        show(["no plan to verify"])
    elif report.ok:
        trusted = {line.path: line.why for line in report.trusted}
        claimed = "bound" in trusted and not given["prove"]
        history = [path for path in HISTORY if trusted.pop(path, None) is not None]
        bound = "; bound as claimed (optmodels check --prove derives it)" if claimed else ""
        rebuilt = plain(", ".join(report.rebuilt))
        more = len(trusted) - PARTS_SHOWN
        show([
            f"[green]ok[/green]: plan verified{bound}",
            *([f"Recomputed by the same program and equal: {rebuilt}"] if rebuilt else []),
            *([f"[dim]Not verified, history of the run: {', '.join(history)}[/dim]"] if history else []),
            *(["[dim]Not verified:[/dim]"] if trusted else []),
            *(f"[dim]  {plain(path)}: {plain(why)}[/dim]" for path, why in [*trusted.items()][:PARTS_SHOWN]),
            *([f"[dim]  … and {more} more (--json)[/dim]"] if more > 0 else []),
        ])  # fmt: skip
    else:
        show(["[red]violated[/red]:"])
        show(violation_lines(report.violations))
    if report.proof is not None and not as_json:
        show(_proof(report.proof))
    return 0 if report.ok else 1


def _proof(proof: Any) -> list[Any]:
    """The second derivation of the bound, for the terminal."""
    from optmodels.reporting.text import plain

    def number(value: float | None) -> str:
        return "none" if value is None else f"{value:,.6g}"

    words = {
        "confirmed": "[green]confirmed[/green]", "refuted": "[red]REFUTED[/red]",
        "not refuted": "[yellow]not refuted within the limit[/yellow]",
        "nothing claimed": "[yellow]nothing was claimed[/yellow]",
    }[proof.verdict]  # fmt: skip
    gap = "" if proof.gap is None else f", gap {proof.gap:.2g} to the plan"
    lines = [f"Bound: {words}; claimed {number(proof.claimed)}, derived again {number(proof.bound)}{gap}"]
    if proof.of:
        lines.append(plain(f"  of the linear model {', and of that '.join(proof.of)}"))
    for a in proof.attempts:
        found = f", a plan of {number(a.objective)}" if a.objective is not None else ""
        said = f"; {a.said}" if a.said else ""
        lines.append(
            plain(f"  {a.form} by {a.solver}: {a.status}, bound {number(a.bound)}{found}, {a.seconds:.1f} s{said}")
        )
    return lines
