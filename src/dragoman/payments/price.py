"""Prices: how much of which asset, on which network, to whom."""

from __future__ import annotations

import re
from decimal import Decimal

from dragoman.payments.networks import Asset, decimal, known_asset
from dragoman.payments.objects import Requirement

ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")
MOST_SECONDS = 24 * 3600


class Price:
    """A price, such as `Price("0.10", "USDC", network="base-sepolia", to="0x…")`. The asset is a
    known symbol, or an `Asset`, which names its network itself. An amount of 0 is free. A payment
    must be settled within `timeout` seconds. Raises ValueError."""

    def __init__(
        self,
        amount: str | Decimal,
        asset: str | Asset = "USDC",
        *,
        to: str,
        network: str = "",
        timeout: int = 600,
    ) -> None:
        if not isinstance(amount, str | Decimal):  # a float is not exact
            raise TypeError("Price: give the amount as a string or a Decimal")
        if isinstance(asset, str):
            if not network:
                raise ValueError("Price: network: name the network, such as base-sepolia")
            asset = known_asset(asset, network)
        elif network:
            raise ValueError("Price: network: an Asset names its network itself")
        if not ADDRESS.fullmatch(to):
            raise ValueError(f"Price: to: {to[:60]!r} is not an address of 20 bytes")
        if not 0 < timeout <= MOST_SECONDS:
            raise ValueError(f"Price: timeout must be greater than 0, and at most {MOST_SECONDS}")
        self.asset = asset
        self.units = asset.units(amount) if decimal(amount) else 0
        """The amount in the smallest unit; 0 is free."""
        self.to = to
        self.timeout = timeout

    def __str__(self) -> str:
        return self.asset.shown(self.units)

    def __repr__(self) -> str:
        return f"Price({self}, network={self.asset.network!r}, to={self.to!r})"

    def _requirement(self, *, resource: str = "", description: str = "") -> Requirement:
        """Return this price as a way to pay."""
        asset = self.asset
        return Requirement(
            network=asset.network,
            asset=asset.address,
            amount=self.units,
            pay_to=self.to,
            timeout=self.timeout,
            name=asset.name,
            domain_version=asset.version,
            resource=resource,
            description=description,
        )
