"""Engines that batch continuously, recomputed for checks: the share of one engine that requests take at a step and a
wait.

Request by request and chunk by chunk, in plain numbers, what `optmodels.engine.continuous` does in closed form over
arrays; shares no code with it. The seconds of a step and the tokens that a cache holds are the toolkit's
(`optmodels.latency`): they are data here.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist

from optmodels.engine.continuous import EngineLimits, LatencyLimit, Stage, seconds_and_quantile
from optmodels.engine.costs import EngineCosts
from optmodels.latency.speculation import Speculation
from optmodels.latency.steps import StepCosts
from optmodels.plans.findings import Findings
from optmodels.plans.lines import EngineLine, latency_source

SLACK = 1e-6
TTFT = {0.9: (0.75, 1.2, 1.05), 0.95: (0.82, 1.15, 1.06), 0.99: (0.98, 0.97, 1.09)}


@dataclass(frozen=True)
class Request:
    """A kind of requests: its lengths and, at a level, its share of an engine.

    An engine that only prefills is asked for one token of output, one that only decodes for no new ones of a prompt.
    With `drafts` verified in a step it gets `tokens`. `filled`: steps that its prompt fills; `charge`: the time it
    pays because steps carry a prompt; `longer`: seconds of a chunk on its rank over its share of an even step, and
    `waits`: what all pay because steps wait for the busiest rank.
    """

    prompt: float
    new: float
    output: float
    weight: float
    chunks: float = 0.0
    filled: float = 0.0
    prefill: float = 0.0
    charge: float = 0.0
    longer: float = 0.0
    waits: float = 0.0
    decode: float = 0.0
    drafts: int = 0
    tokens: float = 1.0

    @property
    def decodes(self) -> float:
        """Steps after the first token, in the mean."""
        return float(steps_after(self.output, self.drafts, self.tokens))

    @property
    def steps(self) -> float:
        """That it takes part in."""
        return self.chunks + self.decodes

    @property
    def prompt_work(self) -> float:
        """Seconds that its prompt adds to all steps."""
        return self.prefill + self.charge + self.waits

    @property
    def work(self) -> float:
        """Seconds that it adds to all steps."""
        return self.prompt_work + self.decode


def steps_after(output: float, drafts: int, tokens: float) -> float:
    """Mean number of steps for the tokens after the first, where each of the draft tokens is accepted at random.

    Up to 1,024 tokens it is the number expected, linear between whole ones; every further `tokens` take a step.
    """
    asked = output - 1.0
    if tokens == 1:
        return asked
    expected = _expected_steps(drafts, tokens)
    whole = min(math.floor(asked), len(expected) - 1)
    if whole == len(expected) - 1:
        return expected[-1] + (asked - whole) / tokens
    return expected[whole] + (asked - whole) * (expected[whole + 1] - expected[whole])


@cache
def _expected_steps(drafts: int, tokens: float) -> list[float]:
    """Of 0 to 1,024 tokens: a step makes one and, with probability pʲ, at least j draft tokens more."""
    p, most = 0.5, 1.0
    least = 0.0
    while most - least > 1e-15:
        if 1 + sum(p**j for j in range(1, drafts + 1)) > tokens:
            most = p
        else:
            least = p
        p = (least + most) / 2
    expected = [0.0]
    while len(expected) <= 1024:
        # Each draft that is accepted, the j-th with probability pʲ, saves the remainder with j tokens less.
        left = [expected[-j] if j <= len(expected) else 0.0 for j in range(1, drafts + 2)]
        expected.append(1 + left[0] + sum(p**j * (left[j] - left[j - 1]) for j in range(1, drafts + 1)))
    return expected


def _decoding_sums(r: Request, first: float) -> tuple[float, float]:
    """Σ of first + g·i over a request's decodes i < n, and of their squares; n is a mean, which may be no whole one."""
    n, g = r.decodes, r.tokens
    once, twice = n * (n - 1) / 2, n * (n - 1) * (2 * n - 1) / 6
    return n * first + g * once, n * first**2 + 2 * g * first * once + g * g * twice


def drafted(alone: StepCosts, draft: StepCosts | None, s: Speculation | None) -> StepCosts:
    """A step's costs with draft tokens: k passes of the draft, and k tokens more of each decoding request to verify."""
    if s is None:
        return alone
    guess = draft or alone.scaled(s.head or 0.0)
    a_pass = guess.fixed_s + (guess.experts.all_s if guess.experts else 0.0)
    found = {x: getattr(alone, x) + getattr(guess, x) for x in vars(alone) if x.startswith("prompt_")}
    of_each = alone.prompt_token_s * s.drafts + s.drafts * guess.decode_request_s
    pairs = alone.prompt_pair_s * sum(range(s.drafts + 1))  # with the draft tokens before it and itself
    found["fixed_s"] = alone.fixed_s + sum(a_pass for _ in range(s.drafts))
    found["decode_request_s"] = alone.decode_request_s + of_each + pairs
    for x in ("context_s", "mixed_context_s"):
        found[x] = getattr(alone, x) + s.drafts * getattr(guess, x) + s.drafts * alone.prompt_pair_s
    made = s.accepted
    if made is None:
        p = s.acceptance or 0.0
        made = s.drafts if p == 1 else (p - p ** (s.drafts + 1)) / (1 - p)
    return replace(alone, **found, drafts=s.drafts, tokens=1 + made)


