"""Autoscaling of one replica type on a rate history: policies, their cost and SLO attainment, and hindsight.

* `history`: request counts in bins of ten seconds, read from a table or a request log.
* `levels`: whole replica counts of least cost for a known path, by levels (exact).
* `queue`: a fluid queue in steps of ten seconds: which share of the requests waits too long.
* `policies`: rules from observations to replica counts: HPA, KEDA, KPA, APA, WVA, Dynamo's planner, SageServe's,
  scheduled, static, and the quantile rule `plan`.
* `running`: a policy minute by minute, on one replica type or several.
* `backtest`: policies side by side on one history, tuned on its first days, judged on the rest.
"""
