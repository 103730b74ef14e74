"""LLMServingSim's profiles: kernels of one layer and of one shard, measured in vLLM, composed to whole steps.

Its profiler (casys-kaist/LLMServingSim, profiler/README.md; MIT) leaves ``HARDWARE/ORGANISATION/MODEL/VARIANT`` with
``meta.yaml`` and of every TP degree a folder ``tpN`` with ``attention.csv`` (the measured steps), ``dense.csv``,
``per_sequence.csv`` and, with experts, ``moe.csv``, each plain or gzipped; or the same names joined by ``__``. Give
``attention.csv`` or a folder above; the others are read next to it. A step of L layers (its profiler/models/*.yaml)

    embedding + L·(2 layernorm + qkv_proj + qk_norm + rotary_emb + attention + o_proj + MLP) + final_layernorm
    + lm_head + sampler,    MLP = gate_up_proj + act_fn + down_proj, or moe

takes its dense kernels at all tokens of the step, ``lm_head`` and ``sampler`` at its sequences, and ``moe`` at the
E·(1 − (1 − k/E)ⁿ) experts that n tokens touch in the mean; between measured sizes times are linear. Steps beyond the
range that a table reaches, or the GPUs' memory, are left out.

*Several GPUs.* A shard's kernels lack collectives. They are all-reduces of ``hardware.yaml`` of the profile, if it has
them among as many GPUs, two a layer and one of the embedding; else as the shipped engine coefficients state
(`resolve.collective_costs`). Where ``tpN`` has no ``moe.csv``, the one of ``tp1`` represents expert parallelism: a GPU
has 1/N of the experts and of their tokens.

*Not in it*: contexts of unlike lengths in one step (``skew.csv``), CUDA graphs, the scheduler.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from optmodels import catalog
from optmodels.arrays import Array, Mask
from optmodels.catalog.spelling import gpu, llm_of
from optmodels.catalog.types import Architecture
from optmodels.errors import InputError, Mistake
from optmodels.importers.source import ResultFile
from optmodels.io.read import read_document
from optmodels.latency.engines.document import deployment
from optmodels.latency.fit.measurements import Kind
from optmodels.latency.memory import kv_tokens
from optmodels.latency.resolve import collective_costs
from optmodels.latency.work import KvPrecision, Precision, layer_work
from optmodels.units import GIB

NAME = "llmservingsim"
TITLE = "LLMServingSim's profiler"
STEPS = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
LAYERS = {  # kernel → times a layer
    "layernorm": 2.0, "qkv_proj": 1.0, "qk_norm": 1.0, "rotary_emb": 1.0, "o_proj": 1.0, "gate_up_proj": 1.0,
    "act_fn": 1.0, "down_proj": 1.0,
}  # fmt: skip
ONCE = ("embedding", "final_layernorm")
SEQUENCES = ("lm_head", "sampler")
OTHERS = ({"layer", "tokens", "time_us"}, {"layer", "sequences", "time_us"}, {"tokens", "activated_experts", "time_us"})
STATE_BYTES = 2.0  # of an element that is reduced
MICRO = 1e-6


def detects(source: ResultFile) -> bool:
    """The columns of one of its tables."""
    return any(source.header >= columns for columns in ({*STEPS, "time_us"}, *OTHERS))


def within(folder: Path) -> list[Path]:
    """The tables of attention below a folder."""
    return sorted(p for p in folder.rglob("*attention.csv*") if re.fullmatch(r"(.*__)?attention\.csv(\.gz)?", p.name))


def read(
    source: ResultFile, fixed: Mapping[str, float], columns: Mapping[str, str]
) -> tuple[Kind, list[dict[str, Any]]]:
    """Every step whose attention was measured.

    Raises:
        InputError: another of its tables, a missing one, a bad cell, by line; a model that the catalogue does not have.
    """
    if not source.header >= {*STEPS, "time_us"}:
        raise source.wrong("", sorted(source.header), "attention.csv: the other tables are read beside it", 1)
    if {"layer", "decode_q_len"} & source.header:
        _only(source, {"layer": "attention", "decode_q_len": 1.0})
    about = _Profile(Path(source.name), source)
    p, k, n, c = (_column(source, name) for name in STEPS)
    tokens, sequences = p + n, n + (p > 0)
    if not (tokens > 0).all():
        raise source.wrong("n_decode", 0, "a prompt chunk or decoding requests", source.table[np.argmin(tokens)][0])
    seconds = MICRO * about.llm.layers * _column(source, "time_us", positive=True)
    dense, inside = _curves(about.table("dense"), "tokens"), np.ones(len(p), dtype=bool)
    mlp = {"gate_up_proj", "act_fn", "down_proj"}
    known = {*LAYERS, *ONCE} - (mlp if about.llm.moe is not None else set())
    for name in dense:
        if name not in known:
            raise source.wrong("dense.csv", name, f"kernels {', '.join(sorted(known))}: of other layers", 1)
    parts = [(dense, tokens, dict.fromkeys(ONCE, 1.0) | {x: w * about.llm.layers for x, w in LAYERS.items()})]
    parts.append((_curves(about.table("per_sequence"), "sequences"), sequences, dict.fromkeys(SEQUENCES, 1.0)))
    for curves, at, times in parts:
        for name, (sizes, each) in curves.items():
            seconds += MICRO * times.get(name, 0.0) * np.interp(at, sizes, each)
            inside &= (at >= sizes[0]) & (at <= sizes[-1])
    if about.llm.moe is not None:
        experts, reached = _experts(about, tokens)
        seconds, inside = seconds + experts, inside & reached
    if about.tp > 1:
        seconds = seconds + about.collectives(tokens)
    if not inside.all():
        source.notes.append(f"{(~inside).sum():,} steps of more tokens or sequences than measured left out")
    beyond = inside & (n * c + k + p > about.kv_tokens)
    if beyond.any():
        source.notes.append(f"{beyond.sum():,} steps over more than the {about.kv_tokens:,.0f} KV tokens left out")
    inside &= ~beyond
    values = {
        "prefill_tokens": p, "prefill_context_tokens": k, "prefill_requests": (p > 0) * 1.0, "decode_requests": n,
        "decode_context_tokens": c, "latency_s": seconds,
    }  # fmt: skip
    own = {"tp": float(about.tp), "model": about.name, "gpu": about.gpu, "engine": "vllm",
           "engine_version": about.version, "precision": about.variant}  # fmt: skip
    return "step", [{x: float(v[i]) for x, v in values.items()} | own for i in np.flatnonzero(inside)]


class _Profile:
    """The files next to a table of attention."""

    def __init__(self, path: Path, source: ResultFile) -> None:
        joined = re.fullmatch(r"(.*__)tp(\d+)__attention\.csv(\.gz)?", path.name)
        folder = re.fullmatch(r"tp(\d+)", path.resolve().parent.name)
        if joined is None and folder is None:
            raise source.wrong("", path.name, "tpN/attention.csv, or …__tpN__attention.csv", 1)
        self.path, self.source = path, source
        self.tp = int(joined[2] if joined is not None else folder[1] if folder is not None else 1)
        meta = path.with_name(f"{joined[1]}meta.yaml") if joined is not None else path.parent.parent / "meta.yaml"
        data, line = read_document(meta)
        self.name, self.hardware = (str(data.get(x) or "") for x in ("model", "hardware"))
        self.version, self.variant = (str(data.get(x) or "") for x in ("vllm_version", "variant"))
        found = _llm(self.name)
        if found is None:
            expected = "a model of the catalogue: optmodels list catalog"
            raise InputError(Mistake(str(meta), "model", self.name or None, expected, line(("model",))))
        self.key, self.llm = found
        self.gpu = str(gpu(self.hardware))

    @property
    def kv_tokens(self) -> float:
        """Of the deployment: layers were measured one by one, over more than all of them have room for."""
        if self.gpu not in catalog.gpus():
            return math.inf
        weights, _, cache = self.variant.partition("-kv")
        kinds: tuple[Precision, KvPrecision] = ("fp8" if weights == "fp8" else "fp16", "fp8" if cache else "fp16")
        return kv_tokens(layer_work(self.llm, *kinds), catalog.gpus()[self.gpu].usable_gib * GIB, self.tp)

    def table(self, name: str, tp: int | None = None, needed: bool = True) -> ResultFile | None:
        """One of the tables; None where it is not there and need not be."""
        stem = re.sub(r"attention\.csv(\.gz)?$", f"{name}.csv", self.path.name)
        here = self.path.with_name(stem)
        if tp is not None:
            here = Path(re.sub(rf"tp{self.tp}(?=__|/[^/]*$)", f"tp{tp}", here.as_posix()))
        for path in (here, here.with_name(here.name + ".gz")):
            if path.is_file():
                return ResultFile.of(path)
        if needed:
            raise InputError(Mistake(str(here), "", "no such file", f"the {name} kernels beside {self.path.name}"))
        return None

    def collectives(self, tokens: Array) -> Array:
        """Seconds of all-reduces among the GPUs in steps of this many tokens."""
        sizes = STATE_BYTES * self.llm.hidden * tokens
        for folder in (x for x in self.path.resolve().parents[1:5] if (x / "hardware.yaml").is_file()):
            data, _ = read_document(folder / "hardware.yaml")
            links = (data.get("measured") or {}).get("interconnect") or {}
            if links.get("npus") == self.tp:
                pairs = sorted(
                    (float(x["bytes"]), float(x["us"])) for x in links.get("samples", ())
                    if x.get("collective", "all_reduce") == "all_reduce"
                )  # fmt: skip
                if len(pairs) > 1:
                    at, each = np.array(pairs).T
                    slope = (each[-1] - each[-2]) / (at[-1] - at[-2])
                    times = np.interp(sizes, at, each) + slope * np.maximum(sizes - at[-1], 0.0)
                    self.source.notes.append("with the all-reduces of hardware.yaml")
                    return np.asarray(MICRO * (2.0 * self.llm.layers + 1.0) * times, dtype=float)
        if self.gpu not in catalog.gpus():
            self.source.notes.append(f"without all-reduces: {self.gpu} is no GPU of the catalogue")
            return np.zeros(len(tokens))
        costs = collective_costs(deployment("vllm", self.gpu, self.key, tp=self.tp))
        self.source.notes.append("with all-reduces by the shipped engine coefficients: the profile has none")
        return costs.fixed_s + costs.prompt_token_s * tokens


def _experts(about: _Profile, tokens: Array) -> tuple[Array, Mask]:
    """Seconds of the experts of steps of this many tokens, and where the table reaches."""
    from scipy.interpolate import RegularGridInterpolator

    moe = about.llm.moe
    assert moe is not None
    own = about.table("moe", needed=False)
    parts = 1.0 if own is not None else float(about.tp)
    source = own or about.table("moe", tp=1)
    assert source is not None
    if parts > 1:
        about.source.notes.append(f"experts spread over {about.tp} GPUs, by the moe table of one")
    cells: dict[float, dict[float, float]] = {}
    columns = [_column(source, x, positive=True).tolist() for x in ("tokens", "activated_experts", "time_us")]
    for (_, row), size, count, time_us in zip(source.table, *columns, strict=True):
        if row.get("ep") in (None, 1.0):
            cells.setdefault(size, {})[count] = time_us
    sizes, counts = sorted(cells), sorted({x for row in cells.values() for x in row})
    if len(sizes) < 2 or len(counts) < 2 or not cells[sizes[-1]].keys() >= {*counts}:
        raise source.wrong("activated_experts", None, "every number of experts at the most tokens, two of each", 1)
    table = np.array([[cells[s].get(x, np.nan) for x in counts] for s in sizes])
    for i in range(len(sizes) - 2, -1, -1):  # few tokens touch few experts: beyond these as at the next size
        last = int(np.flatnonzero(~np.isnan(table[i]))[-1])
        table[i, last + 1 :] = table[i, last] + table[i + 1, last + 1 :] - table[i + 1, last]
    each = np.maximum(tokens / parts, sizes[0])
    touched = moe.experts * (1.0 - (1.0 - moe.active / moe.experts) ** tokens) / parts
    at = np.column_stack([np.minimum(each, sizes[-1]), np.clip(touched, counts[0], counts[-1])])
    layers = about.llm.layers - moe.dense_layers
    seconds = MICRO * layers * RegularGridInterpolator((sizes, counts), table)(at)
    return np.asarray(seconds, dtype=float), np.asarray(each <= sizes[-1])


def _curves(source: ResultFile | None, by: str) -> dict[str, tuple[Array, Array]]:
    """Of each kernel its measured sizes and times, µs."""
    assert source is not None
    sizes, times = (_column(source, name, positive=True) for name in (by, "time_us"))
    names = np.array([str(row.get("layer")) for _, row in source.table])
    found = {}
    for name in dict.fromkeys(names.tolist()):
        mine = np.flatnonzero(names == name)
        mine = mine[np.argsort(sizes[mine], kind="stable")]
        found[name] = sizes[mine], times[mine]
    return found


def _column(source: ResultFile, name: str, positive: bool = False) -> Array:
    """A column of numbers ≥ 0, or above it.

    Raises:
        InputError: by line.
    """
    found = np.empty(len(source.table))
    for i, (line, row) in enumerate(source.table):
        value = row.get(name)
        if not isinstance(value, float) or value < 0 or (positive and value == 0):
            source.number(row, name, line, positive=positive)
        found[i] = value
    return found


def _only(source: ResultFile, wanted: Mapping[str, object]) -> None:
    """Refuse kernels and draft tokens that a step here does not have.

    Raises:
        InputError: by line.
    """
    for line, row in source.table:
        for name, value in wanted.items():
            if row.get(name) not in (None, value):
                raise source.wrong(name, row[name], f"{value}", line)


@cache
def _llm(name: str) -> tuple[str, Architecture] | None:
    """The catalogue's model of a checkpoint; dated ones that take longer inputs have the same layers."""
    key = llm_of(re.sub(r"-\d{4}$", "", name))
    return None if key is None else (key, catalog.llms()[key])
