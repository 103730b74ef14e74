"""Names that people and other tools give to entries of the catalogue: LLMs, GPUs, clouds, regions, precisions, markets.

``Qwen/Qwen3-32B-FP8``, ``QWEN3_32B`` and ``qwen3:32b`` name the LLM ``qwen3-32b``. Capitals, separators, publisher,
tuning and weight precision do not change a model's shape. Any other word names another model: a size, a length, a
version or a fine-tune is never dropped. Dates are dropped only where `same_shape.yaml` lists the checkpoint.

The instance schemas and the command line read every name through this module.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from optmodels import catalog
from optmodels.errors import Mistake

LIST = "optmodels list catalog"
NEAREST = 3  # names offered in place of an unknown one
Words = tuple[str, ...]


def squash(name: str) -> str:
    """Letters and digits of a name in lower case."""
    return re.sub(r"[^a-z0-9]+", "", name.lower())


# --- precisions -------------------------------------------------------------------------------------------------------

# A word of a checkpoint's name → weight precisions that it may mean, the usual one first.
_FORMATS: dict[str, tuple[str, ...]] = {
    "bf16": ("fp16",), "bfloat16": ("fp16",), "fp16": ("fp16",), "float16": ("fp16",), "f16": ("fp16",),
    "fp8": ("fp8", "fp8_block"), "float8": ("fp8", "fp8_block"), "nvfp4": ("fp4",), "fp4": ("fp4",),
    "mxfp4": ("mxfp4",), "int4": ("int4",), "awq": ("int4",), "gptq": ("int4", "int8"), "gptqmodel": ("int4", "int8"),
    "autoround": ("int4", "int8"), "w4a16": ("int4",),
    "int8": ("int8",), "w8a8": ("int8", "fp8"), "w8a16": ("int8",),
    "gguf": ("GGUF",), "bnb": ("bitsandbytes",), "nf4": ("bitsandbytes",), "mlx": ("MLX",), "exl2": ("EXL2",),
    "exl3": ("EXL3",), "hqq": ("HQQ",), "aqlm": ("AQLM",), "w4a8": ("W4A8",), "nvfp4a16": ("NVFP4A16",),
}  # fmt: skip
_DETAILS: dict[str, tuple[str, ...]] = {  # words next to a format that choose among its precisions
    "block": ("fp8_block",), "4bit": ("int4", "bitsandbytes", "MLX"), "8bit": ("int8", "fp8", "bitsandbytes", "MLX"),
}  # fmt: skip
_EXTRAS = {
    "dynamic", "static", "kv", "pertensor", "tensorwise", "channelwise", "e4m3", "g128", "128g", "sym", "asym", "ct",
    "marlin", "quantized", "quant", "preview", "v2",
}  # fmt: skip
_PLAIN_PRECISIONS = {
    "16bit": "fp16", "half": "fp16", "torchbfloat16": "fp16", "torchfloat16": "fp16", "fp8e4m3": "fp8",
    "fp8e4m3fn": "fp8", "e4m3": "fp8", "float8e4m3fn": "fp8", "fp8dynamic": "fp8",
    "fp8static": "fp8", "fp8block": "fp8_block", "blockfp8": "fp8_block", "gptqint4": "int4", "awqint4": "int4",
    "gptq4bit": "int4", "awq4bit": "int4", "int4awq": "int4", "gptq": "int4", "awqmarlin": "int4",
    "gptqmarlin": "int4", "modeloptfp4": "fp4",
    "modeloptfp8": "fp8", "w8a8fp8": "fp8",
}  # fmt: skip
_KV = {
    **dict.fromkeys(("auto", "bf16", "bfloat16", "fp16", "float16", "half", "16bit"), "fp16"),
    **dict.fromkeys(("fp8", "fp8e4m3", "fp8e5m2", "float8", "e4m3", "e5m2"), "fp8"), "int4": "int4",
}  # fmt: skip
_MODELLED = ("fp16", "fp8", "fp8_block", "fp4", "mxfp4", "int4")


def precision(name: Any) -> Any:
    """A weight precision by the optmodels name (``bf16`` → ``fp16``, ``w4a16`` → ``int4``); others unchanged."""
    if not isinstance(name, str) or name in _MODELLED:
        return name
    word = squash(name)
    known = _PLAIN_PRECISIONS.get(word) or _FORMATS.get(word, (None,))[0]
    return known if known in _MODELLED else name


def not_modelled(name: str) -> str | None:
    """What is expected in place of a weight format whose latencies are not modelled; None: it is, or is no format."""
    meant = _FORMATS.get(squash(name), (name,))
    known = {p for formats in _FORMATS.values() for p in formats} | {"several formats at once"}
    if meant[0] in _MODELLED or meant[0] not in known:
        return None
    return f"weights in {', '.join(_MODELLED)}: latencies of {meant[0]} are not modelled"


def kv_precision(name: Any) -> Any:
    """A KV-cache precision by the optmodels name (``auto``, ``bf16`` → ``fp16``, ``fp8_e5m2`` → ``fp8``)."""
    return _KV.get(squash(name), name) if isinstance(name, str) else name


# --- LLMs -------------------------------------------------------------------------------------------------------------

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*$")
_SNAPSHOT = re.compile(r"/(snapshots/[0-9a-f]+|(tree|resolve|blob)/[\w.-]+(/config\.json)?)$")  # of a repository
_TUNED = {"chat", "hf", "instruct", "it"}
_CLOSED = re.compile(
    r"^(chatgpt|gpt-?[345](?![0-9])|o[134](-|$)|claude|gemini|grok-?[345]|mistral-(medium|large-latest)|"
    r"qwen-?(max|plus|turbo|long)|nova-(micro|lite|pro|premier)|palm|command-a-|sonar)"
)


def _short(name: str) -> str:
    """The name in lower case with dashes, without publisher, folder and Hugging Face cache prefix."""
    folder = _SNAPSHOT.sub("", re.sub(r"[()]", " ", name).strip().rstrip("/"))
    short = folder.rpartition("/")[2]
    if short.startswith("models--"):
        short = short.rpartition("--")[2]
    short = short.removesuffix(":latest").strip()
    return re.sub(r"[\s_:]+", "-", short.lower()).replace("quantized.", "quantized-")


def _split(name: str) -> tuple[list[str], set[str] | None]:
    """A name's words without its weight format, and the precisions that the format may mean; None: it states none."""
    left: list[str] = []
    meant: set[str] | None = None
    described = False  # the word before belongs to a format
    for word in _short(name).split("-"):
        if word in _FORMATS:
            meant = set(_FORMATS[word]) if meant is None else meant & set(_FORMATS[word])
            described = True
        elif word in _DETAILS and meant is not None:
            meant &= set(_DETAILS[word])
        elif word in ("quantized", "quant") or (described and word in _EXTRAS):
            described = True
        elif word:
            left.append(word)
            described = False
    return left, meant


