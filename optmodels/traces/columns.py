"""Which column of a trace file holds what: one list of names for CSV, Parquet and JSON.

Names are compared in small letters, with words joined by ``_``: ``num_prefill_tokens``, ``numPrefillTokens`` and
``Num Prefill Tokens`` are one name. A unit at the end belongs to a time: ``arrival_time_us``, ``Timestamp (ms)``. Of a
key within objects (``attributes.gen_ai.usage.input_tokens``) the last word counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

# Units as names end with them, the longest first.
UNITS = {
    "unix_nano": 1e-9, "unix_nanos": 1e-9, "nanoseconds": 1e-9, "nanos": 1e-9, "ns": 1e-9, "microseconds": 1e-6,
    "micros": 1e-6, "us": 1e-6, "milliseconds": 1e-3, "millis": 1e-3, "unix_ms": 1e-3, "msec": 1e-3, "ms": 1e-3,
    "seconds": 1.0, "secs": 1.0, "sec": 1.0, "unix": 1.0, "s": 1.0,
}  # fmt: skip
TIMES = ("arrival_s", "delay_s", "ttft_s", "e2e_s", "base_s", "first_token_s", "last_token_s")
# Names of each field, the surest first.
NAMES = {
    "arrival_s": (
        "arrival", "arrival_time", "arrived_at", "arrival_timestamp", "arrival_ts", "request_received_ts",
        "request_arrival_time", "request_arrived_at", "timestamp", "time", "ts", "created", "created_at",
        "created_time", "create_time", "creation_time", "start_time", "started_at", "start_timestamp", "start_ts",
        "request_time",
        "request_timestamp", "request_start_time", "request_start", "request_created_at", "requested_at",
        "logging_time", "log_time", "asctime", "time_generated", "submitted_at", "submission_time", "enqueued_at",
        "event_timestamp",
        "received_at", "launch_time", "sent_at", "send_time", "queued", "queued_ts", "event_time", "datetime",
        "date_time", "date", "when", "start",
        "timing_events_0_timestamp",
    ),
    "prompt_tokens": (
        "prompt_tokens", "input_tokens", "prompt_len", "prompt_length", "input_len", "input_length", "context_tokens",
        "num_prefill_tokens", "prefill_tokens", "num_prompt_tokens", "num_input_tokens", "n_prompt_tokens",
        "n_input_tokens", "prompt_size", "input_size", "request_tokens", "input_toks", "prompt_toks", "isl",
        "input_sequence_length", "input_token_count", "prompt_token_count", "input_token_length", "tokens_in",
        "in_tokens", "num_prefill", "in", "input_token", "prompt_token", "prompt_token_cnt", "input_token_cnt",
        "usage_input", "usage_details_input",
        "tokens_input", "tokens_prompt", "token_count_input", "token_count_prompt",
    ),
    "output_tokens": (
        "output_tokens", "completion_tokens", "generated_tokens", "generation_tokens", "output_len", "output_length",
        "completion_len", "completion_length", "num_decode_tokens", "decode_tokens", "num_output_tokens",
        "num_generated_tokens", "num_completion_tokens", "n_output_tokens", "n_completion_tokens", "token_size",
        "output_size", "response_tokens", "response_len", "response_length", "output_toks", "completion_toks", "osl",
        "output_sequence_length", "output_token_count", "completion_token_count", "candidates_token_count",
        "output_token_length", "tokens_out", "out_tokens", "gen_tokens", "gen_len", "num_decode", "out",
        "output_token", "completion_token", "response_token_cnt", "output_token_cnt", "usage_output",
        "usage_details_output", "tokens_output",
        "tokens_completion", "token_count_output", "token_count_completion",
    ),
    "session": ("session", "session_id", "conversation_id", "conversation", "dialog_id"),
    "class": ("slo_class",),
    "delay_s": ("delay", "think_time", "think", "user_think_time"),
    "prefix_tokens": (
        "prefix_tokens", "prefix_length", "prefix_len", "shared_prefix_tokens", "shared_prefix_length",
        "num_prefix_tokens", "num_shared_prefix_tokens",
    ),
    "prefix_group": ("prefix_group", "prefix_id", "prefix_group_id"),
    "status": ("status", "state", "outcome", "success", "succeeded", "status_code", "status_status_code"),
    "error": ("error", "errors", "error_type", "error_message", "error_code", "exception"),
    "ttft_s": ("ttft", "time_to_first_token"),
    "e2e_s": ("e2e", "e2e_latency", "e2el", "end_to_end_latency", "request_latency"),
    "base_s": ("queued_ts", "send_time"),
    "first_token_s": (
        "first_token_ts", "first_token_time", "first_token_at", "first_chunk_time", "completion_start_time",
    ),
    "last_token_s": (
        "last_token_ts", "last_token_time", "last_token_at", "last_chunk_time", "finish_time", "finished_at",
        "end_time", "ended_at",
    ),
}  # fmt: skip
_OWNERS = re.compile(r"(?:(?:attributes|gen_ai|ai|llm|usage|request|response|number|metrics)_)+")  # of a column
_WRAPPED = {"value", "$date", "$numberInt", "$numberLong", "$numberDouble"}  # keys around a value, as of MongoDB
_SEVERAL = {"num_model_requests", "num_requests", "number_of_requests", "n_requests", "request_count", "requests"}
_PARTS_OF_COUNTS = {"cache", "cached", "details", "cost", "price", "prices", "limit", "limits"}  # of tokens, not all
FAILED = {
    "error", "errored", "err", "fail", "failed", "failure", "timeout", "timed_out", "aborted", "abort", "cancelled",
    "canceled", "rejected", "dropped", "false", "status_code_error", "unserved",
}  # fmt: skip


@cache
def plain(name: str) -> str:
    """A name in small letters with ``_`` between its words."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("(", " ").replace(")", " "))
    return re.sub(r"[^a-z0-9]+", "_", apart.lower()).strip("_")