@cache
def _contexts(costs: StepCosts, r: Request) -> float:
    """Earlier tokens that all decodes of a request attend to."""
    every, _ = _decoding_sums(r, r.prompt)
    if costs.window is None:
        return every
    inside = min(max(math.ceil((costs.window.tokens - r.prompt) / r.tokens), 0), r.decodes)
    beyond = r.decodes - inside
    seen = inside * r.prompt + r.tokens * inside * (inside - 1) / 2 + beyond * costs.window.tokens
    return float(costs.window.share * seen + (1 - costs.window.share) * every)


def _prefill(costs: StepCosts, r: Request, chunk: float) -> tuple[int, float]:
    """Chunks and seconds of a prompt, next to the cost of carrying one in a step."""
    earlier, chunks = r.prompt - r.new, math.ceil(r.new / chunk)
    pairs = r.new * (earlier + r.new / 2)
    if costs.window is not None:
        w, share = costs.window.tokens, costs.window.pair_share
        inside = max(0.0, min(r.prompt, w) - min(earlier, w))
        capped = inside * (min(earlier, w) + inside / 2) + (r.new - inside) * w
        pairs = share * capped + (1 - share) * pairs
    context = sum(float(costs.seen(earlier + i * chunk)) for i in range(chunks))
    seconds = costs.prompt_token_s * r.new + costs.prompt_pair_s * pairs + costs.prompt_context_s * context
    return chunks, seconds


@cache
def _largest_mean(most: float, load: float, full: float) -> float:
    """Largest mean concurrency whose probability of at least `most` is `full`."""
    from optmodels.special import betainc  # scipy.stats' beta.cdf is this, after a second of imports

    low, high = 0.0, most
    for _ in range(60):
        middle = (low + high) / 2
        if betainc(most, middle * (1 - load) / load + 1, load) <= full:
            low = middle
        else:
            high = middle
    return low


def _form(quantile: float | None) -> tuple[float, float, float]:
    if quantile is None or quantile <= 0.5:
        return 0.5, 1.0, 1.0
    known = sorted(TTFT)
    if quantile <= known[0] or quantile >= known[-1]:
        return TTFT[known[0] if quantile <= known[0] else known[-1]]
    above = next(q for q in known if q >= quantile)
    below = known[known.index(above) - 1]
    at = math.log((1 - below) / (1 - quantile)) / math.log((1 - below) / (1 - above))
    first, own, waits = (a + (b - a) * at for a, b in zip(TTFT[below], TTFT[above], strict=True))
    return first, own, waits


def _waits(quantile: float | None, most: float | None) -> float:
    """Quantile of the wait in mean waits, at most: the largest over the share of requests that wait at all.

    ln(share/above)/share is largest at e·above, or where all wait: of quantiles below 1 − 1/e.
    """
    if quantile is None or quantile <= 0.5:
        return 1.0
    above = 1 - quantile
    turn = 0.0 if most is None else 1 / (1 + most / 2)
    share = max(turn, min(math.e * above, 1.0))
    return math.log(share / above) / share


@dataclass(frozen=True)
class Level:
    """An engine at the step and wait of a line; `outside`: cost of a step with a prompt that `fixed` lacks.

    `uneven`: what `fixed` has of the busiest rank's work. `decoding`: the mixture's decode in a step. `room` and `kv`
    belong to each of its data-parallel attention ranks. `full`: largest probability that slots or KV cache are all
    taken. `filled`: largest share of `room` that prompts take in the mean.
    """

    fixed: float
    outside: float
    load: float
    room: float
    mixed: float
    stage: Stage
    requests: dict[str, Request]
    typical: float
    kv: float
    prefill_share: float
    longest: float
    ranks: int = 1
    uneven: float = 0.0
    decoding: float = 0.0
    full: float = 0.005
    filled: float = 0.9

    def prefilling(self, r: Request) -> float:
        """Share of the time that goes to prompts: with requests like this one, or of the mixture."""
        return self.load * max(r.prompt_work / r.work if r.work > 0 else 0.0, self.prefill_share)

    def following(self, r: Request) -> float:
        """Seconds of prompts that come while one is prefilled, in the mean over prompts by their seconds."""
        return self.prefilling(r) * max(r.prompt_work, self.longest)

    def can_hold(self, r: Request) -> bool:
        """Whether a rank's cache does at the request's largest."""
        return r.prompt + r.output + r.drafts <= self.kv

    def each(self, r: Request) -> float:
        """Seconds that a running request adds to a step in the mean: such a one or the mixture's."""
        return max(r.work / r.steps, self.typical)

    @property
    def able(self) -> list[Request]:
        """Classes that can be on it; one-token answers have nothing to decode."""
        return [r for r in self.requests.values() if self.can_hold(r) and (self.stage != "decode" or r.output > 1)]

    @property
    def heaviest(self) -> float:
        """`each` of the heaviest requests that can be on it."""
        return max((self.each(r) for r in self.able), default=self.typical)

    def most_prompts(self, power: int) -> float:
        """Largest rate of prompts' seconds to that power, of any mixture: all work is of the requests with most."""
        return self.load * max((r.prompt_work**power / r.work for r in self.able), default=0.0)

    def beside(self, r: Request, step: float) -> float:
        """Length of a step next to prompts."""
        own = r.decode / r.work if r.work > 0 else 0.0
        return self.fixed + self.load * step * max(own, 1 - self.prefill_share)

    def turn(self, r: Request, step: float) -> float:
        """Seconds for which its prompt keeps others from prefill; 0 where engines only decode."""
        if self.stage == "decode":
            return 0.0
        return r.filled * (self.beside(r, step) + self.outside) + r.prefill


