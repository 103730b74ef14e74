"""The traces section of instance files: a request trace from a file, or generated as MaaSO's are."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from optmodels.catalog.types import Entry
from optmodels.limits import SPELLED
from optmodels.units import REQUESTS, NonNegativeSeconds, PositiveInt, Seconds, Unit

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Tokens = tuple[PositiveInt, PositiveInt]
Factors = tuple[Positive, Positive]
Name = Annotated[str, Field(min_length=1, max_length=100)]
MAX_REQUESTS = 10**8


class Mix(Entry):
    """One kind of request of a generated trace; lengths and factors are drawn evenly from ranges, ends included."""

    name: Name | None = Field(
        default=None, description="name of the kind; default: its ranges, such as 300-500 tokens, 0.8-1.0"
    )
    share: Positive = Field(default=1.0, description="share relative to the other kinds")
    prompt_tokens: Tokens = Field(default=(1, 1), alias="input_tokens", description="input tokens: [least, most]")
    output_tokens: Tokens = Field(description="output tokens: [least, most]")
    slo_factor: Factors | None = Field(
        default=None, description="θ of the deadline: [least, most]; default: the file's"
    )
    model: Name | None = Field(default=None, description="model of the requests; default: drawn from models")

    @model_validator(mode="after")
    def _ranges(self) -> Mix:
        for key in ("prompt_tokens", "output_tokens", "slo_factor"):
            ends = getattr(self, key)
            if ends is not None and ends[0] > ends[1]:
                raise ValueError(f"{SPELLED.get(key, key)} as [least, most]")
        return self


class Generated(Entry):
    """Gamma arrivals with a rate and a coefficient of variation (MaaSO §V-A), and a mix of kinds of request."""

    requests_per_s: Annotated[float, Unit(REQUESTS), Field(gt=0, allow_inf_nan=False)] = Field(
        description="mean arrival rate"
    )
    cv: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = Field(
        default=1.0,
        description="coefficient of variation of the gaps between arrivals: 0 even, 1 Poisson, above 1 bursty",
    )
    requests: Annotated[int, Field(strict=True, ge=1, le=MAX_REQUESTS)] | None = Field(
        default=None, description="number of requests; or duration_s"
    )
    duration_s: Seconds | None = Field(default=None, description="duration of the arrivals; or requests")
    maaso: Annotated[int, Field(strict=True, ge=1, le=6)] | None = Field(
        default=None, description="number of a trace of MaaSO's Table I, in place of mix"
    )
    mix: tuple[Mix, ...] = Field(default=(), description="kinds of requests; or maaso")
    prompt_tokens: Tokens = Field(
        default=(1, 1), alias="input_tokens", description="input tokens of a MaaSO trace, which states none"
    )
    models: dict[Name, Positive] = Field(default={}, description="relative shares of models")
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = Field(default=0, description="random seed of the draws")

    @model_validator(mode="after")
    def _consistent(self) -> Generated:
        if (self.requests is None) == (self.duration_s is None):
            raise ValueError("exactly one of requests and duration_s")
        if (self.maaso is None) == (not self.mix):
            raise ValueError("exactly one of maaso and mix")
        if self.duration_s is not None and self.duration_s * self.requests_per_s > MAX_REQUESTS:
            raise ValueError(f"at most {MAX_REQUESTS} requests")
        return self


class PredictedOutput(Entry):
    """Output lengths as a predictor would know them: the true ones times log-normal errors, at least one token."""

    error: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = Field(
        description="standard deviation of ln(predicted/true); 0.5: two of three within a factor of 1.65"
    )
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = Field(default=0, description="random seed of the errors")


class TraceSpec(Entry):
    """Where requests come from, and which part of them is used how fast."""

    file: str | None = Field(
        default=None, description="a public trace, an engine's request log, or a table (README of optmodels.traces)"
    )
    columns: dict[Name, str] = Field(
        default={},
        description="columns of a file with names of its own, ours: THEIRS or THEIRS:unit, e.g. input_tokens: "
        "prompt_len",
    )
    where: dict[str, str | tuple[str, ...]] = Field(
        default={}, description="column: value (or values) of the rows to keep, e.g. status: ok"
    )
    skip_bad: bool = Field(default=False, description="leave out rows that cannot be read, and count them")
    generated: Generated | None = Field(default=None, description="drawn at random; or file")
    skip_s: NonNegativeSeconds = Field(default=0.0, description="time to skip at the beginning")
    first_s: Seconds | None = Field(default=None, description="time of the trace to use")
    rate_factor: Positive = Field(default=1.0, description="factor on the arrival rate")
    predicted_output: PredictedOutput | None = Field(default=None, description="output lengths that dispatchers expect")

    @model_validator(mode="after")
    def _one_source(self) -> TraceSpec:
        if (self.file is None) == (self.generated is None):
            raise ValueError("exactly one of file and generated")
        if (self.columns or self.where or self.skip_bad) and self.file is None:
            raise ValueError("columns, where and skip_bad only of a file")
        return self
