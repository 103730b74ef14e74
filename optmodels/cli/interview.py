"""new --interactive: an instance of any formulation from answers, one question at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from optmodels.errors import InputError, Mistake, printable

T = TypeVar("T")


class Asked(NamedTuple):
    """A question: what it fills in, its words, the answer that an empty line gives (None: none), how one is read."""

    name: str
    words: str
    default: str | None
    read: Callable[[str], Any]


class Interview(NamedTuple):
    """What is asked for an instance of a formulation, and the instance that answers make."""

    questions: Callable[[], Sequence[Asked]]
    instance: Callable[[Mapping[str, Any]], dict[str, Any]]


def interview(
    questions: Sequence[Asked], answer: Callable[[], str], say: Callable[[str], None], again: bool
) -> dict[str, Any]:
    """Answers by the name of their question.

    Args:
        questions: in their order.
        answer: the next line of input, with its line end; empty at the end of input.
        say: shows a prompt or a mistake.
        again: ask again after an answer that cannot be; else it is a mistake.

    Raises:
        InputError: the input ends before the answers do, or an answer cannot be and nobody is there to ask.
    """
    given: dict[str, Any] = {}

    def wrong(asked: Asked, value: str) -> InputError:
        say("\n")  # below the prompt
        return InputError(Mistake("<stdin>", asked.name, value, asked.words))

    for asked in questions:
        while True:
            say(f"{asked.words}{f' [{asked.default}]' if asked.default else ''}: ")
            line = answer()
            if not line and asked.default is None:
                raise wrong(asked, "end of input")
            text = line.strip() or asked.default or ""
            try:
                given[asked.name] = asked.read(text)
                break
            except (ValueError, InputError) as error:
                if not again or not line:
                    raise wrong(asked, text) from None
                say(f"  {printable(str(error), 300)}\n")
    return given


def instance(formulation: str) -> str:
    """The YAML of an instance from answers on standard input, prompts on stderr.

    Raises:
        InputError: nothing is asked for this formulation; see `interview`; or the answers make no instance.
    """
    from optmodels import question
    from optmodels.loading import load

    def say(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    if formulation not in INTERVIEWS:
        raise InputError(Mistake(None, "--interactive", formulation, f"one of {', '.join(INTERVIEWS)}"))
    asking = INTERVIEWS[formulation]
    given = interview(asking.questions(), sys.stdin.readline, say, again=sys.stdin.isatty())
    if not sys.stdin.isatty():
        say("\n")
    made = asking.instance(given)
    try:
        load(made)
    except InputError as error:
        raise (question.as_options(error) if formulation == "fleet" else error) from None
    return question.as_yaml(made, f"optmodels new {formulation} --interactive")


# ----------------------------------------------------------------------------------------------------- answers


def _one_of(known: Any, what: str, spelled: Callable[[Any], Any] = str) -> Callable[[str], str]:
    def read(text: str) -> str:
        text = spelled(text)
        if text not in known:
            from difflib import get_close_matches

            near = get_close_matches(text, list(known), 3, 0.4)
            raise ValueError(f"no {what} of the catalogue" + (f"; near it: {', '.join(near)}" if near else ""))
        return text

    return read


def _positive(kind: Callable[[str], T]) -> Callable[[str], T]:
    def read(text: str) -> T:
        value = kind(text)
        if not value > 0:  # type: ignore[operator]
            raise ValueError("a number above 0")
        return value

    return read


def _or_none(read: Callable[[str], T]) -> Callable[[str], T | None]:
    return lambda text: read(text) if text else None


def _whole(text: str) -> int:
    return int(text)


def _several(read: Callable[[str], T]) -> Callable[[str], list[T]]:
    """One or more, with commas between."""

    def all_of(text: str) -> list[T]:
        found = [read(part.strip()) for part in text.split(",") if part.strip()]
        if not found:
            raise ValueError("at least one")
        return found

    return all_of


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError("a share above 0, at most 1")
    return value


def _llm() -> Callable[[str], str]:
    from optmodels import catalog
    from optmodels.catalog import spelling

    return _one_of(catalog.llms(), "LLM", lambda text: spelling.llm_of(text) or text)


_LLM = "LLM of `optmodels list catalog`, for example qwen3-32b"
_WEIGHTS = Asked(
    "weights", "Precision of its weights (fp16, fp8, int4 …; empty: as published)", "", lambda text: text or None
)


def _weights(given: Mapping[str, Any]) -> str:
    from optmodels import catalog

    return given["weights"] or catalog.published_precision(given["model"])


_INPUT = Asked("input_tokens", "Tokens of a prompt, mean", None, _positive(_whole))
_OUTPUT = Asked("output_tokens", "Tokens of an answer, mean", None, _positive(_whole))
_LATE = 0.95  # share of the requests that keep a limit


_E2E = "Seconds to the last token for 95 % of the requests{} (empty: any)"


def _limit(seconds: float) -> dict[str, float]:
    return {"at_most": seconds, "percentile": _LATE}


def _deadline(seconds: float | None) -> dict[str, dict[str, float]]:
    """The key of an SLO for the time of a whole request, where it is limited."""
    return {} if seconds is None else {"deadline_s": _limit(seconds)}


def _head(formulation: str, name: str, title: str) -> dict[str, Any]:
    return {"formulation": formulation, "schema": 1, "name": name, "title": title}


# ------------------------------------------------------------------------------------------------ formulations


def _cost_questions() -> list[Asked]:
    from optmodels import catalog
    from optmodels.catalog import spelling

    return [
        Asked("model", _LLM, None, _llm()),
        _WEIGHTS,
        Asked("batch", "Requests in flight: as one ends the next begins", "16", _positive(_whole)),
        _INPUT,
        _OUTPUT,
        Asked("tps", "Tokens/s at least, input and output together", None, _positive(float)),
        Asked("ttft", "Seconds to the first token for 95 % of the requests", "2", _positive(float)),
        Asked("tbt", "Seconds per further token for 95 % of the requests", "0.1", _positive(float)),
        Asked("e2e", _E2E.format(""), "", _or_none(_positive(float))),
        Asked(
            "cloud", "Machine list (aws, gcp, azure)", "aws", _one_of(catalog.pools(), "machine list", spelling.cloud)
        ),
        Asked("markets", "Markets (on_demand, spot, reserved_1y, reserved_3y)", "on_demand", _several(str)),
        Asked("budget", "USD/h at most (empty: any)", "", _or_none(_positive(float))),
    ]


def _cost_instance(given: Mapping[str, Any]) -> dict[str, Any]:
    name, lengths = given["model"], {k: given[k] for k in ("batch", "input_tokens", "output_tokens")}
    made = _head("cost_efficiency", f"{name}-{given['cloud']}", f"{name}: {given['batch']} requests in flight")
    made |= {
        "model": name, "precision": {"weights": _weights(given)}, "workload": lengths,
        "slo": {"kind": "real_time", "tps": given["tps"], "ttft_s": _limit(given["ttft"]),
                "tbt_s": _limit(given["tbt"]), **_deadline(given["e2e"])},
        "pool": {"catalog": given["cloud"]}, "markets": {"main": given["markets"]},
        "serving": "continuous", "strategies": {"families": ["high_end"]}, "latency": {"model": "default"},
    }  # fmt: skip
    return made if given["budget"] is None else made | {"budget_usd_per_hour": given["budget"]}


def _orchestration_questions() -> list[Asked]:
    from optmodels import catalog
    from optmodels.catalog import spelling

    return [
        Asked("models", "LLMs, with commas between (llama-3.1-8b, qwen2.5-14b)", None, _several(_llm())),
        Asked("gpu", "GPU type (h100, a100-80g, l40s …)", "h100", _one_of(catalog.gpus(), "GPU", spelling.gpu)),
        Asked("servers", "Servers", "1", _positive(_whole)),
        Asked("gpus", "GPUs in each", "8", _positive(_whole)),
        Asked("rate", "Requests/s, all models together", None, _positive(float)),
        Asked("cv", "Burstiness: 0 even, 1 Poisson, above 1 in bursts", "1", float),
        _INPUT,
        _OUTPUT,
        Asked("factor", "Deadline: times the time of an idle one-GPU instance", "2", _positive(float)),
        Asked("ttft", "Seconds to the first token at most (empty: any)", "", _or_none(_positive(float))),
        Asked("duration", "Seconds that requests arrive for", "300", _positive(float)),
    ]


def _orchestration_instance(given: Mapping[str, Any]) -> dict[str, Any]:
    models = given["models"]
    means = {"prompt_tokens": given["input_tokens"], "output_tokens": given["output_tokens"]}
    kinds = {k: [n - n // 2, n + n // 2] for k, n in means.items()}  # even between half and one and a half
    title = f"{len(models)} models on {given['servers']} × {given['gpus']} {given['gpu']}, {given['rate']:g} requests/s"
    slo = {"factor": given["factor"]} | ({} if given["ttft"] is None else {"ttft_s": given["ttft"]})
    return _head("orchestration", "my-models", title) | {
        "cluster": {"servers": [{"server": "s", "count": given["servers"], "gpu": given["gpu"],
                                 "gpus": given["gpus"]}]},
        "models": [{"model": m} for m in models],
        "candidates": {"tp": [n for n in (1, 2, 4, 8) if n <= given["gpus"]], "batch": [2, 8, 32, 128]},
        "serving": "continuous", "latency": {"model": "default"},
        "requests": {"trace": {"generated": {
            "requests_per_s": given["rate"], "cv": given["cv"], "duration_s": given["duration"],
            "mix": [kinds], "models": dict.fromkeys(models, 1), "seed": 1,
        }}},
        "slo": slo, "bins": {"lengths": 2, "slo": 1},
    }  # fmt: skip


def _reserved_questions() -> list[Asked]:
    from optmodels import catalog
    from optmodels.catalog import geography

    machines = {m.machine for m in catalog.machines("aws")}
    return [
        Asked("model", _LLM, None, _llm()),
        _WEIGHTS,
        _INPUT,
        _OUTPUT,
        Asked("regions", "AWS regions, with commas between (us-east-1, eu-central-1)", None,
              _several(_one_of(geography.places(), "region"))),
        Asked("rate", "Requests/s, mean over the week, all regions together", None, _positive(float)),
        Asked("machine", "AWS machine (g6.xlarge, p5.48xlarge …)", "g6e.xlarge", _one_of(machines, "AWS machine")),
        Asked("discount", "Price of three years reserved over on demand", "0.45", _share),
        Asked("ttft", "Seconds to the first token for 95 % of the requests, round trip included", "1",
              _positive(float)),
        Asked("tbt", "Seconds per further token for 95 % of the requests", "0.1", _positive(float)),
        Asked("e2e", _E2E.format(", round trip included"), "", _or_none(_positive(float))),
        Asked("keep", "Share of demand to serve after the loss of any region (empty: none is lost)", "",
              _or_none(_share)),
    ]  # fmt: skip


def _reserved_instance(given: Mapping[str, Any]) -> dict[str, Any]:
    from optmodels import catalog

    machine = next(m for m in catalog.machines("aws") if m.machine == given["machine"])
    usd = machine.prices.on_demand or 0.0
    made = _head(
        "reserved_capacity", f"{given['model']}-regions", f"{given['model']} in {len(given['regions'])} regions"
    )
    made |= {
        "regions": given["regions"], "network": {"catalog": "aws"},
        "services": [{
            "service": "chat",
            "slo": {"ttft_s": _limit(given["ttft"]), "tbt_s": _limit(given["tbt"]), **_deadline(given["e2e"]),
                    "queue_s": 0.2 * given["ttft"]},
            "demand": {"kind": "diurnal", "hours": 168, "total_requests_per_second": given["rate"],
                       "curve": "azure-2024-conv"},
            "workload": {"model": given["model"], "weights": _weights(given), "input_tokens": given["input_tokens"],
                         "output_tokens": given["output_tokens"]},
        }],
        "serving": "continuous", "latency": {"model": "default"},
        "machines": [{
            "machine": machine.machine, "gpu": machine.gpu, "gpu_count": machine.gpu_count,
            "prices": {"on_demand": usd, "reserved_3y": round(usd * given["discount"], 6)},
        }],
        "terms": ["reserved_3y", "on_demand"],
    }  # fmt: skip
    return made if given["keep"] is None else made | {"resilience": {"lose_any_region_keep": given["keep"]}}


def _fleet_questions() -> list[Asked]:
    def limit(text: str) -> tuple[float, float] | None:
        return (_positive(float)(text), _LATE) if text else None

    def quotas(text: str) -> list[tuple[str, int]]:
        from optmodels.cli.asking import quota_of

        return [quota_of(part.strip()) for part in text.split(",") if part.strip()]

    def some(text: str) -> list[str]:
        return [part.strip() for part in text.split(",") if part.strip()]

    return [
        Asked("model", _LLM, None, _llm()),
        _WEIGHTS,
        _INPUT,
        _OUTPUT,
        Asked("rate", "Requests/s", None, _positive(float)),
        Asked("ttft", "Seconds to the first token for 95 % of the requests (empty: any)", "", limit),
        Asked("tpot", "Seconds per further token for 95 % of the requests (empty: any)", "", limit),
        Asked("e2e", _E2E.format(""), "", limit),
        Asked("clouds", "Clouds, with commas between (aws, gcp, azure)", "aws", some),
        Asked("region", "Region (empty: that of each cloud's list)", "", lambda text: text or None),
        Asked("quota", "GPUs of a type at most, as in h100=16, l40s=8 (empty: no quota)", "", quotas),
        Asked("survive", "Deployments that may be lost at a time", "0", _whole),
        Asked("budget", "USD/h at most (empty: any)", "", lambda text: _positive(float)(text) if text else None),
    ]


def _fleet_instance(given: Mapping[str, Any]) -> dict[str, Any]:
    from optmodels import question

    return question.instance(question.Question(**given))


INTERVIEWS = {
    "cost_efficiency": Interview(_cost_questions, _cost_instance),
    "fleet": Interview(_fleet_questions, _fleet_instance),
    "orchestration": Interview(_orchestration_questions, _orchestration_instance),
    "reserved_capacity": Interview(_reserved_questions, _reserved_instance),
}
