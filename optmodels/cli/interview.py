"""new fleet --interactive: the question of `plan`, asked one answer at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from optmodels.errors import InputError, Mistake, printable

T = TypeVar("T")
LATE = 0.95  # share of the requests that keep a limit


class Prompt(NamedTuple):
    """A question: its key, its words, the answer of an empty line (None: none), and the reader of answers."""

    name: str
    words: str
    default: str | None
    read: Callable[[str], Any]


def interview(
    questions: Sequence[Prompt], answer: Callable[[], str], say: Callable[[str], None], again: bool
) -> dict[str, Any]:
    """Answers by the name of their question.

    Args:
        questions: prompts in their order.
        answer: the next line of input, with its line end; empty at the end of input.
        state: callback that shows a prompt or a mistake.
        again: ask again after an invalid answer; else it is a mistake.

    Raises:
        InputError: the input ends early, or an answer is invalid and no person is there to ask.
    """
    given: dict[str, Any] = {}

    def wrong(asked: Prompt, value: str) -> InputError:
        say("\n")  # below the prompt
        return InputError(Mistake("<stdin>", asked.name, value, asked.words))

    for asked in questions:
        while True:
            say(f"{asked.words}{f' [{asked.default}]' if asked.default else ''}: ")
            line = answer()
            if not line and asked.default is None:
                raise wrong(asked, "end of input")
            text = line.strip() or asked.default or ""
            try:
                given[asked.name] = asked.read(text)
                break
            except (ValueError, InputError) as error:
                if not again or not line:
                    raise wrong(asked, text) from None
                say(f"  {printable(str(error), 300)}\n")
    return given


def instance() -> str:
    """The YAML of a fleet problem from answers on standard input; prompts go to stderr.

    Raises:
        InputError: as `interview` raises it, or the answers make no instance.
    """
    from optmodels import question
    from optmodels.loading import load

    def say(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    given = interview(fleet_questions(), sys.stdin.readline, say, again=sys.stdin.isatty())
    if not sys.stdin.isatty():
        say("\n")
    made = question.instance(question.Question(**given))
    try:
        load(made, computed=False)
    except InputError as error:
        raise question.as_options(error) from None
    return question.as_yaml(made, "optmodels new fleet --interactive")


# ----------------------------------------------------------------------------------------------------- answers


def _positive(kind: Callable[[str], T]) -> Callable[[str], T]:
    def read(text: str) -> T:
        value = kind(text)
        if not value > 0:  # type: ignore[operator]
            raise ValueError("a number above 0")
        return value

    return read


def fleet_questions() -> list[Prompt]:
    """The questions that make a fleet problem, in their order."""
    from difflib import get_close_matches

    from optmodels import catalog
    from optmodels.catalog.spelling import llm_of
    from optmodels.question import quota_of

    def limit(text: str) -> tuple[float, float] | None:
        return (_positive(float)(text), LATE) if text else None

    def some(text: str) -> list[str]:
        return [part.strip() for part in text.split(",") if part.strip()]

    def llm(text: str) -> str:
        name = llm_of(text) or text
        if name not in catalog.llms():
            near = ", ".join(get_close_matches(name, list(catalog.llms()), 3, 0.4))
            raise ValueError(f"no LLM of the catalogue{f'; near it: {near}' if near else ''}")
        return name

    weights = "Precision of its weights (fp16, fp8, int4 …; empty: as published)"
    return [
        Prompt("model", "LLM of `optmodels list catalog`, for example qwen3-32b", None, llm),
        Prompt("weights", weights, "", lambda text: text or None),
        Prompt("input_tokens", "Tokens of a prompt, mean", None, _positive(int)),
        Prompt("output_tokens", "Tokens of an answer, mean", None, _positive(int)),
        Prompt("rate", "Requests/s", None, _positive(float)),
        Prompt("ttft", "Seconds to the first token for 95 % of the requests (empty: any)", "", limit),
        Prompt("tpot", "Seconds per further token for 95 % of the requests (empty: any)", "", limit),
        Prompt("e2e", "Seconds to the last token for 95 % of the requests (empty: any)", "", limit),
        Prompt("clouds", "Clouds, with commas between (aws, gcp, azure)", "aws", some),
        Prompt("region", "Region (empty: that of each cloud's list)", "", lambda text: text or None),
        Prompt(
            "quota",
            "GPUs of a type at most, as in h100=16, l40s=8 (empty: no quota)",
            "",
            lambda text: [quota_of(x) for x in some(text)],
        ),
        Prompt("survive", "Deployments that may be lost at a time", "0", int),
        Prompt("budget", "USD/h at most (empty: any)", "", lambda text: _positive(float)(text) if text else None),
    ]
