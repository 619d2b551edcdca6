"""`dragoman.resume`: write to a task that was handed over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dragoman.model.handover import Handover

if TYPE_CHECKING:
    from dragoman.client import HandedOverTask, Transport


def resume(
    handover: Handover | str,
    *,
    app: Any = None,
    transport: Transport | None = None,
    insecure: bool = False,
) -> HandedOverTask:
    """Open a task that its handler has handed over (`turn.hand_over`), with the handover or its
    text, to write to it until its end: `async with dragoman.resume(text) as task: await
    task.complete("Done")`. `app` is an ASGI application in this process that serves the task.
    `insecure` allows to send the secret over plain HTTP."""
    from dragoman.client import (
        handed_over_task as client,  # imports the client, which nothing else needs
    )

    return client.resume(handover, app=app, transport=transport, insecure=insecure)
