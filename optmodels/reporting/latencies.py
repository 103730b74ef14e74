"""The terminal text of the latency verbs: fitted models, shares of a step, batch limits, rows, benchmark runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from optmodels.io.write import path_text
from optmodels.latency.calibration import Calibration
from optmodels.latency.fit.document import LatencyModel
from optmodels.latency.piecewise import Grid, Table
from optmodels.reporting.text import plain


def calibrated_lines(found: Any, notes: Sequence[str], out: Path | None) -> list[str]:
    """A fitted model (`optmodels.calibrate`): coefficients, errors, warnings."""
    if isinstance(found, LatencyModel):
        lines = _model_lines(found)
    elif isinstance(found, Calibration):
        lines = [f"{c.gpu} {c.family} {c.phase}: β₁ = {c.slope:.4g}, β₀ = {c.intercept_s:.4g} s"
                 for c in found.coefficients]  # fmt: skip
    else:
        lines = list(notes)
    return _escaped([*lines, *_written(out)])


def _model_lines(model: LatencyModel) -> list[str]:
    lines = [f"{model.model}, from {model.provenance.get('rows', '?')} {model.measured} measurements"]
    lines += [f"  {w}" for w in model.why]
    for name, target in model.targets.items():
        for segment in target.segments:
            lines.append(f"{name}" + (f", {segment.when} rows" if segment.when != "all" else ""))
            for c in segment.terms:
                interval = f"  [{c.low:.3g}, {c.high:.3g}]" if c.low is not None and c.high is not None else ""
                lines.append(f"  {c.name:<20} {c.value:>11.4g} {c.unit:<20}{interval}")
        for what, e in (("in sample", target.in_sample), ("held back", target.cross_validated)):
            if e is not None:
                r2 = f"R² {e.r2:.4f}  " if e.r2 is not None else ""
                lines.append(
                    f"  {what}: {r2}MAPE {e.mape:.1%}  "
                    f"p50 {e.p50:.1%}  p90 {e.p90:.1%}  p99 {e.p99:.1%}  (n = {e.rows})"
                )
        if target.held_back:
            lines.append(f"  held back: {target.held_back}")
        shown = [f"{k}: ×{v:.3f}" for k, v in target.residual_quantiles.items() if k in ("0.5", "0.9", "0.95", "0.99")]
        lines.append(f"  safety levels: {', '.join(shown) or 'too few rows for any'}")
    lines += [f"warning: {w}" for w in model.warnings]
    return lines


def attribution_lines(found: Mapping[str, Any]) -> list[str]:
    """Shares of a step's latency by tenant and by request, next to those by tokens alone."""
    lines = [f"step: {1e3 * found['latency_s']:.3f} ms"]
    for name, key, entries in (("tenant", "tenant", found["tenants"]), ("request", "id", found["requests"])):
        lines.append(f"{name:<24}{'share ms':>12}{'by tokens ms':>14}")
        lines += [f"{e[key]:<24}{1e3 * e['share_s']:>12.3f}{1e3 * e['vtc_share_s']:>14.3f}" for e in entries]
    if admit := found.get("admit"):
        lines.append(
            f"admitting {admit['id']}: step {1e3 * admit['latency_s']:.3f} ms, {1e3 * admit['added_s']:+.3f} ms; "
            f"its share {1e3 * admit['share_s']:.3f} ms"
        )
    return _escaped([*lines, *_warned(found["warnings"])])


def batch_limit_lines(found: Mapping[str, Any]) -> list[str]:
    """The largest batch by memory and by latency."""
    b = found["b_mem"]
    exact = f"{b['exact']} exactly, " if b["exact"] is not None else ""
    lines = [
        f"Largest batch: {found['batch']} requests of {found['mean_tokens']:.1f} ± {found['std_tokens']:.1f} tokens",
        f"b_mem, within the KV cache: {exact}{b['normal']} by the normal approximation, "
        f"{b['linear']} by the linear rule (L₀ = {b['reserve_tokens']:.0f} tokens)",
        f"  at {b['normal']} the cache overflows with probability {b['true_probability_of_normal']:.4f} "
        f"± {b['standard_error']:.4f} (allowed {found['epsilon']:g})",
    ]
    if b["largest_tried"] is not None:
        lines.append(f"  {b['largest_tried']:,} is the largest batch tried")
    if "b_sla" in found:
        lines += [f"b_SLA, within {found['limit_s']:g} s: {found['b_sla']}", *_warned(found["warnings"])]
    return _escaped(lines)


