"""The instance file. What restricts a plan is marked with `Limit`, what it pays with `Price`: `explain` reads them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from optmodels.catalog import Market, machines, pools
from optmodels.catalog.types import Entry
from optmodels.errors import Mistakes, one_of
from optmodels.limits import ELEMENT, Limit, Price
from optmodels.problem import Problem
from optmodels.units import BudgetUsdPerHour, TokensPerSecond, UsdPerHour

Rate = Annotated[TokensPerSecond, Field(ge=1, le=1e9)]
Stock = Annotated[int, Field(strict=True, ge=0, le=10**6)]


class Service(Entry):
    """One service and the tokens it must deliver."""

    service: str = Field(min_length=1, max_length=200)
    tokens_per_s: Annotated[Rate, Limit("demand", "least", "tokens/s", off=0.0)]


class MachineType(Entry):
    """Machines of one type, bought in one market."""

    machine: str = Field(min_length=1, max_length=200)
    market: Market = "on_demand"
    usd_per_hour: Annotated[UsdPerHour | None, Price(off=ELEMENT)] = Field(
        default=None, description="of one machine; left out: the catalogue's price"
    )
    stock: Annotated[Stock | None, Limit("stock", "most", "machines")] = Field(
        default=None, description="machines that can be had; left out: any number"
    )
    tokens_per_s: dict[str, Rate] = Field(description="by service: what one machine delivers; left out: it cannot")


class Instance(Problem):
    """Services, machine types and a budget."""

    formulation: Literal["machine_counts"]
    services: tuple[Service, ...] = Field(min_length=1)
    machines: tuple[MachineType, ...] = Field(min_length=1)
    catalog: str | None = Field(default=None, description="price list for machines that give no price of their own")
    budget_usd_per_hour: Annotated[BudgetUsdPerHour | None, Limit("budget", "most", "USD/h")] = None

    def resolve(self) -> Instance:
        """The same instance with every price written out.

        Raises:
            InputError: every part that does not fit the others, or is not in the catalogue.
        """
        wrong = Mistakes()
        if self.catalog is not None:
            one_of("catalog", self.catalog, pools())
        known = {s.service for s in self.services}
        if len(known) < len(self.services):
            wrong.add("services", [s.service for s in self.services], "every service once")
        if len({(m.machine, m.market) for m in self.machines}) < len(self.machines):
            wrong.add("machines", [m.machine for m in self.machines], "every machine once a market")
        priced = []
        for j, machine in enumerate(self.machines):
            where = f"machines[{j}]"
            for name in machine.tokens_per_s:
                if name not in known:
                    wrong.unknown(f"{where}.tokens_per_s", name, "one of the services", known)
            usd = machine.usd_per_hour or self._catalogue_price(machine)
            if usd is None:
                expected = f"a price, or a catalogue that has one for {machine.machine} ({machine.market})"
                wrong.add(f"{where}.usd_per_hour", None, expected)
            priced.append(machine.model_copy(update={"usd_per_hour": usd}))
        wrong.raise_any()
        return self.model_copy(update={"machines": tuple(priced), "catalog": None})

    def inline(self) -> Instance:
        """As resolved: nothing is looked up any more."""
        return self.resolve()

    def _catalogue_price(self, machine: MachineType) -> float | None:
        """USD per hour in the catalogue's own region, if it lists the machine."""
        if self.catalog is None:
            return None
        region = pools()[self.catalog].default_region or ""
        found = (m for m in machines(self.catalog) if (m.machine, m.region) == (machine.machine, region))
        return next((m.prices.get(machine.market) for m in found), None)
