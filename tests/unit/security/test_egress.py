"""The way out: what it admits, what it sends, what comes back, and what the allow list frees."""

from __future__ import annotations

import asyncio
import ipaddress
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from yarl import URL

from dragoman.security import egress as module
from dragoman.security.address_policy import DENIED, Address, EgressRefused, Target, denied
from dragoman.security.egress import Busy, Egress, EgressResponse, EgressUnreachable, Late, Lookup
from dragoman.security.fair_shares import Shares
from tests.harness.raw_server import OK, Certificate, Visit, ipv6, listening
from tests.harness.scale import examples

PUBLIC = "93.184.215.14"


def to(*addresses: str) -> module.Resolve:
    """A DNS in which every name has these addresses."""

    async def resolve(host: str) -> Sequence[str]:
        return addresses

    return resolve


HOME = to("127.0.0.1")


# what is admitted


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "query"),
    [
        ("https://example.com", "example.com", 443, "/", ""),
        ("HTTPS://EXAMPLE.com/A", "example.com", 443, "/A", ""),
        ("https://example.com:443/", "example.com", 443, "/", ""),
        ("https://example.com:8443/a?b=c", "example.com", 8443, "/a", "b=c"),
        ("https://example.com:80/", "example.com", 80, "/", ""),
        ("https://example.com?a#b", "example.com", 443, "/", "a"),
        ("https://a_b.example.com/", "a_b.example.com", 443, "/", ""),
        ("https://xn--bcher-kva.example.com/", "xn--bcher-kva.example.com", 443, "/", ""),
        ("https://1.2.3.4.example.com/", "1.2.3.4.example.com", 443, "/", ""),
        ("https://93.184.215.14/", "93.184.215.14", 443, "/", ""),
        ("https://[2606:2800:021F::0001]/", "2606:2800:21f::1", 443, "/", ""),
        ("https://a.example/a@b:c//..;%2f?x[]=@", "a.example", 443, "/a@b:c//..;%2f", "x[]=@"),
    ],
)
def test_a_proper_url_is_taken_apart(url: str, host: str, port: int, path: str, query: str) -> None:
    target = Egress().admit(url)
    assert target == Target("https", host, port, path, query, host[-1].isdigit())
    assert Egress().admit(str(target.url())) == target


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://example.com/", "the URL is not https"),
        ("ftp://example.com/", "the URL is not https"),
        ("https://u@example.com/", "credentials in the URL are not allowed"),
        ("https://example.com:25/", "port 25 is not allowed"),
        ("https://example.com:70000/", "port 70000 is not allowed"),
        ("https://example.com:0/", "the host or its port is not valid"),
        ("https://127.0.0.1/", "the address is not public (loopback)"),
        ("https://169.254.169.254/", "the address is not public (link-local)"),
        ("https://168.63.129.16/", "the address is not public (metadata)"),
        ("https://[::ffff:1.1.1.1]/", "the address is not public (translated)"),
        ("https://[4000::1]/", "the address is not public (reserved)"),
        ("https://127.1/", "the host is not a canonical IP address"),
        ("https://intranet/", "the host is a local name"),
        ("https://printer.local/", "the host is a local name"),
        ("https://ex ample.com/", "the URL has characters that must be percent-encoded"),
        ("https://example.com/%zz", "the URL has characters that must be percent-encoded"),
        ("https:/example.com/", "the URL is not of the form https://host/path"),
        (f"https://{'a.' * 125}exam/", "the host is not a valid name"),
        (f"https://example.com/{'a' * 2048}", "the URL is longer than 2048 characters"),
    ],
)
def test_a_refusal_names_the_rule(url: str, reason: str) -> None:
    with pytest.raises(EgressRefused) as caught:
        Egress().admit(url)
    assert str(caught.value) == reason


PIECES = [
    "a.example.com",
    "127.0.0.1",
    "[::1]",
    "1",
    ".",
    ":",
    "443",
    "@",
    "/",
    "?",
    "#",
    "\\",
    "%2f",
]


