"""From the logs of a benchmark to the measurement file that `calibrate` reads.

* `importers`: readers of the files that vLLM, SGLang, GenAI-Perf, AIPerf, LLMPerf, Prometheus and others write.
* `rows`: the measurement file.
"""
