"""Reads what a wallet is made with: its limits, its receivers, and where its ledger is."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

from dragoman.payments.ledger import LedgerPlace
from dragoman.payments.networks import decimal
from dragoman.payments.price import ADDRESS

PORTS = {"http": 80, "https": 443}


def limit(name: str, value: str, symbols: Collection[str]) -> tuple[Decimal, str]:
    """Return the amount and the symbol of a limit. Raises ValueError."""
    amount, _, symbol = value.strip().partition(" ") if isinstance(value, str) else ("", "", "")
    symbol = symbol.strip()
    if not symbol:
        raise ValueError(f"Wallet: {name}: expected an amount and an asset, such as '0.50 USDC'")
    found = decimal(amount)
    if found < 0:
        raise ValueError(f"Wallet: {name}: must not be less than 0")
    if symbol not in symbols:
        known = ", ".join(sorted(symbols))
        raise ValueError(f"Wallet: {name}: {symbol[:60]!r} is none of the assets: {known}")
    return found, symbol


def by_origin(receivers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the receiver of each origin. Raises ValueError."""
    for url in receivers:
        if not origin_of(url):
            raise ValueError(
                f"Wallet: receivers: {url[:200]!r} is not the URL of an agent, such as "
                "https://agent.example"
            )
    return {origin_of(url): receiver(to) for url, to in receivers.items()}


def receiver(address: str) -> str:
    """Return an address as it is compared. Raises ValueError."""
    if not ADDRESS.fullmatch(address):
        raise ValueError(f"Wallet: receivers: {address[:60]!r} is not an address of 20 bytes")
    return address.lower()


def usual_file(address: str) -> Path:
    """The file of a wallet if none is given."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "dragoman" / f"wallet-{address.lower()}.json"


def ledger_place(address: str, file: Path | None, store: str) -> LedgerPlace:
    """Where the ledger of a wallet is. Raises ValueError."""
    if file is not None:
        from dragoman.payments.ledger_file import LedgerFile

        return LedgerFile(file)
    if not store.startswith(("postgresql://", "postgres://")):
        raise ValueError("Wallet: store: expected postgresql://…")
    try:
        from dragoman.payments.ledger_table import LedgerTable
    except ModuleNotFoundError:
        install = "asyncpg is not installed: pip install 'dragoman[postgres]'"
        raise ModuleNotFoundError(install, name="asyncpg") from None
    return LedgerTable(store, address)


def origin_of(url: str) -> str:
    """The origin of a URL, without a login; empty if it has none."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:
        return ""
    host = (parts.hostname or "").lower()
    usual = port == PORTS.get(parts.scheme, 0)
    return f"{parts.scheme}://{host}" + ("" if usual else f":{port}") if host else ""
