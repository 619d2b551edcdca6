"""The command on a real terminal: a pseudo-terminal that the test reads and types on."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.harness import trust

PATIENCE = 20
UNWANTED = {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"}
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x01|\x02")


class Terminal:
    """A process of `dragoman`, and what it has written so far."""

    def __init__(
        self,
        *arguments: str,
        columns: int = 100,
        home: Path,
        environment: Mapping[str, str] | None = None,
        stdout: Any = None,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        known = {k: v for k, v in os.environ.items() if k not in UNWANTED}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dragoman", *arguments],
            stdin=slave,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={
                **trust.ENVIRONMENT,
                **known,
                "TERM": "xterm",
                "XDG_STATE_HOME": str(home),
                **(environment or {}),
            },
        )
        os.close(slave)
        self.raw = ""
        self._found = 0

    @property
    def text(self) -> str:
        """All that was written, without styles."""
        return _STYLE.sub("", self.raw).replace("\r\n", "\n")

    def type(self, text: str) -> None:
        """Press keys: `\\x03` is Ctrl-C, `\\x04` Ctrl-D."""
        os.write(self._master, text.encode())

    def line(self, text: str) -> None:
        """Type a line."""
        self.type(text + "\r")

    def interrupt(self, words: str) -> None:
        """Press Ctrl-C at a prompt until these words come. (Python's line editor does not notice
        one that comes between the prompt and its first look at the keys.)"""
        for _ in range(PATIENCE):
            self.type("\x03")
            try:
                self.expect(words, patience=1)
                return
            except AssertionError:
                continue
        raise AssertionError(f"{words!r} did not come after Ctrl-C: {self.text!r}")

    def expect(self, words: str, patience: float = PATIENCE) -> str:
        """Read until these words have been written after what was found before; all before them."""
        start = self._found
        end = time.monotonic() + patience
        while (place := self.text.find(words, start)) < 0:
            if not self._read(end):
                raise AssertionError(f"{words!r} did not come after: {self.text[start:]!r}")
        self._found = place + len(words)
        return self.text[start:place]

    def ended(self) -> int:
        """Read to the end; the exit status."""
        end = time.monotonic() + PATIENCE
        while self._read(end):
            pass
        return self.process.wait(PATIENCE)

    def _read(self, end: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(end - time.monotonic(), 0))
        if not ready:
            return False
        try:
            piece = os.read(self._master, 65536)
        except OSError:  # how Linux tells that nobody holds the other side any more
            return False
        self.raw += piece.decode("utf-8", "replace")
        return bool(piece)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
