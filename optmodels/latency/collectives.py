"""How much slower collectives are over PCIe than over NVLink, for the same bytes at the links' own peaks.

A launch: all-reduces of 2 KiB by vLLM in CUDA graphs, as ai-dynamo/aiconfigurator publishes them (Apache-2.0,
systems/data, 2026): H100 SXM with vLLM 0.19 and L40S with vLLM 0.14, among 2, 4 and 8 GPUs take 4.35, 4.65, 4.74 µs
over NVLink and 5.58, 14.1, 26.7 µs over PCIe.

Bytes: GPUs without NVLink exchange through the host, whose rate bounds them whatever the generation of PCIe. 300
requests to two RTX PRO 6000 took as long as with 9.9 GB/s (docs/results/latency-models.md), which is taken for any
number of GPUs. It is half of what NCCL alone reaches: 19.9 GB/s between two L40S (same publisher, whose sizes count
elements of two bytes), 22 to 41 GB/s among eight RTX PRO 6000 of five machines (voipmonitor/rtx6kpro), 35 and 28 GB/s
among four and eight RTX 5090 (NVIDIA/nccl#1639). The publisher's own L40S reach 5.1 GB/s among four and 1.5 GB/s among
eight, a seventh and a fifteenth of these, and are excluded. vLLM leaves all-reduces to NCCL above 8 MiB and among more
than two GPUs over PCIe. Nothing was measured between machines.
"""

from __future__ import annotations

import numpy as np

from optmodels.catalog.types import Gpu

PCIE_BYTES_PER_S = 64e9  # the fastest PCIe peer link of the catalogue, generation 5 × 16
GPUS = (1.0, 2.0, 4.0, 8.0)
LAUNCH = (1.0, 5.58 / 4.35, 14.1 / 4.65, 26.7 / 4.74)
HOST_BYTES_PER_S = 2**24 / 1.689e-3


def over_pcie(gpu: Gpu, gpus: float) -> tuple[float, float]:
    """(times of a collective of few bytes, times of one of many) over the peer link of `gpu`; 1 and 1 over NVLink."""
    if gpu.link_bytes_per_s > PCIE_BYTES_PER_S:
        return 1.0, 1.0
    many = max(1.0, gpu.link_bytes_per_s / HOST_BYTES_PER_S) if gpus > 1 else 1.0
    return float(np.interp(np.log2(gpus), np.log2(np.array(GPUS)), LAUNCH)), many
