"""A model behind an HTTP server that speaks chat completions."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from dragoman.client import HTTPTransport, TransportRequest, TransportResponse, Unreachable
from dragoman.orchestrator.chat_completions import (
    ANSWER,
    DONE,
    EXCERPT,
    OWN,
    Completion,
    Unusable,
    data_lines,
    excerpt,
    request,
    whole_body,
)
from dragoman.orchestrator.model import ModelAnswer, ModelFailed, ModelMessage, Tool, Write
from dragoman.prompt_safety import clean

FIRST, LONGEST = 0.5, 8.0
"""Seconds of the first pause between attempts, and of the longest."""
MOST = 60.0
"""If the server wants a longer pause than this many seconds, the request fails at once."""
GRACE = 5.0
"""Seconds to wait for the usage after the answer has ended, or for the text of an error."""
LINGER = 0.5
"""Seconds to wait for the end of a stream that is over: then its connection can be used again."""
LOGGED = 500
"""The most characters of what a server has sent in a log line."""
AGAIN = frozenset((408, 409, 429))
"""Statuses after which the same request may succeed, besides those of 500 and above."""
MASK = "***"

logger = logging.getLogger("dragoman")


class Passing(Unusable):
    """A failure after which the same request may succeed."""

    def __init__(self, text: str, detail: str = "", wait: float = 0.0) -> None:
        super().__init__(text, detail)
        self.wait = wait
        """The seconds that the server wants us to wait."""


class ChatModel:
    """A model that is reached by chat completions (`POST {url}/chat/completions`).

    `key` is sent as bearer token. The key and the values of `headers` may be `env:NAME` or
    `file:PATH`. `options` are further fields of the request; None removes a field, which
    `{"stream_options": None}` needs for servers that do not know it.

    `timeout` is for the whole answer, with all attempts; `idle` is how long a stream may be silent.
    A request that was refused for now, or whose connection broke, is sent again, unless text was
    given to `write` already: then `ModelFailed` is raised, and the caller may start anew.

    Connections are kept for each event loop and are closed when the loop ends; `close()` or
    `async with` closes them earlier."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str | None = None,
        timeout: float = 300.0,
        idle: float = 120.0,
        attempts: int = 3,
        temperature: float | None = None,
        max_tokens: int | None = None,
        headers: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._url = _address(url)
        self._model = model
        if timeout <= 0 or idle <= 0 or attempts < 1:
            raise ValueError("ChatModel: timeout, idle and attempts must be greater than 0")
        self._timeout, self._idle, self._attempts = timeout, idle, attempts
        if found := OWN.intersection(options or ()):
            raise ValueError(f"ChatModel: options cannot set {', '.join(sorted(found))}")
        self._options = {"temperature": temperature, "max_tokens": max_tokens, **(options or {})}
        secrets = {name.lower(): _secret(value, name) for name, value in (headers or {}).items()}
        if key:
            key = _secret(key, "key")
            secrets.setdefault("authorization", f"Bearer {key}")
        self._headers = {
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",  # compressed answers have no size that can be limited
            "content-type": "application/json",
            **secrets,
        }
        # The longest first: a short one may be part of it.
        hidden = filter(None, (key, *secrets.values()))
        self._hidden = sorted(hidden, key=len, reverse=True)
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}

    def __repr__(self) -> str:
        return f"ChatModel({self._model!r})"

    @property
    def name(self) -> str:
        """The name of the model, as the server knows it."""
        return self._model

    async def answer(
        self, messages: Sequence[ModelMessage], tools: Sequence[Tool], *, write: Write | None = None
    ) -> ModelAnswer:
        """See `Model.answer`."""
        body = request(
            self._model, messages, tools, stream=write is not None, options=self._options
        )
        give = _Give(write)
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout
        for attempt in count(1):
            try:
                return await self._attempt(body, give, until)
            except Unusable as error:
                failed = error
            # Outside of the `except`, so that the error has no context that shows the details.
            pause = min(FIRST * 2 ** (attempt - 1), LONGEST) * random.uniform(0.5, 1)
            pause = max(pause, failed.wait) if isinstance(failed, Passing) else -1.0
            late = pause > MOST or loop.time() + pause >= until
            if pause < 0 or give.given or attempt >= self._attempts or late:
                logger.warning("model %s: %s %s", self._model, failed, self._masked(failed.detail))
                raise ModelFailed(str(failed))
            logger.info(
                "model %s: %s %s; attempt %d of %d follows in %.1f s",
                *(self._model, failed, self._masked(failed.detail)),
                *(attempt + 1, self._attempts, pause),
            )
            await asyncio.sleep(pause)
        raise AssertionError

    async def close(self) -> None:
        """Close the connections of this event loop."""
        if pool := self._pools.pop(asyncio.get_running_loop(), None):
            await pool.owner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # ---- one attempt -----------------------------------------------------------------------

    async def _attempt(self, body: bytes, give: _Give, until: float) -> ModelAnswer:
        found = Completion()
        limit = asyncio.timeout_at(until)
        try:
            async with limit:
                response = await self._response(body, streamed=give.wanted)
                try:
                    await _read(response, found, give, limit)
                finally:
                    await response.close()
        except TimeoutError:
            if not limit.expired():
                raise  # of `write`
            if not found.ended:
                raise Unusable(f"The model did not answer within {self._timeout:g} s.") from None
        return found.answer()

    async def _response(self, body: bytes, *, streamed: bool) -> TransportResponse:
        """Send the request; return the response if it is an answer."""
        sent = TransportRequest(
            "POST",
            self._url,
            self._headers,
            body,
            # Without a stream the first byte comes when the whole answer is ready.
            patience=self._idle if streamed else self._timeout,
        )
        transport = await self._transport()
        try:
            response = await transport.send(sent)
        except Unreachable as error:
            raise Passing("The model's server cannot be reached.", str(error)) from None
        if response.status == 200:
            return response
        try:
            detail = f"{response.status}: {excerpt(await _beginning(response))}"
        finally:
            await response.close()
        words = _refusal(response.status)
        if response.status in AGAIN or response.status >= 500:
            raise Passing(words, detail, _retry_after(response.headers.get("retry-after", "")))
        raise Unusable(words, detail)

    async def _transport(self) -> HTTPTransport:
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            for ended in [each for each in list(self._pools) if each.is_closed()]:
                self._pools.pop(ended, None)
            owner = _connections()
            self._pools[loop] = _Pool(owner, await anext(owner))
        return self._pools[loop].transport

    def _masked(self, text: str) -> str:
        """For the log: without secrets, on one line."""
        cut = len(text.encode()) >= EXCERPT
        text = re.sub(r"//[^/\s]*@", f"//{MASK}@", clean(text, 2 * EXCERPT))
        for secret in self._hidden:
            text = text.replace(secret, MASK)
        if cut and self._hidden:  # the end may be half of a secret
            text = text[: -len(self._hidden[0])]
        return " ".join(text.split())[:LOGGED]


