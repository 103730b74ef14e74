"""The shipped catalogue data, read as plain files.

Shapes against published parameter counts, internal consistency of the machine lists, and the LLM-Pilot
tables cell by cell against values copied by hand from the paper, misprints included.
"""

import csv
import datetime
import re
from pathlib import Path

import pytest
import yaml

from optmodels import catalog
from optmodels.latency.work import layer_work

DATA = Path(__file__).resolve().parents[2] / "optmodels" / "catalog" / "data"

COLUMNS = [
    "machine",
    "provider",
    "region",
    "gpu",
    "gpu_count",
    "vram_gib",
    "vcpu",
    "ram_gib",
    "disk_gib",
    "disk_gbps",
    "net_gbps",
    "on_demand_usd_per_hour",
    "spot_usd_per_hour",
    "reserved_1y_usd_per_hour",
    "reserved_3y_usd_per_hour",
    "note",
]
NUMERIC = COLUMNS[4:-1]
ALWAYS = ["machine", "provider", "region", "gpu", "gpu_count", "vram_gib", "on_demand_usd_per_hour"]

GPU_NUMBERS = [
    "fp16_flops",
    "fp8_flops",
    "fp4_flops",
    "mem_bytes_per_s",
    "vram_gib",
    "pcie_bytes_per_s",
    "link_bytes_per_s",
]
LLM_INTEGERS = [
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn",
    "ffn_matrices",
    "vocab",
    "max_positions",
    "learned_positions",
]


def load_yaml(name):
    with (DATA / name).open(encoding="utf-8") as file:
        return yaml.safe_load(file)


def load_csv(name):
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    assert reader.fieldnames == COLUMNS, name
    return rows


GPUS = load_yaml("gpus.yaml")
LLMS = load_yaml("llms.yaml")
POOLS = load_yaml("pools.yaml")
MACHINES = {key: load_csv(pool["file"]) for key, pool in POOLS.items()}


def machine(pool, name):
    (row,) = [row for row in MACHINES[pool] if row["machine"] == name]
    return row


# ------------------------------------------------------------------------------------------------ LLMs


# Shapes that the plain count below does not have; tests/catalog/test_published_configs.py counts them by hand.
OWN_ARITHMETIC = {"compressed", "sparse", "attention_layers", "ffn_layers", "value_projection"}
OWN_WIDTH = re.compile(r"gemma-4|nemotron-3")  # of shared experts


def attention_parameters(llm):
    h, heads = llm["hidden"], llm["heads"]
    mla = llm.get("mla")
    if mla is None:
        wide = 3 if llm.get("attention_gate") else 2
        return wide * h * heads * llm["head_dim"] + 2 * h * llm["kv_heads"] * llm["head_dim"]
    nope, rope, value = mla["qk_nope_head_dim"], mla["qk_rope_head_dim"], mla["v_head_dim"]
    kv_rank, q_rank = mla["kv_lora_rank"], mla["q_lora_rank"]
    query = heads * (nope + rope)
    total = h * q_rank + q_rank * query if q_rank else h * query
    total += h * (kv_rank + rope)
    total += kv_rank * heads * (nope + value)
    index = mla.get("index_heads", 0) * mla.get("index_head_dim", 0)
    own = mla.get("index_layers", llm["layers"]) / llm["layers"]
    total += own * (q_rank * index + h * (mla.get("index_heads", 0) + mla.get("index_head_dim", 0)))
    return total + (2 if llm.get("attention_gate") else 1) * heads * value * h


def linear_parameters(llm):
    h, linear = llm["hidden"], llm["linear"]
    keys, values = linear["key_heads"] * linear["key_head_dim"], linear["value_heads"] * linear["value_head_dim"]
    if linear.get("kind") == "kda":  # projections of keys, values and results; ranks of decay and gate; one β a head
        rank = linear["value_head_dim"]
        return h * (2 * keys + 2 * values + linear["value_heads"]) + rank * (2 * h + keys + values)
    return h * (2 * keys + 2 * values + 2 * linear["value_heads"]) + values * h


