"""Price files as they are: SkyPilot's catalogue, FOCUS billing exports, price lists of one's own, by machine or by GPU.

* SkyPilot   ``InstanceType, AcceleratorName, AcceleratorCount, vCPUs, MemoryGiB, Price, Region, GpuInfo, SpotPrice``
* FOCUS      ``ChargeCategory, PricingCategory, EffectiveCost, PricingQuantity, RegionId, SkuId``: effective cost by the
             hour; Standard is on demand, Dynamic spot, Committed reserved for a year (for three where the row states
             so)
* AWS        the price list of EC2 as CSV: Linux, shared tenancy, reserved without upfront payment
* ours       ``machine, region, gpu, gpu_count, vram_gib, vcpu, ram_gib, note`` and ``on_demand_usd_per_hour``,
             ``reserved_1y_usd_per_month`` …; prices of one GPU as ``on_demand_usd_per_gpu_hour``, sold from
             ``least_gpus`` to ``most_gpus`` in multiples of ``least_gpus`` times powers of two

`columns` names columns of others: ours → theirs; a number stands for every row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optmodels import catalog
from optmodels.catalog import spelling
from optmodels.catalog.types import MARKETS, Machine, Market, Prices
from optmodels.errors import InputError, Mistake, did_you_mean
from optmodels.io.tables import csv_lines, without_commas

HOURS_PER_MONTH = 730.0
MOST_GPUS = 8  # of a machine that is sold by the GPU, where the file does not state
MEMORY_WITHIN = 0.12  # of the catalogue's: files state the marketed size, or the size that the driver reports
_UNITS = {"usd_per_hour": (1.0, False), "usd_per_month": (1 / HOURS_PER_MONTH, False),
          "usd_per_gpu_hour": (1.0, True), "usd_per_gpu_month": (1 / HOURS_PER_MONTH, True)}  # fmt: skip
PRICES = {f"{m}_{u}": (m, *how) for m in MARKETS for u, how in _UNITS.items()}
OURS = ("machine", "region", "gpu", "gpu_count", "vram_gib", "vcpu", "ram_gib", "net_gbps", "least_gpus", "most_gpus",
        "note", *PRICES)  # fmt: skip
_SKYPILOT = {
    "machine": "InstanceType", "region": "Region", "gpu": "AcceleratorName", "gpu_count": "AcceleratorCount",
    "vcpu": "vCPUs", "ram_gib": "MemoryGiB", "on_demand_usd_per_hour": "Price", "spot_usd_per_hour": "SpotPrice",
}  # fmt: skip
_FOCUS = {"ChargeCategory", "EffectiveCost", "PricingCategory"}
_FOCUS_MARKETS: dict[str, Market] = {"standard": "on_demand", "dynamic": "spot", "committed": "reserved_1y"}
_PER_HOUR = re.compile(r"(?i)\s*(usd)?\s*(hourly|per hour|/ ?h(ou)?r?)?$")
_OTHER_MONEY = re.compile(r"(?i)(?<![a-z])(eur|gbp|cny|rmb|jpy|inr|chf)(?![a-z])|[€£¥]")
_INSTANCE = re.compile(r'"(?:InstanceType|x_InstanceType|ServiceType)"\s*:\s*"([^"]+)"')  # of FOCUS' SkuPriceDetails
_EMPTY = {"", "null", "none", "nan", "n/a"}


@dataclass(frozen=True)
class PriceRow:
    """A machine in a region with its prices, USD per hour of the whole machine."""

    machine: str
    region: str
    line: int
    prices: Mapping[Market, float]
    gpu: str | None = None
    gpu_count: int | None = None
    vram_gib: float | None = None
    vcpu: int | None = None
    ram_gib: float | None = None
    net_gbps: float | None = None
    note: str = ""


def read_prices(path: Path, columns: Mapping[str, str] | None = None) -> list[PriceRow]:
    """Rows of a price file, each machine in a region once: of several zones the lowest price.

    Args:
        path: CSV.
        columns: ours → theirs, of a file with columns of its own.

    Raises:
        InputError: unreadable, no column of machines or prices, a bad cell, by line.
    """
    rows, lines = csv_lines(path)
    aws = next((i for i, r in enumerate(rows) if {"SKU", "TermType", "PricePerUnit"} <= set(r)), None)  # its header
    rows, lines = rows[aws or 0 :], lines[aws or 0 :]
    header = [c.strip() for c in rows[0]] if rows else []
    if double := [c for i, c in enumerate(header) if c and c in header[:i]]:
        raise InputError(Mistake(str(path), double[0], "a second column of that name", "every column once", lines[0]))
    mapped = dict(columns or {})
    if unknown := [k for k in mapped if k not in OURS]:
        expected = f"one of {', '.join(OURS)}"
        raise InputError(Mistake(str(path), f"columns.{k}", k, expected, hint=did_you_mean(k, OURS)) for k in unknown)
    for ours, theirs in mapped.items():
        if theirs not in header and _number(theirs) is None:
            raise InputError(Mistake(str(path), f"columns.{ours}", theirs, f"a column of the file: {_list(header)}", 1))
    if money := [c for c in {*header, *mapped.values()} if _OTHER_MONEY.search(c.replace("_", " "))]:
        raise InputError(Mistake(str(path), "header", money[0], "prices in USD", lines[0] if lines else 1))
    cells = [dict(zip(header, (c.strip() for c in r), strict=False)) for r in rows[1:]]
    table = list(zip(lines[1:], cells, strict=True))
    if aws is not None:
        found = _aws_list(path, table)
    elif set(header) >= _FOCUS:
        found = _focus(path, header, table, mapped)
    else:
        sky = {ours: theirs for ours, theirs in _SKYPILOT.items() if theirs in header and "InstanceType" in header}
        names = {c: c for c in OURS if c in header} | sky | mapped
        priced = [c for c in names if c in PRICES]
        if not priced or not {"machine", "gpu"} & set(names):
            expected = (
                "columns machine, region and prices such as on_demand_usd_per_hour, SkyPilot's catalogue, or a FOCUS "
                f"export; the file has {_list(header)}"
            )
            hint = "name them: columns: {machine: …, on_demand_usd_per_hour: …}"
            raise InputError(Mistake(str(path), "header", None, expected, 1, hint))
        _with_points(path, table, [names[c] for c in priced])
        found = [r for line, row in table for r in _rows(path, line, row, names)]
    return _merged(found)


def _list(header: Sequence[str], most: int = 15) -> str:
    return ", ".join(header[:most]) + (", …" if len(header) > most else "")


def _bare(text: str) -> str:
    return _PER_HOUR.sub("", text.strip().replace("$", "")).strip()


def _number(text: str | None) -> float | None:
    """The number of a cell, which may have commas between thousands."""
    bare = _bare(text or "")
    if "," not in bare:
        try:
            return float(bare)
        except ValueError:
            return None
    found = without_commas([bare], whole=True)[0]
    return None if math.isnan(found) else found


def _with_points(path: Path, table: Sequence[tuple[int, dict[str, str]]], columns: Sequence[str]) -> None:
    """Replace prices with commas by numbers with points, in place.

    Raises:
        InputError: a comma that may be a decimal point or stand between thousands.
    """
    cells = [(line, row, c) for c in columns for line, row in table if "," in row.get(c, "")]
    for (line, row, c), value in zip(cells, without_commas([_bare(row[c]) for _, row, c in cells]), strict=True):
        if math.isnan(value):
            raise InputError(Mistake(str(path), c, row[c], "a number > 0, with a decimal point and no comma", line))
        row[c] = repr(value)


def _rows(path: Path, line: int, row: Mapping[str, str], names: Mapping[str, str]) -> list[PriceRow]:
    """The machines of a row; none where it has no price, one for each number of GPUs where prices are of one GPU."""

    def text(ours: str) -> str | None:
        theirs = names.get(ours)
        if theirs is None:
            return None
        value = row.get(theirs, theirs if _number(theirs) is not None else "")
        return None if value.lower() in _EMPTY else value

    def number(ours: str) -> float | None:
        value = text(ours)
        if value is None:
            return None
        found = _number(value)
        if found is None or not 0 < found < 1e12:
            raise InputError(Mistake(str(path), names[ours], value, "a number > 0", line))
        return found

    whole: dict[Market, float] = {}
    each: dict[Market, float] = {}
    for column in (c for c in names if c in PRICES):
        market, factor, by_gpu = PRICES[column]
        if (value := number(column)) is not None:
            (each if by_gpu else whole)[market] = value * factor
    gpu, count = text("gpu"), number("gpu_count")
    if count is not None and count != round(count):  # a part of a GPU, whose latencies are not modelled
        gpu, count = None, None
    machine = text("machine") or (gpu or "")
    vram, vcpu, ram, net = (number(c) for c in ("vram_gib", "vcpu", "ram_gib", "net_gbps"))
    if vram is None and (memory := _memory_gib(row.get("GpuInfo", ""))) is not None:
        vram = memory * max(1.0, count or 1.0)
    one = PriceRow(
        machine, text("region") or "", line, whole, gpu, None if count is None else round(count), vram,
        None if vcpu is None else max(1, round(vcpu)), ram, net, text("note") or "",
    )  # fmt: skip
    found = [one] if whole and machine else []
    if each and machine:
        least = round(number("least_gpus") or 1)
        most, size = round(number("most_gpus") or max(MOST_GPUS, least)), least
        while size <= most:
            found.append(replace(
                one, machine=f"{machine}-{size}x", prices={m: p * size for m, p in each.items()}, gpu_count=size,
                vram_gib=None if vram is None else vram * size,
                vcpu=None if vcpu is None else max(1, round(vcpu * size)), ram_gib=None if ram is None else ram * size,
            ))  # fmt: skip
            size *= 2
    return found


def _memory_gib(info: str) -> float | None:
    """Memory of one GPU as SkyPilot's ``GpuInfo`` has it."""
    found = re.search(r"['\"]SizeInMiB['\"]: *(\d{1,9})(?!\d)", info)
    return float(found[1]) / 1024 if found is not None and int(found[1]) else None


