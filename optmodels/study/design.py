"""The design of a sweep: ``KEY=1:10:4`` (grid), ``KEY=1:100:3:log``, ``KEY=a,b`` (list), ``KEY~1:10`` (random)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from optmodels.errors import InputError, Mistake, Mistakes

MOST_POINTS = 1_000_000
Vary = Mapping[str, Sequence[Any] | str] | Sequence[str]
Point = dict[str, Any]
_GRAMMAR = "KEY=from:to:count[:log], KEY=v1,v2,…, KEY~from:to[:log] or KEY~v1,v2,…"


@dataclass(frozen=True)
class Axis:
    """One varied field.

    Attributes:
        key: its path in the instance.
        values: values of a grid or list, or the choices of a random one.
        span: (from, to) of a random number, in place of `values`.
        log: the random number is uniform in its logarithm.
        random: drawn for each sample, not combined with every other value.
    """

    key: str
    values: tuple[Any, ...] = ()
    span: tuple[float, float] | None = None
    log: bool = False
    random: bool = False


def axes(vary: Vary) -> list[Axis]:
    """Varied fields, from the command line's form or a mapping of key to list or text (``"1:10:4"``, ``"~1:10"``).

    Raises:
        InputError: every part that cannot be read, a key given twice.
    """
    if isinstance(vary, Mapping):
        given = [
            _parsed(f"{k}{v if v.startswith('~') else '=' + v}") if isinstance(v, str) else _listed(k, v)
            for k, v in vary.items()
        ]
    else:
        given = [_parsed(text) for text in vary]
    keys = [a.key for a in given]
    wrong = Mistakes()
    for key in dict.fromkeys(keys):
        if keys.count(key) > 1:
            wrong.add("--vary", key, "every key once")
    if not given:
        wrong.add("--vary", None, _GRAMMAR)
    wrong.raise_any()
    return given


def points(given: Sequence[Axis], whole: Mapping[str, bool], samples: int | None, seed: int) -> list[Point]:
    """Every combination of the grids and lists; random fields are drawn together, `samples` times for each.

    Args:
        given: the varied keys.
        whole: whether the field of a key takes whole numbers only.
        samples: draws of the random fields; None where there are none.
        seed: random seed of the draws.

    Raises:
        InputError: samples without a random field or the other way round; too many points.
    """
    drawn = [a for a in given if a.random]
    if bool(drawn) != (samples is not None):
        expected = "a number of draws (--samples), because a field is random" if drawn else "none: no field is random"
        raise InputError(Mistake(None, "samples", samples, expected))
    fixed = [a for a in given if not a.random]
    draws = samples if samples is not None else 1
    count = math.prod(len(a.values) for a in fixed) * draws
    if not 0 < count <= MOST_POINTS:
        raise InputError(Mistake(None, "--vary", f"{count:,} solves", f"between 1 and {MOST_POINTS:,} solves"))
    chance = np.random.default_rng(seed)
    rows = []
    for combination in itertools.product(*(a.values for a in fixed)):
        here = dict(zip((a.key for a in fixed), combination, strict=True))
        for _ in range(draws):
            row = here | {a.key: _draw(a, whole[a.key], chance) for a in drawn}
            rows.append({a.key: row[a.key] for a in given})
    return rows


def _draw(axis: Axis, whole: bool, chance: np.random.Generator) -> Any:
    if axis.span is None:
        return axis.values[int(chance.integers(len(axis.values)))]
    low, high = axis.span
    if whole:
        low, high = low - 0.5, high + 0.5
    value = (
        math.exp(chance.uniform(math.log(max(low, 1e-300)), math.log(high))) if axis.log else chance.uniform(low, high)
    )
    return min(max(round(value), math.ceil(axis.span[0])), math.floor(axis.span[1])) if whole else float(value)


def _listed(key: str, values: Sequence[Any]) -> Axis:
    if not len(values):
        raise InputError(Mistake(None, f"--vary {key}", None, "at least one value"))
    return Axis(key, tuple(v.item() if isinstance(v, np.generic) else v for v in values))


def _parsed(text: str) -> Axis:
    """One ``--vary`` of the command line."""
    depth, at = 0, None
    for i, c in enumerate(text):
        depth += (c == "[") - (c == "]")
        if depth == 0 and c in "=~":
            at = i
            break
    if not at or not text[at + 1 :].strip():
        raise InputError(Mistake(None, "--vary", text, _GRAMMAR))
    key, random, rest = text[:at].strip(), text[at] == "~", text[at + 1 :].strip()
    parts = rest.split(":")
    log = parts[-1] == "log"
    numbers = [_number(p) for p in (parts[:-1] if log else parts)]
    if len(parts) > 1 and None not in numbers and "," not in rest:
        return _range(text, key, [n for n in numbers if n is not None], log, random)
    try:
        values = yaml.safe_load(f"[{rest}]")
    except yaml.YAMLError:
        raise InputError(Mistake(None, "--vary", text, _GRAMMAR)) from None
    return Axis(key, tuple(v if (n := _number(v)) is None else n for v in values), random=random)


def _range(text: str, key: str, numbers: list[float | int], log: bool, random: bool) -> Axis:
    """``from:to:count`` or, random, ``from:to``."""
    if len(numbers) != (2 if random else 3):
        raise InputError(Mistake(None, "--vary", text, _GRAMMAR))
    low, high = numbers[:2]
    if not (math.isfinite(low) and math.isfinite(high)) or (low > high and random) or (log and min(low, high) <= 0):
        raise InputError(Mistake(None, "--vary", text, "finite bounds in order, above 0 for log"))
    if random:
        return Axis(key, span=(low, high), log=log, random=True)
    count = numbers[2]
    if not isinstance(count, int) or not 1 <= count <= MOST_POINTS:
        raise InputError(Mistake(None, "--vary", text, f"a whole number of values from 1 to {MOST_POINTS:,}"))
    grid = np.geomspace(low, high, count) if log else np.linspace(low, high, count)
    values = [float(f"{v:.12g}") for v in grid]  # 0.3, not 0.30000000000000004
    if isinstance(low, int) and isinstance(high, int) and all(v.is_integer() for v in values):
        return Axis(key, tuple(int(v) for v in values))
    return Axis(key, tuple(values))


def _number(value: Any) -> float | int | None:
    """The number a text spells; YAML reads ``1e3`` as a text."""
    if not isinstance(value, str):
        return None
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return None
