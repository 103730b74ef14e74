"""Physical quantities in user input: plain numbers in the stated unit, or strings such as ``"200 ms"``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic_core import PydanticCustomError, core_schema

if TYPE_CHECKING:
    from pint import UnitRegistry
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler

GIB = float(2**30)
GBPS = 1e9 / 8  # bytes/s in a gigabit per second

# What pydantic calls bounds next to a validator of ours, and what JSON Schema calls them.
_BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
_NUMBER_UNIT = re.compile(
    r"^\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*(/?[A-Za-zµ$]+(?:/[A-Za-zµ$]+)*)?\s*$"
)
_GROUPS = re.compile(r"([1-9][0-9]{0,2})((?:[,_'][0-9]{3})+)(?![0-9,])")  # thousands
_MONEY_FIRST = re.compile(r"^(?:US)?(?:\$|USD)\s*([0-9.]+)\s*(?=/)")
REQUESTS = "requests/s"
_PER_TOKEN = re.compile(r"(?:output)?(?:tokens?|tok|t)/(?:s|sec|second)|tps")
_TOKEN_RATE = re.compile(r"tok|tp[smhd]$")
_OF_REQUESTS = re.compile(
    r"(?:requests?|reqs?|r|queries|q|prompts|calls|messages|msgs|chats|completions)?/(s|sec|second|m|min|minute|h|hour|d|day)"
)
_SHORT_RATES = {"rps": "s", "qps": "s", "rpm": "m", "qpm": "m", "rph": "h", "hz": "s"}
_SECONDS_OF = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TOKENS = re.compile(
    r"^\s*([0-9]+(?:[,_][0-9]{3})*(?:\.[0-9]+)?(?:[eE][0-9]{1,2})?)\s*([kKmM]?)(?:\s*(?:tokens?|tok))?\s*$"
)
_THOUSANDS = {"": 1, "k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}
# Units as typed, in small letters → as `COMMON` and pint have them.
_TYPED = {
    "s": {"m": "min", "mins": "min", "millis": "ms", "msec": "ms", "msecs": "ms"},
    "GiB": {"gb": "GB", "gib": "GiB", "gi": "GiB", "tb": "TB", "tib": "TiB", "ti": "TiB", "mb": "MB", "mib": "MiB"},
    "Gbps": {"gbps": "Gbps", "gbit/s": "Gbps", "mbps": "Mbps", "mbit/s": "Mbps"},
    "FLOP/s": {f"{p}flop{end}": f"{p.upper()}FLOP/s" for p in "gtp" for end in ("s", "/s", "s/s")},
    "USD/h": {"us$/h": "USD/h", "usd/hr": "USD/h", "$/hr": "USD/h"},
}  # fmt: skip
# The most frequent units, (own unit, wanted unit): pint's own factors. Loading pint takes longer than most plans.
COMMON = {
    ("us", "s"): 1e-6, ("µs", "s"): 1e-6, ("ms", "s"): 1e-3, ("min", "s"): 60.0, ("h", "s"): 3600.0,
    ("GB", "GiB"): 0.9313225746154785, ("TB", "GiB"): 931.3225746154785, ("MiB", "GiB"): 2.0**-10,
    ("TiB", "GiB"): 1024.0, ("GB/s", "Gbps"): 8.0, ("Mbps", "Gbps"): 1e-3, ("MB/s", "B/s"): 1e6, ("GB/s", "B/s"): 1e9,
    ("TB/s", "B/s"): 1e12, ("GFLOP/s", "FLOP/s"): 1e9, ("TFLOP/s", "FLOP/s"): 1e12, ("PFLOP/s", "FLOP/s"): 1e15,
    ("tokens/s", "token/s"): 1.0, ("USD/hour", "USD/h"): 1.0,
}  # fmt: skip


@cache
def _registry() -> UnitRegistry[Any]:
    from pint import UnitRegistry

    registry: UnitRegistry[Any] = UnitRegistry(cache_folder=None)
    registry.define("USD = [currency] = usd = dollar")
    registry.define("token = [token] = tokens")
    registry.define("FLOP = [operation] = FLOPs = flop")
    return registry


def convert(value: object, unit: str) -> object:
    """Return `value` as a number in `unit`; numbers pass through, strings may carry a unit of their own.

    Only ``<number> <unit>`` is read: nothing in the string is evaluated.

    Raises:
        PydanticCustomError: the string is no number, or its unit is of another dimension.
    """
    if isinstance(value, bool):
        raise PydanticCustomError("quantity", "a number, not true/false")
    if not isinstance(value, str):
        return value
    text = _plain(value, unit)
    if not unit and text.endswith("%") and (share := _NUMBER_UNIT.match(text[:-1])) is not None and not share[2]:
        return float(share[1]) / 100.0
    match = _NUMBER_UNIT.match(text)
    if match is None:
        point = " (decimals have a point)" if re.search(r"[0-9],[0-9]", value) else ""
        raise PydanticCustomError(
            "quantity", f"a number, or a number and a unit as in '1 {{unit}}'{point}", {"unit": unit}
        )
    number, own = float(match[1]), match[2] or ""
    own = _TYPED.get(unit, {}).get(own.lower(), own).replace("$", "USD")
    if unit == "s":  # whatever the capitals; of a token
        own = re.sub(r"/(?:output)?(?:token|tok)$", "", own.lower())
        if number and _PER_TOKEN.fullmatch(own):
            each = {"each": f"{1e3 / number:.4g} ms"}
            raise PydanticCustomError("quantity", "seconds a token: this rate is '{each}'", each)
    if not own or own == unit:
        return number
    if (factor := COMMON.get((own, unit))) is not None:
        return number * factor
    if unit == REQUESTS:
        return number * _requests_per_s(own)
    import pint

    registry = _registry()
    try:
        return float(registry.Quantity(number, registry.parse_units(own)).to(unit).magnitude)
    except (pint.errors.PintError, ValueError, AttributeError, TypeError, AssertionError):
        raise PydanticCustomError(
            "quantity", "a quantity in {unit}; {own} cannot be converted to it", {"unit": unit, "own": match[2]}
        ) from None


def _plain(value: str, unit: str) -> str:
    """A quantity with ``/`` for *per*, without separators of thousands, and with the unit after the number."""
    text = re.sub(r"\s+(?:per|a|/)\s*", "/", value.strip().replace("μ", "µ"))
    groups = _GROUPS.search(text)  # 1,500 may be 1.5 elsewhere: 1,000, 1,500,000 and 1,500.5 may not
    if groups is not None and (groups[2].count(",") != 1 or "." in text or (groups[2] == ",000" and unit != "s")):
        text = text.replace(groups[0], re.sub("[,_']", "", groups[0]), 1)
    if unit == REQUESTS:
        text = re.sub(r"\s*million\b", "M", text)
        text = re.sub(r"(?<=[0-9])\s*([kM])\s+(?=[a-z])", r"\1", text)
    return _MONEY_FIRST.sub(r"\1 USD", text) if unit == "USD/h" else text


def _requests_per_s(own: str) -> float:
    """Requests/s of a rate of 1: ``/s``, ``requests/min``, ``rps``, ``k/min``, ``M/day``."""
    times, rest = (own[0], own[1:]) if own[0] in "kKM" else ("", own)
    match = _OF_REQUESTS.fullmatch(rest.lower())
    per = match[1][0] if match else "s" if not rest else _SHORT_RATES.get(rest.lower())
    if per is None:
        tokens = (
            " (requests, not tokens: divide by the tokens of a request)" if _TOKEN_RATE.search(rest.lower()) else ""
        )
        raise PydanticCustomError("quantity", f"requests/s, or a rate as in '30/s', '100/min' or '2M/day'{tokens}")
    return _THOUSANDS[times.lower()] / _SECONDS_OF[per]


def tokens(value: object) -> object:
    """Return a number of tokens, of a string such as ``8k`` (8,000) or ``8K`` (8,192), as vLLM reads lengths.

    Raises:
        PydanticCustomError: the string is no number of tokens.
    """
    if not isinstance(value, str):
        return value
    match = _TOKENS.match(re.sub(r"(?i)\s*tok(en)?s?\s*$", "", value))
    number = float(re.sub("[,_]", "", match[1])) * _THOUSANDS[match[2]] if match else 0.5
    if number != int(number):
        raise PydanticCustomError("quantity", "a whole number of tokens, as in 8000, 8k (8,000) or 8K (8,192)")
    return int(number)


def _bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema with its bounds as JSON Schema names them."""
    return {_BOUNDS.get(k, k): v for k, v in schema.items()}