def parameters(llm):
    h, layers, matrices = llm["hidden"], llm["layers"], llm["ffn_matrices"]
    moe = llm.get("moe")
    dense = layers if moe is None else moe.get("dense_layers", 0)
    linear = llm["linear"]["layers"] if "linear" in llm else 0
    total = (layers - linear) * attention_parameters(llm) + (linear and linear * linear_parameters(llm))
    total += dense * matrices * h * llm["ffn"]
    if moe is not None:
        latent = moe.get("latent", 0)
        routed = matrices * (latent or h) * moe["experts"] * moe["expert_ffn"] + 2 * h * latent
        total += (layers - dense) * (routed + matrices * h * moe.get("shared_ffn", 0) + h * moe["experts"])
    total += llm["vocab"] * h * (1 if llm["tied_embeddings"] else 2)
    return total + llm["learned_positions"] * h


@pytest.mark.parametrize("key", LLMS)
def test_llm_shape_gives_the_published_parameter_count(key):
    llm = LLMS[key]
    shape = catalog.llms()[key]
    if OWN_ARITHMETIC.isdisjoint(llm) and "heads" not in (llm.get("window") or {}):
        assert parameters(llm) == pytest.approx(layer_work(shape).params - shape.vision_params, rel=1e-9)
    assert layer_work(shape).params == pytest.approx(llm["params"], rel=0.02)


@pytest.mark.parametrize("key", LLMS)
def test_llm_entry_is_well_formed(key):
    llm = LLMS[key]
    assert llm["title"] and llm["source"]
    assert isinstance(llm["params"], float) and llm["params"] > 0
    assert isinstance(llm["tied_embeddings"], bool)
    for name in LLM_INTEGERS:
        assert isinstance(llm[name], int) and llm[name] >= 0, name
    assert llm["ffn_matrices"] in (2, 3)
    assert llm["heads"] % llm["kv_heads"] == 0
    assert llm["learned_positions"] == 0 or llm["learned_positions"] >= llm["max_positions"]
    if "moe" in llm:
        moe = llm["moe"]
        assert moe.keys() >= {"experts", "active", "expert_ffn"}
        assert 0 < moe["active"] < moe["experts"]
        assert 0 <= moe.get("dense_layers", 0) < llm["layers"]
        if not OWN_WIDTH.search(key):
            assert moe.get("shared_ffn", 0) == moe.get("shared_experts", 0) * moe["expert_ffn"]
    if "mla" in llm:
        mla = llm["mla"]
        assert llm["head_dim"] == mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"]
        assert llm["kv_heads"] == llm["heads"]
    if "window" in llm:
        assert 0 < llm["window"]["layers"] < llm["layers"]
    if "linear" in llm:
        assert 0 < llm["linear"]["layers"] < llm["layers"]


def test_opt_is_the_plain_transformer_of_the_paper():
    """Attention width h and a feed-forward of 4h: what LLM-Pilot's 24 h^2 counts."""
    for key in ("opt-6.7b", "opt-13b", "opt-30b"):
        llm = LLMS[key]
        assert llm["heads"] * llm["head_dim"] == llm["hidden"]
        assert llm["kv_heads"] == llm["heads"]
        assert llm["ffn"] == 4 * llm["hidden"] and llm["ffn_matrices"] == 2


# ------------------------------------------------------------------------------------------------ GPUs


@pytest.mark.parametrize("key", GPUS)
def test_gpu_entry_is_well_formed(key):
    gpu = GPUS[key]
    assert gpu["title"] and gpu["source"]
    assert set(gpu) <= {"title", "source", "note", "driver_gib", "driver_source", *GPU_NUMBERS}
    if "driver_gib" in gpu:  # some of the marketed memory is the driver's own
        assert 0.9 * gpu["vram_gib"] <= gpu["driver_gib"] <= gpu["vram_gib"]
        assert re.search(r"\b20\d\d\b|^as ", gpu["driver_source"])
    for name in GPU_NUMBERS:
        value = gpu.get(name) if name == "fp4_flops" else gpu[name]
        if value is None:
            assert name in ("fp16_flops", "fp8_flops", "fp4_flops", "pcie_bytes_per_s"), name
        else:
            assert isinstance(value, float) and value > 0, name
    if gpu["fp16_flops"] is None:
        assert gpu["note"]
    elif gpu["fp8_flops"] is not None and key != "gaudi3":  # which has one peak for both
        assert gpu["fp8_flops"] == pytest.approx(2 * gpu["fp16_flops"], rel=0.03)


