"""`dragoman worker`: run turns without serving requests."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from dragoman.cli import Options, UsageError
from dragoman.cli.serve import build, hang_up, leave
from dragoman.model.errors import A2AError
from dragoman.server.app import App
from dragoman.telemetry.logs import logger, redacted


def run(names: Sequence[str], options: Options) -> int:
    """Run turns until interrupted."""
    hang_up()
    app = build(names, options)
    if not app.store.shared:
        raise UsageError(
            "store: a worker shares its tasks with other processes, and they cannot reach "
            f"{app.settings.masked()['store']}; use --store postgresql://…"
        )
    app.serves = False
    return asyncio.run(_work(app))


async def _work(app: App) -> int:
    """Run turns until a signal arrives; a second signal stops the process at once."""
    loop = asyncio.get_running_loop()
    ending = asyncio.Event()
    signals: list[int] = []

    def handle(number: int) -> None:
        if signals:
            leave("immediately")
        signals.append(number)
        ending.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle, number)
    hang_up(lambda: logger.info("SIGHUP: a worker has no certificate to reload"))
    try:
        await app.start()
    except A2AError as error:
        logger.error("%s", redacted(str(error)))
        return 1
    settings = app.settings
    for agent in app.agents.values():
        logger.info("running turns for %s, up to %d at once", agent.name, settings.max_running)
    logger.info("press Ctrl-C to stop")
    await ending.wait()
    logger.info(
        "draining: running turns have %g s; Ctrl-C again to stop now", settings.drain_timeout
    )
    await app.stop()
    if app.stuck:
        leave(f"without waiting for handler {', '.join(app.stuck)}, which ignores its cancellation")
    logger.info("stopped")
    return 0
