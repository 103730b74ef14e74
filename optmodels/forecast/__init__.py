"""Forecasts of request rates as quantiles with their stated coverage.

* `points`: median forecasts from the minutes before: last value, damped ETS, ARIMA, yesterday's change.
* `conformal`: quantiles from the method's own past errors, per horizon, on a rolling window.
"""
