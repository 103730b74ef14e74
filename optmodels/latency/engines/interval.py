"""How far a prediction may be off, by what of the deployment was never measured together.

A group is one engine serving one LLM at one precision on one GPU. Ratios of one group lie close to one another;
groups lie apart. So, with one random effect for every level that the fit never saw,

    log(measured/predicted) = e + Σ_k u_k        e ~ (0, σ²), u_k ~ (0, s_k²), k over the unseen levels of `LEVELS`

A new GPU is new in every pair that contains it, too: its levels add up. Several new parts at once need no rule of their
own. σ and s_k are maximum-likelihood estimates from residuals of groups that were left out of the fit, with equal
weight for groups. The quantiles of the standardised residuals

    z = log(measured/predicted) / √(σ² + Σ_k s_k²)

are conformal over those groups (Lei et al., Journal of the American Statistical Association 113 (2018) 1094, section
5.2; Dunn, Wasserman and Ramdas, ibid. 118 (2023) 2491: conformal prediction under two-layer hierarchical models). There
is one table for known groups, one for unseen pairs of known parts, and one for each unseen part. Of several the larger
holds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from optmodels.catalog.types import Entry

PARTS: tuple[Literal["engine", "llm", "gpu", "precision"], ...] = ("engine", "llm", "gpu", "precision")
PAIRS = ("engine|llm", "engine|gpu", "llm|gpu", "llm|precision")
LEVELS = (*PARTS, *PAIRS, "engine|llm|gpu", "engine|llm|gpu|precision")
Group = tuple[str, str, str, str]  # by `PARTS`


def _level(name: str) -> str:
    if name not in LEVELS:
        raise ValueError(f"one of {', '.join(LEVELS)}")
    return name


Level = Annotated[str, AfterValidator(_level)]
Kind = Literal["known", "pair", "engine", "llm", "gpu", "precision"]
Deviation = Annotated[float, Field(ge=0, le=10)]
Standardised = dict[
    Annotated[str, Field(pattern=r"^0?\.\d+$")], Annotated[float, Field(ge=-100, le=100)]
]  # safety level → z


class Interval(Entry):
    """Random effects of one target, and quantiles of its standardised residuals."""

    known: Deviation = Field(description="σ: standard deviation of the logarithm within a measured group")
    unseen: dict[Level, Deviation] = Field(description="s_k: standard deviation of a level that was never measured")
    quantiles: dict[Kind, Standardised] = Field(description="new levels → safety level → quantile of z")

    @model_validator(mode="after")
    def _complete(self) -> Interval:
        if missing := [k for k in LEVELS if k not in self.unseen]:
            raise ValueError(f"a standard deviation of every level: unseen.{missing[0]} is missing")
        for what in get_args(Kind):
            if "0.9" not in self.quantiles.get(what, {}):
                raise ValueError(f"quantiles of {what} at 0.9")
        return self

    def deviation(self, levels: Collection[str]) -> float:
        """Standard deviation of log(measured/predicted) where these levels are unseen."""
        return math.sqrt(math.fsum((self.known**2, *(self.unseen[k] ** 2 for k in levels))))

    def factors(self, levels: Collection[str]) -> dict[str, float]:
        """Safety level → quantile of measured/predicted where these levels are unseen.

        An unseen pair of known parts is no worse than where one of its parts was unseen, too.
        """
        own = self._factors(levels)
        if kinds(levels) != ("pair",):
            return own
        parts = {p for k in levels for p in k.split("|")}
        wider = [self._factors({*levels, *(k for k in LEVELS if p in k.split("|"))}) for p in PARTS if p in parts]
        return {p: min(q, max(w.get(p, q) for w in wider)) for p, q in own.items()}

    def _factors(self, levels: Collection[str]) -> dict[str, float]:
        deviation = self.deviation(levels)
        tables = [self.quantiles[kind] for kind in kinds(levels)]
        return {p: math.exp(deviation * max(t[p] for t in tables)) for p in tables[0] if all(p in t for t in tables)}


def kinds(levels: Collection[str]) -> tuple[Kind, ...]:
    """Tables of quantiles that apply where these levels are unseen."""
    parts = tuple(p for p in PARTS if p in levels)
    return parts or (("pair",) if levels else ("known",))


def unseen_levels(parts: Mapping[str, str], groups: Collection[Group]) -> tuple[str, ...]:
    """Levels of `LEVELS` that none of the measured groups has in common with a deployment.

    Args:
        parts: engine, llm, gpu and precision of the deployment.
        groups: groups that were measured.
    """
    found = []
    for level in LEVELS:
        names = level.split("|")
        mine = tuple(parts[n] for n in names)
        places = [PARTS.index(n) for n in names]
        if not any(tuple(g[i] for i in places) == mine for g in groups):
            found.append(level)
    return tuple(found)


def simplest(levels: Collection[str]) -> tuple[str, ...]:
    """The unseen levels that explain the others: levels without a part that is unseen itself, alone or with others."""
    sets = {k: frozenset(k.split("|")) for k in levels}
    return tuple(k for k in levels if not any(other < sets[k] for other in sets.values()))
