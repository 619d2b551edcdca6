"""Fetches the card of an agent: from where, over which addresses, and whether it may be used.

An address that the operator typed may be private. Any other must be public, or on the allow list,
and so must the addresses on each card, unless they are at the host that the operator typed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress

import msgspec

from dragoman import A2AError, AgentCard
from dragoman.client import (
    FetchedCard,
    HTTPTransport,
    Transport,
    TransportRequest,
    TransportResponse,
    Unverified,
    fetch_card,
)
from dragoman.conformance.card import check
from dragoman.registry.entries import CardVersion, RegistryError, now
from dragoman.security.address_policy import EgressRefused, Target, parse
from dragoman.security.client_network import loopback
from dragoman.security.egress import Egress, EgressResponse, EgressUnreachable

LARGEST = (1 << 20) + 1
"""A byte more than the client accepts."""
MOST_FINDINGS = 20


class FetchFailed(RegistryError):
    """The card could not be fetched, or must not be used."""


class Fetcher:
    """Fetches cards, one connection pool for each kind of address."""

    def __init__(
        self,
        *,
        allow: Sequence[str] = (),
        timeout: float = 10.0,
        typed: Transport | None = None,
        others: Transport | None = None,
    ) -> None:
        self._timeout = timeout
        self._egress = Egress(allow=allow, timeout=timeout, max_response=LARGEST)
        self._typed = typed
        self._others = others
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Fetcher:
        self._typed = self._typed or HTTPTransport()
        self._others = self._others or EgressTransport(self._egress)
        self._stack.push_async_callback(self._typed.close)
        self._stack.push_async_callback(self._others.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def fetch(self, url: str, *, typed: bool) -> CardVersion:
        """Fetch and check the card of the agent at this address. `typed`: the operator gave the
        address. Raises FetchFailed."""
        transport = self._typed if typed else self._others
        assert transport is not None, "the fetcher is not open"
        try:
            async with asyncio.timeout(self._timeout):
                found = await fetch_card(url, transport)
                for each in found.card.supported_interfaces:
                    await self._admit(each.url, url if typed else "")
        except EgressRefused as error:
            more = "" if typed else ", or add the address yourself"
            raise FetchFailed(
                f"{url} must not be used: {error}; to permit it, give --allow with the host to "
                f"the registry{more}"
            ) from None
        except Unverified as error:
            raise FetchFailed(f"{url}: the signatures of its card are not valid: {error}") from None
        except TimeoutError:
            raise FetchFailed(f"{url} did not answer in time") from None
        except ImportError as error:  # signatures need an extra; the text says which
            raise FetchFailed(f"the card at {url} is signed: {error}") from None
        except (A2AError, EgressUnreachable, OSError, ValueError) as error:
            raise FetchFailed(f"there is no usable card at {url}: {error}") from None
        return version(found)

    async def _admit(self, url: str, typed: str) -> None:
        """Raise EgressRefused if an address on a card leads where this registry does not go. The
        host of `typed` is the operator's word."""
        _, mark, rest = url.partition("://")
        where = f"https://{rest if mark else url}" if not url.startswith("http://") else url
        try:
            if not (typed and _same_host(parse(where), parse(typed))):
                await self._egress.check(where)
        except EgressRefused as error:
            raise EgressRefused(f"its card names {url[:200]}, and {error}") from None


def _same_host(one: Target, other: Target) -> bool:
    """Whether two addresses are on the same machine, as far as their names say so."""
    return one.host == other.host or (loopback(one.host) and loopback(other.host))


def version(found: FetchedCard) -> CardVersion:
    """The card in the form that is stored. Raises FetchFailed if it lacks required fields."""
    with suppress(msgspec.ValidationError):
        card = msgspec.json.decode(msgspec.json.encode(found.card), type=AgentCard)
        said = check(found.document, url=found.url, headers=found.headers)
        findings = [
            f"{each.level}: {each.field}: {each.text}" for each in said if each.level != "note"
        ]
        if found.unverified:
            findings.insert(0, f"warning: signatures: count for nothing: {found.unverified}")
        document = found.document.decode("utf-8", "replace")
        return CardVersion(card, document, found.keys, now(), tuple(findings[:MOST_FINDINGS]))
    missing = [
        f"{each.field}: {each.text}" for each in check(found.document) if each.level == "error"
    ]
    raise FetchFailed(
        f"the card at {found.url} is not complete: {'; '.join(missing[:3]) or 'a field is missing'}"
    )


class EgressTransport:
    """A transport of the client that only goes where egress allows."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress

    async def send(self, request: TransportRequest) -> TransportResponse:
        """See `Transport.send`."""
        method, url, headers = request.method, request.url, request.headers
        return Whole(await self._egress.request(method, url, headers=headers))

    async def close(self) -> None:
        """See `Transport.close`."""
        await self._egress.close()


class Whole:
    """A response that has arrived."""

    def __init__(self, response: EgressResponse) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._body = response.body

    async def chunks(self) -> AsyncIterator[bytes]:
        """See `TransportResponse.chunks`."""
        yield self._body

    async def close(self) -> None:
        """See `TransportResponse.close`."""