@settings(max_examples=examples(500), deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
    | st.from_regex(r"[a-z0-9.-]{1,30}\.[a-z]+(:[0-9]{1,5})?([/?#].*)?", fullmatch=True),
)
@example("example.com:443:80/")
@example("example.com#@127.0.0.1/")
@example("example.com/@127.0.0.1:80/")
def test_no_other_parser_sees_another_host(rest: str) -> None:
    url = f"https://{rest}"
    try:
        target = Egress(allow=["0.0.0.0/0", "::/0"]).admit(url)
    except EgressRefused:
        return
    split = urlsplit(url)
    other = URL(url)
    if target.literal:
        assert ipaddress.ip_address(target.host) == ipaddress.ip_address(split.hostname or "")
    else:
        assert target.host == split.hostname == other.raw_host
    assert target.port == (split.port or 443) == other.port
    built = target.url()
    assert (built.raw_host, built.port) == (target.host, target.port)
    assert built.user is built.password is None


# addresses


@pytest.mark.parametrize("network", [item for items in DENIED.values() for item in items])
def test_a_denied_network_is_denied_from_its_first_to_its_last_address(network: str) -> None:
    found = ipaddress.ip_network(network)
    assert denied(found[0])
    assert denied(found[-1])


@pytest.mark.parametrize(
    "address",
    [
        *("1.0.0.0", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0"),
        *("126.255.255.255", "128.0.0.0", "169.253.255.255", "169.255.0.0", "172.15.255.255"),
        *("172.32.0.0", "192.0.1.0", "192.167.255.255", "192.169.0.0", "198.17.255.255"),
        *("198.20.0.0", "223.255.255.255", "168.63.129.15", "168.63.129.17"),
        *("2001:200::", "2001:db7:ffff::", "2001:db9::", "2003::", "2606:4700::1111", "3ffe::1"),
    ],
)
def test_its_neighbours_are_not(address: str) -> None:
    assert not denied(ipaddress.ip_address(address))


@settings(max_examples=examples(500))
@given(st.ip_addresses())
def test_what_python_thinks_is_not_global_is_denied(address: Address) -> None:
    if not address.is_global or address.is_multicast:
        assert denied(address)


@pytest.mark.parametrize(
    "addresses",
    [
        *([bad] for bad in ("127.0.0.1", "10.0.0.1", "::1", "fd00::1", "::ffff:93.184.215.14")),
        *([PUBLIC, bad] for bad in ("127.0.0.1", "169.254.169.254", "64:ff9b::7f00:1")),
        ["fe80::1%lo"],
        [*[PUBLIC] * 50, "0.0.0.0"],
    ],
)
async def test_one_denied_address_is_enough(addresses: list[str]) -> None:
    url = "https://a.example.com/"
    async with Egress(resolve=to(*addresses)) as egress:
        for attempt in (egress.check(url), egress.post(url, b"")):
            with pytest.raises(EgressRefused) as caught:
                await attempt
            assert str(caught.value) == "the host resolves to an address that is not public"


async def test_public_addresses_pass_and_so_does_a_name_that_has_none_yet() -> None:
    async def down(host: str) -> Sequence[str]:
        raise OSError("no such name")

    async def hangs(host: str) -> Sequence[str]:
        return await asyncio.Event().wait() and ()

    for resolve in (to(PUBLIC, "2606:4700::1111"), to(), down):
        egress = Egress(resolve=resolve, timeout=0.1)
        await egress.check("https://a.example.com/")
        await egress.close()
    async with Egress(resolve=hangs, timeout=0.1) as egress:
        with pytest.raises(Late, match=r"the name of the host was not resolved within 0\.1 s"):
            await egress.check("https://a.example.com/")


async def test_a_name_without_an_address_is_unreachable() -> None:
    async with Egress(resolve=to()) as egress:
        with pytest.raises(EgressUnreachable, match="the host does not resolve"):
            await egress.post("https://a.example.com/", b"")


async def test_few_addresses_are_dialled_of_however_many() -> None:
    egress = Egress(resolve=to(*(f"93.184.215.{n}" for n in range(100))))
    assert len(await egress._addresses("a.example.com", 443)) == module.MAX_ADDRESSES
    await egress.close()


# the allow list


@pytest.mark.parametrize(
    ("entry", "free", "bound"),
    [
        ("localhost", ["http://localhost:9/"], ["http://a.localhost/", "http://127.0.0.1/"]),
        ("LOCALHOST:9", ["http://localhost:9/"], ["http://localhost/", "https://localhost:8000/"]),
        ("hook", ["http://hook/", "https://hook:22/"], ["http://hook.example.com/"]),
        (
            "*.in.example",
            ["http://a.b.in.example:25/"],
            ["http://in.example/", "http://bin.example/"],
        ),
        ("*.in.example:81", ["http://a.in.example:81/"], ["http://a.in.example/"]),
        (
            "127.0.0.1",
            ["http://127.0.0.1:1/"],
            ["http://127.0.0.2/", "https://[::ffff:127.0.0.1]/"],
        ),
        (
            "127.0.0.1:81",
            ["http://127.0.0.1:81/"],
            ["http://127.0.0.1/", "https://127.0.0.1:8000/"],
        ),
        ("10.0.0.0/8", ["http://10.1.2.3:22/"], ["http://11.0.0.1/", "https://192.168.0.1/"]),
        (
            "::1",
            ["http://[::1]:1/", "http://[0:0::1]/"],
            ["http://[::2]/", "https://[::127.0.0.1]/"],
        ),
        ("[::1]:81", ["http://[::1]:81/"], ["http://[::1]/"]),
        ("fd00::/8", ["http://[fd12::1]/"], ["http://[fc00::1]/"]),
        (" hook ", ["http://hook/"], ["http://127.0.0.1/"]),
    ],
)
def test_an_entry_frees_what_it_names(entry: str, free: list[str], bound: list[str]) -> None:
    egress = Egress(allow=[entry])
    for url in free:
        assert egress.admit(url)
    for url in bound:
        with pytest.raises(EgressRefused):
            egress.admit(url)


@pytest.mark.parametrize(
    "entry",
    [
        *("", " ", "*", "*.", "*.*.a", "a.*", "*a.example", "*.127.0.0.1", "*.[::1]", ".example"),
        *("http://localhost", "localhost/", "localhost:", "localhost:0", "localhost:99999", "a b"),
        *("10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/8:80", "127.1", "[127.0.0.1]", "[::1", "u@host"),
        *("bücher.example", "a,b", "localhost.", "[fe80::1%lo]"),
    ],
)
def test_a_bad_entry_is_named_at_once(entry: str) -> None:
    with pytest.raises(ValueError, match="cannot be allowed") as caught:
        Egress(allow=["localhost", entry])
    assert repr(entry) in str(caught.value)


async def test_an_allowed_name_may_lead_anywhere_and_an_allowed_network_may_be_led_to() -> None:
    url = "https://a.example.com/"
    for allow, fine in [
        (["a.example.com"], True),
        (["*.example.com:443"], True),
        (["127.0.0.0/8"], True),
        (["127.0.0.1:443"], True),
        (["127.0.0.1:444"], False),
        (["a.example.com:444"], False),
        (["10.0.0.0/8"], False),
    ]:
        egress = Egress(allow=allow, resolve=HOME)
        if fine:
            await egress.check(url)
        else:
            with pytest.raises(EgressRefused):
                await egress.check(url)
        await egress.close()
    with pytest.raises(
        EgressRefused, match="not https"
    ):  # a network does not make names of it plain
        await Egress(allow=["127.0.0.0/8"], resolve=HOME).check("http://a.example.com/")


# requests


async def test_a_request_arrives_as_it_was_given() -> None:
    async with listening() as server, Egress(allow=["hook.test"], resolve=HOME) as egress:
        url = f"http://hook.test:{server.port}/a/../b%2f%0d;c//@?x=%20+&y[]=1#gone"
        got = await egress.post(url, b"hello", headers={"Content-Type": "a/b", "X-Token": "t"})
        assert got == EgressResponse(200, {"content-length": "2"}, b"ok")
        first, headers, body = server.requests[0]
    assert first == "POST /a/../b%2f%0d;c//@?x=%20+&y[]=1 HTTP/1.1"
    assert headers == {
        "host": f"hook.test:{server.port}",
        "user-agent": "dragoman",
        "accept-encoding": "identity",
        "accept": "*/*",
        "content-type": "a/b",
        "content-length": "5",
        "x-token": "t",
    }
    assert body == b"hello"


async def test_a_literal_is_dialled_without_asking_anybody() -> None:
    async def asked(host: str) -> Sequence[str]:
        raise AssertionError(host)

    hosts = ["127.0.0.1", "[::1]"] if ipv6() else ["127.0.0.1"]
    async with (
        listening(both=True) as server,
        Egress(allow=["127.0.0.1", "::1"], resolve=asked) as egress,
    ):
        for host in hosts:
            await egress.check(f"http://{host}:{server.port}/")
            assert (await egress.request("GET", f"http://{host}:{server.port}/")).status == 200
            assert server.requests[-1][1]["host"] == f"{host}:{server.port}"


async def test_localhost_is_found_by_the_systems_own_resolver() -> None:
    async with listening(both=True) as server, Egress(allow=["localhost"]) as egress:
        assert (await egress.post(f"http://localhost:{server.port}/", b"")).body == b"ok"


async def test_a_large_body_arrives_whole() -> None:
    body = bytes(range(256)) * 16384
    async with listening() as server, Egress(allow=["127.0.0.1"]) as egress:
        await egress.post(f"http://127.0.0.1:{server.port}/", body)
        assert server.requests[0][2] == body


async def test_headers_come_back_in_lower_case_and_joined() -> None:
    raw = b"HTTP/1.1 204 No\r\nX-A: 1\r\nx-a: 2\r\nRetry-After: 7\r\nX-B: \xe4\xff\r\n\r\n"
    async with listening(raw) as server, Egress(allow=["127.0.0.1"]) as egress:
        got = await egress.post(f"http://127.0.0.1:{server.port}/", b"")
    assert got == EgressResponse(204, {"x-a": "1, 2", "retry-after": "7", "x-b": "äÿ"}, b"")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "x") for name in ("Host", "CONNECTION", "content-length", "Transfer-Encoding")),
        *((name, "x") for name in ("", "a b", "a:", "a\r\nb", "ä")),
        *(("a", value) for value in ("x\r\nHost: evil", "x\n", "\0", "\x7f", "ä", "\ud800")),
    ],
)
async def test_a_header_cannot_change_the_request(name: str, value: str) -> None:
    async with listening() as server, Egress(allow=["127.0.0.1"]) as egress:
        with pytest.raises(EgressRefused, match="header"):
            await egress.post(f"http://127.0.0.1:{server.port}/", b"", headers={name: value})
        await server.unseen()


