"""Attention of a part of the batch elsewhere (LP 13, 14): in another process over a link of stated bandwidth.

The worker keeps its part of the KV cache of every layer. For each decode step and layer it gets queries, keys and
values (the 4·h·b_w of Table V, fewer with grouped heads), attends, and sends the results back, while the main process
attends to the rest. A prefill sends the KV of its part layer by layer. Messages go through a pipe between processes of
this machine and are held back until `bytes/bandwidth + latency` after they were sent, both ways; bytes of an unstated
link go as fast as the pipe.

Where there is a second GPU the worker computes on it; the messages still pass through the host, as they would over a
network.
"""

from __future__ import annotations

import multiprocessing as mp
import struct
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from optmodels.catalog.types import Architecture
from optmodels.measure.grid import Point
from optmodels.measure.transformer import DTYPES, Attention, Shard

_HEADER = struct.Struct("<did")  # when it may be delivered, layer (−1: none), unused
_SPIN_S = 2e-4


@dataclass(frozen=True)
class Link:
    """What lies between the machines."""

    bytes_per_s: float | None = None
    latency_s: float = 0.0

    def deliver_at(self, size: int) -> float:
        """When a message sent now arrives; the monotonic clock is one for all processes of a machine."""
        return time.monotonic() + self.latency_s + (size / self.bytes_per_s if self.bytes_per_s else 0.0)


def _send(pipe: Any, link: Link, layer: int, data: Any) -> None:
    pipe.send_bytes(_HEADER.pack(link.deliver_at(len(data)), layer, 0.0))
    pipe.send_bytes(data)


def _receive(pipe: Any) -> tuple[int, bytes]:
    at, layer, _ = _HEADER.unpack(pipe.recv_bytes())
    data = pipe.recv_bytes()
    while (left := at - time.monotonic()) > 0:
        if left > _SPIN_S:
            time.sleep(left - _SPIN_S / 2)
    return layer, data


def _tensor(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)


def _flat(*parts: torch.Tensor) -> Any:
    """The bytes of tensors one after another."""
    joined = torch.cat([p.reshape(-1) for p in parts]).cpu()
    return joined.view(torch.uint8).numpy().data


@dataclass(frozen=True)
class Task:
    """What the worker has to know of a point: `rows` requests of it are the worker's."""

    arch: Architecture
    point: Point
    rows: int
    held: int
    dtype: str
    link: Link


def serve(pipe: Any, device: str, threads: int) -> None:
    """The worker: task after task until the pipe closes."""
    torch.set_num_threads(threads)
    with torch.no_grad():
        while True:
            try:
                _serve_task(pipe, device, pipe.recv())
            except (EOFError, OSError):
                return


def _serve_task(pipe: Any, device: str, task: Task) -> None:
    """One message for each layer of each step, until one without a layer."""
    shard, dtype = Shard(task.arch, 1), DTYPES[task.dtype]
    decoding = task.point.decodes > 0
    attention = Attention(shard, task.point, device, kept=task.rows if decoding else None)
    size = attention.elements if decoding else 0
    buffers = [torch.zeros(size, dtype=dtype, device=device) for _ in range(task.held)]
    d, kv, heads = task.arch.head_dim, shard.kv_heads, shard.heads
    pipe.send("ready")
    while True:
        layer, data = _receive(pipe)
        if layer < 0:
            return
        if not decoding:  # a prefill's KV has arrived
            _send(pipe, Link(), layer, b"")
            continue
        flat = _tensor(data, dtype, (task.rows, heads + 2 * kv, d)).to(device)
        q, k, v = flat.split([heads, kv, kv], dim=1)
        _send(pipe, task.link, layer, _flat(attention.decode(q, k, v, buffers[layer % task.held])))


class Remote:
    """The main process's side: a worker and its pipe."""

    def __init__(self, device: str, link: Link, threads: int = 1) -> None:
        context = mp.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.link = link
        self.process = context.Process(target=serve, args=(other, device, threads), daemon=True)
        self.process.start()
        other.close()
        self.pool = ThreadPoolExecutor(1)
        rate = f"{link.bytes_per_s * 8e-9:g} Gbit/s" if link.bytes_per_s else "no stated bandwidth"
        self.where = f"process on {device} over a pipe held back to {rate} + {link.latency_s * 1e6:g} µs"
        self.task: Task | None = None

    def begin(self, task: Task) -> None:
        """The worker makes room for a point's KV."""
        self.task = task
        self.pipe.send(task)
        if self.pipe.recv() != "ready":
            raise RuntimeError("the attention process did not get ready")

    def end(self) -> None:
        """The point is done."""
        _send(self.pipe, Link(), -1, b"")
        self.task = None

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Future[torch.Tensor]:
        """Queries, keys and values of the worker's requests, (n, heads, d) each; the results come later."""
        assert self.task is not None
        shape, dtype, device = tuple(q.shape), q.dtype, q.device
        data = _flat(torch.cat([q, k, v], dim=1))

        def exchange() -> torch.Tensor:
            _send(self.pipe, self.link, layer, data)
            return _tensor(_receive(self.pipe)[1], dtype, shape).to(device)

        return self.pool.submit(exchange)

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> Future[int]:
        """A prefill's keys and values of the worker's requests; done when they have arrived."""
        data = _flat(k, v)

        def exchange() -> int:
            _send(self.pipe, self.link, layer, data)
            return _receive(self.pipe)[0]

        return self.pool.submit(exchange)

    def close(self) -> None:
        """Stop the worker."""
        self.pipe.close()
        self.pool.shutdown()
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()


def rows_elsewhere(point: Point) -> int:
    """Requests of the batch whose attention goes elsewhere; a point's α is a whole number of them."""
    return round(point.alpha * (point.decodes + point.prefills))
