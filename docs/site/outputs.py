"""The documented output of commands: run, compared with the page, or written into it (`make docs-outputs`).

A ``console`` block with lines after a ``$ `` command documents what the command prints, at 100 columns. Its info string
may say ``head=12 tail=3``: the first and last lines only. Without these, a line ``…`` stands for lines left out.
Wall-clock figures are not compared. A block with ``made=COMMIT`` takes long: it is not compared, and written with
``--slow`` only.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "formulations").glob("*/README.md")])
BLOCK = re.compile(r"^```console([^\n]*)\n(.*?)^```", flags=re.M | re.S)
COMMANDS = ("optmodels", "python")
COLUMNS = "100"
LEFT_OUT = "…"
SIMILAR = 0.6  # of a documented line and a printed one, numbers masked, that are taken for the same line
WALL_CLOCK = (
    (re.compile(r"^\d+\.\d+ s: build \d+\.\d+, solve \d+\.\d+"), "# s: build #, solve #"),
    (re.compile(r"^\d+\.\d+ s, (?=[\d,]+ solves)"), "# s, "),
    (re.compile(r"(?<=\d%)(?:[\s│]+\d+\.\d+){1,3}[\s│]*$"), " #"),  # seconds in a table of `compare`
)  # fmt: skip
Run = Callable[[list[str], Path], tuple[int, str]]  # (words, folder) → (exit status, what is printed)


@dataclass(frozen=True)
class Step:
    """A command of a block and the lines documented below it."""

    words: list[str]
    documented: list[str]


@dataclass(frozen=True)
class Block:
    """A ``console`` block: its info string, place in the page and steps."""

    info: str
    span: tuple[int, int]
    typed: list[str]
    steps: list[Step]

    @property
    def exit_status(self) -> int:
        """The status that the last command ends with."""
        return self._number("exit") or 0

    @property
    def made(self) -> bool:
        """Whether it takes long and is not compared."""
        return "made=" in self.info

    @property
    def has_output(self) -> bool:
        """Whether it documents any output."""
        return any(step.documented for step in self.steps)

    def shown(self, printed: list[str], documented: list[str]) -> list[str]:
        """What the page has to show of what is printed."""
        head, tail = self._number("head"), self._number("tail")
        if head is not None or tail is not None:
            kept, last = printed[: head or 0], printed[len(printed) - tail :] if tail else []
            return printed if len(printed) <= len(kept) + len(last) else [*kept, LEFT_OUT, *last]
        return excerpt(printed, documented) if LEFT_OUT in documented else printed

    def _number(self, name: str) -> int | None:
        found = re.search(rf"\b{name}=(\d+)", self.info)
        return int(found[1]) if found else None


def blocks(text: str) -> list[Block]:
    """The ``console`` blocks of a page."""
    found = []
    for m in BLOCK.finditer(text):
        typed: list[str] = []
        documented: list[list[str]] = []
        for line in m[2].splitlines():
            if line.startswith("$ "):
                typed.append(line)
                documented.append([])
            elif documented and typed[-1].endswith("\\") and not documented[-1]:
                typed[-1] += "\n" + line
            elif documented:
                documented[-1].append(line)
        steps = [Step(shlex.split(t[2:]), d) for t, d in zip(typed, documented, strict=True)]
        found.append(Block(m[1], m.span(2), typed, steps))
    return found


def masked(line: str) -> str:
    """A line without what depends on the clock, and without the widths of columns."""
    for pattern, text in WALL_CLOCK:
        line = pattern.sub(text, line)
    return re.sub(r"([ ─━]){2,}", r"\1", line).strip()


def excerpt(printed: list[str], documented: list[str]) -> list[str]:
    """Of what is printed the lines that are documented, by likeness, with `LEFT_OUT` for those between."""
    bare = [_without_numbers(line) for line in printed]
    kept: list[int] = []
    for line in documented:
        if line == LEFT_OUT:
            continue
        later = range(kept[-1] + 1 if kept else 0, len(printed))
        ratios = {i: difflib.SequenceMatcher(None, _without_numbers(line), bare[i]).ratio() for i in later}
        best = max(ratios, key=lambda i: (ratios[i], -i), default=None)
        if best is not None and ratios[best] >= SIMILAR:
            kept.append(best)
    shown: list[str] = []
    for i, line in zip(kept, (printed[i] for i in kept), strict=True):
        gap = i > (kept[kept.index(i) - 1] + 1 if kept.index(i) else 0)
        shown += [LEFT_OUT, line] if gap else [line]
    return shown + ([LEFT_OUT] if kept and kept[-1] < len(printed) - 1 else [])


def _without_numbers(line: str) -> str:
    return re.sub(r"[\d.,]+", "#", line).strip()


def files(text: str) -> dict[str, str]:
    """The files that a reader types: blocks with a title."""
    return dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', text, flags=re.M | re.S))


def play(page: Path, folder: Path, run: Run, only_outputs: bool = False, slow: bool = False) -> Iterator[
    tuple[Block, Step, int, list[str]]
]:  # fmt: skip
    """Run the commands of a page in an empty folder, in order.

    Args:
        page: Markdown.
        folder: to run them in; it gets the page's files and the shipped instances.
        run: what runs a command.
        only_outputs: nothing after the last block with output.
        slow: blocks that take long, too.

    Yields:
        Block, step, exit status and lines printed.
    """
    text = page.read_text(encoding="utf-8")
    for name in ("instances", "examples"):
        (folder / name).symlink_to(ROOT / name)
    for name, content in files(text).items():
        (folder / name).write_text(content, encoding="utf-8")
    found = [b for b in blocks(text) if slow or not b.made]
    if only_outputs:
        last = max((i for i, b in enumerate(found) if b.has_output), default=-1)
        found = found[: last + 1]
    for block in found:
        for step in block.steps:
            if step.words[0] in COMMANDS:
                status, printed = run(step.words, folder)
                yield block, step, status, [line.rstrip() for line in printed.rstrip("\n").split("\n")]


def in_a_process(words: list[str], folder: Path) -> tuple[int, str]:
    """A command of this Python in a process of its own; what it prints on stdout, else on stderr."""
    program, *rest = words
    typed = [sys.executable, *(["-m", "optmodels", *rest] if program == "optmodels" else rest)]
    environment = os.environ | {"COLUMNS": COLUMNS}
    done = subprocess.run(typed, cwd=folder, capture_output=True, text=True, env=environment)  # noqa: S603
    return done.returncode, done.stdout or done.stderr


def _current(shown: list[str], documented: list[str]) -> list[str]:
    """What is shown today; the documented lines themselves where nothing but the clock differs."""
    return documented if [masked(x) for x in shown] == [masked(x) for x in documented] else shown


def rewrite(page: Path, slow: bool = False) -> bool:
    """Write what commands print today into their blocks; whether the page changed."""
    text = page.read_text(encoding="utf-8")
    if not any(b.has_output for b in blocks(text)):
        return False
    printed: dict[tuple[int, int], list[list[str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for block, step, status, lines in play(page, Path(folder), in_a_process, only_outputs=True, slow=slow):
            if status not in (0, block.exit_status):
                sys.stderr.write(f"{page.name}: exit status {status}: {shlex.join(step.words)}\n{lines[-1]}\n")
                return False
            printed.setdefault(block.span, []).append(lines)
    new = text
    for block in reversed(blocks(text)):
        if block.has_output and block.span in printed:
            lines = iter(printed[block.span])
            body = []
            for typed, step in zip(block.typed, block.steps, strict=True):
                body.append(typed)
                if step.words[0] in COMMANDS:
                    made = next(lines)
                    body += _current(block.shown(made, step.documented), step.documented) if step.documented else []
                else:
                    body += step.documented
            new = new[: block.span[0]] + "\n".join(body) + "\n" + new[block.span[1] :]
    if slow and "made=" in new:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)  # noqa: S607
        new = re.sub(r"(?<=\bmade=)\w+", commit.stdout.strip(), new)
    if new != text:
        page.write_text(new, encoding="utf-8")
    return new != text


if __name__ == "__main__":
    for each in PAGES:
        if rewrite(each, slow="--slow" in sys.argv):
            sys.stdout.write(f"{each.relative_to(ROOT)}\n")