async def test_tls_is_for_the_name_that_was_asked_for(tmp_path: Path) -> None:
    certificate = Certificate(tmp_path, "hook.example.com", "127.0.0.1")
    async with (
        listening(tls=certificate.server()) as server,
        Egress(allow=["127.0.0.0/8"], resolve=HOME, ssl=certificate.client()) as egress,
    ):
        await egress.post(f"https://hook.example.com:{server.port}/", b"")
        await egress.post(f"https://127.0.0.1:{server.port}/", b"")
        assert certificate.asked == ["hook.example.com", None]
        hosts = [headers["host"] for _, headers, _ in server.requests]
        assert hosts == [f"hook.example.com:{server.port}", f"127.0.0.1:{server.port}"]
        with pytest.raises(EgressUnreachable, match="the certificate is not valid for the host"):
            await egress.post(f"https://other.example.com:{server.port}/", b"")
        assert len(server.requests) == 2


# connections


async def test_a_connection_is_used_again_and_its_name_not_resolved_again() -> None:
    asked: list[str] = []

    async def resolve(host: str) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"]

    async with listening() as server, Egress(allow=["hook"], resolve=resolve) as egress:
        for _ in range(3):
            await egress.post(f"http://hook:{server.port}/", b"")
        assert (server.visits, len(server.requests), asked) == (1, 3, ["hook"])


