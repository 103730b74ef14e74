"""A whole run: points in order, a budget, a journal that survives a crash, and the measurement file.

The journal is one JSON line for what is being measured where, and one for each point done, on disk before the next
begins. The same command goes on where it stopped; a torn last line is dropped; another command refuses it.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from optmodels import catalog
from optmodels.catalog import spelling
from optmodels.catalog.types import Architecture, Gpu
from optmodels.errors import InputError, Mistake
from optmodels.measure import device as devices
from optmodels.measure import predict
from optmodels.measure.grid import Grid, Point, Schedule, informative_first, points

if TYPE_CHECKING:
    import pandas as pd

    from optmodels.measure.parallel import Group
    from optmodels.measure.session import Session, Setup, Timing

MEMORY_SHARE = 0.85
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Campaign:
    """What to measure and how; `measure` does it."""

    arch: Architecture
    model: str
    grid: Grid = field(default_factory=Grid)
    offload: tuple[str, ...] = ()
    alphas: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    schedules: tuple[Schedule, ...] = ("overlap",)
    tps: tuple[int, ...] = (1,)
    device: str = "cpu"
    gpu: str | None = None
    dtype: str = "bf16"
    layers: int | None = None
    repeats: int = 9
    threads: int | None = None
    link_bytes_per_s: float | None = None
    link_latency_s: float = 0.0
    budget_s: float | None = None
    max_tokens: int = 16384
    folder: Path = Path()
    seed: int = 0

    @property
    def compute_threads(self) -> int:
        """On a CPU one core is left to the copying thread or the attention process, in every point alike."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.threads or max(1, cores - (1 if self.offload and self.device == "cpu" else 0))


@dataclass
class Measured:
    """The measurement file's content: rows, and what they are (`about`)."""

    frame: pd.DataFrame
    about: dict[str, Any] = field(default_factory=dict)


