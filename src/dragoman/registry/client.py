"""`Registry`: asks a registry for agents.

registry = Registry("https://agents.example")
for hit in await registry.search("book a flight to Lisbon"):
    print(hit.entry.urn, hit.reasons)
async with Client.connect(registry["flight-booking"]) as agent:
    print((await agent.send("Lisbon, please")).text)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.client import (
    ApprovedAgent,
    AuthRequest,
    BasicAuth,
    ClientCertificate,
    CredentialsNotSent,
    HTTPTransport,
    OpenIdConnectSecurityScheme,
    SecurityScheme,
    TokenProvider,
    Transport,
    TransportRequest,
    TransportResponse,
    Unreachable,
)
from dragoman.registry.entries import (
    MOST_LISTED,
    Audience,
    Change,
    Entry,
    Hits,
    NotFound,
    Query,
    RegistryError,
    State,
    Trust,
)
from dragoman.registry.import_catalog import Imported
from dragoman.registry.operations import Details
from dragoman.registry.routes import Addition, Announcement, Approval, ForeignCatalog
from dragoman.security.client_network import loopback

T = TypeVar("T")

LARGEST = 64 << 20
"""The most bytes of a response."""
ERROR = 1000
"""The most characters of an error of the registry that are shown."""

METADATA = "/.well-known/oauth-protected-resource"
DISCOVERY = "/.well-known/openid-configuration"


class Filters(TypedDict, total=False):
    """The filters of `Query` by name."""

    skills: Sequence[str]
    tags: Sequence[str]
    modes: Sequence[str]
    versions: Sequence[str]
    publishers: Sequence[str]
    trust: Trust | None
    healthy: bool | None
    limit: int
    page: str


class Registry:
    """A client for the registry at a URL. It connects with the first call; `async with`, or
    `close`, closes its connections. `auth` is a `StaticToken`, a `BasicAuth`, a `ClientCertificate`
    or an `OAuth`; other credentials are `headers`."""

    def __init__(
        self,
        url: str,
        *,
        auth: TokenProvider | None = None,
        headers: Mapping[str, str] | None = None,
        transport: Transport | None = None,
        insecure: bool = False,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ValueError(
                f"{url!r} is not the URL of a registry, such as https://agents.example"
            )
        if (auth or headers) and not (
            insecure or parts.scheme == "https" or loopback(parts.hostname)
        ):
            raise CredentialsNotSent(
                f"credentials are not sent over plain HTTP (to {url}); use https, or insecure=True "
                "on a safe network"
            )
        self.url = url.rstrip("/")
        self._auth = auth
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        self._transport = transport
        self._given = transport is not None
        self._scheme: SecurityScheme | None = None
        """Where its tokens come from, once it is known."""

    def __repr__(self) -> str:
        return f"Registry({self.url!r})"

    async def __aenter__(self) -> Registry:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        transport = self._transport
        if transport is not None and not self._given:
            self._transport = None
            await transport.close()

    # -- look for agents

    async def search(self, text: str = "", **filters: Unpack[Filters]) -> Hits:
        """A page of the agents that fit these words, the best first."""
        return await self.find(_query(text, filters))

    async def find(self, query: Query) -> Hits:
        """A page of what a query finds."""
        return await self._call("POST", "/registry/search", Hits, query)

    async def get(self, name: str) -> Entry:
        """The approved entry with this URN or alias. Raises NotFound."""
        return await self._call("GET", f"/registry/agents/{_part(name)}", Entry)

    def query(self, text: str = "", **filters: Unpack[Filters]) -> RegistryQuery:
        """A query that is asked later, and again: the members of a team, for example. It finds at
        most 100 agents, or `limit`."""
        filters.setdefault("limit", MOST_LISTED)
        return RegistryQuery(self, replace(_query(text, filters), page=""))

    def __getitem__(self, name: str) -> Reference:
        """The agent with this URN or alias, for `Client.connect`."""
        return Reference(self, name)

    # -- for operators

    async def add(
        self,
        url: str,
        *,
        approve: bool = False,
        alias: str = "",
        audience: Audience | None = None,
        queries: Sequence[str] = (),
    ) -> Details:
        """Add the agent at this address, also one that was rejected or removed. Without `audience`,
        a new entry is for everyone."""
        given = Addition(url, approve, alias, audience, tuple(queries))
        return await self._call("POST", "/registry/entries", Details, given)

    async def announce(self, url: str, queries: Sequence[str] = ()) -> tuple[str, State]:
        """Announce the agent at this address, which waits for approval. Returns the URN of its
        entry, and the state."""
        given = Announcement(url, tuple(queries))
        found = await self._call("POST", "/registry/announcements", dict[str, Any], given)
        return found["urn"], found["state"]

    async def import_catalog(self, url: str) -> Imported:
        """Let the registry take in the agents of a foreign catalog, which wait for approval."""
        return await self._call("POST", "/registry/catalogs", Imported, ForeignCatalog(url))

    async def entries(self, state: State | None = None, after: str = "") -> list[Entry]:
        """A page of entries in any state, by their URN."""
        found = await self._call(
            "GET",
            f"/registry/entries?state={state or ''}&after={quote(after, safe='')}",
            dict[str, list[Entry]],
        )
        return found["entries"]

    async def details(self, name: str) -> Details:
        """Everything about an entry."""
        return await self._call("GET", _entry(name), Details)

    async def approve(self, name: str, *, alias: str = "", digest: str = "") -> Entry:
        """Approve the newest card of an entry. With `digest`, only if it is still that card."""
        return await self._call("POST", f"{_entry(name)}/approve", Entry, Approval(alias, digest))

    async def reject(self, name: str) -> Entry:
        """Reject an entry, or the change of its card."""
        return await self._call("POST", f"{_entry(name)}/reject", Entry, {})

    async def remove(self, name: str) -> Entry:
        """Remove an entry; only `add` brings it back."""
        return await self._call("DELETE", _entry(name), Entry)

    async def refresh(self, name: str) -> Entry:
        """Let the registry fetch the card of an entry now."""
        return await self._call("POST", f"{_entry(name)}/refresh", Entry, {})

    async def changes(self, name: str = "", before: int = 0) -> list[Change]:
        """What has happened, the last first; all of it, or to one entry."""
        where = f"{_entry(name)}/changes" if name else "/registry/changes"
        found = await self._call("GET", f"{where}?before={before}", dict[str, list[Change]])
        return found["changes"]

    # -- inside

    async def _call(self, method: str, path: str, kind: type[T], value: object = None) -> T:
        headers = {"accept": "application/json", **self._headers}
        body = b""
        if value is not None:
            body = msgspec.json.encode(value)
            headers["content-type"] = "application/json"
        self._transport = self._transport or HTTPTransport()
        request = TransportRequest(method, self.url + path, headers, body)
        allowed, token = await self._authorized(request)
        response = await self._transport.send(allowed)
        if response.status == 401 and token:
            allowed, renewed = await self._authorized(request, token)
            if renewed != token:
                await response.close()
                response = await self._transport.send(allowed)
        found = await self._read(response)
        if response.status >= 300:
            raise self._error(response.status, found)
        try:
            return msgspec.json.decode(found, type=kind)
        except msgspec.DecodeError as error:
            raise RegistryError(f"{self.url} is not a registry of dragoman: {error}") from None

    async def _read(self, response: TransportResponse) -> bytes:
        found = bytearray()
        try:
            async for chunk in response.chunks():
                found += chunk
                if len(found) > LARGEST:
                    raise RegistryError(f"{self.url}: the response is larger than {LARGEST} bytes")
        finally:
            await response.close()
        return bytes(found)

    async def _authorized(
        self, request: TransportRequest, refused: str = ""
    ) -> tuple[TransportRequest, str]:
        """The request with the credential, and the token in it. `refused` is one that the registry
        did not accept."""
        auth = self._auth
        if auth is None:
            return request, ""
        if isinstance(auth, ClientCertificate):
            return replace(request, tls=auth.context()), ""
        token = await auth.token(await self._need(auth, refused))
        kind = "Basic" if isinstance(auth, BasicAuth) else "Bearer"
        headers = {**request.headers, "authorization": f"{kind} {token}"}
        return replace(request, headers=headers), token

    async def _need(self, auth: TokenProvider, refused: str) -> AuthRequest:
        """What the registry asks of a provider of tokens."""
        assert self._transport is not None
        if self._scheme is None:
            issued = getattr(auth, "bearing", False)
            self._scheme = await self._issuer(self._transport) if issued else SecurityScheme()
        return AuthRequest(
            name="registry",
            scheme=self._scheme,
            scopes=(),
            url=self.url,
            origins=frozenset({self._origin}),
            transport=self._transport,
            refused=refused,
            agent=self.url,
        )

    async def _issuer(self, transport: Transport) -> SecurityScheme:
        """Where tokens come from, by the registry's metadata (RFC 9728)."""
        url = f"{self._origin}{METADATA}{urlsplit(self.url).path}"
        asked = TransportRequest("GET", url, {"accept": "application/json"})
        found = await self._read(await transport.send(asked))
        try:
            issuer = str(msgspec.json.decode(found)["authorization_servers"][0])
        except (msgspec.DecodeError, LookupError, TypeError):
            raise RegistryError(
                f"{self.url} does not say where to get a token; give it a token with StaticToken"
            ) from None
        place = issuer.rstrip("/") + DISCOVERY
        known = OpenIdConnectSecurityScheme(open_id_connect_url=place)
        return SecurityScheme(open_id_connect_security_scheme=known)

    @property
    def _origin(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    def _error(self, status: int, body: bytes) -> Exception:
        """The error for a response that is not a result."""
        words = ""
        try:
            said = msgspec.json.decode(body)
            words = said.get("message") or said.get("error", {}).get("message") or ""
        except (msgspec.DecodeError, AttributeError):
            pass
        words = str(words)[:ERROR]
        if status == 404 and words:
            return NotFound(words)
        if status == 401:
            return RegistryError(
                f"{self.url} needs credentials, auth= in Python and --bearer in the terminal: "
                f"{words or 'it refused the request'}"
            )
        if status in (502, 503, 504):
            return Unreachable(f"{self.url} answered {status}: {words}")
        return RegistryError(words or f"{self.url} answered {status}; is it a registry?")


class Reference:
    """An agent of a registry, by its URN or alias: a target for `Client.connect`."""

    def __init__(self, registry: Registry, name: str) -> None:
        self.registry = registry
        self.name = name

    def __repr__(self) -> str:
        return f"{self.registry!r}[{self.name!r}]"

    async def entry(self) -> Entry:
        """The entry. Raises NotFound."""
        return await self.registry.get(self.name)

    async def close(self) -> None:
        """Close the connections to the registry."""
        await self.registry.close()

    async def resolve(self) -> ApprovedAgent:
        """See `dragoman.client.AgentReference`."""
        return await (await self.entry()).resolve()


class RegistryQuery(Struct, frozen=True):
    """A query of a registry; `find` asks it."""

    registry: Registry
    query: Query

    async def close(self) -> None:
        """Close the connections to the registry."""
        await self.registry.close()

    async def find(self) -> list[Entry]:
        """The entries that it finds now: at most the `limit` of the query."""
        wanted = self.query.limit
        found: list[Entry] = []
        page = ""
        while len(found) < wanted:
            asked = replace(self.query, limit=min(wanted - len(found), MOST_LISTED), page=page)
            hits = await self.registry.find(asked)
            found += [hit.entry for hit in hits]
            page = hits.next
            if not page:
                break
        return found


def _query(text: str, filters: Filters) -> Query:
    for name, value in filters.items():
        if name not in Filters.__annotations__:
            raise TypeError(f"a query has no filter {name!r}")
        if name in ("skills", "tags", "modes", "versions", "publishers") and isinstance(value, str):
            raise TypeError(f"{name}: expected a list of strings, not a string")
    return msgspec.convert({"text": text, **filters}, Query, strict=False)


def _part(name: str) -> str:
    return quote(name, safe="")


def _entry(name: str) -> str:
    return f"/registry/entries/{_part(name)}"
