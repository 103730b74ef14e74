"""The command line: thin, every verb one call into `optmodels.api`."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from dataclasses import replace
from typing import Annotated, Any

import typer
from typer.main import get_command_name
from typer.models import CommandInfo

from optmodels.cli import (
    asking,
    backtest,
    choosing,
    evaluating,
    explaining,
    latency,
    max_rate,
    measure,
    planning,
    replay,
    reporting,
    simulate,
    replan,
    stress,
    sweeping,
)
from optmodels.cli.console import lost, ready, report_mistakes
from optmodels.errors import InputError, Mistake, printable
from optmodels.formulation import Formulation, register
from optmodels.io.write import FULL, path_text


def _empty() -> typer.Typer:
    return typer.Typer(
        help="Plan LLM serving by mathematical optimisation, with a certificate.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: importing rich for it costs half the start-up
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _say_version(asked: bool) -> None:
    """What a report of a fault needs."""
    if asked:
        import platform
        from importlib.metadata import version

        packages = ", ".join(f"{name} {version(name)}" for name in ("optmodels", "highspy", "pyomo"))
        sys.stdout.write(f"{packages}, Python {platform.python_version()}, {platform.platform()}\n")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Versions, and exit.")
    ] = False,
) -> None:
    """Nothing but --version comes before a verb."""


app = _empty()
app.callback(help=app.info.help)(_options)
for verbs in (
    asking,
    planning,
    explaining,
    evaluating,
    replay,
    simulate,
    sweeping,
    backtest,
    reporting,
    latency,
    max_rate,
    replan,
    stress,
    measure,
    choosing,
):
    verbs.register(app)


def _asked_for(arguments: list[str]) -> typer.Typer:
    """The command line with the one verb that is asked for, where one is: reading the options of all takes a while."""
    mine = [c for c in app.registered_commands if arguments and _name(c) == arguments[0]]
    if not mine:
        return app
    small = _empty()
    small.callback()(lambda: None)  # so that one verb is a verb
    small.registered_commands = mine
    return small


def _name(command: CommandInfo) -> str:
    assert command.callback is not None
    return command.name or get_command_name(command.callback.__name__)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status of the contract."""
    ready()
    status = _run(sys.argv[1:] if arguments is None else arguments)
    if lost:
        sys.stderr.write(f"stdout: got {lost.pop().strerror!r}; expected a device that can be written\n")
        lost.clear()
        return status if status == 1 else 2
    return status


def _run(arguments: list[str]) -> int:
    try:
        status: Any = _asked_for(arguments)(args=arguments, standalone_mode=False)
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
        name = "--" + m.path.replace("_", "-")
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
        "Set OPTMODELS_DEBUG=1 for the traceback, and please report it with the instance file.\n"
    )
    return 1


def main() -> None:
    """Entry point of the ``optmodels`` command."""
    _begin()
    sys.exit(run())


def _begin() -> None:
    """SIGTERM stops the process as Ctrl-C does; no tenth of its time goes into looking for garbage."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    gc.set_threshold(50_000, 20, 50)  # most objects stay
    atexit.register(gc.freeze)  # what there is at the end goes with the process, without a search for cycles


def solve_script(formulation: Formulation) -> None:
    """Entry point of ``python -m PACKAGE``: `solve` for instances of its formulation, which need not be installed.

    After the name of a verb it is the whole command line: ``python -m PACKAGE compare INSTANCE``.
    """
    from optmodels.cli.planning import check_formulation

    _begin()
    register(formulation)
    arguments = sys.argv[1:]
    if arguments and arguments[0] in typer.main.get_group(app).commands:
        sys.exit(run(arguments))
    try:
        check_formulation(arguments, formulation.name)
    except InputError as error:
        report_mistakes(error)
        sys.exit(2)
    sys.exit(run(["solve", *arguments]))
