"""How the choice of one's own rows was set, and judged: on LLMs that had no say in it.

    python benchmarks/chosen_rows.py FOLDER

Of every deployment of an LLM that was left out of the fit, ``rows-to-measure`` chooses five rows: of all its loads,
three times of nine tenths of them and four times of six tenths, drawn by chance, since one choice for each of 21
deployments says little. They pull the coefficients, and the other rows are predicted. The LLMs are halved, about as
many rows in each; a setting is chosen where its median error of TTFT is least on one half, and judged on the other.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small systems: threads wait for one another

import numpy as np
from engine_model import DUPLICATE, TARGETS, UNKNOWN, Rows, no_version, own_deployments, predictions, read, without_llms

from optmodels.latency.engines.choice import ALONG, choose
from optmodels.latency.engines.fit import Form, Own
from optmodels.latency.engines.forms import FIRST_TOKEN_FORM, STEP_FORM
from optmodels.latency.engines.own import pulled

COUNT = 5
SHARES = {0.9: 3, 0.6: 4}  # of the candidates → draws, besides all of them once
HALF = ("llama-3.1-70b", "gpt-oss-120b", "llama-3.1-8b")
MISFIT = (STEP_FORM.own.misfit, FIRST_TOKEN_FORM.own.misfit)


def with_own(form: Form, **changes: object) -> Form:
    """The form with other assumptions on rows of one's own."""
    return replace(form, own=replace(form.own, **changes))


@dataclass(frozen=True)
class Setting:
    """By what rows are chosen, and by what they pull."""

    chosen: tuple[Form, Form]
    along: Mapping[str, float]
    pull: tuple[Form, Form] = (STEP_FORM, FIRST_TOKEN_FORM)


def settings() -> tuple[dict[str, Setting], dict[str, Setting]]:
    """Of the choice; and, the choice as it is, of the pull."""
    choices = {}
    for times in (0.0, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0):
        forms = tuple(with_own(f, misfit=times * m) for f, m in zip((STEP_FORM, FIRST_TOKEN_FORM), MISFIT, strict=True))
        for longer in (0.5, 0.7, 1.0, 1.4, 2.0) if times in (1.0, 1.5) else (1.0,):
            along = {name: longer * length for name, length in ALONG.items()}
            choices[f"misfit × {times:g}, lengths × {longer:g}"] = Setting(forms, along)
    as_is, first = (STEP_FORM, FIRST_TOKEN_FORM), FIRST_TOKEN_FORM
    own: Own = first.own
    pulls = {"as it is": first}
    pulls |= {
        f"spread × {x:g}": with_own(first, spread={k: x * v for k, v in own.spread.items()}) for x in (0.5, 0.7, 1.4)
    }
    pulls |= {f"noise {x:g}": with_own(first, noise=x) for x in (0.06, 0.24)}
    pulls |= {f"share of factors {x:g}": with_own(first, factors=x) for x in (0.2, 0.8)}
    return choices, {f"pull: {name}": Setting(as_is, ALONG, (STEP_FORM, form)) for name, form in pulls.items()}


def judged(rows: Rows, cases: list[tuple], setting: Setting) -> Iterator[tuple[str, bool, dict[str, np.ndarray]]]:
    """Of each choice: the LLM, whether of all candidates, and |predicted/measured − 1| of other rows by target."""
    frame, labels = rows.frame, no_version(rows)
    for models, members, pool in cases:
        candidates, order = rows.loops(pool)
        matter, _ = rows.loops(members)
        chosen = order[choose(models, candidates, matter, COUNT, forms=setting.chosen, along=setting.along).rows]
        rest = np.setdiff1d(members, chosen)
        seconds = predictions(pulled(models, rows.served(chosen), setting.pull), rows, labels)
        error = {t: np.abs(seconds[t][rest] / frame[t].to_numpy()[rest] - 1.0) for t in TARGETS}
        yield frame.llm[members[0]], len(pool) == len(members), error


def main() -> None:
    """Choose, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    frame = read(args.folder)
    frame = frame[~frame.why.isin((UNKNOWN, DUPLICATE))].reset_index(drop=True)
    rows, rng, cases = Rows(frame), np.random.default_rng(1), []
    for models, members in own_deployments(rows, without_llms(rows), COUNT):
        cases.append((models, members, members))
        for share, draws in SHARES.items():
            size = max(COUNT + 3, int(share * len(members)))
            cases += [(models, members, np.sort(rng.choice(members, size, replace=False))) for _ in range(draws)]
    for named in settings():
        median = {}
        for name, setting in named.items():
            each = list(judged(rows, cases, setting))
            halves = [np.concatenate([e["ttft_s"] for llm, _, e in each if (llm in HALF) == mine]) for mine in (1, 0)]
            median[name] = [float(np.median(x)) for x in (*halves, np.concatenate(halves))]
            ttft, tpot = (np.median(np.concatenate([e[t] for _, whole, e in each if whole])) for t in TARGETS[::-1])
            one, other, both = median[name]
            print(f"{name:34} TTFT: one half {one:.1%}, the other {other:.1%}, all {both:.1%}; of all candidates "
                  f"{ttft:.1%}, TPOT {tpot:.1%}", flush=True)  # fmt: skip
        for mine, other in ((0, 1), (1, 0)):
            best = min(median, key=lambda name: median[name][mine])
            print(f"chosen on half {mine + 1}: {best}: {median[best][mine]:.1%}; on half {other + 1} "
                  f"{median[best][other]:.1%}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
