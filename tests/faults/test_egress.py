"""Hostile addresses and hostile servers: a canary on loopback that nothing may reach, and answers
that never end, come from the wrong one, or are none."""

# ruff: noqa: RUF001 - lookalikes are the point

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from dragoman.security.address_policy import EgressRefused
from dragoman.security.egress import Egress, EgressUnreachable
from tests.harness.raw_server import Certificate, Listener, Visit, listening

pytestmark = pytest.mark.asyncio(loop_scope="module")

PUBLIC = "93.184.215.14"
HANG = 20.0
"""Whoever has not ended by then never will."""

LITERALS = [
    # loopback as it is, and elsewhere in its network
    *("127.0.0.1", "127.0.0.2", "127.255.255.254", "0.0.0.0", "0.1.2.3"),
    # as C libraries and browsers read it
    *("2130706433", "017700000001", "0x7f000001", "0x7F.0.0.1", "0x7f.1", "127.1", "127.0.1"),
    *("0177.0.0.1", "0177.0.0.01", "127.0.0.01", "127.000.000.001", "0000127.0.0.1", "127.0.0.0x1"),
    *("127.0.0.1.", "127.0.0.1..", "0", "0x0", "0x", "127", "4294967296", "127.0.0.257", "127..1"),
    # IPv6, plain and with the IPv4 address inside
    *("[::1]", "[0:0:0:0:0:0:0:1]", "[0000::0001]", "[::]", "[::127.0.0.1]", "[::7f00:1]"),
    *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::FFFF:127.0.0.1]", "[0::ffff:0:127.0.0.1]"),
    *("[0:0:0:0:0:ffff:7f00:0001]", "[64:ff9b::127.0.0.1]", "[64:ff9b:1::7f00:1]"),
    *("[2002:7f00:1::]", "[2001:0:7f00:1::]", "[2001::80ff:fffe]", "[::ffff:0:127.0.0.1]"),
    # with a zone, with what does not belong there, and with brackets where none belong
    *("[::1%lo]", "[::1%25lo]", "[fe80::1%25lo]", "[::1%250]", "[fe80::1]", "[::ffff:127.1]"),
    *("[127.0.0.1]", "[::1", "::1]", "::1", "[[::1]]", "[::1].", "[::1]x", "[]", "[v1.::1]"),
    # what a normalising reader makes of other digits and dots
    *("１２７.０.０.１", "①②⑦.⓪.⓪.①", "127。0。0。1", "127．0．0．1", "127｡0｡0｡1", "𝟏𝟐𝟕.0.0.1"),
    *("١٢٧.0.0.1", "%31%32%37.0.0.1", "127%2e0%2e0%2e1", "127.0.0.1%00", "127.0.0.1%2f"),
    *("%5b::1%5d", "%255b::1%255d"),
]
NAMES = [
    *("localhost", "LOCALHOST", "localhost.", "a.localhost", "localhost.localdomain", "loopback"),
    *("ｌｏｃａｌｈｏｓｔ", "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", "localho\u017ft", "loc\u00adalhost", "localhost\u200b"),
    "%6cocalhost",
    *("metadata.google.internal", "redis", "a.local", "router.home.arpa", "bücher.example.com"),
    # names whose address is the canary's
    *("127.0.0.1.nip.io", "evil.example.com", "EVIL.Example.COM", "xn--lclhst-0ve.example.com"),
    *("evil.example.com.", "evil..example.com", ".evil.example.com", "-evil.example.com"),
    *("evil-.com", "a" * 64 + ".example.com", ".".join(["a" * 63] * 5), "evil.example.com%2f@a"),
    *("evil.0x7f000001", "evil.example.com,b", "evil!.example.com", "*.example.com", "(evil).com"),
]
URLS = [
    # whose host is it?
    *("https://example.com@{home}/", "https://example.com:443@{home}/", "https://{home}@1.1.1.1/"),
    *("https://@{home}/", "https://:@{home}/", "https://a:b@c@{home}/", "https://a%40b@{home}/"),
    *("https://{home}\\@example.com/", "https://example.com\\@{home}/", "https:\\\\{home}/"),
    *("https://{home}\\.example.com/", "https:/\\{home}/", "https:{home}/", "https:/{home}/"),
    *("https:///{home}/", "https:////{home}/", "//{home}/", "{home}/", "https://", "https:///", ""),
    *("https://?@{home}/", "https://#@{home}/", "https:// {home}/", " https://{home}/"),
    *("https://{home} /", "https://{home}/ ", "https://{home}/\r\nHost: a", "ht\ntps://{home}/"),
    *("https://{home}\t/", "https://127.0.\t0.1:{port}/", "\x00https://{home}/"),
    *("https://{home}/\x00", "https://{home}/\x7f", "\ufeffhttps://{home}/", "https://{home}/ä"),
    *("https://{home}/%", "https://{home}/%0", "https://{home}/<>", "https://{home}:/"),
    # by another door
    *("http://{home}/", "http://evil.example.com:{port}/", "http://[::1]:{port}/", "ws://{home}/"),
    *("wss://{home}/", "ftp://{home}/", "gopher://{home}/_x", "file:///etc/passwd"),
    *("file://{home}/etc", "dict://{home}/", "ldap://{home}/", "unix:///run/docker.sock"),
    *("http+unix://%2Frun%2Fa/", "tcp://{home}/", "data:text/plain,a", "javascript:alert(1)"),
    *("jar:https://{home}/!/", "https+http://{home}/", "view-source:https://{home}/"),
    # ports
    *("https://127.0.0.1:0{port}/", "https://127.0.0.1:+{port}/", "https://127.0.0.1: {port}/"),
    *("https://evil.example.com:{port}:443/", "https://evil.example.com:1e3/"),
    *("https://evil.example.com:٤٤٣/", "https://93.184.215.14:22/", "https://93.184.215.14:0/"),
    *("https://93.184.215.14:65536/", "https://93.184.215.14:-1/", "https://93.184.215.14:6_0/"),
    *("https://93.184.215.14:0443/", "https://93.184.215.14:1023/"),
    # places that are not loopback, and no better
    *("https://10.0.0.1/", "https://172.31.255.255/", "https://192.168.1.1/", "https://[ff02::1]/"),
    *("https://169.254.169.254/latest/meta-data/", "https://[fd00:ec2::254]/"),
    *("https://100.100.100.200/", "https://168.63.129.16/", "https://192.0.0.192/"),
    *("https://224.0.0.1/", "https://255.255.255.255/", "https://198.18.0.1/"),
    *("https://[fec0::1]/", "https://[100::1]/", "https://[3fff::1]/", "https://[5f00::1]/"),
]
HOSTILE = [
    *(f"https://{host}:{{port}}/" for host in LITERALS + NAMES),
    *(f"https://{host}/" for host in LITERALS),
    *URLS,
]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def canary() -> AsyncIterator[Listener]:
    """A server inside: it would answer, if anything got through to it."""
    async with listening(both=True) as listener:
        yield listener