def at_level(
    limits: EngineLimits, costs: StepCosts, kv: float, requests: dict[str, Request], step: float,
    stage: Stage = "both", ranks: int = 1,
) -> Level | None:  # fmt: skip
    """Constants of the level of a step time; None where there is none.

    `kv` is the capacity of the `ranks` together, `limits` hold for each.
    """
    requests = {k: replace(r, drafts=costs.drafts, tokens=costs.tokens) for k, r in requests.items()}
    every = list(requests.values())
    total = sum(r.weight for r in every)

    def mean(value: Mapping[str, float]) -> float:
        return sum(requests[k].weight * v for k, v in value.items()) / total

    slots, batched = limits.slots, limits.max_num_batched_tokens
    decoding = slots + slots * costs.drafts
    contexts = {k: _contexts(costs, r) for k, r in requests.items()}
    at_once = {k: _prefill(costs, r, max(r.new, 1.0))[1] for k, r in requests.items()}
    alone = {k: at_once[k] + (costs.prompt_step_s if r.new > 0 else 0.0) + costs.decode_request_s * r.decodes
             + costs.context_s * contexts[k] for k, r in requests.items()}  # fmt: skip
    few = {k: float(math.ceil(r.new / min(batched, limits.chunk_tokens or batched))) for k, r in requests.items()}
    prompts = max(step - costs.fixed_s, 0.0) * mean(few) / mean(alone)
    varies = costs.mixed_context_s != costs.context_s or (costs.experts is not None and costs.experts.all_s > 0)
    mixed = min((limits.more_prompts or 3) * prompts, 1.0) if varies else 0.0
    mixed = 1.0 if stage == "prefill" else mixed
    lightest = costs.decode_request_s + costs.context_s * min(r.prompt for r in every)
    crowd = min(ranks * slots, max(step - costs.fixed_s, 0.0) / lightest) if lightest > 0 else ranks * slots
    bare = costs.fixed_s
    if costs.experts is not None:
        bare += mixed * costs.experts.all_s
        bare += (1 - mixed) * float(costs.experts.seconds(crowd + crowd * costs.drafts))
    room = float(batched - decoding)
    if step <= bare:
        return None
    chunk = min(room, limits.chunk_tokens or math.inf)
    slope = costs.context_s + (costs.mixed_context_s - costs.context_s) * mixed
    made = {}
    for k, r in requests.items():
        chunks, prefill = _prefill(costs, r, chunk)
        decode = costs.decode_request_s * r.decodes + slope * contexts[k]
        longer = (ranks - 1) * (prefill - costs.prompt_expert_s * r.new) / chunks if chunks else 0.0
        made[k] = replace(
            r, chunks=chunks, filled=r.new / (ranks * room), prefill=prefill, longer=longer, decode=decode
        )
    if all(r.work <= 0 for r in made.values()):
        return None
    uneven = 0.0
    if any(r.longer > 0 for r in made.values()):
        many = _requests_of_a_step(costs.prompt_step_s, step - bare, made, stage)
        pays, total = {}, 0.0  # of a chunk so much longer than its share
        for x, width, longer in _longest(made):
            total += width * math.exp(-many * longer)
            pays[x] = total
            uneven += width * (1 - (1 + many * longer) * math.exp(-many * longer))
        made = {k: replace(r, waits=r.chunks * pays[r.longer]) for k, r in made.items()}
    within, shared = _prompt_steps(
        costs.prompt_step_s, step - bare - uneven, mean({k: r.work for k, r in made.items()}),
        mean({k: r.filled for k, r in made.items()}), mean({k: r.chunks - r.filled for k, r in made.items()}), stage,
    )  # fmt: skip
    if within < 1:
        made = {k: replace(r, charge=costs.prompt_step_s * (r.filled + shared * (r.chunks - r.filled)))
                for k, r in made.items()}  # fmt: skip
    fixed = bare + uneven + within * costs.prompt_step_s
    if fixed >= step:
        return None
    typical = mean({k: r.work for k, r in made.items()}) / mean({k: r.steps for k, r in made.items()})
    prefills = [mean({k: r.prompt_work**n for k, r in made.items()}) for n in (1, 2)]
    prefill_share = prefills[0] / mean({k: r.work for k, r in made.items()})
    longest = prefills[1] / prefills[0] if prefills[0] > 0 else 0.0  # by its own seconds
    outside = (1 - within) * costs.prompt_step_s
    return Level(fixed, outside, 1 - fixed / step, room, mixed if varies else 1.0, stage, made, typical, kv / ranks,
                 prefill_share, longest, ranks, uneven,
                 mean({k: r.decode for k, r in made.items()})
                 / (mean({k: r.decodes for k, r in made.items()}) or 1.0),
                 limits.overflow, limits.filled)  # fmt: skip


def _longest(requests: Mapping[str, Request]) -> list[tuple[float, float, float]]:
    """Each chunk's `longer`, in order, by how much it exceeds the one before, and chunks of a request this long."""
    chunks = dict[float, float]()
    for r in requests.values():
        chunks[r.longer] = chunks.get(r.longer, 0.0) + r.weight * r.chunks
    left, total, before = sum(chunks.values()), sum(r.weight for r in requests.values()), 0.0
    found = []
    for x in sorted(chunks):
        found.append((x, x - before, left / total))
        before, left = x, left - chunks[x]
    return found


