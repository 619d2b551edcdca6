"""Steps inside of a run that is a step itself: a framework's calls of models and tools. If the
process ends in the middle of a run, the run is made again, but not the calls that had ended."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any

from msgspec import UNSET

from dragoman import Turn
from dragoman.bridges.bridge import Run

PIECE = 100_000
"""How many characters of a result one entry of the log has."""


class Steps:
    """The steps inside of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.key = digest(run.turn.idempotency_key)
        """Names the run: the same when it is made again, another for the next run of the turn."""

    async def call(
        self,
        name: str,
        call: Callable[[], Awaitable[Any]],
        dump: Callable[[Any], Any],
        load: Callable[[Any], Any] = lambda value: value,
    ) -> Any:
        """The result of a call that is made once; `dump` makes it JSON. If the call raises, or
        its result is dumped as UNSET, it is made again when the run is made again."""
        name = f"{name}:{self.key}"
        while True:
            made: list[Any] = []
            errors: list[Exception] = []

            async def make(made: list[Any] = made, errors: list[Exception] = errors) -> list[str]:
                try:
                    value = await call()
                except Exception as error:  # noqa: BLE001 - the framework decides what comes next
                    errors.append(error)
                    return []
                made[:] = [value]
                dumped = dump(value)
                return [] if dumped is UNSET else _pieces(json.dumps(dumped))

            pieces = await _logged(self._run.turn, name, make)
            if errors:
                raise errors[0]
            if made:
                return made[0]
            if pieces:
                return load(json.loads("".join(pieces)))

    async def stream(
        self,
        name: str,
        call: Callable[[Callable[[Any], None]], Awaitable[Any]],
        dump: Callable[[Any], Any],
        load: Callable[[Any], Any],
        events: Callable[[Any], Iterable[Any]],
    ) -> AsyncGenerator[Any, None]:
        """The events of a call that is made once: those that it gives to its argument, or, if its
        result comes from the log, `events` of the result."""
        given: asyncio.Queue[Any] = asyncio.Queue()
        live = False

        async def make() -> Any:
            nonlocal live
            live = True
            return await call(given.put_nowait)

        making = asyncio.create_task(self.call(name, make, dump, load))
        making.add_done_callback(lambda _: given.put_nowait(None))
        try:
            while (event := await given.get()) is not None:
                yield event
            result = await making
            if not live:
                for event in events(result):
                    yield event
        finally:
            making.cancel()
            await asyncio.wait((making,))


def _pieces(text: str) -> list[str]:
    """A text in parts of which each has room in an entry of the log."""
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def digest(data: str | bytes) -> str:
    """A short name for data."""
    data = data.encode() if isinstance(data, str) else data
    return hashlib.sha256(data).hexdigest()[:16]


async def _logged(turn: Turn, name: str, make: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """A list of texts, of which each has a step. A crash between them makes the list again;
    then it is empty here, if it is another list than before."""
    made: list[str] | None = None

    async def piece(number: int) -> tuple[int, str, str]:
        nonlocal made
        if made is None:
            made = await make()
        return len(made), digest("".join(made)), made[number] if number < len(made) else ""

    kind = tuple[int, str, str]
    count, whole, text = await turn.step(name, piece, 0, returns=kind)
    texts = [text] if count else []
    for number in range(1, count):
        _, same, text = await turn.step(f"{name}:{number}", piece, number, returns=kind)
        texts = [*texts, text] if texts and same == whole else []
    return texts


async def long_step(turn: Turn, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
    """Return what a call returns, as JSON. The call is made once. A long result, such as an image,
    takes several steps; a crash between them makes the call again. Calls at the same time need
    names of their own."""

    async def make() -> list[str]:
        return _pieces(json.dumps(await call()))

    while True:
        if pieces := await _logged(turn, name, make):
            return json.loads("".join(pieces))
