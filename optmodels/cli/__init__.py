"""The command line, one file a verb: each reads its options, calls the function of `optmodels` and prints."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from inspect import getdoc
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from optmodels.api import VERBS, VERBS_BY_JOB
from optmodels.cli.console import lost, ready, report_mistakes
from optmodels.errors import InputError, Mistake, printable
from optmodels.formulation import Formulation, register
from optmodels.io.write import FULL, path_text
from optmodels.solver.cancel import repeat_dropped_interrupts

COMMANDS = {verb.replace("_", "-"): verb for verb in VERBS}


OLDER_OPTIONS = {
    "--llm": "--model", "--apart": "--disaggregate", "--tbt-s": "--tpot-s", "--pool": "--cloud",
    "--instance": "--problem", "--show-instance": "--show-problem", "--no-certify": "--no-certify-replay",
}  # fmt: skip
FORMS = ("auto", "scaled", "two_segment", "additive", "steps", "decay", "linear_batch", "default")


_notes: list[str] = []


class _ByJob(TyperGroup):
    """Commands listed by the job that they are for."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """A section for each job, its verbs in their order."""
        room = formatter.width - 6 - max(map(len, COMMANDS))
        for job, verbs in VERBS_BY_JOB.items():
            names = [verb.replace("_", "-") for verb in verbs]
            with formatter.section(job.capitalize()):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(room)) for name in names])


def _say_version(asked: bool) -> None:
    """The facts that a fault report needs."""
    if asked:
        import platform
        from importlib.metadata import version

        packages = ", ".join(f"{name} {version(name)}" for name in ("optmodels", "highspy", "pyomo"))
        sys.stdout.write(f"{packages}, Python {platform.python_version()}, {platform.platform()}\n")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print versions and exit.")
    ] = False,
) -> None:
    """Nothing but --version comes before a verb."""


def command_line(verbs: Sequence[str] = VERBS, options: bool = True) -> typer.Typer:
    """The command line with some of the verbs; reading the options of all takes a second."""
    app = typer.Typer(
        cls=_ByJob,
        help="Plan LLM serving by mathematical optimisation, with a certificate.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: importing rich for it costs half the start-up
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=app.info.help)(_options)
    for verb in verbs:
        command = getattr(import_module(f"optmodels.cli.{verb}"), verb)
        app.command(verb.replace("_", "-"), help=getdoc(command))(command() if options else lambda: None)
    return app


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status of the contract."""
    ready()
    _notes.clear()
    warnings.showwarning = _note
    status = _run(sys.argv[1:] if arguments is None else arguments)
    if status != 2:  # a refusal is printed alone
        sys.stderr.write("".join(f"note: {text}\n" for text in dict.fromkeys(_notes)))
    if lost:
        sys.stderr.write(f"stdout: got {lost.pop().strerror!r}; expected a device that can be written\n")
        lost.clear()
        return status if status == 1 else 2
    return status


def _renamed(arguments: list[str]) -> list[str]:
    """The arguments with today's names of options; notes each older one."""
    found, verb = [*arguments], arguments[0] if arguments else ""
    if found[:2] == ["list", "instances"]:
        _notes.append("instances is called problems now")
        found[1] = "problems"
    for i, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        now = OLDER_OPTIONS.get(name)
        if name == "--model" and verb in ("attribute", "batch-limits"):
            now = "--latencies"
        elif name == "--model" and verb == "calibrate" and (value or "".join(arguments[i + 1 : i + 2])) in FORMS:
            now = "--form"
        if now is not None:
            _notes.append(f"{name} is called {now} now")
            found[i] = now + equals + value
    return found


def _note(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """Notes for users, such as older spellings of keys, are printed after the result; other warnings at once."""
    if category is FutureWarning:
        _notes.append(str(message))
    else:
        sys.stderr.write(f"{category.__name__}: {message}\n")


def _run(arguments: list[str]) -> int:
    arguments = _renamed(arguments)
    asked = COMMANDS.get(arguments[0]) if arguments else None
    try:
        status: Any = command_line(VERBS if asked is None else [asked], asked is not None)(
            args=arguments, standalone_mode=False
        )
        sys.stdout.flush()
    except InputError as error:
        report_mistakes(_by_option(error, arguments))
        return 2
    except typer.Exit as stop:
        return _status(stop.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted\n")
        return 4
    except Exception as error:
        return _fault(error)
    return _status(status or 0)


def _by_option(error: InputError, arguments: list[str]) -> InputError:
    """Mistakes in arguments of the API by the options that they were given by."""
    given = {a.split("=")[0] for a in arguments}

    def named(m: Mistake) -> Mistake:
        name = "--" + m.path.strip("_").replace("_", "-")
        name = OLDER_OPTIONS.get(name, name)
        option = next((x for x in (name, name.removesuffix("-s")) if x in given), None)
        return m if m.file is not None or option is None else replace(m, path=option)

    return InputError([named(m) for m in error.mistakes])


def _status(code: int) -> int:
    """Exit status of the contract; 130, which typer gives for Ctrl-C, is a stop without a plan."""
    if code == 130:
        sys.stderr.write("interrupted\n")
        return 4
    return int(code)


def _fault(error: Exception) -> int:
    """Usage errors are the user's (2), anything else is ours (1)."""
    show = getattr(error, "show", None)
    if callable(show):
        show()
        return int(getattr(error, "exit_code", 2))
    if isinstance(error, OSError) and error.errno in FULL:
        path = printable(f"{path_text(error.filename)}: " if error.filename else "", 400)
        sys.stderr.write(f"{path}got {error.strerror!r}; expected free space on the disk\n")
        return 2
    if os.environ.get("OPTMODELS_DEBUG"):
        raise error
    sys.stderr.write(
        f"optmodels: a fault of the program: {type(error).__name__}: {printable(str(error), 2000)}\n"
        "Set OPTMODELS_DEBUG=1 for the traceback, and please report it with the problem file.\n"
    )
    return 1


def main() -> None:
    """Entry point of the ``optmodels`` command."""
    _begin()
    sys.exit(run())


def _begin() -> None:
    """SIGTERM stops the process as Ctrl-C does, and neither is lost."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    repeat_dropped_interrupts()
    atexit.register(gc.freeze)  # what there is at the end goes with the process, without a search for cycles


def solve_script(formulation: Formulation) -> None:
    """Entry point of ``python -m PACKAGE``: `solve` for problems of its formulation, which need not be installed.

    After the name of a verb it is the whole command line: ``python -m PACKAGE compare FILE``.
    """
    from optmodels.cli.solve import check_formulation

    _begin()
    register(formulation)
    arguments = sys.argv[1:]
    if arguments and arguments[0] in COMMANDS:
        sys.exit(run(arguments))
    try:
        check_formulation(arguments, formulation.name)
    except InputError as error:
        report_mistakes(error)
        sys.exit(2)
    sys.exit(run(["solve", *arguments]))
