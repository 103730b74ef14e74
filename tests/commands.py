"""Commands in processes of their own, forked from one that has imported what every command imports.

Importing is most of what a small command costs; what it does, prints and ends with is that of a fresh process. Where
starting, signals or an environment read at import are what is tested, and where there is no fork, `subprocess` it is.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import runpy
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

FORKS = "forkserver" in multiprocessing.get_all_start_methods()
IMPORTED = ["optmodels.cli", "optmodels.api.solve", "optmodels.reporting", "formulations.cost_efficiency.points",
            "formulations.fleet.points", "formulations.orchestration.points", "formulations.reserved_capacity.points",
            "highspy", "numba", "pandas", "pyomo.environ"]  # fmt: skip


@dataclass(frozen=True)
class Run:
    """How a command ended."""

    status: int
    out: str
    err: str

    def assert_clean(self) -> None:
        """No traceback, no `fault of the program`."""
        assert "Traceback" not in self.err + self.out, self.err
        assert "a fault of the program" not in self.err, self.err


def _become(words: list[str], cwd: str, environment: dict[str, str], out: str, err: str) -> None:
    """In the forked process: the command `python WORDS`."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for number, name in ((1, out), (2, err)):
        with Path(name).open("wb") as file:
            os.dup2(file.fileno(), number)
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = open(number, "wb", closefd=False)  # noqa: SIM115
        encoding = environment.get("PYTHONIOENCODING", "utf-8")
        setattr(sys, name, io.TextIOWrapper(raw, encoding, line_buffering=number == 2))
    sys.path[:1] = [cwd, *environment.get("PYTHONPATH", "").split(os.pathsep)]
    match words:
        case ["-c", code, *rest]:
            sys.argv = ["-c", *rest]
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        case ["-m", module, *rest]:
            sys.argv = [module, *rest]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [script, *rest]:
            sys.argv = [script, *rest]
            runpy.run_path(script, run_name="__main__")


def python(*words: str, cwd: Path, timeout_s: float = 120, **environment: str) -> Run:
    """`python WORDS` in a folder, with `-m MODULE …`, `-c CODE …` or a script."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = context.Process(
            target=_become, args=([*map(str, words)], str(cwd), os.environ | environment, str(out), str(err))
        )
        process.start()
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"{words} after {timeout_s:g} s")
        return Run(process.exitcode, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))
