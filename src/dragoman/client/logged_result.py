"""Results of sends and cards as a turn keeps them, so that it need not ask again when it is run
again from its beginning."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.client.approved_card import AgentReference, ApprovedAgent
from dragoman.client.deadline import DeadlineExceeded
from dragoman.client.delegation import Steps
from dragoman.client.result import Result
from dragoman.client.transport import Unreachable
from dragoman.client.upload import File
from dragoman.model.errors import A2AError, restored
from dragoman.model.types import AgentCard, Message, Task

ERRORS = (A2AError, Unreachable, TimeoutError)
"""Errors that are results: the handler may catch them, and must get the same ones again."""
LONGEST = 2000
"""The most characters of an error's text."""
SHORT = 16
"""The digits of a digest in the name of a step."""


class LoggedError(Struct, frozen=True, omit_defaults=True):
    """An error of a send."""

    kind: str
    text: str
    details: list[Any] = []
    rpc: int = 0
    http: int = 0
    task: str = ""

    @classmethod
    def of(cls, error: BaseException) -> LoggedError:
        """One of `ERRORS`, as it is kept."""
        if isinstance(error, A2AError):
            text, details = error.message[:LONGEST], error.details()
            return cls("A2AError", text, details, rpc=error.rpc, http=error.http)
        kind = "TimeoutError" if isinstance(error, TimeoutError) else "Unreachable"
        return cls(kind, str(error)[:LONGEST], task=getattr(error, "task", ""))

    def error(self) -> Exception:
        """The error again."""
        if self.kind == "A2AError":
            return restored(self.text, self.details, rpc=self.rpc, http=self.http)
        if self.kind == "TimeoutError":
            return DeadlineExceeded(self.text, task=self.task)
        return Unreachable(self.text)


class LoggedResult(Struct, frozen=True, omit_defaults=True):
    """The result of a send."""

    task: Task | None = None
    message: Message | None = None
    progress: tuple[str, ...] = ()
    id: str = ""
    """The id of a task that is too large to be kept: it is fetched again."""
    again: bool = False
    """The message is too large to be kept: it is asked for again, with the same key."""
    error: LoggedError | None = None

    @classmethod
    def of(cls, result: Result, largest: int) -> bytes:
        """A result as JSON, of a limited size."""
        kept = cls(result.task, result.message, tuple(sorted(result.progress)))
        data = msgspec.json.encode(kept)
        if len(data) > largest:
            small = cls(id=result.task.id) if result.task is not None else cls(again=True)
            data = msgspec.json.encode(small)
        return data


_kept = msgspec.json.Decoder(LoggedResult).decode


async def once(
    steps: Steps,
    what: str,
    name: str,
    send: Callable[[], Awaitable[Result]],
    *,
    again: Callable[[], Awaitable[Result]],
    fetch: Callable[[str], Awaitable[Task]],
) -> Result:
    """The result of a send that is a step: what it brought before, if it was done before."""
    live: list[Result | BaseException] = []

    async def call() -> bytes:
        try:
            found = await send()
        except ERRORS as error:
            live.append(error)
            return msgspec.json.encode(LoggedResult(error=LoggedError.of(error)))
        live.append(found)
        return LoggedResult.of(found, steps.largest)

    kept = _kept(await steps.once(f"dragoman.{what} {name[:SHORT]}", call))
    for found in live:
        if isinstance(found, BaseException):
            raise found
        return found
    if kept.error is not None:
        raise kept.error.error()
    if kept.again:
        return await again()
    if kept.id:
        return Result(await fetch(kept.id))
    return Result(kept.task, kept.message, frozenset(kept.progress))


class LoggedCard(Struct, frozen=True, omit_defaults=True):
    """The card of an agent, or why there was none."""

    card: AgentCard | None = None
    same: str = ""
    """The digest of a card that was kept before."""
    error: LoggedError | None = None


_logged_card = msgspec.json.Decoder(LoggedCard).decode


async def known_card(
    steps: Steps, where: str, fetch: Callable[[], Awaitable[AgentCard]]
) -> tuple[AgentCard, bool]:
    """The card of an agent, and whether it is one that was fetched in an earlier run."""
    live: list[AgentCard | BaseException] = []

    async def call() -> bytes:
        try:
            card = await fetch()
        except ERRORS as error:
            live.append(error)
            return msgspec.json.encode(LoggedCard(error=LoggedError.of(error)))
        live.append(card)
        return _card(card, steps)

    name = digest(where.encode())[:SHORT]
    kept = _logged_card(await steps.once(f"dragoman.card {name}", call))
    for found in live:
        if isinstance(found, BaseException):
            raise found
        return found, False
    if kept.error is not None:
        raise kept.error.error()
    if kept.card is not None:
        data = msgspec.json.encode(kept.card)
        steps.cards[digest(data)] = data
        return kept.card, True
    if kept.same in steps.cards:
        return msgspec.json.decode(steps.cards[kept.same], type=AgentCard), True
    return await fetch(), False


class LoggedAgent(Struct, frozen=True, omit_defaults=True):
    """What a reference has named, or why it has named nothing."""

    agent: ApprovedAgent | None = None
    error: LoggedError | None = None


_logged_agent = msgspec.json.Decoder(LoggedAgent).decode


async def known_agent(steps: Steps, reference: AgentReference) -> ApprovedAgent:
    """What a reference names, or has named in an earlier run."""
    live: list[ApprovedAgent | BaseException] = []

    async def call() -> bytes:
        try:
            found = await reference.resolve()
        except ERRORS as error:
            live.append(error)
            return msgspec.json.encode(LoggedAgent(error=LoggedError.of(error)))
        live.append(found)
        kept = msgspec.json.encode(LoggedAgent(found))
        return kept if len(kept) <= steps.largest else b"{}"

    name = digest(repr(reference).encode())[:SHORT]
    kept = _logged_agent(await steps.once(f"dragoman.agent {name}", call))
    for found in live:
        if isinstance(found, BaseException):
            raise found
        return found
    if kept.error is not None:
        raise kept.error.error()
    return kept.agent or await reference.resolve()


def _card(card: AgentCard, steps: Steps) -> bytes:
    data = msgspec.json.encode(card)
    known = digest(data)
    if known in steps.cards:
        return msgspec.json.encode(LoggedCard(same=known))
    kept = msgspec.json.encode(LoggedCard(card=card))
    try:
        _logged_card(kept)
    except msgspec.ValidationError:  # it lacks a field; the client has read it with more patience
        kept = b"{}"
    if len(kept) > steps.largest:
        kept = b"{}"
    if kept != b"{}":
        steps.cards[known] = data
    return kept


def content_of(where: str, message: Message, files: Mapping[str, File]) -> bytes:
    """What identifies a send: its recipient, and its message without the parts that may differ each
    time. A file counts by its name."""
    parts = message.parts
    if files:
        signs = {file.part().raw for file in files.values()}
        parts = tuple(replace(part, raw=b"") if part.raw in signs else part for part in parts)
    said = replace(message, message_id="", parts=parts)
    return where.encode() + b"\n" + msgspec.json.encode(said)


def digest(content: bytes) -> str:
    """The SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
