"""What the agent does with a text. All servers read it here, so all do the same work.

stream 100          100 chunks of one artifact
stream 100 await    the same, giving way to the event loop after each chunk
stream 100 slow     the same, a millisecond apart
ask ..., wait       asks for more input
artifacts 20        20 artifacts
clock 200 20        200 chunks, 20 a second, each of which says when it was written
tell                one such chunk, then asks for more input
history 51 20       51 messages and 20 artifacts in one turn, for a server without follow-ups
anything else       is echoed as one artifact
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

QUESTION = "Which of the two dates in August do you mean, the tenth or the fifteenth?"
ANSWER = "ask: the fifteenth please, and the return flight a week later, with a window seat."

WAIT = 3.0
"""How long a clock waits before it begins, in seconds."""
PAUSES = {"await": 0, "slow": 0.001}


class Order(NamedTuple):
    """One text, understood."""

    verb: str
    size: int = 0
    messages: int = 0
    pause: float | None = None
    """The seconds after each chunk; 0 only gives way to the event loop."""
    rate: float = 0.0
    """The chunks a second."""


def read(text: str) -> Order:
    """The order in `text`."""
    words = text.split()
    match words:
        case ["stream", size, *rest]:
            return Order("stream", int(size), pause=PAUSES.get(" ".join(rest)))
        case ["ask" | "ask:" | "wait", *_]:
            return Order("ask")
        case ["clock", size, rate]:
            return Order("clock", int(size), rate=float(rate))
        case ["tell"]:
            return Order("tell")
        case ["artifacts", size]:
            return Order("artifacts", int(size))
        case ["history", messages, size]:
            return Order("history", int(size), messages=int(messages))
    return Order("echo")


def chunks(order: Order) -> Iterator[str]:
    """The numbered chunks of a streamed answer."""
    for number in range(order.size):
        yield f"chunk {number} "


async def ticks(order: Order) -> AsyncIterator[str]:
    """The chunks that say when they were written. The first waits for its readers, and a little
    longer, so that many clocks do not tick together."""
    began = time.monotonic() + WAIT + random.random() / order.rate
    for number in range(order.size):
        await asyncio.sleep(max(0.0, began + number / order.rate - time.monotonic()))
        yield now()


def now() -> str:
    """A chunk that says when it was written."""
    return f"at {time.time():.6f} "


def artifacts(order: Order) -> Iterator[tuple[str, str]]:
    """Name and text of each artifact."""
    for number in range(order.size):
        yield f"part {number}", f"Part {number} of the answer, which goes on for one line."
