"""The wire form of chat completions: the bodies of requests, answers in one piece and in chunks.

What a server sends is not trusted: every size has a limit, and what cannot be used raises
`Unusable`.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from dragoman.orchestrator.model import (
    CUT_OFF,
    EMPTY,
    HELD_BACK,
    ModelAnswer,
    ModelMessage,
    Tool,
    ToolCall,
    Usage,
)

ANSWER = 4 << 20
"""The most bytes of an answer: of its body, of one chunk, and of its text and calls together."""
STREAM = 64 << 20
"""The most bytes of all chunks of an answer: an envelope is much larger than its token."""
CALLS, ARGUMENTS, NAME = 128, 256 << 10, 256
"""The most calls of one answer, bytes of the arguments of a call, characters of its name and id."""
MOST_TOKENS = 1 << 40
DONE = b"[DONE]"
"""The data of the last event of a stream."""
EXCERPT = 2000
"""The most bytes of what a server has sent that are kept for the log."""
OWN = frozenset(("messages", "model", "stream", "tools"))
"""The fields of a request that options cannot set."""

MALFORMED = (msgspec.DecodeError, ValueError, RecursionError)
"""What the decoder raises for malformed JSON, bad UTF-8, and arrays in arrays without end."""
ABSENT = Raw(b"null")
TOO_LONG = f"The model's answer is longer than {ANSWER >> 20} MiB."
NOT_READABLE = "The model's server sent something that is not an answer of a model."


class Unusable(Exception):
    """An answer that cannot be used. The text may be shown to clients; `detail` is for the log."""

    def __init__(self, text: str, detail: str = "") -> None:
        super().__init__(text)
        self.detail = detail


# ---- requests ------------------------------------------------------------------------------


def request(
    model: str,
    messages: Sequence[ModelMessage],
    tools: Sequence[Tool],
    *,
    stream: bool,
    options: Mapping[str, Any],
) -> bytes:
    """The body of a request. Options that are None are left out."""
    body: dict[str, Any] = {"model": model, "messages": [_message(each) for each in messages]}
    if tools:  # servers refuse an empty list
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            }
            for tool in tools
        ]
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    body |= options
    return msgspec.json.encode({name: value for name, value in body.items() if value is not None})


def _message(message: ModelMessage) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call, "content": message.text}
    if not message.calls:
        return {"role": message.role, "content": message.text}
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": _arguments(call.arguments)},
        }
        for call in message.calls
    ]
    return {"role": message.role, "content": message.text or None, "tool_calls": calls}


def _arguments(text: str) -> str:
    """Some servers parse the arguments of earlier calls and refuse the whole request if they are
    malformed. The result of such a call says what was wrong with them."""
    try:
        msgspec.json.decode(text, type=dict[str, Raw])
    except MALFORMED:
        return "{}"
    return text


# ---- answers -------------------------------------------------------------------------------


class _Part(Struct):
    type: str = "text"
    text: str | None = None


class _Function(Struct):
    name: str | None = None
    arguments: Raw = ABSENT


class _Call(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Message(Struct):
    content: str | list[_Part] | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content if part.type == "text")
        return self.content or self.refusal or ""


class _Choice(Struct):
    index: int | None = None
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Completion(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Raw = ABSENT


_decode = msgspec.json.Decoder(_Completion).decode


class _OpenCall:
    """A call of a tool whose pieces are still arriving."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.size = 0

    def add(self, call: _Call) -> int:
        """Add a piece; return its bytes."""
        function = call.function or _Function()
        self.id = self.id or call.id or ""
        if function.name and function.name != self.name:  # some servers repeat it in each piece
            self.name += function.name
        size = 0
        if text := _text(function.arguments):
            self.arguments.append(text)
            size = len(text.encode())
            self.size += size
        if self.size > ARGUMENTS:
            limit = f"{ARGUMENTS >> 10} KiB"
            raise Unusable(f"The model called a tool with arguments of more than {limit}.")
        if max(len(self.id), len(self.name)) > NAME:
            raise Unusable(f"The model called a tool with a name or an id over {NAME} characters.")
        return size