def dns(*answers: Sequence[str]) -> tuple[list[str], Egress]:
    """Who was asked for, and a way out by a DNS that answers so, the last answer for ever."""
    asked: list[str] = []

    async def resolve(host: str) -> Sequence[str]:
        asked.append(host)
        return answers[min(len(asked), len(answers)) - 1]

    return asked, Egress(resolve=resolve, timeout=HANG)


@pytest.mark.parametrize("form", HOSTILE)
async def test_a_hostile_url_is_refused_and_reaches_nobody(form: str, canary: Listener) -> None:
    url = form.format(port=canary.port, home=f"127.0.0.1:{canary.port}")
    for addresses in (["127.0.0.1"], ["::1"], [PUBLIC, "127.0.0.1"]):
        _, egress = dns(addresses)
        async with egress:
            with pytest.raises(EgressRefused) as caught:
                await egress.check(url)
            assert 0 < len(str(caught.value)) < 80
            with pytest.raises(EgressRefused):
                await egress.post(url, b"{}")
    await canary.unseen()


async def test_the_canary_would_sing(canary: Listener) -> None:
    async with Egress(allow=["127.0.0.1"]) as egress:
        assert (await egress.post(f"http://127.0.0.1:{canary.port}/", b"")).body == b"ok"
    canary.visits = 0


