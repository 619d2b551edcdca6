"""One request of an MCP client: who sends it, and what that client can do."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import mcp.types as mcp
from mcp.server.context import ServerRequestContext
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from dragoman import Caller
from dragoman.mcp.server.exposed_agents import ExposedAgents
from dragoman.mcp.server.questions import Question
from dragoman.prompt_safety import clean

CALLER = "dragoman.caller"
"""The key in the ASGI scope: the caller whom the App has authenticated."""
TASKS = "io.modelcontextprotocol/tasks"
"""MCP's extension for tasks."""
IDEMPOTENCY_KEY = "dragoman/idempotency-key"
"""The key in `_meta` that names a call, like the header `Idempotency-Key` over HTTP."""
PROGRESS = 500
"""The most characters of a progress message."""
PATIENCE = 45.0
"""Seconds after which a call is answered with the id of its task."""
AT_ONCE = 0.5
"""Seconds in which a task may end before a client that takes part in tasks gets it, so that it need
not wait before it asks for the result."""
LAST_WORD = 10.0
"""Seconds that the cancel of a task may take."""

Context = ServerRequestContext[Any, Any]


class ServerState:
    """What all requests to an MCP server share."""

    def __init__(self, agents: ExposedAgents, *, patience: float = PATIENCE) -> None:
        self.agents = agents
        self.patience = patience
        self.closing = asyncio.Event()
        """Set when the server ends: calls are then answered with the ids of their tasks."""
        self.process = uuid.uuid4().hex
        """The session of a connection over standard input and output."""
        self.in_flight: dict[tuple[str, mcp.RequestId], InFlight] = {}
        self._background: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something that outlives its request."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """Wait for what was begun, for a short time."""
        self.closing.set()
        if self._background:
            await asyncio.wait(list(self._background), timeout=LAST_WORD)
        for task in self._background:
            task.cancel()


class InFlight:
    """A call that is being answered, and how to cancel its task."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.cancel = cancel


class Exchange:
    """A request, and the client that has sent it."""

    def __init__(self, context: Context, state: ServerState) -> None:
        self.state = state
        self._context = context
        self._steps = 0
        self._scope: Mapping[str, Any] = getattr(context.request, "scope", None) or {}
        self._capabilities = context.session.client_capabilities or mcp.ClientCapabilities()

    @property
    def caller(self) -> Caller:
        """Who sends it; anonymous over standard input and output."""
        found = self._scope.get(CALLER)
        return found if isinstance(found, Caller) else Caller()

    @property
    def modern(self) -> bool:
        """Whether the protocol has no sessions and no requests of the server (2026-07-28)."""
        return self._context.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def takes_tasks(self) -> bool:
        """Whether the client takes part in the extension for tasks."""
        return self.modern and TASKS in (self._capabilities.extensions or {})

    @property
    def closed_by_cancel(self) -> bool:
        """Whether each request has a connection of its own, which the client closes to cancel it.
        On other connections the client cancels by a notification."""
        return self.modern and self._context.request is not None

    def can_ask(self, question: Question) -> bool:
        """Whether the client can put this question to its user."""
        known = self._capabilities.elicitation
        if known is None:
            return False
        if question.url:
            return known.url is not None
        return known.form is not None or known.url is None

    async def report(self, words: str) -> None:
        """Send progress, if the client wants any."""
        self._steps += 1
        await self._context.session.report_progress(self._steps, None, clean(words, PROGRESS))

    async def ask(self, question: Question) -> mcp.ElicitResult:
        """Ask the user of a client that speaks a protocol before 2026-07-28."""
        session, related = self._context.session, self._context.request_id
        if question.url:
            return await session.elicit_url(question.message, question.url, question.id, related)
        form = question.form
        return await session.elicit_form(form.message, form.schema, related)

    @property
    def session(self) -> str:
        """The session of the client; empty if there is none, so that its request ids mean
        nothing."""
        if self._context.request is None:
            return self.state.process
        return "" if self.modern else self._header("mcp-session-id")

    def key(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The key of the send that this call makes: the same if the call is recognised as one that
        was made before."""
        given = self._header("idempotency-key")
        meta: Mapping[str, Any] = self._context.meta or {}
        if not given and isinstance(meta.get(IDEMPOTENCY_KEY), str):
            given = meta[IDEMPOTENCY_KEY]
        if given:
            # remote agents know all callers as one
            return digest("key", self.caller.tenant, self.caller.qualified, given, name)
        if self.session and self._context.request_id is not None:
            id = self._context.request_id
            return digest("session", self.session, type(id).__name__, str(id), name, arguments)
        return uuid.uuid4().hex

    @property
    def place(self) -> tuple[str, mcp.RequestId]:
        """How a cancel names this request."""
        id = self._context.request_id
        return (self.session, "" if id is None else id)

    def _header(self, name: str) -> str:
        found = getattr(self._context.request, "headers", None) or {}
        return str(found.get(name, ""))


def digest(*parts: Any) -> str:
    """A key that is made of these values."""
    said = json.dumps(parts, sort_keys=True, default=str).encode()
    return hashlib.sha256(said).hexdigest()[:32]
