"""The measured step computes what a transformer computes, wherever its KV and attention are."""

import json

import numpy as np
import pytest
from commands import python

torch = pytest.importorskip("torch")

from optmodels.catalog.types import Architecture, Gpu, MoE  # noqa: E402
from optmodels.errors import InputError  # noqa: E402
from optmodels.io.read import read_model  # noqa: E402
from optmodels.latency.calibration import Calibration  # noqa: E402
from optmodels.measure import campaign, predict, transformer  # noqa: E402
from optmodels.measure.grid import Grid, Point, points  # noqa: E402
from optmodels.measure.offload import Disk, HostMemory, aligned  # noqa: E402
from optmodels.measure.parallel import Group  # noqa: E402
from optmodels.measure.remote import Link, Remote, Task  # noqa: E402
from optmodels.measure.session import Session, Setup, Step  # noqa: E402
from optmodels.measure.transformer import Attention, Routing, Shard  # noqa: E402

TINY = Architecture(
    title="tiny", layers=4, hidden=64, heads=8, kv_heads=2, head_dim=8, ffn=96, ffn_matrices=3, vocab=128,
    max_positions=4096,
)  # fmt: skip
ROUTED = TINY.model_copy(update={"moe": MoE(experts=4, active=2, expert_ffn=32, shared_ffn=16, dense_layers=1)})


