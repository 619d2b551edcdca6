"""The objects of x402 on the wire, in both versions, compared with the reference package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from x402.schemas import PaymentPayload, PaymentRequired, SettleResponse
from x402.schemas.v1 import PaymentPayloadV1, PaymentRequiredV1

from dragoman.payments import MalformedObject, PaymentError, PaymentStatus, Price
from dragoman.payments import extension as names
from dragoman.payments.checks import same
from dragoman.payments.networks import known_asset, network_of
from dragoman.payments.objects import (
    offer_object,
    payload_object,
    read_offer,
    read_payload,
    read_receipts,
    receipt_object,
)
from tests.products.payments.loopback_facilitator import SHOP, TOKEN

FOLDER = Path(__file__).parent / "golden"


def golden(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


@pytest.mark.parametrize("version", [1, 2])
def test_an_offer(version: int) -> None:
    wire = golden(f"offer-v{version}")
    offer = read_offer(wire)
    (way,) = offer.accepts
    assert (offer.version, way.network, way.amount) == (version, "eip155:84532", 100_000)
    assert (way.resource, way.description) == ("https://shop.example/a2a", "Analysis")
    assert offer_object(offer) == wire
    # clients of version 1 may not read an offer without it
    assert bool(offer_object(replace(offer, error="")).get("error")) is (version == 1)
    kind = PaymentRequiredV1 if version == 1 else PaymentRequired
    read = kind.model_validate(wire).accepts[0]
    assert (read.get_amount(), read.pay_to, read.asset) == ("100000", way.pay_to, way.asset)


@pytest.mark.parametrize("version", [1, 2])
def test_a_payload(version: int) -> None:
    wire = golden(f"payload-v{version}")
    payload = read_payload(wire)
    assert (payload.version, payload.network) == (version, "eip155:84532")
    assert payload.authorization.value == 100_000
    assert payload_object(payload) == wire
    assert "cdcd" not in repr(payload)
    kind = PaymentPayloadV1 if version == 1 else PaymentPayload
    assert kind.model_validate(wire).payload == wire["payload"]


@pytest.mark.parametrize("version", [1, 2])
def test_receipts(version: int) -> None:
    wire = golden(f"receipts-v{version}")
    found = read_receipts([*wire, {"success": "yes"}, 5])
    assert [receipt.success for receipt in found] == [False, True]
    assert {receipt.network for receipt in found} == {"eip155:84532"}
    assert [receipt_object(receipt, version) for receipt in found] == wire
    for one in wire:
        assert SettleResponse.model_validate(one).success is one["success"]
    assert read_receipts("none") == []


def test_the_names_of_the_extension() -> None:
    wire = golden("extension")
    assert {version: wire[version] for version in ("0.2", "0.1")} == names.URIS
    keys = [names.STATUS, names.REQUIRED, names.PAYLOAD, names.RECEIPTS, names.ERROR]
    assert keys == wire["keys"]
    assert [status.value for status in PaymentStatus] == wire["statuses"]
    assert [error.value for error in PaymentError] == wire["errors"]


def changed(name: str, *path: Any, to: Any) -> Any:
    wire = golden(name)
    place = wire
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return wire


@pytest.mark.parametrize(
    ("read", "wire"),
    [
        (read_offer, None),
        (read_offer, []),
        (read_offer, changed("offer-v1", "x402Version", to=3)),
        (read_offer, changed("offer-v1", "x402Version", to=True)),
        (read_offer, changed("offer-v1", "accepts", to=[])),
        (read_offer, changed("offer-v1", "accepts", 0, "network", to="solana")),
        (read_offer, changed("offer-v1", "accepts", 0, "maxAmountRequired", to="-1")),
        (read_offer, changed("offer-v1", "accepts", 0, "maxAmountRequired", to="0x10")),
        (read_offer, changed("offer-v1", "accepts", 0, "maxAmountRequired", to=1.5)),
        (read_offer, changed("offer-v1", "accepts", 0, "maxAmountRequired", to="9" * 79)),
        (read_offer, changed("offer-v2", "accepts", 0, "payTo", to="shop.eth")),
        (read_offer, changed("offer-v2", "accepts", 0, "maxTimeoutSeconds", to=0)),
        (
            read_offer,
            changed("offer-v2", "accepts", 0, "extra", "assetTransferMethod", to="permit2"),
        ),
        (read_offer, changed("offer-v2", "accepts", 0, "extra", "more", to="x" * 2000)),
        (read_payload, changed("payload-v1", "payload", "signature", to="0xzz")),
        (read_payload, changed("payload-v1", "payload", "authorization", "nonce", to="0x12")),
        (read_payload, changed("payload-v1", "payload", "authorization", "value", to=True)),
        (read_payload, changed("payload-v1", "network", to="eip155:\u0661")),
        (read_payload, changed("payload-v2", "accepted", to=None)),
        (read_payload, changed("payload-v2", "payload", to="x")),
    ],
)
def test_what_is_malformed(read: Any, wire: Any) -> None:
    with pytest.raises(MalformedObject):
        read(wire)


def test_ways_to_pay_that_are_not_understood_are_left_out() -> None:
    wire = golden("offer-v1")
    wire["accepts"] = [{"scheme": "exact", "network": "solana"}, *wire["accepts"]]
    assert len(read_offer(wire).accepts) == 1


@pytest.mark.parametrize("version", [1, 2])
def test_what_else_is_in_extra_is_kept(version: int) -> None:
    wire = changed(f"offer-v{version}", "accepts", 0, "extra", "assetTransferMethod", to="eip3009")
    wire["accepts"][0]["extra"]["tier"] = {"name": "fast"}
    offer = read_offer(wire)
    assert offer_object(offer) == wire
    assert same(offer.accepts[0], read_offer(golden(f"offer-v{version}")).accepts[0])


def test_a_price() -> None:
    price = Price("0.10", "USDC", network="base-sepolia", to=SHOP)
    assert (str(price), price.units) == ("0.1 USDC", 100_000)
    assert price._requirement().asset == known_asset("USDC", "eip155:84532").address
    assert str(Price("25", TOKEN, to=SHOP)) == "25 TEST"
    assert Price("0", TOKEN, to=SHOP).units == 0  # free
    assert network_of("base") == "eip155:8453"
    wrong: list[tuple[Any, ...]] = [
        ("-1", TOKEN, SHOP),
        ("nan", TOKEN, SHOP),
        ("0.0000001", TOKEN, SHOP),
        ("1", TOKEN, "shop.eth"),
        ("1", "USDC", SHOP),
    ]
    for amount, asset, to in wrong:
        with pytest.raises(ValueError):
            Price(amount, asset, to=to)
    with pytest.raises(TypeError, match="string or a Decimal"):
        Price(0.1, TOKEN, to=SHOP)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not known"):
        Price("1", "EURC", network="base", to=SHOP)