def _aws_list(path: Path, table: Sequence[tuple[int, dict[str, str]]]) -> list[PriceRow]:
    """Machines of AWS's own price list: Linux without further software, shared tenancy, reserved without upfront."""
    found = []
    for line, row in table:
        years = {"1yr": "1y", "3yr": "3y"}.get(row.get("LeaseContractLength", ""))
        market: Market | None = "on_demand" if row["TermType"] == "OnDemand" else None
        if years is not None and row.get("PurchaseOption") == "No Upfront" and row.get("OfferingClass") == "standard":
            market = "reserved_1y" if years == "1y" else "reserved_3y"
        plain = all(
            row.get(column, value) in (value, "")
            for column, value in (
                ("Operating System", "Linux"), ("Tenancy", "Shared"), ("Pre Installed S/W", "NA"),
                ("CapacityStatus", "Used"), ("Unit", "Hrs"),
            )
        )  # fmt: skip
        name = row.get("Instance Type", "")
        if not plain or market is None or not name:
            continue
        if row.get("Currency", "USD") not in ("USD", ""):
            raise InputError(Mistake(str(path), "Currency", row["Currency"], "USD", line))
        price = _number(row["PricePerUnit"])
        if price is None:
            raise InputError(Mistake(str(path), "PricePerUnit", row["PricePerUnit"], "a number", line))
        if price > 0:
            found.append(PriceRow(name, row.get("Region Code") or row.get("Location", ""), line, {market: price}))
    return found


