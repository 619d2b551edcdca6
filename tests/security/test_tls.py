"""TLS of `dragoman serve`: over HTTP and gRPC, with certificates on both sides."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from a2a.client import ClientConfig, create_client
from a2a.types import a2a_pb2, a2a_pb2_grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from google.protobuf.json_format import ParseDict

from dragoman import Agent, App, Caller, Turn
from dragoman.bindings.http_request import Receive, Scope, Send
from dragoman.cli import tls
from dragoman.model.caller import Request
from dragoman.security import Certificate as ByCertificate
from dragoman.server.settings import Settings, SettingsError
from tests.harness.raw_server import Certificate
from tests.harness.server import Served, served

CARD = "/.well-known/agent-card.json"


def message(name: str) -> dict[str, Any]:
    """A send request."""
    return {"message": {"messageId": name, "role": "ROLE_USER", "parts": [{"text": "hello"}]}}


def certificate(folder: Path, name: str) -> Certificate:
    """One of this name."""
    (folder / name).mkdir()
    return Certificate(folder / name, "127.0.0.1", "localhost")


class Watched(App):
    """Remembers what the server said of the requests."""

    scopes: list[Scope]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ever."""
        if scope["type"] == "http":
            self.scopes.append(scope)
        await super().__call__(scope, receive, send)


def watched(**settings: Any) -> Watched:
    """An application with an agent that says a lot."""
    agent = Agent("Talker", description="Says a lot.")

    @agent.handler
    async def talk(turn: Turn) -> AsyncIterator[Any]:
        for number in range(200):
            yield turn.write(f"{number} " + "x" * 1000)

    @agent.extended_card
    def extended(caller: Any, public: Any) -> Any:
        return public

    def identify(request: Request) -> Caller:
        return Caller(identity="ann")

    app = Watched(agent, identify=identify, drain_timeout=0.1, request_timeout=6, **settings)
    app.scopes = []
    return app


