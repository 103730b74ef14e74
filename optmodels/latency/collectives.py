"""How much slower collectives are over PCIe than over NVLink, for the same bytes at the links' own peaks.

A launch: all-reduces of 2 KiB by vLLM in CUDA graphs, as ai-dynamo/aiconfigurator publishes them (Apache-2.0,
systems/data, 2026): H100 SXM with vLLM 0.19 and L40S with vLLM 0.14, among 2, 4 and 8 GPUs take 4.35, 4.65, 4.74 µs
over NVLink and 5.58, 14.1, 26.7 µs over PCIe.

Bytes: GPUs without NVLink exchange through the host, whose rate bounds them whatever the generation of PCIe.
All-reduces of 16 MiB by NCCL 2.27 among 2, 4 and 8 L40S (same publisher) take 1.689, 9.837 and 38.85 ms, in which each
GPU sends 1, 1.5 and 1.75 times the message. vLLM leaves all-reduces to NCCL above 8 MiB and among more than two GPUs
over PCIe. 300 requests to two RTX PRO 6000, of twice the peak link, confirm the rate of two L40S
(docs/results/latency-models.md). One machine was measured, so others may be better; nothing was measured between
machines.
"""

from __future__ import annotations

import numpy as np

from optmodels.catalog.types import Gpu

PCIE_BYTES_PER_S = 64e9  # the fastest PCIe peer link of the catalogue, generation 5 × 16
GPUS = (1.0, 2.0, 4.0, 8.0)
LAUNCH = (1.0, 5.58 / 4.35, 14.1 / 4.65, 26.7 / 4.74)
HOST_BYTES_PER_S = (np.inf, 2**24 / 1.689e-3, 1.5 * 2**24 / 9.837e-3, 1.75 * 2**24 / 38.85e-3)


def over_pcie(gpu: Gpu, gpus: float) -> tuple[float, float]:
    """(times of a collective of few bytes, times of one of many) over the peer link of `gpu`; 1 and 1 over NVLink."""
    if gpu.link_bytes_per_s > PCIE_BYTES_PER_S:
        return 1.0, 1.0
    at = np.log2(np.array(GPUS))
    many = np.maximum(1.0, gpu.link_bytes_per_s / np.array(HOST_BYTES_PER_S))
    return float(np.interp(np.log2(gpus), at, LAUNCH)), float(np.interp(np.log2(gpus), at, many))
