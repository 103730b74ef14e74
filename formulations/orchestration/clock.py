"""How long a method may go on: every loop that can be long asks, and every solve gets the remaining time."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from optmodels.formulation import Options
from optmodels.solver.cancel import cancelled
from optmodels.solver.highs import Limit, Settings

LEAST_S = 0.05  # of a solve that is begun, also when the time is up: small ones end in it


@dataclass(frozen=True)
class Counted(Options):
    """Options of a method whose plan need not have its instances by name."""


@dataclass(frozen=True)
class Clock:
    """The time of one method, or of a part.

    Attributes:
        options: options of the method.
        began, until: by `time.perf_counter`; `until` infinite: no limit.
    """

    options: Options
    began: float
    until: float

    @classmethod
    def of(cls, options: Options) -> Clock:
        """From now until the options' time limit."""
        now = time.perf_counter()
        return cls(options, now, float("inf") if options.time_limit is None else now + options.time_limit)

    def part(self, share: float) -> Clock:
        """From now until a share of the remaining time has passed."""
        now = time.perf_counter()
        return replace(self, began=now, until=now + share * max(0.0, self.until - now))

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.perf_counter() - self.began

    @property
    def limited(self) -> bool:
        """Whether there is a time limit."""
        return self.until < float("inf")

    @property
    def left(self) -> float:
        """Seconds; infinite without a limit."""
        return max(0.0, self.until - time.perf_counter())

    @property
    def stopped(self) -> Limit | None:
        """Why to stop now, if so."""
        if cancelled():
            return "interrupt"
        return "time" if self.limited and self.left <= 0 else None

    @property
    def over(self) -> bool:
        """Whether to stop now."""
        return self.stopped is not None

    def settings(self) -> Settings:
        """Of a solve that begins now, to the gap of the options; it reports no progress."""
        return Settings(max(LEAST_S, self.left) if self.limited else None, self.options.gap, self.options.seed)

    def given(self) -> Options:
        """Options of another method within this time, of whose answer only the numbers of instances count."""
        o = self.options
        return Counted(o.seed, max(LEAST_S, self.left) if self.limited else None, o.gap, answer_only=True)

    @property
    def on_servers(self) -> bool:
        """Whether the plan is to say on which GPUs its instances run."""
        return not isinstance(self.options, Counted)
