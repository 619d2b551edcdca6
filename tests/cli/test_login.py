"""Credentials on the command line, by the card's schemes, against a real authorization server."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.cli.test_agent_commands import run
from tests.client.authorization_server import SECRET, presiding
from tests.client.fake_user import visit
from tests.client.protected_agent import guarded, has, http, key


async def test_a_key_and_a_password() -> None:
    async with guarded(has(x_flight="sesame")) as agent:
        agent.demand({"it": key("header", "x-flight")})
        status, _, err = await run("send", agent.url, "hi")
        words = "The agent requires an API key: --api-key KEY (header x-flight)"
        assert (status, err) == (1, f"dragoman: {words}; in Python auth=StaticToken(KEY)\n")
        status, _, err = await run("send", agent.url, "hi", "--api-key", "sesame", "--trace")
        assert (status, "sesame" in err) == (0, False), err
        assert agent.headers("x-flight")[-1] == "sesame"
    async with guarded(has(authorization="Basic YW5uOnBhc3M=")) as agent:
        agent.demand({"it": http("basic")})
        status, _, err = await run("send", agent.url, "hi", "--user", "ann:pass")
        assert status == 0, err


async def test_a_machine_logs_in_and_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with presiding() as authority, guarded(authority.identify) as agent:
        agent.demand({"it": authority.scheme("client")}, {"it": ("talk",)})
        options = ["--client-id", "robot", "--client-secret", SECRET]
        for _ in range(2):
            command = ["send", agent.url, "hi", *options, "--issuer", authority.url, "--trace"]
            status, _, err = await run(*command)
            assert (status, SECRET in err) == (0, False), err
        assert len(authority.asked) == 1
        status, _, err = await run("send", agent.url, "hi", *options)
        assert (status, "issuer" in err) == (1, True), err


async def test_a_person_logs_in_by_a_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with presiding() as authority, guarded(authority.identify) as agent:
        agent.demand({"it": authority.scheme("code")}, {"it": ("talk",)})
        options = ["--client-id", "app", "--issuer", authority.url]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dragoman", "send", agent.url, "hi", *options),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        line = (await asyncio.wait_for(process.stderr.readline(), 20)).decode()
        assert line.startswith("To log in, open ")
        page = await visit(line.split()[-1])
        assert "close this window" in page.text
        out, err = await asyncio.wait_for(process.communicate(), 20)
        assert (process.returncode, b"ann" in out) == (0, True), err
