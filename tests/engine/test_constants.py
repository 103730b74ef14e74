"""Every number in the theory of engines that can bind a plan is a key of `engine`, or docs/certificate.md names it."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from conftest import ROOT

from optmodels.engine import continuous
from optmodels.engine.continuous import EngineLimits

MODULES = ("continuous", "costs", "lengths", "levels", "loop", "running", "spelling", "stages")
DEFAULTS = {  # of a key, and what has it
    "OVERFLOW": ("most_full", "overflow"), "TOKENS_FILLED": ("most_filled", "filled"),
    "MOST_LOAD": ("most_load", "load"),
    "LEAST_LOAD": ("least_load", "least"), "MORE_PROMPTS": ("more_prompts", "prompts_over"),
    "LONGEST_WAIT_S": ("longest_wait_s", "wait_s"), "BUSIEST_PLACES": ("most_used", "busiest"),
}  # fmt: skip
NO_LIMIT = {
    "SPACING": "levels between two: `levels_spread` bounds what more would gain",
    "FINE": "as SPACING", "FEW_CLASSES": "as SPACING", "HALVINGS": "as SPACING", "PLACE_HALVINGS": "a root, to 1e-9",
    "SECANTS": "a root", "ROUNDING": "a root", "HALVED": "a root", "LATE": "a rounding", "LEAST_RPS": "a prediction",
    "QUANTILES": "predictions", "GRID": "predictions; bounds of mixtures are on the safe side between two",
    "GIB": "a unit", "MAX_REQUESTS": "memory of a profiling pass, as vLLM has it",
    "SAMPLER_BYTES": "as MAX_REQUESTS",
    "SHARES": "predictions", "FEWEST_SEQS": "first choice of max_num_seqs; the key has fewer",
    "MOST_SEQS": "default of engine.most_num_seqs", "UNLIMITED_WAIT_S": "34 years: none",
    "TIME": "a row", "RUNNING": "a row", "MEMORY": "a row",
    "TOKENS": "a row", "CHUNKS": "a row", "WAITING": "a row",
}  # fmt: skip


def numbers(name: str) -> dict[str, Any]:
    """Constants of a module: numbers and what holds some."""
    module = importlib.import_module(f"optmodels.engine.{name}")

    def numeric(value: Any) -> bool:
        some = [*value.values()] if isinstance(value, dict) else value
        return isinstance(value, (int, float)) or (
            hasattr(some, "__len__") and not isinstance(some, (str, set)) and len(some) > 0
            and all(map(numeric, list(some)))
        )  # fmt: skip

    return {k: v for k, v in vars(module).items() if k.isupper() and numeric(v)}


@pytest.mark.parametrize("module", MODULES)
def test_every_constant_is_a_key_or_named(module: str) -> None:
    page = (ROOT / "docs" / "certificate.md").read_text(encoding="utf-8")
    unknown = [k for k in numbers(module) if k not in DEFAULTS and k not in NO_LIMIT and f"`{k}`" not in page]
    assert unknown == []


@pytest.mark.parametrize("constant", DEFAULTS)
def test_a_default_is_what_its_key_changes(constant: str) -> None:
    key, value = DEFAULTS[constant]
    default = getattr(continuous, constant)
    assert getattr(EngineLimits(), value) == default
    other = min(default / 2, 0.01) if default < 1 else 2 * default
    assert getattr(EngineLimits.model_validate({key: other}), value) == other
    assert f"default: {default:g}" in str(EngineLimits.model_fields[key].description)
