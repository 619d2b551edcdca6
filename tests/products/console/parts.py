"""Servers with a console, and people who may see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from dragoman import Agent, App, Caller, Turn
from dragoman.cli.browser_pages import AgentPage
from dragoman.console import Console
from dragoman.security import Token
from tests.harness.server import serving

ACT = {"x-dragoman-console": "1"}
TOKENS = Token(
    {
        "tom": Caller(identity="tom", tenant="blue"),
        "olga": Caller(identity="olga", tenant="blue", scopes=frozenset({"operator"})),
        "otto": Caller(identity="otto", tenant="blue", scopes=frozenset({"operator:act"})),
        "rita": Caller(identity="rita", tenant="red", scopes=frozenset({"operator"})),
        "ada": Caller(identity="ada", scopes=frozenset({"operator", "operator:all"})),
        "root": Caller(identity="root", scopes=frozenset({"operator:all"})),
    }
)


def booking(**options: Any) -> Agent:
    """An agent that does what a message says."""
    agent = Agent("Booking", description="Books flights.", version="1.0.0", **options)

    @agent.skill(tags=["travel"], examples=["Book a flight to Rome"])
    async def book(turn: Turn) -> Any:
        """Book a flight."""
        yield turn.working("Looking for seats")
        if turn.text == "ask":
            yield turn.ask("Which dates?")
            return
        if turn.text == "wait":
            await asyncio.sleep(3600)
        if turn.text == "fail":
            raise RuntimeError("no seats")
        yield turn.artifact(f"Booked: {turn.text}", name="confirmation")

    return agent


def bearer(name: str) -> dict[str, str]:
    """The header of a caller."""
    return {"authorization": f"Bearer {name}"}


class Running:
    """A served application with a console."""

    def __init__(self, app: App, console: Console, url: str, tokens: list[str]) -> None:
        self.app, self.console, self.url, self.tokens = app, console, url, tokens

    def fresh(self) -> str:
        """Let the server print a new address, and return it."""
        assert self.console.token is not None
        self.console.token.print()
        return self.address

    @property
    def address(self) -> str:
        """The address that was printed last."""
        return f"{self.url}/console/?token={self.tokens[-1]}"

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client of somebody who has opened the address of the terminal."""
        async with httpx.AsyncClient(base_url=self.url, timeout=20) as http:
            answer = await http.get(self.fresh())
            assert answer.status_code == 303, answer.text
            yield http

    async def send(self, text: str, path: str = "", **headers: str) -> dict[str, Any]:
        """Send a message to an agent, and return the task."""
        async with httpx.AsyncClient(base_url=self.url, timeout=20) as http:
            message = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}
            body = {"message": message}
            named = {"a2a-version": "1.0", **headers}
            answer = await http.post(f"{path}/message:send", json=body, headers=named)
            assert answer.status_code == 200, answer.text
            task: dict[str, Any] = answer.json()["task"]
            return task


@asynccontextmanager
async def consoled(
    app: App, *, terminal: bool = True, open: bool = False, port: int = 0
) -> AsyncIterator[Running]:
    """Serve an application with a console."""
    tokens: list[str] = []
    console = Console(open=open, tell=tokens.append if terminal else None)
    app.answer_first(AgentPage())
    app.answer_first(console, close=console.close)
    async with serving(app, port=port) as url:
        if console.token is not None:
            console.token.print()
        yield Running(app, console, url, tokens)


def stored(path: Path) -> str:
    """The URL of a store in a file."""
    return f"sqlite:///{path / 'tasks.db'}"
