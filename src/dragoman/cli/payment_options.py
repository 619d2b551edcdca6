"""The options of commands that may pay an agent, and the wallet made from them."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dragoman.cli import UsageError
from dragoman.cli.colors import YELLOW, paint
from dragoman.cli.terminal_format import plain

if TYPE_CHECKING:
    from dragoman import Message
    from dragoman.client import Answerer, PausedTask
    from dragoman.payments import Asset, ProposedPayment, Wallet

KEY = "env:WALLET_KEY"
PER_DAY, PLACE, NETWORKS = "WALLET_PER_DAY", "WALLET_FILE", "WALLET_NETWORKS"
"""Variables of the environment that stand for options."""
SYMBOL = "USDC"
NETWORK = "base-sepolia"
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:\s+([A-Za-z0-9.]{1,20}))?")
ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")
asking = False
"""Whether a question is on the terminal: no progress is shown meanwhile."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that may pay."""
    group = parser.add_argument_group(
        "payments", "If the agent asks for a payment, pay it from a wallet: see `dragoman wallet`."
    )
    group.add_argument(
        "--pay-max",
        default="",
        metavar="AMOUNT",
        help="pay at most this for a task, such as 0.50 or '0.50 USDC' (default: nothing is paid)",
    )
    group.add_argument(
        "--pay-per-day",
        default="",
        metavar="AMOUNT",
        help=f"pay at most this in 24 hours (default: {PER_DAY} of the environment, else as much "
        "as --pay-max)",
    )
    group.add_argument(
        "--pay-to",
        default="",
        metavar="ADDRESS",
        help="pay only to this address (default: ask on the terminal when an agent names an "
        "address for the first time)",
    )
    group.add_argument(
        "--pay-network",
        action="append",
        default=[],
        metavar="NETWORK",
        help=f"pay on this network, such as base; can be repeated (default: {NETWORKS} of the "
        f"environment, else {NETWORK}, a test network)",
    )
    add_which(group)


def add_which(group: Any) -> None:
    """Add the options that say which wallet it is."""
    group.add_argument(
        "--wallet-key",
        default=KEY,
        metavar="env:NAME",
        help=f"the variable of the environment that has the private key (default: {KEY})",
    )
    group.add_argument(
        "--wallet",
        default="",
        metavar="PLACE",
        help="what was paid is kept in this file or PostgreSQL database (default: "
        f"{PLACE} of the environment, else a file in ~/.local/state/dragoman)",
    )


def answerer(arguments: argparse.Namespace) -> Answerer | None:
    """Return what pays, if the command may pay. Raises UsageError."""
    most = getattr(arguments, "pay_max", "")
    if not most:
        for name in ("pay_per_day", "pay_to", "pay_network", "wallet"):
            if getattr(arguments, name, None):
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option}: has no effect without --pay-max")
        return None
    per_call = amount(most, "--pay-max")
    given = arguments.pay_per_day or os.environ.get(PER_DAY, "")
    where = "--pay-per-day" if arguments.pay_per_day else PER_DAY
    per_day = amount(given, where) if given else per_call
    if per_day.split()[1] != per_call.split()[1]:
        raise UsageError(f"{where}: must be in {per_call.split()[1]}, like --pay-max")
    to = arguments.pay_to
    if to and not ADDRESS.fullmatch(to):
        raise UsageError(f"--pay-to {to!r}: expected an address, 0x and 40 hexadecimal digits")
    symbol = per_call.split()[1]
    return Paying(
        wallet(
            arguments,
            per_call=per_call,
            per_day=per_day,
            assets=assets(arguments.pay_network, symbol),
            receivers=to or None,
            on_payment=approve,
        )
    )


def amount(text: str, where: str) -> str:
    """Return an amount with its asset. Raises UsageError."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{where} {text!r}: expected an amount, such as 0.50 or '0.50 USDC'")
    return f"{match[1]} {match[2] or SYMBOL}"


def assets(networks: Sequence[str], symbol: str = SYMBOL) -> list[Asset]:
    """Return what the wallet pays with. Raises UsageError."""
    from dragoman.payments.networks import known_asset

    named = list(networks) or os.environ.get(NETWORKS, "").replace(",", " ").split() or [NETWORK]
    try:
        return [known_asset(symbol, network) for network in named]
    except ValueError as error:
        where = "--pay-network" if networks or not os.environ.get(NETWORKS) else NETWORKS
        raise UsageError(f"{where}: {error}") from None


def wallet(arguments: argparse.Namespace, key: Any = None, **options: Any) -> Wallet:
    """Return the wallet that the options describe. Raises UsageError."""
    from dragoman.payments import Wallet

    place = arguments.wallet or os.environ.get(PLACE, "")
    where = {"store": place} if "://" in place else {"file": Path(place).expanduser()}
    try:
        return Wallet(key or arguments.wallet_key, **options, **(where if place else {}))
    except ValueError as error:
        words = str(error).replace("Wallet: key:", "--wallet-key:")
        raise UsageError(words.replace("Wallet: store:", "--wallet:")) from None


class Paying:
    """A wallet that says on standard error what it pays."""

    def __init__(self, wallet: Wallet) -> None:
        self._wallet = wallet

    @property
    def extensions(self) -> Sequence[str]:
        """See `dragoman.client.Answerer`."""
        return self._wallet.extensions

    async def answer(self, paused: PausedTask) -> Message | None:
        """See `dragoman.client.Answerer`."""
        from dragoman.client import AnswerRefused
        from dragoman.payments import LedgerUnavailable
        from dragoman.payments.wallet import ADVICE

        # --pin trusts whatever keys have signed an agent's first card: they vouch for no receiver
        paused = replace(paused, verified=False)
        try:
            message = await self._wallet.answer(paused)
        except LedgerUnavailable as error:
            raise AnswerRefused(str(error)) from error
        except AnswerRefused as error:
            words = str(error).replace(ADVICE, "name it with --pay-to, or approve it on a terminal")
            words = words.replace("limit per_call", "limit of --pay-max")
            raise AnswerRefused(words.replace("limit per_day", "limit of --pay-per-day")) from error
        if message is not None:
            words = f"{message.text} for task {paused.task.id}"
            print(paint(f"({plain(words)})", YELLOW, sys.stderr), file=sys.stderr, flush=True)
        return message


async def approve(proposed: ProposedPayment) -> bool:
    """Ask on the terminal whether a receiver may be paid. Without a terminal, it may not."""
    global asking
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    before = f" Until now it was {proposed.before}!" if proposed.before else ""
    question = (
        f"Pay {proposed.amount} on {proposed.network} to {proposed.to}, for {proposed.agent} at "
        f"{proposed.url}?{before}"
    )
    asking = True
    try:
        style = paint(f"{plain(question)} [y/N] ", YELLOW, sys.stderr)
        print(f"\r{style}", end="", file=sys.stderr, flush=True)
        return (await _line()).strip().lower() in ("y", "yes")
    finally:
        asking = False


async def _line() -> str:
    """Read a line of the terminal. Ctrl-C interrupts it, which no thread that reads could be."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    file = sys.stdin.fileno()
    loop.add_reader(file, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(file)
    return os.read(file, 4096).decode(errors="replace")
