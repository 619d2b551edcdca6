"""`dragoman wallet`: the address of a wallet, what it has paid, its limits and its balance."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from dragoman.cli import UsageError, connect_options, examples, payment_options
from dragoman.cli.colors import DIM, paint
from dragoman.cli.terminal_format import count, json_text, plain, table, when

if TYPE_CHECKING:
    from dragoman.payments import Chain, SignedPayment, Wallet

NOTHING = "0 USDC"
MORE = """\
`dragoman send`, `call`, `chat`, `task pay` and `mcp` pay with --pay-max. Programs pay with
`dragoman.payments.Wallet`; if they use the same key, they share the limits of 24 hours.

A payment is counted before it is signed, signed, settled if a chain has shown the transfer, or
unused if it has expired without one. --rpc asks the chain about those that have expired; an
unused payment does not count any more."""


def add(commands: Any) -> None:
    """Add `wallet` to the commands."""
    parser = commands.add_parser(
        "wallet",
        help="show a wallet: address, limits, payments and balance",
        description="Show a wallet: its address, what counts of its limits, and its payments.",
        **examples(
            "wallet",
            "wallet --rpc https://sepolia.base.org",
            "wallet --address 0x70997970C51812dc3A010C7d01b50e0d17dc79C8 --json",
            more=MORE,
        ),
    )
    parser.add_argument(
        "--address",
        default="",
        metavar="ADDRESS",
        help="show the wallet with this address, without its key (default: that of --wallet-key)",
    )
    parser.add_argument(
        "--rpc",
        action="append",
        default=[],
        metavar="URL",
        help="ask this node for the balance, and about payments that have expired; can be repeated "
        "(default: none)",
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=20,
        metavar="N",
        help="the maximum number of payments to show (default: %(default)s)",
    )
    payment_options.add_which(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Show the wallet."""
    if arguments.limit < 0:
        raise UsageError("--limit: must not be less than 0")
    from dragoman.payments import NoAnswer

    try:
        return connect_options.guarded(lambda: asyncio.run(show(arguments)), arguments)
    except NoAnswer as error:
        return connect_options.say(f"--rpc: {error}", connect_options.SILENT)


async def show(arguments: argparse.Namespace) -> int:
    """Show the wallet, and what its chains say."""
    nodes = [_node(url) for url in arguments.rpc]
    chains = {await node.network(): node for node in nodes}
    found = _wallet(arguments, chains)
    given_back = await found.reclaim() if chains else 0
    balances = await _balances(found.address, chains)
    limits, payments = await found.limits(), await found.history()
    payments = payments[: arguments.limit]
    place = str(found.file or "PostgreSQL")
    if arguments.json:
        shown = {
            "address": found.address,
            "place": place,
            "limits": {"perCall": limits.per_call, "perDay": limits.per_day},
            "counted": limits.counted,
            "balances": balances,
            "payments": msgspec.to_builtins(payments),
        }
        print(json_text(json.dumps(shown, indent=2)))
        return 0
    if limits.per_call:
        most = f"{limits.per_call} for a task, {limits.per_day} in 24 hours, at the last payment"
    else:
        most = "nothing was paid yet"
    lines = [
        ("address", found.address),
        ("kept in", place),
        ("limits", most),
        ("24 hours", ", ".join(limits.counted) or "nothing counts"),
        *(("balance", f"{one['amount']} on {one['network']}") for one in balances),
    ]
    for name, value in lines:
        print(f"{name.ljust(8)}  {plain(value)}")
    if payments:
        print()
        print(_history(payments))
    if given_back:
        words = f"{count(given_back, 'payment')} expired unused: they do not count any more"
        print(paint(words, DIM, sys.stderr), file=sys.stderr)
    return 0


def _wallet(arguments: argparse.Namespace, chains: dict[str, Chain]) -> Wallet:
    from dragoman.payments import Signer

    key = None
    if arguments.address:
        if not payment_options.ADDRESS.fullmatch(arguments.address):
            raise UsageError(f"--address {arguments.address!r}: expected an address")

        async def refuse(data: Any) -> str:
            raise PermissionError("this wallet is only shown")

        key = Signer(arguments.address, refuse)
    return payment_options.wallet(arguments, key, per_call=NOTHING, per_day=NOTHING, chains=chains)


def _node(url: str) -> Chain:
    from dragoman.payments import Chain

    try:
        host = urlsplit(url).hostname or ""
        return Chain(url, allow=[host])  # who names the node may reach it
    except ValueError as error:
        raise UsageError(f"--rpc {url}: {error}") from None


async def _balances(address: str, chains: dict[str, Chain]) -> list[dict[str, str]]:
    from dragoman.payments.networks import KNOWN, short_name

    return [
        {"amount": asset.shown(await chain.balance(asset, address)), "network": short_name(network)}
        for network, chain in chains.items()
        for asset in KNOWN
        if asset.network == network
    ]


def _history(payments: Any) -> str:
    def row(one: SignedPayment) -> tuple[str, ...]:
        time = when(one.at)[:19].replace("T", " ")
        return (time, one.amount, one.network, one.to, one.origin, one.task, one.state)

    names = ("time", "amount", "network", "to", "agent", "task", "state")
    return table(names, map(row, payments))
