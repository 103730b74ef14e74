"""One rank's engine step: built for a point, warmed up, timed; medians with their spread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as fn

from optmodels.catalog.types import Architecture
from optmodels.measure import device as devices
from optmodels.measure.grid import Point
from optmodels.measure.offload import DEPTH, Disk, HostMemory, Mover, aligned
from optmodels.measure.remote import Link, Remote, Task, rows_elsewhere
from optmodels.measure.transformer import DTYPES, Attention, Rotary, Routing, Shard, Weights

Array = npt.NDArray[np.float64]
WARM_UP = 2
WARM_UP_S = 1.0  # of the first point: clocks rise, kernels are chosen, threads start
LEAST_REPEATS = 3


@dataclass(frozen=True)
class Setup:
    """What a rank needs to know. `held` layers have weights of their own, `run` of the model's layers are executed."""

    arch: Architecture
    dtype: str = "bf16"
    device: str = "cpu"
    tp: int = 1
    held: int = 1
    run: int = 1
    repeats: int = 9
    seconds_per_point: float = 2.0
    threads: int = 1
    link: Link = field(default_factory=Link)
    attention_device: str = "cpu"
    folder: str = "."
    graphs: bool = True
    seed: int = 0


@dataclass(frozen=True)
class Timing:
    """Seconds of one step of the whole model: median, 10 % and 90 % quantiles over the repeats."""

    median_s: float
    p10_s: float
    p90_s: float
    repeats: int
    graph: bool
    where: str = ""
    resident_s: float | None = None  # of `Session.compare`: the medians of the steps taken in turns with this one
    serial_s: float | None = None


class Session:
    """Weights on a device, and steps over them."""

    alive = True  # a `Group` may lose a rank

    def __init__(self, setup: Setup, rank: int = 0, group: Any = None) -> None:
        torch.set_num_threads(setup.threads)
        self.setup, self.rank, self.group = setup, rank, group
        self.cuda = setup.device.startswith("cuda")
        self.device = f"cuda:{rank}" if setup.device == "cuda" or (self.cuda and setup.tp > 1) else setup.device
        if self.cuda:
            torch.cuda.set_device(self.device)
        self.dtype = DTYPES[setup.dtype]
        self.shard = Shard(setup.arch, setup.tp)
        with torch.no_grad():
            self.weights = Weights(self.shard, setup.held, self.dtype, self.device, setup.seed + rank)
        self.remote: Remote | None = None
        self.cold = True

    def close(self) -> None:
        """Stop the attention process, if one runs."""
        if self.remote is not None:
            self.remote.close()
            self.remote = None

    def measure(self, point: Point) -> Timing:
        """Build, warm up and time a point's step."""
        return self._measured([point])[0]

    def compare(self, point: Point) -> tuple[Timing, Timing]:
        """An offloaded point with its transfers beside the computation, and before it.

        Both are timed in turns with the step whose KV is all resident, so that what slows the machine for a while
        slows all three; the first timing has the medians of the others.
        """
        serial, resident = replace(point, schedule="serial"), replace(point, family="high_end", alpha=0.0)
        first, second, third = self._measured([point, serial, resident])
        return replace(first, resident_s=third.median_s, serial_s=second.median_s), second

    def _measured(self, several: list[Point]) -> list[Timing]:
        """Steps of points of one shape over the same buffers, each repeated in turn."""
        steps: list[Step] = []
        with torch.no_grad():
            try:
                for point in several:
                    steps.append(Step(self, point, steps[0] if steps else None))
                return self._time(steps)
            finally:
                for step in steps:
                    step.close()
                steps.clear()
                devices.give_back(self.device)  # a graph's memory and the pinned host memory are the next point's

    def _time(self, steps: list[Step]) -> list[Timing]:
        graphs = self._graphs(steps)
        runs = graphs or [step.run for step in steps]
        slowest = 0.0
        for run, step in zip(runs, steps, strict=True):
            least = self._seconds(run, step)
            again = self._agreed(int(np.clip(WARM_UP_S / least, WARM_UP, 200)) if self.cold else WARM_UP)
            self.cold = False
            slowest += min(least, *(self._seconds(run, step) for _ in range(again)))
        share = self.setup.seconds_per_point * len(steps) / max(slowest, 1e-6)
        repeats = self._agreed(int(np.clip(share, LEAST_REPEATS, self.setup.repeats)))
        rounds = [[self._seconds(run, s) for run, s in zip(runs, steps, strict=True)] for _ in range(repeats)]
        found = []
        for seconds, step in zip(np.array(rounds).T, steps, strict=True):
            whole = self._scaled(seconds, step)
            p10, median, p90 = (float(q) for q in np.quantile(whole, [0.1, 0.5, 0.9]))
            found.append(Timing(median, p10, p90, repeats, graphs is not None, step.where))
        return found

    def _scaled(self, seconds: Array, step: Step) -> Array:
        """Layers left out cost as much as those run; embedding and head are there once, and are timed alone."""
        layers, run = self.setup.arch.layers, self.setup.run
        if run == layers:
            return seconds
        head = min(self._seconds(step.head, step) for _ in range(LEAST_REPEATS))
        whole: Array = head + (seconds - head) * layers / run
        return whole

    def _agreed(self, repeats: int) -> int:
        """The first rank's number, for every rank."""
        if self.group is None:
            return repeats
        value = torch.tensor([repeats], device=self.device)
        torch.distributed.broadcast(value, 0)
        return int(value.item())

    def _seconds(self, run: Callable[[], None], step: Step) -> float:
        step.before()
        if self.group is not None:
            torch.distributed.barrier()
        if self.cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def _graphs(self, steps: list[Step]) -> list[Callable[[], None]] | None:
        """The steps as CUDA graphs: all, for what is launched one by one cannot be held against what is not, or none.

        They share a pool: none runs beside another, and nothing in it outlives a replay.
        """
        if not (self.setup.graphs and self.cuda and all(step.in_graph for step in steps)):
            return None
        found: list[Callable[[], None]] = []
        try:
            pool = torch.cuda.graph_pool_handle()
            for step in steps:
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    step.run()
                torch.cuda.current_stream().wait_stream(side)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool):
                    step.run()
                found.append(graph.replay)
        except RuntimeError:  # something in it cannot be captured
            torch.cuda.synchronize()
            for step in steps:
                step.forget()
            return None
        return found


