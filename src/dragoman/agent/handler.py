"""Handlers: adapts the functions and objects of authors, of any kind, so that they can run."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from dragoman.agent.docstrings import docstring
from dragoman.agent.durable import CodeChanged
from dragoman.agent.gate import Gate, holds_output
from dragoman.agent.parameters import DATA, MESSAGE, TURN, Parameters, type_hints
from dragoman.agent.threads import Threads
from dragoman.agent.turn import Turn
from dragoman.agent.unyielded_events import FIRST_TURNS
from dragoman.agent.user_error import UserError
from dragoman.model.errors import InvalidParams
from dragoman.model.types import Artifact, Message, Part, TaskArtifactUpdateEvent

if TYPE_CHECKING:
    from dragoman.model.parameter_types import DataType
    from dragoman.model.skill_extension import SkillSchema

MONTH = 30 * 24 * 3600.0
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

    def __init__(
        self,
        target: Any,
        *,
        reply: bool | None = None,
        durable: bool = False,
        timeout: float = MONTH,
        version: str = "",
        ask: bool = False,
        one_at_a_time: str = "",
        gate: Gate | None = None,
    ) -> None:
        if inspect.isclass(target):
            target = target()
        self.name = getattr(target, "__name__", type(target).__name__)
        self.doc, self.about = docstring(inspect.getdoc(target) or "")
        self.run: Callable[..., Any] = getattr(target, "run", target)
        self.cancel: Callable[..., Any] | None = getattr(target, "cancel", None)
        if not callable(self.run):
            raise TypeError(f"{self.name}: a handler must be a function, or have a method `run`")
        hints = type_hints(self.run)
        self.parameters = Parameters(self.run, self.name, hints)
        self.ask = ask
        """Whether it asks for parameters that are missing."""
        if ask and not (self.parameters.data or self.parameters.files):
            raise TypeError(f"{self.name}: ask=True, but there is no parameter to ask for")
        self._plain = self.parameters.plain
        self._streams = inspect.isasyncgenfunction(self.run)
        self._yields = inspect.isgeneratorfunction(self.run)
        self._awaits = inspect.iscoroutinefunction(self.run)
        self.reply = hints.get("return") is Message if reply is None else reply
        """Whether it may reply without a task."""
        self.gate = gate
        """What runs around it, in a turn that is durable."""
        self.continues = durable
        """Whether it continues where it was after a crash, a sleep or a question."""
        self.durable = durable or gate is not None
        """Whether its turns are durable: itself, or its gate continues where it was."""
        if not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f"{self.name}: timeout must be a finite number greater than 0")
        self.timeout = timeout
        """How many seconds a durable one has in all."""
        self.version = version
        if one_at_a_time not in ("", "context"):
            raise TypeError(f"{self.name}: one_at_a_time must be 'context', not {one_at_a_time!r}")
        self.one_at_a_time = bool(one_at_a_time)
        """Whether its turns of one context run one after the other."""
        if durable and not (self._streams or self._awaits):
            raise TypeError(
                f"{self.name}: a durable handler must be an `async def`; a blocking function can "
                "be called in a step"
            )
        if self.durable and self.reply:
            what = "durable handler" if durable else "handler with a gate"
            raise TypeError(f"{self.name}: a {what} always has a task; leave out reply")
        if gate is not None and not isinstance(gate, Gate):
            raise TypeError(f"{self.name}: a gate has the methods `extensions` and `enter`")
        self.holds = holds_output(gate)
        """Whether its gate holds back its output."""
        if self.holds and (durable or ask or self._streams or self._yields):
            raise TypeError(
                f"{self.name}: its gate holds back the output, so it must be a function that "
                "returns it: no generator, without durable=True and ask=True"
            )
        self.followed = FIRST_TURNS
        """For how many more turns to record where its events were made."""
        self.result: DataType | None = None
        """The type of a result that becomes a data part."""
        self.wraps = False
        """Whether the result is sent as the field `result` of an object."""
        if not (self._streams or self._yields or self.reply):
            self._read_result(hints.get("return"))

    def _read_result(self, hint: Any) -> None:
        if hint in (None, type(None), object, Any, str):
            return
        # Imported here and below: not every agent has typed skills.
        from dragoman.agent.skill_schemas import result_type
        from dragoman.model.parameter_types import is_object

        self.result = result_type(hint)
        self.wraps = self.result is not None and not is_object(self.result.schema(result=True))

    def schema(self) -> SkillSchema | None:
        """Its parameters and result for the card; None if they have no types of data."""
        if not self.parameters.checks and self.result is None:
            return None
        from dragoman.agent.skill_schemas import skill_schema

        return skill_schema(self)

    async def perform(self, turn: Turn, sink: Sink, threads: Threads) -> None:
        """Run the handler to its end; blocking kinds run in a thread."""
        call = self.run
        args: list[Any] = [turn]
        if not self._plain:
            found = self._arguments(turn)
            if isinstance(found, Message):
                sink.begin()
                return sink.finish(turn.ask(found))
            args, named = found
            if named:
                call = partial(call, **named)
        if self._streams:
            sink.begin()
            return await _from_async(call(*args), sink)
        if self._awaits:
            sink.begin()
            return await _from_any(await call(*args), turn, sink, threads, self.wraps)
        if self._yields:
            return await _from_sync(call(*args), turn, sink, threads, begun=False)
        value = await threads.run(_begin, sink, call, args)  # it may wait for a thread
        return await _from_any(value, turn, sink, threads, self.wraps)

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

    def _arguments(self, turn: Turn) -> tuple[list[Any], dict[str, Any]] | Message:
        """The arguments of the call, or the question for those that are missing."""
        parameters = self.parameters
        if parameters.simple and len(turn.task.history) == 1:
            message = turn.message
            said = parameters.spoken(message)
            if said is not None:  # nearly all messages to a function that takes a text
                found = {TURN: turn, MESSAGE: message, DATA: said}
                return [found[each.source] for each in parameters.all], {}
        resumed = turn._journal is not None and turn._journal.resumed
        try:
            filled = parameters.fill(turn, self.ask)
        except InvalidParams as error:  # the signature has changed since it was accepted
            if resumed:
                raise CodeChanged(f"its parameters do not fit: {error.message}") from error
            raise UserError(error.message) from error
        if filled.missing and resumed:
            missing = ", ".join(filled.missing)
            raise CodeChanged(f"its parameters do not fit: nothing was given for {missing}")
        if filled.missing:
            from dragoman.agent import parameter_questions
            from dragoman.agent.skill_schemas import described, file_parameters

            schema = described(parameters.schema, self.about) if parameters.data else {}
            files = file_parameters(parameters.files, self.about)
            asked = parameter_questions.question(filled.missing, schema, files)
            return asked.replace(extensions=turn._extended(asked.metadata))
        values = filled.values
        args = [values[each.name] for each in parameters.all if not each.keyword]
        return args, {each.name: values[each.name] for each in parameters.all if each.keyword}


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


async def _from_any(
    value: Any, turn: Turn, sink: Sink, threads: Threads, wraps: bool = False
) -> None:
    if inspect.isasyncgen(value):  # a function may return a generator
        await _from_async(value, sink)
    elif inspect.isgenerator(value):
        await _from_sync(value, turn, sink, threads)
    elif inspect.isawaitable(value):
        await _from_any(await value, turn, sink, threads, wraps)
    else:
        if wraps:
            from dragoman.agent.skill_schemas import wrapped

            value = wrapped(value)
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