async def test_only_so_many_hosts_keep_their_connections() -> None:
    async with (
        listening() as server,
        Egress(allow=["*.test"], resolve=HOME, total=2, per_host=1) as egress,
    ):
        for _ in range(2):
            for host in ("a", "b", "c", "d"):
                await egress.post(f"http://{host}.test:{server.port}/", b"")
        assert len(server.requests) == 8
        assert server.visits == 2 + 2 * 2  # one each for a and b, one each time for c and d


async def test_a_hanging_host_holds_only_its_own_places() -> None:
    release = asyncio.Event()

    async def talk(visit: Visit) -> None:
        await visit.request()
        await release.wait()
        await visit.send(OK)

    async with (
        listening(talk) as slow,
        listening() as quick,
        Egress(allow=["*.test"], resolve=HOME, per_host=2, total=6, timeout=20) as egress,
    ):
        waiting = [
            asyncio.create_task(egress.post(f"http://slow.test:{slow.port}/", b""))
            for _ in range(5)
        ]
        await slow.came(2)
        assert (await egress.post(f"http://quick.test:{quick.port}/", b"")).status == 200
        assert slow.visits == 2
        waiting.pop().cancel()
        release.set()
        assert [(await task).status for task in waiting] == [200] * 4
        assert not egress._lines


