"""Fetches the card of an agent and picks the interfaces to use."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from dragoman.client.credentials import private
from dragoman.client.limits import CARD, TooLarge
from dragoman.client.transport import (
    Transport,
    TransportRequest,
    TransportResponse,
    origin,
    read_all,
)
from dragoman.dialects import v1_0, versions
from dragoman.dialects.missing_fields import at, partial
from dragoman.dialects.v0_3 import card as v0_3
from dragoman.dialects.v0_3 import card_proto
from dragoman.model.errors import (
    A2AError,
    InvalidAgentResponse,
    InvalidParams,
    VersionNotSupported,
    restored,
)
from dragoman.model.protocol import BINDINGS, LISTED_VERSIONS
from dragoman.model.types import AgentCard, AgentInterface
from dragoman.security.card_signatures import PATIENCE, SET_SIZE, Unverified, Verifier
from dragoman.telemetry.logs import logger

T = TypeVar("T")
Signable: TypeAlias = AgentCard | Mapping[str, Any] | bytes
"""A card as it was received: JSON, or over gRPC the protobuf message."""

PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
SPOKEN = versions.SUPPORTED
"""The protocol versions that the client supports, latest first."""
MOST_NAMED = 5
"""The most missing fields that one log line names."""
INSTALL = "; for GRPC, run `pip install 'dragoman[grpc]'`"


def _versions_of(binding: str) -> tuple[str, ...]:
    """Return the versions that have this binding."""
    known = BINDINGS.get(binding)
    return SPOKEN if known is None or known.oldest else LISTED_VERSIONS


def address(target: str) -> str:
    """Return the URL for a target: https, or http for loopback; empty if the target is a file."""
    if "://" in target:
        if not target.lower().startswith(("http://", "https://")):
            raise ValueError(
                f"{target}: the address of an agent must start with https:// or http://"
            )
        return target
    if (target.endswith(".json") and "/" not in target) or target.startswith(("/", "./", "../")):
        return ""
    if Path(target).is_file():
        return ""
    return f"http://{target}" if private(f"http://{target}") else f"https://{target}"


class Document(Struct, frozen=True):
    """A document found where a card should be."""

    body: bytes
    url: str = ""
    """Its URL; empty for a file."""
    headers: Mapping[str, str] = {}


class CardCache:
    """A cache of cards by URL that follows HTTP: fresh for max-age, then revalidated by ETag.
    Clients that share a cache share the cards."""

    def __init__(self, size: int = 1000) -> None:
        self.size = size
        self.known: dict[str, tuple[AgentCard, str, float]] = {}
        self.public: set[str] = set()
        """The URLs of cards that came from a public address."""

    def put(self, url: str, card: AgentCard, tag: str, until: float) -> None:
        """Add a card; when the cache is full, the oldest one is removed."""
        self.known.pop(url, None)
        if len(self.known) >= self.size:
            first = next(iter(self.known))
            del self.known[first]
            self.public.discard(first)
        self.known[url] = (card, tag, until)


class Cards:
    """Fetches and checks cards."""

    def __init__(
        self,
        transport: Transport,
        card_cache: CardCache | None = None,
        verifier: Verifier | None = None,
        confine: Callable[[], None] | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self._transport = transport
        self._card_cache = card_cache or CardCache()
        self.verifier = verifier
        """Decides whether the signatures of a card are good enough; None accepts any card."""
        self.signed = False
        """Whether a signature of the last card was verified. (The verifier may accept others.)"""
        self._strict = strict
        """Whether a card must have all required fields."""
        self._confine = confine or (lambda: None)
        """Called before a card from a public address is used."""

    async def find(self, target: str) -> AgentCard:
        """Fetch the card at an agent's URL, at the card's own URL, or in a file."""
        if "://" not in target:
            body = Path(target).read_bytes()  # noqa: ASYNC240 - small, read once
            return await self._read(body, target, "")
        return await _first(target, self.get)

    def knows(self, target: str | AgentCard) -> bool:
        """Whether a card from there is in the cache, fresh or old."""
        if isinstance(target, AgentCard):
            return False
        urls = (target, *(target.rstrip("/") + path for path in PATHS))
        return any(url in self._card_cache.known for url in urls)

    async def fetch(self, target: str) -> Document:
        """Fetch the document in the same places, without checking it."""
        if "://" not in target:
            return Document(Path(target).read_bytes())  # noqa: ASYNC240 - small, read once
        return await _first(target, self._document)

    async def get(self, url: str) -> AgentCard:
        """Fetch the card at this URL."""
        card, tag, until = self._card_cache.known.get(url, (None, "", 0.0))
        if url in self._card_cache.public:
            self._confine()
        if card is not None and time.monotonic() < until:
            return card
        response, body = await self._request(url, tag)
        outside = getattr(response, "public", False)
        if outside:
            self._confine()
        if response.status == 304 and card is not None:
            found = card
        elif response.status != 200:
            raise _not_a_card(url, response, body)
        else:
            found = await self._read(body, url, url)
        control = response.headers.get("cache-control", "")
        if "no-store" not in control:
            until = time.monotonic() + _age(control)
            self._card_cache.put(url, found, response.headers.get("etag", ""), until)
            if outside:
                self._card_cache.public.add(url)
        return found

    async def keys(self, url: str) -> bytes:
        """Fetch a key set from the origin of a card."""
        async with asyncio.timeout(PATIENCE):
            request = TransportRequest("GET", url, {"accept": "application/json"})
            response = await self._transport.send(request)
            if response.status != 200:
                await response.close()
                raise _not_a_card(url, response)
            return await read_all(response, SET_SIZE)

    async def _read(self, body: bytes, where: str, url: str) -> AgentCard:
        """Decode the card in a document. If it must be signed, return what the signature covers."""
        signed = await self._verified(body, where, url)
        self.signed = signed is not None
        return signed or decode(body, where, self._strict)

    async def extended(self, reading: Reading, url: str) -> AgentCard:
        """Check an extended card that the agent at this URL returned, in the same way."""
        where = "the agent"
        return await self._verified(reading.document, where, url) or accepted(
            reading, where, self._strict
        )

    async def _verified(self, received: Signable, where: str, url: str) -> AgentCard | None:
        """Return what the signature covers, from the document as received; None if the card need
        not be signed."""
        if self.verifier is None:
            return None
        try:
            found = await self.verifier.verify(received, url=url, fetch=self.keys)
        except Unverified as error:
            raise Unverified(f"{where}: {error}") from None
        if found is None:
            return None
        return understood(found.document | {"signatures": found.signatures}, where, self._strict)

    async def _document(self, url: str) -> Document:
        response, body = await self._request(url)
        if response.status != 200:
            raise _not_a_card(url, response, body)
        if getattr(response, "public", False):
            self._confine()
        return Document(body, url, response.headers)

    async def _request(self, url: str, tag: str = "") -> tuple[TransportResponse, bytes]:
        headers = {"accept": "application/json", "a2a-version": SPOKEN[0]}
        if tag:
            headers["if-none-match"] = tag
        response = await self._transport.send(TransportRequest("GET", url, headers))
        try:
            return response, await read_all(response, CARD)
        except TooLarge as error:
            if self.verifier is None:
                raise TooLarge(f"the card at {url}: {error}", value=CARD) from None
            raise Unverified(f"{url}: {error}") from None


async def _first(target: str, get: Callable[[str], Awaitable[T]]) -> T:
    """Try the URLs of a target and return the first result."""
    if urlsplit(target).path.endswith(".json"):
        return await get(target)
    missing: A2AError | None = None
    for path in PATHS:
        try:
            return await get(target.rstrip("/") + path)
        except A2AError as error:
            if error.http not in (404, 405):
                raise
            missing = missing or error
    # For example where the agents are, if a server has several.
    stated = "".join(f"; the server says: {note}" for note in getattr(missing, "__notes__", ()))
    raise type(missing or InvalidAgentResponse())(
        f"there is no agent card at {target}: neither {PATHS[0]} nor {PATHS[1]}{stated}"
    )


def _not_a_card(url: str, response: TransportResponse, body: bytes = b"") -> A2AError:
    """The error for a response that is not a card. The server's own message is added as a note."""
    words = f"{url} answered {response.status}"
    if response.status >= 400:
        detail = _error_text(body)
        words += f": {detail}" if detail else ""
        error = restored(words, http=response.status, headers=response.headers)
        if detail:
            error.add_note(detail)
        return error
    where = response.headers.get("location")
    hint = f" and redirects to {where}; the client does not follow redirects" if where else ""
    return InvalidAgentResponse(words + hint)