class _Pool(NamedTuple):
    """The connections of an event loop, and the generator that closes them."""

    owner: AsyncGenerator[HTTPTransport, None]
    transport: HTTPTransport


async def _connections() -> AsyncGenerator[HTTPTransport, None]:
    """Open connections. `asyncio.run` closes all generators of its loop at the end, and the loop
    closes those that nobody refers to any more. So a model needs no other owner."""
    transport = HTTPTransport()
    try:
        yield transport
    finally:
        await transport.close()


class _Give:
    """Gives text away, and knows whether it has."""

    def __init__(self, write: Write | None) -> None:
        self._write = write
        self.wanted = write is not None
        self.given = False

    async def __call__(self, text: str) -> None:
        if self._write is not None and text:
            self.given = True
            await self._write(text)


async def _read(
    response: TransportResponse, found: Completion, give: _Give, limit: asyncio.Timeout
) -> None:
    """Read an answer; the server decides whether it is a stream."""
    chunks = _received(response)
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        await give(found.whole(await whole_body(chunks, ANSWER)))
        return
    try:
        async for data in data_lines(chunks):
            await give(found.chunk(data))
            if found.ended:
                wait = LINGER if data == DONE else GRACE
                until = asyncio.get_running_loop().time() + wait
                limit.reschedule(min(until, limit.when() or until))
    except Passing:
        if not found.ended:
            raise
    if not found.ended:
        raise Passing("The model's server broke its answer off.", "the stream has no end")


async def _received(response: TransportResponse) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.chunks():
            yield chunk
    except Unreachable as error:
        raise Passing("The connection to the model's server broke.", str(error)) from None


async def _beginning(response: TransportResponse) -> bytes:
    """The beginning of the text of an error."""
    found = bytearray()
    with suppress(Unreachable, TimeoutError):
        async with asyncio.timeout(GRACE):
            async for chunk in response.chunks():
                found += chunk
                if len(found) >= EXCERPT:
                    break
    return bytes(found)


def _refusal(status: int) -> str:
    if status in (401, 403):
        return "The model's server refused our credentials."
    if status == 404:
        return "The model's server does not know the model or the address."
    if status == 429:
        return "The model's server is busy."
    if status >= 500:
        return "The model's server failed."
    return "The model's server refused the request."


def _retry_after(text: str) -> float:
    """The seconds of a `Retry-After` header, a number or a date; 0 if it is not valid."""
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII):
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError, OverflowError):
        return 0.0


# ---- arguments -----------------------------------------------------------------------------


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError("ChatModel: the URL must begin with http:// or https:// and have a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("ChatModel: the URL must not contain credentials; use key= or headers=")
    path = f"{parts.path.rstrip('/')}/chat/completions"
    return parts._replace(path=path, fragment="").geturl()


def _secret(value: str, what: str) -> str:
    """Replace a reference to a secret by the secret."""
    place, colon, rest = value.partition(":")
    if colon and place == "env":
        value = os.environ.get(rest, "")
        if not value:
            raise ValueError(f"ChatModel: {what}: the variable {rest} is not set")
    elif colon and place == "file":
        try:
            value = Path(rest).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "is not text"
            raise ValueError(f"ChatModel: {what}: {rest}: {reason}") from None
    if not value.isascii() or not value.isprintable():
        raise ValueError(f"ChatModel: {what}: contains characters that a header cannot contain")
    return value