def test_machines_of_todays_lists_have_what_drivers_give_and_printed_lists_keep_theirs():
    aws = {m.machine: m for m in catalog.machines("aws")}
    assert aws["p5.48xlarge"].vram_gib == pytest.approx(8 * 79.2)
    assert aws["g6e.xlarge"].vram_gib == pytest.approx(44.4)
    printed = {m.machine: m for m in catalog.machines("llm-pilot-table-ii")}
    assert printed["g4dn.xlarge"].vram_gib == 16


def test_gpu_peaks_are_the_dense_ones():
    assert GPUS["t4"]["fp16_flops"] == 65e12
    assert GPUS["a10g"]["fp16_flops"] == 70e12
    assert GPUS["a10"]["fp16_flops"] == 125e12
    assert GPUS["l4"]["fp16_flops"] == 121e12
    assert GPUS["l40s"]["fp16_flops"] == 362.05e12
    assert GPUS["l40s"]["fp8_flops"] == 733e12
    assert GPUS["a100-80g"]["fp16_flops"] == 312e12
    assert GPUS["h100"]["fp16_flops"] == pytest.approx(989e12, rel=1e-3)


# -------------------------------------------------------------------------------------------- machines


@pytest.mark.parametrize("key", POOLS)
def test_pool_states_where_it_comes_from(key):
    pool = POOLS[key]
    assert pool["title"] and pool["source"] and pool["licence"]
    assert isinstance(pool["retrieved"], datetime.date)
    assert "on_demand" in pool["price_sources"]
    assert pool["default_region"] in pool["regions"]
    assert {row["region"] for row in MACHINES[key]} == set(pool["regions"])


def test_every_machine_file_belongs_to_one_pool():
    files = [pool["file"] for pool in POOLS.values()]
    assert sorted(files) == sorted(path.name for path in DATA.glob("*.csv"))


@pytest.mark.parametrize("key", POOLS)
def test_machines_are_well_formed(key):
    seen = set()
    for row in MACHINES[key]:
        where = (row["machine"], row["region"])
        assert where not in seen
        seen.add(where)
        assert row["gpu"] in GPUS, where
        for name in ALWAYS:
            assert row[name] or (name.startswith("on_demand") and "sold only as spot" in row["note"]), (where, name)
        for name in NUMERIC:
            if row[name]:
                assert float(row[name]) > 0, (where, name)
        assert int(row["gpu_count"]) >= 1
        if not row["ram_gib"]:
            assert row["note"], where


@pytest.mark.parametrize("key", POOLS)
def test_discounted_prices_do_not_exceed_on_demand(key):
    for row in MACHINES[key]:
        on_demand = float(row["on_demand_usd_per_hour"] or "inf")  # empty: not sold
        for market in ("spot", "reserved_1y", "reserved_3y"):
            price = row[f"{market}_usd_per_hour"]
            if price:
                assert float(price) <= on_demand, (row["machine"], row["region"], market)
        one, three = row["reserved_1y_usd_per_hour"], row["reserved_3y_usd_per_hour"]
        assert bool(one) == bool(three) or row["region"] == "europe-west10"  # see the pool's contradictions
        if one and three:
            assert float(three) <= float(one)


@pytest.mark.parametrize("key", ["aws", "gcp", "azure"])
def test_device_memory_matches_the_gpus(key):
    """The printed tables of the paper are left out: some of their VRAM figures are wrong."""
    for row in MACHINES[key]:
        marketed = GPUS[row["gpu"]]["vram_gib"] * int(row["gpu_count"])
        assert 0.92 * marketed <= float(row["vram_gib"]) <= marketed * 1.001, row["machine"]


def test_number_of_machines():
    assert {key: len(rows) for key, rows in MACHINES.items()} == {
        "llm-pilot-table-ii": 19,
        "llm-pilot-table-vi": 9,
        "llm-pilot-table-vii": 6,
        "aws": 64,
        "gcp": 368,
        "azure": 673,
    }


# ------------------------------------------------------------------------- the paper's tables, as printed