@pytest.mark.parametrize(
    "inside", [["127.0.0.1"], ["::1"], ["::ffff:127.0.0.1"], [PUBLIC, "127.0.0.1"], ["0.0.0.0"]]
)
async def test_a_name_that_turns_inwards_after_the_check(
    inside: list[str], canary: Listener
) -> None:
    asked, egress = dns([PUBLIC], inside)
    url = f"https://evil.example.com:{canary.port}/"
    async with egress:
        await egress.check(url)
        with pytest.raises(EgressRefused, match="resolves to an address that is not public"):
            await egress.post(url, b"{}")
        assert asked == ["evil.example.com"] * 2  # each time once: what was checked is dialled
    await canary.unseen()


async def test_a_name_is_not_resolved_between_check_and_dial(canary: Listener) -> None:
    async with listening() as server:
        asked: list[str] = []

        async def resolve(host: str) -> Sequence[str]:
            asked.append(host)
            return ["127.0.0.1"] if len(asked) == 1 else ["192.0.2.1"]

        async with Egress(allow=["hook.test"], resolve=resolve) as egress:
            assert (await egress.post(f"http://hook.test:{server.port}/", b"")).status == 200
        assert len(asked) == 1


async def test_every_new_connection_asks_anew(tmp_path: Path) -> None:
    certificate = Certificate(tmp_path, "evil.example.com")
    answers = [["127.0.0.1"], ["127.0.0.1", "127.0.0.2"]]

    async def resolve(host: str) -> Sequence[str]:
        return answers.pop(0)

    data = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    async with (
        listening(data, tls=certificate.server()) as server,
        Egress(allow=["127.0.0.1"], resolve=resolve, ssl=certificate.client()) as egress,
    ):
        url = f"https://evil.example.com:{server.port}/"
        assert (await egress.post(url, b"")).status == 200
        with pytest.raises(EgressRefused):
            await egress.post(url, b"")
        assert server.visits == 1


async def test_a_connection_of_another_name_is_not_borrowed() -> None:
    """Two names, one address and port: the second is checked although a connection is open."""
    async with listening() as server:

        async def resolve(host: str) -> Sequence[str]:
            return ["127.0.0.1"]

        async with Egress(allow=["a.test"], resolve=resolve) as egress:
            await egress.post(f"http://a.test:{server.port}/", b"")
            for url in (f"https://b.example.com:{server.port}/", f"http://b.test:{server.port}/"):
                with pytest.raises(EgressRefused):
                    await egress.post(url, b"")
        assert server.visits == 1


@pytest.mark.parametrize("status", [300, 301, 302, 303, 305, 307, 308])
async def test_a_redirect_is_an_answer(status: int, canary: Listener) -> None:
    where = f"http://127.0.0.1:{canary.port}/"
    head = (
        f"HTTP/1.1 {status} Go\r\nLocation: {where}\r\nRefresh: 0;url={where}\r\nURI: {where}\r\n"
    )
    async with (
        listening(f"{head}Content-Length: 0\r\n\r\n".encode()) as server,
        Egress(allow=[f"127.0.0.1:{server.port}"], timeout=HANG) as egress,
    ):
        got = await egress.post(f"http://127.0.0.1:{server.port}/", b"")
        assert (got.status, got.headers["location"]) == (status, where)
        assert server.visits == 1
    await canary.unseen()


