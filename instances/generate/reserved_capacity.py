"""Writes instances/reserved_capacity/*.yaml: python instances/generate/reserved_capacity.py"""

# ruff: noqa: E501 - comments of instance files

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from optmodels.catalog import geography

FOLDER = Path(__file__).parents[1] / "reserved_capacity"
PLACES = geography.places()
FIVE = ["us-east-1", "us-west-2", "eu-central-1", "ap-east-1", "ap-south-1"]
P5 = {"on_demand": 98.32, "reserved_3y": 37.56}  # SK §2.1
# Shares of users by continent's cities: a stated assumption, not data.
WEIGHTS = {
    "America/New_York": 3,
    "America/Los_Angeles": 3,
    "Europe": 2,
    "Asia": 2,
    "America": 1,
    "Africa": 1,
    "Australia": 1,
}


def weight(region: str) -> int:
    """Users of a region on an arbitrary scale."""
    zone = PLACES[region].time_zone
    return WEIGHTS.get(zone, WEIGHTS[zone.split("/")[0]])


def write(name: str, comment: str, **document: Any) -> None:
    """One instance file with its comment on top."""
    lines = "".join(f"# {line}\n" for line in comment.strip().splitlines())
    body = {"formulation": "reserved_capacity", "schema": 1, "name": name} | document
    text = yaml.safe_dump(body, sort_keys=False, width=110, default_flow_style=None, allow_unicode=True)
    (FOLDER / f"{name}.yaml").write_text(lines + text, encoding="utf-8")


def day(curve: str, hours: int, rps: float, **more: Any) -> dict[str, Any]:
    """Generated demand from Tuesday 14 May 2024 on."""
    return {"kind": "diurnal", "start_utc": "2024-05-14T00:00:00Z", "hours": hours, "total_requests_per_s": rps,
            "curve": curve} | more  # fmt: skip


def paper_day(
    name: str, demand: dict[str, Any], title: str, terms: list[str], comment: str, network: Any = None, **service: Any
) -> None:  # fmt: skip
    """SkyLB Fig. 3: five regions, one day, p5.48xlarge."""
    write(
        name, comment, title=title,
        regions=[{"region": r} for r in FIVE], network={"catalog": "aws"} | (network or {}),
        services=[{"name": "chat", "slo": {"ttft_s": 0.8, "queue_s": 0.05}, "demand": demand} | service],
        machines=[{"machine": "p5.48xlarge", "prices": P5,
                   "serves": {"chat": {"requests_per_s": 4.0, "prefill_s": 0.3}}}],
        terms=terms,
    )  # fmt: skip