# name: (GPU, count, on-demand, spot, RAM, VRAM, EBS, network)
TABLE_II = {
    "g4dn.xlarge": ("t4", 1, 0.526, 0.186, 16, 16, 3.5, 25),
    "g4dn.4xlarge": ("t4", 1, 1.204, 0.3189, 64, 16, 4.75, 25),
    "g4dn.8xlarge": ("t4", 1, 2.176, 0.7097, 128, 16, 9.5, 50),
    "g4ad.xlarge": ("v520", 1, 0.379, 0.104, 16, 16, 3, 10),
    "g5.xlarge": ("a10g", 1, 0.42, 0.132, 8, 16, 3.5, 10),
    "g5g.xlarge": ("t4g", 1, 0.42, 0.13, 8, 16, 4.75, 10),
    "g6.xlarge": ("l4", 1, 0.805, 0.36, 16, 24, 5, 10),
    "g6e.xlarge": ("l40s", 1, 1.861, 0.776, 32, 48, 5, 20),
    "g4ad.8xlarge": ("v520", 2, 1.714, 0.747, 128, 32, 3, 15),
    "g5g.16xlarge": ("t4g", 2, 2.744, 0.295, 128, 32, 19, 25),
    "g4dn.12xlarge": ("t4", 4, 3.912, 1.097, 192, 48, 9.5, 50),
    "g4ad.16xlarge": ("v520", 4, 3.468, 1.353, 256, 64, 6, 25),
    "g5.12xlarge": ("a10g", 4, 5.672, 1.808, 192, 96, 16, 40),
    "g6.12xlarge": ("l4", 4, 4.602, 1.718, 192, 96, 20, 40),
    "g6e.12xlarge": ("l40s", 4, 10.49, 3.228, 384, 192, 20, 100),
    "g5.48xlarge": ("a10g", 8, 16.288, 5.69, 768, 192, 768, 100),
    "g6e.48xlarge": ("l40s", 8, 30.13, 8.496, 1536, 384, 60, 400),
    "p4d.24xlarge": ("a100-40g", 8, 21.957, 9.03, 1152, 320, 19, 400),
    "p5.48xlarge": ("h100", 8, 55.04, 14.30, 2048, 640, 80, 3200),
}

# name: (GPU of the base, VRAM, RAM, EBS, network, on-demand, spot)
TABLE_VI = {
    "Sim-A": ("v520", 16, 16, 3.0, 10, 0.379, 0.104),
    "Sim-B": ("t4g", 16, 8, 4.75, 10, 0.420, 0.132),
    "Sim-C": ("t4", 16, 16, 3.5, 25, 0.526, 0.186),
    "Sim-D": ("l4", 24, 16, 5.0, 10, 0.805, 0.360),
    "Sim-E": ("a10g", 24, 24, 3.5, 10, 1.006, 0.403),
    "Sim-F": ("a10g", 24, 64, 4.75, 25, 1.624, 0.590),
    "Sim-G": ("l40s", 48, 32, 5.0, 20, 1.861, 0.370),
    "Sim-H": ("t4", 16, 32, 9.5, 50, 2.176, 0.710),
    "Sim-I": ("l40s", 48, 64, 10.0, 25, 4.528, 1.506),
}

# name: (GPU, VRAM, RAM, NVMe in GB, network, EBS, on-demand, spot)
TABLE_VII = {
    "g5.xlarge": ("a10g", 24, 16, 250, 10, 3.5, 1.006, 0.403),
    "g5.4xlarge": ("a10g", 24, 64, 600, 25, 4.8, 1.624, 0.590),
    "g5.8xlarge": ("a10g", 24, 128, 900, 25, 16, 2.448, 0.734),
    "g6e.2xlarge": ("l40s", 48, 64, 450, 20, 5.0, 2.242, 0.592),
    "g4dn.xlarge": ("t4", 16, 16, 125, 25, 3.5, 0.526, 0.186),
    "g4dn.4xlarge": ("t4", 16, 64, 225, 25, 4.8, 1.204, 0.319),
}


def cells(row, *names):
    short = {
        "price": "on_demand_usd_per_hour",
        "spot": "spot_usd_per_hour",
        "ram": "ram_gib",
        "vram": "vram_gib",
        "ebs": "disk_gbps",
        "net": "net_gbps",
    }
    return (row["gpu"], *(float(row[short.get(name, name)]) for name in names))


def test_table_ii_as_printed():
    pool = "llm-pilot-table-ii"
    assert [row["machine"] for row in MACHINES[pool]] == list(TABLE_II)
    for name, printed in TABLE_II.items():
        found = cells(machine(pool, name), "gpu_count", "price", "spot", "ram", "vram", "ebs", "net")
        assert found == printed, name


