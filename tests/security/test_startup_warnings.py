"""What is said at the start of who can get in, and of what can be read on the way."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman import App, Caller
from dragoman.security import Anonymous, ApiKey
from tests.contract.bindings.test_card import small
from tests.harness.raw_server import Certificate
from tests.harness.server import served, serving

Lines = list[tuple[str, str]]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Any:
    """What has been logged: levels and texts."""
    caplog.set_level(logging.INFO, "dragoman")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


def keys() -> ApiKey:
    return ApiKey(header="x-key", keys={"k3y": Caller(identity="ann")})


async def lines(said: Any, **given: Any) -> Lines:
    """What `dragoman serve` says with these settings."""
    async with served(App(small(), drain_timeout=0.1, **given)):
        found: Lines = said()
    return found


def loud(found: Lines) -> list[str]:
    return [text for level, text in found if level == "WARNING"]


def anonymous(found: Lines) -> list[str]:
    return [text for level, text in found if level == "INFO" and "callers are anonymous" in text]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "agents.example"])
async def test_anybody_can_get_in(said: Any, host: str) -> None:
    (warning,) = loud(await lines(said, host=host, push=True))
    assert warning.startswith("NO AUTHENTICATION: anyone who can connect to http://")
    assert host in warning
    for words in ("run these agents", "read every task", "cancel", "webhooks", "[[auth]]"):
        assert words in warning
    assert len(anonymous(said())) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
async def test_nobody_else_can(said: Any, host: str) -> None:
    found = await lines(said, host=host)
    assert loud(found) == []
    (word,) = anonymous(found)
    assert "no auth is set" in word


async def test_anybody_shall(said: Any) -> None:
    found = await lines(said, host="0.0.0.0", auth=Anonymous())
    assert loud(found) == []
    (word,) = anonymous(found)
    assert "Anonymous() is set" in word
    assert "each caller can read every task" in word
    assert "what handlers save for contexts" in word


@pytest.mark.clause("tls.required")
@pytest.mark.parametrize("how", ["auth", "identify", "both"])
async def test_secrets_in_the_clear(said: Any, how: str) -> None:
    given = {
        "auth": {"auth": keys()},
        "identify": {"identify": lambda request: Caller(identity="ann")},
        "both": {"auth": [keys(), Anonymous()]},
    }[how]
    (warning,) = loud(await lines(said, host="0.0.0.0", **given))
    assert warning.startswith("NO TLS: clients send credentials to http://0.0.0.0:")
    assert "cert and key" in warning
    assert bool(anonymous(said())) is (how == "both")


async def test_secrets_that_are_not(said: Any, tmp_path: Path) -> None:
    file = str(Certificate(tmp_path, "127.0.0.1").file)
    for given in (
        {"host": "0.0.0.0", "url": "https://agents.example"},
        {"host": "0.0.0.0", "cert": file},
        {"host": "127.0.0.1"},
    ):
        assert loud(await lines(said, auth=keys(), **given)) == []
    assert any("https://0.0.0.0:" in text for _, text in said())
    assert anonymous(said()) == []


async def test_under_another_server_it_is_said_once(said: Any) -> None:
    app = App(small(), drain_timeout=0.1)
    for _ in range(2):
        async with serving(app):
            pass
    assert len(anonymous(said())) == 1
    assert loud(said()) == []
    async with App(small(), drain_timeout=0.1, auth=keys()):
        pass
    assert len(anonymous(said())) == 1


async def test_nested_json_can_crash_the_process(said: Any) -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        (warning,) = [text for text in loud(await lines(said)) if "recursion" in text]
    finally:
        sys.setrecursionlimit(before)
    assert warning.startswith("the recursion limit of this process is 100000: deeply nested JSON")
    assert "sys.setrecursionlimit(1000)" in warning


async def test_an_ordinary_recursion_limit(said: Any) -> None:
    assert "recursion" not in str(await lines(said))
