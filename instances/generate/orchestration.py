"""Writes instances/orchestration/*.yaml: python instances/generate/orchestration.py"""

# ruff: noqa: E501 - comments of instance files

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "orchestration"
SHARES = {"llama-3.2-3b": 0.4, "mistral-7b": 0.35, "qwen2.5-14b": 0.25}
# MS(1) on V100-16GB. T0 of one GPU: memory bandwidth / weight bytes (900 GB/s) at 70 %; of tp GPUs: times 1.75, 2.9, 4.4;
# delta and its growth with the degree: the shape of MaaSO Fig. 1 (steeper for tp-8, converging when saturated). Stated,
# not measured: neither the paper's coefficients nor V100 measurements of these models are public.
BASE = {"llama-3.2-3b": 98.0, "mistral-7b": 43.0, "qwen2.5-14b": 21.0}
SPEEDUP = {1: (1.0, 0.10), 2: (1.75, 0.12), 4: (2.9, 0.14), 8: (4.4, 0.16)}
DECAY = [
    {"model": m, "tp": tp, "base_tokens_per_s": round(t0 * speed, 2), "delta": delta}
    for m, t0 in BASE.items()
    for tp, (speed, delta) in SPEEDUP.items()
]
PAPER = """\
MaaSO §V: {servers} p3.16xlarge servers (8 V100-16GB each), three models, trace {trace} of Table I, gamma arrivals.
The paper's three models, their shares, its rates and its decay coefficients are not public; stated here instead.
"""
CANDIDATES = {"tp": [1, 2, 4, 8], "batch": [4, 8, 16, 32, 64]}
# Requests/s at which 24 GPUs are busy but serve nearly everybody, by trace (found by trying).
RATE = {1: 24, 2: 30, 3: 26, 4: 26, 5: 34, 6: 28}


def write(name: str, comment: str, **document: Any) -> None:
    """One instance file with its comment on top."""
    lines = "".join(f"# {line}\n" for line in comment.strip().splitlines())
    body = {"formulation": "orchestration", "schema": 1, "name": name} | document
    text = yaml.safe_dump(body, sort_keys=False, width=110, default_flow_style=None, allow_unicode=True)
    (FOLDER / f"{name}.yaml").write_text(lines + text, encoding="utf-8")


def p3(count: int, **more: Any) -> dict[str, Any]:
    """Servers as the paper simulates them."""
    return {"servers": [{"server": "p3", "count": count, "gpu": "v100-16g-pcie", "gpus": 8}]} | more


def generated(trace: int, requests: int, rate: float, cv: float) -> dict[str, Any]:
    """One of the paper's traces."""
    return {"trace": {"generated": {"maaso": trace, "requests": requests, "requests_per_s": rate, "cv": cv,
                                    "models": SHARES, "seed": 1}}}  # fmt: skip


def paper(name: str, trace: int, servers: int, requests: int, rate: float, cv: float, **more: Any) -> None:
    """MaaSO §V-A."""
    title = f"MaaSO trace {trace}: {8 * servers} GPUs, {requests:,} requests at {rate:g}/s, CV {cv:g}"
    write(
        name, PAPER.format(servers=servers, trace=trace), title=title, cluster=p3(servers),
        models=[{"model": m} for m in SHARES], candidates=CANDIDATES, latency={"decay": DECAY},
        requests=generated(trace, requests, rate, cv), objective={"alpha": 0.8, "beta": 0.2},
        bins={"lengths": 2, "slo": 3}, **more,
    )  # fmt: skip