def test_table_vi_as_printed():
    pool = "llm-pilot-table-vi"
    assert [row["machine"] for row in MACHINES[pool]] == list(TABLE_VI)
    for name, printed in TABLE_VI.items():
        found = cells(machine(pool, name), "vram", "ram", "ebs", "net", "price", "spot")
        assert found == printed, name


def test_table_vii_as_printed():
    pool = "llm-pilot-table-vii"
    assert [row["machine"] for row in MACHINES[pool]] == list(TABLE_VII)
    for name, (gpu, vram, ram, nvme_gb, net, ebs, price, spot) in TABLE_VII.items():
        row = machine(pool, name)
        found = cells(row, "vram", "ram", "net", "ebs", "price", "spot")
        assert found == (gpu, vram, ram, net, ebs, price, spot), name
        assert float(row["disk_gib"]) == pytest.approx(nvme_gb * 1e9 / 2**30, abs=0.01)
        assert f"NVMe printed {nvme_gb} GB" in row["note"]


def test_printed_contradictions_are_noted():
    for pool, names in {
        "llm-pilot-table-ii": [
            "g5.xlarge",
            "g5g.xlarge",
            "g5.48xlarge",
            "g4dn.12xlarge",
            "g4ad.xlarge",
            "g4ad.8xlarge",
            "g4ad.16xlarge",
            "g6e.xlarge",
            "g4dn.8xlarge",
        ],
        "llm-pilot-table-vi": ["Sim-A", "Sim-B", "Sim-E", "Sim-G", "Sim-H", "Sim-I"],
        "llm-pilot-table-vii": ["g5.xlarge", "g6e.2xlarge"],
    }.items():
        assert POOLS[pool]["contradictions"]
        for name in names:
            assert machine(pool, name)["note"], (pool, name)


# ------------------------------------------------------------------------ a few cells of the price lists


def test_aws_cells():
    row = machine("aws", "g5.xlarge")
    assert cells(row, "price", "spot", "ram", "ebs", "net") == ("a10g", 1.006, 0.403, 16, 3.5, 2.5)
    assert float(row["vram_gib"]) == pytest.approx(22888 / 1024, abs=1e-3)
    assert cells(machine("aws", "g4ad.xlarge"), "vram", "spot") == ("v520", 8, 0.104)
    assert cells(machine("aws", "p5.48xlarge"), "price", "spot") == ("h100", 55.04, 14.30)
    assert machine("aws", "g5.2xlarge")["spot_usd_per_hour"] == ""
    names = {row["machine"] for row in MACHINES["aws"]}
    assert not names & {"g6f.large", "g6f.xlarge", "g6f.2xlarge", "g6f.4xlarge", "gr6f.4xlarge"}
    assert "p5e.48xlarge" not in names


def test_gcp_reserved_prices_are_the_monthly_commitments_by_the_hour():
    (row,) = [row for row in MACHINES["gcp"] if (row["machine"], row["region"]) == ("a3-highgpu-8g", "us-central1")]
    assert float(row["on_demand_usd_per_hour"]) == pytest.approx(88.49, abs=1e-3)
    assert float(row["spot_usd_per_hour"]) == pytest.approx(50.60954, abs=1e-4)
    assert float(row["reserved_1y_usd_per_hour"]) == pytest.approx(44810.08066 / 730, abs=1e-4)
    assert float(row["reserved_3y_usd_per_hour"]) == pytest.approx(28370.99821 / 730, abs=1e-4)
    assert cells(row, "gpu_count", "vram", "net") == ("h100", 8, 640, 1000)


def test_azure_cells():
    rows = [row for row in MACHINES["azure"] if row["machine"] == "Standard_NC40ads_H100_v5"]
    prices = {row["region"]: float(row["on_demand_usd_per_hour"]) for row in rows}
    assert (
        prices.items()
        >= {
            "eastus": 6.98,
            "westeurope": 9.08,
            "southeastasia": 9.074,
            "japaneast": 10.121,
        }.items()
    )
    assert cells(rows[0], "vram", "ram", "ebs", "net") == ("h100-nvl", 94, 320, 24, 40)


def test_files_name_no_local_path():
    for path in DATA.iterdir():
        if path.suffix in (".yaml", ".csv"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"/(?:home|root|tmp|work)/", text), path.name
