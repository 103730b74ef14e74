"""Assumptions before any data of the two targets: sizes physics suggests, and how far they may be off.

Coefficients of times at peak are efficiencies (1.2: a fifth slower than the peak), coefficients of counts are
microseconds (milliseconds for `fixed` and `running` of the first token). Engines differ most in the effect of a prompt
on the others' steps and in host overhead; precisions in the efficiency of their kernels.
"""

from __future__ import annotations

from optmodels.latency.engines.fit import Form, Own

STEP_FORM = Form(
    prior={
        "dense": (1.2, 0.15), "experts": (1.2, 0.15), "kv": (1.4, 0.5), "decode": (1.0, 0.7), "prefill": (1.2, 0.5),
        "routed": (4.0, 0.5), "attention": (4.0, 1.0), "collective": (1.6, 0.7), "layer": (50.0, 0.7),
        "moe": (25.0, 0.7), "mla": (50.0, 0.7), "comm": (9.0, 0.35), "running": (12.0, 0.35), "prompt": (130.0, 0.35),
        "sparse": (40.0, 0.7), "sparse_prompt": (40.0, 0.7), "linear": (10.0, 0.7),
    },
    spread={
        "engine": {"*": 0.02, "dense": 0.05, "prompt": 1.0, "layer": 0.15, "comm": 0.12},
        "precision": {"*": 0.02, "dense": 0.1, "experts": 0.15, "layer": 0.04, "prefill": 0.3, "routed": 0.3,
                      "decode": 0.12, "moe": 0.5},
        "maker": {"*": 0.15, "dense": 0.3, "experts": 0.3, "kv": 0.3, "prefill": 0.3, "routed": 0.3, "layer": 0.5,
                  "moe": 1.5, "mla": 0.5, "comm": 0.5, "running": 0.3, "prompt": 0.7},
    },
    factors={
        "engine": 0.1, "gpu": 0.05, "llm": 0.07, "engine|llm": 0.1, "llm|precision": 0.07, "llm|gpu": 0.07,
        "version": 0.1, "configuration": 0.1,
    },
    noise=(0.3, 0.08),
    trends={"engine": {"age": 0.02}},
    own=Own(
        {"*": 0.2, "layer": 0.4, "prompt": 2.5, "prefill": 0.4, "routed": 0.4, "kv": 0.3, "running": 1.0,
         "collective": 1.2, "experts": 0.5},
        factors=0.2, noise=0.03, misfit=0.1,
    ),
)  # fmt: skip
FIRST_TOKEN_FORM = Form(
    prior={
        "fixed": (12.0, 0.5), "layer": (60.0, 1.0), "moe": (30.0, 1.0), "mla": (300.0, 0.5), "comm": (20.0, 1.0),
        "step": (1.0, 0.7),
        "weights": (1.0, 0.7), "prefill": (1.6, 0.25), "routed": (4.0, 0.3), "attention": (5.0, 0.2),
        "collective": (1.5, 0.7), "burst": (0.15, 1.0), "burst_attention": (0.5, 0.5), "queue": (0.5, 1.0),
        "running": (0.2, 1.0), "tokens": (3.0, 1.0),
    },
    spread={
        "engine": {"*": 0.05, "burst": 0.9, "step": 0.7, "fixed": 1.75, "prefill": 0.6, "attention": 0.1,
                   "layer": 0.35},
        "precision": {"*": 0.25, "step": 0.09},
    },
    factors={
        "engine": 0.1, "gpu": 0.05, "llm": 0.15, "engine|llm": 0.2, "llm|precision": 0.15, "llm|gpu": 0.3,
        "version": 0.4, "configuration": 0.2,
    },
    noise=(0.35, 0.2),
    trends={
        "configuration": {"crowd": 0.1, "prompt length": 0.15}, "engine|llm": {"crowd²": 0.1},
        "version": {"crowd·prompt length": 0.2},
        "engine": {"crowd": 0.15, "crowd²": 0.1, "prompt length": 0.15, "crowd·prompt length": 0.1},
    },
    own=Own(
        {"*": 1.0, "burst": 2.0, "attention": 0.3, "layer": 2.5, "weights": 0.4}, factors=0.4, noise=0.12, misfit=0.4,
    ),
)  # fmt: skip
