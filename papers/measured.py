"""What of a measured machine goes into the catalogue, laid out as its data folder is, and whether it is good enough.

Of each measurement file: the file itself (``measurements/``), the model of its steps with all KV resident
(``latency_models/``), and LP(18)'s coefficients for each place of the KV and phase (``calibrations/``). A fit is good
enough if nine of ten held-back points are predicted within `WANTED_P90`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optmodels import catalog
from optmodels.errors import InputError
from optmodels.io.write import write_bytes, write_text
from optmodels.latency.fit.calibrate import calibrate_measurements, calibrate_pairs
from optmodels.latency.fit.forms import Options
from optmodels.latency.fit.measurements import read_measurements
from optmodels.latency.fit.reference import Reference
from optmodels.latency.output import yaml_text
from optmodels.measure import campaign

WANTED_P90 = 0.10


@dataclass(frozen=True)
class Made:
    """A file for the catalogue.

    Attributes:
        path: The file.
        p90: Relative error that nine of ten held-back points stay below; None where none was held back.
        said: What it is, or why it could not be made.
    """

    path: Path
    p90: float | None
    said: str

    def __str__(self) -> str:
        if self.p90 is None:
            return f"{self.path}: {self.said}"
        verdict = "reached" if self.p90 <= WANTED_P90 else "missed"
        return f"{self.path}: {self.said}; p90 {self.p90:.1%} held back, {WANTED_P90:.0%} {verdict}"


def device_name(about: dict[str, Any]) -> str:
    """The catalogue's key, else the device's own name, for file names."""
    device = about.get("device", {})
    name = about.get("catalogue_gpu") or device.get("gpu") or device.get("cpu") or "unknown"
    return re.sub(r"[^a-z0-9]+", "-", str(name).lower()).strip("-")


def for_catalogue(paths: Sequence[Path], out: Path) -> list[Made]:
    """Write the files of each measurement file.

    Args:
        paths: Files that `optmodels measure` wrote.
        out: Folder to write ``measurements``, ``latency_models`` and ``calibrations`` to.

    Raises:
        InputError: a file that cannot be read, or a folder that cannot be written.
    """
    return [made for path in paths for made in _of_one(path, campaign.read_about(path), out)]


def _of_one(path: Path, about: dict[str, Any], out: Path) -> list[Made]:
    device, dtype, date = device_name(about), str(about.get("dtype", "")), about.get("date")
    model = Path(str(about.get("model", path.stem))).stem
    stem = f"{device}-{model}-{dtype}-tp1"
    made = out / "measurements" / f"{stem}{path.suffix}"
    write_bytes(made, path.read_bytes(), overwrite=True)
    found = [Made(made, None, f"{made.stat().st_size / 1024:.0f} KiB, {date}")]
    facts = about.get("device", {})
    source = ", ".join(
        str(x) for x in ("optmodels measure", facts.get("gpu") or facts.get("cpu"), f"torch {facts.get('torch')}") if x
    )
    title = f"{model} {dtype} on {facts.get('gpu') or facts.get('cpu')}, tp 1"
    known = device in catalog.gpus() and model in catalog.llms()
    options = Options(Reference(device, model) if known else None)

    made = out / "latency_models" / f"{stem}-steps.yaml"
    try:
        steps = calibrate_measurements(
            read_measurements(path), "auto", options, title=f"{title}, steps", source=source, date=date
        ).model
    except InputError as error:
        found.append(Made(made, None, f"not made: {error.mistakes[0]}"))
    else:
        write_text(made, _yaml(steps), overwrite=True)
        cross = steps.targets["latency_s"].cross_validated
        found.append(Made(made, None if cross is None else cross.p90, f"{steps.model} of steps"))

    made = out / "calibrations" / f"{stem}-steps.yaml"
    try:
        pairs = calibrate_pairs(
            read_measurements(path, kind="pairs"), title=f"LP(18) for {title}", source=source, date=date
        )
    except InputError as error:
        found.append(Made(made, None, f"not made: {error.mistakes[0]}"))
    else:
        write_text(made, _yaml(pairs), overwrite=True)
        places = sorted({f"{c.family} {c.phase}" for c in pairs.coefficients})
        found.append(Made(made, None, f"LP(18) of {', '.join(places)}"))
    return found


def _yaml(document: Any) -> str:
    return yaml_text(document.model_dump(mode="json", by_alias=True, exclude_none=True))
