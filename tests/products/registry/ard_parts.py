"""Registries with entries that nobody had to serve, other registries, and their clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from dragoman import AgentCard, App, Caller
from dragoman.client import read_card
from dragoman.registry import Entry, RegistryApp
from dragoman.registry.database import Database
from dragoman.registry.entries import Audience, CardVersion, State, urn
from dragoman.security import Token
from tests.harness.server import serving

RITA = Caller(identity="rita", scopes=frozenset({"travel"}))
ANYBODY = Caller(identity="bob")
TOKENS = Token({"rita": RITA, "bob": ANYBODY})
TYPE = "application/a2a-agent-card+json"

EVERYBODY = Audience()
OWN = ("allow", "accept", "interval", "peers", "url", "sign")


def card(name: str, description: str, tags: Sequence[str], skill: str, version: str) -> AgentCard:
    """A card."""
    return read_card(
        {
            "name": name,
            "description": description,
            "version": version,
            "supportedInterfaces": [
                {"url": "https://x.example", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            ],
            "capabilities": {},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [
                {
                    "id": skill,
                    "name": skill,
                    "description": f"Does {skill}.",
                    "tags": list(tags),
                    "examples": [f"please {skill}", f"{skill} for two"],
                }
            ],
        }
    )


def entry(
    url: str,
    name: str,
    description: str = "Works.",
    *,
    tags: Sequence[str] = ("travel",),
    skill: str = "work",
    version: str = "1.0",
    state: State = "approved",
    audience: Audience = EVERYBODY,
    queries: tuple[str, ...] = (),
) -> Entry:
    """An entry of a registry."""
    made = CardVersion(card(name, description, tags, skill, version))
    return Entry(
        urn=urn(url),
        url=url,
        state=state,
        approved=made if state in ("approved", "changed") else None,
        candidate=None if state in ("approved", "changed") else made,
        audience=audience,
        queries=queries,
    )


def fill(folder: Path, *entries: Entry) -> Path:
    """A folder with the file of a registry that has these entries."""
    folder.mkdir(parents=True, exist_ok=True)
    with Database(f"sqlite:///{folder}/agents.db") as database:
        for each in entries:
            database.write(each.urn, lambda _, each=each: each, "olga", "add")
    return folder


@asynccontextmanager
async def registry(
    folder: Path, *entries: Entry, port: int = 0, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a registry with these entries, which is served."""
    fill(folder, *entries)
    own = {name: options.pop(name) for name in OWN if name in options}
    app = RegistryApp(f"sqlite:///{folder}/agents.db", **own)
    # Requests from this machine to a server without authentication are those of an operator.
    options = {"auth": TOKENS, **options}
    async with (
        serving(App(mounts={"/": app}, **options), port=port) as url,
        httpx.AsyncClient(base_url=url, headers={"authorization": "Bearer bob"}) as http,
    ):
        yield http


Answer = Callable[[str, bytes, asyncio.StreamWriter], Awaitable[None]]


class Peer:
    """Another registry, which may behave in any way."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.url = ""
        self.asked: list[Any] = []
        """The bodies of the requests."""
        self.running = 0
        self.most = 0
        """The most requests at the same time."""

    async def __aenter__(self) -> Peer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1")
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            body = await reader.readexactly(length)
            self.asked.append(json.loads(body))
            await self.answer(head.decode().split()[1], body, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.running -= 1
            writer.close()


async def respond(writer: asyncio.StreamWriter, body: bytes, status: int = 200) -> None:
    """Send a response."""
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


def finds(*results: Any) -> Answer:
    """A registry that finds this, whatever it is asked."""

    async def answer(_: str, __: bytes, writer: asyncio.StreamWriter) -> None:
        await respond(writer, json.dumps({"results": results}).encode())

    return answer


def result(url: str, name: str = "Other", **more: Any) -> dict[str, Any]:
    """A result of another registry."""
    made = {"identifier": urn(url), "displayName": name, "type": TYPE, "url": url}
    return made | {"score": 100, "source": "https://somebody.example"} | more


async def search(http: httpx.AsyncClient, text: str = "travel", **more: Any) -> dict[str, Any]:
    """Search, and return the answer."""
    body = {"query": {"text": text, **more.pop("query", {})}, **more}
    response = await http.post("/search", json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())
