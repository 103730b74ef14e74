"""Machine code that Numba kept of an earlier version goes: loading it may fail where a record has another name."""

from __future__ import annotations

import contextlib
from pathlib import Path


def drop_stale(folder: Path) -> int:
    """Remove a package's kept machine code if one of the sources is newer, or gone; how many indices that were.

    Numba looks at the source of a function alone, and only after it has loaded the index: neither a function that it
    calls in another file, nor a record that was renamed there, is noticed.

    Args:
        folder: folder of the package's sources.
    """
    kept = [*(folder / "__pycache__").glob("*.nbi")]
    sources = {folder / f"{file.name.split('.')[0]}.py" for file in kept}
    dropped = 0
    with contextlib.suppress(OSError):  # another process does the same, or the folder is read-only
        written = max((s.stat().st_mtime for s in sources if s.exists()), default=0.0)
        for file, source in ((f, folder / f"{f.name.split('.')[0]}.py") for f in kept):
            if not source.exists() or file.stat().st_mtime < written:
                file.unlink()
                dropped += 1
    return dropped
