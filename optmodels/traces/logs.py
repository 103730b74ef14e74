"""Requests in what engines' benchmarks and servers write: their lengths, and when they were sent.

*Benchmarks.* ``vllm bench serve --save-result --save-detailed`` and ``sglang.bench_serving --output-details`` write one
JSON object a run with a list for each column. Later versions of vLLM's have ``start_times``; without them requests are
sent as the tool sends them: gaps are drawn at ``request_rate`` (exponential, or gamma with ``burstiness``; ``inf``:
none), no more than ``max_concurrency`` at a time, each in the order of the list as one before it ends (``ttfts`` +
``itls``).

*Servers.* SGLang's ``--log-requests``, text or JSON, states about each request that ends its tokens and how long it
took. vLLM's ``--enable-log-requests --enable-log-outputs`` has token ids, from 0.10.2 on of prompts only with
``VLLM_LOGGING_LEVEL=DEBUG``, and no year. Other lines of a log are passed over.
"""

from __future__ import annotations

import heapq
import json
import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import numpy as np

from optmodels.errors import InputError, Mistake

START, PROMPT, OUTPUT = "start_times", "input_lens", "output_lens"
Columns = tuple[dict[str, list[Any]], list[str]]  # by the names above; notes
SEED = 1  # of gaps that are drawn
_DETAILS = "this list of vllm bench serve --save-detailed, or of sglang.bench_serving --output-details"
_SGLANG = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)[^\]]*\] ")
_VLLM = re.compile(r"(?:\([^)]*\) )?(?:INFO|DEBUG|WARNING|ERROR) (\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?) ")
_REQUEST = re.compile(r"(?:Received request|Request) (\S+?)(?: details)?: ")
_RESPONSE = re.compile(r"Generated response (\S+?)(?: details)?( \(streaming delta\)| \(streaming complete\))?: ")
_IDS = {what: re.compile(rf"{what}_token_ids: \[([^\]]*)\]") for what in ("prompt", "output")}
_NUMBER = re.compile(r"'(\w+)': (-?\d+(?:\.\d*)?(?:e[+-]?\d+)?)(?=[,}])")
_HALF_A_YEAR, _LEAP_YEAR = 183 * 86400.0, 366 * 86400.0


def is_log(line: str) -> bool:
    """Whether a line is one of an engine's server."""
    return bool(_SGLANG.match(line) or _VLLM.match(line) or (line.startswith('{"timestamp": "') and '"event"' in line))


# ----------------------------------------------------------------------------------------------------- benchmarks


def benchmark(file: str, text: str) -> Columns:
    """The requests of a run of `vllm bench serve` or `sglang.bench_serving`; failed ones have no output.

    Raises:
        InputError: not one JSON object, lists that are missing or of unlike lengths, or no way to know when requests
            were sent.
    """
    try:
        data, end = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError) as error:  # also more digits than Python reads
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        raise InputError(Mistake(file, "", str(error)[:60], "one whole JSON object", line)) from None
    if rest := text.lstrip()[end:].strip():
        line = text.count("\n", 0, text.rindex(rest)) + 1
        raise InputError(Mistake(file, "", rest[:60], "one run alone: a file for each", line))
    lists = [c for c in (START, PROMPT, OUTPUT) if c in data] if data.get(START) else [PROMPT, OUTPUT]
    missing = [c for c in (PROMPT, OUTPUT) if not isinstance(data.get(c), list)]
    missing += [c for c in lists if c == START and not isinstance(data[c], list)]
    if missing:
        raise InputError(Mistake(file, c, None, _DETAILS) for c in missing)
    sizes = {c: len(data[c]) for c in lists}
    if len(set(sizes.values())) > 1:
        raise InputError(Mistake(file, lists[0], sizes, "lists of one length"))
    found, errors, notes = {c: list(data[c]) for c in lists}, data.get("errors"), []
    if isinstance(errors, list) and len(errors) == len(found[OUTPUT]):
        found[OUTPUT] = [0 if failed else n for failed, n in zip(errors, found[OUTPUT], strict=True)]
    if START not in found:
        found[START], note = _sent(file, data, len(found[OUTPUT]))
        notes.append(note)
    return found, notes


