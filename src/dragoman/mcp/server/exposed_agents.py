"""The agents behind an MCP server: those of an App, or remote ones at their URLs."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from dragoman import A2AError, AgentCard, App, Caller, Task
from dragoman.client import PAUSE_EXTENSIONS, AnswerRefused, Client, Unverified
from dragoman.mcp.server.task_ids import RemoteIds

logger = logging.getLogger("dragoman.mcp")

INSIDE = "http://inside"
"""The address of the App for clients in its own process."""
FRESH = 5.0
"""Seconds for which the card of a remote agent is used without another look."""
PATIENCE = 10.0
"""Seconds in which a remote agent must give its card."""
FAILURES = (A2AError, AnswerRefused, OSError, TimeoutError, Unverified, ValueError)
"""What calls of an agent raise."""


class ExposedAgent(Struct, frozen=True):
    """An agent as one caller sees it."""

    key: str
    card: AgentCard
    own: bool
    """Whether the operator of this server wrote the card."""
    connect: Callable[[], AbstractAsyncContextManager[Client]]
    """Opens a client whose calls are made for the caller."""
    name_task: Callable[[str], str]
    """Makes the id that MCP clients see of the id of a task."""
    retention: float | None = None
    """Seconds for which ended tasks are kept; None if they are kept for ever, or if it is not
    known."""


class FoundTask(Struct, frozen=True):
    """A task, and the agent that has it."""

    agent: ExposedAgent
    task: Task


class ExposedAgents(Protocol):
    """Which agents a server shows to a caller."""

    async def visible(self, caller: Caller) -> Sequence[ExposedAgent]:
        """Return the agents, with their cards as they are now. Raises ConnectionError if there is
        none that can be reached."""

    async def find(self, id: str, caller: Caller) -> FoundTask | None:
        """Return the task with this id for MCP clients; None if the caller has none."""

    async def changed(self) -> bool:
        """Fetch the cards again, and return whether one of them has changed since the last time
        that this was asked, or since they were first shown."""


# ---- agents of an App ------------------------------------------------------------------------


class OwnAgents:
    """The agents of an App, or one of them, called in its process as the caller."""

    def __init__(self, app: App, only: str = "") -> None:
        self._app = app
        self._keys = [only] if only else list(app.agents)

    async def visible(self, caller: Caller) -> Sequence[ExposedAgent]:
        """See `ExposedAgents.visible`."""
        return [await self._agent(key, caller) for key in self._keys]

    async def find(self, id: str, caller: Caller) -> FoundTask | None:
        """See `ExposedAgents.find`."""
        for key in self._keys:
            async with self._connect(key, caller) as client:
                with suppress(A2AError):  # not found: another agent may have it
                    task = await client.task(id).get()
                    return FoundTask(await self._agent(key, caller, client), task)
        return None

    async def changed(self) -> bool:
        """See `ExposedAgents.changed`. The agents of a process do not change."""
        return False

    async def _agent(self, key: str, caller: Caller, client: Client | None = None) -> ExposedAgent:
        async with AsyncExitStack() as stack:
            if client is None:
                client = await stack.enter_async_context(self._connect(key, caller))
            card = client.card
            if card.capabilities.extended_agent_card:
                with suppress(A2AError):  # only some callers may see it
                    card = await client.extended_card()
        return ExposedAgent(
            key=key,
            card=card,
            own=True,
            connect=lambda: self._connect(key, caller),
            name_task=lambda id: id,
            retention=self._app.settings.retention,
        )

    def _connect(self, key: str, caller: Caller) -> Client:
        several = len(self._app.agents) > 1
        where = f"{INSIDE}/{key}" if several else INSIDE
        # no network is in between, so another attempt would get the same answer
        app = self._app.for_caller(caller)
        return Client.connect(where, app=app, attempts=1, extensions=PAUSE_EXTENSIONS)


# ---- remote agents ---------------------------------------------------------------------------


class RemoteAgents:
    """Agents at URLs. `connect` makes a client for a URL, with the credentials for it: callers are
    not passed on."""

    def __init__(
        self, urls: Sequence[str], connect: Callable[[str], Client], ids: RemoteIds
    ) -> None:
        self._ids = ids
        self._agents: Mapping[str, _RemoteAgent] = {
            key: _RemoteAgent(url, connect) for key, url in _keys(urls).items()
        }
        self._shown: list[AgentCard | None] = []
        """The cards of which the clients know."""

    async def visible(self, caller: Caller) -> Sequence[ExposedAgent]:
        """See `ExposedAgents.visible`."""
        await asyncio.gather(*(each.refresh(FRESH) for each in self._agents.values()))
        self._shown = self._shown or self._cards
        found = [
            self._exposed(key, each, caller)
            for key, each in self._agents.items()
            if each.card is not None
        ]
        if not found:
            why = "; ".join(f"{each.url}: {each.failure}" for each in self._agents.values())
            raise ConnectionError(f"no agent can be reached: {why}")
        return found

    async def find(self, id: str, caller: Caller) -> FoundTask | None:
        """See `ExposedAgents.find`."""
        said = self._ids.read(id, caller)
        remote = self._agents.get(said.agent) if said is not None else None
        if said is None or remote is None:
            return None
        await remote.refresh(FRESH)
        if remote.card is None:
            raise ConnectionError(f"{remote.url}: {remote.failure}")
        agent = self._exposed(said.agent, remote, caller)
        async with remote.open() as client:
            return FoundTask(agent, await client.task(said.task).get())

    async def changed(self) -> bool:
        """See `ExposedAgents.changed`."""
        await asyncio.gather(*(each.refresh(0) for each in self._agents.values()))
        before, self._shown = self._shown, self._cards
        return bool(before) and before != self._shown

    @property
    def _cards(self) -> list[AgentCard | None]:
        return [each.card for each in self._agents.values()]

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(each.close() for each in self._agents.values()))

    def _exposed(self, key: str, remote: _RemoteAgent, caller: Caller) -> ExposedAgent:
        assert remote.card is not None
        return ExposedAgent(
            key=key,
            card=remote.card,
            own=False,
            connect=remote.open,
            name_task=lambda task: self._ids.write(key, task, caller),
        )


class _RemoteAgent:
    """The client of a remote agent. When its card changes, a new client takes its place."""

    def __init__(self, url: str, connect: Callable[[str], Client]) -> None:
        self.url = url
        self.card: AgentCard | None = None
        self.failure = "not tried yet"
        self._connect = connect
        self._current: _SharedClient | None = None
        self._looked = 0.0
        self._lock = asyncio.Lock()

    async def refresh(self, age: float) -> None:
        """Fetch the card, unless that was done within `age` seconds. If it cannot be fetched, the
        last one stays."""
        async with self._lock:
            if time.monotonic() - self._looked < age:
                return
            try:
                async with asyncio.timeout(PATIENCE):
                    client = await self._connect(self.url).open()
            except FAILURES as error:
                failure = str(error) or type(error).__name__
                if failure != self.failure:
                    logger.warning("%s: the card cannot be fetched: %s", self.url, failure)
                self.failure = failure
            else:
                await self._use(client)
            self._looked = time.monotonic()

    async def _use(self, client: Client) -> None:
        self.failure = ""
        if self._current is not None and client.card == self.card:
            await client.close()
            return
        old, self._current = self._current, _SharedClient(client)
        self.card = client.card
        if old is not None:
            await old.retire()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Client]:
        """The client, which stays open in this block."""
        if self._current is None:
            raise ConnectionError(f"{self.url}: {self.failure}")
        async with self._current as client:
            yield client

    async def close(self) -> None:
        """Close the connections."""
        if self._current is not None:
            await self._current.retire()


class _SharedClient:
    """A client that is closed when it was replaced and nobody uses it any more."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._users = 0
        self._retired = False

    async def __aenter__(self) -> Client:
        self._users += 1
        return self._client

    async def __aexit__(self, *_: object) -> None:
        self._users -= 1
        if self._retired and not self._users:
            await self._client.close()

    async def retire(self) -> None:
        """Close it as soon as nobody uses it."""
        self._retired = True
        if not self._users:
            await self._client.close()


def _keys(urls: Sequence[str]) -> dict[str, str]:
    """The URLs by the keys of their agents: host, port and path, which do not change."""
    found: dict[str, str] = {}
    for url in dict.fromkeys(urls):
        parts = urlsplit(url if "://" in url else f"https://{url}")
        slug = re.sub(r"[^a-z0-9]+", "-", f"{parts.netloc}{parts.path}".lower()).strip("-")
        key, number = slug or "agent", 2
        while key in found:
            key, number = f"{slug}-{number}", number + 1
        found[key] = url
    return found
