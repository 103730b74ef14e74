"""Hands for many solves: this process, spawned processes, or a Dask cluster, behind one loop.

HiGHS must not be forked after it has run, so processes are spawned; they end when the process that made them does,
however it ends.
"""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Protocol

from optmodels.errors import InputError, Mistake

QUEUED = 4  # solves handed out for each worker, so that none waits for the next
DIED = "the process that solved it died: out of memory, or killed"
CONNECT_S = 10
PATIENCE_S = 5

Work = Callable[[Any, Any], Any]
Batch = list[tuple[str, Any]]


class WorkerPool(Protocol):
    """Does work on items, in any order."""

    def run(self, work: Work, task: Any, items: Mapping[str, Any], failed: Callable[[str], Any]) -> Iterator[Batch]:
        """Results by name, as they come; `failed` makes one of a reason where a worker died over an item."""


class Here:
    """One after another in this process."""

    def run(self, work: Work, task: Any, items: Mapping[str, Any], failed: Callable[[str], Any]) -> Iterator[Batch]:
        """See `WorkerPool`."""
        for name, item in items.items():
            yield [(name, work(task, item))]


class Processes:
    """Spawned processes; work under way when one died is tried again alone, so that one bad item costs one row."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.executor = self._started(workers)

    @staticmethod
    def _started(workers: int) -> ProcessPoolExecutor:
        import multiprocessing

        return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_begin)

    def run(self, work: Work, task: Any, items: Mapping[str, Any], failed: Callable[[str], Any]) -> Iterator[Batch]:
        """See `WorkerPool`."""
        suspects: dict[str, Any] = {}
        waiting = iter(items.items())
        while True:
            try:
                yield from _windowed(self.executor, QUEUED * self.workers, work, task, waiting, suspects, failed)
            except BrokenProcessPool:
                self.executor = self._started(self.workers)
                for name, item in list(suspects.items()):
                    yield [(name, self._alone(work, task, item, failed))]
                suspects.clear()
                continue
            return

    def _alone(self, work: Work, task: Any, item: Any, failed: Callable[[str], Any]) -> Any:
        with self._started(1) as executor:
            try:
                with _sheltered():
                    future = executor.submit(work, task, item)
                return future.result()
            except BrokenProcessPool:
                return failed(DIED)

    def stop(self, now: bool) -> None:
        """End the processes; `now`: whatever they do."""
        if not now:
            self.executor.shutdown()
            return
        processes = getattr(self.executor, "_processes", None) or {}  # public from Python 3.14: terminate_workers
        for process in list(processes.values()):
            process.terminate()
        for process in list(processes.values()):
            process.join(PATIENCE_S)
            process.kill()
        self.executor.shutdown(wait=True, cancel_futures=True)


class DaskCluster:
    """Workers of a Dask scheduler, which sees to those that die."""

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise InputError(Mistake(None, "scheduler", address, "pip install 'optmodels[cluster]' first")) from None
        try:
            self.client = Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            reason = str(error).split("\n")[0]
            raise InputError(Mistake(None, "scheduler", address, f"a Dask scheduler that answers ({reason})")) from None

    def run(self, work: Work, task: Any, items: Mapping[str, Any], failed: Callable[[str], Any]) -> Iterator[Batch]:
        """See `WorkerPool`."""
        if not self.client.ncores():
            raise InputError(Mistake(None, "scheduler", self.client.scheduler.address, "a scheduler with workers"))
        executor = self.client.get_executor(pure=False)
        workers = sum(self.client.ncores().values())
        yield from _windowed(executor, QUEUED * workers, work, task, iter(items.items()), {}, failed)

    def stop(self, now: bool) -> None:
        """Cancel work under way and let go of the cluster."""
        self.client.close(timeout=CONNECT_S)


def _windowed(
    executor: Executor, window: int, work: Work, task: Any, items: Iterator[tuple[str, Any]],
    under_way: dict[str, Any], failed: Callable[[str], Any],
) -> Iterator[Batch]:  # fmt: skip
    """Keep a window of items handed out; yield finished items, all at once. `under_way` names the others."""
    futures: dict[Future[Any], str] = {}

    def hand_out(count: int) -> None:
        for name, item in itertools.islice(items, count):
            under_way[name] = item
            with _sheltered():
                futures[executor.submit(work, task, item)] = name

    hand_out(window)
    while futures:
        done, _ = wait(futures, return_when=FIRST_COMPLETED)
        batch = []
        for future in done:
            name = futures[future]
            try:
                batch.append((name, future.result()))
            except BrokenProcessPool:
                continue
            except Exception as error:
                batch.append((name, failed(f"{type(error).__name__}: {error}")))
            del futures[future], under_way[name]
        if batch:
            yield batch
        if any(f in futures for f in done):
            raise BrokenProcessPool(DIED)
        hand_out(len(done))


@contextmanager
def pool(workers: int, scheduler: str | None) -> Iterator[WorkerPool]:
    """Hands for the work; local processes are stopped on the way out.

    Raises:
        InputError: no scheduler at the address.
    """
    if scheduler is None and workers == 1:
        yield Here()
        return
    started = Processes(workers) if scheduler is None else DaskCluster(scheduler)
    try:
        yield started
    except BaseException:
        started.stop(now=True)
        raise
    started.stop(now=False)


@contextmanager
def _sheltered() -> Iterator[None]:
    """Processes started inside never see Ctrl-C, not even before `_begin`; here it waits until the end."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    with _deferred():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which processes inherit
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _deferred() -> Iterator[None]:
    """Ctrl-C waits until the end: a thread of NumPy's, which blocks no signal, hears it for the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = threading.Event()
    usual = signal.signal(signal.SIGINT, lambda signum, frame: heard.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if heard.is_set():
            signal.raise_signal(signal.SIGINT)


def _begin() -> None:
    """In a new process: end with the parent or when told to, cleaning up, and leave Ctrl-C to the parent."""
    import multiprocessing

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _end(signum: int, frame: Any) -> None:
    """End without unwinding, which would go through the solver; Pyomo's locks are given back."""
    atexit._run_exitfuncs()
    os._exit(1)