def _focus(
    path: Path, header: Sequence[str], table: Sequence[tuple[int, dict[str, str]]], mapped: Mapping[str, str]
) -> list[PriceRow]:  # fmt: skip
    """Effective prices: cost over hours of usage of each machine, region and kind of price."""
    quantity = next((c for c in ("PricingQuantity", "ConsumedQuantity") if c in header), None)
    unit = "PricingUnit" if quantity == "PricingQuantity" else "ConsumedUnit"
    machine, region = mapped.get("machine", "SkuId"), mapped.get("region", "RegionId")
    if "machine" not in mapped:
        for _, row in table:
            details = row.get("SkuPriceDetails") or row.get("x_SkuDetails") or ""
            if (named := _INSTANCE.search(details)) is not None:
                row[machine] = named[1]
    if quantity is None or machine not in header:
        expected = "PricingQuantity, and SkuId or columns: {machine: …} that has the instance type"
        raise InputError(Mistake(str(path), "header", None, f"{expected}; it has {_list(header)}", 1))
    sums: dict[tuple[str, str], dict[Market, list[float]]] = {}
    first: dict[tuple[str, str], int] = {}
    for line, row in table:
        market = _FOCUS_MARKETS.get(row.get("PricingCategory", "").lower())
        hours = re.fullmatch(r"1? ?(hours?|hrs?)(\b.*)?", row.get(unit, "Hours").lower()) is not None
        unused = row.get("CommitmentDiscountStatus", "").lower() == "unused"
        if row.get("ChargeCategory", "").lower() != "usage" or market is None or not hours or unused:
            continue
        if (currency := row.get("BillingCurrency", "USD").upper()) not in ("USD", *(_EMPTY)):
            raise InputError(Mistake(str(path), "BillingCurrency", currency, "USD", line))
        cost, used = _number(row.get("EffectiveCost")), _number(row.get(quantity))
        if cost is None or used is None:
            name = "EffectiveCost" if cost is None else quantity
            raise InputError(Mistake(str(path), name, row.get(name), "a number", line))
        if used <= 0 or not row.get(machine):
            continue
        said = " ".join(row.get(c, "") for c in ("CommitmentDiscountName", "CommitmentDiscountType"))
        if market == "reserved_1y" and re.search(r"(?i)\b(3|three)[ -]?y", said):
            market = "reserved_3y"
        key = row[machine], row.get(region, "")
        first.setdefault(key, line)
        entry = sums.setdefault(key, {}).setdefault(market, [0.0, 0.0])
        entry[0], entry[1] = entry[0] + cost, entry[1] + used
    if not sums:
        raise InputError(Mistake(str(path), "ChargeCategory", None, "rows of Usage by the hour with a SkuId", 1))
    return [
        PriceRow(name, where, first[name, where], {m: c / h for m, (c, h) in by.items() if c > 0})
        for (name, where), by in sums.items()
    ]  # fmt: skip