class Step:
    """One engine step of a point: static inputs and buffers, `run` as often as wanted.

    Steps of points of one shape, run in turns, share their buffers: those of the one given as `like`.
    """

    def __init__(self, session: Session, point: Point, like: Step | None = None) -> None:
        s, setup = session, session.setup
        self.session, self.point = session, point
        arch, device, dtype = setup.arch, s.device, s.dtype
        generator = torch.Generator().manual_seed(setup.seed)
        self.ids = torch.randint(0, arch.vocab // setup.tp, (point.tokens,), generator=generator).to(device)
        last = [(i + 1) * point.chunk - 1 for i in range(point.prefills)]
        last += range(point.prefills * point.chunk, point.tokens)
        self.last = torch.tensor(last).to(device)
        self.routing = Routing.drawn(arch, point.tokens, device, generator)
        self.rotary = Rotary(point, arch.head_dim, dtype, device)
        self.elsewhere = rows_elsewhere(point) if point.family == "ao" else 0
        kept = point.decodes - self.elsewhere if point.decodes else None
        self.attention = Attention(s.shard, point, device, kept=kept)
        self.buffers: list[torch.Tensor] = (
            [aligned(self.attention.elements, dtype, device).uniform_(-1.0, 1.0) for _ in s.weights.layers]
            if like is None
            else like.buffers
        )
        self.mover: Mover | None = self._mover(None if like is None else like.mover)
        self.in_graph = setup.tp == 1 and not self.elsewhere and (self.mover is None or self.mover.in_graph)
        self.where = self.mover.where if self.mover is not None else ""
        self.sent: list[Any] = []
        if self.elsewhere:
            if s.remote is None:
                # Beside a GPU the host's cores have nothing else to do.
                s.remote = Remote(setup.attention_device, setup.link, threads=setup.threads if s.cuda else 1)
            s.remote.begin(Task(arch, point, self.elsewhere, setup.held, setup.dtype, setup.link))
            self.where = s.remote.where

    def _mover(self, like: Mover | None) -> Mover | None:
        """What moves the offloaded prefix: of the new KV in a prefill, of the decoding requests' KV otherwise."""
        p = self.point
        if p.family not in ("kvo_ram", "kvo_disk"):
            return None
        total = self.attention.prefill_elements if p.prefills else self.attention.decode_elements
        part = max(1, round(p.alpha * total))
        views = [b[:part] for b in self.buffers]
        if p.family == "kvo_ram":
            host = like.host if isinstance(like, HostMemory) else None
            return HostMemory(views, bool(p.prefills), self.session.cuda, host)
        return Disk(views, bool(p.prefills), Path(self.session.setup.folder), self.session.cuda)

    def before(self) -> None:
        """Outside the measured time: make the disk cold."""
        if isinstance(self.mover, Disk):
            self.mover.forget()

    def forget(self) -> None:
        """Wait for nothing of a run that was broken off."""
        if self.mover is not None:
            self.mover.pending.clear()
        self.sent.clear()

    def close(self) -> None:
        """Give buffers, threads and files back."""
        if self.mover is not None:
            self.mover.close()
        if self.elsewhere and self.session.remote is not None:
            self.session.remote.end()

    def head(self) -> None:
        """Embedding and output head alone: what a model has once, whatever its layers."""
        x = fn.embedding(self.ids, self.session.weights.embedding)
        self._logits(x)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        w = self.session.weights
        return fn.linear(fn.rms_norm(x[self.last], w.norm.shape, w.norm), w.head)

    def run(self) -> None:
        """One step."""
        s = self.session
        weights, layers = s.weights, s.setup.run
        fetching = self.mover if self.mover is not None and not self.mover.write else None
        overlap = self.point.schedule == "overlap"
        if fetching is not None and overlap:
            for i in range(min(DEPTH, layers)):
                fetching.start(i)
        x = fn.embedding(self.ids, weights.embedding)
        for i in range(layers):
            if fetching is not None and not overlap:
                fetching.start(i)
                fetching.wait(i)
            layer = weights.layers[i % len(weights.layers)]
            x = x + self._reduced(
                self._attend(i, layer, fn.rms_norm(x, layer.norms[0].shape, layer.norms[0]), fetching)
            )
            if fetching is not None and overlap and i + DEPTH < layers:
                fetching.start(i + DEPTH)  # the buffer of layer i is free
            y = fn.rms_norm(x, layer.norms[1].shape, layer.norms[1])
            x = x + self._reduced(layer.feed_forward(y, self.routing))
        self._logits(x)
        if self.mover is not None:
            self.mover.drain()
        for future in self.sent:
            future.result()
        self.sent.clear()

    def _attend(self, i: int, layer: Any, x: torch.Tensor, fetching: Mover | None) -> torch.Tensor:
        shard, p, t = self.session.shard, self.point, x.shape[0]
        d, heads, kv = shard.arch.head_dim, shard.heads, shard.kv_heads
        q, k, v = fn.linear(x, layer.qkv).view(t, heads + 2 * kv, d).split([heads, kv, kv], dim=1)
        q, k = self.rotary.apply(q), self.rotary.apply(k)
        buffer = self.buffers[i % len(self.buffers)]
        if fetching is not None:
            fetching.wait(i)
        elif self.mover is not None:
            self.mover.wait(i - len(self.buffers))  # what this layer overwrites has gone out
        parts = []
        n = p.prefills * p.chunk
        if n:
            shape = (p.prefills, p.chunk, -1, d)
            parts.append(self.attention.prefill(q[:n].view(shape), k[:n].view(shape), v[:n].view(shape), buffer))
            parts[0] = parts[0].reshape(n, heads, d)
            self._stored(i, k, v)
        if p.decodes:
            m, remote = self.elsewhere, self.session.remote
            far = remote.attend(i, q[n : n + m], k[n : n + m], v[n : n + m]) if m and remote is not None else None
            if far is not None:
                near = [self.attention.decode(q[n + m :], k[n + m :], v[n + m :], buffer)] if m < p.decodes else []
                parts += [far.result(), *near]
            else:
                parts.append(self.attention.decode(q[n:], k[n:], v[n:], buffer))
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        return fn.linear(joined.reshape(t, heads * d), layer.out)

    def _stored(self, i: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """A prefill's offloaded KV goes out while later layers compute, or before they do."""
        serial = self.point.schedule == "serial"
        if self.mover is not None:
            self.mover.start(i)
            if serial:
                self.mover.wait(i)
        elif self.elsewhere and self.session.remote is not None:
            rows = self.elsewhere * self.point.chunk
            self.sent.append(self.session.remote.store(i, k[:rows], v[:rows]))

    def _reduced(self, x: torch.Tensor) -> torch.Tensor:
        """Summed over the ranks."""
        if self.session.group is not None:
            torch.distributed.all_reduce(x)
        return x
