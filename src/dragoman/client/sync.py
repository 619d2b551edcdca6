"""The client for synchronous code: the same calls, run by an event loop in a background thread.

from dragoman.client.sync import Client

with Client.connect("https://agent.example") as agent:
    print(agent.send("Lisbon please").text)
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload

from msgspec import UNSET

from dragoman import client as awaited
from dragoman.client import (
    AgentReference,
    CallOptions,
    Options,
    RemoteSkill,
    Result,
    SendOptions,
    Transport,
)
from dragoman.client.fold import Event
from dragoman.model.types import AgentCard, AgentInterface, Task

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U", covariant=True)

__all__ = ("Client", "Stream", "SyncTaskHandle")


class Loop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="dragoman-sync", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it and wait. An interrupt of the caller, such as Ctrl-C, cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "a blocking call on the event loop would wait forever; await the async method "
                "instead"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


_lock = threading.Lock()
_shared: Loop | None = None


def shared() -> Loop:
    """The event loop that all clients of this process share."""
    global _shared
    with _lock:  # one only: a connection belongs to one loop
        if _shared is None:
            _shared = Loop()
        return _shared


def _forget() -> None:
    global _lock, _shared
    _lock, _shared = threading.Lock(), None


if hasattr(os, "register_at_fork"):  # the child has no such thread
    os.register_at_fork(after_in_child=_forget)


class Face:
    """A synchronous wrapper around an asynchronous object."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner


def call(method: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Face, P], T]:
    """Wrap a method so that it blocks."""

    @functools.wraps(method)
    def wait(self: Face, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def work() -> T:
            return await method(self._inner, *args, **kwargs)

        return shared().run(work())

    return wait


def each(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Face, P], Iterator[T]]:
    """Wrap an async iterator so that each item blocks."""

    @functools.wraps(method)
    def iterate(self: Face, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items = method(self._inner, *args, **kwargs)
        while True:
            try:
                yield shared().run(_next(items))
            except StopAsyncIteration:
                return

    return iterate


async def _next(items: AsyncIterator[T]) -> T:
    return await items.__anext__()


class _Items(Protocol[U]):
    def __anext__(self) -> Awaitable[U]: ...


class Stream(Face):
    """See `dragoman.client.Stream`."""

    _inner: awaited.Stream
    _step: asyncio.Task[Any] | None = None
    """The task that waits for the next event."""

    @property
    def task(self) -> Task | None:
        """The task so far."""
        return self._inner.task

    @property
    def result(self) -> Result:
        """The result so far."""
        return self._inner.result

    @property
    def text(self) -> str:
        """The text so far."""
        return self._inner.text

    def __repr__(self) -> str:
        return repr(self._inner)

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        try:
            return shared().run(self._next(self._inner))
        except StopAsyncIteration:
            raise StopIteration from None

    def iter_text(self) -> Iterator[str]:
        """Yield the text as it arrives, see `dragoman.client.Stream.iter_text`."""
        pieces = self._inner.iter_text()
        while True:
            try:
                yield shared().run(self._next(pieces))
            except StopAsyncIteration:
                return

    async def _next(self, items: _Items[T]) -> T:
        self._step = asyncio.current_task()
        try:
            return await items.__anext__()
        finally:
            self._step = None

    async def _end(self) -> None:
        if self._step is not None:  # the caller was interrupted, but the step continues
            self._step.cancel()
            await asyncio.wait([self._step])
        await self._inner.aclose()

    def close(self) -> None:
        """Stop following. The task continues."""
        shared().run(self._end())

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncTaskHandle(Face):
    """See `dragoman.client.TaskHandle`."""

    _inner: awaited.TaskHandle

    @property
    def id(self) -> str:
        """The task's id."""
        return self._inner.id

    def __repr__(self) -> str:
        return repr(self._inner)

    def subscribe(self, *, keep: bool = True) -> Stream:
        """Stream the task as it is now and then its events, until it ends."""
        return Stream(self._inner.subscribe(keep=keep))

    get = call(awaited.TaskHandle.get)
    cancel = call(awaited.TaskHandle.cancel)
    reply = call(awaited.TaskHandle.reply)
    approve = call(awaited.TaskHandle.approve)
    decline = call(awaited.TaskHandle.decline)
    answer_pause = call(awaited.TaskHandle.answer_pause)
    wait = call(awaited.TaskHandle.wait)
    add_webhook = call(awaited.TaskHandle.add_webhook)
    webhook = call(awaited.TaskHandle.webhook)
    webhooks = each(awaited.TaskHandle.webhooks)
    delete_webhook = call(awaited.TaskHandle.delete_webhook)


class Client(Face):
    """See `dragoman.client.Client`. Wraps an asynchronous client that is not open yet."""

    _inner: awaited.Client

    @classmethod
    def connect(
        cls,
        target: str | AgentCard | AgentReference = "",
        *,
        app: Any = None,
        transport: Transport | None = None,
        **options: Unpack[Options],
    ) -> Client:
        """See `dragoman.client.Client.connect`."""
        return cls(awaited.Client.connect(target, app=app, transport=transport, **options))

    @property
    def card(self) -> AgentCard:
        """The agent's card."""
        return self._inner.card

    @property
    def interface(self) -> AgentInterface:
        """The interface in use."""
        return self._inner.interface

    def __repr__(self) -> str:
        return repr(self._inner)

    def open(self) -> Client:
        """Fetch the card. `with` does this, too. Opening an open client has no effect."""
        self._open()
        return self

    def __enter__(self) -> Client:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def skills(self) -> Mapping[str, RemoteSkill]:
        """The skills on the card, see `dragoman.client.Client.skills`."""
        return self._inner.skills

    @overload
    def call_skill(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: type[T],
        options: CallOptions | None = None,
        **named: Any,
    ) -> T: ...
    @overload
    def call_skill(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: Any = ...,
        options: CallOptions | None = None,
        **named: Any,
    ) -> Any: ...
    def call_skill(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: Any = UNSET,
        options: CallOptions | None = None,
        **named: Any,
    ) -> Any:
        """Call a skill, see `dragoman.client.Client.call_skill`."""
        work = self._inner.call_skill(skill, arguments, returns=returns, options=options, **named)
        return shared().run(work)

    def stream(
        self,
        content: Any,
        *,
        task: str = "",
        context: str = "",
        keep: bool = True,
        **options: Unpack[SendOptions],
    ) -> Stream:
        """Send a message and follow its task."""
        return Stream(self._inner.stream(content, task=task, context=context, keep=keep, **options))

    def task(self, id: str) -> SyncTaskHandle:
        """Return a handle on a task."""
        return SyncTaskHandle(self._inner.task(id))

    _open = call(awaited.Client.open)
    close = call(awaited.Client.close)
    send = call(awaited.Client.send)
    list = each(awaited.Client.list)
    extended_card = call(awaited.Client.extended_card)
