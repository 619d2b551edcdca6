"""Handlers: adapts the functions and objects of authors, of any kind, so that they can run."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from dragoman.agent.threads import Threads
from dragoman.agent.turn import Turn
from dragoman.agent.unyielded import FIRST_TURNS
from dragoman.dialects.protojson import explain
from dragoman.model.errors import InvalidParams
from dragoman.model.types import Artifact, Message, Part, TaskArtifactUpdateEvent

BATCH = 64
SMALL = 64 * 1024
"""A smaller value is encoded at once, without a slot."""


class Sink(Protocol):
    """Receives the events of a running handler."""

    def begin(self) -> None:
        """Called just before the handler starts, in the same thread. If it raises, the handler does
        not start."""

    def put(self, value: Any) -> bool:
        """Receive a yielded value. True asks the handler to pause in `relieve`."""

    def finish(self, value: Any) -> None:
        """Receive the returned value."""

    async def relieve(self) -> None:
        """Wait until there is room again."""

    async def slot(self) -> None:
        """Wait until a large value may be encoded in the next step."""


class Handler:
    """A function of any kind, or an object with `run` and optionally `cancel`."""

    def __init__(self, target: Any, *, reply: bool | None = None) -> None:
        if inspect.isclass(target):
            target = target()
        self.name = getattr(target, "__name__", type(target).__name__)
        self.doc = inspect.getdoc(target) or ""
        self.run: Callable[..., Any] = getattr(target, "run", target)
        self.cancel: Callable[..., Any] | None = getattr(target, "cancel", None)
        if not callable(self.run):
            raise TypeError(f"{self.name}: a handler must be a function, or have a method `run`")
        self.arguments = _arguments(self.run, self.name)
        self._plain = [kind for _, kind, _ in self.arguments] == [Turn]
        self._checked = [
            (kind, default)
            for _, kind, default in self.arguments
            if kind not in (Turn, Message, str)
        ]
        self._streams = inspect.isasyncgenfunction(self.run)
        self._yields = inspect.isgeneratorfunction(self.run)
        self._awaits = inspect.iscoroutinefunction(self.run)
        hints = _hints(self.run)
        self.reply = hints.get("return") is Message if reply is None else reply
        """Whether it may reply without a task."""
        self.followed = FIRST_TURNS
        """For how many more turns to record where its events were made."""

    def check(self, message: Message) -> None:
        """Raise InvalidParams if the message lacks what the handler's parameters need."""
        for kind, default in self._checked:
            structured(message, kind, default)

    async def perform(self, turn: Turn, sink: Sink, threads: Threads) -> None:
        """Run the handler to its end; blocking kinds run in a thread."""
        call = self.run
        args = [turn]
        if not self._plain:
            args = [self._argument(turn, kind, default) for _, kind, default in self.arguments]
        if self._streams:
            sink.begin()
            return await _from_async(call(*args), sink)
        if self._awaits:
            sink.begin()
            return await _from_any(await call(*args), turn, sink, threads)
        if self._yields:
            return await _from_sync(call(*args), turn, sink, threads, begun=False)
        value = await threads.run(_begin, sink, call, args)  # it may wait for a thread
        return await _from_any(value, turn, sink, threads)

    async def stop(self, turn: Turn, sink: Sink, threads: Threads) -> None:
        """Run the author's `cancel`, if there is one."""
        if self.cancel is None:
            return
        if inspect.isasyncgenfunction(self.cancel):
            await _from_async(self.cancel(turn), sink)
        elif inspect.iscoroutinefunction(self.cancel):
            for event in turn._events(await self.cancel(turn)):
                sink.put(event)
        else:
            value = await threads.run(self.cancel, turn)
            await _from_any(value, turn, sink, threads)

    @staticmethod
    def _argument(turn: Turn, kind: Any, default: Any) -> Any:
        if kind is Turn:
            return turn
        if kind is Message:
            return turn.message
        if kind is str:
            return turn.text
        return structured(turn.message, kind, default)


# ---- running -------------------------------------------------------------------------------


def large(value: Any) -> bool:
    """Whether a value takes long to encode."""
    kind = type(value)
    if kind is str or kind is bytes:
        return len(value) > SMALL
    parts: Any = ()
    if kind is TaskArtifactUpdateEvent:
        parts = value.artifact.parts
    elif kind is Artifact or kind is Message:
        parts = value.parts
    elif kind is Part:
        parts = (value,)
    elif kind is list:
        parts = [part for item in value for part in _parts(item)]
    return sum(len(part.text or part.raw or "") for part in parts) > SMALL


def _parts(item: Any) -> Sequence[Part]:
    if type(item) is Artifact:
        return item.parts
    return (item,) if type(item) is Part else ()


def _begin(sink: Sink, call: Callable[..., Any], args: list[Any]) -> Any:
    sink.begin()
    return call(*args)


async def _from_async(values: AsyncGenerator[Any, Any], sink: Sink) -> None:
    put = sink.put
    try:
        async for value in values:
            if large(value):
                await sink.slot()
            if put(value):
                await sink.relieve()
    except BaseException:
        with suppress(RuntimeError):  # it yields even when closed
            await values.aclose()  # now, not at garbage collection
        raise


