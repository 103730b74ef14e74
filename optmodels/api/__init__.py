"""The verbs as functions, one file a verb: `optmodels.solve` is ``optmodels solve``, with the same names and options.

`optmodels` imports each function when it is first used.
"""

VERBS_BY_JOB = {
    "plan": (
        "plan", "new", "solve", "explain", "evaluate", "fewest_gpus", "max_rate", "sweep", "compare", "backtest",
    ),
    "trust": ("check", "replay", "simulate", "stress"),
    "use": ("report", "export", "replan", "migrate"),
    "latencies": (
        "measure", "calibrate", "rows_to_measure", "operating_points", "attribute", "batch_limits", "tables",
        "prefix_hits",
    ),
    "reference": ("list", "schema"),
}  # fmt: skip
VERBS = tuple(verb for verbs in VERBS_BY_JOB.values() for verb in verbs)
