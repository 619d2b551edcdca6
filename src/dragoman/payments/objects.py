"""The objects of x402, versions 1 and 2: what an agent asks for, what a client signs, and what came
of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from dragoman.payments.networks import network_of, short_name

VERSIONS = (1, 2)
SCHEME = "exact"
TRANSFER_METHOD = "eip3009"
"""How the transfer is authorized; offers name it if it is another one."""
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")
_NONCE = re.compile(r"0x[0-9a-fA-F]{64}")
_SIGNATURE = re.compile(r"0x(?:[0-9a-fA-F]{2}){1,8192}")
_NUMBER = re.compile(r"[0-9]{1,78}")
LARGEST = 2**256 - 1
"""The largest number that a contract can read."""
MOST = 32
"""The most ways to pay that are read of one offer."""
LONGEST = 2000
"""The most characters of a text that is read."""


class MalformedObject(ValueError):
    """A received object is not one of x402. The text has no value of it that could be secret."""


class Requirement(Struct, frozen=True, kw_only=True):
    """One way to pay: an amount of an asset, to a receiver."""

    network: str
    """The CAIP-2 name."""
    asset: str
    """The address of the contract."""
    amount: int
    """In the smallest unit."""
    pay_to: str
    timeout: int = 600
    """The seconds in which the payment must be settled."""
    scheme: str = SCHEME
    name: str = ""
    """The name in the EIP-712 domain of the contract."""
    domain_version: str = ""
    """The version in that domain."""
    resource: str = ""
    description: str = ""
    extra: Mapping[str, Any] = {}
    """What else is in `extra`: a payment for this must have it, too."""


class Offer(Struct, frozen=True):
    """What an agent asks for before it works: one of these payments."""

    accepts: tuple[Requirement, ...]
    version: int = 1
    """The version of the x402 object."""
    error: str = ""
    """Why it asks again; empty when it asks for the first time."""


class Authorization(Struct, frozen=True, kw_only=True):
    """What a payer signs: a transfer that anyone may carry out once, in a certain time."""

    payer: str
    to: str
    value: int
    valid_after: int
    valid_before: int
    nonce: str


class Payload(Struct, frozen=True, kw_only=True):
    """A signed payment. Its text does not have the signature."""

    version: int
    network: str
    authorization: Authorization
    signature: str
    scheme: str = SCHEME
    accepted: Requirement | None = None
    """What it pays for, in version 2."""

    def __repr__(self) -> str:
        return f"Payload(network={self.network!r}, value={self.authorization.value})"


class Receipt(Struct, frozen=True, kw_only=True):
    """How an attempt to settle a payment ended."""

    success: bool
    network: str = ""
    transaction: str = ""
    payer: str = ""
    error: str = ""


# ---- writing


def requirement_object(found: Requirement, version: int) -> dict[str, Any]:
    """Return a way to pay as an object of this version."""
    domain = {"name": found.name, "version": found.domain_version} if found.name else {}
    extra = {**found.extra, **domain}
    if version == 1:
        return {
            "scheme": found.scheme,
            "network": short_name(found.network),
            "maxAmountRequired": str(found.amount),
            "asset": found.asset,
            "payTo": found.pay_to,
            "resource": found.resource,
            "description": found.description,
            "mimeType": "application/json",
            "maxTimeoutSeconds": found.timeout,
            "extra": extra,
        }
    return {
        "scheme": found.scheme,
        "network": found.network,
        "amount": str(found.amount),
        "asset": found.asset,
        "payTo": found.pay_to,
        "maxTimeoutSeconds": found.timeout,
        "extra": extra,
    }


def offer_object(offer: Offer) -> dict[str, Any]:
    """Return an offer as an object of its version."""
    found: dict[str, Any] = {
        "x402Version": offer.version,
        "accepts": [requirement_object(one, offer.version) for one in offer.accepts],
    }
    if offer.error or offer.version == 1:  # readers of version 1 may require it
        found["error"] = offer.error or "payment required"
    if offer.version == 2:
        first = offer.accepts[0]
        found["resource"] = {"url": first.resource, "description": first.description}
    return found


def payload_object(payload: Payload) -> dict[str, Any]:
    """Return a signed payment as an object of its version."""
    signed = payload.authorization
    inner = {
        "authorization": {
            "from": signed.payer,
            "to": signed.to,
            "value": str(signed.value),
            "validAfter": str(signed.valid_after),
            "validBefore": str(signed.valid_before),
            "nonce": signed.nonce,
        },
        "signature": payload.signature,
    }
    if payload.version == 1:
        return {
            "x402Version": 1,
            "scheme": payload.scheme,
            "network": short_name(payload.network),
            "payload": inner,
        }
    assert payload.accepted is not None
    return {
        "x402Version": 2,
        "accepted": requirement_object(payload.accepted, 2),
        "payload": inner,
    }


def receipt_object(receipt: Receipt, version: int) -> dict[str, Any]:
    """Return a receipt as an object of this version."""
    found: dict[str, Any] = {
        "success": receipt.success,
        "transaction": receipt.transaction,
        "network": short_name(receipt.network) if version == 1 else receipt.network,
        "payer": receipt.payer,
    }
    return {**found, "errorReason": receipt.error} if receipt.error else found


# ---- reading


def read_offer(value: Any) -> Offer:
    """Read an offer of either version. Ways to pay that are not understood are left out. Raises
    MalformedObject if none is left."""
    fields = _fields(value, "the offer")
    version = _version(fields)
    accepts = fields.get("accepts")
    if not isinstance(accepts, list) or not accepts:
        raise MalformedObject("the offer has no `accepts`")
    resource = fields.get("resource")
    common = resource if version == 2 and isinstance(resource, dict) else {}
    found: list[Requirement] = []
    for one in accepts[:MOST]:
        try:
            found.append(_requirement(one, version, common))
        except MalformedObject as error:
            why = error
    if not found:
        raise why
    return Offer(tuple(found), version, _text(fields.get("error")))


def read_payload(value: Any) -> Payload:
    """Read a signed payment of either version. Raises MalformedObject."""
    fields = _fields(value, "the payload")
    version = _version(fields)
    inner = _fields(fields.get("payload"), "payload")
    signed = _fields(inner.get("authorization"), "authorization")
    signature = inner.get("signature")
    if not isinstance(signature, str) or not _SIGNATURE.fullmatch(signature):
        raise MalformedObject("the signature is not hexadecimal")
    accepted = _requirement(fields.get("accepted"), 2, {}) if version == 2 else None
    scheme, network = fields.get("scheme"), fields.get("network")
    if accepted is not None:
        scheme, network = accepted.scheme, accepted.network
    if not isinstance(scheme, str):
        raise MalformedObject("the payload has no scheme")
    nonce = signed.get("nonce")
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise MalformedObject("nonce: expected 32 bytes in hexadecimal")
    return Payload(
        version=version,
        network=_network(network),
        scheme=scheme,
        accepted=accepted,
        signature=signature,
        authorization=Authorization(
            payer=_address(signed, "from"),
            to=_address(signed, "to"),
            value=_number(signed, "value"),
            valid_after=_number(signed, "validAfter"),
            valid_before=_number(signed, "validBefore"),
            nonce=nonce.lower(),
        ),
    )


def read_receipt(value: Any) -> Receipt:
    """Read a receipt. Raises MalformedObject."""
    fields = _fields(value, "the receipt")
    if not isinstance(fields.get("success"), bool):
        raise MalformedObject("the receipt has no `success`")
    network = fields.get("network")
    try:
        chain = network_of(network) if isinstance(network, str) and network else ""
    except ValueError:
        chain = ""
    return Receipt(
        success=fields["success"],
        network=chain,
        transaction=_text(fields.get("transaction")),
        payer=_text(fields.get("payer")),
        error=_text(fields.get("errorReason")),
    )


def read_receipts(value: Any) -> Sequence[Receipt]:
    """Read a list of receipts; what is none is left out."""
    found: list[Receipt] = []
    for one in value if isinstance(value, list) else ():
        try:
            found.append(read_receipt(one))
        except MalformedObject:
            continue
    return found


def canonical(value: Any) -> bytes:
    """Return the same bytes for the same JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _requirement(value: Any, version: int, resource: Mapping[str, Any]) -> Requirement:
    fields = _fields(value, "accepts")
    amount = "maxAmountRequired" if version == 1 else "amount"
    extra = fields.get("extra")
    domain = extra if isinstance(extra, dict) else {}
    timeout = fields.get("maxTimeoutSeconds")
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout < 1e9:
        raise MalformedObject("maxTimeoutSeconds: expected a number of seconds")
    where = fields if version == 1 else {**resource, "resource": resource.get("url")}
    scheme = fields.get("scheme")
    if not isinstance(scheme, str):
        raise MalformedObject("scheme: expected a string")
    if domain.get("assetTransferMethod", TRANSFER_METHOD) != TRANSFER_METHOD:
        raise MalformedObject(f"assetTransferMethod: expected {TRANSFER_METHOD!r}")
    more = {name: found for name, found in domain.items() if name not in ("name", "version")}
    if more and len(canonical(more)) > LONGEST:
        raise MalformedObject("extra: it is too long")
    return Requirement(
        scheme=scheme,
        network=_network(fields.get("network")),
        asset=_address(fields, "asset"),
        amount=_number(fields, amount),
        pay_to=_address(fields, "payTo"),
        timeout=int(timeout),
        name=_text(domain.get("name")),
        domain_version=_text(domain.get("version")),
        resource=_text(where.get("resource")),
        description=_text(where.get("description")),
        extra=more,
    )


def _fields(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise MalformedObject(f"{where}: expected an object")
    return value


def _version(fields: Mapping[str, Any]) -> int:
    version = fields.get("x402Version")
    if version not in VERSIONS or isinstance(version, bool):
        raise MalformedObject("x402Version: expected 1 or 2")
    return int(version)


def _network(value: Any) -> str:
    try:
        return network_of(value if isinstance(value, str) else "")
    except ValueError:
        raise MalformedObject("network: expected an EVM network") from None


def _address(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not _ADDRESS.fullmatch(value):
        raise MalformedObject(f"{name}: expected an address of 20 bytes in hexadecimal")
    return value


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if isinstance(value, float) and value.is_integer():
        text = str(int(value))  # some senders of JSON know only floats
    if not _NUMBER.fullmatch(text) or int(text) > LARGEST:
        raise MalformedObject(f"{name}: expected a whole number of at most 256 bits")
    return int(text)


def _text(value: Any) -> str:
    return value[:LONGEST] if isinstance(value, str) else ""