async def test_nothing_is_taken_from_the_environment(
    canary: Listener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "ws_proxy"):
        for spelled in (name, name.upper()):
            monkeypatch.setenv(spelled, f"http://127.0.0.1:{canary.port}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    certificate = Certificate(tmp_path, "127.0.0.1")
    for tls, scheme in ((None, "http"), (certificate.server(), "https")):
        async with (
            listening(tls=tls) as server,
            Egress(allow=[f"127.0.0.1:{server.port}"], ssl=certificate.client()) as egress,
        ):
            await egress.post(f"{scheme}://127.0.0.1:{server.port}/", b"")
            assert "authorization" not in server.requests[0][1]
    await canary.unseen()


async def test_no_cookie_is_kept() -> None:
    data = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b; Path=/\r\nContent-Length: 0\r\n\r\n"
    async with listening(data) as server, Egress(allow=["localhost"]) as egress:
        for _ in range(2):
            await egress.post(f"http://localhost:{server.port}/", b"")
        assert all("cookie" not in headers for _, headers, _ in server.requests)


# servers that do not answer properly


async def drip_head(visit: Visit) -> None:
    await visit.request()
    await visit.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        await visit.send(b"A")
        await asyncio.sleep(0.05)


async def drip_body(visit: Visit) -> None:
    await visit.request()
    await visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        await visit.send(b".")
        await asyncio.sleep(0.05)


async def only_continue(visit: Visit) -> None:
    await visit.request()
    while True:
        await visit.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await asyncio.sleep(0.05)


async def hang(visit: Visit) -> None:
    await visit.over()


async def read_nothing(visit: Visit) -> None:
    visit.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.Event().wait()


async def answer_and_read_nothing(visit: Visit) -> None:
    visit.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    "talk", [drip_head, drip_body, only_continue, hang, read_nothing, answer_and_read_nothing]
)
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_time_is_bounded_as_a_whole(talk: object, scheme: str, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path, "127.0.0.1")
    tls = certificate.server() if scheme == "https" else None
    async with (
        listening(talk, tls=tls) as server,  # type: ignore[arg-type]
        Egress(allow=["127.0.0.1"], timeout=0.5, ssl=certificate.client()) as egress,
    ):
        async with asyncio.timeout(HANG / 2):
            with pytest.raises(EgressUnreachable) as caught:
                await egress.post(f"{scheme}://127.0.0.1:{server.port}/", b"x" * (8 << 20))
        assert str(caught.value) == "no answer within 0.5 s"
        assert server.visits == 1


async def test_a_handshake_that_never_comes_is_bounded_too() -> None:
    async with (
        listening(hang) as server,
        Egress(allow=["127.0.0.1"], timeout=0.3) as egress,
    ):
        with pytest.raises(EgressUnreachable, match="no answer within"):
            await egress.post(f"https://127.0.0.1:{server.port}/", b"")


async def test_an_early_answer_to_an_unread_body_counts() -> None:
    async def talk(visit: Visit) -> None:
        visit.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await visit.send(b"HTTP/1.1 413 Large\r\nContent-Length: 0\r\n\r\n")
        await asyncio.Event().wait()

    async with (
        listening(talk) as server,
        Egress(allow=["127.0.0.1"], timeout=HANG) as egress,
    ):
        async with asyncio.timeout(HANG / 2):
            got = await egress.post(f"http://127.0.0.1:{server.port}/", b"x" * (16 << 20))
        assert got.status == 413