def main() -> None:
    """Write every instance."""
    fig3 = "Demand: the paper's five regions and counts are not public; stated here instead. Every region may serve every other."
    cosine = day("cosine", 24, 400.0, peak_to_mean=1.9)
    for name, terms in (
        ("paper-five-regions", ["reserved_3y"]),
        ("paper-five-regions-on-demand", ["reserved_3y", "on_demand"]),
    ):
        paper_day(
            name,
            cosine,
            "SkyLB Fig. 3: five regions over a day, p5.48xlarge",
            terms,
            f"SkyLB Fig. 3 and §2.1's prices. {fig3}\nA cosine by local time with max/min 19 (the paper: 2.88 to 32.64).",
        )
    paper_day(
        "paper-five-regions-egress",
        cosine,
        "SkyLB Fig. 3 with the price of forwarding",
        ["reserved_3y", "on_demand"],
        "SkyLB Fig. 3 with AWS's prices of data between regions: 512 tokens of text there, 256 events of 250 bytes back.\n"
        + fig3,
        {"egress": {"catalog": "aws"}},
        request_kb=2.0,
        answer_kb=64.0,
    )
    paper_day(
        "paper-five-regions-azure-code",
        day("azure-2024-code", 24, 400.0),
        "SkyLB Fig. 3 with Azure's code-assistant day in five time zones",
        ["reserved_3y"],
        f"SkyLB Fig. 3 on a measured day (Azure 2024, code) shifted by time zone, max/min about 11. {fig3}",
    )
    # SkyLB §5.2, Diurnal pattern: 120/40/40 clients; the peak moves round the globe. 16 clients keep a replica busy:
    # 12 local replicas, four a region, then serve as many clients (64 + 40 + 40 = 144) as 9 pooled ones.
    hours = {
        "us-east-1": [120] * 8 + [40] * 16,
        "eu-central-1": [40] * 8 + [120] * 8 + [40] * 8,
        "ap-northeast-1": [40] * 16 + [120] * 8,
    }
    write(
        "paper-three-regions-l4",
        "SkyLB §5.2, Diurnal pattern: 120 clients in one region, 40 in the others; the busy region moves every 8 hours.\n"
        "One client = 0.1 requests/s and 16 clients keep an L4 replica busy: stated, so that 9 pooled replicas serve as\n"
        "many clients as 12 local ones (four a region), which is the paper's -25 %.",
        title="SkyLB §5.2: three regions on L4, 120/40/40 clients",
        regions=[{"region": r} for r in hours], network={"catalog": "aws"},
        services=[{"name": "llama-3.1-8b", "slo": {"ttft_s": 0.6, "queue_s": 0.05},
                   "demand": {"kind": "inline", "unit": "requests_per_s",
                              "by_region": {r: [c / 10 for c in v] for r, v in hours.items()}}}],
        machines=[{"machine": "g6.xlarge", "prices": {"on_demand": 0.8048, "reserved_3y": 0.3455},
                   "serves": {"llama-3.1-8b": {"requests_per_s": 1.6, "prefill_s": 0.3}}}],
        terms=["reserved_3y"],
    )  # fmt: skip
    aws = [p.region for p in PLACES.values() if p.provider == "aws"]
    write(
        "week-32-aws",
        "A week over 32 AWS regions with measured round trips (cloudping, 2025-10). Users by region and prices by region are\n"
        "stated assumptions; the requests a machine serves (static batches) are vLLM's by the shipped coefficients, which\n"
        "never saw an L4. On-demand, and the loss of any one region at 80 % of demand.",
        title="A week over 32 AWS regions, N-1, measured round trips",
        regions=[{"region": r, "weight": weight(r)} for r in aws], network={"catalog": "aws"},
        services=[{"name": "chat", "slo": {"ttft_s": 0.5, "queue_s": 0.05, "tpot_s": 0.1},
                   "demand": day("azure-2024-conv", 168, 1500.0, noise=0.05, seed=3),
                   "workload": {"model": "llama-3.1-8b", "input_tokens": 512, "output_tokens": 256}}],
        machines=[{"machine": "g6.xlarge", "gpu": "l4",
                   "prices": {"on_demand": 0.8048, "reserved_1y": 0.5230, "reserved_3y": 0.3455},
                   "prices_by_region": {r: {"on_demand": round(0.8048 * f, 4), "reserved_1y": round(0.5230 * f, 4),
                                            "reserved_3y": round(0.3455 * f, 4)}
                                        for r in aws for f in [1.25 if not r.startswith(("us-", "ca-")) else 1.0]}}],
        terms=["reserved_1y", "reserved_3y", "on_demand"], latency={"model": "default", "engine": "vllm"},
        resilience={"lose_any_region_keep": 0.8},
    )  # fmt: skip
    gcp = [p.region for p in PLACES.values() if p.provider == "gcp"]
    common = {
        "network": {"estimate": "geodesic"}, "regions": [{"region": r, "weight": weight(r)} for r in gcp],
    }  # fmt: skip
    write(
        "year-40-gcp",
        "A year over 40 GCP regions, generated: Azure's conversation week by local clock (daylight saving included), 10 %\n"
        "noise, round trips estimated from distance. L4 at one price everywhere, so that only the clock decides.",
        title="A year over 40 regions, generated",
        services=[{"name": "chat", "slo": {"ttft_s": 0.5, "queue_s": 0.05},
                   "demand": {"kind": "diurnal", "start_utc": "2026-01-01T00:00:00Z", "hours": 8760,
                              "total_requests_per_s": 1600.0, "curve": "azure-2024-conv", "noise": 0.1, "seed": 1}}],
        machines=[{"machine": "g2-standard-4", "prices": {"on_demand": 0.7068, "reserved_1y": 0.4453, "reserved_3y": 0.3181},
                   "serves": {"chat": {"requests_per_s": 2.8, "prefill_s": 0.3}}}],
        terms=["reserved_1y", "reserved_3y"], **common,
    )  # fmt: skip
    write(
        "gcp-prices-1y-3y",
        "Real Google Cloud prices (2026-07-30) of L4 and 8×H100 machines where they are offered, with one- and three-year\n"
        "commitments and on demand; no spot (at Google's spot prices of that day nothing would be reserved). Users live in all 40\n"
        "regions; two services share the machines; what machines serve are engines' levels with continuous batching.",
        title="Two services on GCP at real prices with 1y/3y commitments",
        services=[
            {"name": "chat-8b", "slo": {"ttft_s": 0.6, "queue_s": 0.05, "tpot_s": 0.1, "deadline_s": 30.0},
             "demand": day("azure-2024-conv", 168, 600.0, noise=0.05, seed=1),
             "workload": {"model": "llama-3.1-8b", "input_tokens": 512, "output_tokens": 256}},
            {"name": "chat-70b", "slo": {"ttft_s": 1.0, "queue_s": 0.1, "tpot_s": 0.1}, "kappa": 1.1,
             "demand": day("azure-2024-code", 168, 60.0, noise=0.05, seed=2),
             "workload": {"model": "llama-3.1-70b", "input_tokens": 2048, "output_tokens": 256}},
        ],
        machines=[
            {"machine": "g2-standard-4", "gpu": "l4", "prices_file": "gcp_prices.csv"},
            {"machine": "a3-highgpu-8g", "gpu": "h100", "gpu_count": 8, "prices_file": "gcp_prices.csv"},
        ],
        serving="continuous", latency={"model": "default", "engine": "vllm"},
        terms=["reserved_1y", "reserved_3y", "on_demand"], **common,
    )  # fmt: skip
    two = {"regions": [{"region": "west", "utc_offset_h": -8}, {"region": "east", "utc_offset_h": 4}],
           "network": {"rtt_ms": {"west": {"east": 100.0}}, "local_rtt_ms": 5.0}}  # fmt: skip
    box = {"machine": "box", "prices": {"on_demand": 3.0, "reserved_3y": 1.0},
           "serves": {"chat": {"requests_per_s": 1.0, "prefill_s": 0.1}}}  # fmt: skip
    tide = {"kind": "inline", "unit": "requests_per_s", "by_region": {"west": [10, 2], "east": [2, 10]}}
    write(
        "textbook-two-regions",
        "By hand: peaks of 10 in turn, so 20 machines region by region and 12 pooled: 12 x 1 USD/h x 730 h = 8,760 USD/month.",
        title="Two regions that peak in turn", **two,
        services=[{"name": "chat", "slo": {"ttft_s": 0.5}, "demand": tide}], machines=[box], terms=["reserved_3y"],
    )  # fmt: skip
    write(
        "textbook-growth-and-scenarios",
        "Two regions over eight quarters of 15 % growth with a launch that may double the east, bought in steps of two; any\n"
        "one region 20 % above its demand must still be served with what can be bought by the hour. Demand grows on: what a\n"
        "commitment costs after the last quarter is not charged to the plan.",
        title="Staggered commitments under growth and two futures", **two,
        services=[{"name": "chat", "slo": {"ttft_s": 0.5}, "forwarding_ceiling": 0.5, "demand": tide}],
        machines=[box | {"step": 2, "prices": {"on_demand": 3.0, "reserved_1y": 1.5, "reserved_3y": 1.0},
                         "on_demand_available": 30}],
        terms=["reserved_1y", "reserved_3y", "on_demand"],
        uncertainty={"scenarios": [{"scenario": "base", "probability": 0.7},
                                   {"scenario": "launch", "probability": 0.3, "by_region": {"east": 2.0}}],
                     "worst_case": {"deviation": 0.2, "regions": 1}},
        growth={"quarters": 8, "factor_per_quarter": 1.15, "beyond_horizon_charged": 0},
    )  # fmt: skip


if __name__ == "__main__":
    main()
