"""Payments between agents by x402: what skills cost, and what a client may pay.

    merchant = Merchant(Facilitator("https://facilitator.example"))

    @agent.skill(gate=merchant.price(Price("0.10", "USDC", network="base-sepolia", to="0x…")))
    async def analyze(turn: Turn, repo: str): ...

    wallet = Wallet(key="env:WALLET_KEY", per_call="0.50 USDC", per_day="5 USDC")
    async with Client.connect(url, answer=wallet) as agent: ...

`objects` has the values of x402, `extension` their place in A2A messages, `checks` compares a
payment with an offer. `merchant` with its `terms`, `collection`, `settlement`, `lookup`, `books`,
`facilitator` and `chain` are the side that is paid, `wallet` with `wallet_options`, `ledger` with
its places `ledger_file` and `ledger_table`, and `signing` the side that pays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.payments.books import BookedPayment, Books, PaymentRecord, Refund
    from dragoman.payments.chain import Chain
    from dragoman.payments.extension import (
        CardPrice,
        PaymentError,
        PaymentStatus,
        pause_text,
        payment_required,
        payments,
        prices,
    )
    from dragoman.payments.facilitator import Facilitator, NoAnswer
    from dragoman.payments.ledger import LedgerUnavailable, SignedPayment, WalletLimits
    from dragoman.payments.merchant import Merchant, PaidSkill
    from dragoman.payments.networks import Asset
    from dragoman.payments.objects import MalformedObject, Offer, Receipt, Requirement
    from dragoman.payments.price import Price
    from dragoman.payments.signing import Signer
    from dragoman.payments.wallet import PaymentRefused, ProposedPayment, Wallet

__all__ = [
    "Asset",
    "BookedPayment",
    "Books",
    "CardPrice",
    "Chain",
    "Facilitator",
    "LedgerUnavailable",
    "MalformedObject",
    "Merchant",
    "NoAnswer",
    "Offer",
    "PaidSkill",
    "PaymentError",
    "PaymentRecord",
    "PaymentRefused",
    "PaymentStatus",
    "Price",
    "ProposedPayment",
    "Receipt",
    "Refund",
    "Requirement",
    "SignedPayment",
    "Signer",
    "Wallet",
    "WalletLimits",
    "pause_text",
    "payment_required",
    "payments",
    "prices",
]

_PLACES = {
    "Asset": "networks",
    "BookedPayment": "books",
    "Books": "books",
    "CardPrice": "extension",
    "Chain": "chain",
    "Facilitator": "facilitator",
    "LedgerUnavailable": "ledger",
    "Merchant": "merchant",
    "NoAnswer": "facilitator",
    "PaidSkill": "merchant",
    "PaymentError": "extension",
    "PaymentRecord": "books",
    "PaymentRefused": "wallet",
    "PaymentStatus": "extension",
    "Price": "price",
    "ProposedPayment": "wallet",
    "SignedPayment": "ledger",
    "Refund": "books",
    "Signer": "signing",
    "Wallet": "wallet",
    "WalletLimits": "ledger",
    "pause_text": "extension",
    "payment_required": "extension",
    "payments": "extension",
    "prices": "extension",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"{__name__}.{_PLACES.get(name, 'objects')}"), name)
    globals()[name] = found
    return found