class Reading(Struct, frozen=True):
    """A card, and the document it was read from."""

    card: AgentCard
    document: Signable
    """As it was received."""
    missing: tuple[str, ...] = ()
    """The required fields that are missing and not needed to call the agent."""


def _error_text(body: bytes) -> str:
    """Return the message of an A2A error; empty if the body is not one."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else ""


def decode(body: bytes, where: str, strict: bool = False) -> AgentCard:
    """Decode a card of any protocol version. Raises InvalidAgentResponse, which names the wrong
    field. If a document has the fields of several versions, those of 1.0 count."""
    try:
        document = v1_0.parse(body)
    except A2AError as error:
        if web_page(body):
            raise InvalidAgentResponse(f"{where} is a web page, not a card") from None
        raise _invalid(where, error) from None
    return understood(document, where, strict)


def web_page(body: bytes) -> bool:
    """Whether the body is HTML instead of JSON."""
    return body.lstrip()[:1] == b"<"


def understood(document: Any, where: str, strict: bool = False) -> AgentCard:
    """Decode a parsed document."""
    return accepted(read(document, where), where, strict)


def accepted(reading: Reading, where: str, strict: bool) -> AgentCard:
    """Return the card. If it lacks required fields, log them, or raise InvalidAgentResponse if
    `strict`."""
    if reading.missing and strict:
        raise _invalid(where, f"{reading.missing[0]}: is required")
    if reading.missing:
        logger.warning(
            "the card at %s lacks required fields: %s; the client uses the card anyway",
            where,
            ", ".join(reading.missing[:MOST_NAMED]) + (", …" * (len(reading.missing) > MOST_NAMED)),
        )
    return reading.card


def read(document: Any, where: str) -> Reading:
    """Read a card of any version from a parsed document. Raises InvalidAgentResponse, which names a
    field that is wrong, or missing and needed to call the agent."""
    try:
        if v0_3.older(document):
            if card_proto.is_proto_form(document):
                return Reading(
                    card_proto.new(v1_0.convert(card_proto.AgentCard, document)), document
                )
            return Reading(v0_3.new(v1_0.convert(v0_3.AgentCard, document)), document)
        try:
            return Reading(v1_0.convert(AgentCard, document), document)
        except InvalidParams:
            card, missing = partial(AgentCard, document)
        stated = str(document.get("protocolVersion", ""))
        return Reading(usable_part(card, missing, stated), document, tuple(missing))
    except A2AError as error:
        raise _invalid(where, error) from None


def usable_part(card: AgentCard, missing: Sequence[str], version: str = "") -> AgentCard:
    """Return the usable part of a card that lacks these fields. Raises InvalidParams if no
    interface is usable. An interface without a version gets `version`, the card's own, else the
    latest."""
    version = version if ".".join(version.split(".")[:2]) in SPOKEN else SPOKEN[0]
    interfaces = tuple(
        replace(found, protocol_version=found.protocol_version or version)
        for found in card.supported_interfaces
        if found.url and found.protocol_binding
    )
    if not interfaces:
        name = "supportedInterfaces"
        raise InvalidParams.at(
            next((path for path in missing if path.startswith(f"{name}[")), name), "is required"
        )

    def answerable(name: str) -> bool:
        """Whether a scheme is complete enough to choose a credential."""
        path = f"{at('securitySchemes', name)}."
        lacks = [field for field in missing if field.startswith(path)]
        return all(field.endswith((".scopes", ".location")) for field in lacks)

    schemes = {name: item for name, item in card.security_schemes.items() if answerable(name)}
    return replace(card, supported_interfaces=interfaces, security_schemes=schemes)


def _invalid(where: str, what: object) -> InvalidAgentResponse:
    return InvalidAgentResponse(f"the card at {where} is not valid: {what}")


def interfaces(
    card: AgentCard, bindings: Collection[str], *, plain: bool = False
) -> list[AgentInterface]:
    """Return the usable interfaces in the agent's order, all in the version of the first. Raises an
    error that says why there are none. Before 1.0 JSON-RPC comes first, because SDKs encode files
    differently over the other bindings. `plain` allows addresses without TLS."""
    usable = [
        found
        for found in card.supported_interfaces
        if (name := found.protocol_binding.upper()) in bindings
        and v0_3.minor(found) in _versions_of(name)
    ]
    if usable:
        version = v0_3.minor(usable[0])
        # If an agent does not say its version, try both.
        among = v0_3.UNSAID if version == v0_3.UNSAID[0] else (version,)
        if version != SPOKEN[0]:
            usable.sort(key=lambda found: found.protocol_binding.upper() != "JSONRPC")
        usable = [
            way
            for found in usable
            if v0_3.minor(found) in among
            for way in _dial_urls(found, plain)
        ]
        for found in usable:
            if not origin(found.url).startswith(("http", "grpc")):
                raise InvalidAgentResponse(
                    f"the card is not valid: {found.url!r} is not the address of an interface"
                )
        return usable
    offered = ", ".join(
        f"{found.protocol_binding} {found.protocol_version}" for found in card.supported_interfaces
    )
    hint = "" if "GRPC" in bindings or "GRPC" not in offered else INSTALL
    spoken = ", ".join(f"{name} {'/'.join(_versions_of(name))}" for name in bindings)
    raise VersionNotSupported(f"the agent offers {offered}; this client supports {spoken}{hint}")


def _dial_urls(interface: AgentInterface, plain: bool) -> list[AgentInterface]:
    """Return the interface with a URL that can be dialled, because cards give only host and port
    for gRPC. An address that probably has no TLS is tried with TLS, too, but never the other way
    round."""
    if interface.protocol_binding.upper() != "GRPC":
        return [interface]
    first, slashes, last = interface.url.partition("://")
    scheme, rest = (first, last) if slashes else ("", first)
    if scheme in ("https", "grpcs"):
        ways = ["grpcs"]
    elif scheme:
        ways = ["grpc"]
    else:
        ways = ["grpc", "grpcs"] if plain or private(f"http://{rest}") else ["grpcs"]
    return [replace(interface, url=f"{way}://{rest.rstrip('/')}") for way in ways]


def _age(control: str) -> float:
    for item in control.split(","):
        name, _, value = item.strip().partition("=")
        if name == "no-cache":
            return 0.0
        if name == "max-age" and value.isdigit():
            return float(value)
    return 0.0