async def test_who_found_no_place_in_time_was_not_tried() -> None:
    async def talk(visit: Visit) -> None:
        await visit.over()

    async with (
        listening(talk) as slow,
        Egress(allow=["127.0.0.1"], per_host=1, timeout=30) as egress,
    ):
        url = f"http://127.0.0.1:{slow.port}/"
        first = asyncio.create_task(egress.post(url, b""))
        await slow.came(1)
        egress.timeout = 0.1
        with pytest.raises(Busy):
            await egress.post(url, b"")
        first.cancel()
        await asyncio.wait([first])
        assert slow.visits == 1
        assert not egress._lines


async def test_requests_with_a_place_take_no_other() -> None:
    async with (
        listening() as server,
        Egress(allow=["127.0.0.1"], per_host=1, total=1, timeout=20) as egress,
    ):
        url = f"http://127.0.0.1:{server.port}/"
        async with egress.place("127.0.0.1") as place:
            assert not place.waited
            assert (await egress.post(url, b"", place=place)).status == 200
            assert (await egress.post(url, b"", place=place)).status == 200
            with pytest.raises(ValueError, match=r"the place is for '127.0.0.1', not for 'x.test'"):
                await egress.post("https://x.test/", b"", place=place)
            egress.timeout = 0.1
            with pytest.raises(Busy):
                await egress.post(url, b"")
        assert (await egress.post(url, b"")).status == 200
        assert not egress._lines


async def test_after_the_end_nothing_goes_out() -> None:
    async with listening() as server:
        for egress in (Egress(allow=["127.0.0.1"]), Egress(allow=["127.0.0.1"])):
            await egress.close()
            with pytest.raises(EgressUnreachable, match="closed"):
                await egress.post(f"http://127.0.0.1:{server.port}/", b"")
        await server.unseen()


# names


async def test_a_strangers_name_is_not_looked_for_in_our_own_domain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def lookup(host: str) -> list[str]:
        asked.append(host)
        return [PUBLIC]

    monkeypatch.setattr(module, "_lookup", lookup)
    async with Egress(allow=["hook", "*.in.example"]) as egress:
        for host in ("hook", "a.in.example", "a.example.com"):
            await egress._addresses(host, 443)
        await egress.check("https://hook/")  # any address will do, so none is asked for
    assert asked == ["hook", "a.in.example", "a.example.com."]


