"""Client certificates: shown to the card's own agent, and to nobody else."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from dragoman.client import (
    Client,
    ClientCertificate,
    CredentialsNotSent,
    HTTPTransport,
    OAuth,
    StaticToken,
    Unreachable,
)
from dragoman.model.types import MutualTlsSecurityScheme, SecurityScheme
from tests.client.authorization_server import Authority
from tests.client.protected_agent import Guarded, at, greeted, guarded, has, key
from tests.harness.raw_server import Certificate as Selfmade
from tests.harness.raw_server import Visit, listening

BINDINGS = ["JSONRPC", "HTTP+JSON"]
MUTUAL = SecurityScheme(mtls_security_scheme=MutualTlsSecurityScheme())


@pytest.fixture
def server(tmp_path: Path) -> Selfmade:
    """The server's certificate."""
    (folder := tmp_path / "server").mkdir()
    return Selfmade(folder, "127.0.0.1")


@pytest.fixture
def mine(tmp_path: Path) -> Selfmade:
    """The client's certificate."""
    (folder := tmp_path / "mine").mkdir()
    return Selfmade(folder, "robot")


def demanding(server: Selfmade, client: Selfmade) -> dict[str, Any]:
    """The options of a server that talks to nobody without this certificate."""
    return {
        "ssl_certfile": str(server.file),
        "ssl_ca_certs": str(client.file),
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
    }


def split(made: Selfmade, password: str) -> tuple[Path, Path]:
    """The certificate in one file, and its key, encrypted, in another."""
    pem = made.file.read_bytes()
    key = serialization.load_pem_private_key(pem, None)
    private, public = made.file.with_name("key.pem"), made.file.with_name("cert.pem")
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode()),
        )
    )
    public.write_bytes(pem[pem.index(b"-----BEGIN CERTIFICATE") :])
    return public, private


def shown(made: Selfmade, server: Selfmade) -> ClientCertificate:
    """What the client shows, where it trusts this server."""
    return ClientCertificate(str(made.file), ca=str(server.file))


@pytest.mark.parametrize("binding", BINDINGS)
async def test_certificate(server: Selfmade, mine: Selfmade, binding: str) -> None:
    """It is needed for the card already."""
    async with guarded(has(), **demanding(server, mine)) as agent:
        agent.demand({"it": MUTUAL})
        assert await greeted(agent, shown(mine, server), binding) == "robot:"


async def test_certificate_with_a_password(server: Selfmade, mine: Selfmade) -> None:
    public, private = split(mine, "s3cret")
    async with guarded(has(), **demanding(server, mine)) as agent:
        agent.demand({"it": MUTUAL})
        auth = ClientCertificate(str(public), str(private), password="s3cret", ca=str(server.file))
        assert await greeted(agent, auth) == "robot:"


@pytest.mark.parametrize("named", [False, True])
async def test_certificate_and_secret(server: Selfmade, mine: Selfmade, named: bool) -> None:
    auth = {"key": StaticToken("k"), "it": shown(mine, server)}
    async with guarded(has(x_key="k"), **demanding(server, mine)) as agent:
        agent.demand({"it": MUTUAL, "key": key("header", "x-key")}, {"it": (), "key": ()})
        assert await greeted(agent, auth if named else list(auth.values())) == "robot:"


async def test_a_card_from_elsewhere(server: Selfmade, mine: Selfmade) -> None:
    """A card that was handed over names the agent."""
    async with guarded(has(), **demanding(server, mine)) as agent:
        card = agent.demand({"it": MUTUAL})
        async with Client.connect(card, auth=shown(mine, server)) as client:
            assert (await client.send("hello")).text == "robot:"


async def test_without_a_certificate(server: Selfmade, mine: Selfmade) -> None:
    async with guarded(has(), **demanding(server, mine)) as agent:
        card = agent.demand({"it": MUTUAL})
        transport = HTTPTransport(ssl=server.client())
        async with Client.connect(card, transport=transport, attempts=1) as client:
            with pytest.raises(Unreachable):
                await client.send("hello")
        assert agent.requests == []


async def test_a_certificate_nobody_trusts(
    server: Selfmade, mine: Selfmade, tmp_path: Path
) -> None:
    (folder := tmp_path / "other").mkdir()
    other = Selfmade(folder, "robot")
    async with guarded(has(), **demanding(server, mine)) as agent:
        card = agent.demand({"it": MUTUAL})
        async with Client.connect(card, auth=shown(other, server), attempts=1) as client:
            with pytest.raises(Unreachable):
                await client.send("hello")
        assert agent.requests == []


async def test_a_server_nobody_trusts(server: Selfmade, mine: Selfmade) -> None:
    """A certificate of our own does not make us careless about theirs."""
    async with guarded(has(), **demanding(server, mine)) as agent:
        card = agent.demand({"it": MUTUAL})
        async with Client.connect(
            card, auth=ClientCertificate(str(mine.file)), attempts=1
        ) as client:
            with pytest.raises(Unreachable, match=r"(?i)certificate"):
                await client.send("hello")
        assert agent.requests == []


class Curious:
    """Somebody who would like to see a certificate, and can do without; answers nothing."""

    def __init__(self, server: Selfmade, mine: Selfmade) -> None:
        self.seen: list[Any] = []
        self.context = server.server()
        self.context.load_verify_locations(str(mine.file))
        self.context.verify_mode = ssl.CERT_OPTIONAL

    async def __call__(self, visit: Visit) -> None:
        self.seen.append(visit.writer.get_extra_info("peercert"))


async def test_it_goes_to_nobody_else(server: Selfmade, mine: Selfmade) -> None:
    curious = Curious(server, mine)
    async with (
        guarded(has(), **demanding(server, mine)) as agent,
        listening(curious, tls=curious.context) as canary,
    ):
        agent.demand({"it": MUTUAL})
        agent.point("JSONRPC", f"https://127.0.0.1:{canary.port}/")
        with pytest.raises(CredentialsNotSent):
            async with Client.connect(agent.url, auth=shown(mine, server), attempts=1):
                pass
        assert curious.seen == []


async def test_an_authority_is_not_shown_it(server: Selfmade, mine: Selfmade) -> None:
    """It is the agent's, also where a token is needed too."""
    curious = Curious(server, mine)
    async with listening(curious, tls=curious.context) as canary:
        url = f"https://127.0.0.1:{canary.port}"
        schemes = {"it": MUTUAL, "token": Authority(url=url).scheme("client")}
        card = Guarded(has()).demand(schemes, {"it": (), "token": ()}, url="https://agent.example")
        auth = [shown(mine, server), OAuth("robot", "s3cret", issuer=url)]
        transport = HTTPTransport(ssl=server.client())
        async with Client.connect(card, transport=transport, auth=auth, attempts=1) as client:
            with pytest.raises(Unreachable):
                await client.send("hello")
        assert curious.seen
        assert not any(curious.seen)


async def test_curiosity_is_satisfied(server: Selfmade, mine: Selfmade) -> None:
    """The same listener does see it when it is the agent: the two above can fail."""
    curious = Curious(server, mine)
    async with listening(curious, tls=curious.context) as there:
        card = at(f"https://127.0.0.1:{there.port}", MUTUAL)
        async with Client.connect(card, auth=shown(mine, server), attempts=1) as client:
            with pytest.raises(Unreachable):
                await client.send("hello")
        assert curious.seen
        assert all(curious.seen)