def measure(c: Campaign, journal: Path | None = None, say: Progress = lambda _: None) -> Measured:
    """Measure the campaign's points until done or out of budget.

    Args:
        c: What and how.
        journal: Where to keep what is done; with one from the same command there, its points are not measured again.
        say: Gets one line of progress at a time.

    Raises:
        InputError: an architecture, device or journal that cannot be used.
    """
    from optmodels.measure.parallel import opened
    from optmodels.measure.transformer import LEFT_OUT, check

    check(c.arch, c.tps)
    devices.check_device(c.device, c.tps)
    try:
        c.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(Mistake(str(c.folder), "--folder", error.strerror, "a folder that can be written")) from None
    facts = devices.facts(c.device)
    key = spelling.gpu(c.gpu) or (
        devices.catalogue_gpu(facts["gpu"], float(facts["gpu_memory_bytes"])) if "gpu" in facts else None
    )
    if key is not None and key not in catalog.gpus():
        raise InputError(spelling.unknown_gpu("--gpu", key))
    identity = {"campaign": _identity(c), "facts": {k: v for k, v in facts.items() if "nvidia_smi" not in k}}
    log = _Journal(journal, identity)
    every = points(
        c.grid, offload=c.offload, alphas=c.alphas, tps=c.tps, schedules=c.schedules, max_tokens=c.max_tokens
    )
    say("probing the device" if log.probe is None else f"resuming: {len(log.done)} of {len(every)} points are there")
    if log.probe is None:
        found = devices.probe(c.device, c.dtype, c.compute_threads, c.folder)
        log.note_probe(
            {
                "gpu": found["gpu"].model_dump(),
                "disk_bytes_per_s": found["disk_bytes_per_s"],
                "layers_held": _held(c, every),
            }
        )
    assert log.probe is not None
    own = Gpu.model_validate(log.probe["gpu"])
    machine = predict.Machine(
        catalog.gpus()[key] if key is not None else own,
        log.probe["disk_bytes_per_s"],
        c.link_bytes_per_s or np.nan,
    )
    rough = np.array([predict.estimate(c.arch, replace(machine, gpu=own), p) for p in every])
    order = informative_first(every, rough)
    expected = dict(zip(every, rough.tolist(), strict=True))
    setup = _setup(c, log.probe["layers_held"])
    budget = _Budget(c.budget_s)
    left_out: dict[str, str] = {}
    unopened: dict[int, str] = {}
    session: Session | Group | None = None
    tp = 0
    try:
        for i, point in enumerate(order):
            name = str(point)
            if name in log.done:
                continue
            if not _fits(c, setup, point):
                left_out[name] = "does not fit the device's memory"
                continue
            if not budget.allows(expected[point] * (setup.repeats + 3)):
                left_out[name] = "out of time"
                continue
            if point.tp in unopened:
                left_out[name] = unopened[point.tp]
                continue
            began = time.monotonic()
            try:
                if session is None or tp != point.tp:
                    if session is not None:
                        session.close()
                    session, tp = None, point.tp  # its weights go before others come
                    devices.give_back(c.device)
                    session = opened(replace(setup, tp=tp))
                timing = _timed(c, session, point, log)
            except (OSError, EOFError, MemoryError, RuntimeError) as error:
                left_out[name] = _reason(error)
                if session is None:
                    unopened[point.tp] = left_out[name]
                elif not session.alive or not _out_of_memory(error):
                    session.close()
                    session = None
                continue
            budget.observe(expected[point] * (timing.repeats + 3), time.monotonic() - began)
            say(
                f"[{i + 1}/{len(order)}] {name}: {1e3 * timing.median_s:.3f} ms "
                f"({1e3 * timing.p10_s:.3f} to {1e3 * timing.p90_s:.3f}), {budget}"
            )
    finally:
        if session is not None:
            session.close()
        session = None
        devices.give_back(c.device)
        log.close()
    frame = _frame(c, setup, machine, key, [p for p in order if str(p) in log.done], log.done)
    about = {
        "written_by": "optmodels measure",
        "date": datetime.date.today().isoformat(),
        "model": c.model,
        "architecture": c.arch.model_dump(mode="json", exclude_defaults=True),
        "dtype": c.dtype,
        "device": facts | {f"after.{k}": v for k, v in devices.clocks(c.device).items()},
        "threads": c.compute_threads,
        "catalogue_gpu": key,
        "probe": log.probe,
        "layers": {"model": c.arch.layers, "run": setup.run, "with_weights_of_their_own": setup.held,
                   "scaled": setup.run < c.arch.layers},
        "leaves_out": LEFT_OUT,
        "left_out": left_out,
        "campaign": identity["campaign"],
    }  # fmt: skip
    return Measured(frame, about)


def _out_of_memory(error: Exception) -> bool:
    """Of the device, of the host, or of what the host may pin: three libraries, three exceptions."""
    import torch

    said = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in said or "allocate memory" in said)
    )


def _reason(error: Exception) -> str:
    """Why a point was left out.

    Raises:
        Exception: the same, unless it is of the kind that leaves a point out: no memory, a full disk, a process gone.
    """
    if _out_of_memory(error):
        return "did not fit the device's memory"
    if isinstance(error, OSError):
        return error.strerror or "a process ended"
    if isinstance(error, EOFError):
        return "a process ended"
    raise error


def _timed(c: Campaign, session: Session | Group, point: Point, log: _Journal) -> Timing:
    """Measure a point and note it; an offloaded one together with its control, where that is wanted."""
    from optmodels.measure.session import Session

    pair = {point.schedule, *c.schedules} == {"overlap", "serial"} and point.family in ("kvo_ram", "kvo_disk")
    if pair and isinstance(session, Session):
        beside, before = session.compare(replace(point, schedule="overlap"))
        log.note(str(replace(point, schedule="overlap")), asdict(beside))
        log.note(str(replace(point, schedule="serial")), asdict(before))
        return beside if point.schedule == "overlap" else before
    timing = session.measure(point)
    log.note(str(point), asdict(timing))
    return timing


def _identity(c: Campaign) -> dict[str, Any]:
    """What two runs must share to be one measurement; how long they may take is not part of it."""
    found = json.loads(json.dumps(asdict(replace(c, budget_s=None, folder=Path())), default=_plain))
    return {k: v for k, v in found.items() if k not in ("budget_s", "folder")}


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, Architecture) else str(value)


