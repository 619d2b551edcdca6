"""Where a card may lead. 127.0.0.2 stands for a public address, 127.0.0.1 is what must be safe."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from aiohttp import TCPConnector
from msgspec.structs import replace

from dragoman.client import (
    CardCache,
    Client,
    HTTPTransport,
    NotAllowed,
    OAuth,
    TransportRequest,
    Unreachable,
)
from dragoman.client.tls import context
from dragoman.client.transport import read_all
from dragoman.dialects import v1_0
from dragoman.model.types import (
    AgentCard,
    AgentInterface,
    ClientCredentialsOAuthFlow,
    OAuth2SecurityScheme,
    OAuthFlows,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from dragoman.security import address_policy
from tests.client.scripted_agent import Stranger, begun, telling
from tests.client.transports import card, interface, result, task
from tests.harness.raw_server import Certificate, Listener, Visit

OUTSIDE, INSIDE = "127.0.0.2", "127.0.0.1"
BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
Names = dict[str, list[str]]


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """The addresses of names, which a test may change."""
    known: Names = {"outside.example": [OUTSIDE], "inside.example": [INSIDE]}
    denied, lookup = address_policy.denied, socket.getaddrinfo

    def classed(address: Any) -> str:
        return "" if str(address) == OUTSIDE else denied(address)

    def looked(host: Any, port: Any, *rest: Any, **options: Any) -> Any:
        if host not in known:
            return lookup(host, port, *rest, **options)
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, (address, port)) for address in known[host]]

    monkeypatch.setattr(address_policy, "denied", classed)
    monkeypatch.setattr(socket, "getaddrinfo", looked)
    return known


class Site(Listener):
    """A server at one address: it answers with its card, with a key set, or as an agent."""

    def __init__(self) -> None:
        super().__init__(self.answer)
        self.card: AgentCard | None = None
        self.paths: list[str] = []
        self.open: list[Visit] = []

    def hang_up(self) -> None:
        """Close the connections that are open."""
        for visit in self.open:
            visit.writer.transport.abort()

    async def answer(self, visit: Visit) -> None:
        self.open.append(visit)
        while True:
            first, _, _ = await visit.request()
            path = first.split()[1]
            self.paths.append(path)
            if "well-known" not in path:
                await visit.send(_http(result({"task": task()})))
            elif self.card is not None and "agent-card" in path:
                await visit.send(_http(v1_0.encode(self.card)))
            else:
                await visit.send(_http(b"{}", b"404 Not Found"))


def _http(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    return head % (status, len(body), body)


@contextlib.asynccontextmanager
async def site(host: str, port: int = 0) -> AsyncIterator[Site]:
    found = Site()
    server = await asyncio.start_server(found.serve, host, port)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        found.close()
        await server.wait_closed()


def url(site: Listener, host: str) -> str:
    return f"http://{host}:{site.port}"


def port_of(stranger: Stranger) -> int:
    return int(stranger.card.supported_interfaces[0].url.rpartition(":")[2])


def found(port: int, host: str, binding: str) -> AgentInterface:
    where = f"http://{host}:{port}"
    return interface(f"{where}/" if binding == "JSONRPC" else where, binding)


# ---- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize("host", [INSIDE, "inside.example", "localhost"])
@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_card_from_outside_does_not_lead_inside(binding: str, host: str) -> None:
    async with site(OUTSIDE) as outside, site(INSIDE) as inside:
        outside.card = card(found(inside.port, host, binding))
        async with Client.connect(url(outside, "outside.example"), attempts=1) as client:
            with pytest.raises(NotAllowed, match=r"127\.0\.0\.1, which is not public.*--allow 127"):
                await client.send("x")
            with pytest.raises(NotAllowed):
                async for _ in client.stream("x"):
                    pass
            with pytest.raises(NotAllowed):
                await client.extended_card()
        await inside.unseen()


@pytest.mark.parametrize("binding", ["JSONRPC", "GRPC"])
async def test_a_name_that_changes_its_address_gains_nothing(names: Names, binding: str) -> None:
    async with site(OUTSIDE) as outside, site(INSIDE, outside.port) as inside:
        outside.card = card(found(outside.port, "other.example", binding))
        names["other.example"] = [OUTSIDE]
        async with Client.connect(url(outside, "outside.example"), attempts=1) as client:
            names["other.example"] = [INSIDE]
            with pytest.raises(NotAllowed):
                await client.send("x")
        await inside.unseen()


async def test_the_cards_own_name_neither(names: Names) -> None:
    async with site(OUTSIDE) as outside, site(INSIDE, outside.port) as inside:
        where = url(outside, "outside.example")
        outside.card = card(interface(f"{where}/"))
        transport = HTTPTransport()
        async with Client.connect(where, attempts=1, transport=transport) as client:
            await client.send("x")
            outside.hang_up()
            assert transport._session is not None
            assert isinstance(transport._session.connector, TCPConnector)
            transport._session.connector.clear_dns_cache()
            names["outside.example"] = [INSIDE]
            with pytest.raises(NotAllowed):
                await client._connection.cards.keys(f"{where}/keys")
            with pytest.raises(NotAllowed):
                await client._connection.cards.keys(f"http://{INSIDE}:{inside.port}/keys")
        await inside.unseen()


async def test_one_address_of_several_that_is_public_is_dialled(names: Names) -> None:
    async with site(OUTSIDE) as outside, site(INSIDE, outside.port) as inside:
        outside.card = card(found(outside.port, "both.example", "JSONRPC"))
        names["both.example"] = [INSIDE, OUTSIDE]
        async with Client.connect(url(outside, "outside.example"), attempts=1) as client:
            assert (await client.send("x")).state is not None
        await inside.unseen()


async def test_a_card_that_others_have_found(names: Names) -> None:
    card_cache = CardCache()
    async with site(OUTSIDE) as outside, site(INSIDE) as inside:
        outside.card = card(interface(url(inside, INSIDE)))
        where = url(outside, "outside.example")
        async with Client.connect(where, attempts=1, card_cache=card_cache):
            (known,) = card_cache.known.values()
        card_cache.known = dict.fromkeys(card_cache.known, (known[0], "", float("inf")))
        async with Client.connect(where, attempts=1, card_cache=card_cache) as client:
            assert len(outside.paths) == 1
            with pytest.raises(NotAllowed):
                await client.send("x")
        await inside.unseen()


async def test_a_connection_that_is_open_leads_no_further() -> None:
    async with site(INSIDE) as inside:
        transport = HTTPTransport()
        where = url(inside, "inside.example")
        for _ in range(2):
            await read_all(await transport.send(TransportRequest("GET", where)), 1000)
        assert inside.visits == 1
        with pytest.raises(NotAllowed):
            await transport.send(TransportRequest("GET", where, allow=()))
        await read_all(await transport.send(TransportRequest("GET", where)), 1000)
        assert inside.visits == 1
        await transport.close()


# ---- what is not ---------------------------------------------------------------------------

HOSTS = ["127.0.0.1", "127.0.0.0/8", "inside.example", "*.example"]


@pytest.mark.parametrize("entry", HOSTS)
async def test_what_is_allowed(entry: str) -> None:
    async with site(OUTSIDE) as outside, site(INSIDE) as inside:
        outside.card = card(interface(url(inside, "inside.example") + "/"))
        where = url(outside, "outside.example")
        async with Client.connect(where, attempts=1, allow=[entry]) as client:
            assert (await client.send("x")).state is not None


@pytest.mark.parametrize("entry", ["127.0.0.1", "127.0.0.0/8", "localhost"])
async def test_what_is_allowed_over_grpc(entry: str) -> None:
    async with site(OUTSIDE) as outside, telling("GRPC", lambda: iter([begun()])) as stranger:
        outside.card = card(found(port_of(stranger), "localhost", "GRPC"))
        where = url(outside, "outside.example")
        async with (
            Client.connect(where, attempts=1, allow=[entry]) as client,
            client.stream("x") as stream,
        ):
            assert getattr(await anext(aiter(stream)), "id", "") == "t"


async def test_grpc_to_an_address_that_was_checked_with_the_name_in_its_certificate(
    tmp_path: Path, names: Names
) -> None:
    made = Certificate(tmp_path, "outside.example")
    pem = made.file.read_bytes()
    async with (
        site(OUTSIDE) as outside,
        telling("GRPC", lambda: iter([begun()]), host=OUTSIDE, pem=pem) as stranger,
    ):
        names["other.example"] = [OUTSIDE]
        for host, good in (("outside.example", True), ("other.example", False)):
            outside.card = card(interface(f"https://{host}:{port_of(stranger)}", "GRPC"))
            transport = HTTPTransport(ssl=context(ca=str(made.file)))
            where = url(outside, "outside.example")
            async with (
                Client.connect(where, attempts=1, transport=transport) as client,
                client.stream("x") as stream,
            ):
                if good:
                    assert getattr(await anext(aiter(stream)), "id", "") == "t"
                else:
                    with pytest.raises(Unreachable):
                        await anext(aiter(stream))


async def test_a_card_from_inside_leads_anywhere() -> None:
    async with site(OUTSIDE) as outside, site(INSIDE) as inside:
        for there in (url(outside, OUTSIDE), url(inside, "inside.example")):
            inside.card = card(interface(f"{there}/"))
            async with Client.connect(url(inside, INSIDE), attempts=1) as client:
                assert (await client.send("x")).state is not None


async def test_a_card_that_the_caller_gives_leads_anywhere(tmp_path: Path) -> None:
    async with site(OUTSIDE) as outside, site(INSIDE) as inside:
        ways = card(interface(url(outside, OUTSIDE) + "/"), interface(url(inside, INSIDE) + "/"))
        (tmp_path / "card.json").write_bytes(v1_0.encode(ways))
        for given in (ways, str(tmp_path / "card.json")):
            async with Client.connect(given, attempts=1) as client:
                await client.send("x")
                client._connection.use(client._connection.usable[1])
                assert (await client.send("x")).state is not None
        assert inside.visits == 2


async def test_another_interface_is_taken(names: Names) -> None:
    async with site(OUTSIDE) as outside, site(INSIDE) as inside:
        public = interface(url(outside, OUTSIDE) + "/")
        outside.card = card(interface(url(inside, INSIDE) + "/"), public)
        async with Client.connect(url(outside, OUTSIDE), attempts=1) as client:
            assert (await client.send("x")).state is not None
            assert client.interface == public
        await inside.unseen()


# ---- on the way to a token -----------------------------------------------------------------


async def test_a_token_server_inside() -> None:
    def with_oauth(card: AgentCard, token: str) -> AgentCard:
        flow = ClientCredentialsOAuthFlow(token_url=token, scopes={})
        scheme = OAuth2SecurityScheme(flows=OAuthFlows(client_credentials=flow))
        need = SecurityRequirement(schemes={"it": StringList(list=())})
        return replace(
            card,
            security_schemes={"it": SecurityScheme(oauth2_security_scheme=scheme)},
            security_requirements=(need,),
        )

    async with site(OUTSIDE) as outside, site(INSIDE) as inside:
        where, token = url(outside, OUTSIDE), url(inside, INSIDE)
        outside.card = with_oauth(card(interface(f"{where}/")), f"{token}/token")
        auth = OAuth("me", "secret")
        async with Client.connect(where, attempts=1, auth=auth, trust=[token]) as client:
            with pytest.raises(NotAllowed):
                await client.send("x")
        await inside.unseen()
        auth = OAuth("me", "secret", issuer=token)  # the caller's own word
        async with Client.connect(where, attempts=1, auth=auth) as client:
            with pytest.raises(Exception, match="no access_token"):
                await client.send("x")
        assert inside.paths == ["/token"]


# ---- through a proxy -----------------------------------------------------------------------


async def test_what_a_proxy_fetches_may_be_public(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(INSIDE) as proxy, site(INSIDE) as inside:
        monkeypatch.setenv("http_proxy", url(proxy, INSIDE))

        async def served(there: str, run: Callable[[Client], Any]) -> Any:
            proxy.card = card(interface(f"{there}/"))
            async with Client.connect("http://far.example", attempts=1) as client:
                return await run(client)

        async def send(client: Client) -> Any:
            return await client.send("x")

        with pytest.raises(NotAllowed):
            await served(url(inside, INSIDE), send)  # this is not for the proxy
        before = list(proxy.paths)
        with pytest.raises(NotAllowed, match=r"10\.0\.0\.5"):
            await served("http://10.0.0.5", send)
        assert [path for path in proxy.paths[len(before) :] if "10.0.0.5" in path] == []
        await inside.unseen()


# ---- what is public ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f::1", True),
        ("64:ff9b::5db8:d70e", True),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::a00:1", False),
        ("127.0.0.1", False),
        ("::1", False),
        ("169.254.169.254", False),
        ("10.0.0.1", False),
        ("fd00::1", False),
        ("fe80::1%eth0", False),
        ("::ffff:127.0.0.1", False),
    ],
)
def test_public(address: str, is_public: bool) -> None:
    assert address_policy.public(ip_address(address)) is is_public
