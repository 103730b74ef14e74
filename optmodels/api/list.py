"""`list`: what there is."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optmodels import formulation as registry
from optmodels import shipped
from optmodels.api.sources import File, renamed
from optmodels.errors import InputError, Mistake
from optmodels.io.write import path_text

if TYPE_CHECKING:
    from optmodels.catalog.types import Machine

Rows = builtins.list[dict[str, Any]]


@renamed({"pool": "cloud"})
def list(
    what: str = "formulations", folder: File | None = None, *, cloud: str | None = None, region: str | None = None,
) -> Rows:  # fmt: skip
    """What there is, a row each.

    Args:
        what: ``formulations``, ``methods``, ``problems``, ``catalog``, ``models``: LLMs with their checkpoints,
            ``gpus``: every one with its measurements, or ``machines``: every one with its prices in USD per hour,
            their date and source.
        folder: list the problem files in it and below, in place of the problems shipped.
        cloud: list the machines of this list of the catalogue.
        region: list the machines of this region.

    Raises:
        InputError: an unknown word, a folder that is not there, a cloud or region that no machine is in.
    """
    found = _rows(what, folder)
    for column, wanted in (("pool", cloud), ("region", region)):
        if wanted is None:
            continue
        if what != "machines":
            raise InputError(Mistake(None, column, wanted, "machines to list: optmodels list machines"))
        known = dict.fromkeys(row[column] for row in found)
        found = [row for row in found if row[column] == wanted]
        if not found:
            raise InputError(Mistake(None, column, wanted, f"one of {', '.join(known)}"))
    return found


def _rows(what: str, folder: File | None) -> Rows:
    from optmodels import catalog

    match what:
        case "formulations":
            return [{"name": n, "title": registry.get(n).title} for n in registry.names()]
        case "methods":
            return [
                {"formulation": n, "name": m, "title": registry.get(n).method_titles.get(m, "")}
                for n in registry.names() for m in registry.get(n).methods
            ]  # fmt: skip
        case "problems" | "instances":
            return _shipped() if folder is None else _instances(Path(folder))
        case "catalog":
            rows: Rows = [
                {"kind": "pool", "name": k, "title": p.title, "date": p.retrieved.isoformat(),
                 "entries": len(catalog.machines(k))} for k, p in catalog.pools().items()
            ]  # fmt: skip
            rows += [{"kind": "model", "name": k, "title": m.title} for k, m in catalog.llms().items()]
            rows += [{"kind": "latency model", "name": k, "title": catalog.latency_model_document(k).get("title", "")}
                     for k in catalog.latency_models()]  # fmt: skip
            rows += [{"kind": "gpu", "name": k, "title": g.title} for k, g in catalog.gpus().items()]
            return rows + [{"kind": "calibration", "name": k, "title": catalog.calibration_document(k).get("title", "")}
                           for k in catalog.calibrations()]  # fmt: skip
        case "models":
            return [{"name": k, "title": m.title, "checkpoint": m.checkpoint, "context": m.max_positions}
                    for k, m in catalog.llms().items()]  # fmt: skip
        case "gpus":
            from optmodels.latency.engines.document import read_engine_model

            model = read_engine_model()
            return [{"name": k, "title": g.title, "vram_gib": g.vram_gib, "latencies": model.measurements(k, g)}
                    for k, g in catalog.gpus().items()]  # fmt: skip
        case "machines":
            return [_priced(pool, m) for pool in catalog.pools() for m in catalog.machines(pool)]
        case _:
            expected = "one of formulations, methods, problems, catalog, models, gpus, machines"
            raise InputError(Mistake(None, "what", what, expected))


def _priced(pool: str, m: Machine) -> dict[str, Any]:
    from optmodels import catalog
    from optmodels.catalog.types import MARKETS

    about = catalog.pools()[pool]
    sources = "; ".join(f"{k}: {v}" for k, v in about.price_sources.items() if k in (*MARKETS, "date"))
    return {
        "pool": pool, "machine": m.machine, "region": m.region, "gpu": m.gpu, "gpus": m.gpu_count,
        "vram_gib": m.vram_gib, **{k: m.prices.get(k) for k in MARKETS}, "date": about.retrieved.isoformat(),
        "source": about.source, "price_sources": sources,
    }  # fmt: skip


def _shipped() -> Rows:
    """The problems that come with optmodels, by the name that `new` takes."""
    return [{"formulation": form, "name": name, "title": data.get("title", "")}
            for form in registry.names() for name, _, data in shipped.named(form)]  # fmt: skip


def _instances(folder: Path) -> Rows:
    """Problem files below a folder."""
    if not folder.is_dir():
        raise InputError(Mistake(None, "folder", str(folder), "a folder with problem files"))
    return [{"file": path_text(path), "formulation": data["formulation"], "title": data.get("title", "")}
            for path, data in shipped.instances(folder)]  # fmt: skip