class _Journal:
    """Points done, one line each."""

    def __init__(self, path: Path | None, identity: dict[str, Any]) -> None:
        text = json.dumps(identity, sort_keys=True)
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        self.done: dict[str, dict[str, Any]] = {}
        self.probe: dict[str, Any] | None = None
        self.stream: Any = None
        if path is None:
            return
        lines, size = _whole_lines(path) if path.exists() else ([], 0)
        if lines and lines[0].get("sha256") != self.digest:
            raise InputError(
                Mistake(
                    str(path), "", "the journal of another measurement", "that of this command, on this machine",
                    hint="finish it with its own command, or delete it",
                )
            )  # fmt: skip
        for entry in lines[1:]:
            if "probe" in entry:
                self.probe = entry["probe"]
            else:
                self.done[entry["point"]] = entry["timing"]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.stream = path.open("ab")
            self.stream.truncate(size)
        except OSError as error:
            raise InputError(Mistake(str(path), "", error.strerror, "a folder that can be written")) from None
        if not lines:
            self._write({"sha256": self.digest, "identity": identity})

    def note(self, point: str, timing: dict[str, Any]) -> None:
        """A point is done."""
        self.done[point] = timing
        self._write({"point": point, "timing": timing})

    def note_probe(self, probe: dict[str, Any]) -> None:
        """The device's best rates."""
        self.probe = probe
        self._write({"probe": probe})

    def _write(self, entry: dict[str, Any]) -> None:
        if self.stream is not None:
            self.stream.write(json.dumps(entry).encode() + b"\n")
            self.stream.flush()
            os.fsync(self.stream.fileno())

    def close(self) -> None:
        """No more."""
        if self.stream is not None:
            self.stream.close()


def _whole_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The journal's lines and their bytes; one that a crash tore, and what follows it, is dropped."""
    found, size = [], 0
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if not isinstance(entry, dict) or not line.endswith(b"\n"):
            break
        found.append(entry)
        size += len(line)
    return found, size


class _Budget:
    """Seconds allowed, and how much longer points last than expected."""

    def __init__(self, seconds: float | None) -> None:
        self.start, self.seconds, self.factors = time.monotonic(), seconds, [1.0]

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self.start

    def allows(self, expected: float) -> bool:
        """Whether a point of so many expected seconds still fits."""
        return self.seconds is None or self.spent + expected * float(np.median(self.factors)) <= self.seconds

    def observe(self, expected: float, seconds: float) -> None:
        """A point that was expected to last so long lasted so long."""
        self.factors.append(seconds / max(expected, 1e-9))

    def __str__(self) -> str:
        return f"{self.spent:.0f} s" + ("" if self.seconds is None else f" of {self.seconds:.0f} s")


