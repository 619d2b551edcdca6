"""What the desks on the reference SDK do, in every version of it: they differ in their types, and
agree in what reports to the task. Each has an environment of its own: this needs no package."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any


async def work(
    updater: Any, text: str, parts: Sequence[Any], part: Callable[[str], Any], **question: bool
) -> None:
    """Do what the text says. `part` makes one of a text; `question` is said to whoever asks."""
    await updater.start_work()
    match text.split():
        case ["ask"]:
            await updater.requires_input(updater.new_agent_message([part("Which?")]), **question)
            return
        case ["wait"]:
            await asyncio.Event().wait()
        case ["fail"]:
            await updater.failed(updater.new_agent_message([part("as told")]))
            return
        case ["crash"]:
            raise RuntimeError("as told")
        case ["count", number]:
            for n in range(int(number)):
                await updater.add_artifact([part(f"{n},")], artifact_id="count", append=n > 0)
                await asyncio.sleep(0.005)
        case _:
            await updater.add_artifact(list(parts), name="echo")
    await updater.complete()
