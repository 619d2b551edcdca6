"""The watchdog: names a handler that blocks the event loop, with its stack."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType

from dragoman.telemetry.logs import logger

Name = Callable[[FrameType], str | None]


class Watchdog:
    """A thread that checks whether the event loop still runs."""

    def __init__(self, patience: float, name: Name) -> None:
        self.patience = patience
        self._name = name
        """Returns the name of the handler that a frame belongs to."""
        self._beat = 0.0
        self._stop = threading.Event()

    async def run(self) -> None:
        """Watch the running loop until canceled."""
        self._beat = time.monotonic()
        thread = threading.Thread(
            target=self._watch, args=(threading.get_ident(),), name="dragoman-watchdog", daemon=True
        )
        thread.start()
        try:
            while True:
                await asyncio.sleep(self.patience / 4)
                self._beat = time.monotonic()
        finally:
            self._stop.set()

    def _watch(self, loop: int) -> None:
        reported = 0.0
        while not self._stop.wait(self.patience / 4):
            beat = self._beat
            late = time.monotonic() - beat
            if late > self.patience and beat != reported:
                reported = beat
                self._report(loop, late)

    def _report(self, loop: int, late: float) -> None:
        frame = sys._current_frames().get(loop)
        if frame is None:
            return
        stack = "".join(traceback.format_stack(frame))
        who = None
        inner: FrameType | None = frame
        while inner is not None and who is None:
            who = self._name(inner)
            inner = inner.f_back
        if logger.isEnabledFor(logging.WARNING):
            text = (
                "%s has blocked the event loop for %.1f s; use a plain function (it runs "
                "in a thread), or await the blocking call. Stack:"
            )
            values = (who or "something", late)
            record = logger.makeRecord(
                logger.name, logging.WARNING, __file__, 0, text, values, None, sinfo=stack
            )
            logger.handle(record)
