"""A request trace as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from optmodels.arrays import Array, Ints

Routing = Literal["random", "first_block", "session"]  # to engines: at random, or what begins alike to the same one


@dataclass(frozen=True)
class Prefixes:
    """The prompt of every request as content blocks; equal ids mean equal tokens up to and including that block.

    Attributes:
        block_tokens: tokens a block holds.
        start: (n + 1,) offsets into `ids`; request i has ``ids[start[i]:start[i + 1]]``.
        ids: (m,) block ids.
    """

    block_tokens: int
    start: Ints
    ids: Ints

    def of(self, request: int) -> Ints:
        """Block ids of one request, first block first."""
        return self.ids[self.start[request] : self.start[request + 1]]

    def take(self, chosen: Ints) -> Prefixes:
        """The prefixes of some requests, in the order given."""
        lengths = self.start[chosen + 1] - self.start[chosen]
        start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        within = np.arange(start[-1]) - np.repeat(start[:-1], lengths)
        return Prefixes(self.block_tokens, start, self.ids[np.repeat(self.start[chosen], lengths) + within])


@dataclass(frozen=True)
class Follows:
    """Requests that are sent after the answer to another, as a user's next turn is.

    Attributes:
        parent: (n,) request whose answer this one waits for, or −1.
        think_s: (n,) seconds from that answer to this request.
    """

    parent: Ints
    think_s: Array

    def take(self, chosen: Ints) -> Follows | None:
        """Waits of some requests; one that waits for a request left out comes at its own arrival. None: no waits."""
        place = np.full(len(self.parent), -1, dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        parent = self.parent[chosen]
        parent = np.where(parent >= 0, place[parent], -1)
        return Follows(parent, self.think_s[chosen]) if (parent >= 0).any() else None


@dataclass(frozen=True)
class Trace:
    """Requests in the order of their arrival.

    Attributes:
        name: name of the trace.
        arrival_s: (n,) seconds since the trace began, ascending, ≥ 0.
        prompt_tokens: (n,) ≥ 1.
        output_tokens: (n,) ≥ 1.
        labels: coded columns by name, such as ``model``, ``region``, ``class`` or ``session``.
        slo_factor: (n,) θ of the deadline θ·l·t_slice (MaaSO §III-C), or None where the instance sets it.
        prefixes: content blocks of the prompts, or None where unknown.
        predicted_output_tokens: (n,) ≥ 1, output lengths as a dispatcher knows them; None: the true ones.
        notes: changes made to the file's rows, in words.
        follows: requests that wait for another's answer; their arrivals assume instant answers. None: no waits.
        measured: latencies that a log states, (n,) seconds by ``ttft_s``, ``tpot_s``, ``e2e_s``; NaN: unknown.
    """

    name: str
    arrival_s: Array
    prompt_tokens: Ints
    output_tokens: Ints
    labels: Mapping[str, Label] = field(default_factory=dict)
    slo_factor: Array | None = None
    prefixes: Prefixes | None = None
    predicted_output_tokens: Ints | None = None
    notes: tuple[str, ...] = ()
    follows: Follows | None = None
    measured: Mapping[str, Array] = field(default_factory=dict)

    @property
    def expected_output_tokens(self) -> Ints:
        """(n,) known output lengths when a request arrives: predicted, else true."""
        return self.output_tokens if self.predicted_output_tokens is None else self.predicted_output_tokens

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        """Seconds from the beginning to the last arrival."""
        return float(self.arrival_s[-1]) if len(self) else 0.0

    def take(self, chosen: Ints) -> Trace:
        """Some of the requests, in the order given (which must keep arrivals ascending)."""
        return replace(
            self,
            arrival_s=self.arrival_s[chosen],
            prompt_tokens=self.prompt_tokens[chosen],
            output_tokens=self.output_tokens[chosen],
            labels={k: v.take(chosen) for k, v in self.labels.items()},
            slo_factor=None if self.slo_factor is None else self.slo_factor[chosen],
            prefixes=None if self.prefixes is None else self.prefixes.take(chosen),
            predicted_output_tokens=(
                None if self.predicted_output_tokens is None else self.predicted_output_tokens[chosen]
            ),
            follows=None if self.follows is None else self.follows.take(chosen),
            measured={k: v[chosen] for k, v in self.measured.items()},
        )


@dataclass(frozen=True)
class Label:
    """A column of names: ``names[codes[i]]`` is request i's.

    Attributes:
        names: the distinct values.
        codes: (n,) index into `names`.
    """

    names: tuple[str, ...]
    codes: Ints

    def take(self, chosen: Ints) -> Label:
        """The label of some requests."""
        return Label(self.names, self.codes[chosen])


@dataclass(frozen=True)
class Programs:
    """Requests that wait for others, as closed-loop clients send them (SK §5.1: one program at a time).

    Attributes:
        parent: (n,) request whose answer this one waits for, or −1.
        program: (n,) program a request belongs to; its first request has no parent.
        following: (programs,) the client's next program, or −1.
        think_s: (n,) from being released to being sent.
        contents: blocks of prompt and answer together, for the cache's contents afterwards; None: prompts only.
    """

    parent: Ints
    program: Ints
    following: Ints
    think_s: Array
    contents: Prefixes | None = None
