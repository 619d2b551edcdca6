"""The collection of one payment: asks for it, checks it, and has it settled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman import GatedWork, Message, Part, Role, StepFailed, TaskState, Turn
from dragoman.payments.books import NONCES, Kind, PaymentRecord
from dragoman.payments.checks import MARGIN, Refusal, compared
from dragoman.payments.extension import (
    ERROR,
    RECEIPTS,
    REQUIRED,
    STATUS,
    PaymentError,
    PaymentStatus,
    in_words,
    metadata,
)
from dragoman.payments.facilitator import NoAnswer, error_of
from dragoman.payments.objects import (
    Authorization,
    MalformedObject,
    Offer,
    Receipt,
    Requirement,
    offer_object,
    read_payload,
    receipt_object,
)
from dragoman.payments.settlement import Settlement, submitted

if TYPE_CHECKING:
    from dragoman.payments.terms import Terms

logger = logging.getLogger("dragoman.payments")

TRIES = 3
"""How often a task asks for its payment."""
NONCE_SPACE = "x402.nonces"
"""The space of the reservations of nonces."""
SETTLE_TIME = 30
"""How many seconds before the end of the authorization work must end that is paid afterwards."""
LEAST = 60
"""How many seconds the authorization of such a payment must be valid at least."""
SILENCE = "the facilitator gave no answer"
RECORDS = 3
"""How often to try again to record a payment."""


class Payment(Struct, frozen=True):
    """The payment of a task, as its log keeps it; the signature is not in it."""

    receipts: tuple[Receipt, ...] = ()
    record: PaymentRecord | None = None
    text: str = ""
    uri: str = ""
    version: int = 1
    """The version of the x402 objects."""

    def conclude(self, work: GatedWork) -> None:
        """Add the receipts to the message that ends the task."""
        receipts = [receipt_object(one, self.version) for one in self.receipts]
        said = {STATUS: PaymentStatus.COMPLETED.value, RECEIPTS: receipts}
        work.conclude(said, f"Paid {self.text}", extensions=(self.uri,))


class Checked(Struct, frozen=True):
    """How the check of a payment ended."""

    required: Requirement | None = None
    authorization: Authorization | None = None
    """What is signed; the signature is in no log."""
    error: str = ""
    reason: str = ""
    silent: bool = False
    """No facilitator gave an answer: nothing has happened."""
    facilitator: str = ""
    """The URL of the one that has checked it."""


class Collection:
    """The collection of one payment: asks, checks, has it settled."""

    def __init__(self, terms: Terms, turn: Turn, work: GatedWork, offer: Offer, uri: str) -> None:
        self._terms, self._turn, self._work = terms, turn, work
        self._offer, self._uri = offer, uri
        self._receipts: list[Receipt] = []
        self._unknown = False
        """Whether the payment was carried out is not known, and the task has failed."""

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
            signed, required = checked.authorization, checked.required
            record = payment_record(self._turn, self._work, signed, required)
            url = checked.facilitator
            settlement = Settlement(self._terms, url, self._turn, self._work, record)
            if self._terms.settle == "after":
                await self._work_first(settlement, signed, required)
                return None
            payment = await self._settled(settlement, signed, required)
            if payment is not None or self._unknown:
                return payment
            error, reason = error_of(self._receipts[-1].error), "the payment was not carried out"
        await self._fail(error or PaymentError.SETTLEMENT_FAILED, f"There is no payment: {reason}")
        return None

    async def _work_first(
        self, settlement: Settlement, signed: Authorization, required: Requirement
    ) -> None:
        """Have the work done, and then the payment settled; the output is held back until then."""
        # on replay, how it ended is in the log
        end = await self._work.run(max(signed.valid_before - time.time() - SETTLE_TIME, 0.0))
        if end is None or end.status.state is not TaskState.COMPLETED:
            said = {STATUS: PaymentStatus.FAILED.value}
            self._work.conclude(said, "Nothing was paid", extensions=(self._uri,))
            return
        payment = await self._settled(settlement, signed, required)
        if payment is not None:
            await self._work.save(msgspec.to_builtins(payment))
            payment.conclude(self._work)
            self._work.publish()
        elif not self._unknown:
            error = error_of(self._receipts[-1].error)
            await self._fail(error, "The payment was not carried out, so there is no result")

    async def _settled(
        self, settlement: Settlement, signed: Authorization, required: Requirement
    ) -> Payment | None:
        """Have a payment settled; None if it was not, and the task has failed if that is not
        known."""
        receipt, record = await settlement.run(signed, required), settlement.record
        if receipt is None:
            self._unknown = True
            await note(self._terms, self._turn, self._work, record, "unsettled")
            text = "It is not known whether the payment was carried out, so there is no result"
            await self._fail(PaymentError.SETTLEMENT_FAILED, text)
            return None
        self._receipts.append(receipt)
        if not receipt.success:
            return None
        record = replace(record, transaction=receipt.transaction)
        await note(self._terms, self._turn, self._work, record, "settled")
        version, text = self._offer.version, in_words(required)
        return Payment(tuple(self._receipts), record, text, self._uri, version)

    async def _ask(self, error: str, reason: str) -> Message:
        if error:
            failed = self._message(f"The payment failed: {reason}", PaymentStatus.FAILED, error)
            await self._turn.emit(self._turn.working(failed))
        offer = Offer(self._offer.accepts, self._offer.version, reason)
        text = f"This costs {in_words(offer.accepts[0])}" + (f": {reason}" if reason else "")
        more = {REQUIRED: offer_object(offer)}
        asked = self._message(text, PaymentStatus.REQUIRED, error, more)
        return await self._turn.ask_for(self._turn.ask(asked))

    async def _checked(self, said: Mapping[str, Any]) -> Checked:
        """Check a payment; again, after the first two pauses, if the facilitator is away."""
        check = partial(self._check, said)
        checked = await self._turn.step("x402.verify", check, returns=Checked)
        for pause in self._terms.settle_pauses[:2]:
            if not checked.silent:
                break
            await self._turn.sleep(pause)
            checked = await self._turn.step("x402.verify", check, returns=Checked)
        return checked

    async def _check(self, said: Mapping[str, Any]) -> Checked:
        """Compare a payment with the offer, ask the facilitator, and reserve its nonce."""
        checked = await self._compare(said)
        if checked.error and not checked.silent:
            self._work.report("payment.refused", checked.error, reason=checked.reason)
        return checked

    async def _compare(self, said: Mapping[str, Any]) -> Checked:
        given = await submitted(self._work)
        if said.get(STATUS) != PaymentStatus.SUBMITTED or given is None:
            return Checked(reason="the message has no payment")
        try:
            payload = read_payload(given)
        except MalformedObject as error:
            return refused(PaymentError.INVALID_SIGNATURE, str(error))
        # to recover the signer takes milliseconds
        margin = LEAST if self._terms.settle == "after" else MARGIN
        found = await asyncio.to_thread(compared, payload, self._offer, time.time(), margin)
        if isinstance(found, Refusal):
            return refused(found.error, found.reason)
        for facilitator in self._terms.facilitators:
            try:
                verdict = await facilitator._verify(payload, found)
            except NoAnswer as error:
                host = urlsplit(facilitator.url).hostname
                logger.warning("the facilitator at %s did not check a payment: %s", host, error)
                continue
            if not verdict.valid:
                return refused(error_of(verdict.reason), "the facilitator refuses the payment")
            if not await self._reserve(payload.authorization, found):
                return refused(PaymentError.DUPLICATE_NONCE, "the payment was used before")
            return Checked(found, payload.authorization, facilitator=facilitator.url)
        # why is for the log: it may have addresses that the client must not see
        return refused(PaymentError.SETTLEMENT_FAILED, SILENCE, silent=True)

    async def _reserve(self, signed: Authorization, required: Requirement) -> bool:
        """Whether this task is the first that uses the payment."""
        key = f"{required.network}/{required.asset}/{signed.payer}/{signed.nonce}".lower()
        own = self._turn.task.id.encode()
        keep = max(signed.valid_before - time.time(), 0.0) + NONCES
        return await self._work.reserve(NONCE_SPACE, key, own, keep=keep) == own

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


def record_of(
    turn: Turn, work: GatedWork, required: Requirement, kind: Kind, at: float = 0.0
) -> PaymentRecord:
    """A record of what a task asks for."""
    return PaymentRecord(
        kind=kind,
        agent=work.agent,
        task=turn.task.id,
        skill=work.skill,
        to=required.pay_to,
        network=required.network,
        asset=required.asset,
        amount=required.amount,
        at=at,
    )


def payment_record(
    turn: Turn, work: GatedWork, signed: Authorization, required: Requirement
) -> PaymentRecord:
    """The record of a payment that may be sent."""
    return replace(
        record_of(turn, work, required, "unsettled"),
        payer=signed.payer,
        nonce=signed.nonce,
        expires=signed.valid_before,
    )


async def note(
    terms: Terms, turn: Turn, work: GatedWork, record: PaymentRecord, kind: Kind
) -> None:
    """Record what happened to a payment, as a step."""
    found = replace(record, kind=kind, at=turn.now().timestamp())
    try:
        await turn.step(f"x402.{kind}", terms.note, work, found, retries=RECORDS)
    except StepFailed as error:
        logger.error("a payment of task %s could not be recorded: %s", record.task, error)
