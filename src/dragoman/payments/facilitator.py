"""The facilitator: the service that checks a signed payment and carries it out on the chain."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.payments.extension import PaymentError
from dragoman.payments.objects import (
    MalformedObject,
    Payload,
    Receipt,
    Requirement,
    payload_object,
    read_receipt,
    requirement_object,
)
from dragoman.security.address_policy import EgressRefused, Rule, check, parse
from dragoman.security.egress import Egress, EgressUnreachable

Headers = Mapping[str, str] | Callable[[], Awaitable[Mapping[str, str]]]
_REASONS = (
    ("insufficient", PaymentError.INSUFFICIENT_FUNDS),
    ("nonce", PaymentError.DUPLICATE_NONCE),
    ("authorization_used", PaymentError.DUPLICATE_NONCE),
    ("signature", PaymentError.INVALID_SIGNATURE),
    ("valid_before", PaymentError.EXPIRED_PAYMENT),
    ("valid_after", PaymentError.EXPIRED_PAYMENT),
    ("expired", PaymentError.EXPIRED_PAYMENT),
    ("network", PaymentError.NETWORK_MISMATCH),
    ("value", PaymentError.INVALID_AMOUNT),
    ("amount", PaymentError.INVALID_AMOUNT),
)
"""What the reasons of facilitators have in them, and what it means."""


_NAME = re.compile(r"(?:invalid|insufficient|unsupported|network_mismatch)[a-z0-9_]*")
"""The names of reasons for which a facilitator refuses before it sends anything. Free text may
describe a failure after that."""


class NoAnswer(Exception):
    """A facilitator or a node gave no answer that can be used: what it did is not known."""


class Verdict(Struct, frozen=True):
    """Whether a facilitator would carry out a payment."""

    valid: bool
    reason: str = ""


class Facilitator:
    """A facilitator at a URL. `headers` are its credentials: a mapping, or a function that returns
    one for each request. Requests go through egress: https to public addresses, and what `allow`
    lists. A call takes at most `timeout` seconds."""

    def __init__(
        self,
        url: str,
        *,
        headers: Headers | None = None,
        allow: Sequence[str] = (),
        timeout: float = 20.0,
    ) -> None:
        check_url("Facilitator", url, allow)
        if not timeout > 0:
            raise ValueError("Facilitator: timeout must be greater than 0")
        self.url = url.rstrip("/")
        self._headers = headers
        self._allow = tuple(allow)
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"Facilitator({self.url!r})"

    async def _verify(self, payload: Payload, required: Requirement) -> Verdict:
        """Ask whether a payment would be carried out. Raises NoAnswer."""
        found = await self._ask("verify", payload, required)
        if not isinstance(found.get("isValid"), bool):
            raise NoAnswer("the facilitator did not say whether the payment is valid")
        reason = found.get("invalidReason")
        return Verdict(found["isValid"], reason[:200] if isinstance(reason, str) else "")

    async def _settle(self, payload: Payload, required: Requirement) -> Receipt:
        """Have a payment carried out, and return how it ended. Raises NoAnswer: then it may have
        been carried out."""
        found = await self._ask("settle", payload, required)
        try:
            receipt = read_receipt(found)
        except MalformedObject as error:
            raise NoAnswer(f"the facilitator sent no receipt: {error}") from None
        if receipt.success and not receipt.transaction:
            raise NoAnswer("the facilitator named no transaction")
        if receipt.success and receipt.network != required.network:
            raise NoAnswer("the facilitator named another network")
        return receipt

    async def _ask(self, what: str, payload: Payload, required: Requirement) -> Mapping[str, Any]:
        body = msgspec.json.encode(
            {
                "x402Version": payload.version,
                "paymentPayload": payload_object(payload),
                "paymentRequirements": requirement_object(required, payload.version),
            }
        )
        headers = {"content-type": "application/json"}
        try:
            async with asyncio.timeout(self._timeout):
                more = await self._credentials()
                async with Egress(allow=self._allow, timeout=self._timeout) as egress:
                    response = await egress.post(
                        f"{self.url}/{what}", body, headers={**headers, **(more or {})}
                    )
        except TimeoutError:
            raise NoAnswer(f"the facilitator did not answer in {self._timeout:g} s") from None
        except (EgressRefused, EgressUnreachable) as error:
            raise NoAnswer(f"the facilitator cannot be reached: {error}") from None
        try:
            found = msgspec.json.decode(response.body)
        except (msgspec.DecodeError, RecursionError):  # it is no JSON, or nested too deep
            found = None
        if not isinstance(found, dict) or response.cut:
            raise NoAnswer(f"the facilitator answered with HTTP {response.status}, and no object")
        return found

    async def _credentials(self) -> Mapping[str, str] | None:
        try:
            given = self._headers() if callable(self._headers) else self._headers
            return given if given is None or isinstance(given, Mapping) else await given
        except TimeoutError:
            raise
        except Exception as error:
            name = type(error).__name__
            raise NoAnswer(f"the function for the facilitator's headers raised {name}") from error


def check_url(what: str, url: str, allow: Sequence[str]) -> None:
    """Raise ValueError if egress refuses a URL for what it is: at the first payment, it would be
    too late."""
    try:
        target = parse(url)
        if not any(Rule.parse(entry).matches(target.named, target.port) for entry in allow):
            check(target.scheme, target.named, target.port)
    except EgressRefused as error:
        raise ValueError(
            f"{what}: {error}. Give a URL such as https://host.example, or list its host in `allow`"
        ) from None


def proves_nothing_sent(receipt: Receipt) -> bool:
    """Whether a refusal names a reason for which a facilitator sends no transaction. For other
    reasons, such as a time-out or a nonce that is used, the payment may have been carried out."""
    sent = (PaymentError.SETTLEMENT_FAILED, PaymentError.DUPLICATE_NONCE)
    name = _NAME.fullmatch(receipt.error)
    if receipt.success or receipt.transaction or name is None:
        return False
    return "transaction" not in receipt.error and error_of(receipt.error) not in sent


def error_of(reason: str) -> PaymentError:
    """What the reason of a facilitator means."""
    words = reason.lower()
    found = (error for part, error in _REASONS if part in words)
    return next(found, PaymentError.SETTLEMENT_FAILED)