def _merged(rows: Sequence[PriceRow]) -> list[PriceRow]:
    found: dict[tuple[str, str], PriceRow] = {}
    for row in rows:
        old = found.get((row.machine, row.region))
        if old is None:
            found[row.machine, row.region] = row
        else:
            least = {m: min(p[m] for p in (old.prices, row.prices) if m in p) for m in {*old.prices, *row.prices}}
            found[row.machine, row.region] = replace(old, prices=least)
    return [r for r in found.values() if r.prices]


def machines_of(
    path: Path, columns: Mapping[str, str] | None = None, region: str | None = None
) -> tuple[list[Machine], list[str]]:
    """The machines of a price file whose GPUs the catalogue knows, and the names of the others.

    Args:
        path: CSV.
        columns: column names, as of `read_prices`.
        region: only machines of one region.

    Raises:
        InputError: as `read_prices`; no such region; no machine with a known GPU.
    """
    rows = read_prices(path, columns)
    if region is not None:
        known = sorted({r.region for r in rows})
        rows = [r for r in rows if r.region == region]
        if not rows:
            raise InputError(Mistake(str(path), "region", region, f"a region of the file: {_list(known)}"))
    found, unknown = [], []
    for row in rows:
        listed = (m for p in catalog.pools() for m in catalog.machines(p) if m.machine == row.machine)
        known_machine = next(listed, None)
        gpu = gpu_of(row) or (known_machine.gpu if known_machine is not None else None)
        if gpu is None:
            unknown.append(row.machine)
            continue
        count = row.gpu_count or (known_machine.gpu_count if known_machine is not None else 1)
        own = {"vcpu": row.vcpu, "ram_gib": row.ram_gib, "net_gbps": row.net_gbps}
        if known_machine is not None:
            own = {k: v if v is not None else getattr(known_machine, k) for k, v in own.items()}
        found.append(Machine(
            machine=row.machine, region=row.region, gpu=gpu, gpu_count=count,
            vram_gib=catalog.gpus()[gpu].usable_gib * count, prices=Prices(**dict(row.prices)), note=row.note,
            **{k: v for k, v in own.items() if v is not None},
        ))  # fmt: skip
    if not found:
        expected = "a machine with a GPU of the catalogue: columns: {gpu: …}, optmodels list catalog"
        raise InputError(Mistake(str(path), "gpu", _list(unknown, 5) or None, expected))
    return found, list(dict.fromkeys(unknown))


def gpu_of(row: PriceRow) -> str | None:
    """The catalogue's key of a row's GPU: by its name, its memory, and form factors in the machine's name."""
    if row.gpu is None:
        return None
    near = spelling.gpus_of(row.gpu)
    family = [key for key in catalog.gpus() if any(key == n or key.startswith(f"{n}-") for n in near)]
    if row.vram_gib is not None and row.gpu_count:
        each = row.vram_gib / row.gpu_count
        family = [k for k in family if abs(float(catalog.gpus()[k].vram_gib) / each - 1.0) <= MEMORY_WITHIN]
        near = [k for k in near if k in family] or family
    elif len({float(catalog.gpus()[k].vram_gib) for k in near}) > 1:
        return None  # of two sizes
    forms = {k: {"pcie", "nvl"} & set(k.split("-")) for k in family}
    said = set(re.split(r"[^a-z0-9]+", row.machine.lower()))
    return next((k for k in family if forms[k] and forms[k] <= said), next(iter(near), None))
