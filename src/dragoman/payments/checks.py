"""Compares a signed payment with what was offered."""

from __future__ import annotations

from msgspec import Struct

from dragoman.payments.extension import PaymentError
from dragoman.payments.objects import SCHEME, Offer, Payload, Requirement
from dragoman.payments.signing import signer_of

MARGIN = 6
"""How many more seconds a payment must be valid: the chain needs time."""
PLAIN = 2 + 65 * 2
"""The characters of a signature of a key. Contracts have longer ones."""


class Refusal(Struct, frozen=True):
    """Why a payment is refused."""

    error: PaymentError
    reason: str


def same(one: Requirement, other: Requirement) -> bool:
    """Whether two ways to pay ask for the same payment."""
    return (
        (one.scheme, one.network, one.amount) == (other.scheme, other.network, other.amount)
        and one.asset.lower() == other.asset.lower()
        and one.pay_to.lower() == other.pay_to.lower()
    )


def compared(
    payload: Payload, offer: Offer, now: float, margin: float = MARGIN
) -> Requirement | Refusal:
    """Return which way to pay of an offer a payment is for, or why it is for none. It must be valid
    for `margin` more seconds."""
    signed = payload.authorization
    ways = [one for one in offer.accepts if one.network == payload.network]
    if payload.scheme != SCHEME:
        return Refusal(PaymentError.NETWORK_MISMATCH, f"the scheme must be {SCHEME!r}")
    if not ways:
        return Refusal(PaymentError.NETWORK_MISMATCH, "the payment is on another network")
    if payload.accepted is not None:
        ways = [one for one in ways if one.asset.lower() == payload.accepted.asset.lower()]
        if not ways:
            return Refusal(PaymentError.NETWORK_MISMATCH, "the payment is in another asset")
    ways = [one for one in ways if one.pay_to.lower() == signed.to.lower()]
    if not ways:
        return Refusal(PaymentError.INVALID_SIGNATURE, "the payment is to another receiver")
    ways = [one for one in ways if one.amount == signed.value]
    if not ways:
        return Refusal(PaymentError.INVALID_AMOUNT, "the payment is of another amount")
    if payload.accepted is not None and not any(same(payload.accepted, one) for one in ways):
        return Refusal(PaymentError.INVALID_AMOUNT, "the payment accepts another offer")
    if signed.valid_after > now:
        return Refusal(PaymentError.EXPIRED_PAYMENT, "the payment is not valid yet")
    if signed.valid_before < now + margin:
        soon = " or expires too soon" if margin > MARGIN else ""
        return Refusal(PaymentError.EXPIRED_PAYMENT, f"the payment has expired{soon}")
    if len(payload.signature) > PLAIN:
        return ways[0]  # a contract signs: only the facilitator can check it
    for way in ways:
        if signer_of(payload, way).lower() == signed.payer.lower():
            return way
    return Refusal(PaymentError.INVALID_SIGNATURE, "the signature is not the payer's")
