"""The settlement of one payment: sends it to the facilitator, and finds out what came of it."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dragoman import GatedWork, StepUncertain, Turn
from dragoman.payments.books import PaymentRecord
from dragoman.payments.extension import PAYLOAD, embedded_payload
from dragoman.payments.facilitator import NoAnswer, proves_nothing_sent
from dragoman.payments.objects import Authorization, Payload, Receipt, Requirement, read_payload

if TYPE_CHECKING:
    from dragoman.payments.terms import Terms

logger = logging.getLogger("dragoman.payments")


class Settled(Struct, frozen=True):
    """What is known of a settlement; no receipt if it is not known how it ended."""

    receipt: Receipt | None = None


class Settlement:
    """The settlement of one payment."""

    def __init__(
        self,
        terms: Terms,
        facilitator: str,
        turn: Turn,
        work: GatedWork,
        record: PaymentRecord,
    ) -> None:
        self._terms = terms
        known = (one for one in terms.facilitators if one.url == facilitator)
        self._facilitator = next(known, None)
        self._turn, self._work = turn, work
        self._books = terms.books(work)
        self.record = record

    async def run(self, signed: Authorization, required: Requirement) -> Receipt | None:
        """How the payment was settled; None if that is not known."""
        turn = self._turn
        send = partial(self._send, signed, required)
        try:
            # an answer that is lost in a crash is not known
            answer = await turn.step("x402.settle", send, False, returns=Settled, once=True)
        except StepUncertain:
            answer = Settled()
        for pause in (0.0, *self._terms.settle_pauses):
            if answer.receipt is not None:
                break
            if pause:
                await turn.sleep(pause)
            answer = await turn.step("x402.settle_again", send, True, returns=Settled)
        return answer.receipt

    async def _send(self, signed: Authorization, required: Requirement, again: bool) -> Settled:
        """Send the payment. It is open from before that until it is known that nothing came of it,
        or until its task has ended."""
        await self._books.open(self.record)
        found = await self._sent(signed, required, again)
        refused = found.receipt is not None and not found.receipt.success
        # if the task has ended meanwhile, maintenance has listed the payment, and goes on to look
        if refused and await self._books.find("unsettled", self.record) is None:
            await self._books.close(self.record)
        return found

    async def _sent(self, signed: Authorization, required: Requirement, again: bool) -> Settled:
        """Have the payment settled. A refusal counts only for the first time, and only if its
        reason proves that nothing was sent: else, the payment may have been carried out."""
        receipt: Receipt | None
        try:
            if self._facilitator is None:
                raise NoAnswer("this merchant has another facilitator now")
            receipt = await self._facilitator._settle(await self._payload(), required)
        except NoAnswer as error:
            logger.warning("the settlement of a payment is not known: %s", error)
            receipt = None
        refused = receipt is not None and not again and proves_nothing_sent(receipt)
        if required.network in self._terms.chains:
            found = await self._on_chain(signed, required)
            return Settled(receipt) if refused and found.receipt is None else found
        return Settled(receipt if receipt is not None and (refused or receipt.success) else None)

    async def _on_chain(self, signed: Authorization, required: Requirement) -> Settled:
        """How a payment was settled, by the chain alone."""
        try:
            chain = self._terms.chains[required.network]
            return Settled(await chain._settled(required, signed))
        except NoAnswer as error:
            logger.warning("the settlement of a payment is not known: %s", error)
            return Settled()

    async def _payload(self) -> Payload:
        """The payment that the task has read last. Raises NoAnswer if it is not kept any more."""
        given = await submitted(self._work)
        if given is None:
            raise NoAnswer("the payment is not kept any more")
        return read_payload(given)


async def submitted(work: GatedWork) -> Any:
    """The signed payment in the message that the task has read last: in its metadata, or inside of
    another protocol's object; None if there is none."""
    if PAYLOAD in (given := await work.private_metadata()):
        return given[PAYLOAD]
    found = [embedded_payload(part.data) for part in await work.private_parts()]
    return found[0] if len(found) == 1 else None
