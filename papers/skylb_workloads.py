"""Workloads of SkyLB's evaluation (SK §5.1): multi-turn chat and Tree of Thoughts by closed-loop clients, both mixed.

The paper's requests (ChatBot Arena, WildChat, GSM8K) are not shipped; these are drawn from distributions stated here.
Means of turns and tokens are the published ones of the data sets: WildChat-1M 2.54 turns, 295.6 ± 1,609 user and
441.3 ± 410.9 assistant tokens a turn (Zhao et al. 2024, Table 1); Chatbot Arena conversations 1.2 turns, 52.3 and 189.5
tokens (Zheng et al., LMSYS-Chat-1M, Table 1); entered from the papers, of which only WildChat's turns (2.5 million in
1.04 million conversations) could be looked up again in November 2026. A tree's nodes share the path to their common
ancestor; a tree is a *program*: a node waits for its parent's answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from optmodels.arrays import Ints
from optmodels.traces.multiregion import BLOCK_TOKENS, Chat, RegionWorkload, Told, token_counts, users_by_zipf
from optmodels.traces.types import Label, Prefixes, Programs, Trace

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
) -> RegionWorkload:
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
    user = region * chat.users + users_by_zipf(chat, C, rng)
    told = Told(chat, user, conversation, rng)
    stagger = rng.uniform(0.0, 1.0, len(client_region))  # clients do not all start in the same instant
    arrival = np.where(following[conversation - 1] == conversation, 0.0, stagger[client[conversation]])
    trace = told.trace(name, arrival, regions, region[conversation])
    n = len(conversation)
    return RegionWorkload(trace, Programs(parent, conversation, following, np.zeros(n), told.contents))


def closed_loop_trees(
    trees: Mapping[str, Tree], clients: Mapping[str, int], questions: int, *, user_clients: int = 0, seed: int = 0,
    name: str = "trees",
) -> RegionWorkload:  # fmt: skip
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
                question = token_counts(rng, tree.question_tokens, 0.3, 1, 1000)[0]
                thought = token_counts(rng, tree.thought_tokens, tree.sigma_thought, len(shape), tree.most_tokens)
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
    return RegionWorkload(trace, Programs(np.array(parent, dtype=np.int64), np.array(program, dtype=np.int64),
                                    np.array(following, dtype=np.int64), np.zeros(len(key)), contents))  # fmt: skip


def _grown(known: Ints, before: int, tokens: int, node: int) -> Ints:
    """Blocks of a text whose first `before` tokens are known; the others are the node's own."""
    shared = known[: before // BLOCK_TOKENS]
    own = np.arange(len(shared), tokens // BLOCK_TOKENS)
    return np.concatenate((shared, (node + 1) * 100_000 + own)).astype(np.int64)


def _prefixes(blocks: list[Ints]) -> Prefixes:
    start = np.concatenate(([0], np.cumsum([len(b) for b in blocks]))).astype(np.int64)
    return Prefixes(BLOCK_TOKENS, start, np.concatenate([*blocks, np.zeros(0, dtype=np.int64)]).astype(np.int64))
