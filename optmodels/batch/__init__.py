"""LLM-Pilot's static batches, alone or by offloading: operating points, latencies, costs, and waits for slots."""
