"""`--trace`: prints the bytes of a connection, with secrets masked."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from urllib.parse import unquote

from dragoman.cli.colors import CYAN, DIM, YELLOW, paint
from dragoman.cli.terminal_format import plain
from dragoman.client.credentials import masked, secrets
from dragoman.telemetry.logs import MASK, SHORTEST

SHOWN = {
    *("a2a-extensions", "a2a-version", "accept", "accept-encoding", "accept-language"),
    *("accept-ranges", "age", "allow", "cache-control", "connection", "content-encoding"),
    *("content-language", "content-length", "content-type", "date", "etag", "expect"),
    *("expires", "grpc-message", "grpc-status", "host", "idempotency-key", "if-none-match"),
    *("keep-alive", "last-event-id", "last-modified", "ratelimit", "ratelimit-policy"),
    *("retry-after", "server", "strict-transport-security", "te", "traceparent", "trailer"),
    *("transfer-encoding", "user-agent", "vary", "via", "www-authenticate"),
    *("x-a2a-extensions", "x-accel-buffering", "x-content-type-options"),
}
"""The headers whose values are shown. Any other header may contain a secret."""
PARAMETERS = {
    *("contextId", "historyLength", "includeArtifacts", "pageSize", "pageToken", "status"),
    *("statusTimestampAfter",),
}
"""The query parameters whose values are shown: those of A2A."""
_HEAD = re.compile(r"(?:[A-Z]+ \S+ HTTP/1\.\d|HTTP/1\.\d \d{3}|gRPC )")
_QUERY = re.compile(r"([?&]([^=&\s]+)=)([^&\s]+)")
_SIGNATURE = re.compile(r"0x[0-9a-fA-F]{128,}")
"""A signature in hexadecimal, such as that of a payment."""
MOST = 1000
"""The maximum number of remembered secrets; the oldest are dropped."""


class ByteTrace:
    """Prints sent (>) and received (<) bytes on standard error. `hidden` are secrets to mask
    wherever they appear. A value that was masked once is masked everywhere from then on."""

    def __init__(self, hidden: Sequence[str] = ()) -> None:
        self._hidden: dict[str, None] = {}
        for text in hidden:
            self._hide(text, shortest=1)

    def __call__(self, out: bool, data: bytes) -> None:
        """Print a piece of one direction. The head of a message must be in one piece."""
        text = data.decode("utf-8", "replace")
        lines: list[str] = []
        body = text
        if _HEAD.match(text):
            head, blank, body = text.partition("\r\n\r\n")
            first, *rest = head.split("\r\n")
            lines = [self._url(first), *(self._header(line) for line in rest)]
            lines += [""] if blank else []
        for secret in secrets(body):
            self._hide(secret)
        lines += [masked(line.rstrip("\r")) for line in body.split("\n")] if body else []
        for line in lines:
            self._line(out, self._without(line))

    def _line(self, out: bool, text: str) -> None:
        mark = ">" if out else "<"
        shown = f"{mark} {plain(text)}".rstrip()
        style = (CYAN if out else YELLOW) if text else DIM
        print(paint(shown, style, sys.stderr), file=sys.stderr, flush=True)

    def _header(self, line: str) -> str:
        name, colon, value = line.partition(":")
        if not colon or name.strip().lower() in SHOWN:
            return line
        if name.lower() == "location":
            return self._url(line)
        for form in _forms(value.strip()):
            self._hide(form)
        return f"{name}: {MASK}"

    def _url(self, line: str) -> str:
        def cover(match: re.Match[str]) -> str:
            if unquote(match[2]) in PARAMETERS:
                return match[0]
            for form in (match[3], unquote(match[3])):
                self._hide(form)
            return f"{match[1]}{MASK}"

        return _QUERY.sub(cover, line)

    def _hide(self, secret: str, shortest: int = SHORTEST) -> None:
        if len(secret) < shortest or secret in self._hidden:
            return
        if len(self._hidden) >= MOST:
            del self._hidden[next(iter(self._hidden))]
        self._hidden[secret] = None

    def _without(self, line: str) -> str:
        line = _SIGNATURE.sub(MASK, line)
        for secret in sorted(self._hidden, key=len, reverse=True):
            if secret in line:
                line = line.replace(secret, MASK)
        return line


def _forms(value: str) -> Iterator[str]:
    """Yield a header's value and the secrets in it: the value without its scheme, the login and
    password of HTTP Basic, the values of cookies."""
    scheme, _, rest = value.partition(" ")
    yield value
    yield rest.strip()
    if scheme.lower() == "basic":
        with suppress(ValueError):
            login = base64.b64decode(rest.strip() + "==").decode()
            yield login
            yield login.partition(":")[2]
    for item in value.split(";"):
        yield item.partition("=")[2].strip()