@asynccontextmanager
async def client(
    server: Served, trusted: Certificate, own: Certificate | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """A client that trusts this certificate, with one of its own."""
    context = trusted.client()
    if own is not None:
        context.load_cert_chain(own.file)
    async with httpx.AsyncClient(base_url=server.url, verify=context, timeout=10) as http:
        yield http


def said(app: Watched) -> Any:
    """The extension of the last request."""
    return app.scopes[-1]["extensions"]["tls"]


@pytest.mark.parametrize("over", ["http", "grpc"])
async def test_a_certificate_says_who_asks(tmp_path: Path, over: str) -> None:
    own, known = certificate(tmp_path, "server"), certificate(tmp_path, "client")
    agent, seen = Agent("Quiet", description="Knows who asks."), []

    @agent.handler
    async def who(turn: Turn) -> str:
        seen.append(turn.caller.identity)
        return turn.caller.identity

    found = x509.load_pem_x509_certificate(known.file.read_bytes())
    prints = {found.fingerprint(hashes.SHA256()).hex(): "robot"}
    app = App(
        agent,
        auth=ByCertificate(identity=prints),
        cert=str(own.file),
        ca=str(known.file),
        grpc_port=0,
        drain_timeout=0.1,
    )
    async with served(app) as server, client(server, own, known) as http:
        if over == "http":
            sent = await http.post("/message:send", json=message("a"))
            assert sent.status_code == 200
        else:
            credentials = grpc.ssl_channel_credentials(
                own.file.read_bytes(), *[known.file.read_bytes()] * 2
            )
            address = f"localhost:{app.ports[0].number}"
            async with grpc.aio.secure_channel(address, credentials) as channel:
                stub = a2a_pb2_grpc.A2AServiceStub(channel)
                request = ParseDict(message("a"), a2a_pb2.SendMessageRequest())
                assert (await stub.SendMessage(request)).task.id
    assert seen == ["robot"]


# ---- HTTP ----------------------------------------------------------------------------------


@pytest.mark.clause("tls.required")
async def test_everything_over_tls(tmp_path: Path) -> None:
    own = certificate(tmp_path, "server")
    app = watched(cert=str(own.file))
    async with served(app) as server, client(server, own) as http:
        card = (await http.get(CARD)).json()
        assert card["supportedInterfaces"][0]["url"] == f"{server.url}/"
        assert server.url.startswith("https:")
        assert said(app)["client_cert_chain"] == []
        assert said(app)["tls_version"] == 0x0304
        assert app.scopes[-1]["scheme"] == "https"
        for number in range(3):  # on one connection: short answers, then a stream
            sent = await http.post("/message:send", json=message(f"a{number}"))
            assert sent.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
            stream = await http.post("/message:stream", json=message(f"b{number}"))
            assert stream.text.count('"artifactUpdate"') == 200
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            async with httpx.AsyncClient() as stranger:
                await stranger.get(server.url)


@pytest.mark.clause("tls.modern")
async def test_only_what_is_safe(tmp_path: Path) -> None:
    own = certificate(tmp_path, "server")
    async with served(watched(cert=str(own.file))) as server:
        port = int(server.url.rpartition(":")[2])

        async def meet(context: ssl.SSLContext) -> str:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            found: ssl.SSLObject = writer.get_extra_info("ssl_object")
            writer.close()
            return f"{found.version()} {found.cipher()[0]}"  # type: ignore[index]

        older = own.client()
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        assert (await meet(older)).startswith("TLSv1.2 ECDHE-")
        older.set_ciphers("AES128-SHA256:AES256-GCM-SHA384@SECLEVEL=0")  # no forward secrecy
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await meet(older)
        oldest = own.client()
        oldest.set_ciphers("ALL@SECLEVEL=0")
        with pytest.warns(DeprecationWarning):
            oldest.minimum_version = ssl.TLSVersion.TLSv1
            oldest.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await meet(oldest)


async def test_certificates_of_clients(tmp_path: Path) -> None:
    own, ann, eve = (certificate(tmp_path, name) for name in ("server", "ann", "eve"))
    app = watched(cert=str(own.file), ca=str(ann.file))
    async with served(app) as server:
        async with client(server, own, ann) as http:
            assert (await http.get(CARD)).status_code == 200
            (shown,) = said(app)["client_cert_chain"]
            assert x509.load_pem_x509_certificate(shown.encode()) == x509.load_pem_x509_certificate(
                ann.file.read_bytes()
            )
        seen = len(app.scopes)
        for other in (None, eve):
            async with client(server, own, other) as http:
                with pytest.raises((httpx.TransportError, ssl.SSLError)):
                    await http.get(CARD)
        assert len(app.scopes) == seen


async def test_certificates_that_clients_need_not_have(tmp_path: Path) -> None:
    own, ann, eve = (certificate(tmp_path, name) for name in ("server", "ann", "eve"))
    app = watched(cert=str(own.file), ca=str(ann.file), ca_optional=True)
    async with served(app) as server:
        for other, count in ((None, 0), (ann, 1)):
            async with client(server, own, other) as http:
                assert (await http.get(CARD)).status_code == 200
                assert len(said(app)["client_cert_chain"]) == count
        async with client(server, own, eve) as http:
            with pytest.raises((httpx.TransportError, ssl.SSLError)):
                await http.get(CARD)


async def test_without_tls_there_is_no_word_of_it() -> None:
    app = watched()
    async with served(app) as server, httpx.AsyncClient(base_url=server.url) as http:
        await http.get(CARD)
        assert "tls" not in app.scopes[-1].get("extensions", {})


async def test_the_reference_client(tmp_path: Path) -> None:
    own = certificate(tmp_path, "server")
    async with served(watched(cert=str(own.file))) as server, client(server, own) as http:
        caller = await create_client(server.url, ClientConfig(httpx_client=http))
        part = a2a_pb2.Part(text="hello")
        hello = a2a_pb2.Message(message_id="m", role=a2a_pb2.ROLE_USER, parts=[part])
        events = [e async for e in caller.send_message(a2a_pb2.SendMessageRequest(message=hello))]
        assert len(events) > 200


async def run(*words: str) -> tuple[int | None, str]:
    """A command and what it says."""
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(30):
        said, _ = await process.communicate()
    return process.returncode, said.decode()


async def test_commands(tmp_path: Path) -> None:
    own, ann = certificate(tmp_path, "server"), certificate(tmp_path, "ann")
    app = watched(cert=str(own.file), ca=str(ann.file), ca_optional=True)
    async with served(app) as server:
        ours = (sys.executable, "-m", "dragoman")
        papers: tuple[str, ...] = ("--ca", str(own.file))
        status, told = await run(*ours, "card", server.url, *papers)
        assert status == 0, told
        status, told = await run(*ours, "send", server.url, "hello", *papers)
        assert (status, "199 x" in told) == (0, True), told
        assert (await run(*ours, "card", server.url))[0] == 3, "nobody trusts it"
        if curl := shutil.which("curl"):
            papers = ("--cacert", str(own.file), "--cert", str(ann.file))
            status, told = await run(curl, "-sS", *papers, server.url + CARD)
            assert (status, "Talker" in told) == (0, True), told
            assert len(said(app)["client_cert_chain"]) == 1


# ---- gRPC ----------------------------------------------------------------------------------


async def extended(app: App, trusted: Certificate, own: Certificate | None = None) -> str:
    """Where a card that came over gRPC says that HTTP is."""
    mine = own.file.read_bytes() if own else None
    credentials = grpc.ssl_channel_credentials(trusted.file.read_bytes(), mine, mine)
    async with grpc.aio.secure_channel(f"127.0.0.1:{app.ports[0].number}", credentials) as channel:
        call = channel.unary_unary(
            "/lf.a2a.v1.A2AService/GetExtendedAgentCard",
            response_deserializer=a2a_pb2.AgentCard.FromString,
        )
        card = await call(b"", metadata=(("a2a-version", "1.0"),), timeout=3)
        return str(card.supported_interfaces[0].url)


@pytest.mark.clause("tls.required")
async def test_grpc_has_the_certificate_of_http(tmp_path: Path) -> None:
    own, ann, other = (certificate(tmp_path, name) for name in ("server", "ann", "other"))
    app = watched(cert=str(own.file), ca=str(ann.file), grpc_port=0)
    async with served(app):
        assert (await extended(app, own, ann)).startswith("https://")
        for stranger in (None, other):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await extended(app, own, stranger)
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    app = watched(cert=str(own.file), ca=str(ann.file), ca_optional=True, grpc_port=0)
    async with served(app):
        assert await extended(app, own)


# ---- what is wrong -------------------------------------------------------------------------


def locked(file: Path, password: bytes) -> str:
    """The key in a file, in a file with a password."""
    key = serialization.load_pem_private_key(file.read_bytes(), None)
    to = file.with_name("locked.pem")
    to.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password),
        )
    )
    return str(to)


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    own, other = certificate(tmp_path, "server"), certificate(tmp_path, "other")
    file, key = str(own.file), locked(own.file, b"opensesame")
    none, junk = str(tmp_path / "none.pem"), str(tmp_path / "junk.pem")
    Path(junk).write_text("junk")
    bare = tmp_path / "bare.pem"
    bare.write_text("-----BEGIN CERT" + own.file.read_text().partition("-----BEGIN CERT")[2])
    for settings, words in (
        ({"cert": none}, f"cert: {none}: No such file or directory"),
        ({"cert": file, "key": none}, f"key: {none}: No such file or directory"),
        ({"cert": file, "ca": none}, f"ca: {none}: No such file or directory"),
        ({"cert": str(tmp_path)}, f"cert: {tmp_path}: Is a directory"),
        ({"cert": junk}, f"cert: {junk}: contains no PEM certificate"),
        ({"cert": file, "key": junk}, f"key: {junk}: contains no PEM key"),
        ({"cert": str(bare)}, f"cert: {bare}: contains no PEM key"),
        ({"cert": file, "ca": junk}, f"ca: {junk}: contains no PEM certificate"),
        ({"cert": file, "key": str(other.file)}, f"key: {other.file}: is not the key of {file}"),
        ({"cert": file, "key": key}, f"key_password: cannot decrypt {key}"),
        ({"cert": file, "key": key, "key_password": "no"}, f"key_password: cannot decrypt {key}"),
        ({"key": file}, "key: needs cert"),
        ({"ca": file}, "ca: needs cert"),
    ):
        with pytest.raises(SettingsError) as failed:
            tls.context(Settings(**settings))
        assert str(failed.value).startswith(words)
        assert "\n" not in str(failed.value)
    assert tls.context(Settings(cert=file, key=key, key_password="opensesame"))
    assert tls.context(Settings(cert=file, key=file))
    assert tls.context(Settings()) is None


def test_a_password_is_a_secret() -> None:
    found = Settings(key_password="opensesame")
    assert found.masked()["key_password"] == "***"
    assert found.secrets() == ["opensesame"]
    assert Settings().masked()["key_password"] == ""
    with pytest.raises(ValueError, match="key_password: gRPC cannot use an encrypted key"):
        App(Agent("A", description="x"), cert="c", key_password="opensesame", grpc_port=0)
