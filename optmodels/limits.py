"""Fields of instance files that restrict a plan, and prices: marked in the schemas, found, changed and dropped here.

A schema marks a field with `Limit` (or `Price`) inside ``Annotated``; nothing else is needed for `explain` to use it:

    budget_usd_per_hour: Annotated[BudgetUsdPerHour | None, Limit("budget", "most", "USD/h")] = None
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel

Path = tuple[str | int, ...]
Side = Literal["most", "least", "among", "flag"]


class _Off:
    """A way to drop a limit that is no value of its field."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


SPELLED = {
    "tbt_s": "tpot_s",
    "prompt_tokens": "input_tokens",
    "requests_per_second": "requests_per_s",
    "total_requests_per_second": "total_requests_per_s",
    "service": "name",
    "architecture": "model",
    "mean_requests_per_second": "mean_requests_per_s",
    "peak_requests_per_second": "peak_requests_per_s",
}  # older spelling of a key, which is still read → the key; several fields of the schemas bear the older names


def spellings(key: str) -> list[str]:
    """Other spellings of a key, the newest first."""
    return [SPELLED[key]] if key in SPELLED else [old for old, now in SPELLED.items() if now == key]


def either(key: str) -> AliasChoices:
    """A key with its older spellings, for the field that reads any of them."""
    return AliasChoices(key, *spellings(key))


ELEMENT = _Off("the list element or dictionary entry that holds it is removed")


@dataclass(frozen=True)
class Limit:
    """Marks a field that restricts plans: the larger (`least`: the smaller) it is, the more plans are allowed.

    Attributes:
        name: the limited quantity; ``{owner}``, ``{key}`` and ``{list}`` become the section's own name, the key
            (after " in ") and the list of the section. Without ``{owner}`` the name is added: "TTFT of chat".
        side: ``most`` and ``least`` bound a number, ``among`` restricts a choice to a list, ``flag`` is on or off.
        unit: unit of the value; ``%`` for shares, shown times 100; ``{field}``: the value of that field of the section.
        off: the value that means no limit, or `ELEMENT`. A field whose value this is restricts nothing.
        top: loosest number allowed, if `off` is not a number; of `least` it is as good as none.
        tight: tightest number asked about, where the field's range ends before its nature does.
        full: everything there is, for ``among``.
        inner: key of the number inside the field's section; a plain number in place of the section works too.
        implied: (problem, section) → the value that an absent field stands for.
        scope: it states the problem's scope, as a list of machines does; named as a reason only if nothing else
            is.
        signed: the number may be negative.
        rated: the objective is counted per this number, so that values before and after a change do not compare.
        detail: added to the words, with the inner section's fields: ``" (percentile {percentile:g})"``.
        advice: another key that may help where the limit binds, in words.
        either: a number whose change helps some plans and harms others: without it a plan has this value or `off`.
    """

    name: str
    side: Side
    unit: str = ""
    off: Any = None
    top: float | None = None
    tight: float | None = None
    full: tuple[Any, ...] | None = None
    inner: str | None = None
    implied: Callable[[Any, Any], Any] | None = None
    scope: bool = False
    signed: bool = False
    rated: bool = False
    detail: str = ""
    advice: str = ""
    either: bool = False


FORBIDDING = 1e5
SECONDS_USUAL = {"TTFT": 60.0, "TPOT": 5.0, "ITL": 5.0, "time of a request": 3600.0}  # longest that users wait


@dataclass(frozen=True)
class Price:
    """Marks what something costs; a plan may do without it.

    Attributes:
        unit: unit of the price.
        off: the value that means it cannot be bought, or `ELEMENT`.
    """

    unit: str = "USD/h"
    off: Any = None