def _requests_of_a_step(prompt_step: float, free: float, requests: Mapping[str, Request], stage: Stage) -> float:
    """Mean requests that end in a step and fill it: their work, its prompts' cost, its longest chunk at random."""
    every, longest = list(requests.values()), _longest(requests)
    total = sum(r.weight for r in every)
    work = sum(r.weight * r.work for r in every) / total
    filled = sum(r.weight * r.filled for r in every) / total
    sharing = sum(r.weight * (r.chunks - r.filled) for r in every) / total
    low, many = 0.0, max(free, 0.0) / work
    while many - low > 1e-15 * many:
        middle = (low + many) / 2
        if middle in (low, many):
            break
        carry = 1.0 if stage == "prefill" else middle * filled + 1 - math.exp(-middle * sharing)
        busiest = sum(width * (1 - math.exp(-middle * chunks)) for _, width, chunks in longest)
        low, many = (middle, many) if middle * work + prompt_step * carry + busiest < free else (low, middle)
    return many


def _prompt_steps(
    prompt_step: float, free: float, work: float, filled: float, sharing: float, stage: Stage
) -> tuple[float, float]:  # fmt: skip
    """Share of `prompt_step` that every step has, and for a chunk that shares its step its share of the rest.

    Of the mean request: at full load `many` of them end in a step.
    """
    if stage == "prefill":
        return 1.0, 0.0
    low, many = 0.0, free / (work + prompt_step * filled)
    while many - low > 1e-14 * many:
        middle = (low + many) / 2
        taken = middle * (work + prompt_step * filled) + prompt_step * -math.expm1(-middle * sharing)
        low, many = (middle, many) if taken < free else (low, middle)
    if free - prompt_step > work * many * (1 + 1e-12):
        return 1.0, 0.0
    shared = math.exp(-many * sharing)
    return 1 - (1 + many * sharing) * shared, shared


@cache
def _held(r: Request, waits: float) -> tuple[float, float]:
    """Σ over a request's steps of the tokens it holds, and of their squares; its prompt for some steps besides."""
    one, two = _decoding_sums(r, r.prompt + 1 + r.drafts)
    prompts = r.chunks + waits
    return prompts * r.prompt + one, prompts * r.prompt**2 + two


