"""What an engine that batches continuously can do: levels, bounds and predictions of latencies, costs of its steps."""
