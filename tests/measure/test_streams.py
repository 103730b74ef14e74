"""The order that the step asks of a GPU, checked without one: happens-before over the operations it really issues.

Streams, events and graphs are replaced by ones that keep vector clocks. Operations run at once, on the CPU, and are
noted with their stream and with the buffers they read and write. Two accesses to one buffer, one of them a write, that
nothing orders are a race: on a GPU attention would read keys that have not arrived. A graph refuses what CUDA's capture
refuses.
"""

from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from optmodels.catalog.types import Architecture, MoE  # noqa: E402
from optmodels.measure import offload  # noqa: E402
from optmodels.measure.grid import Point  # noqa: E402
from optmodels.measure.session import Session, Setup, Step  # noqa: E402

LAYERS = 5
ARCH = Architecture(
    title="tiny", layers=LAYERS, hidden=64, heads=8, kv_heads=2, head_dim=8, ffn=96, ffn_matrices=3, vocab=128,
    max_positions=4096,
)  # fmt: skip


@dataclass
class Timeline:
    """A stream or a thread of the host: its clock, and whether a graph is capturing it."""

    name: str
    clock: dict[str, int] = field(default_factory=dict)
    capture: object = None

    def join(self, other):
        for name, tick in other.items():
            self.clock[name] = max(self.clock.get(name, 0), tick)

    def tick(self):
        self.clock[self.name] = self.clock.get(self.name, 0) + 1
        return self.clock[self.name]


@dataclass(frozen=True)
class Access:
    """One operation."""

    what: str
    where: str
    tick: int
    after: dict[str, int]
    reads: frozenset[int]
    writes: frozenset[int]

    def before(self, other):
        return other.after.get(self.where, 0) >= self.tick

    def unordered(self, other):
        return not self.before(other) and not other.before(self)

    @property
    def moves(self):
        return self.where != "default"