class _Tokens:
    """Marks a whole number of tokens; see `tokens` for a user's spellings."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(tokens, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> Any:
        text = {"type": "string", "pattern": _TOKENS.pattern, "description": "8k: 8,000 tokens; 8K: 8,192"}
        return {"anyOf": [_bounded(handler(schema)), text], "unit": "tokens"}


def bare_number(value: object) -> float | None:
    """The number that a value is, quoted or not; None: it has a unit, or is no number."""
    if isinstance(value, str):
        match = _NUMBER_UNIT.match(value)
        return float(match[1]) if match and not match[2] else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Unit:
    """Marks a float field with its unit; see `convert` for a user's spellings."""

    symbol: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(lambda value: convert(value, self.symbol), handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> Any:
        spelled = f"a number and a unit, as in 1 {self.symbol}".rstrip()
        text = {"type": "string", "pattern": _NUMBER_UNIT.pattern, "description": spelled}
        return {"anyOf": [_bounded(handler(schema)), text], "unit": self.symbol}


_FINITE = {"allow_inf_nan": False}
Seconds = Annotated[float, Unit("s"), Field(gt=0, **_FINITE)]
NonNegativeSeconds = Annotated[float, Unit("s"), Field(ge=0, **_FINITE)]
# Capacities have a floor far below and a ceiling far above anything built: beyond, latencies leave the range that a
# solver can tell apart.
Gib = Annotated[float, Unit("GiB"), Field(gt=0, **_FINITE), Field(ge=1e-6, le=1e12)]
NonNegativeGib = Annotated[float, Unit("GiB"), Field(ge=0, le=1e12, **_FINITE)]
Gbps = Annotated[float, Unit("Gbps"), Field(gt=0, **_FINITE), Field(ge=1e-6, le=1e12)]
BytesPerSecond = Annotated[float, Unit("B/s"), Field(gt=0, **_FINITE), Field(ge=1e3, le=1e21)]
FlopsPerSecond = Annotated[float, Unit("FLOP/s"), Field(gt=0, **_FINITE), Field(ge=1e3, le=1e24)]
TokensPerSecond = Annotated[float, Unit("token/s"), Field(gt=0, **_FINITE)]
UsdPerHour = Annotated[float, Unit("USD/h"), Field(gt=0, **_FINITE)]
BudgetUsdPerHour = Annotated[float, Unit("USD/h"), Field(ge=0, **_FINITE)]
Fraction = Annotated[float, Unit(""), Field(ge=0, le=1, **_FINITE)]
PositiveFraction = Annotated[float, Unit(""), Field(gt=0, le=1, **_FINITE)]
PositiveInt = Annotated[int, Field(strict=True, ge=1, le=10**6)]
Tokens = Annotated[int, _Tokens(), Field(strict=True, ge=1, le=10**6)]
RequestsPerSecond = Annotated[float, Unit(REQUESTS), Field(ge=0, **_FINITE)]
