"""KV that lives in host memory or on disk: fetched for each decode step, written out by a prefill (LP 11, 12).

`Mover.start(i)` begins moving layer i's part, `wait(i)` returns when a layer may use it, `drain()` when all is done.
On a GPU the copies run on a stream of their own from pinned memory; on a CPU a thread copies from a second buffer
(host memory is where everything is, so what is measured is the memory bus shared by both). Disk reads are real reads:
with O_DIRECT where the file system has it, else with the page cache dropped by advice before each step; `where` says
which. Two layers are in flight at most, as with a double buffer: a move begins
when the step has come to the point where it was asked for, which on a GPU the host reaches long before.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

PAGE = 4096
DEPTH = 2
HOST_BYTES = 1 << 30


def aligned(elements: int, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """An uninitialised buffer; on a CPU aligned to pages, so that direct reads may go there."""
    if torch.device(device).type == "cpu":
        size = max(PAGE, elements * dtype.itemsize)
        return torch.frombuffer(mmap.mmap(-1, -(-size // PAGE) * PAGE), dtype=dtype)[:elements]
    return torch.empty(elements, dtype=dtype, device=device)


def pinned(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Host memory that a GPU copies to and from by itself."""
    return torch.zeros(elements, dtype=dtype, pin_memory=True)


class Mover(ABC):
    """Moves a part of each layer's KV between the device and where it lives."""

    where = ""
    in_graph = False

    def __init__(self, buffers: list[torch.Tensor], write: bool, cuda: bool = False) -> None:
        self.buffers, self.write, self.cuda = buffers, write, cuda  # device side, one a held layer
        self.stream = torch.cuda.Stream() if cuda else None
        self.pending: dict[int, Any] = {}
        self.pool = None if cuda else _worker()

    @abstractmethod
    def start(self, i: int) -> None:
        """Begin layer i."""

    def wait(self, i: int) -> None:
        """Return (or make the device wait) until layer i has moved."""
        token = self.pending.pop(i, None)
        if isinstance(token, Future):
            token = token.result()
        if token is not None and self.cuda:
            torch.cuda.current_stream().wait_event(token)

    def drain(self) -> None:
        """Everything started has moved."""
        for i in list(self.pending):
            self.wait(i)

    def close(self) -> None:
        """Give back threads and files."""
        if self.pool is not None:
            self.pool.shutdown()


class HostMemory(Mover):
    """Pinned memory of the host behind a GPU; a second buffer where the device is the host."""

    in_graph = True

    def __init__(
        self, buffers: list[torch.Tensor], write: bool, cuda: bool = False, host: list[torch.Tensor] | None = None
    ) -> None:
        super().__init__(buffers, write, cuda)
        # As many as make HOST_BYTES, far more than any cache of the host; further layers use them again.
        count = min(len(buffers), max(1, -(-HOST_BYTES // (buffers[0].numel() * buffers[0].element_size()))))
        self.host = host or [
            pinned(b.numel(), b.dtype) if cuda else torch.zeros_like(b, device="cpu") for b in buffers[:count]
        ]
        self.where = "host memory, pinned, second stream" if self.cuda else "second buffer in memory, copying thread"

    def start(self, i: int) -> None:
        """Copy on the other stream, or thread."""
        near, far = self.buffers[i % len(self.buffers)], self.host[i % len(self.host)]
        source, target = (near, far) if self.write else (far, near)
        if self.pool is not None:
            self.pending[i] = self.pool.submit(target.copy_, source)
            return
        assert self.stream is not None
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            target.copy_(source, non_blocking=True)
            event = torch.cuda.Event()
            event.record(self.stream)
        self.pending[i] = event


class Disk(Mover):
    """A file; on a GPU through a pinned buffer."""

    def __init__(self, buffers: list[torch.Tensor], write: bool, folder: Path, cuda: bool = False) -> None:
        super().__init__(buffers, write, cuda)
        self.pool = self.pool or _worker()
        # Direct reads move whole pages: at least one, at most a page less than α asks for.
        self.bytes = [max(PAGE, b.numel() * b.element_size() // PAGE * PAGE) for b in buffers]
        self.staging = [
            pinned(n, torch.uint8) if cuda else _bytes_of(b, n) for b, n in zip(buffers, self.bytes, strict=True)
        ]
        self.offset = [sum(self.bytes[:i]) for i in range(len(self.bytes))]
        handle, name = tempfile.mkstemp(dir=folder, prefix=".optmodels-kv-")
        self.path = Path(name)
        with os.fdopen(handle, "wb") as stream:
            block = os.urandom(1 << 20)
            for _ in range(-(-sum(self.bytes) // len(block))):
                stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
        self.direct = True
        try:
            self.file = os.open(name, os.O_RDWR | os.O_DIRECT)
            os.preadv(self.file, [self.staging[0].numpy()[:PAGE]], 0)
        except (OSError, AttributeError):
            self.direct = False
            self.file = os.open(name, os.O_RDWR)
        self.where = "disk, O_DIRECT" if self.direct else "disk, page cache dropped by fadvise before each step"

    def forget(self) -> None:
        """Drop the file from the page cache, where direct access is not to be had."""
        if not self.direct:
            os.fsync(self.file)
            os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)

    def start(self, i: int) -> None:
        """Read or write in the thread."""
        ready = None
        if self.cuda:
            ready = torch.cuda.Event()
            ready.record(torch.cuda.current_stream())
        assert self.pool is not None
        self.pending[i] = self.pool.submit(self._move, i % len(self.buffers), ready)

    def _move(self, j: int, ready: Any) -> Any:
        view = memoryview(self.staging[j].numpy())
        if not self.cuda:
            _whole(os.pwritev if self.write else os.preadv, self.file, view, self.offset[j])
            return None
        ready.synchronize()  # the GPU is there: what is to be written has been computed, what is overwritten used
        device = _bytes_of(self.buffers[j], min(self.bytes[j], self.buffers[j].numel() * 2))
        staged = self.staging[j][: device.numel()]
        assert self.stream is not None
        with torch.cuda.stream(self.stream):
            if self.write:
                staged.copy_(device, non_blocking=True)
                self.stream.synchronize()
                _whole(os.pwritev, self.file, view, self.offset[j])
                return None
            _whole(os.preadv, self.file, view, self.offset[j])
            device.copy_(staged, non_blocking=True)
            event = torch.cuda.Event()
            event.record(self.stream)
            return event

    def close(self) -> None:
        """Remove the file."""
        super().close()
        with contextlib.suppress(OSError):
            os.close(self.file)
        self.path.unlink(missing_ok=True)


def _worker() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))


def _bytes_of(buffer: torch.Tensor, size: int) -> torch.Tensor:
    """The first `size` bytes from the start of a buffer; a buffer on a CPU is a whole number of pages long."""
    storage = buffer.untyped_storage()
    found = torch.empty(0, dtype=torch.uint8, device=buffer.device)
    return found.set_(storage, buffer.storage_offset() * buffer.element_size(), (size,))


def _whole(call: Any, file: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        moved = call(file, [view[done:]], offset + done)
        if moved <= 0:
            raise OSError(f"the KV file ended after {done} of {len(view)} bytes")
        done += moved
