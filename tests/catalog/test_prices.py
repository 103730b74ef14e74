"""What plans say of the prices they use."""

from __future__ import annotations

import optmodels
from optmodels import catalog


def test_prices_of_another_day_are_said_where_they_count():
    aws = catalog.pools()["aws"]
    assert aws.prices_of(["on_demand"]) == f"{aws.title}, retrieved 2026-07-20"
    assert aws.prices_of(["on_demand", "spot"]).endswith("retrieved 2026-07-20, spot prices of 2025-11-30")
    pool = {"catalog": "aws", "include": ["g6e.xlarge"]}
    fleet = {"formulation": "fleet", "schema": 1, "serving": "continuous", "pool": pool, "workloads": [
        {"name": "chat", "model": "llama-3.1-8b", "buckets": [
            {"input_tokens": 128, "output_tokens": 64, "requests_per_s": 1}]}]}  # fmt: skip
    for main, said in ((["on_demand"], False), (["on_demand", "spot"], True)):
        prices = optmodels.solve(fleet | {"markets": {"main": main}}).report["prices"]
        assert ("2025-11-30" in prices) is said
