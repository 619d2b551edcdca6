"""The merchant: what a skill costs, and the gate of a skill that costs something."""

from __future__ import annotations

import inspect
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from dragoman import AgentExtension, GatedWork, GateStore, Part, TaskState, Turn
from dragoman.payments.books import RETENTION
from dragoman.payments.chain import Chain
from dragoman.payments.collection import LEAST, Collection, Payment, note, record_of
from dragoman.payments.extension import PAYLOAD, URIS, active, embedded_payload
from dragoman.payments.facilitator import Facilitator
from dragoman.payments.lookup import look_up
from dragoman.payments.networks import network_of
from dragoman.payments.objects import VERSIONS, Offer
from dragoman.payments.price import Price
from dragoman.payments.signing import check_installed
from dragoman.payments.terms import Record, Terms

PriceOf = Callable[[Turn], Price | Awaitable[Price | None] | None]
"""The price of a request: None if it is free."""
PAUSES = (2.0, 30.0, 300.0)
"""The pauses, in seconds, before a payment whose settlement is not known is sent again."""
ABOUT = "Payments by the x402 protocol."


class Merchant:
    """Sells skills: `@agent.skill(gate=merchant.price(Price("0.10", …)))`.

    `versions` are the versions of the A2A extension that it offers, and `x402_version` is the
    version of the x402 objects in its offers; it reads payments of both. `chains` has a node of
    each network: with one, a payment is settled when its transfer is on the chain; without one,
    when the facilitator says so.

    `second` checks and settles a payment if the first facilitator gave no answer when it was to
    check it. What was sent to one of them for settlement is never sent to the other.

    With `settle="after"`, a skill works before its payment is settled, and its output is held back
    until then: it must return its output, and end before the authorization does.

    The books of all payments are in the store for `retention` seconds, or for ever (None): see
    `Books`. `record` is called, too, once or more for each record of a payment; a record that is
    repeated is equal but for its time. If it pays an owed payment back, it returns the Refund.
    """

    def __init__(
        self,
        facilitator: Facilitator,
        *,
        second: Facilitator | None = None,
        versions: Sequence[str] = ("0.2",),
        x402_version: int = 1,
        record: Record | None = None,
        settle_pauses: Sequence[float] = PAUSES,
        chains: Mapping[str, Chain] | None = None,
        retention: float | None = RETENTION,
        settle: Literal["before", "after"] = "before",
    ) -> None:
        if isinstance(versions, str) or not versions or not set(versions) <= set(URIS):
            raise ValueError(f"Merchant: versions: expected a list of {', '.join(URIS)}")
        if x402_version not in VERSIONS:
            raise ValueError("Merchant: x402_version must be 1 or 2")
        if retention is not None and not retention > 0:
            raise ValueError("Merchant: retention must be greater than 0, or None for ever")
        if settle not in ("before", "after"):
            raise ValueError("Merchant: settle must be 'before' or 'after'")
        check_installed()  # now, and not at the first payment
        self._terms = Terms(
            facilitators=(facilitator, *((second,) if second is not None else ())),
            uris=tuple(URIS[version] for version in URIS if version in versions),
            x402_version=x402_version,
            settle_pauses=tuple(settle_pauses),
            chains={network_of(name): chain for name, chain in (chains or {}).items()},
            retention=retention,
            settle=settle,
            record=record,
            token=secrets.token_bytes(16),
        )

    def price(self, price: Price | PriceOf) -> PaidSkill:
        """Return the gate of a skill that costs this. A function gets the turn, and returns the
        price of its request; None, or one of 0, is free."""
        if isinstance(price, Price):
            check_time(price, self._terms)
        return PaidSkill(self, price)


def check_time(price: Price, terms: Terms) -> None:
    """Raise ValueError if work that is paid afterwards could not end in time."""
    if terms.settle == "after" and price.timeout <= LEAST:
        raise ValueError(f"Price: timeout must be greater than {LEAST} with settle='after'")


class PaidSkill:
    """The gate of a skill that costs something. See `dragoman.Gate`."""

    def __init__(self, merchant: Merchant, price: Price | PriceOf) -> None:
        self._terms = merchant._terms
        self._price = price

    def extensions(self, skill: str) -> Sequence[AgentExtension]:
        """See `dragoman.Gate`."""
        fixed = self._price if isinstance(self._price, Price) else None
        params: dict[str, Any] | None = None
        if fixed is not None:
            shown = {"amount": str(fixed), "network": fixed.asset.network, "payTo": fixed.to}
            params = {"prices": {skill: shown}}
        # a client needs one version only
        required = fixed is not None and fixed.units > 0 and len(self._terms.uris) == 1
        return [
            AgentExtension(uri=uri, description=ABOUT, required=required, params=params)
            for uri in self._terms.uris
        ]

    @property
    def private_metadata(self) -> Sequence[str]:
        """See `dragoman.PrivateMetadata`."""
        return (PAYLOAD,)

    def is_private(self, part: Part) -> bool:
        """See `dragoman.PrivateParts`."""
        return part.data is not None and embedded_payload(part.data) is not None

    @property
    def holds_output(self) -> bool:
        """See `dragoman.OutputGate`."""
        return self._terms.settle == "after"

    async def maintain(self, store: GateStore) -> None:
        """See `dragoman.MaintainedGate`."""
        await look_up(self._terms, store)

    async def enter(self, turn: Turn, work: GatedWork) -> None:
        """See `dragoman.Gate`."""
        if work.saved is None:
            payment = await self._paid(turn, work)
            if payment is None:
                return
            await work.save(msgspec.to_builtins(payment))
        payment = msgspec.convert(work.saved, Payment)
        work.publish()
        if payment.record is None:  # it is free
            await work.run()
            return
        payment.conclude(work)
        end = await work.run()
        if end is not None and end.status.state is not TaskState.COMPLETED:
            await note(self._terms, turn, work, payment.record, "owed")

    async def _paid(self, turn: Turn, work: GatedWork) -> Payment | None:
        """Collect the payment of a task; None if there is none, and the task has ended."""
        uri = active(one for one in turn.extensions if one in self._terms.uris)
        offer = await turn.step("x402.offer", self._offer, turn, work, uri, returns=Offer | None)
        if offer is None:
            return Payment()
        if not uri:
            text = f"This skill costs a payment. Activate the extension {self._terms.uris[0]}"
            await turn.emit(turn.reject(text))
            return None
        return await Collection(self._terms, turn, work, offer, uri).run()

    async def _offer(self, turn: Turn, work: GatedWork, uri: str) -> Offer | None:
        price: Any = self._price
        if not isinstance(price, Price):
            price = price(turn)
            price = await price if inspect.isawaitable(price) else price
        if not isinstance(price, Price | None):
            name = type(price).__name__
            raise TypeError(
                f"the function of a price must return a Price or None, and not a {name}"
            )
        if price is None or not price.units:
            return None
        check_time(price, self._terms)
        about = f"{turn.skill or 'The default skill'} of task {turn.task.id}"
        required = price._requirement(description=about)
        if uri:
            await self._terms.note(work, record_of(turn, work, required, "offered", time.time()))
        return Offer((required,), self._terms.x402_version)
