"""A chat-completions server on loopback that a script drives.

A script is a list of steps, one for each request, or a function from the request to a step (a str
is `say`). The HTTP, streaming and tool-call forms are those of real servers, also the broken ones.

`python -m tests.products.orchestrator.chat_server --script NAME --port N` serves a script of
`SCRIPTS`, or `module:name`. `GET /requests` returns the requests so far.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tests.harness.raw_server import Visit, listening


class Request(NamedTuple):
    """One request for a completion."""

    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.body["messages"]
        return found

    @property
    def tools(self) -> list[str]:
        """The names of the tools."""
        return [tool["function"]["name"] for tool in self.body.get("tools", ())]

    @property
    def results(self) -> list[str]:
        """The results of tools after the last answer of the model."""
        found: list[str] = []
        for message in reversed(self.messages):
            if message["role"] != "tool":
                break
            found.insert(0, message["content"])
        return found

    @property
    def last(self) -> str:
        """The text of the last message."""
        return str(self.messages[-1].get("content") or "")

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))


Step: TypeAlias = Callable[[Request, Visit], Awaitable[None]]
"""Answers one request."""
Script: TypeAlias = Sequence[Step | str] | Callable[[Request], Step | str]


class Call(NamedTuple):
    """A call of a tool. Arguments that are a str are sent as they are."""

    name: str
    arguments: Any = ""
    id: str = ""

    def wire(self, number: int) -> dict[str, Any]:
        given = self.arguments
        text = given if isinstance(given, str) else json.dumps(given)
        function = {"name": self.name, "arguments": text}
        return {"id": self.id or f"call_{number}", "type": "function", "function": function}


# ---- the forms -----------------------------------------------------------------------------


def head(
    status: int, kind: str, headers: Mapping[str, str] | None = None, size: int | None = None
) -> bytes:
    """The head of a response; without a size, its body is chunked."""
    lines = [f"HTTP/1.1 {status} Any", f"content-type: {kind}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines.append("transfer-encoding: chunked" if size is None else f"content-length: {size}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(status: int, kind: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """A response in one piece."""
    return head(status, kind, headers, len(body)) + body


def piece(data: bytes) -> bytes:
    """A chunk of a chunked body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(value: Any) -> bytes:
    """One event of a stream, as a chunk."""
    data = value if isinstance(value, str) else json.dumps(value)
    return piece(f"data: {data}\n\n".encode())


STREAM = head(200, "text/event-stream; charset=utf-8")


def chunk(
    delta: Mapping[str, Any] | None = None, reason: str | None = None, **more: Any
) -> dict[str, Any]:
    """The value of one event."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
    kind = "chat.completion.chunk"
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "choices": choices, **more}


def completion(
    text: str | None, calls: Iterable[Call] = (), *, reason: str = "", usage: Any = None
) -> dict[str, Any]:
    """An answer in one piece."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if wired := [call.wire(n) for n, call in enumerate(calls)]:
        message["tool_calls"] = wired
    reason = reason or ("tool_calls" if wired else "stop")
    choice = {"index": 0, "message": message, "finish_reason": reason}
    found = {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice]}
    return {**found, "usage": usage} if usage else found


def spent(tokens: tuple[int, int]) -> dict[str, int]:
    """The wire form of a usage."""
    return {
        "prompt_tokens": tokens[0],
        "completion_tokens": tokens[1],
        "total_tokens": sum(tokens),
    }


def parts(text: str, size: int) -> list[str]:
    """A text in pieces."""
    return [text[at : at + size] for at in range(0, len(text), size)]


def deltas(text: str | None, calls: Sequence[Call], size: int = 7) -> list[dict[str, Any]]:
    """The pieces of an answer; those of several calls come in turn."""
    found: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    found += [{"content": each} for each in parts(text or "", size)]
    rest: list[list[str]] = []
    for number, call in enumerate(calls):
        wired = call.wire(number)
        arguments = wired["function"]["arguments"]
        wired["function"]["arguments"] = ""
        found.append({"tool_calls": [{"index": number, **wired}]})
        rest.append(parts(arguments, size))
    while any(rest):
        for number, pieces in enumerate(rest):
            if pieces:
                function = {"arguments": pieces.pop(0)}
                found.append({"tool_calls": [{"index": number, "function": function}]})
    return found


# ---- steps ---------------------------------------------------------------------------------


def say(
    text: str | None = None,
    *calls: Call,
    usage: tuple[int, int] = (7, 5),
    reason: str = "",
    streams: bool = True,
    size: int = 7,
) -> Step:
    """Answer with text, calls of tools, or both, in pieces of this size. Without `streams` the
    server ignores `stream`."""

    async def step(request: Request, visit: Visit) -> None:
        if not (request.streamed and streams):
            found = completion(text, calls, reason=reason, usage=spent(usage))
            await visit.send(whole(200, "application/json", json.dumps(found).encode()))
            return
        data = STREAM + b"".join(event(chunk(each)) for each in deltas(text, calls, size))
        data += event(chunk({}, reason or ("tool_calls" if calls else "stop")))
        if request.body.get("stream_options", {}).get("include_usage"):
            data += event(chunk(usage=spent(usage)))
        await visit.send(data + event("[DONE]") + piece(b""))

    return step


def call(name: str, arguments: Any = "{}", id: str = "") -> Step:
    """Call one tool."""
    return say(None, Call(name, arguments, id))