def capacities(
    level: Level, step: float, wait: float, most: float | None, slots: int,
    on_the_way: Mapping[str, float] | None = None, place_wait: float = 0.0, busiest: float = 0.0, burst: float = 0.0,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Share of an engine's capacities that one request/s of each bucket takes.

    `place_wait`: mean wait for one of the slots, each with KV cache for any request; 0: none is counted with.
    `busiest`: largest planned share of full engines' throughput. `on_the_way`: seconds that the cache of each
    bucket's prompt is on its way from or to the engine. `burst`: the index of dispersion of its arrivals less 1, times
    the mean turn.
    """
    joins = 1.0 if level.stage == "decode" else 0.0
    in_cache = {k: _held(r, joins + (on_the_way or {}).get(k, 0.0) / step) for k, r in level.requests.items()}
    first, second = (sum(level.requests[k].weight * h[i] for k, h in in_cache.items()) for i in (0, 1))
    size = second / first
    running = _largest_mean(slots, level.load, level.full)
    crowd = _largest_mean(level.kv / size, level.load, level.full)
    spread = math.sqrt(crowd / (1 - level.load))
    z, sigma = (level.kv / size - crowd) / max(spread, 1e-300), size * spread
    found: dict[str, dict[str, float]] = {}
    v, prompts = level.prefill_share, level.stage != "decode"
    gamma = min(r.prompt_work / (r.filled * step) for r in level.requests.values()) if prompts else 1.0
    for k, r in level.requests.items():
        s = level.turn(r, step)
        turn = r.filled * (level.fixed + level.outside + step * level.load * (1 - v) ** 2) + r.prefill
        turn += r.decode * level.load * v * v / gamma if v > 0 else 0.0
        whole = level.ranks * s  # of the one rank that prefills it
        blocked = most is not None and whole > most * wait * (1 + SLACK)
        waiting = 0.0 if not prompts else math.inf if blocked else s * (whole + burst) / (2 * wait) + turn
        one, two = in_cache[k]
        fits = crowd > 0 and level.can_hold(r)
        memory = (
            step * (one + z * two / (2 * sigma * (1 - level.load))) / (level.kv - z * sigma / 2) if fits else math.inf
        )
        found[k] = {
            "time": r.work / level.load,
            "running": r.steps * step / running / level.ranks if running > 0 else math.inf,
            "memory": memory / level.ranks,
            "tokens": r.new * step / level.ranks / (level.filled * level.room),
            "chunks": r.chunks * step / level.mixed if level.mixed < 1 and prompts else 0.0,
            "waiting": waiting,
        }
    if place_wait > 0:
        held = wait * level.fixed / step
        each = {k: r.work + (r.steps * level.fixed + held) / (level.ranks * slots) for k, r in level.requests.items()}
        share = _busy_places(level, slots, {k: each[k] for k in each if level.can_hold(level.requests[k])}, place_wait,
                             most, busiest)  # fmt: skip
        for k, r in level.requests.items():
            able = level.can_hold(r) and share > 0
            found[k] |= dict.fromkeys(("running", "memory"), each[k] / share if able else math.inf)
    return found


def _busy_places(
    level: Level, places: int, each: Mapping[str, float], wait: float, most: float | None, busiest: float
) -> float:  # fmt: skip
    """Largest share of full engines' throughput at which requests wait for a place for no longer in the mean; 0: none.

    `each`: seconds between two departures of a full engine, of every bucket that it can hold.
    """
    kinds = [level.requests[k] for k in each]
    largest = max((r.prompt + r.output + r.drafts for r in kinds), default=math.inf)
    if places * largest > level.kv * (1 + 1e-9):
        return 0.0
    work = min(level.requests[k].work / s for k, s in each.items())
    slowest = level.ranks * max(each.values()) * (1 - 1 / (2 * math.sqrt(places)))

    def keeps(share: float) -> bool:
        alone, load = (1 - work) * share * places, work * share
        before = 0.0  # P(N < k) over P(N = k), of the birth–death chain
        for k in range(1, places + 1):
            before = (before + 1) / (alone / k + load)
        chance = 1 / (1 + before * (1 - share))
        of_waiting = slowest / (1 - share)
        return chance * of_waiting <= wait and (most is None or of_waiting <= wait * (1 + most / 2))

    low, high = 0.0, busiest
    if keeps(high):
        return high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def running_at(alone: float, load: float, quantile: float, besides: float = 0.0) -> float:
    """Running requests at a quantile, from mean, variance and skewness (Cornish and Fisher).

    `alone`: their mean if steps lasted as long as their fixed part; `besides` is added to their variance.
    """
    mean, z = (alone + load) / (1 - load), NormalDist().inv_cdf(quantile)
    skew = (1 + load) / math.sqrt(alone + load)
    return mean + math.sqrt(mean / (1 - load) + besides) * (z + skew * (z * z - 1) / 6)


def latencies(
    level: Level, r: Request, step: float, wait: float, most: float | None, slots: int, factor: float,
    request_s: float, quantiles: tuple[float | None, float | None, float | None], placed: bool = False,
) -> tuple[float, float, float]:  # fmt: skip
    """TTFT, time per output token and E2E of a bucket, each at its quantile; `wait` for prefill and a place.

    `placed`: of engines that requests wait for a place of, so that `slots` often run.
    """

    def ttft(q: float | None) -> float:
        return _first_token(level, r, step, wait, most, factor, request_s, q)

    def decode(q: float | None) -> float:
        each = level.each(r)
        left = level.following(r) / (1 - level.load) / r.decodes if r.decodes > 0 else 0.0
        if q is None:  # of the request's own work in a step only its decodes' work prolongs these
            own = r.decode / r.decodes if r.decodes > 0 else 0.0
            mean = (level.fixed + each) / (1 - level.load) - each + own + left
            mean += max(_mean_of_few(level, r, step) - mean, 0.0) * min(max(2 - r.decodes / 8, 0), 1)
            full = level.fixed + level.ranks * slots * max(level.heaviest, each) + left
            return min(mean, full) if placed else mean
        alone, others = level.load * level.fixed / each, 1 - level.most_prompts(1)
        prompts = level.most_prompts(2) * step / r.decodes / others**2 if r.decodes > 0 else 0.0
        crowd = running_at(alone, level.load, q, prompts / each**2)
        filled = level.ranks * slots * max(level.heaviest, each)  # every slot, with the heaviest
        of_crowd = level.fixed + 1.15 * min(max(crowd, 1.0) * each, filled) + left
        others = min(max(running_at(alone, level.load, q), 1.0), filled / each)
        return of_crowd + max(_few_steps(level, r, step, q, others) - of_crowd, 0.0) * min(max(2 - r.decodes / 8, 0), 1)

    # The deadline's time to first token has the factor, its decodes have it in the costs already.
    at_ttft, at_tpot, at_e2e = quantiles
    per_token = r.decodes / (r.output - 1) if r.output > 1 else 0.0
    return ttft(at_ttft), decode(at_tpot) * per_token, ttft(at_e2e) + r.decodes * decode(at_e2e)


def _first_token(
    level: Level, r: Request, step: float, wait: float, most: float | None, factor: float, request_s: float,
    q: float | None,
) -> float:  # fmt: skip
    first, own, waits = _form(q)
    others = level.prefilling(r) * step * (level.ranks - 1) / level.ranks  # prompts of other ranks
    each = step if q is None or q <= 0.5 else level.beside(r, step) + others
    alone = level.outside + max(r.longer - level.uneven, 0.0)
    base = first * step + own * (r.chunks * (each + alone) + r.prefill) + level.following(r) / 2 + request_s
    return factor * (base + waits * _waits(q, most) * wait)


def whole(
    level: Level, r: Request, step: float, wait: float, slots: int, factor: float, request_s: float, quantile: float
) -> tuple[float, float, float, float]:  # fmt: skip
    """Mean TTFT, TTFT at the quantile, mean seconds from there to the last token, E2E at the quantile.

    As predicted where all else is the mixture's. The tails' additions of TTFT and of decoding to their means are added
    as if they had nothing to do with each other. Quantiles up to the median stand for the mean.
    """
    first, late = (_first_token(level, r, step, wait, None, factor, request_s, q) for q in (None, quantile))
    rest = slow = 0.0
    if r.decodes > 0:
        left = level.following(r) / (1 - level.load) / r.decodes
        mean = (level.fixed + level.typical) / (1 - level.load) - level.typical + r.decode / r.decodes + left
        rest = slow = r.decodes * mean
        if quantile > 0.5:
            slow = r.decodes * (step_beside(level, slots, quantile) + left)
    apart = math.hypot(max(late - first, 0.0), max(slow - rest, 0.0))
    return first, max(late, first), rest, first + rest + apart


def step_beside(level: Level, slots: int, quantile: float) -> float:
    """Seconds of a step next to so many running requests as are not exceeded at a quantile; at least one."""
    running = running_at(level.load * level.fixed / level.typical, level.load, quantile)
    return level.fixed + level.typical * min(max(running, 1.0), level.ranks * slots)


def between_tokens(
    level: Level, costs: StepCosts, limits: EngineLimits, quantiles: Mapping[str, float | None], step: float,
    slots: int, placed: bool = False,
) -> dict[str, float]:  # fmt: skip
    """Longest time between two tokens of buckets, each for a share of these times (None: the mean); seconds.

    It is a step: of the running requests as a token sees them, and with prompts that arrived meanwhile. These are of
    the one kind that makes it longest, as if no others came. As many as arrive are negative binomial, 1/(1 − P²) times
    as varied as Poisson; the chance to be longer is halved for them, and no step has more than its tokens. The few
    steps of a short answer follow that of its own prompt, in which more arrive.
    """
    of = level.requests

    def mean(name: str) -> float:
        r = of[name]
        per_token = latencies(level, r, step, 0.0, None, slots, 1.0, 0.0, (None, None, None), placed)[1]
        return per_token * (r.output - 1) / r.decodes if r.decodes > 0 else 0.0

    tokens = sum(x.weight * x.decodes for x in of.values())
    seen = sum(x.weight * x.decodes * mean(name) for name, x in of.items() if x.decodes > 0) / tokens if tokens else 0.0
    longest = {q: _prompts_between(level, costs, limits, q, [seen]) for q in {*quantiles.values()} if q is not None}
    found = {}
    for k, quantile in quantiles.items():
        r = of[k]
        if quantile is None or r.output <= 1:
            found[k] = mean(k)
            continue
        each = level.each(r)
        alone = level.load * level.fixed / each + level.load  # one more than others see, in the mean
        running = running_at(alone, level.load, quantile) + 1
        own = max(r.decode / r.decodes if r.decodes > 0 else 0.0, level.decoding)
        found[k] = level.fixed + 1.15 * own * min(max(running, 1.0), level.ranks * slots) + longest[quantile]
        few = min(max(2 - r.decodes / 8, 0), 1)
        if few > 0 and r.decodes > 0 and level.most_prompts(1) > 0:
            even = max(step + r.decode / r.decodes / (1 - level.load), seen)
            before = [even + level.load**j * _of_its_prompt(level, r) for j in range(int(max(r.decodes, 1)))]
            found[k] += few * max(_prompts_between(level, costs, limits, quantile, before) - longest[quantile], 0.0)
    return found


def _prompts_between(
    level: Level, costs: StepCosts, limits: EngineLimits, quantile: float, before: Sequence[float]
) -> float:  # fmt: skip
    """What prompts make a time between two tokens longer by, at most, for this share of these times; seconds.

    They came in the step before, any of these seconds.
    """
    of = level.requests
    most = limits.max_num_batched_tokens
    chunks = {}
    for name, x in of.items():
        if x.chunks and level.can_hold(x):
            tokens = min(x.new, most, limits.chunk_tokens or most)
            _, work = _prefill(costs, replace(x, new=tokens), tokens)
            expert = costs.prompt_expert_s * tokens
            chunks[name] = level.ranks * (work - expert) + expert, tokens
    full = max((work * most / tokens for work, tokens in chunks.values()), default=0.0)
    longest = 0.0
    for name, (work, _) in chunks.items():
        busy = level.load * of[name].prompt_work / of[name].work
        came = [busy * seconds / (work + level.outside) / level.ranks for seconds in before]
        if work > 0 and max(came) > 0:
            among = 1 - (1 - quantile) / 2 / level.ranks
            count = _chunks_within(among, came, busy, math.ceil(full / (1.15 * work)))
            longest = max(longest, level.outside + min(1.15 * work * count, full) if count > 0 else 0.0)
    return longest


def _chunks_within(quantile: float, means: Sequence[float], busy: float, most: int) -> float:
    """Count that a negative binomial number, 1/(1 − busy²) times as varied, stays within; most at most.

    Its mean is any of these; above 30 the largest.
    """
    b = min(max(busy * busy, 1e-12), 1 - 1e-12)
    if (mean := max(means)) > 30:
        z = NormalDist().inv_cdf(quantile)
        return min(math.ceil(mean + z * math.sqrt(mean / (1 - b)) + (z * z - 1) / 6 * (1 + b) / (1 - b)), most)
    shapes, count, within = [mean * (1 - b) / b for mean in means], 0, 0.0
    while count < most:
        for r in shapes:
            log = math.lgamma(count + r) - math.lgamma(r) - math.lgamma(count + 1) + r * math.log1p(-b)
            within += math.exp(log + count * math.log(b)) / len(shapes)
        if within >= quantile:
            break
        count += 1
    return count


def seen_at_least(
    level: Level, costs: StepCosts, r: Request, rates: Mapping[str, float], quantile: float | None
) -> float:  # fmt: skip
    """Time per output token of a bucket at a quantile, at least, with Poisson arrivals at the planned rates.

    Whatever an engine does, a step lasts as long as with one request. Requests that come while its own prompt is
    prefilled come behind it, and a chunk of the first is in its next step. Derived without the level's bounds, which
    must not be below it. 0 of several attention ranks, and of the mean.

    Args:
        level: level of the engine, whose requests have their work.
        costs: costs of its steps.
        r: the bucket.
        rates: rates of every bucket on one engine, requests/s.
        quantile: quantile that the bound is for.
    """
    if quantile is None or level.ranks > 1 or level.stage != "both" or r.decodes <= 0:
        return 0.0
    came = {k: rate for k, rate in rates.items() if rate > 0 and level.requests[k].prefill > 0}
    least = costs.fixed_s
    if came:
        own = costs.fixed_s + r.prefill
        if -math.expm1(-sum(came.values()) * own) > 1 - quantile:
            least += min(level.requests[k].prefill / level.requests[k].chunks for k in came) / r.decodes
    return least * r.decodes / (r.output - 1)


def _mean_of_few(level: Level, r: Request, step: float) -> float:
    """Mean seconds of a decode step of a short answer, as if all requests were such; 0: no prompts come.

    A prompt prolongs its own step, and with it what comes in that the next one, and so on; and it came in a long step.
    """
    if r.decodes <= 0 or level.most_prompts(1) <= 0:
        return 0.0
    load = level.load
    after = load * (1 - float(load**r.decodes)) / (1 - load)
    return step + r.decode / r.decodes / (1 - load) + _of_its_prompt(level, r) * after / r.decodes


def _of_its_prompt(level: Level, r: Request) -> float:
    """Seconds by which the step of a request's own prompt is longer than others, as if all were such."""
    return r.prompt_work + level.load**2 * r.work / (1 - level.load**2)


def _few_steps(level: Level, r: Request, step: float, quantile: float, crowd: float) -> float:
    """Seconds of a decode step of a short answer at a quantile, with the prompts in its few steps counted; 0: none are.

    Prompts come from its own arrival on until its last step; prompts of any mixture are as many equal ones with the
    mean and the variance of the most.
    """
    load, square = level.most_prompts(1), level.most_prompts(2)
    if r.decodes <= 0 or load <= 0:
        return 0.0
    able = [x for x in level.able if x.prompt_work > 0]
    turns = {id(x): x.filled * (level.beside(x, step) + level.outside) + x.prompt_work for x in able}
    busy = level.load * max(turns[id(x)] / x.work for x in able)
    late = level.load * level.ranks * max(turns[id(x)] ** 2 / x.work for x in able)
    waits = late / (2 * (1 - busy)) if busy < 1 else math.inf
    own = r.chunks * (level.beside(r, step) + level.outside) + r.prompt_work
    mean = min((r.decodes * step + own + waits) * load**2 / square, 1e9)
    z = NormalDist().inv_cdf(quantile)
    free = 1 - load  # each is followed by those that come in its own time, and so on
    if mean <= 30 * free:
        count, within = 0, math.exp(-mean)
        while within < quantile:
            count += 1
            rate = mean + count * load
            within += math.exp(math.log(mean / rate) + count * math.log(rate) - rate - math.lgamma(count + 1))
        many = float(count)
    else:
        many = mean / free + z * math.sqrt(mean / free**3) + (1 + 2 * load) * (z * z - 1) / 6 / free**2
    one, heaviest = square / load, max(x.prompt_work for x in able)
    prompts = max(many * one, ((mean + z * math.sqrt(mean)) * one + (z * z - 1) / 6 * heaviest) / free)
    prompts *= 1.15 / r.decodes
    own_decode = max(r.decode / r.decodes, level.decoding)
    return level.fixed + 1.15 * own_decode * crowd + min(prompts, max(x.prompt_work / x.filled for x in able))


@dataclass(frozen=True)
class Kind:
    """Requests on engines: tokens of prompt and answer and the share of each class, what of a prompt is cached.

    `ttft`, `tpot` and `deadline` are the quantiles that their limits bound; None: the mean. Shares sum to 1. `itl`: the
    limit on the time between tokens.
    """

    lengths: tuple[tuple[float, float, float], ...]
    cached: float
    ttft: float | None
    tpot: float | None
    deadline: float | None = None
    itl: LatencyLimit | None = None

    @property
    def requests(self) -> dict[str, Request]:
        """One of each class, by its place in the list."""
        return {str(i): Request(prompt, max(prompt * (1 - self.cached), 1.0), output, share)
                for i, (prompt, output, share) in enumerate(self.lengths)}  # fmt: skip


SHARES = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)


