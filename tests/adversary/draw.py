"""Random choices that instances are made of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

OWN_MODEL = {
    "layers": 24, "hidden": 2048, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn": 5632, "ffn_matrices": 3,
    "vocab": 32000, "max_positions": 4096, "tied_embeddings": True, "learned_positions": 0,
    "params": 1.3e9, "attention_gate": False,
}  # fmt: skip
EXPERTS = OWN_MODEL | {
    "moe": {"experts": 8, "active": 2, "expert_ffn": 1408, "shared_experts": 1, "shared_ffn": 1408, "dense_layers": 1},
    "mla": {
        "kv_lora_rank": 512,
        "q_lora_rank": 0,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "index_heads": 4,
        "index_head_dim": 64,
        "index_topk": 128,
    },
    "ffn_matrices": 2,
    "tied_embeddings": False,
}
HYBRID = OWN_MODEL | {
    "kv_heads": 2,
    "moe": EXPERTS["moe"] | {"expert_precision": "mxfp4"},
    "linear": {"layers": 12, "key_heads": 4, "value_heads": 8, "key_head_dim": 64, "value_head_dim": 64},
    "window": {"tokens": 128, "layers": 8},
    "attention_gate": True,
}
WINDOWED = OWN_MODEL | {"window": {"tokens": 128, "layers": 24}}
WEIGHTS = ("fp16", "fp8", "fp8_block", "fp4", "mxfp4", "int4")


def bounded(model: Any) -> bool:
    """Whether attention sees so many tokens only, which drafts of another model do not."""
    return isinstance(model, dict) and ("window" in model or "index_topk" in model.get("mla", {}))


class Draw:
    """Random choices, in words."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def number(self, low: float, high: float) -> float:
        return float(f"{self.rng.uniform(low, high):.4g}")

    def magnitude(self, low: float, high: float) -> float:
        return float(f"{math.exp(self.rng.uniform(math.log(low), math.log(high))):.4g}")

    def whole(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def one(self, of: Any) -> Any:
        return of[int(self.rng.integers(len(of)))]

    def some(self, of: Any, at_least: int = 1) -> list[Any]:
        n = self.whole(at_least, len(of))
        return [of[i] for i in sorted(self.rng.choice(len(of), n, replace=False))]
