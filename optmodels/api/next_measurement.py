"""Which measurement to make next: where the interval of the latencies changes the machines.

A plan is solved again at the other end of its interval: with a safety level where it has none, without where it has
one. If the machines differ, a few rows of the cheaper plan's deployment tell which of both plans is right.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from optmodels import catalog
from optmodels.errors import InputError
from optmodels.plans.outcome import Result

OTHER_END_S = 10.0  # time limit of the plan at the other end
CHEAP_S = 5.0  # CPU seconds of a solve after which further ones may tell more
SPREAD = 4  # of lengths and concurrency around the planned ones, times


def consider(
    result: Result, safety: float | None, again: Callable[[float | None], Result],
    written: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Keep in the log the plan at the other end of the interval (`safer`), and the runs to make (`next_measurement`).

    Args:
        result: a checked result.
        safety: safety level of its latencies.
        again: solves the same instance at another safety level.
        written: name of an LLM or GPU that the catalogue lacks → the file that commands name it by.
    """
    latency = (result.report or {}).get("latency") or {}
    if result.limit is not None or result.plan is None or "to_measure" not in latency:
        return
    if safety is None:
        if not latency["missed_at_the_pessimistic_end"]:
            return
        level: float | None = min(e["level"] for e in latency["sources"])
    else:
        level = None
    try:
        found = again(level)
    except InputError:  # a machine's latencies are not known at that level
        return
    if found.limit is not None:
        return
    if found.plan is None:
        if found.status != "infeasible" or level is None:
            return
        result.log["safer"] = {"safety": level, "usd_per_hour": None}
    elif level is not None or _machines(found) != _machines(result):
        cost = {k: found.summary[k] for k in ("usd_per_hour", "headline")}
        result.log["safer"] = {"safety": level, **cost}
    central, safe = (result, found) if safety is None else (found, result)
    shape = central.report["latency"]["to_measure"]
    if shape is None or _machines(central) == _machines(safe) or result.plan.get("certification"):
        return  # of a certified plan, arrivals may have asked for more machines, and not latencies
    narrows = _narrowed(central, shape)
    if any(then < now for now, then in narrows.values()):
        names = {k: v for k, v in shape.items() if k not in ("tpot", "ttft")}
        said = {"between": _between(central, safe), **names, "narrows": narrows}
        result.log["next_measurement"] = said | _command(shape, written or {})


def _machines(result: Result) -> list[tuple[str, str, str, int]]:
    """The machines of a plan."""
    rented = result.summary.get("machines") or ()
    return sorted((m["machine"], m["region"], m["market"], m["count"]) for m in rented)


def _between(*results: Result) -> list[str]:
    """Both plans in few words: GPUs, or machines where these are equal."""
    gpus, machines = (
        ["no plan" if r.plan is None else _added_up((str(m[of]), m[number]) for m in r.summary["machines"])
         for r in results]
        for number, of in (("gpus", "gpu"), ("count", "machine"))
    )  # fmt: skip
    return [text.upper() if text != "no plan" else text for text in gpus] if gpus[0] != gpus[1] else machines


def _added_up(kinds: Iterable[tuple[str, int]]) -> str:
    """``40 a100-40g + 8 h100``: numbers by kind."""
    total: dict[str, int] = {}
    for kind, number in kinds:
        total[kind] = total.get(kind, 0) + number
    return " + ".join(f"{number} {kind}" for kind, number in total.items())


def _narrowed(central: Result, shape: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Factors of TPOT and TTFT in the pessimistic case, now and with the rows."""
    most = {"TPOT": "tpot_at_most", "TTFT": "ttft_at_most"}
    ends = [e for e in central.report["latency"]["sources"] if e["tpot_at_most"] is not None]
    return {name: (max(e[key] for e in ends), shape[name.lower()]) for name, key in most.items()}


def _command(shape: Mapping[str, Any], written: Mapping[str, str]) -> dict[str, str]:
    """The command that chooses the rows near the planned load; nothing where a name has no file."""
    known = {"gpu": {*catalog.gpus()}, "llm": {*catalog.llms()}}
    names = {k: written.get(shape[k], shape[k]) for k in ("engine", "gpu", "llm", "precision")}
    if any(shape[k] not in known[k] and shape[k] not in written for k in known):
        return {}
    n, prompt = shape["concurrency"], shape["input_tokens"]
    near = {
        "tp": [shape["tp"]], "concurrency": sorted({max(1, n // SPREAD), n, n * SPREAD}),
        "input-tokens": sorted({max(1, prompt // SPREAD), prompt, prompt * 2}),
        "output-tokens": sorted({max(1, shape["output_tokens"] // SPREAD), shape["output_tokens"]}),
    }  # fmt: skip
    if shape["attention_ranks"] > 1:
        near["attention-ranks"] = [shape["attention_ranks"]]
    options = [f"--{'model' if k == 'llm' else k} {shlex.quote(v)}" for k, v in names.items()]
    options += [f"--{k} {','.join(map(str, v))}" for k, v in near.items()]
    return {"command": f"optmodels rows-to-measure {' '.join(options)}"}
