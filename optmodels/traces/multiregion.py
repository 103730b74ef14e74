"""Multi-turn chat of several regions whose prompts share prefixes, drawn from distributions.

Sharing is assumed: all users a system prompt, a user's conversations some templates of his own. A conversation
is a *program*: a turn waits for the answer before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from optmodels.arrays import Array, Ints
from optmodels.traces.types import Label, Prefixes, Programs, Trace

BLOCK_TOKENS = 16


@dataclass(frozen=True)
class RegionWorkload:
    """A trace and which of its requests wait for which."""

    trace: Trace
    programs: Programs


@dataclass(frozen=True)
class Chat:
    """Multi-turn conversations; lengths are log-normal with these means.

    Attributes:
        turns: mean of a geometric distribution.
        user_tokens, answer_tokens: of a turn; with sigma_user, sigma_answer of their logarithms.
        most_tokens: most tokens of a message, longer ones are cut.
        system_tokens: at the head of every prompt, the same for everybody.
        template_tokens: at the head of a conversation that starts from one of its user's templates.
        templated: share of conversations that do.
        templates: templates of a user; or, if `common` is not 0, of this many that every user of every region draws
            from.
        users: users of a region.
        activity: exponent of the users' Zipf activity; 0: all equal.
    """

    turns: float
    user_tokens: float
    answer_tokens: float
    sigma_user: float = 1.0
    sigma_answer: float = 0.8
    most_tokens: int = 4096
    system_tokens: int = 32
    template_tokens: int = 256
    templated: float = 0.5
    templates: int = 2
    common: int = 0
    users: int = 200
    activity: float = 0.8


def open_loop_chat(
    chat: Chat, rates: Mapping[str, Array | float], seconds: float, *, step_s: float = 3600.0, think_s: float = 30.0,
    seed: int = 0, name: str = "chat",
) -> RegionWorkload:  # fmt: skip
    """Requests by a Poisson process of every region's rate; each goes on with a conversation or begins one.

    Args:
        chat: properties of the conversations.
        rates: requests/s by region; an array: one for every `step_s`.
        seconds: length of the trace.
        step_s: how long one rate lasts.
        think_s: a conversation goes on this long after its last request at the earliest.
        seed: random seed of everything drawn.
    """
    rng = np.random.default_rng(seed)
    regions = tuple(rates)
    times, where = [], []
    for r, given in enumerate(rates.values()):
        rate = np.atleast_1d(np.asarray(given, dtype=float))
        for h in range(int(np.ceil(seconds / step_s))):
            low, high = h * step_s, min((h + 1) * step_s, seconds)
            n = rng.poisson(rate[min(h, len(rate) - 1)] * (high - low))
            times.append(rng.uniform(low, high, n))
            where.append(np.full(n, r))
    arrival = np.concatenate([*times, np.zeros(0)])
    region = np.concatenate([*where, np.zeros(0, dtype=np.int64)]).astype(np.int64)
    order = np.argsort(arrival, kind="stable")
    arrival, region = arrival[order], region[order]
    n = len(arrival)
    conversation = np.empty(n, dtype=np.int64)
    begins = rng.random(n) < 1.0 / chat.turns
    idle: list[list[tuple[float, int]]] = [[] for _ in regions]  # conversations by the time of their last request
    count, heads = 0, np.zeros(len(regions), dtype=np.int64)
    for i in range(n):
        queue, head = idle[region[i]], int(heads[region[i]])
        if not begins[i] and head < len(queue) and queue[head][0] + think_s <= arrival[i]:
            conversation[i] = queue[head][1]
            heads[region[i]] += 1
        else:
            conversation[i] = count
            count += 1
        queue.append((float(arrival[i]), int(conversation[i])))
    by = np.argsort(conversation, kind="stable")  # turns of a conversation side by side, in the order of time
    of_conversation = region[by][np.searchsorted(conversation[by], np.arange(count))]
    user = of_conversation * chat.users + users_by_zipf(chat, count, rng)
    told = Told(chat, user, conversation[by], rng)
    sorted_trace = told.trace(name, arrival[by], regions, region[by])
    back = np.argsort(by, kind="stable")
    free = np.full(n, -1, dtype=np.int64)
    programs = Programs(free, np.arange(n), free, np.zeros(n), told.contents.take(back))
    return RegionWorkload(sorted_trace.take(back), programs)


class Told:
    """Conversations told turn by turn: lengths and blocks of every request, turns side by side in time's order."""

    def __init__(self, chat: Chat, user: Ints, conversation: Ints, rng: np.random.Generator) -> None:
        n, C = len(conversation), len(user)
        says = token_counts(rng, chat.user_tokens, chat.sigma_user, n, chat.most_tokens)
        self.output = token_counts(rng, chat.answer_tokens, chat.sigma_answer, n, chat.most_tokens)
        template = np.where(rng.random(C) < chat.templated, rng.integers(0, chat.common or chat.templates, C), -1)
        opening = chat.system_tokens + np.where(template >= 0, chat.template_tokens, 0)
        total = np.cumsum(says + self.output)
        starts = np.r_[True, conversation[1:] != conversation[:-1]] if n else np.zeros(0, dtype=bool)
        before = np.where(starts, total - says - self.output, 0)
        before = np.maximum.accumulate(before) if n else before
        history = opening[conversation] + total - before
        self.prompt = history - self.output
        self.user, self.conversation = user, conversation
        length = history // BLOCK_TOKENS
        depth = np.concatenate([np.arange(k) for k in length]) if n else np.zeros(0, dtype=np.int64)
        c = np.repeat(conversation, length)
        # Three trees of ids: the system prompt's, the templates', the conversations'.
        most = int(length.max(initial=1)) + 1
        system, whole = chat.system_tokens // BLOCK_TOKENS, (opening // BLOCK_TOKENS)[c]
        own = (template if chat.common else user * chat.templates + template)[c]
        families = chat.common or int(user.max(initial=0) + 1) * chat.templates
        ids = np.where(depth < system, depth, (1 + families + c) * most + depth)
        ids = np.where((depth >= system) & (depth < whole), (1 + own) * most + depth, ids)
        self.contents = Prefixes(BLOCK_TOKENS, np.concatenate(([0], np.cumsum(length))).astype(np.int64), ids)

    def trace(self, name: str, arrival: Array, regions: tuple[str, ...], region: Ints) -> Trace:
        """As a trace whose prefixes are prompt and answer."""
        users = tuple(f"u{i}" for i in range(int(self.user.max(initial=0)) + 1))
        labels = {"region": Label(regions, region), "session": Label(users, self.user[self.conversation])}
        return Trace(name, arrival, self.prompt, self.output, labels, prefixes=self.contents)


def users_by_zipf(chat: Chat, n: int, rng: np.random.Generator) -> Ints:
    """Whose conversations they are: users of a region by Zipf's law."""
    weight = np.arange(1, chat.users + 1, dtype=float) ** -chat.activity
    return rng.choice(chat.users, n, p=weight / weight.sum()).astype(np.int64)


def token_counts(rng: np.random.Generator, mean: float, sigma: float, n: int, most: int) -> Ints:
    """Log-normal token counts of a mean, at least 1, cut at `most`."""
    return np.clip(np.rint(rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, n)), 1, most).astype(np.int64)