class Gpu(TorchDispatchMode):
    """What stands for torch.cuda."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.default = Timeline("default")
        self.streams = {"default": self.default}
        self.host = Timeline("host")
        self.current = self.default
        self.capture = None
        self.noted: list[Access] = []
        gpu = self

        class Stream:
            def __init__(self, line=None):
                self.line = line or gpu.streams.setdefault(f"s{len(gpu.streams)}", Timeline(f"s{len(gpu.streams)}"))

            def wait_event(self, event):
                if gpu.capture is not None and event.capture is not gpu.capture:
                    raise RuntimeError("an event from outside the capture")
                self.line.join(event.clock)
                self.line.capture = event.capture

            def wait_stream(self, other):
                event = Event()
                event.record(other)
                self.wait_event(event)

            def synchronize(self):
                gpu.refuse_in_capture()
                gpu.host.join(self.line.clock)

        class Event:
            def record(self, stream=None):
                line = (stream or Stream(gpu.current)).line
                line.join(gpu.host.clock)
                self.clock, self.capture = dict(line.clock), line.capture

            def synchronize(self):
                gpu.refuse_in_capture()
                gpu.host.join(self.clock)

        class Graph:
            def replay(self):
                pass

        @contextmanager
        def stream(s):
            before, gpu.current = gpu.current, s.line
            yield
            gpu.current = before

        @contextmanager
        def graph(g, pool):
            assert pool == "pool"
            line = gpu.streams.setdefault("capture", Timeline("capture"))
            gpu.capture = line.capture = g
            since = len(gpu.noted)
            try:
                with stream(Stream(line)):
                    yield
            finally:
                gpu.capture = None
                for s in gpu.streams.values():
                    s.capture = None
            if any(line.clock.get(a.where, 0) < a.tick for a in gpu.noted[since:]):
                raise RuntimeError("work that was not joined")

        for name, value in {
            "Stream": Stream, "Event": Event, "CUDAGraph": Graph, "stream": stream, "graph": graph,
            "current_stream": lambda: Stream(gpu.current), "synchronize": self.synchronize,
            "graph_pool_handle": lambda: "pool",
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(offload, "pinned", lambda n, dtype: offload.aligned(n, dtype, "cpu"))
        monkeypatch.setattr(offload, "_worker", lambda: Worker(gpu))
        whole = offload._whole

        def transfer(call, file, view, offset):
            here = frozenset({torch.frombuffer(view, dtype=torch.uint8).data_ptr()})
            reads = call is not offload.os.pwritev
            gpu.note("file", gpu.host, frozenset() if reads else here, here if reads else frozenset())
            whole(call, file, view, offset)

        monkeypatch.setattr(offload, "_whole", transfer)

    def refuse_in_capture(self):
        if self.capture is not None:
            raise RuntimeError("the host waits while a graph is captured")

    def synchronize(self):
        self.refuse_in_capture()
        for s in self.streams.values():
            self.host.join(s.clock)

    def note(self, what, line, reads, writes):
        line.join(self.host.clock)  # nothing runs before it was issued
        if self.capture is not None and line.capture is not self.capture:
            raise RuntimeError(f"{what} on a stream that is not part of the capture")
        tick = line.tick()
        self.noted.append(Access(what, line.name, tick, dict(line.clock), reads, writes))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        schema = func._schema
        if func is torch.ops.aten.set_.source_Storage_storage_offset or any(
            r.alias_info is not None and not r.alias_info.is_write for r in schema.returns
        ):
            return found  # a view touches nothing
        reads, writes = set(), set()
        for argument, value in zip(schema.arguments, args, strict=False):
            for t in value if isinstance(value, list | tuple) else [value]:
                if isinstance(t, torch.Tensor):
                    written = argument.alias_info is not None and argument.alias_info.is_write
                    (writes if written else reads).add(t.untyped_storage().data_ptr())
        if reads | writes:
            self.note(str(func), self.current, frozenset(reads), frozenset(writes))
        return found


class Worker:
    """A thread that the host does not wait for; what it does is done at once, and ordered by clocks alone."""

    def __init__(self, gpu):
        self.gpu, self.line = gpu, Timeline(f"thread {id(self)}")

    def submit(self, call, *arguments):
        gpu = self.gpu
        self.line.join(gpu.host.clock)
        host, current = gpu.host, gpu.current
        gpu.host, gpu.current = self.line, gpu.default
        try:
            value = call(*arguments)
        finally:
            gpu.host, gpu.current = host, current
        done = dict(self.line.clock)

        class Done(Future):
            def result(self, timeout=None):
                gpu.host.join(done)
                return value

        return Done()

    def shutdown(self):
        pass


def races(gpu, buffers):
    """Pairs of unordered accesses to the buffers that the step keeps, one of the two a write."""
    mine = [a for a in gpu.noted if (a.reads | a.writes) & buffers]
    return [
        (a, b)
        for i, a in enumerate(mine)
        for b in mine[i + 1 :]
        if ((a.writes & (b.reads | b.writes)) | (a.reads & b.writes)) & buffers and a.unordered(b)
    ]


def run(gpu, point, folder, times=2):
    """The buffers that the step keeps, after so many runs of it."""
    session = Session(Setup(ARCH, held=offload.DEPTH, run=LAYERS, folder=str(folder)))
    session.cuda = True
    with torch.no_grad():
        step = Step(session, point)
        kept = [*step.buffers, *getattr(step.mover, "host", []), *getattr(step.mover, "staging", [])]
        with gpu:
            for _ in range(times):
                step.run()
                gpu.synchronize()
        step.close()
        return frozenset(b.untyped_storage().data_ptr() for b in kept)


POINTS = {"fetch": Point(decodes=3, context=40), "store": Point(prefills=2, chunk=24)}


def offloaded(phase, family, schedule):
    return replace(POINTS[phase], family=family, alpha=1.0, schedule=schedule)


@pytest.mark.parametrize("schedule", ["overlap", "serial"])
@pytest.mark.parametrize("family", ["kvo_ram", "kvo_disk"])
@pytest.mark.parametrize("phase", POINTS)
def test_nothing_is_used_before_it_is_there_and_only_serial_transfers_wait(
    phase, family, schedule, tmp_path, monkeypatch
):
    gpu = Gpu(monkeypatch)
    buffers = run(gpu, offloaded(phase, family, schedule), tmp_path)
    moves = [a for a in gpu.noted if a.moves and (a.reads | a.writes) & buffers]
    computing = [a for a in gpu.noted if not a.moves]
    assert len(moves) == 2 * LAYERS * (1 if family == "kvo_ram" else 2)  # to disk through a pinned buffer
    assert not races(gpu, buffers)
    beside = [(m.what, m.where, m.tick, c.what, c.tick) for m in moves for c in computing if m.unordered(c)]
    assert bool(beside) == (schedule == "overlap"), beside


@pytest.mark.parametrize("phase", POINTS)
def test_the_check_finds_a_step_that_does_not_wait(phase, tmp_path, monkeypatch):
    gpu = Gpu(monkeypatch)
    if phase == "fetch":
        monkeypatch.setattr(offload.Mover, "wait", lambda self, i: None)
    else:  # a copy that does not wait for what it copies
        monkeypatch.setattr(torch.cuda.Stream, "wait_stream", lambda self, other: None)
    assert races(gpu, run(gpu, offloaded(phase, "kvo_ram", "overlap"), tmp_path, times=1))


@pytest.mark.parametrize(("family", "captured"), [("kvo_ram", True), ("kvo_disk", False)])
@pytest.mark.parametrize("phase", POINTS)
def test_a_point_its_control_and_the_resident_step_are_graphs_together_or_not_at_all(
    phase, family, captured, tmp_path, monkeypatch
):
    gpu = Gpu(monkeypatch)
    session = Session(Setup(ARCH, held=LAYERS, run=LAYERS, repeats=3, folder=str(tmp_path)))
    session.cuda = True
    with gpu:
        beside, before = session.compare(offloaded(phase, family, "overlap"))
        assert (beside.graph, before.graph) == (captured, captured)
        assert session.measure(POINTS[phase]).graph
        assert session.measure(Point(prefills=1, chunk=8, earlier=16, decodes=2, context=30)).graph
        # What cannot be captured is measured all the same.
        monkeypatch.setattr(offload.Mover, "drain", lambda self: None)
        if family == "kvo_ram" and phase == "store":
            assert not session.compare(offloaded(phase, family, "overlap"))[0].graph


def test_experts_are_captured_too(tmp_path, monkeypatch):
    gpu = Gpu(monkeypatch)
    routed = ARCH.model_copy(update={"moe": MoE(experts=4, active=2, expert_ffn=32)})
    session = Session(Setup(routed, held=LAYERS, run=LAYERS, repeats=3))
    session.cuda = True
    with gpu:
        assert session.measure(Point(decodes=5, context=20)).graph