class Completion:
    """An answer: whole, or in chunks as they come."""

    def __init__(self) -> None:
        self.ended = False
        """The server has said that nothing more follows, except perhaps the usage."""
        self._reason = ""
        self._text: list[str] = []
        self._calls: list[_OpenCall] = []
        self._at: dict[int, _OpenCall] = {}
        self._size = 0
        self._usage = Usage()

    def whole(self, body: bytes) -> str:
        """Take an answer in one piece; return its text."""
        found = self._read(body)
        if not found.choices:
            raise Unusable(NOT_READABLE, f"no choices: {excerpt(body)}")
        self.ended = True
        message = found.choices[0].message or _Message()
        self._add(found.choices[0], message.text)
        for call in message.tool_calls or ():
            self._piece(call, self._new())
        return message.text

    def chunk(self, data: bytes) -> str:
        """Take the next chunk; return its text."""
        if data == DONE:
            self.ended = True
            return ""
        text = ""
        for choice in self._read(data).choices or ():
            if choice.index:
                continue  # we ask for one answer, which has the index 0
            # A server that does not stream may send the whole message as its only chunk.
            message = choice.delta or choice.message or _Message()
            text += message.text
            self._add(choice, message.text)
            for call in message.tool_calls or ():
                self._piece(call, self._call(call))
        return text

    def answer(self) -> ModelAnswer:
        """The whole answer."""
        if self._reason == "length":
            raise Unusable(CUT_OFF)
        if self._reason == "content_filter":
            raise Unusable(HELD_BACK)
        text, seen = "".join(self._text), set[str]()
        calls = [self._closed(call, seen) for call in self._calls]
        if not calls and not text.strip():
            raise Unusable(EMPTY)
        return ModelAnswer(text=text, calls=tuple(calls), usage=self._usage)

    def _read(self, data: bytes) -> _Completion:
        try:
            found = _decode(data)
        except MALFORMED as error:
            raise Unusable(NOT_READABLE, f"{error}: {excerpt(data)}") from None
        if bytes(found.error) not in (b"null", b"{}", b'""', b"false"):
            raise Unusable("The model's server reported an error.", excerpt(bytes(found.error)))
        if found.usage is not None:  # the last one counts
            spent = (found.usage.prompt_tokens or 0, found.usage.completion_tokens or 0)
            self._usage = Usage(*(min(max(count, 0), MOST_TOKENS) for count in spent))
        return found

    def _add(self, choice: _Choice, text: str) -> None:
        if text:
            self._text.append(text)
            self._grown(len(text.encode()))
        if choice.finish_reason:
            self._reason = choice.finish_reason
            self.ended = True

    def _piece(self, call: _Call, to: _OpenCall) -> None:
        self._grown(to.add(call))

    def _grown(self, size: int) -> None:
        self._size += size
        if self._size > ANSWER:
            raise Unusable(TOO_LONG)

    def _call(self, call: _Call) -> _OpenCall:
        """The call that a piece belongs to."""
        index = call.index
        if index is None:  # some servers leave it out, and send each call in one piece
            return self._new() if call.id or not self._calls else self._calls[-1]
        known = self._at.get(index)
        # Some servers number all calls 0; the id tells them apart.
        named = call.function is not None and call.function.name
        if known is None or (named and call.id and known.id and call.id != known.id):
            known = self._at[index] = self._new()
        return known

    def _new(self) -> _OpenCall:
        if len(self._calls) == CALLS:
            raise Unusable(f"The model called more than {CALLS} tools at once.")
        self._calls.append(_OpenCall())
        return self._calls[-1]

    def _closed(self, call: _OpenCall, seen: set[str]) -> ToolCall:
        if not call.name:
            raise Unusable("The model called a tool without a name.")
        # Results are matched to calls by id, so each call needs its own.
        id = call.id if call.id and call.id not in seen else f"call_{uuid.uuid4().hex}"
        seen.add(id)
        return ToolCall(id, call.name, "".join(call.arguments))


def _text(arguments: Raw) -> str:
    """The arguments of a call; a server may send the object itself instead of its text."""
    if bytes(arguments) == b"null":
        return ""
    try:
        return msgspec.json.decode(arguments, type=str)
    except MALFORMED:
        return bytes(arguments).decode("utf-8", "replace")


def excerpt(data: bytes) -> str:
    """The beginning of what a server has sent, for the log."""
    return data[:EXCERPT].decode("utf-8", "replace")


async def data_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the data of server-sent events. Each line is one event, because no JSON encoder breaks
    lines and some servers leave out the empty line between events."""
    rest, total = bytearray(), 0
    async for chunk in chunks:
        total += len(chunk)
        head, newline, tail = chunk.rpartition(b"\n")
        rest += head if newline else tail
        if total > STREAM or len(rest) > ANSWER + len(chunk):
            raise Unusable(TOO_LONG)
        if newline:
            for data in _data(rest):
                yield data
            rest = bytearray(tail)
    for data in _data(rest):
        yield data


def _data(lines: bytearray) -> Iterable[bytes]:
    for line in lines.split(b"\n"):
        if line.startswith(b"data:") and (data := bytes(line[5:].strip())):
            yield data


async def whole_body(chunks: AsyncIterator[bytes], most: int = ANSWER) -> bytes:
    """Read a body of limited size."""
    found = bytearray()
    async for chunk in chunks:
        found += chunk
        if len(found) > most:
            raise Unusable(TOO_LONG)
    return bytes(found)
