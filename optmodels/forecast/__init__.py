"""Forecasts of request rates as quantiles that cover what they state.

* `points`: median forecasts from the minutes before: last value, damped ETS, ARIMA, yesterday's change.
* `conformal`: quantiles from the method's own past errors, per horizon, on a rolling window.
"""
