"""Latencies of serving engines from global coefficients: what to plan with where nothing was measured."""
