"""Prefix-cache hits of a trace: every size at once against a cache that really forgets, and the command line."""

from __future__ import annotations

import json
from collections import OrderedDict

import numpy as np
import pytest

import optmodels
from optmodels.errors import InputError
from optmodels.simulation.prefix_hits import distances, engines_of, prefix_hits
from optmodels.traces.types import Label, Prefixes, Trace

SIZE = 4


def trace(prompts, outputs, blocks, **more):
    start = np.cumsum([0, *map(len, blocks)]).astype(np.int64)
    ids = np.array([b for of in blocks for b in of], np.int64)
    n = len(prompts)
    return Trace(
        "t",
        np.arange(n, dtype=float),
        np.array(prompts),
        np.array(outputs),
        prefixes=Prefixes(SIZE, start, ids),
        **more,
    )


def drawn(seed, n=120):
    """Prompts that are walks in a tree."""
    rng = np.random.default_rng(seed)
    prompts, blocks = rng.integers(1, 40, n), []
    for tokens in prompts:
        node, of = 0, []
        for depth in range(-(-int(tokens) // SIZE)):
            node = node * 3 + int(rng.integers(1, 4 if depth < 2 else 2))
            of.append(node)
        blocks.append(of)
    return trace(prompts, rng.integers(1, 20, n), blocks)


def forgetting(requests, sent, capacity, needed=None):
    """Prompt tokens that a cache of so many blocks has of each request, by using and forgetting them one by one.

    Whoever finds fewer blocks than `needed` uses none.
    """
    caches, found = {}, []
    for i in range(len(requests)):
        cache = caches.setdefault(int(sent[i]), OrderedDict())
        prompt, output = int(requests.prompt_tokens[i]), int(requests.output_tokens[i])
        own = requests.prefixes.of(i).tolist()[: prompt // SIZE]
        hits = 0
        while hits < min(len(own), (prompt - 1) // SIZE) and own[hits] in cache:
            hits += 1
        found.append(hits * SIZE)
        if needed is not None and hits < needed[i]:
            continue
        rest = -(-(prompt + output) // SIZE) - len(own)
        for b in [*((i, k) for k in range(rest)), *reversed(own)]:
            cache[b] = True
            cache.move_to_end(b)
            if len(cache) > capacity:
                cache.popitem(last=False)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_all_sizes_at_once_are_caches_that_forget(seed):
    requests = drawn(seed)
    for engines, routing in ((1, "random"), (3, "random"), (2, "first_block")):
        sent = engines_of(requests, engines, routing, seed)
        found = distances(requests, sent)
        for capacity in (0, 1, 5, 20, 60, 10_000):
            assert found.hit_tokens(len(requests), SIZE * capacity + 1).tolist() == forgetting(requests, sent, capacity)


@pytest.mark.parametrize("seed", range(4))
def test_who_finds_too_little_leaves_nothing_behind(seed):
    requests = drawn(seed)
    needed = np.random.default_rng(seed).choice([0, 1, 2, 9], len(requests), p=[0.5, 0.2, 0.2, 0.1])
    refused = 0
    for engines, capacity in ((1, 5), (2, 20), (3, 10_000)):
        sent = engines_of(requests, engines, "first_block", seed)
        found = distances(requests, sent, SIZE * capacity, needed).hit_tokens(len(requests), SIZE * capacity)
        assert found.tolist() == forgetting(requests, sent, capacity, needed)
        refused += found.tolist() != forgetting(requests, sent, capacity)
    assert refused


def test_by_hand():
    """Of 8 prompt tokens one is left to compute; the third prompt's first block was used before 2 + 3 others."""
    requests = trace([8, 8, 8], [4, 4, 4], [[1, 2], [3, 4], [1, 5]])
    found = distances(requests, np.zeros(3, np.int64))
    assert found.request.tolist() == [2]
    # Since then: the answer and both blocks of the second prompt, and itself (1 is the newest of its own prompt).
    assert found.distance.tolist() == [4]
    rows = prefix_hits(requests, [12, 16], [1])["hits"]
    assert [r["share"] for r in rows] == [0, 4 / 24]


def test_equal_beginnings_meet_where_they_are_sent_by_them():
    requests = trace([9] * 40, [1] * 40, [[k % 4, 10 + k] for k in range(40)])
    sent = engines_of(requests, 2, "first_block")
    assert len({(k % 4, int(s)) for k, s in enumerate(sent)}) == 4
    assert np.bincount(sent).tolist() == [20, 20]
    apart, together = (prefix_hits(requests, [4000], [4], r)["hits"][0]["share"] for r in ("random", "first_block"))
    assert together == pytest.approx(36 * 4 / 360)
    assert apart < together
    sessions = trace([9] * 6, [1] * 6, [[1, 2]] * 6, labels={"session": Label(("a", "b"), np.array([0, 1] * 3))})
    assert np.bincount(engines_of(sessions, 2, "session")).tolist() == [3, 3]
    by = prefix_hits(sessions, [4000], [2], "session", by="session")
    assert [(r["workload"], r["share"]) for r in by["hits"]] == [("a", 16 / 27), ("b", 16 / 27)]
    assert by["busiest"] == {"2": 1.0}


@pytest.mark.parametrize(("given", "path"), [
    ({"kv_tokens": []}, "kv_tokens"), ({"engines": [0]}, "engines"), ({"routing": "best"}, "routing"),
    ({"by": "class"}, "by"), ({"routing": "session"}, "routing"),
])  # fmt: skip
def test_what_cannot_be_is_named(given, path):
    with pytest.raises(InputError) as caught:
        optmodels.prefix_hits(drawn(0), **({"kv_tokens": [100.0]} | given))
    assert caught.value.mistakes[0].path == path


def test_the_command_line_writes_what_it_prints(cli, folder):
    rows = [{"timestamp": 1000 * k, "input_length": 1024, "output_length": 5, "hash_ids": [k % 3, 50 + k % 6]}
            for k in range(12)]  # fmt: skip
    (folder / "t.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    run = cli("prefix-hits", "t.jsonl", "--kv-tokens", "2048,1e6", "--engines", "1,3", "--out", "hits.json", "--json")
    run.assert_clean()
    found = json.loads(run.out)
    assert json.loads((folder / "hits.json").read_text(encoding="utf-8"))["hits"] == found["hits"]
    # Without end: all but the first of each block 0, 1, 2; the second block of a prompt is its last token's.
    assert [r["share"] for r in found["hits"]] == [0.0, 9 * 512 / 12288, 9 * 512 / 12288, 9 * 512 / 12288]
    shown = cli("prefix-hits", "t.jsonl", "--engines", "1,2")
    assert "37.5%" in shown.out and "busiest" in shown.out
    for wrong, said in ((("--engines", "x"), "--engines"), (("--by", "class"), "by"), ((), None)):
        run = cli("prefix-hits", "t.jsonl" if said else "none.jsonl", *wrong)
        assert run.status == 2
        assert (said or "none.jsonl") in run.err
