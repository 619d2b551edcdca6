"""The exact bytes that go over a connection, with what is secret in them masked."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from dragoman.cli.paint import CYAN, DIM, YELLOW, paint
from dragoman.cli.table import plain
from dragoman.client.credentials import masked
from dragoman.telemetry import MASK, secretive

_HEAD = re.compile(r"(?:[A-Z]+ \S+ HTTP/1\.\d|HTTP/1\.\d \d{3})")
_QUERY = re.compile(r"([?&]([^=&\s]+)=)[^&\s]+")


class Tap:
    """Shows what is sent (>) and what comes (<) on standard error. `hidden` are secrets that no
    name gives away."""

    def __init__(self, hidden: Sequence[str] = ()) -> None:
        self._hidden = [text for text in hidden if text]

    def __call__(self, out: bool, data: bytes) -> None:
        """Show a piece of one direction."""
        text = data.decode("utf-8", "replace")
        for secret in self._hidden:
            text = text.replace(secret, MASK)
        head, blank, body = text, "", ""
        if _HEAD.match(text):
            head, blank, body = text.partition("\r\n\r\n")
            for number, line in enumerate(head.split("\r\n")):
                self._line(out, _header(line) if number else _url(line))
            if blank:
                self._line(out, "")
        else:
            body = text
        for line in body.split("\n") if body else ():
            self._line(out, masked(line.rstrip("\r")))

    def _line(self, out: bool, text: str) -> None:
        mark = ">" if out else "<"
        shown = f"{mark} {plain(text)}".rstrip()
        style = (CYAN if out else YELLOW) if text else DIM
        print(paint(shown, style, sys.stderr), file=sys.stderr, flush=True)


def _header(line: str) -> str:
    name, colon, _ = line.partition(":")
    return f"{name}: {MASK}" if colon and secretive(name) else line


def _url(line: str) -> str:
    return _QUERY.sub(lambda m: f"{m[1]}{MASK}" if secretive(m[2]) else m[0], line)