def main() -> None:
    """Write every instance."""
    for trace, rate in RATE.items():
        paper(f"maaso-trace-{trace}", trace, 3, 10_000, rate, 2)
    for servers in (1, 2, 4, 8):
        paper(f"maaso-trace-4-gpus-{8 * servers}", 4, servers, 10_000, RATE[4] * servers / 3, 2)
    for cv in (1, 4, 8):
        paper(f"maaso-trace-4-cv-{cv}", 4, 3, 10_000, RATE[4], cv)
    for requests in (2_000, 20_000, 40_000):
        paper(f"maaso-trace-4-requests-{requests}", 4, 3, requests, RATE[4] * requests / 10_000, 2)
    write(
        "textbook-two-servers",
        "Small enough for the literal form: two servers of two GPUs, one model, a dozen requests.",
        title="Two servers, twelve requests",
        cluster={"servers": [{"server": "box", "count": 2, "gpu": "v100-16g-pcie", "gpus": 2}]},
        models=[{"model": "mistral-7b"}], candidates={"tp": [1, 2], "batch": [2, 4]},
        latency={"decay": [d for d in DECAY if d["model"] == "mistral-7b" and d["tp"] <= 2]},
        requests={"rows": {"arrival_s": [0, 0.5, 1, 1.2, 2, 3, 4, 4.1, 5, 6, 7, 8],
                           "output_tokens": [400, 300, 500, 450, 350, 400, 300, 480, 420, 380, 500, 310],
                           "slo_factor": [1.2, 0.8, 1.4, 1.0, 1.5, 0.9, 1.3, 1.1, 0.85, 1.4, 1.2, 1.0]}},
        bins={"lengths": 12, "slo": 12, "seconds": 2},
    )  # fmt: skip
    write(
        "unlike-servers",
        "Servers that differ in GPU and number, each GPU type with latencies of its own (roofline), a stock limit on H100,\n"
        "two instances running already that would rather not be restarted.",
        title="V100, A10G and H100 servers side by side",
        cluster={"servers": [{"server": "v100", "gpu": "v100-16g-pcie", "gpus": 8},
                             {"server": "a10g", "count": 3, "gpu": "a10g", "gpus": 4},
                             {"server": "h100", "gpu": "h100", "gpus": 4}],
                 "stock": {"h100": 2}},
        models=[{"model": "llama-3.2-3b", "t_slice_s": 0.012}, {"model": "llama-3.1-8b", "t_slice_s": 0.028},
                {"model": "qwen2.5-14b", "t_slice_s": 0.05, "minimum_instances": 1}],
        candidates={"tp": [1, 2, 4], "batch": [8, 16, 32]}, latency={"roofline": "roofline"},
        requests={"trace": {"generated": {"mix": [{"output_tokens": [100, 400], "input_tokens": [100, 1000], "slo_factor": [0.8, 1.5]}],
                                          "requests": 5000, "requests_per_s": 40, "cv": 2, "seed": 3,
                                          "models": {"llama-3.2-3b": 0.3, "llama-3.1-8b": 0.5, "qwen2.5-14b": 0.2}}}},
        change={"running": [{"model": "llama-3.1-8b", "gpu": "h100", "tp": 1, "batch": 32, "placement": {"h100": [1]}},
                            {"model": "llama-3.2-3b", "gpu": "a10g", "tp": 1, "batch": 32, "placement": {"a10g-2": [0]}}],
                "score_per_start": 0.0005, "score_per_stop": 0.0005},
        bins={"lengths": 2, "slo": 2},
    )  # fmt: skip
    write(
        "failed-gpus",
        "Three p3.16xlarge servers of which six GPUs have failed, so that only one server still takes eight GPUs together,\n"
        "and instances of 3 and 6 GPUs beside 2 and 4: packing by patterns.",
        title="Six of 24 GPUs have failed; odd instance sizes",
        cluster=p3(3, failed_gpus={"p3-2": [0, 3, 5], "p3-3": [1, 2, 7]}),
        models=[{"model": "mistral-7b"}, {"model": "qwen2.5-14b", "attainment_at_least": 0.9}], slo={"shortfall_penalty": 0.5},
        candidates={"tp": [2], "pp": [1, 2, 3], "batch": [8, 32]},
        latency={"roofline": "roofline"},
        requests={"trace": {"generated": {"maaso": 4, "requests": 3000, "requests_per_s": 8, "cv": 2, "seed": 2,
                                          "models": {"mistral-7b": 0.6, "qwen2.5-14b": 0.4}}}},
        bins={"lengths": 2, "slo": 2},
    )  # fmt: skip
    # Azure LLM inference trace 2023 (AzurePublicDataset, CC-BY-4.0): two services over 58 minutes, 8,819 code requests with a
    # median of about 13 generated tokens and 19,366 conversations; here only their rates and rounded mean lengths.
    write(
        "azure-2023-classes",
        "Rates and mean lengths after the Azure LLM inference trace of 2023-11-16 (AzurePublicDataset, CC-BY-4.0; 8,819 code and\n"
        "19,366 conversation requests in 58 minutes: 2.57/s and 5.53/s), as classes; the split by length is rounded.",
        title="Code completion and conversation after Azure 2023, as classes",
        cluster={"servers": [{"server": "a100", "gpu": "a100-80g", "gpus": 8}]},
        models=[{"model": "llama-3-8b"}, {"model": "mistral-7b"}],
        candidates={"tp": [1, 2], "batch": [1, 2, 4, 8, 16, 32, 64]},
        latency={"fitted": {"llama-3-8b": "a100-80g-llama-3-8b-fp16-vllm-static",
                            "mistral-7b": "a100-80g-mistral-7b-fp16-vllm-static"}},
        requests={"duration_s": 3480, "classes": [
            {"model": "llama-3-8b", "input_tokens": 2048, "output_tokens": 28, "slo_factor": 4, "requests_per_s": 2.57},
            {"model": "mistral-7b", "input_tokens": 1155, "output_tokens": 120, "slo_factor": 1.3, "requests_per_s": 2.8},
            {"model": "mistral-7b", "input_tokens": 1155, "output_tokens": 300, "slo_factor": 1.6, "requests_per_s": 2.73}]},
    )  # fmt: skip
    for name, gpus, total in (("scale-1000-gpus", 1_000, 1e6), ("scale-100000-gpus", 100_000, 1e8)):
        rate = total / (24 * 60)
        shape = [
            0.45,
            0.35,
            0.3,
            0.3,
            0.35,
            0.5,
            0.7,
            0.95,
            1.2,
            1.35,
            1.4,
            1.4,
            1.35,
            1.4,
            1.45,
            1.5,
            1.5,
            1.4,
            1.3,
            1.25,
            1.2,
            1.1,
            0.85,
            0.6,
        ]
        mean = sum(shape) / 24
        classes = [
            {"model": m, "output_tokens": length, "input_tokens": 1, "slo_factor": factor,
             "requests_per_s": [round(rate * share * part * s / mean, 6) for s in shape]}
            for m, share in SHARES.items() for length, factor, part in
            ((400, 0.9, 0.2), (400, 1.2, 0.2), (400, 1.4, 0.2), (800, 0.9, 0.1), (800, 1.2, 0.2), (800, 1.4, 0.1))
        ]  # fmt: skip
        write(
            name, f"{total:,.0f} requests in 24 minutes as classes on {gpus:,} GPUs, busy at the peak: the size of the model depends on\nneither.",
            title=f"{gpus:,} GPUs, {total:,.0f} requests as classes", cluster=p3(gpus // 8),
            models=[{"model": m} for m in SHARES], candidates=CANDIDATES, latency={"decay": DECAY},
            requests={"classes_bin_s": 60, "classes": classes},
        )  # fmt: skip
    write(
        "infeasible-model-too-big",
        "A 72B model in fp16 needs 135 GiB for its weights; the largest server offers 8 × 16 GiB × 0.9.",
        title="A model too big for every server, of which one instance must run",
        cluster=p3(3), models=[{"model": "mistral-7b"}, {"model": "qwen2.5-72b", "minimum_instances": 1, "t_slice_s": 0.1}],
        candidates=CANDIDATES, latency={"roofline": "roofline"},
        requests={"duration_s": 600, "classes": [{"model": "mistral-7b", "output_tokens": 400, "slo_factor": 1.2, "requests_per_s": 2}]},
    )  # fmt: skip
    write(
        "infeasible-attainment",
        "Requests at a rate that 8 GPUs cannot serve, of which 99 % must be in time.",
        title="99 % in time is too much for one server",
        cluster=p3(1), models=[{"model": "mistral-7b", "attainment_at_least": 0.99}], candidates=CANDIDATES,
        latency={"decay": [d for d in DECAY if d["model"] == "mistral-7b"]},
        requests={"duration_s": 600, "classes": [{"model": "mistral-7b", "output_tokens": 500, "slo_factor": 1.0, "requests_per_s": 60}]},
    )  # fmt: skip
    write(
        "infeasible-too-many-instances",
        "Seven instances of at least four GPUs each do not fit 24 GPUs.",
        title="More instances asked for than fit", cluster=p3(3),
        models=[{"model": "mistral-7b", "minimum_instances": 7}], candidates={"tp": [4, 8], "batch": [16]},
        latency={"decay": [d for d in DECAY if d["model"] == "mistral-7b"]},
        requests={"duration_s": 600, "classes": [{"model": "mistral-7b", "output_tokens": 500, "slo_factor": 1.0, "requests_per_s": 5}]},
    )  # fmt: skip


if __name__ == "__main__":
    main()
