"""Speculative decoding: what of it no random instance has yet."""

from __future__ import annotations

FIELDS = ("acceptance", "accepted", "draft", "draft=Architecture", "draft=str", "drafts", "head", "model")
UNDRAWN = {
    f"Speculation.{field}": "drafts change an engine's costs and levels: tests/latency/test_speculation.py and "
    "tests/serving/test_speculation.py judge both by hand and on the step simulator"
    for field in FIELDS
}