def reference(q, keys, values, visible):
    """Softmax attention by the book: (H, p, d) queries, (K, L, d) keys and values, (p, L) mask."""
    group = q.shape[0] // keys.shape[0]
    k, v = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    score = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
    return score.masked_fill(~visible, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("earlier", [0, 5])
def test_attention_is_softmax_attention_over_the_right_tokens(earlier):
    point = Point(prefills=2, chunk=3, earlier=earlier, decodes=4, context=6)
    shard = Shard(TINY, 1)
    attention = Attention(shard, point, "cpu")
    generator = torch.Generator().manual_seed(0)
    buffer = torch.randn(attention.elements, generator=generator)

    def rows(*shape):
        return torch.randn(*shape, generator=generator)

    q, k, v = rows(2, 3, 8, 8), rows(2, 3, 2, 8), rows(2, 3, 2, 8)
    out = attention.prefill(q, k, v, buffer)
    keys, values = buffer[: attention.prefill_elements].view(attention.prefill_shape)
    visible = torch.ones(3, earlier + 3, dtype=torch.bool).tril(earlier)
    for b in range(2):
        assert torch.equal(keys[b, :, earlier:], k[b].transpose(0, 1))
        wanted = reference(q[b].transpose(0, 1), keys[b], values[b], visible)
        torch.testing.assert_close(out[b].transpose(0, 1), wanted)

    q, k, v = rows(4, 8, 8), rows(4, 2, 8), rows(4, 2, 8)
    out = attention.decode(q, k, v, buffer)
    keys, values = buffer[attention.prefill_elements :].view(attention.decode_shape)
    for b in range(4):
        assert torch.equal(values[b, :, -1], v[b])
        wanted = reference(q[b][:, None], keys[b], values[b], torch.ones(1, 7, dtype=torch.bool))
        torch.testing.assert_close(out[b][:, None], wanted)


def test_routing_sends_every_token_to_its_experts_once():
    routing = Routing.drawn(ROUTED, 50, "cpu", torch.Generator().manual_seed(1))
    assert routing is not None
    assert sorted(routing.slot.tolist()) == list(range(100))
    assert torch.equal(routing.token, routing.slot // 2)
    groups = np.array(routing.groups)
    assert groups[0, 1] == 0 and groups[-1, 2] == 100 and (groups[1:, 1] == groups[:-1, 2]).all()
    for expert, first, last in routing.groups:  # never the same expert twice for one token
        assert len(set(routing.token[first:last].tolist())) == last - first, expert


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["one by one", "grouped kernel"])
@pytest.mark.parametrize("matrices", [2, 3])
def test_the_experts_are_a_weighted_sum_of_feed_forwards(dtype, matrices):
    shard = Shard(ROUTED.model_copy(update={"ffn_matrices": matrices}), 1)
    generator = torch.Generator().manual_seed(2)
    experts = transformer.Experts(shard, lambda *shape: (torch.randn(*shape, generator=generator) / 8).to(dtype))
    x = torch.randn(7, 64, generator=generator).to(dtype)
    routing = Routing.drawn(ROUTED, 7, "cpu", generator)
    assert routing is not None
    wanted = experts.shared.apply(x)
    weight = (x @ experts.router.T).topk(2, dim=-1).values.softmax(-1)
    chosen = {int(s): e for e, a, b in routing.groups for s in routing.slot[a:b]}
    for token in range(7):
        for j in range(2):
            e = chosen[2 * token + j]
            y = experts.up[e] @ x[token]
            y = y.relu() if matrices == 2 else torch.nn.functional.silu(y[:32]) * y[32:]
            wanted[token] += weight[token, j] * (experts.down[e] @ y)
    close = {} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(experts.apply(x, routing), wanted, **close)


@pytest.mark.parametrize("write", [False, True], ids=["fetch", "store"])
@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_movers_move_every_byte(kind, write, tmp_path):
    n = 3 * 4096
    buffers = [aligned(n, torch.bfloat16, "cpu") for _ in range(3)]
    for i, b in enumerate(buffers):
        b.fill_(float(i + 1))
    mover = HostMemory(buffers, write) if kind == "ram" else Disk(buffers, write, tmp_path)
    if kind == "ram":
        for h in mover.host:
            h.fill_(9.0)
    for i in range(5):  # layer i uses buffer i mod 3
        mover.start(i)
        mover.wait(i)
    mover.drain()
    if kind == "ram":
        here, there = (mover.host, buffers) if write else (buffers, mover.host)
        assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
        assert (buffers[0] == (1.0 if write else 9.0)).all()
    else:
        data = mover.path.read_bytes()
        assert len(data) >= 3 * 2 * n
        for i, b in enumerate(buffers):
            assert data[i * 2 * n : (i + 1) * 2 * n] == b.view(torch.uint8).numpy().tobytes()
    mover.close()
    assert not list(tmp_path.iterdir())


def test_attention_elsewhere_gives_the_same_result_and_takes_the_link_s_time():
    import time

    point = Point(decodes=4, context=10, family="ao", alpha=0.5)
    link = Link(bytes_per_s=1e6, latency_s=0.02)
    remote = Remote("cpu", link)
    try:
        remote.begin(Task(TINY, point, 2, 1, "bf16", link))
        q, k, v = (torch.randn(2, h, 8).to(torch.bfloat16) for h in (8, 2, 2))
        start = time.monotonic()
        far = remote.attend(0, q, k, v).result()
        seconds = time.monotonic() - start
        local = Attention(Shard(TINY, 1), point, "cpu", kept=2)
        near = local.decode(q, k, v, torch.zeros(local.elements, dtype=torch.bfloat16))
        torch.testing.assert_close(far, near)
        sent = 2 * (q.numel() + k.numel() + v.numel() + far.numel())
        assert seconds >= 2 * link.latency_s + sent / 1e6  # there and back
        remote.end()
    finally:
        remote.close()
    assert not remote.process.is_alive()


@pytest.mark.parametrize("arch", [TINY, ROUTED], ids=["dense", "moe"])
def test_offloaded_steps_compute_what_resident_ones_do(arch, tmp_path):
    """The logits do not depend on where KV lay before, as long as it has the same values."""
    session = Session(Setup(arch, held=4, run=4, folder=str(tmp_path)))
    seen = []
    try:
        for family in ("high_end", "kvo_ram", "kvo_disk"):
            for schedule in ("overlap", "serial"):
                point = Point(decodes=3, context=200, family=family, alpha=1.0 if family != "high_end" else 0.0,
                              schedule=schedule)  # fmt: skip
                with torch.no_grad():
                    step = Step(session, point)
                    for b in step.buffers:
                        b.fill_(0.25)
                    if isinstance(step.mover, HostMemory):
                        for h in step.mover.host:
                            h.fill_(0.25)
                        for b in step.buffers:
                            b.fill_(7.0)  # wrong until fetched
                    if isinstance(step.mover, Disk):
                        step.mover.path.write_bytes(
                            torch.full((4 * step.mover.bytes[0] // 2,), 0.25, dtype=torch.bfloat16).view(torch.uint8)
                            .numpy().tobytes()
                        )  # fmt: skip
                    found = []
                    step._logits = lambda x, found=found: found.append(x.clone())
                    step.run()
                    step.close()
                seen.append(found[0])
    finally:
        session.close()
    for other in seen[1:]:
        torch.testing.assert_close(other, seen[0], rtol=2e-2, atol=2e-2)


def test_points_cover_the_grid_and_state_the_alpha_they_have():
    grid = Grid.parse("batch=1,3 prompt=16 context=32,64 chunk=8")
    found = points(grid, offload=("ram", "ao"), alphas=(0.0, 0.5), schedules=("overlap", "serial"))
    assert len(found) == len(set(found))
    away = [p for p in found if p.family == "ao"]
    assert {p.alpha * (p.decodes + p.prefills) for p in away} == {2.0}  # of one request none, of three two
    assert {p.schedule for p in found if p.family == "kvo_ram"} == {"overlap", "serial"}
    assert all(p.alpha == 0 for p in found if p.family == "high_end")
    for bad in ("batch=0", "batch=x", "what=1", "batch"):
        with pytest.raises(InputError, match="--grid"):
            Grid.parse(bad)


def quick(**changes):
    return campaign.Campaign(
        arch=TINY, model="tiny", grid=Grid((1, 2), (16,), (16, 64), (8,)), repeats=3, threads=1, **changes
    )


def test_a_torn_journal_goes_on_where_it_stopped_and_another_command_is_refused(tmp_path, monkeypatch):
    journal = tmp_path / "j"
    measured = []
    whole = Session.measure

    def counted(self, point):
        if len(measured) == 3 and not journal.with_suffix(".over").exists():
            raise KeyboardInterrupt
        measured.append(str(point))
        return whole(self, point)

    monkeypatch.setattr(Session, "measure", counted)
    with pytest.raises(KeyboardInterrupt):
        campaign.measure(quick(), journal)
    text = journal.read_text()
    assert text.count("\n") == 5  # whose, probe, three points
    journal.write_text(text[:-20])  # the crash tore the last line
    journal.with_suffix(".over").touch()
    found = campaign.measure(quick(), journal)
    assert len(measured) == len(set(measured)) + 1  # only the torn point twice
    assert len(found.frame) == len(set(measured)) and not found.about["left_out"]
    with pytest.raises(InputError, match="journal of another measurement"):
        campaign.measure(quick(seed=1), journal)
    journal.write_text("nonsense\n")
    assert len(campaign.measure(quick(budget_s=600.0), journal).frame) == len(found.frame)


def test_without_time_nothing_is_measured_and_everything_named(tmp_path):
    found = campaign.measure(quick(budget_s=1e-9))
    assert found.frame.empty and set(found.about["left_out"].values()) == {"out of time"}


def test_what_cannot_be_measured_is_refused():
    from optmodels import catalog

    with pytest.raises(InputError, match="latent attention"):
        transformer.check(catalog.llms()["deepseek-v3"], (1,))
    with pytest.raises(InputError, match="divisor of 8 heads"):
        campaign.measure(quick(tps=(3,)))
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="CUDA device"):
            campaign.measure(quick(device="cuda"))


def test_layers_left_out_are_scaled_and_said(monkeypatch):
    """Head 2 s, three of twelve layers 1 s each: 2 + 12 × 1."""
    deep = TINY.model_copy(update={"layers": 12})
    session = Session(Setup(deep, held=3, run=3, repeats=3))
    monkeypatch.setattr(session, "_seconds", lambda run, step: 2.0 if run == step.head else 5.0)
    assert session.measure(Point(decodes=2, context=64)).median_s == pytest.approx(14.0)
    found = campaign.measure(quick(layers=2))
    assert found.about["layers"] == {"model": 4, "run": 2, "with_weights_of_their_own": 2, "scaled": True}


def test_a_point_and_its_control_are_timed_in_turns(monkeypatch):
    session = Session(Setup(TINY, held=2, run=4, repeats=3))
    seen = []

    def clock(run, step):
        seen.append((step.point.family, step.point.schedule))
        return {"high_end": 1.0}.get(step.point.family, 2.0 if step.point.schedule == "overlap" else 3.0)

    monkeypatch.setattr(session, "_seconds", clock)
    beside, before = session.compare(Point(decodes=2, context=64, family="kvo_ram", alpha=0.5))
    assert (beside.median_s, beside.resident_s, beside.serial_s, before.median_s) == (2.0, 1.0, 3.0, 3.0)
    turn = [("kvo_ram", "overlap"), ("kvo_ram", "serial"), ("high_end", "overlap")]
    assert seen[-9:] == 3 * turn
    session.close()


def test_two_ranks_measure_together():
    found = campaign.measure(quick(tps=(2,), max_tokens=8))  # decoding only
    assert set(found.frame["tp"]) == {2} and (found.frame["latency_s"] > 0).all()


def test_a_rank_that_ends_leaves_its_point_out_and_the_next_has_new_ranks(monkeypatch):
    whole = Group.measure
    pids = set()

    def killed(self, point):
        pids.update(p.pid for p in self.processes)
        if point.context == 64 and point.decodes == 2:
            self.processes[1].kill()
        return whole(self, point)

    monkeypatch.setattr(Group, "measure", killed)
    found = campaign.measure(quick(tps=(2,), max_tokens=8))
    assert found.about["left_out"] == {"decode 2 over 64, tp 2": "a process ended"}
    assert len(found.frame) == 4 and len(pids) in (2, 4)  # unless it was the last


def test_a_point_that_does_not_fit_after_all_is_left_out(monkeypatch):
    whole = Session.measure
    errors = iter([torch.OutOfMemoryError("no"), RuntimeError("CUDA error: out of memory"), MemoryError()] * 9)

    def measured(self, point):
        if point.context == 64:
            raise next(errors)
        return whole(self, point)

    monkeypatch.setattr(Session, "measure", measured)
    found = campaign.measure(quick())
    assert len(found.about["left_out"]) > 2 and 64 not in set(found.frame["decode_context_tokens"])
    assert set(found.about["left_out"].values()) == {"did not fit the device's memory"} and not found.frame.empty
    errors = iter([RuntimeError("CUDA error: an illegal memory access was encountered")])
    with pytest.raises(RuntimeError, match="illegal"):
        campaign.measure(quick())


def test_weights_that_do_not_fit_are_tried_once(monkeypatch):
    tried = []

    def never(self, *arguments):
        tried.append(arguments)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Session, "__init__", never)
    found = campaign.measure(quick())
    assert found.frame.empty and len(tried) == 1 and len(found.about["left_out"]) > 5


def test_from_box_to_plan(tmp_path):
    """measure → calibrate → solve, as a user types them."""

    def run(*words):
        done = python("-m", "optmodels", *words, cwd=tmp_path)
        assert done.status == 0, done.err
        return done

    (tmp_path / "tiny.yaml").write_text(json.dumps(TINY.model_dump(exclude_none=True)))
    done = run(
        "measure", "--model", "tiny.yaml", "--grid", "batch=1,4 prompt=16,64 context=16,512 chunk=16",
        "--offload", "ram", "--alpha", "0.5,1", "--repeats", "3", "--threads", "1", "--out", "steps.parquet", "--json",
    )  # fmt: skip
    document = json.loads(done.out)
    assert "measure: [1/" in done.err and not list(tmp_path.glob("*.journal"))
    assert {r["family"] for r in document["rows"]} == {"high_end", "kvo_ram"}
    assert document["device"]["torch"] == torch.__version__ and document["leaves_out"]

    run("calibrate", "steps.parquet", "--model", "additive", "--out", "steps.yaml")
    run("calibrate", "steps.parquet", "--model", "scaled", "--out", "calibration.yaml")
    gpu = {k: v for k, v in document["probe"]["gpu"].items() if k not in ("title", "source", "note")}
    instance = {
        "formulation": "cost_efficiency",
        "schema": 1,
        "name": "box",
        "model": TINY.model_dump(exclude_none=True),
        "workload": {"batch": 4, "input_tokens": 128, "output_tokens": 32},
        "slo": {"kind": "real_time", "tps": 0.1, "ttft_s": 60.0, "tbt_s": 60.0},
        "gpus": {"measured": gpu},
        "pool": {"machines": [
            {"machine": "box", "gpu": "measured", "vram_gib": 4, "ram_gib": 4, "prices": {"on_demand": 1}}
        ]},
        "latency": {"calibration": "calibration.yaml"},
        "strategies": {"families": ["high_end"]},
    }  # fmt: skip
    (tmp_path / "box.yaml").write_text(json.dumps(instance))
    solved = json.loads(run("solve", "box.yaml", "--json").out)
    assert solved["status"] == "optimal" and solved["check"]["ok"]
    # The plan's latencies are those of LP(18) for the predictions of the same curves.
    machine = predict.Machine(Gpu.model_validate(document["probe"]["gpu"]))
    coefficients = read_model(tmp_path / "calibration.yaml", Calibration)
    prefill = coefficients.find("measured", "high_end", "prefill")
    raw = predict.predicted(TINY, machine, Point(prefills=4, chunk=128))
    assert solved["plan"]["prediction"]["ttft_s"] == pytest.approx(prefill.slope * raw + prefill.intercept_s)