async def _from_any(value: Any, turn: Turn, sink: Sink, threads: Threads) -> None:
    if inspect.isasyncgen(value):  # a function may return a generator
        await _from_async(value, sink)
    elif inspect.isgenerator(value):
        await _from_sync(value, turn, sink, threads)
    elif inspect.isawaitable(value):
        await _from_any(await value, turn, sink, threads)
    else:
        if large(value):
            await sink.slot()
        sink.finish(value)


async def _from_sync(
    values: Generator[Any, Any, Any],
    turn: Turn,
    sink: Sink,
    threads: Threads,
    *,
    begun: bool = True,
) -> None:
    """Iterate in a thread, which stops at the next value once the turn is canceled."""
    loop = asyncio.get_running_loop()
    faults: list[BaseException] = []

    def feed(value: Any) -> None:
        if faults:
            return  # the rest after a refused value
        try:
            sink.put(value)
        except BaseException as error:  # noqa: BLE001 - the running handler raises it
            faults.append(error)

    async def feed_large(value: Any) -> None:
        await sink.slot()
        feed(value)

    def pump() -> None:
        if not begun:
            sink.begin()
        for count, value in enumerate(values, start=1):
            if large(value):
                asyncio.run_coroutine_threadsafe(feed_large(value), loop).result()
            else:
                loop.call_soon_threadsafe(feed, value)
            if turn.canceled or faults:
                values.close()
                return
            if count % BATCH == 0:
                asyncio.run_coroutine_threadsafe(sink.relieve(), loop).result()

    await threads.run(pump)
    if faults:
        raise faults[0]


# ---- parameters ----------------------------------------------------------------------------


def _hints(call: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations. Those that only a type checker can resolve stay text."""
    try:
        return typing.get_type_hints(call, include_extras=True)
    except (NameError, TypeError):
        pass
    found = {}
    names = getattr(inspect.unwrap(call), "__globals__", {})
    for name, kind in inspect.get_annotations(call).items():
        try:
            found[name] = eval(kind, names) if isinstance(kind, str) else kind
        except (NameError, TypeError, SyntaxError, AttributeError):
            found[name] = kind
    return found


def _arguments(call: Callable[..., Any], name: str) -> list[tuple[str, Any, Any]]:
    """For each parameter: its name, its source or type, and its default."""
    hints = _hints(call)
    found: list[tuple[str, Any, Any]] = []
    for parameter in inspect.signature(call).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                raise TypeError(f"{name}: parameter {parameter.name} cannot be keyword-only")
            continue
        kind = hints.get(parameter.name, parameter.annotation)
        if kind is parameter.empty or kind in ("Turn", "dragoman.Turn"):
            if any(earlier is Turn for _, earlier, _ in found):
                raise TypeError(
                    f"{name}: parameter {parameter.name} needs a type: Turn, Message, str, "
                    "or the type of its data"
                )
            kind = Turn
        elif isinstance(kind, str):
            raise TypeError(f"{name}: the type of parameter {parameter.name} is unknown: {kind}")
        if kind not in (Turn, Message, str):
            _possible(kind, f"{name}: parameter {parameter.name}")
        default = UNSET if parameter.default is parameter.empty else parameter.default
        found.append((parameter.name, kind, default))
    return found


def _possible(kind: Any, where: str) -> None:
    """Raise TypeError if no data part can be converted to this type."""
    if _is_pydantic(kind):
        return
    try:
        info = msgspec.inspect.type_info(kind)
        msgspec.json.Decoder(kind)
    except TypeError as error:
        raise TypeError(f"{where}: {error}") from None
    if isinstance(info, msgspec.inspect.CustomType):
        raise TypeError(f"{where}: a value of type {info.cls.__name__} cannot be created from data")


def structured(message: Message, kind: Any, default: Any = UNSET) -> Any:
    """Convert the message's first data part to this type. Raises InvalidParams, which names the
    field."""
    for index, part in enumerate(message.parts):
        if part.data is UNSET:
            continue
        where = f"message.parts[{index}].data"
        if _is_pydantic(kind):
            return _validated(kind, part.data, where)
        try:
            # Protobuf clients write every number as a double.
            return msgspec.convert(_whole(part.data), kind)
        except msgspec.ValidationError as error:
            field, what = explain(error)
            raise InvalidParams.at(where + field, what) from None
    if default is not UNSET:
        return default
    name = getattr(kind, "__name__", str(kind))
    raise InvalidParams.at("message.parts", f"expected a data part of type {name}")


def _whole(value: Any) -> Any:
    """Convert 2.0 to 2. A float field accepts both."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return value


def _is_pydantic(kind: Any) -> bool:
    """Whether a type contains a pydantic model, without an import of pydantic."""
    inner = typing.get_args(kind)
    return hasattr(kind, "model_validate") or any(_is_pydantic(item) for item in inner)


def _validated(kind: Any, data: Any, where: str) -> Any:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        found = []
        for item in error.errors():
            path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in item["loc"])
            found.append((where + path, item["msg"]))
        text = "; ".join(f"{field}: {what}" for field, what in found)
        raise InvalidParams(text, violations=found) from None
