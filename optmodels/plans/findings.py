"""Findings of the independent checkers: requirements a plan breaks, and the comparison of figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from optmodels.errors import printable
from optmodels.plans.outcome import CheckReport, Violation

TOLERANCE = 1e-6
M = TypeVar("M", bound=BaseModel)


def _stated(value: Any) -> Any:
    """A value of a document, but an integer beyond every float in words."""
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"an integer of {value.bit_length()} bits"
    return value


class Findings:
    """Violations found so far; a comparison with NaN is a violation."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def add(self, requirement: str, value: Any, limit: Any, unit: str = "") -> None:
        """Record a violation."""
        self.violations.append(Violation(requirement=requirement, value=_stated(value), limit=limit, unit=unit))

    def at_most(self, requirement: str, value: float, limit: float, unit: str = "") -> None:
        """Require value ≤ limit."""
        if not value <= limit * (1 + TOLERANCE) + 1e-12:
            self.add(requirement, value, limit, unit)

    def equal(self, requirement: str, stated: float | None, true: float, unit: str = "") -> None:
        """Require a stated figure to be the true one."""
        if stated is None or not abs(stated - true) <= TOLERANCE * max(abs(true), 1e-12):
            self.add(requirement, "none" if stated is None else stated, true, unit)

    def close(self, requirement: str, stated: float, true: float, unit: str = "", scale: float = 0.0) -> None:
        """`equal` with a floor, for sums of many rounded shares of size `scale`."""
        if not abs(stated - true) <= TOLERANCE * max(abs(true), abs(scale), 1e-9):
            self.add(requirement, stated, true, unit)

    def limit_is_kept(
        self, requirement: str, value: float, limit: float | None, sense: str, scale: float = 0.0
    ) -> None:
        """Require that a stated value keeps the limit it is listed with; None: no limit. `scale` as of `close`."""
        room = math.inf if limit is None else limit - value if sense == "<=" else value - limit
        if not room >= -TOLERANCE * max(abs(limit or 0.0), abs(scale), 1e-9):
            self.add(requirement, value, limit)

    def require(self, requirement: str, holds: bool, value: Any, limit: Any) -> None:
        """Require that something holds."""
        if not holds:
            self.add(requirement, str(_stated(value)), str(limit))

    def read(self, schema: type[M], data: Mapping[str, Any], what: str, part: str = "plan") -> M | None:
        """A plan (or other `part`) as its schema, or None with a violation that names the first field at fault."""
        try:
            return schema.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            self.add(f"{part} is well-formed", printable(f"{where}: {first['msg']}", 200), what)
            return None

    def report(self) -> CheckReport:
        """The verdict."""
        return CheckReport(ok=not self.violations, violations=self.violations)
