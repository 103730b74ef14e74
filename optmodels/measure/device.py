"""What the machine is, and what it does at best: the peaks that LP(4) and LP(11)-(14) divide by."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from optmodels import catalog
from optmodels.catalog.types import Gpu
from optmodels.errors import InputError, Mistake
from optmodels.units import GIB

_SMI = (
    "name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit", "temperature.gpu",
    "pcie.link.gen.current", "pcie.link.width.current", "ecc.mode.current",
)  # fmt: skip


def check_device(device: str, tps: tuple[int, ...]) -> None:
    """Refuse a device that is not there.

    Raises:
        InputError: no CUDA device, or fewer than a tensor-parallel degree needs.
    """
    import torch

    if device == "cpu":
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not re.fullmatch(r"cuda(:\d+)?", device):
        raise InputError(Mistake(None, "--device", device, "cpu, cuda or cuda:N"))
    if count == 0:
        raise InputError(Mistake(None, "--device", device, "a CUDA device that PyTorch sees; there is none"))
    if max(tps) > count:
        raise InputError(Mistake(None, "--tp", max(tps), f"at most the {count} CUDA devices there are"))


def facts(device: str) -> dict[str, str]:
    """Name, versions, clocks: what a reader of the measurements needs to judge them."""
    import torch

    found = {"torch": str(torch.__version__), "os": platform.platform(), "python": platform.python_version()}
    found["cpu"] = _cpu_name()
    found["cores"] = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    if device.startswith("cuda"):
        p = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": p.name,
            "gpu_memory_bytes": str(p.total_memory),
            "multiprocessors": str(p.multi_processor_count),
            "compute_capability": f"{p.major}.{p.minor}",
            "cuda": str(torch.version.cuda),
            "gpus": str(torch.cuda.device_count()),
        }
        found |= clocks(device)
    return found


def clocks(device: str) -> dict[str, str]:
    """What nvidia-smi says of the GPU now; empty where there is none.

    It counts all GPUs of the machine, PyTorch those it is shown (CUDA_VISIBLE_DEVICES): the UUID is the same in both.
    """
    command = shutil.which("nvidia-smi")
    if command is None or not device.startswith("cuda"):
        return {}
    import torch

    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    which = "0" if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            [command, f"--query-gpu={','.join(_SMI)}", "--format=csv,noheader", f"--id={which}"],
            capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [v.strip() for v in done.stdout.splitlines()[0].split(",")] if done.stdout else []
    return {f"nvidia_smi.{k}": v for k, v in zip(_SMI, values, strict=False)}


def second(device: str) -> str:
    """Where attention elsewhere computes: on another GPU beside a GPU, where there is one; else on the host."""
    import torch

    if device.startswith("cuda") and torch.cuda.device_count() > 1:
        return "cuda:0" if device not in ("cuda", "cuda:0") else "cuda:1"
    return "cpu"


def give_back(device: str) -> None:
    """Memory of what is no more, which PyTorch keeps for itself."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        if hasattr(torch.accelerator, "empty_host_cache"):  # PyTorch 2.9 and older keep pinned memory
            torch.accelerator.empty_host_cache()


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def memory_bytes(device: str) -> float:
    """Memory free for weights and KV."""
    import torch

    if device.startswith("cuda"):
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable"):
                return float(line.split()[1]) * 1024
    except OSError:
        pass
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / 2


def catalogue_gpu(name: str, memory: float) -> str | None:
    """The catalogue's key of a CUDA device, by the words of its name and its memory; None where it has no such GPU."""
    words = set(re.findall(r"[a-z]+\d+[a-z]*|[a-z]+|\d+", name.lower()))
    best: tuple[int, str] | None = None
    for key, gpu in catalog.gpus().items():
        wanted = {w for w in key.split("-") if not re.fullmatch(r"\d+g", w)}
        close = abs(gpu.vram_gib * GIB / memory - 1) < 0.15
        if wanted <= words and close and (best is None or len(wanted) > best[0]):
            best = (len(wanted), key)
    return best[1] if best else None


def probe(device: str, dtype: str, threads: int, folder: Path) -> dict[str, Any]:
    """Best rates of the device, measured: dense GEMM, reading memory, host to device, reading a file.

    Returns:
        `gpu`: a GPU entry as an instance's ``gpus:`` has them; `disk_bytes_per_s`.
    """
    import torch

    torch.set_num_threads(threads)
    cuda = device.startswith("cuda")
    flops, reading, link = _rates(device, dtype)
    give_back(device)  # what is free is asked for next
    memory = torch.cuda.get_device_properties(device).total_memory if cuda else memory_bytes(device)
    entry = Gpu(
        title=torch.cuda.get_device_name(device) if cuda else _cpu_name(),
        fp16_flops=_round(flops),
        mem_bytes_per_s=_round(reading),
        vram_gib=_round(memory / GIB),
        pcie_bytes_per_s=_round(link),
        link_bytes_per_s=_round(link),
        source=f"measured with torch {torch.__version__}, {dtype}, {threads} thread{'s' * (threads != 1)}",
        note="best of several: a GEMM, a sum over memory, a copy from the host; the link to other GPUs not measured",
    )
    return {"gpu": entry, "disk_bytes_per_s": _round(_disk(folder, 1 << 26))}


def _rates(device: str, dtype: str) -> tuple[float, float, float]:
    """FLOP/s of a GEMM, bytes/s of a sum over memory, and of a copy from the host."""
    import torch

    from optmodels.measure.transformer import DTYPES

    cuda = device.startswith("cuda")
    n, big = (8192, 1 << 30) if cuda else (1024, 1 << 27)
    a = torch.randn(n, n, device=device).to(DTYPES[dtype])
    x = torch.ones(big // 4, dtype=torch.float32, device=device)
    host, target = torch.ones(big // 4, dtype=torch.float32, pin_memory=cuda), torch.empty_like(x)
    return (
        2.0 * n**3 / _best(lambda: a @ a, device),
        big / _best(lambda: x.sum(), device),
        big / _best(lambda: target.copy_(host, non_blocking=True), device),
    )


def _round(x: float) -> float:
    return float(f"{x:.4g}")


def _best(call: Callable[[], object], device: str, repeats: int = 7) -> float:
    """Least seconds of several calls."""
    import torch

    cuda = device.startswith("cuda")
    found = []
    for _ in range(repeats):
        if cuda:
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        call()
        if cuda:
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - start)
    return min(found[1:])


def _disk(folder: Path, size: int) -> float:
    """Bytes/s of one thread reading a file past the page cache, in pieces of 4 MiB."""
    import mmap

    handle, name = tempfile.mkstemp(dir=folder, prefix=".optmodels-probe-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(os.urandom(size))
            stream.flush()
            os.fsync(stream.fileno())
        buffer = mmap.mmap(-1, 1 << 22)
        best = 0.0
        for _ in range(2):
            try:
                file = os.open(name, os.O_RDONLY | os.O_DIRECT)
            except (OSError, AttributeError):
                file = os.open(name, os.O_RDONLY)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            start, done = time.perf_counter(), 0
            while (moved := os.preadv(file, [buffer], done)) > 0:
                done += moved
            best = max(best, done / (time.perf_counter() - start))
            os.close(file)
        return best
    finally:
        Path(name).unlink(missing_ok=True)