@dataclass(frozen=True, eq=False)
class Restriction:
    """One limit of one instance.

    Attributes:
        path: the field.
        at: the number itself, at or below `path`.
        marker: its marker.
        value: its value now.
        name: the limited quantity, in words.
        written: whether the file states it; False: a default.
        drop: place and value that switch the limit off.
    """

    path: Path
    at: Path
    marker: Limit
    value: Any
    name: str
    unit: str
    detail: str
    written: bool
    drop: tuple[Path, Any]

    @property
    def number(self) -> bool:
        """Whether it can be loosened by degrees."""
        return self.marker.side in ("most", "least") and not self.marker.either

    @property
    def whole(self) -> bool:
        """Whether it counts whole things."""
        return self.number and isinstance(self.value, int)

    @property
    def where(self) -> str:
        """Its path as in messages: ``workloads[0].slo.ttft_s``."""
        return shown(self.at)

    def words(self, value: Any = None, detail: bool = True) -> str:
        """The limit in words, at its own or another value."""
        value = self.value if value is None else value
        match self.marker.side:
            case "most" | "least":
                sign = "at most" if self.marker.side == "most" else "at least"
                return f"{self.name} {sign} {quantity(value, self.unit)}" + (self.detail if detail else "")
            case "among":
                return f"{self.name} only {', '.join(map(str, value))}"
            case _:
                return self.name + (self.detail if detail else "")

    def looser(self, a: Any, b: Any) -> bool:
        """Whether value a allows at least what b allows."""
        match self.marker.side:
            case "most":
                return bool(a >= b)
            case "least":
                return bool(a <= b)
            case "among":
                return set(a) >= set(b)
            case _:
                return bool(a == b)

    @property
    def loosest(self) -> float | None:
        """The number at the end of the scale, if it has an end."""
        if self.marker.top is not None:
            return self.marker.top
        if isinstance(self.marker.off, int | float) and not isinstance(self.marker.off, bool):
            return float(self.marker.off) if abs(self.marker.off) < float("inf") else None
        return 0.0 if self.marker.side == "least" and not self.marker.signed else None

    def gone(self, value: Any) -> bool:
        """Whether a number at the end of the scale is no limit any more, and none that the field may hold."""
        return self.marker.side == "least" and self.marker.off is None and value == self.loosest


@dataclass(frozen=True, eq=False)
class Offer:
    """One price of one instance: what (machine, region, market) costs."""

    path: Path
    value: float
    unit: str
    drop: tuple[Path, Any]
    beside: int  # prices in its section, itself included
    machine: str
    region: str
    market: str

    @property
    def key(self) -> tuple[str, str, str]:
        """As plans name their purchases."""
        return self.machine, self.region, self.market

    @property
    def words(self) -> str:
        """``g5.xlarge in us-east-1 (spot)``."""
        return bought(self.key)

    @property
    def where(self) -> str:
        """Its path as in messages."""
        return shown(self.path)


def shown(path: Path) -> str:
    """A path as in messages: ``workloads[0].slo.ttft_s``."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{SPELLED.get(p, p)}" for p in path).lstrip(".")


def bought(key: tuple[str, str, str]) -> str:
    """A (machine, region, market) in words."""
    machine, region, market = key
    return machine + (f" in {region}" if region else "") + (f" ({market.replace('_', '-')})" if market else "")


CALLED = {"gpus": "GPUs", "vcpus": "vCPUs"}


def figure(value: float) -> str:
    """A number with its thousands separated: whole, or in six digits, or in all before its point."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:,.6g}"


def quantity(value: Any, unit: str) -> str:
    """A number with its unit; shares in percent."""
    if unit == "%":
        return f"{100 * value:.6g} %"
    unit = CALLED.get(unit, unit)
    if value == 1 and unit in ("GPUs", "vCPUs", "machines", "deployments"):
        unit = unit[:-1]
    return f"{figure(value)} {unit}".rstrip()


@dataclass(frozen=True)
class _Place:
    """A field seen by the walk."""

    path: Path
    value: Any
    metadata: list[Any]
    written: bool
    section: BaseModel
    above: tuple[tuple[str | int | None, Any], ...]  # (key it is found under, section), outermost first


def _walk(model: BaseModel, path: Path, written: bool, above: tuple[tuple[Any, Any], ...]) -> Iterator[_Place]:
    for name, field in type(model).model_fields.items():
        value, here = getattr(model, name), (*path, name)
        said = written and name in model.model_fields_set
        yield _Place(here, value, field.metadata, said, model, above)
        if isinstance(value, BaseModel):
            yield from _walk(value, here, said, (*above, (None, value)))
        elif isinstance(value, Mapping):
            for key, item in value.items():
                if isinstance(item, BaseModel):
                    yield from _walk(item, (*here, key), said, (*above, (key, item)))
        elif isinstance(value, tuple | list) and value and isinstance(value[0], BaseModel):
            for i, item in enumerate(value):
                if isinstance(item, BaseModel):
                    yield from _walk(item, (*here, i), said, (*above, (i, item)))


def _own_name(section: Any) -> str:
    """Name of a section."""
    for attribute in ("label", "name", "service", "machine", "region", "model"):
        value = getattr(section, attribute, None)
        if isinstance(value, str) and value:
            return value
    return ""


def restrictions(problem: BaseModel) -> list[Restriction]:
    """Every limit that holds in a problem, in the order of its schema."""
    found: list[Restriction] = []
    for place in _walk(problem, (), True, ()):
        for marker in place.metadata:
            if isinstance(marker, Limit):
                found += _restrictions(problem, place, marker)
    return found