def _words(name: str) -> Words:
    """Letters and numbers of a name in turn, without tuning and format; neighbouring letters are one word."""
    text = "-".join(_split(name)[0]).removeprefix("meta-")
    found: list[str] = []
    for word in re.findall(r"[a-z]+|\d+", text):
        if word in _TUNED:
            continue
        if found and found[-1].isalpha() and word.isalpha():
            found[-1] += word
        else:
            found.append(word)
    return tuple(found)


@cache
def _known_llms() -> dict[Words, str]:
    same = catalog.same_shape()
    names = ((name, key) for key, llm in catalog.llms().items() for name in (key, llm.checkpoint, *same.get(key, ())))
    return {_words(name): key for name, key in names if name}


def _format(name: str) -> str | None:
    """The precision or format that a name's words mean together, empty if they contradict; None: it states none."""
    meant = _split(name)[1]
    if meant is None:
        return None
    words = _short(name).split("-")
    order = [p for word in words for p in (*_DETAILS.get(word, ()), *_FORMATS.get(word, ()))]
    return next((p for p in order if p in meant), "")


def llm_of(name: str) -> str | None:
    """The catalogue key of an LLM; None: unknown, closed, or in a weight format without latencies."""
    if name in catalog.llms():
        return name
    return _known_llms().get(_words(name)) if _format(name) in (None, *_MODELLED) else None


