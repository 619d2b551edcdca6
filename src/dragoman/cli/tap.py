"""The exact bytes that go over a connection, with what is secret in them masked."""

from __future__ import annotations

import re
import sys

from dragoman.cli.paint import CYAN, DIM, YELLOW, paint
from dragoman.cli.table import plain
from dragoman.client.credentials import secretive

_HEAD = re.compile(r"(?:[A-Z]+ \S+ HTTP/1\.\d|HTTP/1\.\d \d{3})")
_QUERY = re.compile(r"([?&]([^=&\s]+)=)[^&\s]+")
_FORM = re.compile(
    r"((?:^|&)(?:client_secret|code|code_verifier|device_code|password|refresh_token)=)[^&\s]+"
)
_JSON = re.compile(
    r'("(?:access_token|refresh_token|id_token|device_code|token|credentials|client_secret)"\s*:\s*")'
    r'[^"]*'
)


class Tap:
    """Shows what is sent (>) and what comes (<) on standard error."""

    def __call__(self, out: bool, data: bytes) -> None:
        """Show a piece of one direction."""
        text = data.decode("utf-8", "replace")
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
            self._line(out, _JSON.sub(r"\1***", _FORM.sub(r"\1***", line.rstrip("\r"))))

    def _line(self, out: bool, text: str) -> None:
        mark = ">" if out else "<"
        shown = f"{mark} {plain(text)}".rstrip()
        style = (CYAN if out else YELLOW) if text else DIM
        print(paint(shown, style, sys.stderr), file=sys.stderr, flush=True)


def _header(line: str) -> str:
    name, colon, _ = line.partition(":")
    return f"{name}: ***" if colon and secretive(name) else line


def _url(line: str) -> str:
    return _QUERY.sub(lambda m: f"{m[1]}***" if secretive(m[2]) else m[0], line)
