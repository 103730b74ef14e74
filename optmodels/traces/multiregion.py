"""Multi-region workloads with shared prefixes (SK §5.1): multi-turn chat, Tree of Thoughts, both mixed.

The paper's requests (ChatBot Arena, WildChat, GSM8K) are not shipped; these are drawn from distributions stated here.
Means of turns and tokens are the published ones of the data sets: WildChat-1M 2.54 turns, 295.6 ± 1,609 user and
441.3 ± 410.9 assistant tokens a turn (Zhao et al. 2024, Table 1); Chatbot Arena conversations 1.2 turns, 52.3 and 189.5
tokens (Zheng et al., LMSYS-Chat-1M, Table 1); entered from the papers, of which only WildChat's turns (2.5 million in
1.04 million conversations) could be looked up again in November 2026. Who shares what is assumed: all users a system
prompt, a user's conversations some templates of his own, a tree's nodes the path to their common ancestor.

A conversation or tree is a *program*: a turn waits for the answer before it, a node for its parent's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from optmodels.traces.types import Floats, Ints, Label, Prefixes, Programs, Trace

BLOCK_TOKENS = 16


@dataclass(frozen=True)
class Workload:
    """A trace and which of its requests wait for which."""

    trace: Trace
    programs: Programs


@dataclass(frozen=True)
class Chat:
    """Multi-turn conversations; lengths are log-normal with these means.

    Attributes:
        turns: mean of a geometric distribution.
        user_tokens, answer_tokens: of a turn; with sigma_user, sigma_answer of their logarithms.
        most_tokens: of a message, longer ones are cut.
        system_tokens: at the head of every prompt, the same for everybody.
        template_tokens: at the head of a conversation that starts from one of its user's templates.
        templated: share of conversations that do.
        templates: of a user; or, if `common` is not 0, of so many that all users of all regions draw from.
        users: of a region.
        activity: exponent of the users' Zipf activity; 0: all alike.
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


WILDCHAT = Chat(2.54, 295.6, 441.3, sigma_user=1.85, sigma_answer=0.79, templated=0.25)
ARENA = Chat(1.2, 52.3, 189.5, system_tokens=16, template_tokens=96, templated=0.35)


@dataclass(frozen=True)
class Tree:
    """Tree of Thoughts on a grade-school question (SK §5.1: depth four, 15 or 85 requests a tree).

    Lengths after SGLang's tree_of_thought_deep benchmark: a short instruction at every level, thoughts of up to 256
    tokens.

    Attributes:
        branches: children of a node.
        depth: levels of nodes.
        instruction_tokens: at the head of every prompt, the same for all questions.
        question_tokens, thought_tokens: log-normal means; most_tokens: of a thought.
        step_tokens: what a node adds to its parent's text.
    """

    branches: int = 2
    depth: int = 4
    instruction_tokens: int = 48
    question_tokens: float = 64.0
    thought_tokens: float = 160.0
    sigma_thought: float = 0.6
    most_tokens: int = 256
    step_tokens: int = 48


def closed_loop_chat(
    chat: Chat, clients: Mapping[str, int], conversations: int, *, seed: int = 0, name: str = "chat"
) -> Workload:
    """Clients of every region that hold one conversation after the other (SK §5.1).

    Args:
        chat: what conversations are like.
        clients: at once, by region.
        conversations: of each client.
        seed: of everything drawn.
    """
    rng = np.random.default_rng(seed)
    regions = tuple(clients)
    client_region = np.repeat(np.arange(len(regions)), list(clients.values()))
    C = len(client_region) * conversations
    client = np.repeat(np.arange(len(client_region)), conversations)
    region = client_region[client]
    turns = rng.geometric(1.0 / chat.turns, C)
    conversation = np.repeat(np.arange(C), turns)
    first = np.concatenate(([0], np.cumsum(turns)[:-1]))
    parent = np.where(np.arange(len(conversation)) == first[conversation], -1, np.arange(len(conversation)) - 1)
    following = np.where(np.arange(C) % conversations < conversations - 1, np.arange(C) + 1, -1)
    user = region * chat.users + _users(chat, C, rng)
    told = _Told(chat, user, conversation, rng)
    stagger = rng.uniform(0.0, 1.0, len(client_region))  # clients do not all start in the same instant
    arrival = np.where(following[conversation - 1] == conversation, 0.0, stagger[client[conversation]])
    trace = told.trace(name, arrival, regions, region[conversation])
    n = len(conversation)
    return Workload(trace, Programs(parent, conversation, following, np.zeros(n), told.contents))


