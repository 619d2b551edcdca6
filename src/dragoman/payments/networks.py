"""Networks and assets: their names in x402 version 1, their CAIP-2 names, and known contracts."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

from msgspec import Struct

NAMES: Mapping[str, str] = {
    "avalanche": "eip155:43114",
    "avalanche-fuji": "eip155:43113",
    "base": "eip155:8453",
    "base-sepolia": "eip155:84532",
    "ethereum": "eip155:1",
    "polygon": "eip155:137",
    "polygon-amoy": "eip155:80002",
    "sepolia": "eip155:11155111",
}
"""The names that version 1 has for networks."""
_SHORT = {chain: name for name, chain in NAMES.items()}


class Asset(Struct, frozen=True):
    """A token on one network, whose contract knows `transferWithAuthorization` (EIP-3009)."""

    symbol: str
    network: str
    """The CAIP-2 name, such as `eip155:84532`."""
    address: str
    """The address of the contract."""
    name: str
    """The name in the EIP-712 domain of the contract."""
    version: str = "2"
    """The version in that domain."""
    decimals: int = 6

    def units(self, amount: str | Decimal) -> int:
        """Return an amount in the smallest unit. Raises ValueError if it is not a whole number of
        these, or not greater than 0."""
        found = decimal(amount).scaleb(self.decimals)
        if found != found.to_integral_value() or found <= 0:
            raise ValueError(f"{amount} {self.symbol} is no amount of {self.decimals} decimals")
        return int(found)

    def shown(self, units: int) -> str:
        """Return an amount for people: `0.1 USDC`."""
        value = Decimal(units).scaleb(-self.decimals).normalize()
        return f"{value:f} {self.symbol}"


BASE_SEPOLIA_USDC = Asset(
    "USDC", "eip155:84532", "0x036CbD53842c5426634e7929541eC2318f3dCF7e", "USDC"
)
BASE_USDC = Asset("USDC", "eip155:8453", "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913", "USD Coin")
ARBITRUM_SEPOLIA_USDC = Asset(
    "USDC", "eip155:421614", "0x75faf114eafb1BDbe2F0316DF893fd58CE46AA4d", "USD Coin"
)
KNOWN = (
    BASE_SEPOLIA_USDC,
    ARBITRUM_SEPOLIA_USDC,
    BASE_USDC,
    Asset("USDC", "eip155:1", "0xA0b86991c6218b36c1d19D4a2e9Eb0cE3606eB48", "USD Coin"),
    Asset("USDC", "eip155:137", "0x3c499c542cEF5E3811e1192ce70d8cC03d5c3359", "USD Coin"),
    Asset("USDC", "eip155:42161", "0xaf88d065e77c8cC2239327C5EDb3A432268e5831", "USD Coin"),
    Asset("USDC", "eip155:43114", "0xB97EF9Ef8734C71904D8002F8b6Bc66Dd9c48a6E", "USD Coin"),
)
"""The assets that have a name here. Others are given as an `Asset`."""
TEST_ASSETS = (BASE_SEPOLIA_USDC, ARBITRUM_SEPOLIA_USDC)
"""What a wallet pays with if nothing else is given."""


def network_of(name: str) -> str:
    """Return the CAIP-2 name of a network. Raises ValueError if the name is not known."""
    found = NAMES.get(name, name)
    chain_id(found)
    return found


def short_name(network: str) -> str:
    """Return the name that version 1 has for a network; the CAIP-2 name if it has none."""
    return _SHORT.get(network, network)


def chain_id(network: str) -> int:
    """Return the chain id in a CAIP-2 name. Raises ValueError if it has none."""
    space, _, number = network.partition(":")
    if space != "eip155" or not number.isascii() or not number.isdigit() or len(number) > 18:
        raise ValueError(
            f"{network[:100]!r} is no EVM network, such as base-sepolia or eip155:84532"
        )
    return int(number)


def known_asset(symbol: str, network: str) -> Asset:
    """Return the asset of this symbol on a network. Raises ValueError if it is not known."""
    chain = network_of(network)
    for asset in KNOWN:
        if (asset.symbol, asset.network) == (symbol, chain):
            return asset
    raise ValueError(f"the contract of {symbol!r} on {network!r} is not known; give an Asset")


def amount_in_words(units: int, address: str, network: str) -> str:
    """Return an amount of an asset for people: with its symbol, if the asset is known."""
    for asset in KNOWN:
        if (asset.network, asset.address.lower()) == (network, address.lower()):
            return asset.shown(units)
    return f"{units} units of {address}"


def decimal(amount: str | Decimal) -> Decimal:
    """Return a finite number. Raises ValueError."""
    try:
        found = Decimal(amount)
    except (InvalidOperation, TypeError, ValueError):
        raise ValueError(f"{amount!r} is not a number") from None
    if not found.is_finite():
        raise ValueError(f"{amount!r} is not a finite number")
    return found
