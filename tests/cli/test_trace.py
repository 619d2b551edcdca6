"""`--trace`: what it shows of the wire, and that no secret is in it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.byte_trace import ByteTrace
from dragoman.dialects import v1_0
from dragoman.model.types import TaskState
from tests.cli.test_agent_commands import run
from tests.client.authorization_server import SECRET, presiding
from tests.client.protected_agent import guarded, has, key
from tests.client.scripted_agent import begun, telling
from tests.harness.raw_server import Visit, listening

LONG = "s3same-0penSesame"


async def test_a_header_of_any_name_is_masked_and_so_is_its_echo() -> None:
    async with guarded(has(x_flight=LONG)) as agent:
        agent.demand({"it": key("header", "x-flight")})
        status, _, err = await run(
            "send",
            agent.url,
            f"say {LONG}",
            "-H",
            f"X-Flight: {LONG}",
            "-H",
            "X-Other: fivefive5",
            "--trace",
        )
    assert status == 0, err
    assert LONG not in err
    assert "fivefive5" not in err
    assert "> x-flight: ***" in err
    assert "> content-type: application/json" in err


async def test_a_token_that_was_obtained_is_masked_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with presiding() as authority, guarded(authority.identify) as agent:
        agent.demand({"it": authority.scheme("client")}, {"it": ("talk",)})
        options = ["--client-id", "robot", "--client-secret", SECRET, "--issuer", authority.url]
        status, _, err = await run("send", agent.url, "hi", *options, "--trace")
        assert status == 0, err
        (token,) = authority.tokens
        assert token.access not in err
        assert SECRET not in err
        assert '"access_token": ***' in err.replace('"***"', "***").replace('":***', '": ***')


async def test_what_is_sent_over_grpc(tmp_path: Path) -> None:
    def events() -> Iterator[Any]:
        yield begun(state=TaskState.COMPLETED)

    async with telling("GRPC", events) as stranger:
        (tmp_path / "card.json").write_bytes(v1_0.encode(stranger.card))
        options = ["--stream", "-H", f"X-Flight: {LONG}", "--trace"]
        status, _, err = await run("send", f"{tmp_path}/card.json", "hi", *options)
    assert status == 0, err
    assert "> gRPC /" in err
    assert "> x-flight: ***" in err
    assert LONG not in err


async def test_an_answer_that_comes_in_pieces() -> None:
    """A header, or a token, that is cut in two."""
    body = b'{"access_token": "%b"}' % LONG.encode()
    text = b"HTTP/1.1 404 Not Found\r\nSet-Cookie: a=%b; Path=/\r\nContent-Length: %d\r\n\r\n%b" % (
        LONG.encode(),
        len(body),
        body,
    )

    async def talk(visit: Visit) -> None:
        while True:
            await visit.request()
            for start in range(0, len(text), 7):
                await visit.send(text[start : start + 7])
                await asyncio.sleep(0.002)

    async with listening(talk) as listener:
        status, _, err = await run("card", f"http://127.0.0.1:{listener.port}", "--trace")
    assert status != 0
    assert "< HTTP/1.1 404 Not Found\n< Set-Cookie: ***\n" in err
    pieces = {LONG[start : start + 7] for start in range(len(LONG) - 6)}
    assert not [piece for piece in pieces if piece in err]


def test_what_is_shown_of_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    trace = ByteTrace(["x1"])
    basic = base64.b64encode(f"ann:{LONG}".encode()).decode()
    trace(
        True,
        f"GET /tasks?pageSize=5&corp_id=abc%2Fdef123&status=1 HTTP/1.1\r\nHost: a\r\n"
        f"Authorization: Basic {basic}\r\nCookie: a=first-cookie; b=second-cookie\r\n"
        "A2A-Version: 1.0\r\n\r\n".encode(),
    )
    trace(False, b"HTTP/1.1 302 Found\r\nlocation: https://b/?code=1234567890&x=y\r\n\r\n")
    trace(False, f"{LONG} abc/def123 second-cookie first-cookie x1 1234567890".encode())
    trace(True, b"grant_type=refresh_token&refresh_token=A%2BBCDEFG")
    trace(False, b"A+BCDEFG A%2BBCDEFG")
    assert capsys.readouterr().err.splitlines() == [
        "> GET /tasks?pageSize=5&corp_id=***&status=1 HTTP/1.1",
        "> Host: a",
        "> Authorization: ***",
        "> Cookie: ***",
        "> A2A-Version: 1.0",
        ">",
        "< HTTP/1.1 302 Found",
        "< location: https://b/?code=***&x=***",
        "<",
        "< *** *** *** *** *** ***",
        "> grant_type=refresh_token&refresh_token=***",
        "< *** ***",
    ]