def open_loop_chat(
    chat: Chat, rates: Mapping[str, Floats | float], seconds: float, *, step_s: float = 3600.0, think_s: float = 30.0,
    seed: int = 0, name: str = "chat",
) -> Workload:  # fmt: skip
    """Requests by a Poisson process of every region's rate; each goes on with a conversation or begins one.

    Args:
        chat: what conversations are like.
        rates: requests/s by region; an array: one for every `step_s`.
        seconds: length of the trace.
        step_s: how long one rate lasts.
        think_s: a conversation goes on this long after its last request at the earliest.
        seed: of everything drawn.
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
    user = of_conversation * chat.users + _users(chat, count, rng)
    told = _Told(chat, user, conversation[by], rng)
    sorted_trace = told.trace(name, arrival[by], regions, region[by])
    back = np.argsort(by, kind="stable")
    free = np.full(n, -1, dtype=np.int64)
    programs = Programs(free, np.arange(n), free, np.zeros(n), told.contents.take(back))
    return Workload(sorted_trace.take(back), programs)


def closed_loop_trees(
    trees: Mapping[str, Tree], clients: Mapping[str, int], questions: int, *, user_clients: int = 0, seed: int = 0,
    name: str = "trees",
) -> Workload:  # fmt: skip
    """Clients of every region that solve one question after the other by a tree of thoughts (SK §5.1).

    Args:
        trees: what a region's trees are like.
        clients: at once, by region.
        questions: of each client.
        user_clients: so many clients at once are one user, whose name is the key of hashing; 0: the question is.
        seed: of everything drawn.
    """
    rng = np.random.default_rng(seed)
    regions = tuple(clients)
    parent: list[int] = []
    prompt: list[int] = []
    output: list[int] = []
    blocks: list[Ints] = []
    program, following, region, arrival = [], [], [], []
    asked, who = 0, 0
    key: list[int] = []
    for r, place in enumerate(regions):
        tree = trees[place]
        sizes = [tree.branches**level for level in range(tree.depth)]
        shape = np.concatenate([
            np.full(1, -1), *(np.repeat(np.arange(sum(sizes[: k - 1]), sum(sizes[:k])), tree.branches)
                              for k in range(1, tree.depth)),
        ]).astype(np.int64)  # fmt: skip
        for _ in range(clients[place]):
            begins = rng.uniform(0.0, 1.0)
            for q in range(questions):
                first = len(parent)
                question = _lengths(rng, tree.question_tokens, 0.3, 1, 1000)[0]
                thought = _lengths(rng, tree.thought_tokens, tree.sigma_thought, len(shape), tree.most_tokens)
                for x, above in enumerate(shape):
                    i = first + x
                    if above < 0:
                        before, known = tree.instruction_tokens, np.arange(tree.instruction_tokens // BLOCK_TOKENS)
                        prompt.append(before + int(question))
                    else:
                        before, known = prompt[first + above] + output[first + above], blocks[first + above]
                        prompt.append(before + tree.step_tokens)
                    parent.append(-1 if above < 0 else first + above)
                    output.append(int(thought[x]))
                    blocks.append(_grown(known, before, prompt[i] + output[i], i))
                n = len(shape)
                program += [asked] * n
                region += [r] * n
                arrival += [begins] * n
                following.append(asked + 1 if q < questions - 1 else -1)
                key += [who // user_clients if user_clients else asked] * n
                asked += 1
            who += 1
    contents = _prefixes(blocks)
    labels = {
        "region": Label(regions, np.array(region, dtype=np.int64)),
        "session": Label(tuple(f"q{i}" for i in range(max(key, default=0) + 1)), np.array(key, dtype=np.int64)),
    }
    trace = Trace(name, np.array(arrival), np.array(prompt, dtype=np.int64), np.array(output, dtype=np.int64), labels,
                  prefixes=contents)  # fmt: skip
    return Workload(trace, Programs(np.array(parent, dtype=np.int64), np.array(program, dtype=np.int64),
                                    np.array(following, dtype=np.int64), np.zeros(len(key)), contents))  # fmt: skip


def local_day(utc_offset_h: Sequence[float], *, peak_h: float = 14.0, swing: float = 0.9) -> Floats:
    """Requests by region and UTC hour of a day, (R, 24), mean 1: a cosine that peaks at `peak_h` local time."""
    hour = np.arange(24)[None, :] + np.asarray(utc_offset_h, dtype=float)[:, None]
    day: Floats = 1.0 + swing * np.cos(2 * np.pi * (hour - peak_h) / 24.0)
    return day


class _Told:
    """Conversations told turn by turn: lengths and blocks of every request, turns side by side in time's order."""

    def __init__(self, chat: Chat, user: Ints, conversation: Ints, rng: np.random.Generator) -> None:
        n, C = len(conversation), len(user)
        says = _lengths(rng, chat.user_tokens, chat.sigma_user, n, chat.most_tokens)
        self.output = _lengths(rng, chat.answer_tokens, chat.sigma_answer, n, chat.most_tokens)
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

    def trace(self, name: str, arrival: Floats, regions: tuple[str, ...], region: Ints) -> Trace:
        """As a trace whose prefixes are prompt and answer."""
        users = tuple(f"u{i}" for i in range(int(self.user.max(initial=0)) + 1))
        labels = {"region": Label(regions, region), "session": Label(users, self.user[self.conversation])}
        return Trace(name, arrival, self.prompt, self.output, labels, prefixes=self.contents)


