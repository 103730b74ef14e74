"""LLMs of the catalogue by the names that others give them: checkpoints, columns of benchmarks, folders.

``Qwen/Qwen3-32B-FP8``, ``QWEN3_32B`` and ``qwen3:32b`` are ``qwen3-32b``. Capitals, separators, the owner, what the
weights were tuned for and their precision say nothing of the shape. Any other word makes another model of a name, which
is unknown here: DeepSeek-R1-Distill-Llama-70B is no DeepSeek-R1, Kimi-K2-Thinking and Qwen3-8B-Base take other lengths
than Kimi-K2-Instruct and Qwen3-8B. Dates and such words are dropped only where `same_shape.yaml` has them.
"""

from __future__ import annotations

import re
from functools import cache

from optmodels import catalog

_PRECISIONS = {
    "bf16": "fp16", "fp16": "fp16", "fp8": "fp8", "fp8-dynamic": "fp8", "fp8-kv": "fp8", "nvfp4": "fp4", "fp4": "fp4",
    "mxfp4": "mxfp4", "int4": "int4", "awq": "int4", "w4a16": "int4",
}  # fmt: skip
_PRECISION = re.compile(rf"-({'|'.join(sorted(_PRECISIONS, key=len, reverse=True))})(?=-|$)")
_TUNED = {"chat", "hf", "instruct", "it"}
Words = tuple[str, ...]


def _short(name: str) -> str:
    """The name without its owner, in small letters, with dashes."""
    return re.sub(r"[\s_:]+", "-", name.strip().rstrip("/").rpartition("/")[2].lower())


def _words(name: str) -> Words:
    """Letters and numbers of a name in turn, but for those that say nothing of the shape."""
    words = re.findall(r"[a-z]+|\d+", _PRECISION.sub("", _short(name)).removeprefix("meta-"))
    return tuple(w for w in words if w not in _TUNED)


@cache
def _known() -> dict[Words, str]:
    same = catalog.same_shape()
    names = ((name, key) for key, llm in catalog.llms().items() for name in (key, llm.checkpoint, *same.get(key, ())))
    return {_words(name): key for name, key in names if name}


def llm_of(name: str) -> str | None:
    """The catalogue's key of an LLM as somebody else spells it; None: unknown."""
    return name if name in catalog.llms() else _known().get(_words(name))


def precision_of(name: str) -> str | None:
    """Precision of the weights that a name ends with (``-FP8``, ``-AWQ``); None: it says none."""
    said = _PRECISION.findall(_short(name))
    return _PRECISIONS[said[-1]] if said else None
