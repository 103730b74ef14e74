"""The first command of a newcomer: names, units and lists as people write them."""

import pytest
import yaml
from pydantic_core import PydanticCustomError

from optmodels.errors import InputError
from optmodels.question import quota_of
from optmodels.units import REQUESTS, convert, tokens

ASKED = ["plan", "--input", "1k", "--output", "300", "--rate", "30/s", "--ttft-p95", "800 ms", "--tpot", "50ms"]
LLAMA = ["--model", "llama-3.3-70b", "--gpu", "h100"]


@pytest.mark.parametrize("more", [
    ["--model", "meta-llama/Llama-3.3-70B-Instruct"], ["--model", "Qwen/Qwen3-32B"], ["--model", "Llama 3.3 70B"],
    ["--model", "qwen3-32B"], ["--model", "QWEN3_32B"], [*LLAMA[:2], "--gpu", "H100"],
    [*LLAMA[:2], "--gpu", "NVIDIA H100 80GB HBM3"], [*LLAMA, "--quota", "H100=24"], [*LLAMA, "--cloud", "AWS"],
    [*LLAMA, "--cloud", "aws,gcp"], [*LLAMA, "--precision", "bf16"], [*LLAMA, "--ttft-p99", "1s"],
    [*LLAMA, "--market", "on-demand"],
])  # fmt: skip
def test_thirteen_spellings_are_read(cli, more):
    asked = [x for x in ASKED if "--ttft-p99" not in more or x not in ("--ttft-p95", "800 ms")]
    said = cli(*asked, *more)
    assert said.status == 0 and "optimal, proved" in said.out, said.err


def test_the_file_keeps_what_was_written_and_says_what_was_assumed(cli, folder):
    said = cli(*ASKED, "--model", "meta-llama/Llama-3.1-8B-Instruct", "--cloud", "aws,gcp", "--quota", "H100=24",
               "--write", "mine.yaml")  # fmt: skip
    assert said.status == 0, said.err
    made = yaml.safe_load((folder / "mine.yaml").read_text())
    (workload,) = made["workloads"]
    assert (workload["name"], workload["model"]) == ("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct")
    assert workload["slo"] == {"ttft_s": {"at_most": "800 ms", "percentile": 0.95}, "tpot_s": "50ms"}
    assert workload["buckets"] == [{"input_tokens": 1000, "output_tokens": 300, "requests_per_s": 30.0}]
    for line in ("Region of aws: us-east-1", "Region of gcp: us-central1", "GPUs: h100 only"):
        assert line in said.out and line in made["notes"]
    assert {p["catalog"] for p in made["pool"]} == {"aws", "gcp"} and cli("solve", "mine.yaml").status == 0


@pytest.mark.parametrize(("more", "expected"), [
    ([*LLAMA, "--ttft-p95", "800", "--tpot", "50"], ["--ttft-p95: got 800; expected a TTFT with its unit: '800 ms' or"
                                                     " '800 s'", "--tpot: got 50; expected a TPOT with its unit"]),
    (["--model", "gpt-4"], ["--model: got 'gpt-4'", "closed", "optmodels list catalog"]),
    (["--model", "Qwen3-30B"], ["did you mean qwen3-30b-a3b, ", "optmodels list catalog"]),
    ([*LLAMA[:2], "--gpu", "A100"], ["several are called so: a100-40g, a100-80g"]),
    (["--model", "Qwen/Qwen3-32B-FP8", "--precision", "bf16"], ["--precision: got 'bf16'; expected fp8"]),
    ([*LLAMA, "--rate", "30/fortnight", "--input", "8q"], ["--rate: got '30/fortnight'", "--input: got '8q'"]),
    ([*LLAMA, "--ttft-p95", "0.8 q"], ["--ttft-p95: got '0.8 q'; expected a quantity in s"]),
    ([*LLAMA, "--ttft-p95", "0,8 s"], ["decimals have a point"]),
    ([*LLAMA, "--tpot", "20 tokens/s"], ["--tpot: got '20 tokens/s'; expected seconds a token: this rate is '50 ms'"]),
    ([*LLAMA, "--precision", "W8A8"], ["--precision: got 'W8A8'; expected weights in", "latencies of int8 are not"]),
    ([*LLAMA, "--market", "reserved_1y"], ["--market: got 'reserved_1y'; expected a market that aws has prices of"]),
    ([*LLAMA[:2], "--cloud", "gcp", "--gpu", "b300"], ["--gpu: got 'b300'", "(--cloud aws has it)"]),
])  # fmt: skip
def test_what_is_ambiguous_or_impossible_is_asked_about(cli, more, expected):
    said = cli(*ASKED, *more)
    assert said.status == 2 and said.out == ""
    for text in expected:
        assert text in said.err


@pytest.mark.parametrize(("text", "per_s"), [
    ("2k/min", 2000 / 60), ("1M/day", 1e6 / 86400), ("5k", 5000.0), ("100 per minute", 100 / 60), ("3 RPS", 3.0),
    ("30 Requests/Min", 0.5), ("90 requests / h", 0.025),
])  # fmt: skip
def test_rates_as_people_write_them(text, per_s):
    assert convert(text, REQUESTS) == pytest.approx(per_s)


def test_seconds_and_tokens_as_people_write_them():
    assert [convert(x, "s") for x in ("800 MS", "1 S", "1.5 Seconds", "20 ms/token")] == [0.8, 1.0, 1.5, 0.02]
    assert [tokens(x) for x in ("8_000", "8,000", "1e3", "8K", "1.5k")] == [8000, 8000, 1000, 8192, 1500]
    with pytest.raises(PydanticCustomError):
        tokens("12,34")
    assert [quota_of(x) for x in ("h100=24", "H100:8")] == [("h100", 24), ("H100", 8)]


def test_a_region_of_one_cloud_names_the_other_that_it_leaves_out(cli):
    said = cli(*ASKED, *LLAMA, "--cloud", "aws,gcp", "--region", "us-central1")
    assert said.status == 0 and "Left out: aws (no region us-central1 there)." in said.out


def test_a_quota_names_the_gpus_that_may_be_rented_unless_gpu_does(cli, folder):
    cli(*ASKED, "--model", "llama-3.3-70b", "--quota", "h100=24", "--write", "quota.yaml")
    said = cli(*ASKED, "--model", "llama-3.3-70b", "--quota", "h100=24", "--gpu", "h100,h200", "--write", "both.yaml")
    assert "No quota for h200: any number." in said.out
    pools = [yaml.safe_load((folder / f).read_text())["pool"] for f in ("quota.yaml", "both.yaml")]
    assert all(m.startswith("p5.") for m in pools[0]["include"])
    assert set(pools[1]["include"]) > set(pools[0]["include"])
    none = cli(*ASKED, "--model", "llama-3.3-70b", "--quota", "h100=0")
    assert none.status == 0 and "p5.48xlarge" not in none.out.split("Next")[0]


def test_quotas_as_people_write_them():
    for text in ("H100=24", "h100:24", "24xH100", "24 x H100", "24 H100", "H100 x24", "H100 24", "H100 = 24"):
        gpu, most = quota_of(text)
        assert (gpu.lower(), most) == ("h100", 24), text
    assert quota_of("MI300X=8") == ("MI300X", 8) and quota_of("a100 80gb=16") == ("a100 80gb", 16)
    for text in ("H100", "24", "A100 80GB", "H100=many", "=24", "H100=-1", ""):
        with pytest.raises(InputError, match="h100=16"):
            quota_of(text)