def precision_of(name: str) -> str | None:
    """Weight precision that a checkpoint's name states (``-FP8``, ``-AWQ``); None: it states none that is modelled."""
    stated = _format(name)
    return stated if stated in _MODELLED else None


def differ(weights: str, stated: str) -> bool:
    """Whether weights are not of the precision that a name states; FP8 checkpoints may have a scale for each block."""
    return weights != stated and {weights, stated} != {"fp8", "fp8_block"}


def unknown_llm(path: str, name: str, also: str = "") -> Mistake:
    """The mistake of an LLM that the catalogue does not have."""
    stated = _format(name)
    if _CLOSED.match(_short(name)):
        expected = f"a model with published weights ({LIST}); {name} is closed: only its owner can serve it"
        return Mistake(None, path, name, expected)
    if stated not in (None, *_MODELLED):
        known = _known_llms().get(_words(name))
        expected = not_modelled(stated or "several formats at once") or ""
        return Mistake(None, path, name, expected, hint=None if known is None else f"did you mean {known}?")
    return Mistake(
        None, path, name, f"a model of the catalogue ({LIST}){also}", hint=_nearest(name, catalog.llms(), 0.45)
    )


def _nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """A hint with the three known names nearest to one: those that begin with it, then those spelled most like it."""
    keys = {squash(k): k for k in known}
    asked = squash("-".join(_split(name)[0]))
    near = [k for k in keys if k.startswith(asked)] if asked else []
    near += difflib.get_close_matches(asked, keys, NEAREST, cutoff)
    names = [keys[k] for k in list(dict.fromkeys(near))[:NEAREST]]
    return f"did you mean {', '.join(names[:-1])}{' or ' if names[1:] else ''}{names[-1]}?" if names else None


def with_stated_precision(data: Any, model: str = "model") -> Any:
    """A section of a file whose model's name states a weight precision, with that precision where the file has none.

    Raises:
        ValueError: the file states another one.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get(model), str) or data[model] in catalog.llms():
        return data
    stated = precision_of(data[model])
    if stated is None or llm_of(data[model]) is None:
        return data
    given = data.get("precision")
    own = given.get("weights") if isinstance(given, Mapping) else data.get("weights")
    if own is None:
        if given is None and "kv" in data:
            return {**data, "weights": stated}
        return {**data, "precision": {**(given if isinstance(given, Mapping) else {}), "weights": stated}}
    if isinstance(own, str) and differ(precision(own), stated):
        raise ValueError(f"the weight precision that {model} {data[model]!r} states, {stated} (precision says {own})")
    return data


# --- GPUs -------------------------------------------------------------------------------------------------------------

_OWN_GPUS: ContextVar[frozenset[str]] = ContextVar("own GPUs", default=frozenset())
_GPU_WORDS = {
    "nvidia", "amd", "intel", "tesla", "instinct", "habana", "aws", "google", "cloud", "tensor", "core", "gpu", "gpus",
    "accelerator", "hbm2", "hbm2e", "hbm3", "hbm3e", "gddr6", "gddr7", "server", "edition", "blackwell", "hopper",
    "ampere", "grace", "superchip", "mega", "radeon", "nvl72", "hgx", "dgx", "ac", "slice",
}  # fmt: skip
_CHIPS = {
    "trn2": "trainium2", "hl325l": "gaudi3", "v5litepod": "tpuv5e", "tpuv5litepodslice": "tpuv5e", "v5e": "tpuv5e",
    "tpuv5litepod": "tpuv5e", "tpuv5lite": "tpuv5e", "v6e": "tpuv6e",
    "trillium": "tpuv6e", "tputrillium": "tpuv6e", "rtx6000pro": "rtxpro6000", "pro6000": "rtxpro6000",
    "rtx4500pro": "rtxpro4500", "pro4500": "rtxpro4500", "prov520": "v520",
}  # fmt: skip
_MARKETED_GB = {"b200": 192.0, "gb200": 192.0, "b300": 288.0, "gb300": 288.0}  # where the catalogue has usable GB
_GRACE_GB = 480.0  # GH200's name in nvidia-smi has the memory of its CPU; its GPU has 96 GB


def _gpu_parts(name: str) -> tuple[str, str | None, float | None]:
    """Chip, form factor and memory in GB that a GPU's name states."""
    text = re.sub(r"(\d)\s*(gib|gb)\b", r"\1g", name.lower())
    text = re.sub(r"max-?q", "maxq", text)
    text = re.sub(r"(?<=\d)(sxm\d?|pcie|nvl)\b", r" \1", text)
    chip, form, memory = "", None, None
    for word in re.findall(r"[a-z0-9]+", text):
        if re.fullmatch(r"sxm\d?|oam", word):
            form = "sxm"
        elif word in ("pcie", "nvl"):
            form = word
        elif re.fullmatch(r"\d{2,3}g", word):
            memory = float(word[:-1])
        elif word not in _GPU_WORDS:
            chip += word
    return _CHIPS.get(chip, chip), form, memory


