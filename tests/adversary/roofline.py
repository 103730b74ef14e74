"""GPUs as the latency model takes them."""

from __future__ import annotations

import numpy as np

from optmodels.catalog.types import Gpu
from optmodels.latency.strategies import Hardware


def group(gpu: Gpu, tp: int, fp8: bool, vram_bytes: float) -> Hardware | None:
    """One group of `tp` GPUs that work as one; None without a compute peak."""
    flops = gpu.fp8_flops if fp8 and gpu.fp8_flops is not None else gpu.fp16_flops
    if flops is None:
        return None
    known = {
        "tp": tp, "flops": tp * flops, "mem_bytes_per_s": tp * gpu.mem_bytes_per_s, "vram_bytes": vram_bytes,
        "pcie_bytes_per_s": tp * gpu.pcie_bytes_per_s, "link_bytes_per_s": gpu.link_bytes_per_s,
    }  # fmt: skip
    unused = dict.fromkeys(("disk_bytes_per_s", "net_bytes_per_s", "ram_bytes", "disk_bytes"), np.nan)
    return Hardware(**{k: np.array([v], dtype=float) for k, v in (known | unused).items()})
