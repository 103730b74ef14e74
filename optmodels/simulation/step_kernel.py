"""Parts of `latency.steps.StepCosts` compiled, for simulators whose records x have its coefficients as fields."""

from __future__ import annotations

import numpy as np

from optmodels.latency.steps import StepCosts
from optmodels.simulation.engine import compiled

NO_WINDOW = 1 << 60


def coefficients(c: StepCosts) -> dict[str, float]:
    """Fields of a record that the parts below read, by the name of its field, and every coefficient in seconds."""
    touched = 1.0 - c.experts.active / c.experts.experts if c.experts else 0.0
    window = c.window
    return {
        **{k: v for k, v in vars(c).items() if k.endswith("_s")},
        "experts_s": c.experts.all_s if c.experts else 0.0, "untouched": np.log(touched) if touched > 0 else -np.inf,
        "window": window.tokens if window else NO_WINDOW, "window_share": window.share if window else 0.0,
        "pair_share": window.pair_share if window else 0.0, "drafts": c.drafts, "tokens": c.tokens,
    }  # fmt: skip


@compiled
def seen(x, c):  # type: ignore[no-untyped-def]
    """Mean over the layers of the tokens attended to."""
    return x.window_share * min(c, float(x.window)) + (1.0 - x.window_share) * c


@compiled
def pairs(x, p, k):  # type: ignore[no-untyped-def]
    """Pairs of p prompt tokens over k earlier ones (`StepCosts.pairs`)."""
    hidden, before = max(k + p - x.window, 0.0), max(k - x.window, 0.0)
    return p * (k + 0.5 * p) - x.pair_share * 0.5 * (hidden - before) * (hidden + before)


@compiled
def experts(x, tokens):  # type: ignore[no-untyped-def]
    """Seconds for the experts that this many tokens touch (`Experts.seconds`)."""
    return x.experts_s * (1.0 - np.exp(tokens * x.untouched)) if x.experts_s > 0 else 0.0


@compiled
def clock(x, steps):  # type: ignore[no-untyped-def]
    """Tokens of a request that decoded in this many steps."""
    return steps if x.drafts == 0 else int(steps * x.tokens + 1e-9)
