"""Tensor parallelism: as many processes as ranks, nccl between GPUs, gloo between CPU processes."""

from __future__ import annotations

import multiprocessing as mp
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from optmodels.measure.grid import Point
from optmodels.measure.session import Session, Setup, Timing


def _rank(rank: int, setup: Setup, port: int, pipe: Any) -> None:
    import torch

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    cuda = setup.device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl" if cuda else "gloo", rank=rank, world_size=setup.tp, timeout=timedelta(seconds=300),
        device_id=torch.device("cuda", rank) if cuda else None,
    )  # fmt: skip

    def answered(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except torch.OutOfMemoryError as error:
            return MemoryError(str(error))

    session = answered(lambda: Session(setup, rank, torch.distributed.group.WORLD))
    pipe.send(session if isinstance(session, MemoryError) else "ready")
    try:
        while (point := pipe.recv()) is not None:
            pipe.send(answered(partial(session.measure, point)))
    except (EOFError, ConnectionError):
        pass
    session.close()
    torch.distributed.destroy_process_group()


class Group:
    """All ranks; measures a point as `Session` does."""

    alive = True

    def __init__(self, setup: Setup) -> None:
        context = mp.get_context("spawn")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        # Ranks on one CPU share its cores.
        each = replace(setup, threads=max(1, setup.threads // setup.tp))
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(setup.tp):
            here, there = context.Pipe()
            process = context.Process(target=_rank, args=(rank, each, port, there), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)
        self._answers()

    def measure(self, point: Point) -> Timing:
        """The first rank's timing; every rank waits for the slowest in its all-reduces.

        Raises:
            MemoryError: a rank ran out of memory.
            EOFError: a rank ended.
        """
        for pipe in self.pipes:
            pipe.send(point)
        found: Timing = self._answers()[0]
        return found

    def _answers(self) -> list[Any]:
        """What the ranks say, each once; as soon as one fails all end, for the others wait for it in an all-reduce."""
        found: dict[Connection, Any] = {}
        while len(found) < len(self.pipes):
            for pipe in wait([p for p in self.pipes if p not in found]):
                assert isinstance(pipe, Connection)
                try:
                    answer = pipe.recv()
                except (EOFError, ConnectionError):
                    answer = EOFError("a tensor-parallel rank ended")
                if isinstance(answer, Exception):
                    self.alive = False
                    self.close()
                    raise answer
                found[pipe] = answer
        return [found[pipe] for pipe in self.pipes]

    def close(self) -> None:
        """Stop the ranks."""
        for pipe in self.pipes:
            try:
                pipe.send(None)
            except OSError:
                continue
        for process in self.processes:
            process.join(timeout=10 if self.alive else 0)
            if process.is_alive():
                process.terminate()
                process.join()


def opened(setup: Setup) -> Session | Group:
    """A session of one rank, or a group."""
    return Session(setup) if setup.tp == 1 else Group(setup)