def of_all(bound: Callable[[str, float | None], float], shares: Mapping[str, float], quantile: float | None) -> float:
    """Seconds that the share `quantile` of the requests is within (None: their mean), from bounds of each class.

    The least x such that, of each class the largest share with a bound within x, the classes' parts add up to it.

    Args:
        bound: bound of a class at a share of its requests.
        shares: shares of each class.
        quantile: quantile of the requests.
    """
    if quantile is None:
        return sum(share * bound(k, None) for k, share in shares.items())
    if len(shares) == 1:
        return bound(next(iter(shares)), quantile)
    at = {k: [(bound(k, g), g) for g in {*SHARES, quantile}] for k in shares}
    candidates = sorted({x for of in at.values() for x, _ in of})

    def within(x: float) -> float:
        return sum(share * max((g for y, g in at[k] if y <= x), default=0.0) for k, share in shares.items())

    # It grows with x: the first of the ascending candidates that is enough.
    return candidates[bisect_left(candidates[:-1], True, key=lambda x: within(x) >= quantile * (1 - 1e-9))]


@dataclass(frozen=True)
class Seen:
    """Latencies on an engine: TTFT without waiting, the addition by waiting, TPOT, mean E2E; seconds, at most.

    `deadline_s`: E2E at the quantile of the deadline. `itl_s`: time between tokens at its quantile; NaN: no limit.
    `running`: requests in flight at the most that it carries, λ·steps·a₀/(1 − λW) by Little's law.
    """

    first_s: float
    waiting_s: float
    tpot_s: float
    e2e_s: float
    deadline_s: float
    running: float
    itl_s: float = math.nan


