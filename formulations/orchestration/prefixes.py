"""Prefix-cache hits of a model's prompts, measured on the requests of the problem, as the plan counts with them.

An engine that gets the part p of its model's requests is one of N = 1/p alike. The requests are dealt to them by the
first block of their prompts, so that what begins alike meets (`simulation.prefix_hits.engines_of`), as the dispatcher
`prefix_affine` does; every cache evicts the least recently used blocks and keeps the part that running requests leave
in the mean. Whoever is too late even with the cached prefix is refused and leaves nothing in it. So what a request
finds depends on those before it alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from optmodels.arrays import Array, Ints, Mask
from optmodels.traces.types import Routing, Trace

ROUTING: Routing = "first_block"
KV_BLOCK_TOKENS = 16  # of an engine's cache, as vLLM has them and the replay
MOST_ENGINES = 1024  # that requests are dealt to


def engines_alike(part: float) -> int:
    """N: 1/part, rounded up to 2ⁱ or 3·2ⁱ (within a third, and at most `MOST_ENGINES`)."""
    wanted = min(math.ceil(1.0 / part - 1e-9), MOST_ENGINES)
    power = 1 << (wanted.bit_length() - 1)
    return next(n for n in (power, 3 * power // 2, 2 * power) if n >= wanted)


@dataclass(frozen=True)
class Prompts:
    """The requests of a model, with prefixes, n of them."""

    trace: Trace

    @cached_property
    def blocks(self) -> Ints:
        """(n,) most blocks of each prompt that may be found: a token is left to compute."""
        p = self.trace.prefixes
        assert p is not None
        return np.minimum(np.diff(p.start), (self.trace.prompt_tokens - 1) // p.block_tokens)

    @cached_property
    def block_tokens(self) -> int:
        """Of a block."""
        assert self.trace.prefixes is not None
        return self.trace.prefixes.block_tokens

    def needed(self, in_time: Callable[[Array], Mask]) -> Ints:
        """(n,) least blocks with which each request is in time, one more than it may find where none are enough.

        Args:
            in_time: whether requests are in time, by cached tokens of each prompt, (n,); more never make one late.
        """
        low, high = np.zeros_like(self.blocks), self.blocks + 1
        while (low < high).any():
            middle = (low + high) // 2
            enough = in_time((np.minimum(middle, self.blocks) * self.block_tokens).astype(float))
            high = np.where(enough & (low < high), middle, high)
            low = np.where(enough | (low >= high), low, middle + 1)
        return low

    def found(self, part: float, kv_tokens: float, needed: Ints | None = None) -> Array:
        """(n,) tokens of each prompt in the caches of engines that get a part of the requests and keep this many
        tokens.

        Args:
            needed: blocks without which a request is refused; None: none is.
        """
        from optmodels.simulation.prefix_hits import distances, engines_of  # takes a second of Numba to import

        sent = engines_of(self.trace, engines_alike(part), ROUTING)
        seen = distances(self.trace, sent, kv_tokens, needed)
        return seen.hit_tokens(len(self.trace), kv_tokens).astype(float)
