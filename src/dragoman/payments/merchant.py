"""The merchant: asks for a payment before a skill works, has it settled, and hands out receipts."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman import (
    AgentExtension,
    GatedWork,
    Message,
    Part,
    Role,
    StepFailed,
    StepUncertain,
    TaskState,
    Turn,
)
from dragoman.payments.chain import Chain
from dragoman.payments.checks import Refusal, compared
from dragoman.payments.extension import (
    ERROR,
    PAYLOAD,
    RECEIPTS,
    REQUIRED,
    STATUS,
    URIS,
    PaymentError,
    PaymentStatus,
    active,
    metadata,
)
from dragoman.payments.facilitator import (
    Facilitator,
    NoAnswer,
    error_of,
    proves_nothing_sent,
)
from dragoman.payments.networks import KNOWN, network_of
from dragoman.payments.objects import (
    VERSIONS,
    Authorization,
    MalformedObject,
    Offer,
    Payload,
    Receipt,
    Requirement,
    offer_object,
    read_payload,
    receipt_object,
)
from dragoman.payments.price import Price
from dragoman.payments.signing import check_installed

logger = logging.getLogger("dragoman.payments")

PriceOf = Callable[[Turn], Price | Awaitable[Price | None] | None]
"""The price of a request: None if it is free."""
TRIES = 3
"""How often a task asks for its payment."""
SPACE = "x402.nonces"
"""The space of the reservations of nonces."""
KEPT = 30 * 24 * 3600.0
"""How many seconds a nonce stays reserved after its payment has expired."""
PAUSES = (2.0, 30.0, 300.0)
"""The pauses, in seconds, before a payment whose settlement is not known is sent again."""
RECORDS = 3
"""How often to try again to record a payment."""
ABOUT = "Payments by the x402 protocol."


class PaymentRecord(Struct, frozen=True, kw_only=True):
    """What happened to a payment."""

    kind: Literal["settled", "owed", "unsettled"]
    """`owed`: it was settled, and the task did not complete. `unsettled`: it was sent to the
    facilitator, and whether it was carried out is not known."""
    task: str
    skill: str
    payer: str
    to: str
    network: str
    asset: str
    amount: int
    nonce: str
    transaction: str = ""
    at: float = 0.0


Record = Callable[[PaymentRecord], Awaitable[None]]


class Payment(Struct, frozen=True):
    """The payment of a task, as its log keeps it; the signature is not in it."""

    receipts: tuple[Receipt, ...] = ()
    record: PaymentRecord | None = None
    text: str = ""
    uri: str = ""
    version: int = 1
    """The version of the x402 objects."""


class Checked(Struct, frozen=True):
    """How the check of a payment ended."""

    required: Requirement | None = None
    authorization: Authorization | None = None
    """What is signed; the signature is in no log."""
    error: str = ""
    reason: str = ""
    silent: bool = False
    """The facilitator gave no answer: nothing has happened."""


class Settled(Struct, frozen=True):
    """What the facilitator has answered; no receipt if it is not known what it did."""

    receipt: Receipt | None = None


class Merchant:
    """Sells skills: `@agent.skill(gate=merchant.price(Price("0.10", …)))`.

    `versions` are the versions of the A2A extension that it offers, and `x402_version` is the
    version of the x402 objects in its offers; it reads payments of both. `record` is called once or
    more for each payment that was settled, is owed, or is not known to be settled; a record that is
    repeated is equal but for its time. `chains` has a node of each network: with one, a payment is
    settled when its transfer is on the chain; without one, when the facilitator says so.
    """

    def __init__(
        self,
        facilitator: Facilitator,
        *,
        versions: Sequence[str] = ("0.2",),
        x402_version: int = 1,
        record: Record | None = None,
        settle_pauses: Sequence[float] = PAUSES,
        chains: Mapping[str, Chain] | None = None,
    ) -> None:
        if isinstance(versions, str) or not versions or not set(versions) <= set(URIS):
            raise ValueError(f"Merchant: versions: expected a list of {', '.join(URIS)}")
        if x402_version not in VERSIONS:
            raise ValueError("Merchant: x402_version must be 1 or 2")
        check_installed()  # now, and not at the first payment
        self.facilitator = facilitator
        self.uris = tuple(URIS[version] for version in URIS if version in versions)
        self.x402_version = x402_version
        self.settle_pauses = tuple(settle_pauses)
        self.chains = {network_of(name): chain for name, chain in (chains or {}).items()}
        self._record = record

    def price(self, price: Price | PriceOf) -> PaidSkill:
        """Return the gate of a skill that costs this. A function gets the turn, and returns the
        price of its request, or None if it is free."""
        return PaidSkill(self, price)

    async def note(self, record: PaymentRecord) -> None:
        """Log a payment and pass it on."""
        words = "payment of task %s is %s"
        (logger.info if record.kind == "settled" else logger.warning)(
            words, record.task, record.kind
        )
        if self._record is not None:
            await self._record(record)


class PaidSkill:
    """The gate of a skill that costs something. See `dragoman.Gate`."""

    def __init__(self, merchant: Merchant, price: Price | PriceOf) -> None:
        self._merchant = merchant
        self._price = price

    def extensions(self, skill: str) -> Sequence[AgentExtension]:
        """See `dragoman.Gate`."""
        fixed = self._price if isinstance(self._price, Price) else None
        params: dict[str, Any] | None = None
        if fixed is not None:
            shown = {"amount": str(fixed), "network": fixed.asset.network, "payTo": fixed.to}
            params = {"prices": {skill: shown}}
        # a client needs one version only
        required = fixed is not None and len(self._merchant.uris) == 1
        return [
            AgentExtension(uri=uri, description=ABOUT, required=required, params=params)
            for uri in self._merchant.uris
        ]

    @property
    def private_metadata(self) -> Sequence[str]:
        """See `dragoman.PrivateMetadata`."""
        return (PAYLOAD,)

    async def enter(self, turn: Turn, work: GatedWork) -> None:
        """See `dragoman.Gate`."""
        if work.saved is None:
            payment = await self._paid(turn, work)
            if payment is None:
                return
            await work.save(msgspec.to_builtins(payment))
        payment = msgspec.convert(work.saved, Payment)
        if payment.record is None:  # it is free
            await work.run()
            return
        receipts = [receipt_object(one, payment.version) for one in payment.receipts]
        said = {STATUS: PaymentStatus.COMPLETED.value, RECEIPTS: receipts}
        work.conclude(said, f"Paid {payment.text}", extensions=(payment.uri,))
        end = await work.run()
        if end is not None and end.status.state is not TaskState.COMPLETED:
            await note(self._merchant, turn, payment.record, "owed")

    async def _paid(self, turn: Turn, work: GatedWork) -> Payment | None:
        """Collect the payment of a task; None if there is none, and the task has ended."""
        offer = await turn.step("x402.offer", self._offer, turn, returns=Offer | None)
        if offer is None:
            return Payment()
        uri = active(one for one in turn.extensions if one in self._merchant.uris)
        if not uri:
            text = f"This skill costs a payment. Activate the extension {self._merchant.uris[0]}"
            await turn.emit(turn.reject(text))
            return None
        return await Collection(self._merchant, turn, work, offer, uri).run()

    async def _offer(self, turn: Turn) -> Offer | None:
        price: Any = self._price
        if not isinstance(price, Price):
            price = price(turn)
            price = await price if inspect.isawaitable(price) else price
        if price is None:
            return None
        about = f"{turn.skill or 'The default skill'} of task {turn.task.id}"
        return Offer((price.requirement(description=about),), self._merchant.x402_version)


class Collection:
    """The collection of one payment: asks, checks, has it settled."""

    def __init__(
        self, merchant: Merchant, turn: Turn, work: GatedWork, offer: Offer, uri: str
    ) -> None:
        self._merchant, self._turn, self._work = merchant, turn, work
        self._offer, self._uri = offer, uri
        self._receipts: list[Receipt] = []

    async def run(self) -> Payment | None:
        """Return the payment; None if there is none, and the task has ended."""
        error, reason = "", ""
        for _ in range(TRIES):
            answer = await self._ask(error, reason)
            said = metadata(answer)
            if said.get(STATUS) == PaymentStatus.REJECTED:
                text = "The payment was declined"
                await self._turn.emit(
                    self._turn.reject(self._message(text, PaymentStatus.REJECTED))
                )
                return None
            checked = await self._checked(said)
            if checked.required is None or checked.authorization is None:
                error, reason = checked.error, checked.reason
                continue
            verified = self._message("The payment is verified", PaymentStatus.VERIFIED)
            await self._turn.emit(self._turn.working(verified))
            signed = checked.authorization
            receipt = await self._settled(signed, checked.required)
            record = self._record(signed, checked.required, receipt)
            if receipt is None:
                await self._fail_unsettled(record)
                return None
            self._receipts.append(receipt)
            if receipt.success:
                await note(self._merchant, self._turn, record, "settled")
                text = shown(checked.required)
                version = self._offer.version
                return Payment(tuple(self._receipts), record, text, self._uri, version)
            error, reason = error_of(receipt.error), "the payment was not carried out"
        await self._fail(error or PaymentError.SETTLEMENT_FAILED, f"There is no payment: {reason}")
        return None

    async def _ask(self, error: str, reason: str) -> Message:
        offer = Offer(self._offer.accepts, self._offer.version, reason)
        price = shown(offer.accepts[0])
        text = f"This costs {price}" + (f": {reason}" if reason else "")
        more = {REQUIRED: offer_object(offer)}
        asked = self._message(text, PaymentStatus.REQUIRED, error, more)
        return await self._turn.ask_for(self._turn.ask(asked))

    async def _checked(self, said: Mapping[str, Any]) -> Checked:
        """Check a payment; again, after the first two pauses, if the facilitator is away."""
        check = partial(self._check, said)
        checked = await self._turn.step("x402.verify", check, returns=Checked)
        for pause in self._merchant.settle_pauses[:2]:
            if not checked.silent:
                break
            await self._turn.sleep(pause)
            checked = await self._turn.step("x402.verify", check, returns=Checked)
        return checked

    async def _check(self, said: Mapping[str, Any]) -> Checked:
        """Compare a payment with the offer, ask the facilitator, and reserve its nonce."""
        given = await self._work.private_metadata()
        if said.get(STATUS) != PaymentStatus.SUBMITTED or PAYLOAD not in given:
            return Checked(reason="the message has no payment")
        try:
            payload = read_payload(given[PAYLOAD])
        except MalformedObject as error:
            return refused(PaymentError.INVALID_SIGNATURE, str(error))
        # to recover the signer takes milliseconds
        found = await asyncio.to_thread(compared, payload, self._offer, time.time())
        if isinstance(found, Refusal):
            return refused(found.error, found.reason)
        try:
            verdict = await self._merchant.facilitator.verify(payload, found)
        except NoAnswer as error:
            return refused(PaymentError.SETTLEMENT_FAILED, str(error), silent=True)
        if not verdict.valid:
            return refused(error_of(verdict.reason), "the facilitator refuses the payment")
        if not await self._reserve(payload.authorization, found):
            return refused(PaymentError.DUPLICATE_NONCE, "the payment was used before")
        return Checked(found, payload.authorization)

    async def _reserve(self, signed: Authorization, required: Requirement) -> bool:
        """Whether this task is the first that uses the payment."""
        key = f"{required.network}/{required.asset}/{signed.payer}/{signed.nonce}".lower()
        own = self._turn.task.id.encode()
        keep = max(signed.valid_before - time.time(), 0.0) + KEPT
        return await self._work.reserve(SPACE, key, own, keep=keep) == own

    async def _settled(self, signed: Authorization, required: Requirement) -> Receipt | None:
        """How the payment was settled; None if that is not known."""
        turn = self._turn
        send = partial(self._send, signed, required)
        try:
            # an answer that is lost in a crash is not known
            answer = await turn.step("x402.settle", send, False, returns=Settled, once=True)
        except StepUncertain:
            answer = Settled()
        for pause in (0.0, *self._merchant.settle_pauses):
            if answer.receipt is not None:
                break
            if pause:
                await turn.sleep(pause)
            answer = await turn.step("x402.settle_again", send, True, returns=Settled)
        return answer.receipt

    async def _on_chain(self, signed: Authorization, required: Requirement) -> Settled:
        """How a payment was settled, by the chain alone."""
        try:
            chain = self._merchant.chains[required.network]
            return Settled(await chain.settled(required, signed))
        except NoAnswer as error:
            logger.warning("the settlement of a payment is not known: %s", error)
            return Settled()

    async def _send(self, signed: Authorization, required: Requirement, again: bool) -> Settled:
        """Have the payment settled. A refusal counts only for the first time, and only if its
        reason proves that nothing was sent: else, the payment may have been carried out."""
        receipt: Receipt | None
        try:
            receipt = await self._merchant.facilitator.settle(await self._payload(), required)
        except NoAnswer as error:
            logger.warning("the settlement of a payment is not known: %s", error)
            receipt = None
        refused = receipt is not None and not again and proves_nothing_sent(receipt)
        if required.network in self._merchant.chains:
            found = await self._on_chain(signed, required)
            return Settled(receipt) if refused and found.receipt is None else found
        return Settled(receipt if receipt is not None and (refused or receipt.success) else None)

    async def _payload(self) -> Payload:
        """The payment that the task has read last. Raises NoAnswer if it is not kept any more."""
        given = await self._work.private_metadata()
        if PAYLOAD not in given:
            raise NoAnswer("the payment is not kept any more")
        return read_payload(given[PAYLOAD])

    def _record(
        self, signed: Authorization, required: Requirement, receipt: Receipt | None
    ) -> PaymentRecord:
        return PaymentRecord(
            kind="settled",
            task=self._turn.task.id,
            skill=self._turn.skill,
            payer=signed.payer,
            to=required.pay_to,
            network=required.network,
            asset=required.asset,
            amount=required.amount,
            nonce=signed.nonce,
            transaction=receipt.transaction if receipt else "",
        )

    async def _fail_unsettled(self, record: PaymentRecord) -> None:
        await note(self._merchant, self._turn, record, "unsettled")
        text = "It is not known whether the payment was carried out; nothing was done for it"
        await self._fail(PaymentError.SETTLEMENT_FAILED, text)

    async def _fail(self, error: str, text: str) -> None:
        await self._turn.emit(self._turn.fail(self._message(text, PaymentStatus.FAILED, error)))

    def _message(
        self,
        text: str,
        status: PaymentStatus,
        error: str = "",
        more: Mapping[str, Any] | None = None,
    ) -> Message:
        said: dict[str, Any] = {STATUS: status.value, **(more or {})}
        if error:
            said[ERROR] = str(error)
        if self._receipts:
            version = self._offer.version
            said[RECEIPTS] = [receipt_object(one, version) for one in self._receipts]
        return Message(
            message_id=str(self._turn.uuid()),
            role=Role.AGENT,
            parts=(Part(text=text),),
            metadata=said,
            extensions=(self._uri,),
        )


def refused(error: PaymentError, reason: str, *, silent: bool = False) -> Checked:
    """A payment that does not count."""
    return Checked(error=error, reason=reason, silent=silent)


async def note(
    merchant: Merchant,
    turn: Turn,
    record: PaymentRecord,
    kind: Literal["settled", "owed", "unsettled"],
) -> None:
    """Record what happened to a payment, as a step."""
    found = replace(record, kind=kind, at=turn.now().timestamp())
    try:
        await turn.step(f"x402.{kind}", merchant.note, found, retries=RECORDS)
    except StepFailed as error:
        logger.error("a payment of task %s could not be recorded: %s", record.task, error)


def shown(required: Requirement) -> str:
    """A way to pay, for people."""
    for asset in KNOWN:
        known = (asset.network, asset.address.lower())
        if known == (required.network, required.asset.lower()):
            return f"{asset.shown(required.amount)} on {required.network}"
    return f"{required.amount} of {required.asset} on {required.network}"