def measured_lines(found: Mapping[str, Any]) -> list[str]:
    """The measurements that result files hold."""
    rows, files = found["rows"], found["files"]
    lines = [f"{len(rows)} {found['kind']} measurements from {_count(len(files), 'file')}"]
    for f in files:
        lines.append(f"  {f['file']}: {f['format']}, {_count(f['rows'], 'row')}")
        lines += [f"    {note}" for note in f.get("notes", ())]
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [v for row in rows if isinstance(v := row.get(name), int | float) and not isinstance(v, bool)]
        if values:
            lines.append(f"  {name}: {min(values):g} to {max(values):g}")
    return _escaped([*lines, *_written(found["out"])])


def point_lines(found: Mapping[str, Any], machine: str, out: Path | None) -> list[str]:
    """Rows of an instance."""
    form, rows = next(iter(found.items()))
    if form == "serves":
        from optmodels.latency.output import yaml_text

        row = dict(rows[0])
        lines = [yaml_text({"machine": machine, "serves": {row.pop("service"): row}}).rstrip()]
    else:
        lines = [_point_line(r) for r in rows]
    return _escaped([*lines, *_warned(found["warnings"]), *_written(out)])


def _point_line(r: dict[str, Any]) -> str:
    if "e2e_s" in r:
        text = f"{r['name']}: E2E {r['e2e_s']:.4g} s"
        return text if r["ttft_s"] is None else f"{text}, TTFT {r['ttft_s']:.4g} s, TPOT {1e3 * r['tpot_s']:.4g} ms"
    if "load" in r:
        return f"{r['model']} on {r['gpu']}, TP{r['tp']}, {r['load']} requests: {r['tokens_per_s']:.4g} tokens/s each"
    rates = ", ".join(f"{v:.4g} requests/s of {k}" for k, v in r.items() if "/" in k and v is not None)
    return f"{r['name']}: {rates}"


def curve_document(found: Table | Grid, notes: Sequence[str]) -> dict[str, Any]:
    """A table with its certificate, for JSON."""
    return {
        "rows": _size(found), "points": found.points, "max_error": found.max_error, "encoding": found.encoding,
        "binaries": found.binaries, "warnings": list(notes), found.name_x: found.x.tolist(),
        found.name_y: found.y.tolist(),
    }  # fmt: skip


def curve_lines(found: Table | Grid, notes: Sequence[str]) -> list[str]:
    """The certificate of a table."""
    fewest = "" if not isinstance(found, Grid) or found.proved_fewest else " (not proved fewest)"
    return _escaped([
        f"{_size(found)} of {found.points} points{fewest}, relative error at most {found.max_error:.3%}",
        f"encoding: {found.encoding}, {found.binaries} binaries", *_warned(notes),
    ])  # fmt: skip


def _size(found: Table | Grid) -> int:
    return int(found.y.size)


def chosen_lines(found: Mapping[str, Any], out: Path | None) -> list[str]:
    """The benchmark runs to measure, their worth and their commands."""
    rows = found["rows"]
    lines = [
        f"Measure {len(rows)} of {found['candidates']:,} possible closed-loop runs of {found['llm']} in "
        f"{found['precision']} on {found['gpu']} ({found['engine']}) for the surest {found['predicted']:,} predictions",
        f"{'tp':>4}{'concurrency':>13}{'input_tokens':>14}{'output_tokens':>15}",
    ]
    lines += [f"{r['tp']:>4}{r['concurrency']:>13}{r['input_tokens']:>14}{r['output_tokens']:>15}" for r in rows]
    for name, target in found["targets"].items():
        safety, priors = target["safety_09"], target["by_the_priors"]
        lines.append(
            f"{name} with safety 0.9: × {safety['now']:.2f} now, × {safety['after']:.2f} with these rows; "
            f"without other measurements, median run: × {priors['now']:.2f} and × {priors['after']:.2f}"
        )
    lines += ["Next: run these commands, each with the server at its tp", *(f"  {c}" for c in found["commands"])]
    if out is not None:
        calibrate = f"optmodels calibrate {shlex.quote(str(out))} --form default {deployment_options(found)}"
        lines.append(f"or fill in ttft_s and tpot_s by hand: {calibrate}")
    return _escaped([*lines, *_written(out)])


def deployment_options(document: Mapping[str, Any]) -> str:
    """Options of `calibrate` that name the deployment of a document."""
    names = {"--engine": "engine", "--gpu": "gpu", "--model": "llm", "--precision": "precision"}
    said = [f"{option} {shlex.quote(str(document[key]))}" for option, key in names.items()]
    return " ".join(
        [*said, *(["--attention-ranks", str(document["attention_ranks"])] * (document["attention_ranks"] > 1))]
    )


def _count(n: int, of: str) -> str:
    return f"{n} {of}{'s' * (n != 1)}"


def _warned(notes: Iterable[str]) -> list[str]:
    return [f"warning: {note}" for note in notes]


def _written(out: Path | str | None) -> list[str]:
    return [] if out is None else [f"written: {path_text(out)}"]


def _escaped(lines: Iterable[str]) -> list[str]:
    return [plain(line) for line in lines]