def _sent(file: str, data: dict[str, Any], requests: int) -> tuple[list[float], str]:
    """Seconds at which a benchmark without start times sends its requests, and how, in words."""
    rate, burstiness, most = data.get("request_rate"), data.get("burstiness", 1.0), data.get("max_concurrency")
    rate = float("inf") if rate == "inf" else rate
    for name, value, expected in (
        ("request_rate", rate, "requests/s (no start_times say when they were sent), or inf"),
        ("burstiness", burstiness, "a number > 0"), ("max_concurrency", 1 if most is None else most, "a number ≥ 1"),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise InputError(Mistake(file, name, value, expected))
    if rate == math.inf:
        sent, how = np.zeros(requests), "all at once"
    else:
        gaps = np.random.default_rng(SEED).gamma(burstiness, 1.0 / (rate * burstiness), requests)
        sent, how = np.cumsum(gaps) - gaps[:1], f"gaps drawn at its {rate:g} requests/s"
    if most is not None and most < requests:
        sent = np.array(_one_ends(file, data, sent.tolist(), int(most)))
        how += f", at most {most:g} at a time"
    return sent.tolist(), f"no start times: sent as the benchmark does, {how}"


def _one_ends(file: str, data: dict[str, Any], ready: list[float], most: int) -> list[float]:
    """Send times of requests with this many under way at a time: in order, as one before ends."""
    first, later = (data.get(c) for c in ("ttfts", "itls"))
    if not all(isinstance(x, list) and len(x) == len(ready) for x in (first, later)):
        raise InputError(
            Mistake(file, "ttfts", None, "ttfts and itls of each request, which say when the next is sent")
        )
    try:
        took = [float(t) + float(sum(gaps)) for t, gaps in zip(first, later, strict=True)]  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(Mistake(file, "itls", None, "seconds: ttfts a number, itls a list of each request")) from None
    ends: list[float] = []
    sent = []
    for at, seconds in zip(ready, took, strict=True):
        start = max(at, heapq.heappop(ends)) if len(ends) == most else at
        heapq.heappush(ends, start + seconds)
        sent.append(start)
    return sent


# -------------------------------------------------------------------------------------------------------- servers


def server(file: str, lines: Iterable[str]) -> Columns:
    """The requests that a server's log has to the end.

    Raises:
        InputError: no request in it, or none with its tokens.
    """
    ended: list[dict[str, Any]] = []
    prompts: dict[str, tuple[float, int]] = {}
    outputs: dict[str, int] = {}
    asked: set[str] = set()
    last, years = -math.inf, 0.0
    for line in lines:
        if line.startswith("{"):
            ended += _ended_json(line)
        elif (stamp := _SGLANG.match(line)) is not None:
            if " Finish: obj=" in line and "'meta_info': {" in line:
                numbers = _NUMBER.findall(line[line.rindex("'meta_info': {") :])
                ended.append({k: float(v) for k, v in numbers} | {"logged": _seconds(stamp[1])})
        elif (stamp := _VLLM.match(line)) is not None:
            rest = line[stamp.end() :]
            if (request := _REQUEST.search(rest)) is not None:
                asked.add(request[1])
                at = _seconds(f"2000-{stamp[1]}") + years
                if at < last - _HALF_A_YEAR:
                    years, at = years + _LEAP_YEAR, at + _LEAP_YEAR
                last = at
                if (tokens := _count(rest, "prompt")) is not None:
                    prompts[request[1]] = at, tokens
            elif (response := _RESPONSE.search(rest)) is not None and (tokens := _count(rest, "output")) is not None:
                key = response[1] if response[1] in prompts else f"{response[1]}-0"  # completions: the first prompt's
                outputs[key] = tokens + (outputs.get(key, 0) if "delta" in (response[2] or "") else 0)
    if ended:
        return _ended(ended)
    both = [(*prompts[k], outputs[k]) for k in prompts if k in outputs]
    if both:
        columns = {name: list(x) for name, x in zip((START, PROMPT, OUTPUT), zip(*both, strict=True), strict=True)}
        notes = ["arrivals to the second, as the log has them"]
        if len(both) < len(prompts):
            notes.append(f"{len(prompts) - len(both):,} of {len(prompts):,} requests left out (no answer in the log)")
        return columns, notes
    expected = (
        "requests that end, with their tokens: SGLang's --log-requests, or vLLM's --enable-log-requests "
        "--enable-log-outputs with VLLM_LOGGING_LEVEL=DEBUG and no --max-log-len"
    )
    raise InputError(
        Mistake(file, "", f"{len(asked):,} requests without token ids" if asked else "no request", expected)
    )


def _ended_json(line: str) -> list[dict[str, Any]]:
    """The request of a line of SGLang's JSON log that states that it ended; none of other lines, or of one cut off."""
    try:
        row = json.loads(line)
        meta = row["out"]["meta_info"] if row["event"] == "request.finished" else None
        return [] if meta is None else [meta | {"logged": _seconds(row["timestamp"])}]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def _ended(rows: list[dict[str, Any]]) -> Columns:
    """SGLang's: a request came `e2e_latency` before its answer was sent, or else before the line was written."""

    def has(row: dict[str, Any], name: str) -> bool:
        return isinstance(row.get(name), int | float)

    known = [r for r in rows if has(r, "prompt_tokens") and has(r, "e2e_latency")]
    sent = all(has(r, "response_sent_to_client_ts") for r in known)
    notes = [] if sent else ["arrivals are when the line was written less the time it took: as exact as its clock"]
    if len(known) < len(rows):
        notes.append(f"{len(rows) - len(known):,} of {len(rows):,} requests left out (no tokens or no latency)")
    return {
        START: [r["response_sent_to_client_ts" if sent else "logged"] - r["e2e_latency"] for r in known],
        PROMPT: [r["prompt_tokens"] for r in known],
        OUTPUT: [r.get("completion_tokens", 0) for r in known],
    }, notes  # fmt: skip


def _count(line: str, what: str) -> int | None:
    """Token ids of a line of vLLM's log; the last list of that name, as texts that quote one come before it."""
    found = _IDS[what].findall(line)
    return None if not found or not found[-1].strip() else found[-1].count(",") + 1


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp()
