"""Options of the verbs, derived from the functions of `optmodels`, and readers of their text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

import optmodels

N = TypeVar("N", str, int, float)


def duration(text: str) -> float | str:
    """Seconds of a bare number; a text with a unit, such as ``800ms``, unchanged: the schema reads it."""
    try:
        return float(text)
    except ValueError:
        return text


def seconds(text: str) -> float:
    """Seconds of ``0.8``, ``800ms`` or ``2 min``."""
    return _quantity(text, "s")


def _limit(name: str) -> Callable[[str], float]:
    """The reader of a limit in seconds: TTFT, TPOT or the time of a request, as `SECONDS_USUAL` names it."""

    def read(text: str) -> float:
        from optmodels.limits import SECONDS_USUAL
        from optmodels.units import bare_number

        found, bare = _quantity(text, "s"), bare_number(text)
        if bare is not None and bare > SECONDS_USUAL[name]:
            long = f"{bare:g} has no unit, and that is long for a {name}: '{bare:g} ms' or '{bare:g} s'?"
            raise typer.BadParameter(long)
        return found

    return read


def _quantity(text: str, unit: str) -> float:
    from pydantic_core import PydanticCustomError

    from optmodels.units import convert

    try:
        return float(text)
    except ValueError:
        pass
    try:
        return float(str(convert(text, unit)))
    except PydanticCustomError as error:
        raise typer.BadParameter(f"{text!r} is not {error.message()}") from None


def _named(what: str) -> Callable[[str], str]:
    """The reader of a name of the catalogue, by the function of `catalog.spelling`; unknown names stay."""

    def read(text: str) -> str:
        from optmodels.catalog import spelling

        return str(getattr(spelling, what)(text))

    return read


def listed(text: str, option: str, kind: type[N] = str) -> list[N]:  # type: ignore[assignment]
    """The values of a comma list, in their order.

    Args:
        text: such as ``1,2,4``.
        option: its name, for messages.
        kind: str, int or float.

    Raises:
        InputError: a value that is not of its kind or below 0.
    """
    from optmodels.errors import InputError, Mistake

    parts = [part.strip() for part in text.split(",") if part.strip()]
    try:
        found = [kind(part) for part in parts]
        if found and (kind is str or all(x >= 0 for x in found)):  # type: ignore[operator]
            return found
    except ValueError:
        pass
    words = {str: "names", int: "whole numbers from 0 on"}.get(kind, "numbers from 0 on")
    raise InputError(Mistake(None, option, text, f"{words}, comma-separated"))


def pairs(items: Sequence[str] | None, option: str) -> dict[str, str]:
    """``NAME=VALUE`` options as a mapping.

    Raises:
        InputError: one without a name or a value.
    """
    from optmodels.errors import InputError, Mistake

    found: dict[str, str] = {}
    for item in items or ():
        key, sign, value = item.partition("=")
        if not sign or not key.strip() or not value.strip():
            raise InputError(Mistake(None, option, item, "NAME=VALUE"))
        found[key.strip()] = value.strip()
    return found


Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else.")]

# Parameters of the API whose text needs a reader: seconds, limits in seconds, names of the catalogue.
SECONDS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("time_limit", "first", "block_s", "slack"), seconds),
    **dict.fromkeys(("ttft_s", "ttft_limit"), _limit("TTFT")),
    **dict.fromkeys(("tpot_s", "tpot_limit", "itl_limit", "limit_s"), _limit("TPOT")),
    "e2e_limit": _limit("time of a request"),
}  # fmt: skip
NAMES = {what: _named(what) for what in ("gpu", "precision", "kv_precision", "engine")}
FROM_ONE = (
    "attention_ranks", "batch", "chunk_tokens", "input_tokens", "max_num_seqs", "output_tokens",
    "replicas_per_machine", "rows", "samples", "tp", "workers",
)  # fmt: skip
COMMA_LISTS = ("methods", "workload")  # of names; others are options that may be repeated
HELP = {  # of what a text states for Python's mappings and documents
    "column": "Map a column: OURS=THEIRS, OURS=THEIRS:unit, or OURS=3 for all rows.",
    "where": "Keep rows whose column has this value: status=ok.",
    "set": "A value that the files or the model lack: NAME=VALUE.",
    "quota": "GPUs of a type at most: h100=16.",
    "skip_bad": "Skip rows that cannot be read, and count them.",
}  # fmt: skip
OF_ARGUMENTS = {
    "problem": "Problem file (YAML or JSON).",
    "plan": "plan.json of a result, its folder, or the problem: its newest result below results/.",
}  # fmt: skip


def verb(*arguments: str, **said: Any) -> Callable[[Callable[..., int]], Callable[[], Callable[..., int]]]:
    """Give a command the options of the function of `optmodels` that it is named as.

    Names, types, defaults and help are the function's: its signature and the ``Args`` of its docstring. The command is
    called with the options that were given, as arguments of the function, and with those of its own signature.

    Args:
        arguments: parameters that are given without the name of an option.
        said: parameter → its help, an annotation with a `typer.Option` in place of the derived one, or None: no option.

    Returns:
        A decorator that makes a function without arguments, which returns the command for typer.
    """
    return lambda command: wraps(command)(lambda: _with_options(command, arguments, said))


def _with_options(command: Callable[..., int], arguments: Sequence[str], said: Mapping[str, Any]) -> Callable[..., int]:
    function = getattr(optmodels, command.__name__)
    of_api = inspect.signature(function).parameters
    shown = {n: _metavar(n) if n in arguments else "--" + n.rstrip("_").replace("_", "-") for n in of_api}
    helps = dict(_helps(inspect.getdoc(function) or "", shown)) | HELP
    helps |= {name: text for name, text in OF_ARGUMENTS.items() if name in arguments}
    own = [*inspect.signature(command, eval_str=True).parameters.values()][1:]
    mine, found = {p.name for p in own}, []
    for name, p in of_api.items():
        asked = said.get(name, helps.get(name))
        if asked is not None and name not in mine and not p.annotation.startswith("Callable"):
            found.append(_option(p, asked, name in arguments))

    def called(**values: Any) -> int:
        given = {n: _read(of_api[n], v) for n, v in values.items() if n not in mine and v not in (None, [])}
        return command(given, **{n: values[n] for n in mine})

    called.__signature__ = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in (*found, *own)])  # type: ignore[attr-defined]
    called.__doc__ = command.__doc__
    return called


def _metavar(argument: str) -> str:
    """An argument as usage lines show it."""
    return "FILE" if argument in ("file", "files", "problem", "problems") else argument.upper()


def _helps(docstring: str, shown: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The entries of a docstring's ``Args`` as the command line says them: the first sentence of each.

    Args:
        docstring: of a function of `optmodels`.
        shown: parameter → its option or argument on the command line.
    """
    section = re.search(r"^Args:\n((?: .*\n|\n)+)", docstring + "\n", flags=re.M)
    for names, text in re.findall(r"^    (\w[\w, ]*): (.*(?:\n     .*)*)", section[1] if section else "", flags=re.M):
        text = re.split(r"\.(?= |$)", " ".join(text.split()))[0]
        text = text if text[0] == "`" else text[0].upper() + text[1:]
        text = re.sub(r" \(`\w+\.[^)]*\)| \(file, mapping or `Problem`\)", "", text).replace("``", "")
        text = re.sub(r"`(\w+)`", lambda m: shown.get(m[1], m[1]), text)
        for name in names.split(", "):
            yield name, text.replace("None: ", "default: ") + "."


