"""The commented instance file that ``optmodels new orchestration`` writes."""

TEMPLATE = """\
# An orchestration problem: servers with GPUs, models, requests with deadlines; find which instances to run on which
# GPUs (parallelism, batch) and which requests to send where. Solve it with:   optmodels solve THIS_FILE --gap 0.001
# Numbers are in the unit their name ends with; strings may carry their own: ttft_s: "800 ms".
formulation: orchestration
schema: 1
name: my-models
title: Three models on three 8-GPU servers

cluster:
  servers:
    - {server: p3, count: 3, gpu: v100-16g-pcie, gpus: 8}   # p3-1, p3-2, p3-3; a GPU of the catalogue or of gpus:
    # - {server: big, gpu: h100, gpus: 8}                    # servers may differ
  # failed_gpus: {p3-2: [0, 5]}
  # stock: {h100: 4}             # most GPUs of a type that may be used
  # tensor_groups_cross_servers: false
  # pipelines_cross_servers: false

models:                          # what requests ask for; a model of the catalogue, or architecture: with its shape
  - {model: llama-3.2-3b}
  - {model: mistral-7b}          # minimum_instances: 1, maximum_instances: 4, weight: 2, attainment_at_least: 0.9
  - {model: qwen2.5-14b}         # t_slice_s: 0.04   seconds per token of an idle one-GPU instance; default: computed

candidates: {tp: [1, 2, 4, 8], pp: [1], dp: [1], batch: [4, 8, 16, 32, 64]}   # models[].candidates for one model alone

latency:
  roofline: roofline             # or one of:
  # decay:                       # MaaSO eq 1: F = T0·(1 − δ·ln(ε + min(B, W)))
  #   - {model: mistral-7b, tp: 2, base_tokens_per_s: 78, delta: 0.12, epsilon: 0.0}
  # fitted: {mistral-7b: a100-80g-mistral-7b-fp16-vllm-static}   # optmodels calibrate writes such files
  # measured: rates.csv          # columns model, gpu, tp, pp, load, tokens_per_s

requests:
  trace:
    generated: {maaso: 1, requests: 5000, requests_per_s: 10, cv: 2, seed: 1,
                models: {llama-3.2-3b: 0.4, mistral-7b: 0.35, qwen2.5-14b: 0.25}}
    # file: trace.csv            # Azure CSV, Mooncake JSONL, or your own with a model column
  # classes:                     # or rates, for any number of requests
  #   - {model: mistral-7b, output_tokens: 400, slo_factor: 1.2, requests_per_s: [20, 40, 30]}
  # classes_bin_s: 3600
  # model: mistral-7b            # of a trace that names none

slo:
  factor: 1.2                    # θ where the trace has none: deadline = θ·tokens·t_slice
  # ttft_s: 10
  # shortfall_penalty: 1.0       # attainment_at_least may be missed at this price; the shortfall is reported

objective: {alpha: 0.8, beta: 0.2}   # MaaSO eq 6: α·S + (1 − α)(β·T + (1 − β)·L); alpha: 1 is MaaSO*
# objective: {kind: lexicographic, order: [attainment, latency, throughput]}

# change:                        # against what runs now
#   running: [{model: mistral-7b, tp: 2, batch: 16, count: 3}]
#   score_per_start: 0.002

memory: {vram_usable: 0.9, tokens_per_slot: mean}
bins: {lengths: 2, slo: 3}       # groups of requests by length and allowance; seconds: width of the time bins
"""
