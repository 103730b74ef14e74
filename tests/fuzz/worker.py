"""Cases one after another in this process: ``python -m tests.fuzz.worker OUT``, a number a line on stdin."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz.corpus import FIRST_ITEMS, SECOND, SECOND_ITEMS, THIRD, Item, copy_beside, items
from tests.fuzz.mutate import mutated

MEMORY = 4 * 2**30
PROCESSOR_S = 25.0  # of one case, whose solves are limited to 2
RIGHT = (0, 2, 3, 4)
MOST_PRINTED = 100_000  # characters of messages


@cache
def corpus(out: Path) -> list[Item]:
    """The right files; what has to be made for them lies in the folder."""
    return items(out / "corpus")


def case(number: int, out: Path) -> tuple[Item, bytes, tuple[str, ...]]:
    """File, content and command line of a case."""
    rng = random.Random(number)
    known = corpus(out)[: FIRST_ITEMS if number < SECOND else SECOND_ITEMS if number < THIRD else None]
    item = known[number % len(known)]
    return item, mutated(item.content, item.name, rng), rng.choice(item.verbs)


def attempt(number: int, out: Path) -> dict[str, Any]:
    """Run a case: its status, processor time and, where it is wrong, the place in the program or what was printed."""
    from optmodels.cli import run

    item, data, verb = case(number, out)
    with tempfile.TemporaryDirectory(prefix="fuzz") as name:
        folder = Path(name)
        (folder / item.name).write_bytes(data)
        copy_beside(item, folder)
        target = folder / item.name
        if item.beside is not None:
            target = folder / item.beside[0]
            target.write_text(item.beside[1], encoding="utf-8")
        arguments = [a.replace("{}", str(target)).replace("{out}", str(folder / "out")) for a in verb]
        said, printed = io.StringIO(), io.StringIO()
        began, wrong, status = time.process_time(), "", -1
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
                status = run(arguments)
        except BaseException as error:
            wrong = _place(error)
        seconds = time.process_time() - began
        if not wrong:
            wrong = judged(verb[0], status, said.getvalue(), printed.getvalue(), seconds)
        if wrong:
            kept = kept_in(out, wrong, number)
            if kept is not None:
                shutil.copytree(folder, kept, dirs_exist_ok=True)
                (kept / "command.txt").write_text(" ".join(verb) + "\n" + said.getvalue()[-5000:], encoding="utf-8")
    return {"case": number, "file": item.name, "verb": verb[0], "status": status, "seconds": seconds, "wrong": wrong}


def judged(verb: str, status: int, said: str, printed: str, seconds: float) -> str:
    """What is wrong with an answer; empty: nothing."""
    if seconds > PROCESSOR_S:
        return f"{verb}: more than {PROCESSOR_S:.0f} s of processor time"
    if len(said) > MOST_PRINTED:
        return f"{verb}: more than {MOST_PRINTED:,} characters of messages"
    if "Traceback" in said:
        return f"{verb}: a traceback"
    if "Warning:" in said:
        line = next(text for text in said.splitlines() if "Warning:" in text)
        return f"{verb}: {line.rpartition('/')[2][:120]}"
    if status == 2 and not said.strip():
        return f"{verb}: refused without a word"
    if status in RIGHT or (verb == "check" and status == 1 and "violated" in printed):
        return ""
    if verb in ("solve", "compare", "sweep"):
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            found = json.loads(printed)
            rows = found if isinstance(found, list) else found.get("rows", [found])
            row = next(r for r in rows if r["status"] == "error" or not (r["check"] or {"ok": True})["ok"])
            if row["status"] == "error":
                return f"{verb}: {row.get('headline', '')[:120]}"
            return f"{verb}: the check fails: {found['formulation'] if isinstance(found, dict) else row['formulation']}"
    return f"{verb}: exit status {status}"


def died(number: int, out: Path, how: str) -> dict[str, Any]:
    """The row of a case that took its process with it."""
    item, data, verb = case(number, out)
    wrong = f"{verb[0]}: {how}: {item.name}"
    kept = kept_in(out, wrong, number)
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        (kept / item.name).write_bytes(data)
        (kept / "command.txt").write_text(" ".join(verb) + "\n", encoding="utf-8")
    return {"case": number, "file": item.name, "verb": verb[0], "status": how, "seconds": 0.0, "wrong": wrong}


def kept_in(out: Path, wrong: str, number: int) -> Path | None:
    """Where a wrong case is kept: the first three of each place."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in wrong)[:100]
    folder = out / "found" / name
    if folder.is_dir() and len(list(folder.iterdir())) >= 3:
        return None
    return folder / str(number)


def _place(error: BaseException) -> str:
    """The kind of an error and the last place in our own code that it went through."""
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if "optmodels/" in f.filename or "formulations/" in f.filename
    ]
    at = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {'/'.join(Path(at.filename).parts[-2:])} {at.name}"


def main() -> None:
    """Answer with one JSON line for each number."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))  # drawing reserves more addresses than it uses
    os.environ["OPTMODELS_DEBUG"] = "1"
    out = Path(sys.argv[1])
    for line in sys.stdin:
        sys.stdout.write(json.dumps(attempt(int(line), out)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