@cache
def _known_gpus() -> dict[str, tuple[str, str, tuple[float, ...]]]:
    """Chip, form factor and memory sizes of each GPU by key."""
    found: dict[str, tuple[str, str, tuple[float, ...]]] = {}
    for key, gpu in catalog.gpus().items():
        chip, form, _ = _gpu_parts(key)
        sxm = "sxm" if re.search(r"SXM|OAM", gpu.title) else "pcie"
        found[key] = chip, form or sxm, (gpu.vram_gib, _MARKETED_GB.get(key, gpu.vram_gib))
    return found


def gpus_of(name: str) -> list[str]:
    """The catalogue's GPUs that a name may mean: one, several, or none."""
    known = catalog.gpus()
    exact = [key for key in known if squash(key) == squash(name)]
    if exact:
        return exact
    chip, form, memory = _gpu_parts(name)
    if chip == "gh200" and memory == _GRACE_GB:
        memory = 96.0
    found = [
        key for key, (of, shape, sizes) in _known_gpus().items()
        if of == chip and form in (None, shape) and (memory is None or any(abs(memory / s - 1) < 0.02 for s in sizes))
    ]  # fmt: skip
    base = [key for key in found if all(other.startswith(key) for other in found)]
    return base or found


@contextmanager
def own_gpus(names: Iterable[str]) -> Iterator[None]:
    """Within the block a GPU that a file describes under `names` is not looked up in the catalogue."""
    token = _OWN_GPUS.set(frozenset(names))
    try:
        yield
    finally:
        _OWN_GPUS.reset(token)


def gpu(name: Any) -> Any:
    """A GPU by its catalogue key (``NVIDIA H100 80GB HBM3`` → ``h100``); unknown and ambiguous names unchanged."""
    if not isinstance(name, str) or name in catalog.gpus() or name in _OWN_GPUS.get() or re.search(r"[*?\[]", name):
        return name
    found = gpus_of(name)
    return found[0] if len(found) == 1 else name


def _gpu_of_machine(name: str) -> str | None:
    """A hint for the name of a machine, or of GPUs with their number, in place of a GPU's."""
    for pool in catalog.pools():
        machine = next((m for m in catalog.machines(pool) if m.gpu and squash(m.machine) == squash(name)), None)
        if machine is not None:
            return f"{machine.machine} is a machine with {machine.gpu_count} {machine.gpu}"
    counted = re.fullmatch(r"\d+\s*[x×]\s*(?P<a>\S.*)|(?P<b>.*\S)\s*(?::|[x×]\s*)\d+", name.strip())
    found = gpus_of(counted["a"] or counted["b"]) if counted is not None else []
    return f"a type without a number: {found[0]}" if len(found) == 1 else None


