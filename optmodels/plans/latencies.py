"""Latencies of a static batch recomputed from the papers' equations, for checks; shares no code with the tables.

Plain scalar arithmetic with a loop over every decode step, where the tables use closed forms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from optmodels.batch.static import BatchCase
from optmodels.catalog.types import Machine
from optmodels.latency.steps import StepCosts
from optmodels.latency.strategies import Family
from optmodels.plans.findings import Findings
from optmodels.units import GBPS, GIB

MemoryLimit = tuple[str, float, float | None, str, str]  # name, value, limit, unit, sense


@dataclass(frozen=True)
class RecomputedRun:
    """How a deployment runs its workload.

    Attributes:
        largest_part: requests of the batch that one replica and pass takes.
        alpha: offload ratio.
        count: k, K or N of the family, or machines that share the batch.
    """

    family: Family
    largest_part: int
    alpha: float
    tensor_parallel: int
    replicas_per_machine: int
    passes: int
    count: int


@dataclass(frozen=True)
class Latencies:
    """Seconds; `ao_load` is ρ of a shared AO machine, None without one; `memory` as lines of limits, GiB."""

    ttft_s: float
    tpot_s: float
    e2e_s: float
    ao_load: float | None
    memory: list[MemoryLimit]


def latencies(found: Findings, case: BatchCase, run: RecomputedRun, main: Machine, ao: Machine | None) -> Latencies:
    """TTFT, TBT and E2E of the largest part, step by step (LP 3–6, 11–18), and what memory it takes."""
    problem, p, count = case.problem, run, run.count
    work, w = case.work, problem.alike
    L, S_in, S_out = work.layers, w.input_tokens, w.output_tokens
    B = float(p.largest_part)
    alpha, roofline = p.alpha, problem.latency.variant == "roofline"
    tp, dp = p.tensor_parallel, p.replicas_per_machine
    gpu = case.gpus[main.gpu or ""]
    flops = tp * (case.gpu_flops(gpu) or 0.0)
    bandwidth = tp * gpu.mem_bytes_per_s
    head = work.head_flops_per_token if roofline else 0.0

    def allreduce(tokens: float) -> float:
        return 2 * 2 * (tp - 1) / tp * tokens * work.allreduce_bytes_per_token / gpu.link_bytes_per_s

    # Memory, GPU by GPU: whole KV heads, and a latent that cannot be split
    kv_of_all = B * work.kept(S_in + S_out) * work.kv_bytes_per_token_all_layers
    copies = tp * math.ceil(work.kv_heads / tp) / work.kv_heads
    kv = copies * kv_of_all
    split = work.activation_bytes_per_token - work.whole_activation_bytes_per_token
    one_gpu = (
        (work.weight_bytes - L * (work.whole_weight_bytes + work.kv_weight_bytes)) / tp
        + L * (work.whole_weight_bytes + work.kv_weight_bytes * copies / tp)
        + min(B * S_in, problem.memory.chunk_tokens) * (work.whole_activation_bytes_per_token + split / tp)
        + B * (work.logit_bytes_per_sequence + L * work.state_bytes) / tp
        + (problem.memory.runtime_gib or 0.0) * GIB
    )
    resident = tp * one_gpu + float(work.expert_padding_bytes(tp)) + (1 - alpha) * kv
    vram = tp * main.vram_gib / main.gpu_count * GIB * problem.memory.vram_usable
    found.at_most("VRAM of a replica", resident / GIB, vram / GIB, "GiB")
    memory: list[MemoryLimit] = [("VRAM per replica", resident / GIB, vram / GIB, "GiB", "<=")]

    # Prefill
    compute = float(work.prefill_flops(B, S_in)) / flops
    if roofline:
        compute = max(compute + B * head / flops, float(work.weight_bytes_read(B * S_in)) / bandwidth)
    compute += allreduce(B * S_in)

    transfer = 0.0
    io, net, ao_flops, ao_bandwidth = 1.0, 1.0, 1.0, 1.0
    if p.family in ("kvo_ram", "kvo_disk"):
        if p.family == "kvo_ram":
            io = tp * (gpu.pcie_bytes_per_s or math.nan)
            host = (main.ram_gib or 0.0) / dp * problem.memory.ram_usable
        else:
            io = (main.disk_gbps or 0.0) * GBPS / dp
            host = problem.memory.volume_gib / dp
        found.at_most("offloaded KV cache", alpha * kv / GIB, host, "GiB")
        where = "host RAM" if p.family == "kvo_ram" else "disk volume"
        memory.append((f"{where} per replica", alpha * kv / GIB, host, "GiB", "<="))
        transfer = alpha * copies * B * work.seen(S_in) * work.kv_bytes_per_token / io
    elif ao is not None:
        ao_gpu = case.gpus[ao.gpu or ""]
        net = min(main.net_gbps or 0.0, ao.net_gbps or 0.0) * GBPS / dp
        ao_flops = ao.gpu_count * (case.gpu_flops(ao_gpu) or 0.0) / dp
        ao_bandwidth = ao.gpu_count * ao_gpu.mem_bytes_per_s / dp
        mains = count if p.family == "ao_shared" else 1
        limit = ao.vram_gib * problem.memory.vram_usable / dp / mains
        found.at_most("offloaded KV cache on the AO machine", alpha * kv_of_all / GIB, limit, "GiB")
        memory.append(("AO machine's VRAM per replica", alpha * kv_of_all / GIB, limit, "GiB", "<="))
        transfer = alpha * B * S_in * work.ao_bytes_per_token / net
    first, alone = L * max(compute, transfer), L * compute  # and with nothing offloaded

    # Decode, one step after the other
    weights = (float(work.weight_bytes_read(B)) + 2 * B * work.state_bytes) / bandwidth
    constant, slope = work.seen_line(S_in + 1, S_out - 1)
    linear = B * (work.linear_flops_per_token + head) / flops
    decode = service = undivided = 0.0
    for t in range(1, S_out):
        context = constant + slope * (S_in + t)
        attention = B * work.attention_flops_per_pair * context
        kv_once = B * context * work.kv_bytes_per_token
        kv_read = copies * kv_once
        if p.family in ("ao", "ao_parallel", "ao_shared"):
            sent = B * work.ao_bytes_per_token / net
            if roofline:
                own = max(linear, weights)
                local = (1 - alpha) * max(attention / flops, kv_read / bandwidth)
                remote = alpha * (max(attention / ao_flops, kv_once / ao_bandwidth) + sent)
            else:
                own, local = linear, (1 - alpha) * attention / flops
                remote = alpha * attention / ao_flops + sent
            decode += own + max(local, remote)
            service += remote
            undivided += own + (max(attention / flops, kv_read / bandwidth) if roofline else attention / flops)
        else:
            fetched = alpha * kv_read / io if p.family in ("kvo_ram", "kvo_disk") else 0.0
            if roofline:
                decode += max(linear + attention / flops, weights + (1 - alpha) * kv_read / bandwidth, fetched)
                undivided += max(linear + attention / flops, weights + kv_read / bandwidth)
            else:
                decode += linear + attention / flops + max((1 - alpha) * kv_read / bandwidth, fetched)
        decode += allreduce(B)
        undivided += allreduce(B)
    steps = S_out - 1
    tbt = 0.0
    ao_load = 0.0 if p.family == "ao_shared" else None
    if steps:
        mean, mean_service = decode / steps, service / steps
        if p.family == "ao_shared":
            load = count * mean_service / mean
            if load >= 1:
                found.add("load of the shared AO machine < 1", load, 1.0)
                load = 1 - 1e-12
            ao_load = load
            mean += mean_service * load / (2 * (1 - load))
        tbt = L * mean

    if case.source is not None:
        costs, provenance = case.costs(main.gpu or "", tp)
        tpot, ttft = provenance.factors(problem.latency.safety)
        prefill, decoding = _engine_steps(costs, p.largest_part, S_in, S_out, problem.memory.chunk_tokens)
        first = ttft * (costs.request_s + prefill * first / alone)
        tbt *= tpot * decoding / (L * undivided) if steps else 1.0

    # LP(18)
    if case.calibration is not None:
        first = _calibrated(case, main.gpu or "", p.family, "prefill", first)
        tbt = _calibrated(case, main.gpu or "", p.family, "decode", tbt) if steps else 0.0
    one_pass = first + steps * tbt
    return Latencies(first + (p.passes - 1) * one_pass, tbt, p.passes * one_pass, ao_load, memory)


def _engine_steps(
    costs: StepCosts, batch: int, input_tokens: int, output_tokens: int, chunk_tokens: int
) -> tuple[float, float]:
    """Seconds of the steps that prefill a batch, prompt after prompt, and of the steps that decode it; one by one."""
    prefill, room = 0.0, chunk_tokens
    tokens: list[float] = []
    earlier: list[float] = []

    def end_step() -> None:
        nonlocal prefill, room
        prefill += costs.step(np.array(tokens), np.array(earlier), np.zeros(0))
        tokens.clear()
        earlier.clear()
        room = chunk_tokens

    for _ in range(batch):
        done = 0
        while done < input_tokens:
            part = min(room, input_tokens - done)
            tokens.append(float(part))
            earlier.append(float(done))
            done, room = done + part, room - part
            if not room:
                end_step()
    if tokens:
        end_step()
    none, ones = np.zeros(0), np.ones(batch)
    return prefill, sum(costs.step(none, none, (input_tokens + t) * ones) for t in range(1, output_tokens))


def _calibrated(case: BatchCase, gpu: str, family: str, phase: str, seconds: float) -> float:
    assert case.calibration is not None
    for c in case.calibration.coefficients:
        if c.phase == phase and c.gpu in ("*", gpu) and c.family in ("*", family):
            return (c.slope * seconds + c.intercept_s) * _margin(c.residual_quantiles, case.problem.latency.safety)
    return seconds


def _margin(quantiles: Mapping[str, float], safety: float | None) -> float:
    """Measured/predicted at the first stored level reaching the safety level; NaN, which no limit admits, if none."""
    if safety is None:
        return 1.0
    enough = sorted((float(level), ratio) for level, ratio in quantiles.items() if float(level) >= safety - 1e-9)
    return enough[0][1] if enough else float("nan")