@cache
def with_unit(name: str) -> tuple[str, float | None]:
    """A plain name without the unit it ends with, and the seconds of one unit."""
    for unit, seconds in UNITS.items():
        if name.endswith("_" + unit):
            return name.removesuffix("_" + unit), seconds
    return name, None


_RANK = {field: {name: i for i, name in enumerate(names)} for field, names in NAMES.items()}


@dataclass(frozen=True)
class Role:
    """A column that holds a field.

    Attributes:
        field: field of `NAMES`.
        rank: how sure: the least among the columns of a field is its column.
        seconds: seconds that one unit lasts, where the name states it.
    """

    field: str
    rank: tuple[int, int]
    seconds: float | None = None


@cache
def roles(column: str) -> tuple[Role, ...]:
    """The fields that a column may hold by its name; of a key within objects, its last word."""
    parts = re.split(r"[.\[\]]+", column.strip("]"))
    if len(parts) > 1 and any(
        plain(p) != "usage_details" and set(plain(p).split("_")) & _PARTS_OF_COUNTS for p in parts[:-1]
    ):
        return ()
    if len(parts) > 1 and parts[-1] in _WRAPPED:
        parts = parts[:-1]
    found: list[Role] = []
    names = (plain("_".join(parts)), plain(parts[-1]), plain("_".join(parts[-2:])))
    own = (_OWNERS.sub("", name, count=1) for name in names[:2] if _OWNERS.match(name))
    for i, name in enumerate(dict.fromkeys((*names, *own))):
        depth = len(parts) + i if i else 0  # outer keys first
        bare, seconds = with_unit(name)
        for field, ranks in _RANK.items():
            if any(r.field == field for r in found):
                continue
            if field in TIMES and bare in ranks and (seconds is not None or name in ranks):
                found.append(Role(field, (ranks[bare], depth), None if name in ranks else seconds))
            elif field not in TIMES and name in ranks:
                found.append(Role(field, (ranks[name], depth)))
    return tuple(found)


def recognised(columns: Iterable[str]) -> dict[str, tuple[str, float | None]]:
    """The column of each field, and the seconds of one unit where the name states it."""
    best: dict[str, tuple[tuple[int, int], str, float | None]] = {}
    for column in columns:
        for role in roles(column):
            if role.field not in best or role.rank < best[role.field][0]:
                best[role.field] = role.rank, column, role.seconds
    return {field: (column, seconds) for field, (_, column, seconds) in best.items()}


def has_tokens(columns: Iterable[str]) -> bool:
    """Whether columns hold the lengths of a prompt and of an answer."""
    return {"prompt_tokens", "output_tokens"} <= {r.field for c in columns for r in roles(c)}


def several(columns: Iterable[str]) -> str | None:
    """The column that counts the requests of each row, if there is one."""
    return next((c for c in columns if plain(re.split(r"[.\[\]]+", c.strip("]"))[-1]) in _SEVERAL), None)


def epoch_unit(value: float) -> float | None:
    """Seconds of one unit of a number that counts time since 1970; None: it does not (1990 to 2100 are known)."""
    for seconds in (1.0, 1e-3, 1e-6, 1e-9):
        if 631e6 <= value * seconds <= 4.1e9:
            return seconds
    return None