def unknown_gpu(path: str, name: str, known: Iterable[str] | None = None, what: str = "") -> Mistake:
    """The mistake of a GPU's name that is unknown, ambiguous, or not among `known`."""
    found = gpus_of(name)
    offered = list(catalog.gpus() if known is None else known)
    meant = [key for key in found if key in offered]
    expected = what or f"a GPU of the catalogue ({LIST})"
    if of_machine := _gpu_of_machine(name):
        return Mistake(None, path, name, expected, hint=of_machine)
    if len(meant) > 1:
        return Mistake(None, path, name, expected, hint=f"several are called so: {', '.join(meant)}")
    if found and known is not None:
        sold = [pool for pool in catalog.pools() if any(m.gpu in found for m in catalog.machines(pool))]
        hint = f"--cloud {' or '.join(sold)} has it" if sold else "no machine list has it"
        return Mistake(None, path, name, expected, hint=hint)
    return Mistake(None, path, name, expected, hint=_nearest(name, offered))


# --- clouds, regions, machines, markets, engines ----------------------------------------------------------------------

_CLOUDS = {
    "amazon": "aws", "amazonwebservices": "aws", "ec2": "aws", "awsec2": "aws", "google": "gcp", "googlecloud": "gcp",
    "googlecloudplatform": "gcp", "gcloud": "gcp", "amazonaws": "aws", "msazure": "azure", "gce": "gcp",
    "microsoft": "azure", "microsoftazure": "azure", "azurevm": "azure",
}  # fmt: skip
_MARKETS = {
    "ondemand": "on_demand", "payg": "on_demand", "payasyougo": "on_demand", "spot": "spot", "preemptible": "spot",
    "reserved1y": "reserved_1y", "reserved1yr": "reserved_1y", "reserved1year": "reserved_1y", "1y": "reserved_1y",
    "1yr": "reserved_1y", "1year": "reserved_1y", "3yr": "reserved_3y", "3years": "reserved_3y", "od": "on_demand",
    "reserved3y": "reserved_3y", "reserved3yr": "reserved_3y", "reserved3years": "reserved_3y", "3y": "reserved_3y",
}  # fmt: skip
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "sgl": "sglang"} | dict.fromkeys(
    ("trtllm", "tensorrtllm", "tensorrt", "trt"), "trtllm"
)


def cloud(name: Any) -> Any:
    """A machine list by its catalogue key (``AWS``, ``Google Cloud``); others unchanged."""
    if not isinstance(name, str) or name in catalog.pools():
        return name
    by_name = {squash(key): key for key in catalog.pools()} | _CLOUDS
    return by_name.get(squash(name), name)


def market(name: Any) -> Any:
    """A market by its name in files (``on-demand`` → ``on_demand``); others unchanged."""
    return _MARKETS.get(squash(name), name) if isinstance(name, str) else name


def engine(name: Any) -> Any:
    """An engine by its name in files (``TensorRT-LLM`` → ``trtllm``); others unchanged."""
    return _ENGINES.get(squash(name), name) if isinstance(name, str) else name


def among(name: Any, known: Iterable[str]) -> Any:
    """The one of the known names that differs from `name` in capitals and separators alone; else unchanged."""
    names = list(known)
    if not isinstance(name, str) or name in names:
        return name
    same = [x for x in dict.fromkeys(names) if squash(x) == squash(name)]
    return same[0] if len(same) == 1 else name


def region(name: Any) -> Any:
    """A region by the cloud's own name (``US-East-1`` → ``us-east-1``); others unchanged."""
    if not isinstance(name, str) or re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) or re.search(r"[*?\[]", name):
        return name
    known = {m.region for pool in catalog.pools() for m in catalog.machines(pool)}
    dashed = re.sub(r"[\s_]+", "-", name.strip().lower())  # us-east-1 is AWS's, us-east1 Google's
    return dashed if dashed in known else among(name, known)


def llm(name: Any) -> Any:
    """An LLM by its catalogue key; by its shape where `name` is a Hugging Face repository other than the catalogue's.

    So exports start the checkpoint that was asked for.
    """
    if not isinstance(name, str) or name in catalog.llms() or (key := llm_of(name)) is None:
        return name
    own = catalog.llms()[key]
    if not _REPOSITORY.match(name) or own.checkpoint.lower() == name.lower():
        return key
    return own.model_copy(update={"checkpoint": name})
