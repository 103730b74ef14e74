"""What prefix caches have of the prompts of a trace, request by request and block by block."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MOST_ENGINES = 1024


@dataclass(frozen=True)
class Request:
    """One of a model's requests, in the order of arrival; of a token of prompt and of output at least."""

    prompt: int
    output: int
    due_s: float
    blocks: tuple[int, ...]

    def whole(self, size: int) -> int:
        """Blocks of its prompt that caches keep for others."""
        return min(len(self.blocks), self.prompt // size)

    def able(self, size: int) -> int:
        """Blocks that it may find; a token is left to compute."""
        return min(len(self.blocks), (self.prompt - 1) // size)


def engines(part: float) -> int:
    """Engines alike that share a model's requests where each gets this part: 2ⁱ or 3·2ⁱ."""
    alike = math.inf if part <= 0 else math.ceil(1 / part - 1e-9)
    return min(n for i in range(11) for n in (2**i, 3 * 2**i) if n >= min(alike, MOST_ENGINES))


def engine_of(requests: Sequence[Request], count: int) -> list[int]:
    """Of each request its engine: by the first block of its prompt, whoever has none apart."""
    keys = [r.blocks[0] if r.blocks else -1 - i for i, r in enumerate(requests)]
    order = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    spread = np.arange(len(order)) % count
    np.random.default_rng(0).shuffle(spread)
    return [int(spread[order[key]]) for key in keys]


def found(
    requests: Sequence[Request], of: Sequence[int], size: int, room: int, least: Sequence[int] | None = None
) -> list[int]:
    """Blocks that each request finds in the cache of its engine.

    Args:
        requests: of one model.
        of: the engine of each.
        size: tokens of a block.
        room: blocks of a cache, which forgets what was used longest ago.
        least: who finds fewer leaves nothing; None: all do.
    """
    caches: dict[int, OrderedDict[tuple[int, ...], None]] = {}
    everyone = []
    for i, r in enumerate(requests):
        cache = caches.setdefault(of[i], OrderedDict())
        n = 0
        while n < r.able(size) and (r.blocks[n],) in cache:
            n += 1
        everyone.append(n)
        if least is not None and n < least[i]:
            continue
        own = math.ceil((r.prompt + r.output) / size) - r.whole(size)
        for key in [*((i, k) for k in range(own)), *((b,) for b in reversed(r.blocks[: r.whole(size)]))]:
            cache[key] = None
            cache.move_to_end(key)
            if len(cache) > room:
                cache.popitem(last=False)
    return everyone