def _option(p: inspect.Parameter, said: Any, is_argument: bool) -> inspect.Parameter:
    """A parameter of the API as one of a command."""
    flag, form, default = f"--{p.name.rstrip('_').replace('_', '-')}", p.annotation.replace(" | None", ""), p.default
    kind, how = _kind(p), {"help": said}
    if not isinstance(said, str):
        return p.replace(annotation=said)
    if kind is bool:
        flag += f"/--no-{flag[2:]}" if default is None or default else ""
    elif form == "Duration":
        how |= {"parser": duration, "metavar": "SECONDS"}
    elif kind is float and p.name in SECONDS:
        how |= {"parser": SECONDS[p.name], "metavar": "SECONDS"}
    elif kind is str and p.name in NAMES and form == "str":
        how |= {"parser": NAMES[p.name], "metavar": "TEXT"}
    elif kind is int and p.name in FROM_ONE:
        how |= {"min": 1}
    several = isinstance(default, tuple) or form.startswith(("Sequence[", "Iterable["))
    how["help"] += " Comma-separated." if several and kind is str else ""
    how["help"] += " May be repeated." if kind in (list[str], list[Path]) and not is_argument else ""
    if isinstance(default, tuple):
        default = ",".join(f"{x:.15g}" for x in default) if kind is str else None
    if default is None or kind == list[str]:
        kind |= None
    if is_argument:
        how |= {"metavar": "FILE"} if _metavar(p.name) == "FILE" else {}
        return p.replace(annotation=Annotated[kind, typer.Argument(**how)], default=default)
    return p.replace(annotation=Annotated[kind, typer.Option(flag, **how)], default=default)


def _kind(p: inspect.Parameter) -> Any:
    """The type that typer reads a parameter of the API as."""
    form = p.annotation.replace(" | None", "")
    is_file = ("File" in form or "Source" in form) and "Trace" not in form  # that may be drawn: poisson:…
    if ("Mapping[str, " in form and not is_file) or form in ("Sequence[str]", "Vary"):
        return str if p.name in COMMA_LISTS else list[str]
    if form.startswith(("Sequence[", "Iterable[")):
        return list[Path] if is_file else str
    return {"bool": bool, "int": int, "float": float, "Duration": Any}.get(form, Path if is_file else str)


def _read(p: inspect.Parameter, value: Any) -> Any:
    """What was given for a parameter of the API, as the API takes it."""
    option, form = f"--{p.name.replace('_', '-')}", p.annotation.replace(" | None", "")
    if p.name == "where" and "Sequence" in form:  # values of one column are alternatives, columns have to agree
        chosen: dict[str, list[str]] = {}
        for text in value:
            for name, one in pairs([text], option).items():
                chosen.setdefault(name, []).append(one)
        return chosen
    if p.name == "quota":
        from optmodels.question import quota_of

        return [quota_of(part) for text in value for part in text.split(",")]
    if isinstance(value, list):
        return pairs(value, option) if form.startswith("Mapping") else value
    if form.startswith(("Sequence[", "Iterable[")) and isinstance(value, str):
        return listed(value, option, {"int": int, "float": float}.get(form.partition("[")[2][:-1], str))
    return value
