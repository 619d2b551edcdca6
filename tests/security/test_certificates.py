"""Callers that are known by a certificate: over gRPC's TLS, a server's, and a proxy's word."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import httpx
import pytest
from cryptography import x509

from dragoman import App
from dragoman.model.caller import Caller, Request
from dragoman.model.errors import Unauthenticated
from dragoman.security import AllOf, ApiKey, Certificate
from dragoman.security.schemes import Authenticator
from tests.harness.clients import Grpc
from tests.harness.server import serving
from tests.security.caller_certificates import ROBOT, SPIFFE, made
from tests.security.scheme_requests import MESSAGE, doorman, identified, request, said, send


def shows(certificate: str | bytes, **headers: str) -> Request:
    """A request over a connection with this certificate."""
    return Request("POST", "/", "", headers, "10.0.0.1", certificate)


# ---- whose it is ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", [ROBOT.pem, ROBOT.pem.encode(), ROBOT.der], ids=["", "pem", "der"])
@pytest.mark.parametrize(
    ("identity", "who"),
    [
        ("cn", "robot"),
        ("uri", SPIFFE),
        ("dns", "r.example"),
        ({f"sha256:{ROBOT.fingerprint}": "known"}, "known"),
        ({ROBOT.fingerprint.upper(): "known"}, "known"),
        (lambda found: f"no {found.version.name}", "no v3"),
    ],
)
def test_whose_it_is(identity: Any, who: str, form: Any) -> None:
    scheme = Certificate(identity=identity)
    for _ in range(2):
        found = scheme.identify(shows(form))
        assert found is not None
        assert found.stored == Caller(identity=who)
        assert found.expires > time.time()


def test_a_function_may_say_more() -> None:
    caller = Caller(identity="r", tenant="blue", scopes=frozenset({"book"}))
    found = Certificate(identity=lambda _: caller).identify(shows(ROBOT.pem))
    assert found is not None
    assert found.stored == caller


@pytest.mark.parametrize(
    ("identity", "shown"),
    [
        ("cn", made().pem),
        ("cn", made("one", "two").pem),
        ("cn", made("old", days=-1).pem),
        ("uri", made("robot").pem),
        ("dns", made("robot", sans=(x509.DNSName("a"), x509.DNSName("b"))).pem),
        ({"0" * 64: "other"}, ROBOT.pem),
        (lambda _: None, ROBOT.pem),
        (lambda _: "", ROBOT.pem),
        ("cn", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"),
        ("cn", "nonsense"),
        ("cn", b"nonsense"),
    ],
)
def test_nobodys(identity: Any, shown: Any) -> None:
    with pytest.raises(Unauthenticated):
        Certificate(identity=identity).identify(shows(shown))


def test_none_is_none() -> None:
    assert Certificate().identify(shows("")) is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"header": "X-Client-Cert"},
        {"proxies": ["10.0.0.0/8"]},
        {"header": "X-Client-Cert", "proxies": "10.0.0.0/8"},
        {"header": "X-Client-Cert", "proxies": ["10.0.0.1/8"]},
        {"identity": "email"},
        {"identity": {"12": "x"}},
    ],
)
def test_what_makes_no_sense(arguments: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Certificate(**arguments)


# ---- behind a proxy ------------------------------------------------------------------------


def told(value: str, client: str, certificate: str = "") -> Request:
    """A request in which a header tells a certificate."""
    return Request("POST", "/", "", {"x-client-cert": value}, client, certificate)


NGINX = quote(ROBOT.pem)
RFC9440 = f":{base64.b64encode(ROBOT.der).decode()}:"
BEHIND = {"header": "X-Client-Cert", "proxies": ["10.0.0.0/8", "fd00::/8"]}


@pytest.mark.parametrize("value", [NGINX, RFC9440], ids=["nginx", "rfc9440"])
def test_a_proxy_is_believed_and_nobody_else(value: str) -> None:
    scheme = Certificate(**BEHIND)
    for proxy in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1"):
        found = scheme.identify(told(value, proxy))
        assert found is not None
        assert found.identity == "robot"
    for other in ("11.0.0.1", "127.0.0.1", "::1", "", "unix:", "10.1.2.3, 11.0.0.1"):
        assert scheme.identify(told(value, other)) is None


def test_the_proxys_own_certificate_is_not_the_callers() -> None:
    assert Certificate(**BEHIND).identify(told("", "10.1.2.3", ROBOT.pem)) is None


def test_without_a_header_that_is_named_no_header_is_read() -> None:
    headers = {"x-client-cert": NGINX, "client-cert": RFC9440}
    assert Certificate().identify(Request("POST", "/", "", headers, "10.1.2.3")) is None


@pytest.mark.parametrize(
    "value", ["x", ":***:", ":AAAA:", quote("-----BEGIN"), "%", ":" + "A" * 70_000 + ":"]
)
def test_a_proxy_that_tells_nonsense(value: str) -> None:
    with pytest.raises(Unauthenticated):
        Certificate(**BEHIND).identify(told(value, "10.1.2.3"))


async def test_over_http_behind_a_proxy() -> None:
    here = Certificate(header="X-Client-Cert", proxies=["127.0.0.0/8"])
    elsewhere = Certificate(header="X-Client-Cert", proxies=["10.0.0.0/8"])
    for scheme, status in ((here, 200), (elsewhere, 401)):
        async with serving(App(doorman(), auth=scheme, drain_timeout=0.0)) as url:
            assert (await send(url, **{"x-client-cert": NGINX})).status_code == status


# ---- over TLS ------------------------------------------------------------------------------


async def test_over_http() -> None:
    """As the TLS extension of ASGI tells it."""
    app = App(doorman(), auth=Certificate(), drain_timeout=0.0)
    tls: dict[str, Any] = {}

    async def server(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope = {**scope, "extensions": {"tls": tls}}
        await app(scope, receive, send)

    async with serving(server) as url:
        assert (await send(url)).status_code == 401
        tls["client_cert_chain"] = (ROBOT.pem, made("authority").pem)
        assert said(await send(url)) == "robot:"
        tls["client_cert_error"] = "self-signed certificate"
        assert (await send(url)).status_code == 401
    # a server that knows of no extensions
    async with serving(App(doorman(), auth=Certificate(), drain_timeout=0.0)) as url:
        assert (await send(url)).status_code == 401


async def test_over_grpc(tmp_path: Path) -> None:
    local = (x509.DNSName("localhost"),)
    server, eve = made("server", sans=local), made("eve")
    ca = tmp_path / "ca.pem"
    ca.write_text(ROBOT.pem + eve.pem)
    file = server.file(tmp_path / "server.pem")
    app = App(
        doorman(),
        auth=Certificate(identity={ROBOT.fingerprint: "robot"}),
        grpc_port=0,
        cert=file,
        key=file,
        ca=str(ca),
        drain_timeout=0.0,
    )
    async with app:
        for own, status in ((ROBOT, None), (eve, grpc.StatusCode.UNAUTHENTICATED)):
            credentials = grpc.ssl_channel_credentials(
                server.pem.encode(), own.key.encode(), own.pem.encode()
            )
            address = f"localhost:{app.ports[0].number}"
            async with grpc.aio.secure_channel(address, credentials) as channel:
                call = Grpc("", None, {}, channel).start("SendMessage", MESSAGE, timeout=20)
                if status is None:
                    assert (await call).task.artifacts[0].parts[0].text == "robot:"
                else:
                    with pytest.raises(grpc.aio.AioRpcError) as failed:
                        await call
                    assert failed.value.code() is status


# ---- with others ---------------------------------------------------------------------------


async def test_with_a_key() -> None:
    gate = Authenticator([AllOf(Certificate(), ApiKey(header="X-Key", keys={"k": "s"}))])
    assert (await identified(gate, shows(ROBOT.pem, **{"x-key": "s"}))).identity == "robot"
    for some in (shows(ROBOT.pem), request(**{"x-key": "s"})):
        with pytest.raises(Unauthenticated):
            await identified(gate, some)


async def test_what_the_card_says() -> None:
    app = App(doorman(), auth=Certificate(), drain_timeout=0.0)
    async with serving(app) as url, httpx.AsyncClient() as http:
        card = (await http.get(f"{url}/.well-known/agent-card.json")).json()
    scheme = card["securitySchemes"]["certificate"]
    assert scheme["mtlsSecurityScheme"] == {}
    assert scheme["type"] == "mutualTLS"
