"""From a user's own machine, or the logs of it, to the measurement file that `calibrate` reads.

* `grid`: what to measure, the most informative points first.
* `transformer`: layers of a catalogue architecture with random weights, one engine step at a time (PyTorch, lazy).
* `offload`: KV in host memory or on disk, moved beside the computation as LP(11) and LP(12) assume, or before it.
* `remote`: attention of a part of the batch in another process or on another device.
* `session`: one rank's step, warmed up and timed; `parallel`: as many ranks as the tensor-parallel degree.
* `device`: what the machine is, and what it does at best (FLOP/s, bytes/s).
* `predict`: what LP(4), LP(11)-(14) say of the same points: the other half of LP(18).
* `campaign`: order, budget, journal, file.
* `importers`: what vLLM, SGLang, GenAI-Perf, AIPerf, LLMPerf and Prometheus wrote.
"""
