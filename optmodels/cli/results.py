"""Which result a verb is asked about: a file, its folder, or the newest one of a problem file."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from optmodels.io.write import path_text

RESULTS = Path("results")


def result_of(given: Path) -> Path:
    """The result that a verb is asked about.

    A problem file means its newest result below results/, the folder of ``--out`` its newest result. If a newer
    result lies next to the given one (NAME-2, NAME-3, …), a note on stderr names it.

    Raises:
        InputError: a problem file without a result.
    """
    if given.suffix in (".yaml", ".yml") and given.is_file():
        return _newest_of(given)
    if given.is_dir() and not (given / "plan.json").is_file() and (within := [*given.glob("*/plan.json")]):
        given = max(within, key=_written).parent
        if len(within) > 1:
            sys.stderr.write(f"note: {path_text(given)}, the newest of {len(within)} results\n")
    folder = given if given.is_dir() else given.parent
    if (folder / "plan.json").is_file() and (given.is_dir() or given.name == "plan.json"):
        name = re.sub(r"-\d+$", "", folder.resolve().name)
        beside = folder.resolve().parent.glob("*/plan.json")
        mine = [p for p in beside if re.fullmatch(rf"{re.escape(name)}(-\d+)?", p.parent.name)]
        newest = max(mine, key=_written, default=None)
        if newest is not None and newest.parent != folder.resolve():
            sys.stderr.write(f"note: solved again since; the newest is {folder.parent / newest.parent.name}\n")
    return given


def _newest_of(instance: Path) -> Path:
    """The newest result below results/ that was solved from a problem file."""
    from optmodels.errors import InputError, Mistake
    from optmodels.io.write import safe_name

    named = safe_name(f"{instance.stem}-exact").removesuffix("exact")  # by whatever method
    for file in sorted(RESULTS.glob(f"{named}*/plan.json"), key=_written, reverse=True):
        try:
            said = json.loads(file.read_bytes()).get("instance")
        except (ValueError, AttributeError):
            continue
        if isinstance(said, str) and (said == path_text(instance) or Path(said).resolve() == instance.resolve()):
            changed = "; the problem has changed since" if _written(instance) > _written(file) else ""
            sys.stderr.write(f"note: {file}{changed}\n")
            return file
    expected = f"a problem file with a result below {RESULTS}: optmodels solve {instance}"
    raise InputError(Mistake(str(instance), "", "no result", expected))


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns
