"""Serving strategies as latency curves over the offload ratio α (LLM-Pilot eqs 3–6 and 11–17), vectorised.

Every strategy of the paper has the same shape, so one data structure, `Curves`, holds any mix of them:

    TTFT(α)  = L·max(prefill work, α·prefill transfer)                       LP(4, 11, 13)
    T_dec(α) = base(l) + max_j line_j(l; α),  every part affine in l         LP(12, 14)
    TBT(α)   = L·(mean of T_dec over steps t = 1 … S_out−1, l_t = S_in + t, + W_q)   LP(5, 16)
    E2E(α)   = k·(TTFT + (S_out − 1)·TBT)                                    LP(3, 17)

The mean over steps is exact and costs no loop (`stepsum`). Two variants, by name:

* ``paper``: as printed. Decode neither reads the weights nor lets computation overlap memory; local and remote
  attention (LP 14) are pure FLOPs; the AO transfer in T_remote is D_ao(B), not D_ao(αB).
* ``roofline``: each pass takes max(FLOPs/peak, bytes/bandwidth), where the bytes include the weights (and of a
  MoE only the experts touched); a KV transfer overlaps both, as in LP(11); attention on either side of AO is
  itself a roofline and the transfer carries the offloaded queries. The output head is counted.

Convexity, which the formulation relies on. TTFT and T_dec are maxima of functions affine in α, hence convex, and
so is their sum over steps. Shared AO adds W_q = N·s²/(2(T − N·s)) (M/D/1 at ρ = N·s/T with T the mean decode time
of a layer, s the AO machine's mean service time, affine increasing in α). G(T, s) = T + W_q is jointly convex and
is non-decreasing in T exactly where T ≥ (N + √(N/2))·s, the *light* regime. T grows with α never faster than s, so
T − (N + √(N/2))·s falls strictly: the light regime is an interval [lo, α_h], T + W_q is convex on it, and beyond
α_h it increases. So cutting α at α_h loses no optimum, and every curve used is convex (tests/properties).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from optmodels.arrays import Array, Index
from optmodels.catalog.types import Gpu
from optmodels.latency.memory import kv_copies, pass_bytes, weight_bytes
from optmodels.latency.stepsum import BLOCK, sum_max_lines
from optmodels.latency.work import LayerWork

Variant = Literal["paper", "roofline"]
Family = Literal["high_end", "multi_pass", "kvo_ram", "kvo_disk", "ao", "ao_parallel", "ao_shared"]
# From simple to involved: among plans of equal objective the first is taken.
FAMILIES: tuple[Family, ...] = (
    "high_end",
    "multi_pass",
    "kvo_ram",
    "kvo_disk",
    "ao",
    "ao_parallel",
    "ao_shared",
)
FAMILY_TITLES: dict[str, str] = {
    "high_end": "High-end (no offload)",
    "multi_pass": "Multi-pass",
    "kvo_ram": "KV offload to RAM",
    "kvo_disk": "KV offload to disk",
    "ao": "Attention offload 1:1",
    "ao_parallel": "Attention offload, K pairs",
    "ao_shared": "Attention offload, N:1 shared",
}
AO_FAMILIES: frozenset[str] = frozenset({"ao", "ao_parallel", "ao_shared"})

LINES = 3
LOCAL, REMOTE, COMPUTE = range(LINES)  # what line_j stands for: local memory or attention, transfer, FLOPs


@dataclass(frozen=True)
class Hardware:
    """The machine as one replica of the model sees it, as arrays of one shape; NaN where unknown.

    A machine of g GPUs run as dp replicas of tp GPUs each gives a replica tp GPUs' compute, memory and host
    links and 1/dp of the machine's RAM, disk and network.
    """

    tp: Array
    flops: Array  # FLOP/s
    mem_bytes_per_s: Array
    vram_bytes: Array
    pcie_bytes_per_s: Array
    disk_bytes_per_s: Array
    net_bytes_per_s: Array
    link_bytes_per_s: Array
    ram_bytes: Array
    disk_bytes: Array

    @classmethod
    def of_gpu(cls, gpu: Gpu, flops: float, tp: Array, vram_bytes: Array | float = np.inf) -> Hardware:
        """Replicas of `tp` equal GPUs of `flops` FLOP/s each, of whose machine nothing else is known, (n,)."""
        unknown = np.full(len(tp), np.nan)
        return cls(
            tp=tp, flops=tp * flops, mem_bytes_per_s=tp * gpu.mem_bytes_per_s,
            vram_bytes=np.broadcast_to(vram_bytes, tp.shape).astype(float),
            pcie_bytes_per_s=tp * (gpu.pcie_bytes_per_s or np.nan),
            disk_bytes_per_s=unknown, net_bytes_per_s=unknown,
            link_bytes_per_s=np.full(len(tp), gpu.link_bytes_per_s), ram_bytes=unknown, disk_bytes=unknown,
        )  # fmt: skip

    def take(self, rows: Index) -> Hardware:
        """The hardware of the given rows."""
        return Hardware(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def share(self, parts: Array) -> Hardware:
        """1/parts of everything: an AO machine divided among the replicas of its main machine."""
        return Hardware(**{f.name: getattr(self, f.name) / parts for f in fields(self)})


@dataclass(frozen=True)
class Curves:
    """Latency curves of n configurations over α, with the α-range that their memory allows.

    Shapes (n,) unless stated; seconds, per layer before `layers` multiplies. α outside [alpha_lo, alpha_hi]
    does not fit memory; alpha_lo > alpha_hi means that no α does.
    """

    layers: int
    input_tokens: int
    output_tokens: int
    prefill: Array
    prefill_transfer: Array  # per unit α
    base: Array
    base_per_token: Array
    line: Array  # (n, 3): constant part of line_j at α = 0
    line_alpha: Array  # (n, 3): its slope in α
    line_per_token: Array  # (n, 3): part proportional to l at α = 0
    line_per_token_alpha: Array  # (n, 3)
    sharing: Array  # N main machines on one AO machine; 0 where there is no queue
    passes: Array  # k
    prefill_slope: Array  # β₁, β₀ of LP(18)
    prefill_intercept: Array
    decode_slope: Array
    decode_intercept: Array
    vram_fixed: Array  # weights + activations, bytes
    kv: Array  # KV cache at full length, bytes: (1−α) in VRAM
    vram: Array
    kv_host: Array  # the same where it is offloaded: α there
    host: Array  # where the offloaded part lives; 0 where nothing can be offloaded
    alpha_lo: Array
    alpha_hi: Array
    measured_e2e: Array | None = None  # (n,): measured rows keep their own E2E, whatever LP(3) makes of the rest

    def __len__(self) -> int:
        return len(self.prefill)

    def take(self, rows: Any) -> Curves:
        """The curves of the given rows."""
        taken = {name: getattr(self, name)[rows] for name in _ARRAYS}
        if self.measured_e2e is not None:
            taken["measured_e2e"] = self.measured_e2e[rows]
        return replace(self, **taken)

    @property
    def steps(self) -> int:
        """Decode steps after the first token."""
        return self.output_tokens - 1

    @property
    def mean_context(self) -> float:
        """Mean of l_t over the decode steps."""
        return self.input_tokens + (self.steps + 1) / 2

    def lines_at_mean(self, alpha: Array) -> Array:
        """line_j at the mean context, shape (n, 3)."""
        a = alpha[:, None]
        return (
            self.line + self.line_alpha * a + (self.line_per_token + self.line_per_token_alpha * a) * self.mean_context
        )

    def unqueued_decode(self, alpha: Array) -> Array:
        """Mean T_dec of a layer over the decode steps without waiting, seconds; alpha of shape (n,)."""
        if self.steps == 0:
            return np.zeros_like(self.base)
        a = alpha[:, None]
        total = sum_max_lines(
            self.line + self.line_alpha * a,
            self.line_per_token + self.line_per_token_alpha * a,
            self.input_tokens + 1,
            self.steps,
        )
        return self.base + self.base_per_token * self.mean_context + total / self.steps

    def service(self, alpha: Array) -> Array:
        """Mean service time 1/μ of the AO machine per layer and request, seconds (affine in α)."""
        fixed = self.line[:, REMOTE] + self.line_alpha[:, REMOTE] * alpha
        per_token = self.line_per_token[:, REMOTE] + self.line_per_token_alpha[:, REMOTE] * alpha
        return fixed + per_token * self.mean_context

    def load(self, alpha: Array) -> Array:
        """ρ = λ/μ of the shared AO machine: N requests per decode time of a layer (LP 16); 0 where not shared."""
        if self.steps == 0:
            return np.zeros_like(self.base)
        return self.sharing * self.service(alpha) / self.unqueued_decode(alpha)

    def ttft(self, alpha: Array) -> Array:
        """Time to first token of the last request served, seconds: later passes of LP(17) wait for earlier ones."""
        return self.metrics(alpha)[0]

    def _last_first_token(self, first: Array, one_pass: Array) -> Array:
        """TTFT of the last pass: the passes before it have to finish."""
        return first + np.where(self.passes > 1, (self.passes - 1) * np.where(self.passes > 1, one_pass, 0.0), 0.0)

    def _first_token(self, alpha: Array) -> Array:
        raw = self.layers * np.maximum(self.prefill, alpha * self.prefill_transfer)
        return self.prefill_slope * raw + self.prefill_intercept

    def tbt(self, alpha: Array) -> Array:
        """Mean time between tokens, seconds (LP 5); infinite where a shared AO machine is saturated (ρ ≥ 1)."""
        if self.steps == 0:
            return np.zeros_like(self.base) if self.measured_e2e is None else self.base.copy()
        decode = self.unqueued_decode(alpha)
        queued = self.sharing > 0
        if queued.any():
            service = self.service(alpha)
            busy = self.sharing * service
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                wait = busy * service / (2.0 * (decode - busy))  # = ρ/(2μ(1−ρ))
            decode = decode + np.where(queued, np.where(busy < decode, wait, np.inf), 0.0)
        return self.decode_slope * self.layers * decode + self.decode_intercept

    def e2e(self, alpha: Array) -> Array:
        """End-to-end latency of the whole batch, seconds (LP 3, 17)."""
        return self.metrics(alpha)[2]

    def metrics(self, alpha: Array) -> tuple[Array, Array, Array]:
        """(TTFT, TBT, E2E) in seconds at α, each of shape (n,); one evaluation of the sums."""
        first, tbt = self._first_token(alpha), self.tbt(alpha)
        one_pass = first + self.steps * tbt
        e2e = self.passes * one_pass if self.measured_e2e is None else self.measured_e2e
        return self._last_first_token(first, one_pass), tbt, e2e

    def balance(self) -> Array:
        """α that minimises max_j line_j at the mean context within the memory range: local = remote, clipped."""
        m = self.mean_context
        at_zero = self.line + self.line_per_token * m
        slope = self.line_alpha + self.line_per_token_alpha * m
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            crossing = (at_zero[:, LOCAL] - at_zero[:, REMOTE]) / (slope[:, REMOTE] - slope[:, LOCAL])
        return np.clip(np.nan_to_num(crossing, nan=0.0), self.alpha_lo, np.maximum(self.alpha_lo, self.alpha_hi))

    def lower_bounds(self) -> tuple[Array, Array, Array]:
        """Valid lower bounds on (TTFT, TBT, E2E) over every α in range, shape (n,).

        Jensen: the mean over steps of a maximum of lines is at least the maximum at the mean step, which `balance`
        minimises over α; waiting is at least zero; TTFT is non-decreasing in α.
        """
        lo = self.alpha_lo
        if self.measured_e2e is not None:
            return self.metrics(lo)
        first = self._first_token(lo)
        if self.steps == 0:
            return self.passes * first, np.zeros_like(first), self.passes * first
        decode = self.base + self.base_per_token * self.mean_context + self.lines_at_mean(self.balance()).max(axis=1)
        tbt = self.decode_slope * self.layers * decode + self.decode_intercept
        one_pass = first + self.steps * tbt
        return self._last_first_token(first, one_pass), tbt, self.passes * one_pass

    def cut_to_light_load(self) -> Curves:
        """Lower alpha_hi of shared rows to α_h, the end of the light regime: keeps every optimum, makes all convex.

        The rest of the light regime, f(α) = T(α) − (N + √(N/2))·s(α), is convex and falls, so α_h is found between
        chords: inside its ends a chord is above f, beyond them below.
        """
        rows = np.flatnonzero((self.sharing > 0) & (self.alpha_hi > self.alpha_lo))
        if self.steps == 0 or not len(rows):
            return self

        def left(part: Curves, alpha: Array) -> Array:
            margin = part.sharing + np.sqrt(part.sharing / 2)
            return part.unqueued_decode(alpha) - margin * part.service(alpha)

        alpha_hi = self.alpha_hi.copy()
        part = self.take(rows)
        at_hi = left(part, part.alpha_hi)
        heavy = np.flatnonzero(at_hi < 0)
        rows, part, at_hi = rows[heavy], part.take(heavy), at_hi[heavy]
        at_lo = left(part, part.alpha_lo)
        alpha_hi[rows] = part.alpha_lo
        some = np.flatnonzero(at_lo > 0)  # elsewhere the light regime ends at alpha_lo
        rows, part, at_lo, at_hi = rows[some], part.take(some), at_lo[some], at_hi[some]
        lo, hi, near = part.alpha_lo, part.alpha_hi, 1e-15
        for _ in range(50):
            if not (hi - lo > near).any():
                break
            chord = np.maximum(hi - (hi - lo) * at_hi / (at_hi - at_lo), np.minimum(lo + near, hi))
            before, at_before = hi, at_hi
            lo, at_lo, hi, at_hi = _narrowed(lo, at_lo, hi, at_hi, chord, left(part, chord))
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                beyond = hi - (before - hi) * at_hi / (at_before - at_hi)
            middle = (lo + hi) / 2
            x = np.where(beyond > lo, np.minimum(beyond, hi - near), middle)  # on the light side in spite of rounding
            near = min(4 * near, 1e-12)
            lo, at_lo, hi, at_hi = _narrowed(lo, at_lo, hi, at_hi, x, left(part, x))
        alpha_hi[rows] = lo
        return replace(self, alpha_hi=alpha_hi)

    def fastest_alpha(self) -> Array:
        """argmin of E2E over the α-range, shape (n,)."""
        return self._argmin("e2e")

    def calmest_alpha(self) -> Array:
        """argmin of TBT over the α-range, shape (n,)."""
        return self._argmin("tbt")

    def _argmin(self, metric: Literal["tbt", "e2e"], iterations: int = 48) -> Array:
        """Golden section; exact to 1e-10 of the range because the curves are convex on it."""
        best = self.alpha_lo.copy()
        movable = np.flatnonzero(self.alpha_hi > self.alpha_lo)
        for start in range(0, len(movable), BLOCK):
            rows = movable[start : start + BLOCK]
            best[rows] = self.take(rows)._golden(metric, iterations)
        return best

    def _golden(self, metric: Literal["tbt", "e2e"], iterations: int) -> Array:
        """`_argmin` where every row has a range."""
        ratio = (np.sqrt(5.0) - 1) / 2
        lo, hi = self.alpha_lo.copy(), self.alpha_hi.copy()
        x, y = hi - ratio * (hi - lo), lo + ratio * (hi - lo)
        value = getattr(self, metric)
        fx, fy = value(x), value(y)
        for _ in range(iterations):
            left = fx <= fy
            hi, lo = np.where(left, y, hi), np.where(left, lo, x)
            new = np.where(left, hi - ratio * (hi - lo), lo + ratio * (hi - lo))
            fnew = value(new)
            x, y = np.where(left, new, y), np.where(left, x, new)
            fx, fy = np.where(left, fnew, fy), np.where(left, fx, fnew)
        # The minimum may sit at an end of the range, or at the kink the balance point finds exactly.
        candidates = np.stack([(lo + hi) / 2, self.alpha_lo, self.alpha_hi, self.balance(), self.prefill_kink()])
        values = np.stack([value(c) for c in candidates])
        return candidates[values.argmin(axis=0), np.arange(len(self))]

    def prefill_kink(self) -> Array:
        """α where the prefill transfer overtakes the prefill work, clipped to the range."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            kink = self.prefill / self.prefill_transfer
        return np.clip(np.nan_to_num(kink, nan=0.0, posinf=1.0), self.alpha_lo, self.alpha_hi)

    def sublevel(self, metric: Literal["ttft", "tbt", "e2e"], limit: float, inside: Array) -> tuple[Array, Array]:
        """Ends of the α-interval around `inside` where the metric is at most `limit`; (inside, inside) if empty."""
        value = getattr(self, metric)
        ok = value(inside) <= limit
        ends = []
        for end in (self.alpha_lo, self.alpha_hi):
            good, bad = inside.copy(), end.copy()
            whole = value(end) <= limit
            good[whole] = end[whole]
            bad = np.where(ok, bad, good)  # nothing to find there
            for _ in range(50):
                if (good == bad).all():
                    break
                mid = (good + bad) / 2
                fits = value(mid) <= limit
                good, bad = np.where(fits, mid, good), np.where(fits, bad, mid)
            ends.append(np.where(ok, good, inside))
        return ends[0], ends[1]


_ARRAYS = tuple(
    f.name for f in fields(Curves) if f.name not in {"layers", "input_tokens", "output_tokens", "measured_e2e"}
)


def _narrowed(lo: Array, at_lo: Array, hi: Array, at_hi: Array, x: Array, at_x: Array) -> tuple[Array, ...]:
    """Brackets of roots, lo with a value ≥ 0 and hi with one below, after values at x between them."""
    light = at_x >= 0
    return (
        np.where(light, x, lo), np.where(light, at_x, at_lo), np.where(light, hi, x), np.where(light, at_hi, at_x),
    )  # fmt: skip


def concatenate(parts: list[Curves]) -> Curves:
    """All curves of several lists, in order."""
    columns: dict[str, Any] = {name: np.concatenate([getattr(p, name) for p in parts]) for name in _ARRAYS}
    return replace(parts[0], **columns)


@dataclass(frozen=True)
class BatchModel:
    """Common part of the curves of one workload: work, lengths, variant, memory rules."""

    work: LayerWork
    input_tokens: int
    output_tokens: int
    variant: Variant = "roofline"
    vram_usable: float = 1.0
    ram_usable: float = 1.0
    chunk_tokens: float = 8192.0
    runtime_bytes: float = 0.0  # of a GPU, the engine's memory besides weights, activations and cache
    alpha_min: float = 0.0  # of the families that offload
    alpha_max: float = 1.0

    def fixed_bytes(self, B: Any, tp: Any) -> Array:
        """All but the KV cache on the `tp` GPUs of a replica that B requests run on."""
        prompt = np.minimum(np.asarray(B, dtype=float) * self.input_tokens, self.chunk_tokens)
        fixed: Array = weight_bytes(self.work, tp) + pass_bytes(self.work, tp, prompt, B) + tp * self.runtime_bytes
        return fixed + B * self.work.layers * self.work.state_bytes

    def _decode_parts(self, hw: Hardware, B: Array, kv_token: Array) -> dict[str, Array]:
        """The elementary times of one decode step of one layer: per step, or per step and context token (`_l`).

        Where windows end, attention and KV read are a + b·l (`LayerWork.seen_line`). `kv_token`: bytes of KV cache of
        one token of each sequence in one layer.
        """
        w = self.work
        head = w.head_flops_per_token if self.variant == "roofline" else 0.0
        a, b = w.seen_line(self.input_tokens + 1, self.output_tokens - 1)
        attention, kv = B * w.attention_flops_per_pair / hw.flops, kv_token / hw.mem_bytes_per_s
        return {
            "linear": B * (w.linear_flops_per_token + head) / hw.flops,
            "attention": a * attention,
            "attention_l": b * attention,
            "kv": a * kv,
            "kv_l": b * kv,
            "state": 2.0 * B * w.state_bytes / hw.mem_bytes_per_s,
            "weights": w.weight_bytes_read(B) / hw.mem_bytes_per_s,
            "allreduce": self._allreduce(hw, B),
        }

    def _allreduce(self, hw: Hardware, tokens: Array) -> Array:
        """Two ring all-reduces of the hidden state per layer over tp GPUs, seconds (0 for tp = 1)."""
        return tokens * self.work.collective_bytes(hw.tp) / hw.link_bytes_per_s

    def _prefill(self, hw: Hardware, B: Array) -> Array:
        """Prefill of one layer without transfers: FLOPs/peak, under `roofline` at least reading the weights."""
        S = float(self.input_tokens)
        compute = self.work.prefill_flops(B, S) / hw.flops
        if self.variant == "roofline":
            compute = compute + B * self.work.head_flops_per_token / hw.flops
            compute = np.maximum(compute, self.work.weight_bytes_read(B * S) / hw.mem_bytes_per_s)
        return compute + self._allreduce(hw, B * S)

    def _curves(self, hw: Hardware, B: Array, **parts: Array) -> Curves:
        """Fill in the zero parts, the memory range and neutral calibration."""
        n = len(B)
        zero, one = np.zeros(n), np.ones(n)
        lines = np.zeros((n, LINES))
        w, total = self.work, float(self.input_tokens + self.output_tokens)
        kv = w.kv_cache_bytes(B, total)
        in_vram = kv * kv_copies(w, hw.tp)
        vram = hw.vram_bytes * self.vram_usable
        fixed = self.fixed_bytes(B, hw.tp)
        values: dict[str, Array] = {
            "prefill_transfer": zero, "base": zero, "base_per_token": zero,
            "line": lines, "line_alpha": lines, "line_per_token": lines, "line_per_token_alpha": lines,
            "sharing": zero, "passes": one, "prefill_slope": one, "prefill_intercept": zero,
            "decode_slope": one, "decode_intercept": zero,
            "vram_fixed": fixed, "kv": in_vram, "vram": vram, "kv_host": in_vram, "host": zero,
        } | parts  # fmt: skip
        offloads = values["host"] > 0
        values["alpha_lo"] = np.clip(
            1.0 - (values["vram"] - fixed) / in_vram, np.where(offloads, self.alpha_min, 0.0), None
        )
        values["alpha_hi"] = np.clip(values["host"] / values["kv_host"], 0.0, np.where(offloads, self.alpha_max, 1.0))
        return Curves(
            layers=w.layers, input_tokens=self.input_tokens, output_tokens=self.output_tokens, **values
        ).cut_to_light_load()

    def resident(self, hw: Hardware, B: Array, passes: Array) -> Curves:
        """No offloading, in `passes` micro-batches of B requests each (LP 17; passes = 1 is the high-end family)."""
        return self._offload(hw, B, np.full(len(B), np.inf), np.zeros(len(B)), passes=passes)

    def kv_offload(self, hw: Hardware, B: Array, io_bytes_per_s: Array, host_bytes: Array) -> Curves:
        """A fraction α of the KV cache in host RAM or on disk (LP 11, 12)."""
        return self._offload(hw, B, io_bytes_per_s, host_bytes)

    def _offload(self, hw: Hardware, B: Array, io: Array, host: Array, **parts: Array) -> Curves:
        kv_token = B * self.work.kv_bytes_per_token * kv_copies(self.work, hw.tp)
        p, m = self._decode_parts(hw, B, kv_token), kv_token / io
        a, b = self.work.seen_line(self.input_tokens + 1, self.output_tokens - 1)
        n = len(B)
        line, line_alpha = np.zeros((n, LINES)), np.zeros((n, LINES))
        per_token, per_token_alpha = np.zeros((n, LINES)), np.zeros((n, LINES))
        line[:, LOCAL], line_alpha[:, LOCAL] = p["kv"], -p["kv"]
        per_token[:, LOCAL], per_token_alpha[:, LOCAL] = p["kv_l"], -p["kv_l"]
        line_alpha[:, REMOTE], per_token_alpha[:, REMOTE] = a * m, b * m
        base, base_per_token = p["allreduce"], np.zeros(n)
        if self.variant == "paper":  # LP(12): compute, then the slower of the two readings
            base, base_per_token = base + p["linear"] + p["attention"], p["attention_l"]
        else:
            line[:, LOCAL] += p["weights"] + p["state"]
            line[:, COMPUTE], per_token[:, COMPUTE] = p["linear"] + p["attention"], p["attention_l"]
        return self._curves(
            hw, B, prefill=self._prefill(hw, B),
            prefill_transfer=self.work.seen(float(self.input_tokens)) * m,
            base=base, base_per_token=base_per_token, line=line, line_alpha=line_alpha,
            line_per_token=per_token, line_per_token_alpha=per_token_alpha, host=host, **parts,
        )  # fmt: skip

    def attention_offload(self, hw: Hardware, ao: Hardware, B: Array, sharing: Array) -> Curves:
        """Attention of αB queries on another machine (LP 13, 14); with N = `sharing` > 0 mains queueing (LP 16).

        B requests per main machine. K parallel pairs (LP 15) are this curve at B/K. The AO machine's GPUs share the
        queries, not the heads: it holds every KV head once.
        """
        w, once = self.work, B * self.work.kv_bytes_per_token
        p, q = self._decode_parts(hw, B, once * kv_copies(w, hw.tp)), self._decode_parts(ao, B, once)
        net = np.fmin(hw.net_bytes_per_s, ao.net_bytes_per_s)
        transfer = w.ao_bytes(B) / net
        n = len(B)
        line, line_alpha = np.zeros((n, LINES)), np.zeros((n, LINES))
        per_token, per_token_alpha = np.zeros((n, LINES)), np.zeros((n, LINES))
        if self.variant == "paper":
            base, kinds = p["linear"], ["attention"]
            line[:, REMOTE] = transfer
        else:
            base, kinds = np.maximum(p["linear"], p["weights"] + p["state"]), ["attention", "kv"]
            line_alpha[:, REMOTE] = transfer
        local, remote = (np.maximum.reduce([of[k] for k in kinds]) for of in (p, q))
        local_l, remote_l = (np.maximum.reduce([of[f"{k}_l"] for k in kinds]) for of in (p, q))
        line[:, LOCAL], line_alpha[:, LOCAL] = local, -local
        per_token[:, LOCAL], per_token_alpha[:, LOCAL] = local_l, -local_l
        line_alpha[:, REMOTE] += remote
        per_token_alpha[:, REMOTE] = remote_l
        return self._curves(
            hw, B, prefill=self._prefill(hw, B),
            prefill_transfer=w.ao_bytes(B, float(self.input_tokens)) / net,
            base=base + p["allreduce"], line=line, line_alpha=line_alpha,
            line_per_token=per_token, line_per_token_alpha=per_token_alpha,
            sharing=sharing, kv_host=w.kv_cache_bytes(B, float(self.input_tokens + self.output_tokens)),
            host=ao.vram_bytes * self.vram_usable / np.maximum(sharing, 1.0),
        )  # fmt: skip
