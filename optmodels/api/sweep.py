"""`sweep`: one problem solved many times with some fields varied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from optmodels.api.sources import File, Source, renamed

if TYPE_CHECKING:
    from optmodels.study.design import Vary
    from optmodels.study.sweep import Progress, Sweep


@renamed({"instance": "problem"})
def sweep(
    problem: Source, vary: Vary, *, method: str = "exact", samples: int | None = None, workers: int | None = 1,
    scheduler: str | None = None, time_limit: float | None = None, gap: float = 0.0, seed: int = 0,
    pareto: str | None = None, out: File | Callable[[], Path] | None = None, resume: bool = False,
    on_row: Progress | None = None,
) -> Sweep:  # fmt: skip
    """Solve a problem file at every combination of values of some of its fields.

    Args:
        problem: file, mapping or loaded problem.
        vary: ``{"budget_usd_per_hour": [1, 2, 5], "slo.ttft_s": "0.1:2:20"}``, or the command line's ``KEY=…`` texts.
        method: ``exact`` or any other of the formulation's methods.
        samples: draws of the random fields (``"~0.1:2"``).
        workers: processes; 1 solves in this one, None: as many as pay. A script that asks for more than one needs
            ``if __name__ == "__main__":``.
        scheduler: address of a Dask scheduler, in place of processes of ours.
        time_limit: seconds of each solve.
        gap: relative gap at which each solve stops.
        seed: random seed of the draws, the solver and heuristics.
        pareto: ``X:min,Y:max``, columns of the table.
        out: folder of this sweep, or a function that makes it once all that is asked for is known to be right; None:
            nothing is written and nothing can be resumed.
        resume: go on with the sweep in `out`.
        on_row: called with (solves done, solves, row) after each solve.

    Raises:
        InputError: the problem, a path, a value or an argument is wrong; before the first solve.
        NotWrittenError: the tables could not be written; it carries them, and the folder can be resumed.
        SweepInterrupted: Ctrl-C; the folder can be resumed.
    """
    from optmodels.study.sweep import run_sweep

    folder = out if out is None or callable(out) else lambda: Path(out)
    return run_sweep(
        problem, vary, method=method, samples=samples, seed=seed, time_limit=time_limit, gap=gap, workers=workers,
        scheduler=scheduler, folder=folder, resume=resume, pareto=pareto, on_row=on_row,
    )  # fmt: skip
