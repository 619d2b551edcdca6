"""JSON-RPC requests of A2A 1.0, and checks of their responses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import count
from typing import Any

from benchmarks.load import Broken

ECHO = "The quick brown fox jumps over the lazy dog."
HEADERS = {"content-type": "application/json", "a2a-version": "1.0"}

_numbers = count(1)
_CHUNK = re.compile(rb'"chunk (\d+) "')


def call(method: str, **params: Any) -> bytes:
    """One request."""
    return json.dumps(
        {"jsonrpc": "2.0", "id": next(_numbers), "method": method, "params": params},
        separators=(",", ":"),
    ).encode()


def message(text: str, task: str | None = None) -> dict[str, Any]:
    """A user's message with an id of its own."""
    written: dict[str, Any] = {
        "messageId": f"message-{next(_numbers)}",
        "role": "ROLE_USER",
        "parts": [{"text": text}],
    }
    if task is not None:
        written["taskId"] = task
    return written


def send(text: str, task: str | None = None) -> bytes:
    """A send; blocking where the server blocks."""
    return call("SendMessage", message=message(text, task))


def older(text: str) -> bytes:
    """The same send in 0.3."""
    part = {"kind": "text", "text": text}
    return call("message/send", message=message(text) | {"role": "user", "parts": [part]})


def stream(text: str) -> bytes:
    """A streaming send."""
    return call("SendStreamingMessage", message=message(text))


def result(body: bytes) -> Any:
    """The result of an answer, or `Broken`."""
    answer = json.loads(body)
    if "result" not in answer:
        raise Broken(f"an error instead of a result: {body[:500]!r}")
    return answer["result"]


def task(body: bytes) -> dict[str, Any]:
    """The task that a send or a get answered."""
    value = result(body)
    return dict(value.get("task", value))


def has(*needles: bytes) -> Callable[[bytes], None]:
    """A check that the answer holds all of these."""

    def check(body: bytes) -> None:
        for needle in needles:
            if needle not in body:
                raise Broken(f"{needle!r} is missing in {body[:500]!r}")

    return check


def echoed(body: bytes) -> str:
    """The echo, if the answer holds it."""
    has(ECHO.encode(), b"TASK_STATE_COMPLETED", b'"artifacts"')(body)
    return ECHO


def chunks(expected: int) -> Callable[[bytes], None]:
    """A check that a stream holds all of its chunks in order, and its end."""

    def check(body: bytes) -> None:
        events = body.count(b'"artifactUpdate"')
        if events != expected:
            raise Broken(f"{events} artifact events instead of {expected}: {body[-500:]!r}")
        numbers = [int(number) for number in _CHUNK.findall(body)]
        if numbers != list(range(expected)):
            raise Broken(f"{expected} chunks are not in order: {numbers[:20]} ...")
        if b"TASK_STATE_COMPLETED" not in body[-1000:]:
            raise Broken(f"the stream has no end: {body[-500:]!r}")

    return check
