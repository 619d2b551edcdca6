"""The ledger of a wallet: what it has signed, what that adds up to, and the receivers it knows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from dragoman.payments.networks import short_name
from dragoman.payments.objects import Authorization, canonical

T = TypeVar("T")

DAY = 24 * 3600.0
DETAILS = 1000
"""How many payments are kept one by one. Those of the last 24 hours always are."""
SUMS = 366 * DAY
"""How long the sum of a task is kept after its last payment, in seconds."""


class LedgerUnavailable(OSError):
    """The ledger of a wallet cannot be locked, read or written."""


class Signed(Struct, kw_only=True):
    """A payment that counts: it was signed, or was about to be."""

    offer: str
    """The digest of the offer that it pays for."""
    origin: str
    """The origin of the agent."""
    task: str
    """The task of the agent."""
    symbol: str
    amount: int
    decimals: int
    network: str
    to: str
    at: float
    """When it was counted, as a Unix time."""
    authorization: Authorization
    signature: str = ""
    """Empty until it is signed."""
    asset: str = ""
    """The address of the contract."""
    on_behalf_of: str = ""
    """The payer's own task for which it was paid; empty if there is none."""
    unused: bool = False
    """It has expired, and by the chain nothing was transferred: it does not count any more."""
    transaction: str = ""
    """The transaction of its transfer, once the chain has shown it."""

    def __repr__(self) -> str:
        return f"Signed(task={self.task!r}, amount={self.amount}, symbol={self.symbol!r})"

    @property
    def units(self) -> Decimal:
        """The amount in whole tokens."""
        return Decimal(self.amount).scaleb(-self.decimals)


class Sum(Struct, array_like=True):
    """What older payments of one task add up to."""

    amount: str
    at: float
    """When the last of them was counted."""


class Ledger(Struct, kw_only=True):
    """What a wallet keeps."""

    payments: list[Signed] = []
    """The latest payments, the oldest first."""
    receivers: dict[str, str] = {}
    """The receiver of each origin, network and asset."""
    sums: dict[str, Sum] = {}
    """What the payments add up to that are not kept one by one."""
    limits: tuple[str, str] = ("", "")
    """The limits `per_call` and `per_day` of the process that has paid last."""

    def of_task(self, origin: str, task: str, symbol: str) -> Decimal:
        """What counts for a task of an agent."""
        return self._older("task", origin, task, symbol) + sum(
            (one.units for one in self._of(symbol) if (one.origin, one.task) == (origin, task)),
            Decimal(0),
        )

    def on_behalf_of(self, task: str, symbol: str) -> Decimal:
        """What counts for a task of the payer."""
        return self._older("for", task, symbol) + sum(
            (one.units for one in self._of(symbol) if one.on_behalf_of == task), Decimal(0)
        )

    def since(self, time: float, symbol: str) -> Decimal:
        """What counts after a time of the last 24 hours."""
        return sum((one.units for one in self._of(symbol) if one.at > time), Decimal(0))

    def prune(self, now: float) -> None:
        """Keep only the sums of old payments."""
        recent = len(self.payments) - DETAILS
        kept: list[Signed] = []
        for number, one in enumerate(self.payments):
            if number >= recent or one.at > now - DAY:
                kept.append(one)
            elif not one.unused:
                self._add(one, "task", one.origin, one.task, one.symbol)
                if one.on_behalf_of:
                    self._add(one, "for", one.on_behalf_of, one.symbol)
        self.payments = kept
        self.sums = {name: one for name, one in self.sums.items() if one.at > now - SUMS}

    def _of(self, symbol: str) -> list[Signed]:
        return [one for one in self.payments if one.symbol == symbol and not one.unused]

    def _older(self, *about: str) -> Decimal:
        found = self.sums.get(digest(*about)[:24])
        return Decimal(found.amount) if found is not None else Decimal(0)

    def _add(self, one: Signed, *about: str) -> None:
        amount = self._older(*about) + one.units
        self.sums[digest(*about)[:24]] = Sum(f"{amount:f}", one.at)


class SignedPayment(Struct, frozen=True, kw_only=True):
    """A payment of a wallet."""

    at: float
    """When it was counted, as a Unix time."""
    expires: float
    """Until when it can be carried out."""
    origin: str
    """The origin of the agent."""
    task: str
    """The task of the agent."""
    amount: str
    """The amount and the asset, such as `0.1 USDC`."""
    network: str
    to: str
    state: str
    """`counted` before it is signed, `signed`, `settled` if a chain has shown the transfer, or
    `unused` if it has expired without one. An unused payment does not count."""
    transaction: str = ""
    """The transaction of the transfer, once a chain has shown it."""


class WalletLimits(Struct, frozen=True):
    """The limits of a wallet."""

    per_call: str
    """The most for one task in the process that has paid last; empty if none has."""
    per_day: str
    """The most in 24 hours in the process that has paid last; empty if none has."""
    counted: Sequence[str]
    """What counts of the last 24 hours, for each asset, such as `0.1 USDC`."""


class LedgerPlace(Protocol):
    """Where a ledger is. All processes of the wallet share it."""

    async def read(self) -> Ledger:
        """Return the ledger; an empty one if there is none. Raises LedgerUnavailable."""

    async def change(self, work: Callable[[Ledger], T]) -> T:
        """Make a change, while nobody else can make one, and store it durably. Raises
        LedgerUnavailable; what the work raises changes nothing."""


def digest(*values: Any) -> str:
    """Return the digest of JSON values."""
    return hashlib.sha256(canonical(values)).hexdigest()


def signed_payment(one: Signed) -> SignedPayment:
    """Return a payment as it is shown: without its signature."""
    state = "unused" if one.unused else "settled" if one.transaction else "signed"
    return SignedPayment(
        at=one.at,
        expires=float(one.authorization.valid_before),
        origin=one.origin,
        task=one.task,
        amount=shown_amount((one.units, one.symbol)),
        network=short_name(one.network),
        to=one.to,
        state=state if one.signature or one.unused else "counted",
        transaction=one.transaction,
    )


def shown_amount(amount: tuple[Decimal, str]) -> str:
    """Return an amount for people: `0.1 USDC`."""
    units, symbol = amount
    return f"{units.normalize():f} {symbol}"