def _restrictions(problem: BaseModel, place: _Place, marker: Limit) -> Iterator[Restriction]:
    owner = next((n for _, s in reversed(place.above) if (n := _own_name(s))), "")
    lists = next((p for p in reversed(place.path[:-1]) if isinstance(p, str)), "")
    unit = marker.unit.format(**dict(place.section))
    if isinstance(place.value, Mapping):
        for key, value in place.value.items():
            at = (*place.path, key)
            name = _named(marker.name, owner, f" in {key}", str(lists))
            yield Restriction(at, at, marker, value, name, unit, "", place.written, (at, ELEMENT))
        return
    value, at, detail = place.value, place.path, ""
    if value is None and marker.implied is not None:
        value = marker.implied(problem, place.section)
    if isinstance(value, BaseModel):
        if marker.inner is None:
            return
        detail = marker.detail.format(**dict(value))
        at, value = (*at, marker.inner), getattr(value, marker.inner)
    if value is None or value == marker.off or (marker.side == "among" and not value):
        return
    if marker.full is not None and set(value) >= set(marker.full):
        return
    off: tuple[Path, Any] = (place.path, marker.off)
    if marker.off == math.inf:
        off = (at, marker.off)  # its percentile stays: queueing delays have it, too
    elif marker.off is ELEMENT:
        off = (place.path[:-1], ELEMENT)
    elif marker.side == "among" and marker.off is None:
        off = (place.path, marker.full)
    name = _named(marker.name, owner, "", str(lists))
    yield Restriction(place.path, at, marker, value, name, unit, detail, place.written, off)


def _named(name: str, owner: str, key: str, lists: str) -> str:
    text = name.format(owner=owner, key=key, list=lists)
    return text if "{owner}" in name or not owner else f"{text} of {owner}"


def offers(problem: BaseModel) -> list[Offer]:
    """Every price in a problem (write it out first: `Problem.inline`)."""
    found: list[Offer] = []
    for place in _walk(problem, (), True, ()):
        for marker in place.metadata:
            if not isinstance(marker, Price) or place.value is None:
                continue
            sections = [*place.above]
            machine = next((getattr(s, "machine", "") or _own_name(s) for _, s in reversed(sections)
                            if getattr(s, "machine", None) or getattr(s, "name", None)), "")  # fmt: skip
            key = next((k for k, _ in reversed(sections) if isinstance(k, str)), None)
            region = key if key is not None else next((s.region for _, s in reversed(sections)
                                                       if isinstance(getattr(s, "region", None), str)), "")  # fmt: skip
            market = getattr(place.section, "market", None) or str(place.path[-1])
            drop: tuple[Path, Any] = (place.path, marker.off)
            if marker.off is ELEMENT:
                drop = (place.path[:-1], ELEMENT)
            beside = sum(v is not None for v in dict(place.section).values())
            found.append(Offer(place.path, float(place.value), marker.unit, drop, beside, machine, region, market))
    return found


def without(dropped: Iterable[Offer]) -> dict[Path, Any]:
    """Settings under which nothing is bought at these prices.

    A section all of whose prices go keeps one, `FORBIDDING` times as high: other parts of the file may name it.
    """
    by_section: dict[Path, list[Offer]] = {}
    for offer in dropped:
        by_section.setdefault(offer.path[:-1], []).append(offer)
    settings: dict[Path, Any] = {}
    for mine in by_section.values():
        settings |= dict(o.drop for o in mine)
        last = mine[-1]
        if len(mine) == last.beside and last.drop[1] is not ELEMENT:
            settings[last.path] = FORBIDDING * last.value
    return settings


def changed(problem: Any, settings: Mapping[Path, Any]) -> Any:
    """A copy of a problem with other values at some paths; `ELEMENT` removes a list element or dictionary entry.

    Values are not validated again: a limit may be infinite.
    """
    tree: dict[Any, Any] = {}
    for path, value in settings.items():
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):  # inside something that goes as a whole
                break
        else:
            node[path[-1]] = _Set(value)
    return _rebuilt(problem, tree)


@dataclass(frozen=True)
class _Set:
    value: Any


def _rebuilt(node: Any, tree: Any) -> Any:
    if isinstance(tree, _Set):
        return tree.value
    if isinstance(node, BaseModel):
        return node.model_copy(update={k: _rebuilt(getattr(node, k), t) for k, t in tree.items()})
    pairs = node.items() if isinstance(node, Mapping) else enumerate(node)
    new = {k: _rebuilt(v, tree[k]) if k in tree else v for k, v in pairs}
    kept = {k: v for k, v in new.items() if v is not ELEMENT}
    return kept if isinstance(node, Mapping) else type(node)(kept.values())
