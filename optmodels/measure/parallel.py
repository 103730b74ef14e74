"""Tensor parallelism: as many processes as ranks, nccl between GPUs, gloo between CPU processes."""

from __future__ import annotations

import multiprocessing as mp
import os
import socket
from dataclasses import replace
from datetime import timedelta
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
        "nccl" if cuda else "gloo", rank=rank, world_size=setup.tp, timeout=timedelta(seconds=300)
    )
    session = Session(setup, rank, torch.distributed.group.WORLD)
    pipe.send("ready")
    try:
        while (point := pipe.recv()) is not None:
            pipe.send(session.measure(point))
    except EOFError:
        pass
    session.close()
    torch.distributed.destroy_process_group()


class Group:
    """All ranks; measures a point as `Session` does."""

    def __init__(self, setup: Setup) -> None:
        context = mp.get_context("spawn")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        # Ranks on one CPU share its cores.
        each = replace(setup, threads=max(1, setup.threads // setup.tp))
        self.pipes, self.processes = [], []
        for rank in range(setup.tp):
            here, there = context.Pipe()
            process = context.Process(target=_rank, args=(rank, each, port, there), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)
        for pipe in self.pipes:
            pipe.recv()

    def measure(self, point: Point) -> Timing:
        """The first rank's timing; every rank waits for the slowest in its all-reduces."""
        for pipe in self.pipes:
            pipe.send(point)
        try:
            found: list[Timing] = [pipe.recv() for pipe in self.pipes]
        except EOFError:
            raise RuntimeError(f"a tensor-parallel rank ended while measuring {point}") from None
        return found[0]

    def close(self) -> None:
        """Stop the ranks."""
        for pipe in self.pipes:
            try:
                pipe.send(None)
            except OSError:
                continue
        for process in self.processes:
            process.join(timeout=10)
            if process.is_alive():
                process.terminate()
                process.join()


def opened(setup: Setup) -> Session | Group:
    """A session of one rank, or a group."""
    return Session(setup) if setup.tp == 1 else Group(setup)