@pytest.mark.parametrize("chunked", [True, False])
async def test_an_endless_body_is_cut_and_its_connection_closed(chunked: bool) -> None:
    gone = asyncio.Event()

    async def talk(visit: Visit) -> None:
        await visit.request()
        head = b"Transfer-Encoding: chunked" if chunked else b"Connection: close"
        await visit.send(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
        try:
            while True:
                await visit.send(b"1000\r\n" + b"x" * 0x1000 + b"\r\n" if chunked else b"x" * 4096)
        except ConnectionError:
            gone.set()

    async with (
        listening(talk) as server,
        Egress(allow=["127.0.0.1"], max_response=1000, timeout=HANG) as egress,
    ):
        got = await egress.post(f"http://127.0.0.1:{server.port}/", b"")
        assert (got.status, got.body, got.cut) == (200, b"x" * 1000, True)
        async with asyncio.timeout(HANG):
            await gone.wait()


async def test_a_body_of_just_the_limit_is_whole() -> None:
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000
    async with (
        listening(data) as server,
        Egress(allow=["127.0.0.1"], max_response=1000) as egress,
    ):
        got = await egress.post(f"http://127.0.0.1:{server.port}/", b"")
        assert (len(got.body), got.cut) == (1000, False)


async def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(bytes(32 << 20))
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
    async with listening(head.encode() + bomb) as server, Egress(allow=["127.0.0.1"]) as egress:
        got = await egress.post(f"http://127.0.0.1:{server.port}/", b"")
        assert got.body == bomb


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the connection was lost"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "the response is not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nBad header\r\n\r\n", "the response is not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "the response is not valid HTTP"),
        (
            b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100_000 + b"\r\n\r\n",
            "the response is not valid HTTP",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "the response is not valid HTTP"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "the response is not valid HTTP",
        ),
    ],
)
async def test_a_broken_answer_is_none(data: bytes, reason: str) -> None:
    async def talk(visit: Visit) -> None:
        await visit.request()
        await visit.send(data)
        visit.writer.close()
        await visit.writer.wait_closed()

    async with listening(talk) as server, Egress(allow=["127.0.0.1"], timeout=HANG) as egress:
        with pytest.raises(EgressUnreachable) as caught:
            await egress.post(f"http://127.0.0.1:{server.port}/", b"")
        assert str(caught.value) == reason


@pytest.mark.parametrize("heard", [True, False])
async def test_a_reset_is_unreachable(heard: bool) -> None:
    async def talk(visit: Visit) -> None:
        if heard:
            await visit.request()
        visit.writer.transport.abort()

    async with listening(talk) as server, Egress(allow=["127.0.0.1"], timeout=HANG) as egress:
        with pytest.raises(EgressUnreachable):
            await egress.post(f"http://127.0.0.1:{server.port}/", b"x" * 100_000)


async def test_where_nobody_listens_is_unreachable_and_the_address_not_told() -> None:
    async with listening() as server:
        pass

    async def resolve(host: str) -> Sequence[str]:
        return ["127.0.0.1", "127.0.0.2"]

    async with Egress(allow=["hook.test"], resolve=resolve, timeout=HANG) as egress:
        with pytest.raises(EgressUnreachable) as caught:
            await egress.post(f"http://hook.test:{server.port}/", b"")
        assert str(caught.value) == "no connection: connection refused"


async def test_tls_is_verified(tmp_path: Path) -> None:
    other = Certificate(tmp_path, "other.example.com")
    for trusted in (other.client(), None):  # a wrong name; an unknown authority
        async with (
            listening(tls=other.server()) as server,
            Egress(allow=["127.0.0.1"], ssl=trusted, timeout=HANG) as egress,
        ):
            with pytest.raises(EgressUnreachable) as caught:
                await egress.post(f"https://127.0.0.1:{server.port}/", b"secret")
            assert str(caught.value) == "the certificate is not valid for the host"
            assert not server.requests


async def test_tls_with_one_who_speaks_none() -> None:
    async def talk(visit: Visit) -> None:
        await visit.send(b"220 mail.example.com ESMTP\r\n")
        await visit.over()

    async with listening(talk) as server, Egress(allow=["127.0.0.1"], timeout=HANG) as egress:
        with pytest.raises(EgressUnreachable, match="the TLS handshake failed"):
            await egress.post(f"https://127.0.0.1:{server.port}/", b"")
