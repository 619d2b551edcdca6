"""Writes to a task that its handler has handed over."""

from __future__ import annotations

from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Struct

from dragoman.client.limits import DEFAULT
from dragoman.client.retry_pauses import PASSING, Pauses
from dragoman.client.transport import (
    ASGITransport,
    HTTPTransport,
    Transport,
    TransportRequest,
    read_all,
)
from dragoman.model import clock, to_parts
from dragoman.model.errors import InvalidAgentResponse, restored
from dragoman.model.handover import Handover
from dragoman.model.types import Artifact, Metadata, TaskState
from dragoman.security.client_network import loopback

ATTEMPTS = 8


class HandedOverTask:
    """A task that was handed over: `async with dragoman.resume(handover) as task: …`. Each method
    writes one event, and returns when it is durable. A write is repeated if the network fails, and
    done once. After the end, writes raise HandoverEnded."""

    def __init__(self, handover: Handover, transport: Transport) -> None:
        self._handover = handover
        self._transport = transport
        self._pieces: dict[str, str] = {}
        self._state = TaskState.WORKING

    @property
    def state(self) -> TaskState:
        """The task's state when it was last read or written."""
        return self._state

    @property
    def ended(self) -> bool:
        """Whether nothing more can be written."""
        return self._state.settled

    async def __aenter__(self) -> HandedOverTask:
        await self.refresh()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._transport.close()

    def __repr__(self) -> str:
        return f"HandedOverTask(url={self._handover.url!r}, state={self._state.name})"

    async def refresh(self) -> TaskState:
        """Read the task's state: it may have been canceled. Raises TaskNotFound if the secret is
        wrong."""
        return await self._send("GET")

    async def working(self, content: Any = None, *, metadata: Metadata | None = None) -> None:
        """Report progress."""
        await self._status(TaskState.WORKING, content, metadata)

    async def ask(self, content: Any, *, metadata: Metadata | None = None) -> None:
        """Ask the client. That ends the handover: the answer starts the handler's next turn."""
        await self._status(TaskState.INPUT_REQUIRED, content, metadata)

    async def complete(self, content: Any = None, *, metadata: Metadata | None = None) -> None:
        """Complete the task. If messages wait, the handler's next turn begins instead."""
        await self._status(TaskState.COMPLETED, content, metadata)

    async def fail(self, content: Any = None, *, metadata: Metadata | None = None) -> None:
        """Fail the task."""
        await self._status(TaskState.FAILED, content, metadata)

    async def reject(self, content: Any = None, *, metadata: Metadata | None = None) -> None:
        """Reject the task."""
        await self._status(TaskState.REJECTED, content, metadata)

    async def artifact(
        self,
        value: Any,
        *,
        name: str = "",
        description: str = "",
        id: str = "",
        metadata: Metadata | None = None,
    ) -> None:
        """Add a complete artifact."""
        artifact = Artifact(
            artifact_id=id or clock.uuid7(),
            name=name,
            description=description,
            parts=to_parts.parts(value),
            metadata=metadata,
        )
        update = {"artifact": artifact, "lastChunk": True}
        await self._send("POST", {"artifactUpdate": update})

    async def write(self, value: Any, *, name: str = "", last: bool = False) -> None:
        """Add the next chunk of a streamed artifact. Each name is a separate artifact."""
        known = self._pieces.get(name)
        id = known or clock.uuid7()
        artifact = Artifact(artifact_id=id, name="" if known else name, parts=to_parts.parts(value))
        update = {"artifact": artifact, "append": known is not None, "lastChunk": last}
        await self._send("POST", {"artifactUpdate": update})
        self._pieces[name] = id

    async def _status(self, state: TaskState, content: Any, metadata: Metadata | None) -> None:
        status: dict[str, Any] = {"state": state}
        if content is not None:
            status["message"] = {"parts": to_parts.parts(content)}
        update = {"status": status, **({"metadata": metadata} if metadata else {})}
        await self._send("POST", {"statusUpdate": update})

    async def _send(self, method: str, event: Any = UNSET) -> TaskState:
        headers = {
            "authorization": f"Bearer {self._handover.secret}",
            "content-type": "application/json",
            "idempotency-key": clock.uuid7(),
        }
        body = b"" if event is UNSET else msgspec.json.encode(event)
        request = TransportRequest(method, self._handover.url, headers, body)
        pauses = Pauses(ATTEMPTS)
        while True:
            try:
                self._state = await self._once(request)
                return self._state
            except PASSING as error:
                await pauses.after(error)

    async def _once(self, request: TransportRequest) -> TaskState:
        response = await self._transport.send(request)
        body = await read_all(response, DEFAULT.answer)
        try:
            if response.status == 200:
                return msgspec.json.decode(body, type=_Answer).state
            error = msgspec.json.decode(body)["error"]
            words, details = str(error["message"]), error.get("details", ())
        except (msgspec.MsgspecError, LookupError, TypeError):
            if response.status == 200:
                raise InvalidAgentResponse("the response to a handover is not valid") from None
            words, details = f"HTTP {response.status}", ()
        raise restored(words, details, http=response.status, headers=response.headers)


class _Answer(Struct, frozen=True):
    """What the server says of the task."""

    state: TaskState


def resume(
    handover: Handover | str,
    *,
    app: Any = None,
    transport: Transport | None = None,
    insecure: bool = False,
) -> HandedOverTask:
    """See `dragoman.resume`."""
    if isinstance(handover, str):
        handover = Handover.parse(handover)
    if app is not None:
        return HandedOverTask(handover, ASGITransport(app))
    url = urlsplit(handover.url)
    if url.scheme != "https" and not insecure and not loopback(url.hostname or ""):
        raise ValueError(
            "resume: the secret would be sent over plain HTTP; use an https:// address as the "
            "server's url, or say insecure=True"
        )
    return HandedOverTask(handover, transport or HTTPTransport())
