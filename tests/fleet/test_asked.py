"""A fleet of modelled machines without `serving` is asked which; measured points are what they are."""

from __future__ import annotations

import pytest

from optmodels.errors import InputError
from optmodels.loading import load

MODELLED = {
    "formulation": "fleet", "schema": 1,
    "workloads": [{
        "name": "w", "model": "llama-3.1-8b", "buckets": [{"input_tokens": 9, "output_tokens": 9, "requests_per_s": 1}],
    }],
    "pool": {"catalog": "aws", "include": ["g6e.xlarge"]},
}  # fmt: skip
MEASURED = {
    "formulation": "fleet", "schema": 1, "workloads": [{"name": "w", "buckets": [{"name": "b", "requests_per_s": 1}]}],
    "points": [{"name": "p", "usd_per_hour": 1.0, "requests_per_s": {"w/b": 2.0}}],
}  # fmt: skip


def test_which_serving_is_asked_for() -> None:
    with pytest.raises(InputError, match=r"serving: .*expected continuous \(engines as they run\) or static") as raised:
        load(MODELLED).resolve()
    assert len(str(raised.value).splitlines()) <= 2
    for serving in ("static", "continuous"):
        load(MODELLED | {"serving": serving}).resolve()
    load(MEASURED).resolve()