def check_engine(
    found: Findings, where: str, line: EngineLine, engine: EngineCosts, limits: EngineLimits, kind: Kind,
    rate: float | None = None, in_flight: float = 0.0,
) -> Seen | None:  # fmt: skip
    """Every figure of an engine that serves a mixture of requests; their latencies, None where there is no such level.

    Args:
        found: the findings.
        where: the line, in words.
        line: line, as the plan states it.
        engine: its costs, of the model and of the draft model alone, and KV tokens: data.
        limits: limits of the instance.
        kind: the requests.
        rate: requests/s that the line promises; None: a closed-loop run.
        in_flight: requests of the closed-loop run, where at most N/(steps·a₀ + N·W) end in a second.
    """
    e, costs = line, drafted(engine.alone or engine.costs, engine.draft, engine.speculation)
    limits = limits.choosing(line.max_num_seqs)
    check_stated(found, where, e, engine, limits)
    level = None
    if engine.kv_tokens > 0 and e.wait_s > 0:
        told = limits.model_copy(update={"max_num_seqs": e.max_num_seqs})
        level = at_level(
            told, costs, engine.with_slots(limits.slots).kv_tokens, kind.requests, e.step_s, ranks=engine.ranks
        )
    if level is None:
        found.add(f"{where}: step and wait of a level", e.step_s, "a step above its fixed part", "s")
        return None
    shares = {k: r.weight for k, r in level.requests.items()}
    steps, work = (sum(shares[k] * getattr(r, name) for k, r in level.requests.items()) for name in ("steps", "work"))
    if rate is None:
        rate = in_flight / (steps * level.fixed + in_flight * work)
    placed = e.place_wait_s > 0
    of_each = capacities(
        level, e.step_s, e.wait_s, e.most_of_wait, e.max_num_seqs, None, e.place_wait_s, limits.busiest
    )
    each = {name: sum(shares[k] * of_each[k][name] for k in shares) for name in next(iter(of_each.values()))}
    takes = {k: v * rate for k, v in each.items()}
    names = sorted(e.capacities)
    found.require(f"{where}: capacities by name", names == sorted(takes), names, sorted(takes))
    for k, v in takes.items():
        found.close(f"{where}: {k} in use", e.capacities.get(k, math.nan), v, scale=1.0)
        found.at_most(f"{where}: {k} ≤ what there is", v, 1.0)

    def at(which: int, quantile: float | None, wait: float, level: Level = level) -> float:
        """TTFT (0), time per output token (1) or E2E (2) of the requests."""

        def of_class(k: str, q: float | None) -> float:
            return latencies(level, level.requests[k], e.step_s, wait, e.most_of_wait, e.max_num_seqs, engine.slower,
                             costs.request_s, (q, q, q), placed)[which]  # fmt: skip

        answering = {k: share for k, share in shares.items() if level.requests[k].output > 1}
        if which == 1 and quantile is None and answering:  # without a second token there is no mean of them
            return of_all(of_class, answering, None) / sum(answering.values())
        return of_all(of_class, shares, quantile)

    wait = e.wait_s + e.place_wait_s
    first, ttft = at(0, kind.ttft, 0.0), at(0, kind.ttft, wait)
    full = 1 / max(each.values())
    pause = math.nan
    if kind.itl is not None:
        q = seconds_and_quantile(kind.itl)[1]
        asked = {k: q for k, share in shares.items() if share > 0 and level.requests[k].output > 1}
        pause = max(between_tokens(level, costs, told, asked, e.step_s, e.max_num_seqs, placed).values(), default=0.0)
    return Seen(first, ttft - first, at(1, kind.tpot, wait), at(2, None, wait), at(2, kind.deadline, wait),
                full * steps * level.fixed / (1 - full * work), pause)  # fmt: skip