def _users(chat: Chat, n: int, rng: np.random.Generator) -> Ints:
    """Whose conversations they are: users of a region by Zipf's law."""
    weight = np.arange(1, chat.users + 1, dtype=float) ** -chat.activity
    drawn: Ints = rng.choice(chat.users, n, p=weight / weight.sum()).astype(np.int64)
    return drawn


def _lengths(rng: np.random.Generator, mean: float, sigma: float, n: int, most: int) -> Ints:
    """Log-normal token counts of a mean, at least 1, cut at `most`."""
    drawn: Ints = np.clip(np.rint(rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, n)), 1, most).astype(np.int64)
    return drawn


def _grown(known: Ints, before: int, tokens: int, node: int) -> Ints:
    """Blocks of a text whose first `before` tokens are known; the others are the node's own."""
    shared = known[: before // BLOCK_TOKENS]
    own = np.arange(len(shared), tokens // BLOCK_TOKENS)
    return np.concatenate((shared, (node + 1) * 100_000 + own)).astype(np.int64)


def _prefixes(blocks: list[Ints]) -> Prefixes:
    start = np.concatenate(([0], np.cumsum([len(b) for b in blocks]))).astype(np.int64)
    return Prefixes(BLOCK_TOKENS, start, np.concatenate([*blocks, np.zeros(0, dtype=np.int64)]).astype(np.int64))


def with_arrivals_sorted(work: Workload) -> Workload:
    """The same with arrivals ascending, as traces written to files need; programs follow."""
    order = np.argsort(work.trace.arrival_s, kind="stable")
    place = np.argsort(order, kind="stable")
    p = work.programs
    parent = np.where(p.parent >= 0, place[p.parent], -1)[order]
    programs = replace(
        p, parent=parent, program=p.program[order], think_s=p.think_s[order],
        contents=None if p.contents is None else p.contents.take(order),
    )  # fmt: skip
    return Workload(work.trace.take(order), programs)
