"""What foreign ends were recorded to send is read, and what we send has the same keys."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.payments.extension import PAYLOAD, RECEIPTS, REQUIRED
from dragoman.payments.objects import (
    offer_object,
    payload_object,
    read_offer,
    read_payload,
    read_receipts,
    receipt_object,
)
from tests.products.payments.foreign.golden import golden, shape

OPTIONAL = {"resource", "description", "outputSchema"}
"""What a side may leave out."""


def usual(value: Any) -> Any:
    """A value without what may be left out, or is null."""
    if isinstance(value, dict):
        kept = {key: usual(inner) for key, inner in value.items() if inner is not None}
        return {key: inner for key, inner in kept.items() if key not in OPTIONAL}
    return [usual(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", ["ampersend-merchant", "reference-merchant-v1"])
def test_merchants_of_version_1(name: str) -> None:
    check_merchant(name, 1)


def test_a_merchant_of_version_2() -> None:
    check_merchant("reference-merchant-v2", 2)


def check_merchant(name: str, version: int) -> None:
    messages = golden(name)
    assert list(messages) == ["payment-required", "payment-verified", "payment-completed"]
    wire = messages["payment-required"][REQUIRED]
    offer = read_offer(wire)
    (way,) = offer.accepts
    assert (offer.version, way.network, way.amount) == (version, "eip155:84532", 100_000)
    assert way.resource == "/analyze"
    assert shape(usual(offer_object(offer))) == shape(usual(wire))
    wire = messages["payment-completed"][RECEIPTS]
    (receipt,) = read_receipts(wire)
    assert receipt.success and receipt.network == "eip155:84532"
    assert usual([receipt_object(receipt, version)]) == usual(wire)


@pytest.mark.parametrize(
    ("name", "version"),
    [("ampersend-client", 1), ("reference-client-v1", 1), ("reference-client-v2", 2)],
)
def test_clients(name: str, version: int) -> None:
    wire = golden(name)["payment-submitted"][PAYLOAD]
    payload = read_payload(wire)
    assert (payload.version, payload.network) == (version, "eip155:84532")
    assert payload.authorization.value == 100_000
    assert usual(payload_object(payload)) == usual(wire)