async def test_a_hanging_name_holds_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    done = threading.Event()

    def lookup(host: str) -> list[str]:
        asked.append(host)
        if host == "slow":
            done.wait(10)
        return [PUBLIC]

    monkeypatch.setattr(module, "_lookup", lookup)
    find = Lookup()
    try:
        waiting = [asyncio.create_task(find("slow")) for _ in range(50)]
        assert await find("quick") == [PUBLIC]
        waiting.pop().cancel()
        done.set()
        assert await asyncio.gather(*waiting) == [[PUBLIC]] * 49
        assert sorted(asked) == ["quick", "slow"]
        await find("slow")
        assert asked.count("slow") == 2
    finally:
        done.set()
        find.close()


async def test_a_name_that_nobody_awaits_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    done = threading.Event()

    def lookup(host: str) -> list[str]:
        asked.append(host)
        done.wait(10)
        return [PUBLIC]

    monkeypatch.setattr(module, "_lookup", lookup)
    find = Lookup()
    try:
        names = [str(n) for n in range(100)]
        for name in names:
            with pytest.raises(Late if int(name) < module.LOOKUPS // 2 else Busy):
                await find(name, "a", 0.001)
        assert len(find._asked) == module.LOOKUPS // 2, "one owner has half of the places"
        done.set()
        assert await find("last", "b") == [PUBLIC]
        assert len(asked) <= module.LOOKUPS // 2 + 1
    finally:
        done.set()
        find.close()


async def test_hanging_names_of_one_owner_leave_look_ups_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = threading.Event()

    def lookup(host: str) -> list[str]:
        if host != "well.example.com.":
            done.wait(20)
        return [PUBLIC]

    monkeypatch.setattr(module, "_lookup", lookup)
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    async with Egress() as egress:
        try:
            urls = [f"https://h{number}.example.com/" for number in range(250)]
            asked = (egress.check(url, owner="ann") for url in urls)
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert {type(error) for error in found} == {Late, Busy}
            monkeypatch.setattr(module, "PATIENCE", 10.0)
            async with asyncio.timeout(5):
                await egress.check("https://well.example.com/", owner="ben")
        finally:
            done.set()


async def test_shares() -> None:
    shares = Shares(8)
    for _ in range(4):
        await asyncio.wait_for(shares.acquire("ann"), 1)
    assert shares.full("ann") and not shares.full("ben")
    waiting = [asyncio.create_task(shares.acquire("ann")) for _ in range(2)]
    for _ in range(2):
        await asyncio.wait_for(shares.acquire("ben"), 1)
    assert shares.full("ben") and not shares.full("eve")
    first = asyncio.create_task(shares.acquire("ben"))
    await asyncio.sleep(0)
    waiting.pop().cancel()
    shares.release("ann")
    await asyncio.sleep(0)
    assert not waiting[0].done(), "ann has her share while ben has his"
    shares.release("ben")
    await asyncio.wait_for(first, 1)
    for _ in range(3):
        shares.release("ann")
    await asyncio.wait_for(waiting[0], 1)
    for owner in ("ann", "ben", "ben"):
        shares.release(owner)
    assert not shares._waiting and not shares._running and not shares._taken


# the transport


def test_the_engine_is_loaded_by_the_first_request_only() -> None:
    code = (
        "import sys; from dragoman.security.egress import Egress;"
        "Egress(allow=['localhost']).admit('https://example.com/');"
        "assert not {'aiohttp', 'yarl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


async def test_a_missing_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    egress = Egress()
    await egress.check("https://93.184.215.14/")
    with pytest.raises(ModuleNotFoundError, match=r"`pip install 'dragoman\[push\]'`"):
        await egress.post("https://93.184.215.14/", b"")
    await egress.close()
