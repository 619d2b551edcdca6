"""Who logs in, the person whom the client sends to a browser, and the time that passes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from dragoman.client import LoginPrompt, OAuth, oauth
from tests.client.authorization_server import SECRET, Authority
from tests.harness.trust import NOBODY


def robot(authority: Authority, **options: Any) -> OAuth:
    """A machine with a secret."""
    return OAuth("robot", SECRET, issuer=authority.url, **options)


def app(authority: Authority, tell: Any, **options: Any) -> OAuth:
    """A program of a person's, without one."""
    return OAuth("app", issuer=authority.url, tell=tell, **options)


def fields(url: str) -> dict[str, str]:
    """The query of a URL."""
    return {name: value for name, (value,) in parse_qs(urlsplit(url).query).items()}


async def visit(url: str) -> httpx.Response:
    """Open a URL in a browser, and go wherever that leads."""
    async with httpx.AsyncClient(follow_redirects=True, timeout=10, verify=NOBODY) as browser:
        return await browser.get(url)


class Person:
    """Goes where they are invited to, at once."""

    def __init__(self) -> None:
        self.invitations: list[LoginPrompt] = []
        self.pages: list[httpx.Response] = []

    async def __call__(self, invitation: LoginPrompt) -> None:
        self.invitations.append(invitation)
        self.pages.append(await visit(invitation.url))


class Watched:
    """The codes of devices, as they are shown to a person."""

    def __init__(self) -> None:
        self.invitations: asyncio.Queue[LoginPrompt] = asyncio.Queue()

    def __call__(self, invitation: LoginPrompt) -> None:
        self.invitations.put_nowait(invitation)


class Clock:
    """The time of client and authority alike: it stands until somebody sleeps or moves it on."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.sleeps: list[float] = []

    def time(self) -> float:
        return 1_800_000_000 + self.authority.now

    def forward(self, seconds: float) -> None:
        self.authority.now += seconds

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.forward(seconds)
        await asyncio.sleep(0)

    def rule(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of the real one in the client's OAuth."""
        times = SimpleNamespace(time=self.time, monotonic=self.time)
        monkeypatch.setattr(oauth, "time", times)
        monkeypatch.setattr(
            oauth, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": self.sleep})
        )
