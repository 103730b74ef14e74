"""How much slower collectives are over PCIe than over NVLink, for the same bytes at the links' own peaks.

From all-reduces of vLLM in CUDA graphs, as ai-dynamo/aiconfigurator publishes them (Apache-2.0, systems/data, 2026):
H100 SXM with vLLM 0.19 and L40S with vLLM 0.14, among 2, 4 and 8 GPUs. Of 2 KiB: 4.35, 4.65, 4.74 µs over NVLink and
5.58, 14.1, 26.7 µs over PCIe. Of 8 MiB: 82, 99, 92 µs and 892, 6676, 15806 µs, which is 0.23, 0.28, 0.35 and 0.29,
0.059, 0.029 of the peak of the link: GPUs without NVLink share the host's. One machine was measured, so others may be
better; nothing was measured between machines.
"""

from __future__ import annotations

import numpy as np

from optmodels.catalog.types import Gpu

PCIE_BYTES_PER_S = 64e9  # the fastest PCIe peer link of the catalogue, generation 5 × 16
GPUS = (1.0, 2.0, 4.0, 8.0)
LAUNCH = (1.0, 5.58 / 4.35, 14.1 / 4.65, 26.7 / 4.74)
BYTES = (1.0, 1.0, 0.283 / 0.059, 0.354 / 0.029)


def over_pcie(gpu: Gpu, gpus: float) -> tuple[float, float]:
    """(times of a collective of few bytes, times of one of many) over the peer link of `gpu`; 1 and 1 over NVLink."""
    if gpu.link_bytes_per_s > PCIE_BYTES_PER_S:
        return 1.0, 1.0
    at = np.log2(np.array(GPUS))
    launch, many = (float(np.interp(np.log2(gpus), at, column)) for column in (LAUNCH, BYTES))
    return launch, many
