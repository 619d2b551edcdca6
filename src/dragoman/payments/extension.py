"""The A2A x402 extension, versions 0.2 and 0.1: its URIs, and its metadata in messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from dragoman import AgentCard, Message, Task
from dragoman.client import Result
from dragoman.payments.networks import amount_in_words, short_name
from dragoman.payments.objects import (
    MalformedObject,
    Offer,
    Receipt,
    Requirement,
    read_offer,
    read_receipts,
)

URIS: Mapping[str, str] = {
    "0.2": "https://github.com/google-agentic-commerce/a2a-x402/blob/main/spec/v0.2",
    "0.1": "https://github.com/google-a2a/a2a-x402/v0.1",
}
"""The URI of each version, the newest first. Their metadata is the same."""
STATUS = "x402.payment.status"
REQUIRED = "x402.payment.required"
PAYLOAD = "x402.payment.payload"
RECEIPTS = "x402.payment.receipts"
ERROR = "x402.payment.error"

MOST_NODES = 10_000
"""How many values of an object are searched for a payment."""
SHOWN = 3
"""How many ways to pay are shown."""


class PaymentStatus(StrEnum):
    """The state of a payment, as messages name it."""

    REQUIRED = "payment-required"
    REJECTED = "payment-rejected"
    SUBMITTED = "payment-submitted"
    VERIFIED = "payment-verified"
    COMPLETED = "payment-completed"
    FAILED = "payment-failed"


class PaymentError(StrEnum):
    """Why a payment failed."""

    INSUFFICIENT_FUNDS = "INSUFFICIENT_FUNDS"
    INVALID_SIGNATURE = "INVALID_SIGNATURE"
    EXPIRED_PAYMENT = "EXPIRED_PAYMENT"
    DUPLICATE_NONCE = "DUPLICATE_NONCE"
    NETWORK_MISMATCH = "NETWORK_MISMATCH"
    INVALID_AMOUNT = "INVALID_AMOUNT"
    SETTLEMENT_FAILED = "SETTLEMENT_FAILED"


def active(extensions: Iterable[str]) -> str:
    """Return the URI of the newest version among these; empty if there is none."""
    given = set(extensions)
    return next((uri for uri in URIS.values() if uri in given), "")


def metadata(message: Message | None) -> Mapping[str, Any]:
    """Return the metadata of a message."""
    return (message.metadata or {}) if message is not None else {}


def embedded_payload(data: Any) -> Mapping[str, Any] | None:
    """Return the signed payment inside of another protocol's object, such as a PaymentMandate of
    AP2. It is recognized by its shape; nothing else of the object is read."""
    waiting, seen = deque([data]), 0
    while waiting and seen < MOST_NODES:
        value, seen = waiting.popleft(), seen + 1
        if isinstance(value, Mapping):
            inner = value.get("payload")
            if "x402Version" in value and isinstance(inner, Mapping) and "signature" in inner:
                return value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return None


def payment_required(result: Result) -> Offer | None:
    """Return the offer if the task of a result waits for a payment, else None. Raises
    MalformedObject if it asks for a payment in a way that this client does not understand, such as
    inside of another protocol's objects."""
    task = result.task
    if task is None or not task.status.state.interrupted:
        return None
    found = metadata(task.status.message)
    if found.get(STATUS) != PaymentStatus.REQUIRED:
        return None
    if REQUIRED not in found:
        raise MalformedObject("the task asks for a payment inside of another protocol (AP2)")
    return read_offer(found[REQUIRED])


def pause_text(said: Mapping[str, Any]) -> str:
    """Say what a message with this metadata asks for. The words are not the agent's: what it says
    of a price is not shown."""
    if REQUIRED not in said:
        return "the agent asks for a payment inside of another protocol (AP2)"
    try:
        offer = read_offer(said[REQUIRED])
    except MalformedObject:
        return "the agent asks for a payment in a way that is not understood"
    ways = list(dict.fromkeys(in_words(way) for way in offer.accepts))
    more = f" or {len(ways) - SHOWN} other ways" if len(ways) > SHOWN else ""
    return f"the agent asks for a payment of {' or '.join(ways[:SHOWN])}{more}"


def in_words(required: Requirement) -> str:
    """A way to pay, for people."""
    amount = amount_in_words(required.amount, required.asset, required.network)
    return f"{amount} on {short_name(required.network)} to {required.pay_to}"


class CardPrice(Struct, frozen=True):
    """What a skill costs by the card of its agent. It is information: the offer counts."""

    amount: str
    """The amount and the asset, such as `0.1 USDC`."""
    network: str
    to: str


def prices(card: AgentCard) -> Mapping[str, CardPrice]:
    """Return the fixed prices on a card, by the ids of the skills."""
    found: dict[str, CardPrice] = {}
    for extension in card.capabilities.extensions:
        listed = (extension.params or {}).get("prices")
        if extension.uri not in URIS.values() or not isinstance(listed, dict):
            continue
        for skill, price in listed.items():
            said = price if isinstance(price, dict) else {}
            values = [said.get(name) for name in ("amount", "network", "payTo")]
            found[skill] = CardPrice(*(v if isinstance(v, str) else "" for v in values))
    return found


def payments(result: Result) -> Sequence[Receipt]:
    """Return the receipts of the payments for the task of a result."""
    return receipts(result.task) if result.task is not None else ()


def receipts(task: Task) -> Sequence[Receipt]:
    """Return the receipts of the payments for a task."""
    for message in [task.status.message, *reversed(task.history)]:
        if RECEIPTS in (found := metadata(message)):
            return read_receipts(found[RECEIPTS])
    return ()
