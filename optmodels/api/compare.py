"""`compare`: every method on every instance."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from optmodels import formulation as registry
from optmodels import shipped
from optmodels.api.sources import File, Source, problem_of, renamed, shown_name
from optmodels.errors import InputError, Mistake
from optmodels.formulation import checked_options
from optmodels.io.write import check_folder, keeping
from optmodels.solver.highs import relative_gap


@renamed({"instances": "problems"})
def compare(
    problems: Iterable[Source], methods: Iterable[str] | None = None, *, time_limit: float | None = None, seed: int = 0,
    seeds: Iterable[int] | None = None, replay: bool = False, on_row: Callable[[dict[str, Any]], None] | None = None,
    on_skip: Callable[[str], object] | None = None, out: File | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Every method on every problem, one row each, with the certified gap to the best proved bound.

    Args:
        problems: files, folders of files, mappings or problems, possibly of different formulations.
        methods: names; default: every method of each problem's formulation that applies to it. A method that only some
            formulations have runs on their problems.
        time_limit: seconds of each method on each instance.
        seed: random seed of the solver or heuristic.
        seeds: several, in place of `seed`: a row for each.
        replay: simulate every plan on its problem's trace; the results are in columns ``replay.…``.
        on_row: called with every row when it is found.
        on_skip: called with each run left out because a formulation lacks the method; default: a warning.
        out: folder for tables and pictures.

    Raises:
        InputError: a problem file that is wrong, or a method that none of the formulations has.

    Returns:
        Rows of the compare document: a solve document without plan, plus ``seed``, ``gap_to_bound``, ``proved`` and
        the seconds ``to_first`` solution and ``to_proof``. A method that refuses a problem has a row with the reason.
    """
    from optmodels.study.rows import best_bound, replayed, solved_row

    check_folder(None if out is None else Path(out))
    wanted = None if methods is None else list(methods)
    if wanted is not None and not 0 < len(wanted) == len(set(wanted)):
        raise InputError(Mistake(None, "methods", wanted, "one name or more, each once"))
    runs = [checked_options(s, time_limit) for s in ([seed] if seeds is None else seeds)]
    if len({run.seed for run in runs}) < len(runs):
        raise InputError(Mistake(None, "seeds", [run.seed for run in runs], "seeds, each once"))
    rows: list[dict[str, Any]] = []
    loaded = [(s, problem_of(s)) for s in _expanded(problems)]
    # Every name is checked before the first solve.
    _say_skipped([p.formulation for _, p in loaded], wanted or [], on_skip)
    for source, problem in loaded:
        form = registry.get(problem.formulation)
        clock = time.perf_counter()
        with problem.blamed():
            table = form.tables(problem)
        table_seconds = time.perf_counter() - clock
        mine: list[dict[str, Any]] = []
        names = [n for n in wanted if n in form.methods] if wanted else form.methods_for(problem)
        for name, options in itertools.product(names, runs):
            row, plan = solved_row(form, problem, table, name, options)
            seconds = row["seconds"]
            for phase in ("build", "total", "to_first", "to_proof"):
                seconds[phase] = None if seconds[phase] is None else seconds[phase] + table_seconds
            seconds |= {"tables": table_seconds}
            extra = replayed(form, problem, plan, options.seed) if replay else {}
            mine.append({"instance": shown_name(source, problem), "seed": options.seed} | row | extra)
        best = best_bound(mine, form.goal_of(problem)[0])
        for row in mine:
            row["gap_to_bound"] = relative_gap(row["objective"], best)
            rows.append(row)
            if on_row is not None:
                on_row(row)
    if out is not None:
        from optmodels.study.compare import save_comparison

        with keeping(rows):
            save_comparison(rows, Path(out))
    return rows


def _expanded(instances: Iterable[Source]) -> list[Source]:
    """Problem files as given; folders as the problem files in them and below.

    Raises:
        InputError: no instance.
    """
    given, found = list(instances), list[Source]()
    for one in given:
        folder = isinstance(one, str | PathLike) and Path(one).is_dir()
        found += [path for path, _ in shipped.instances(Path(one))] if folder else [one]  # type: ignore[arg-type]
    if not found:
        raise InputError(Mistake(None, "instances", [str(i) for i in given], "at least one problem file"))
    return found


def _say_skipped(formulations: list[str], methods: list[str], say: Callable[[str], object] | None) -> None:
    """Which methods do not run where; an input mistake if they run nowhere.

    Raises:
        InputError: a method that none of the formulations has.
    """
    for name in methods:
        lacking = [f for f in formulations if name not in registry.get(f).methods]
        if lacking and len(lacking) == len(formulations):
            registry.get(lacking[0]).method(name)
        for form in dict.fromkeys(lacking):
            count = lacking.count(form)
            text = f"skipped: {name} on {count} problem{'s' * (count != 1)} of {form}, which has no such method"
            if say is None:
                warnings.warn(text, stacklevel=3)
            else:
                say(text)