def _held(c: Campaign, every: Sequence[Point]) -> int:
    """As many layers with weights of their own as fit beside the KV of the median point, those run at most."""
    from optmodels.measure.transformer import Shard

    found = [c.layers or c.arch.layers, c.arch.layers]
    for tp in c.tps:
        shard = Shard(c.arch, tp)
        kv = float(np.median([p.kv_tokens for p in every])) * shard.kv_width
        free = MEMORY_SHARE * devices.memory_bytes(c.device) / (1 if c.device != "cpu" else tp)
        each = 2.0 * (max(shard.layer_elements(0), shard.layer_elements(c.arch.layers - 1)) + kv)
        found.append(max(1, int((free - 2.0 * shard.head_elements) // each)))
    return min(found)


def _setup(c: Campaign, held: int) -> Setup:
    from optmodels.measure.remote import Link
    from optmodels.measure.session import Setup

    return Setup(
        arch=c.arch, dtype=c.dtype, device=c.device, held=held, run=min(c.layers or c.arch.layers, c.arch.layers),
        repeats=c.repeats, threads=c.compute_threads, link=Link(c.link_bytes_per_s, c.link_latency_s),
        attention_device=devices.second(c.device), folder=str(c.folder), seed=c.seed,
    )  # fmt: skip


def _fits(c: Campaign, setup: Setup, p: Point) -> bool:
    """Whether a point's KV and activations fit beside the weights, and what is offloaded fits where it goes."""
    from optmodels.measure.offload import HOST_BYTES
    from optmodels.measure.transformer import Shard

    shard = Shard(c.arch, p.tp)
    layer = 2.0 * p.kv_tokens * shard.kv_width
    wide = c.arch.ffn if c.arch.moe is None else max(c.arch.ffn, c.arch.moe.active * c.arch.moe.expert_ffn)
    activations = 2.0 * p.tokens * (6 * c.arch.hidden + 3 * wide // p.tp)
    weights = 2.0 * (shard.head_elements + setup.held * shard.layer_elements(c.arch.layers - 1))
    near = weights + setup.held * layer + activations
    far = 0.0
    if p.family == "kvo_ram":
        far = min(setup.held * p.alpha * layer, HOST_BYTES + p.alpha * layer)
    elif p.family == "ao":
        far = setup.held * p.alpha * layer
    elif p.family == "kvo_disk" and setup.held * p.alpha * layer > MEMORY_SHARE * shutil.disk_usage(c.folder).free:
        return False
    if c.device.startswith("cuda"):
        return near <= MEMORY_SHARE * _memory(c.device) and far <= MEMORY_SHARE * _memory("cpu")
    return p.tp * near + far <= MEMORY_SHARE * _memory("cpu")


def _memory(device: str) -> float:
    """All memory of the device, bytes."""
    if device.startswith("cuda"):
        import torch

        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _frame(
    c: Campaign,
    setup: Setup,
    machine: predict.Machine,
    gpu: str | None,
    done: Sequence[Point],
    timings: dict[str, dict[str, Any]],
) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for p in done:
        t = timings[str(p)]
        rows.append({
            "prefill_tokens": p.prefills * p.chunk,
            "prefill_context_tokens": p.earlier,
            "prefill_requests": p.prefills,
            "decode_requests": p.decodes,
            "decode_context_tokens": p.context,
            "tp": p.tp,
            "latency_s": t["median_s"],
            "latency_p10_s": t["p10_s"],
            "latency_p90_s": t["p90_s"],
            "repeats": t["repeats"],
            "resident_s": t["resident_s"],
            "serial_s": t["serial_s"],
            "gpu": gpu or "measured",
            "family": p.family,
            "phase": p.phase,
            "alpha": p.alpha,
            "schedule": p.schedule,
            "predicted_s": predict.predicted(c.arch, machine, p),
            "predicted_paper_s": predict.predicted(c.arch, machine, p, "paper"),
            "offloaded_to": t["where"],
            "link_bytes_per_s": c.link_bytes_per_s if p.family == "ao" else math.nan,
            "cuda_graph": t["graph"],
            "layers_run": setup.run,
            "layers_held": setup.held,
        })  # fmt: skip
    return pd.DataFrame(rows).astype({"resident_s": float, "serial_s": float}) if rows else pd.DataFrame()


def write(path: Path, measured: Measured, *, overwrite: bool = False) -> None:
    """Write the measurement file: Parquet with `about` in its metadata, or CSV with `about` in a comment line.

    Raises:
        InputError: another ending, an existing file, or a folder that cannot be written.
    """
    import io

    from optmodels.io.write import write_bytes, write_text

    about = json.dumps(measured.about, ensure_ascii=False, default=str)
    if path.suffix == ".csv":
        write_text(path, f"# {about}\n" + measured.frame.to_csv(index=False), overwrite=overwrite)
    elif path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_pandas(measured.frame, preserve_index=False)
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), b"optmodels": about.encode()})
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        write_bytes(path, buffer.getvalue(), overwrite=overwrite)
    else:
        raise InputError(Mistake(str(path), "--out", path.suffix or "no ending", "a file ending in .parquet or .csv"))


def read_about(path: Path) -> dict[str, Any]:
    """What a measurement file says of itself; empty for a file that was not written here."""
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            text = (pq.read_schema(path).metadata or {}).get(b"optmodels", b"{}").decode()
        else:
            with path.open(encoding="utf-8") as stream:
                first = stream.readline()
            text = first[1:] if first.startswith("# {") else "{}"
        found = json.loads(text)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def to_stderr(line: str) -> None:
    """Progress: one line."""
    sys.stderr.write(f"measure: {line}\n")
    sys.stderr.flush()
