"""Engines with continuous batching: operating points, bounds and predictions of latencies, costs of iterations."""