def status(code: int, body: str = '{"error": {"message": "no"}}', **headers: str) -> Step:
    """Refuse; `retry_after="1"` is a header."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def step(request: Request, visit: Visit) -> None:
        await visit.send(whole(code, "application/json", body.encode(), named))

    return step


def body(data: str | bytes, kind: str = "application/json") -> Step:
    """A response of status 200 with any body."""
    raw = data.encode() if isinstance(data, str) else data

    async def step(request: Request, visit: Visit) -> None:
        await visit.send(whole(200, kind, raw))

    return step


def events(*values: Any, ends: bool = True) -> Step:
    """A stream of any events; without `ends` the connection breaks after them."""

    async def step(request: Request, visit: Visit) -> None:
        await visit.send(STREAM + b"".join(map(event, values)) + (piece(b"") if ends else b""))
        if not ends:
            visit.writer.close()

    return step


def cut(text: str = "", *calls: Call) -> Step:
    """Break off in the middle: after the text if it streams, else in the middle of the body."""

    async def step(request: Request, visit: Visit) -> None:
        if request.streamed:
            data = STREAM + b"".join(event(chunk(each)) for each in deltas(text, calls))
        else:
            found = json.dumps(completion(text or "never", calls)).encode()
            data = head(200, "application/json", size=len(found)) + found[:-9]
        await visit.send(data)
        visit.writer.close()

    return step


def drop() -> Step:
    """Close the connection without a response."""

    async def step(request: Request, visit: Visit) -> None:
        visit.writer.transport.abort()

    return step


def hang(text: str | None = None) -> Step:
    """Say nothing more: before the response, or after a text. Ends when the client goes away."""

    async def step(request: Request, visit: Visit) -> None:
        if text is not None and request.streamed:
            await visit.send(STREAM + b"".join(event(chunk(each)) for each in deltas(text, ())))
        await visit.over()

    return step


def endless(value: Any = None, pause: float = 0.0) -> Step:
    """A stream that never ends."""

    async def step(request: Request, visit: Visit) -> None:
        await visit.send(STREAM)
        data = event(value if value is not None else chunk({"content": "and so on "}))
        with contextlib.suppress(ConnectionError):
            while not visit.writer.is_closing():
                await visit.send(data)
                await asyncio.sleep(pause)

    return step


def huge(size: int) -> Step:
    """An answer with this many bytes of text."""
    return say("x" * size, size=1 << 16)


def html() -> Step:
    """The page of some proxy."""
    return body("<html><body>Sign in to go on</body></html>", "text/html")


# ---- the server ----------------------------------------------------------------------------


class ChatServer:
    """A running server."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.port = 0
        self.requests: list[Request] = []
        self.connections = 0
        self.gone = 0
        """The connections that have ended."""
        self._changed = asyncio.Condition()

    @property
    def url(self) -> str:
        """For `ChatModel`."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def until(self, holds: Callable[[ChatServer], bool]) -> None:
        """Wait until this holds: it is asked after each request and each end of a connection."""
        async with self._changed, asyncio.timeout(10):
            await self._changed.wait_for(lambda: holds(self))

    async def talk(self, visit: Visit) -> None:
        """Serve one connection."""
        self.connections += 1
        try:
            while not visit.writer.is_closing():
                await self._one(visit)
        finally:
            self.gone += 1
            await self._notify()

    async def _one(self, visit: Visit) -> None:
        first, headers, data = await visit.request()
        if first.startswith("GET /requests"):
            found = json.dumps([request._asdict() for request in self.requests]).encode()
            await visit.send(whole(200, "application/json", found))
            return
        if first.partition("?")[0].split()[:2] != ["POST", "/v1/chat/completions"]:
            await visit.send(whole(404, "application/json", b'{"error": {"message": "?"}}'))
            return
        request = Request(headers, json.loads(data))
        self.requests.append(request)
        await self._notify()
        step = self._step(request)
        await (say(step) if isinstance(step, str) else step)(request, visit)

    def _step(self, request: Request) -> Step | str:
        if callable(self.script):
            return self.script(request)
        if len(self.requests) > len(self.script):
            return status(400, '{"error": {"message": "the script is over"}}')
        return self.script[len(self.requests) - 1]

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@contextlib.asynccontextmanager
async def serving(script: Script, *, port: int = 0) -> AsyncIterator[ChatServer]:
    """Run a server on 127.0.0.1."""
    server = ChatServer(script)
    async with listening(server.talk, port=port) as listener:
        server.port = listener.port
        yield server


# ---- as a process --------------------------------------------------------------------------


def every_tool(request: Request) -> Step | str:
    """Call each tool once, at the same time; then repeat what they have said."""
    if request.results or not request.tools:
        return " / ".join(request.results) or request.last
    return say(None, *(Call(name, {"message": request.last}) for name in request.tools))


def one_more(request: Request) -> Step | str:
    """Call the first tool again and again."""
    name = request.tools[0] if request.tools else "nothing"
    return call(name, {"message": "again"}, f"call_{len(request.messages)}")


SCRIPTS: dict[str, Script] = {
    "hello": lambda request: "Hello from the model.",
    "every-tool": every_tool,
    "one-more": one_more,
    "busy": lambda request: status(429, retry_after="1"),
    "failing": lambda request: status(500),
    "silent": lambda request: hang(),
}


def _named(name: str) -> Script:
    module, colon, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute) if colon else SCRIPTS[name]


async def _main(name: str, port: int) -> None:
    async with serving(_named(name), port=port) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--script", default="hello")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(given.script, given.port))
