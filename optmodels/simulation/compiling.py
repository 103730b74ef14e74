"""Extra time of the first simulation of an installation: its loop is compiled, and kept for later ones."""

from __future__ import annotations

import math
from pathlib import Path

from optmodels.solver.deadline import seconds_for, wanted

COMPILING_S = 60.0  # of a processor's time, about, for the loop of engines that batch continuously


def compiling_s() -> float:
    """Seconds to compile the loop of `simulation.continuous`; 0: an earlier run has kept its machine code.

    Compiling cannot be stopped: who has a time limit asks first.
    """
    from optmodels.simulation import continuous_kernel as kernel

    source = Path(kernel.__file__)
    kept = Path(kernel.run.stats.cache_path).glob(f"{source.stem}.run-*.nbi")
    newer = any(file.stat().st_mtime >= source.stat().st_mtime for file in kept)
    return 0.0 if kernel.run.signatures or newer else COMPILING_S


def time_to_replay(what: str) -> bool:
    """Whether the time limit leaves time for a simulation of engines; if not, it is named as left out, and why."""
    least = compiling_s()
    why = f" (not compiled yet, which takes about {least:g} s, once)" if least else ""
    return seconds_for(f"{what}{why}", math.inf, least) > 0


def short_replay(what: str) -> bool:
    """Whether a simulation of some ten thousand requests is made: as short as a check, whatever the time limit.

    Where its loop has to be compiled first, only if the limit leaves time for that.
    """
    return wanted(what) if compiling_s() == 0 else time_to_replay(what)