def check_stated(found: Findings, where: str, e: EngineLine, engine: EngineCosts, limits: EngineLimits) -> None:
    """An engine's limits are the instance's; its KV tokens and the source of its latencies follow from its costs.

    `limits`: with the least choice of max_num_seqs that is the line's or more. Where requests wait for a place it may
    be less.
    """
    check_slots(found, where, e, limits)
    for what, stated, true in (
        ("chunk_tokens", e.chunk_tokens, limits.chunk_tokens),
        ("max_num_batched_tokens", e.max_num_batched_tokens, limits.max_num_batched_tokens),
        ("source of latencies", e.latency, latency_source(engine.provenance)),
    ):  # fmt: skip
        found.require(f"{where}: {what}", stated == true, stated, true)
    found.close(f"{where}: KV tokens", e.kv_tokens, engine.with_slots(limits.slots).kv_tokens, "tokens")


def check_slots(found: Findings, where: str, e: EngineLine, limits: EngineLimits) -> None:
    """max_num_seqs is a choice of the instance's, or less where requests wait for a place; no wait is too long."""
    if e.place_wait_s > 0:
        found.at_most(f"{where}: max_num_seqs", e.max_num_seqs, limits.slots)
    else:
        found.require(f"{where}: max_num_seqs", e.max_num_seqs == limits.slots, e.max_num_seqs, limits.slots)
    found.at_most(f"{where}: longest mean wait", e.wait_s + e.place_wait_s, limits.wait_s, "s")
