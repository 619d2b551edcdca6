"""`ChatModel` against a real server, in all forms of answers, also the broken ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import msgspec
import pytest

from dragoman.orchestrator import (
    ChatModel,
    ModelAnswer,
    ModelFailed,
    ModelMessage,
    Tool,
    ToolCall,
    Usage,
    chat_model,
)
from tests.products.orchestrator import chat_server
from tests.products.orchestrator.asking import KEY, QUICK, USER, Ask
from tests.products.orchestrator.chat_server import (
    Call,
    ChatServer,
    Request,
    body,
    call,
    chunk,
    cut,
    drop,
    endless,
    events,
    hang,
    html,
    huge,
    say,
    serving,
    status,
)

TOOL = Tool("book", "Books a hotel.", {"type": "object", "properties": {"city": {}}})
UNREADABLE = "The model's server sent something that is not an answer of a model."
BROKE = "The model's server broke its answer off."
REPORTED = "The model's server reported an error."
EMPTY = "The model gave an empty answer."
CUT_OFF = "The model's answer was cut off, because it reached the limit of tokens."
HELD_BACK = "The filter of the model's server held the answer back."
TOO_LONG = "The model's answer is longer than 4 MiB."
BIG_CALL = "The model called a tool with arguments of more than 256 KiB."
MANY = "The model called more than 128 tools at once."
LONG_NAME = "The model called a tool with a name or an id over 256 characters."
LATE = "The model did not answer within 1 s."
REFUSED = "The model's server refused the request."


@pytest.fixture(params=[False, True], ids=["plain", "streamed"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Asks in one piece, and as a stream."""
    return Ask(request.param)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_model, "FIRST", 0.01)


@pytest.fixture
async def server() -> AsyncIterator[ChatServer]:
    """A server; a test gives it a script."""
    async with serving([]) as server:
        yield server


def failing(server: ChatServer, **options: Any) -> ChatModel:
    return ChatModel(server.url, "m", **{"timeout": 3.0, **options})


# ---- forms ---------------------------------------------------------------------------------


async def test_text(server: ChatServer, ask: Ask) -> None:
    server.script = ["Grüße aus Rom, dear user"]
    found = await ask(ChatModel(server.url, "qwen"))
    assert found == ModelAnswer(text="Grüße aus Rom, dear user", usage=Usage(7, 5))
    assert "".join(ask.pieces) == (found.text if ask.streamed else "")
    assert (len(ask.pieces) > 1) == ask.streamed
    (request,) = server.requests
    assert request.body["model"] == "qwen"
    assert request.messages == [{"role": "user", "content": "Rome, please"}]
    assert request.streamed == ask.streamed
    assert {"tools", "temperature", "max_tokens", "authorization"}.isdisjoint(
        {*request.body, *request.headers}
    )


async def test_parallel_calls(server: ChatServer, ask: Ask) -> None:
    """They arrive in pieces that take turns; malformed arguments come through."""
    long = '{"city": "' + "x" * 300 + '"}'
    server.script = [say("Wait.", Call("book", long, "a"), Call("look", "{broken", "b"))]
    found = await ask(ChatModel(server.url, "m"), tools=[TOOL])
    assert found.calls == (ToolCall("a", "book", long), ToolCall("b", "look", "{broken"))
    assert found.text == "Wait."
    assert server.requests[0].body["tools"] == [
        {"type": "function", "function": msgspec.to_builtins(TOOL)}
    ]


async def test_a_conversation_with_tools(server: ChatServer, ask: Ask) -> None:
    """Malformed arguments are not sent back, because some servers refuse the whole request."""
    server.script = ["Done."]
    calls = (ToolCall("a", "book", '{"city": "Rome"}'), ToolCall("b", "book", "{broken"))
    messages = [
        ModelMessage(role="system", text="You book."),
        *USER,
        ModelMessage(role="assistant", calls=calls),
        ModelMessage(role="tool", call="a", text="booked"),
        ModelMessage(role="tool", call="b", text="not JSON"),
    ]
    await ask(ChatModel(server.url, "m"), messages, [TOOL])
    system, _, assistant, first, second = server.requests[0].messages
    assert system == {"role": "system", "content": "You book."}
    assert assistant["content"] is None
    assert [(c["id"], c["type"], c["function"]["arguments"]) for c in assistant["tool_calls"]] == [
        ("a", "function", '{"city": "Rome"}'),
        ("b", "function", "{}"),
    ]
    assert first == {"role": "tool", "tool_call_id": "a", "content": "booked"}
    assert second["tool_call_id"] == "b"


async def test_settings_of_a_model(server: ChatServer, ask: Ask) -> None:
    server.script = ["Yes."]
    model = ChatModel(
        f"{server.url}/?version=2",
        "m",
        temperature=0.5,
        max_tokens=9,
        headers={"X-Team": "travel"},
        options={"top_p": 0.1, "stream_options": None},
    )
    assert (await ask(model)).usage == (Usage(0, 0) if ask.streamed else Usage(7, 5))
    (request,) = server.requests
    assert request.headers["x-team"] == "travel"
    sent = {name: request.body.get(name) for name in ("temperature", "max_tokens", "top_p")}
    assert sent == {"temperature": 0.5, "max_tokens": 9, "top_p": 0.1}
    assert "stream_options" not in request.body


async def test_a_server_that_ignores_stream(server: ChatServer) -> None:
    ask = Ask(True)
    server.script = [say("All at once", Call("book", "{}"), streams=False)]
    found = await ask(ChatModel(server.url, "m"))
    assert (found.text, ask.pieces, len(found.calls)) == ("All at once", ["All at once"], 1)


ODD_STREAMS: dict[str, tuple[list[Any], ModelAnswer]] = {
    "no end mark": ([chunk({"content": "Hi"}), chunk({}, "stop")], ModelAnswer(text="Hi")),
    "no reason": ([chunk({"content": "Hi"}), "[DONE]"], ModelAnswer(text="Hi")),
    "nulls": (
        [
            chunk({"content": None, "tool_calls": None}, usage=None, error=None),
            chunk({"content": "Hi"}, "stop"),
        ],
        ModelAnswer(text="Hi"),
    ),
    "usage in each": (
        [
            chunk({"content": "Hi"}, usage={"prompt_tokens": n, "completion_tokens": -1})
            for n in (3, 4)
        ]
        + ["[DONE]"],
        ModelAnswer(text="HiHi", usage=Usage(4, 0)),
    ),
    "no index": (
        [
            chunk({"tool_calls": [{"id": n, "function": {"name": n, "arguments": "{}"}}]})
            for n in ("a", "b")
        ]
        + ["[DONE]"],
        ModelAnswer(calls=(ToolCall("a", "a", "{}"), ToolCall("b", "b", "{}"))),
    ),
    "all at index 0": (
        [
            chunk(
                {"tool_calls": [{"index": 0, "id": n, "function": {"name": n, "arguments": "{}"}}]}
            )
            for n in ("a", "b")
        ]
        + ["[DONE]"],
        ModelAnswer(calls=(ToolCall("a", "a", "{}"), ToolCall("b", "b", "{}"))),
    ),
    "name in each piece": (
        [
            chunk(
                {
                    "tool_calls": [
                        {"index": 0, "id": "a", "function": {"name": "book", "arguments": n}}
                    ]
                }
            )
            for n in ("{", "}")
        ]
        + ["[DONE]"],
        ModelAnswer(calls=(ToolCall("a", "book", "{}"),)),
    ),
    "arguments as an object": (
        [
            chunk(
                {
                    "tool_calls": [
                        {"index": 0, "id": "a", "function": {"name": "book", "arguments": {"x": 1}}}
                    ]
                }
            ),
            "[DONE]",
        ],
        ModelAnswer(calls=(ToolCall("a", "book", '{"x": 1}'),)),
    ),
    "text in parts": (
        [chunk({"content": [{"type": "text", "text": "Hi"}, {"type": "thinking"}]}, "stop")],
        ModelAnswer(text="Hi"),
    ),
    "a refusal": ([chunk({"refusal": "I cannot."}, "stop")], ModelAnswer(text="I cannot.")),
}


@pytest.mark.parametrize("name", ODD_STREAMS)
async def test_odd_but_usable_streams(server: ChatServer, name: str) -> None:
    values, wanted = ODD_STREAMS[name]
    server.script = [events(*values)]
    assert await Ask(True)(ChatModel(server.url, "m")) == wanted


async def test_a_stream_that_is_not_closed_after_its_end(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer waits for the usage only a little."""
    monkeypatch.setattr(chat_model, "GRACE", 0.2)
    ended = chat_server.STREAM + chat_server.event(chunk({"content": "Hi"}, "stop"))

    async def step(request: Request, visit: Any) -> None:
        await visit.send(ended)
        await visit.over()

    server.script = [step]
    assert (await Ask(True)(ChatModel(server.url, "m", timeout=60))).text == "Hi"
    await server.until(lambda server: server.gone == 1)


async def test_calls_without_their_own_ids(server: ChatServer, ask: Ask) -> None:
    wired = [
        {"function": {"name": "book", "arguments": "{}"}, "id": id} for id in ("x", "x", "", None)
    ]
    numbered = [{"index": n, **each} for n, each in enumerate(wired)]
    plain = {"choices": [{"message": {"tool_calls": wired}, "finish_reason": "tool_calls"}]}
    server.script = [
        events(chunk({"tool_calls": numbered}), "[DONE]")
        if ask.streamed
        else body(msgspec.json.encode(plain))
    ]
    found = await ask(ChatModel(server.url, "m"))
    assert found.calls[0].id == "x"
    assert all(each.id for each in found.calls)
    assert len({each.id for each in found.calls}) == 4


# ---- broken forms --------------------------------------------------------------------------


def plain(message: Any, reason: str | None = "stop") -> bytes:
    return msgspec.json.encode({"choices": [{"message": message, "finish_reason": reason}]})


SECRETS = f"the server says {KEY}"
BROKEN: dict[str, tuple[chat_server.Step, str]] = {
    "HTML": (html(), UNREADABLE),
    "nothing": (body(b""), UNREADABLE),
    "not JSON": (body('{"choices": [' + SECRETS), UNREADABLE),
    "not UTF-8": (body(b'{"choices": [{"message": {"content": "\xff"}}]}'), UNREADABLE),
    "an array": (body("[]"), UNREADABLE),
    "arrays in arrays": (body('{"x": ' + "[" * 100_000), UNREADABLE),
    "no choices": (body('{"object": "x"}'), UNREADABLE),
    "empty choices": (body('{"choices": []}'), UNREADABLE),
    "wrong type": (body(plain({"content": 5})), UNREADABLE),
    "wrong calls": (body(plain({"tool_calls": {"a": 1}})), UNREADABLE),
    "wrong kind": (body(plain({"content": "Hi"}), "text/event-stream"), BROKE),
    "an error": (body(f'{{"error": {{"message": "{SECRETS}"}}}}'), REPORTED),
    "no message": (body('{"choices": [{}]}'), EMPTY),
    "an empty answer": (say(""), EMPTY),
    "blanks": (say(" \n "), EMPTY),
    "the limit": (say("I bo", reason="length"), CUT_OFF),
    "a filter": (say("I", reason="content_filter"), HELD_BACK),
    "a huge text": (huge((4 << 20) + 1), TOO_LONG),
    "huge arguments": (call("book", "x" * ((256 << 10) + 1)), BIG_CALL),
    "many calls": (say(None, *[Call("book")] * 129), MANY),
    "a call without a name": (call("", "{}"), "The model called a tool without a name."),
    "a long name": (call("n" * 257), LONG_NAME),
    "400": (status(400, SECRETS), REFUSED),
    "401": (status(401, SECRETS), "The model's server refused our credentials."),
    "404": (status(404, SECRETS), "The model's server does not know the model or the address."),
    "302": (status(302, location="http://127.0.0.1:1/"), REFUSED),
}
STREAMS: dict[str, tuple[chat_server.Step, str]] = {
    "not JSON": (events("{broken"), UNREADABLE),
    "wrong type": (events(chunk({"content": {"a": 1}})), UNREADABLE),
    "wrong index": (events(chunk({"tool_calls": [{"index": "a"}]})), UNREADABLE),
    "an error": (events({"error": {"message": SECRETS, "code": 429}}), REPORTED),
    "an error after text": (events(chunk({"content": "Hi"}), {"error": SECRETS}), REPORTED),
    "only an end": (events("[DONE]"), EMPTY),
    "no event": (events(), BROKE),
    "no end": (events(chunk({"content": "Hi"})), BROKE),
    "endless nonsense": (endless("x" * (1 << 20)), UNREADABLE),
    "endless text": (endless(chunk({"content": "x" * 50_000})), TOO_LONG),
    "endless nothing": (
        endless(chunk({"content": "", "reasoning_content": "x" * 500_000})),
        TOO_LONG,
    ),
    "slow and endless": (endless(chunk({"content": "x"}), 0.05), LATE),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_broken_answers(server: ChatServer, ask: Ask, name: str) -> None:
    step, words = BROKEN[name]
    server.script = lambda request: step
    with pytest.raises(ModelFailed) as failed:
        await ask(failing(server))
    assert str(failed.value) == words
    again = "broke" in words
    assert len(server.requests) == (3 if again else 1)


@pytest.mark.parametrize("name", STREAMS)
async def test_broken_streams(server: ChatServer, name: str) -> None:
    step, words = STREAMS[name]
    server.script = lambda request: step
    ask = Ask(True)
    with pytest.raises(ModelFailed) as failed:
        await ask(failing(server, timeout=1.0 if "slow" in name else QUICK))
    assert str(failed.value) == words
    if "endless" in name:
        await server.until(lambda server: server.gone == 1)
    assert sum(map(len, ask.pieces)) <= 4 << 20


async def test_an_endless_line(server: ChatServer) -> None:
    """Without an end of line nothing can be given away; the line has a limit."""

    async def step(request: Request, visit: Any) -> None:
        await visit.send(chat_server.STREAM + chat_server.piece(b"data: "))
        while not visit.writer.is_closing():
            await visit.send(chat_server.piece(b"x" * 100_000))

    server.script = [step]
    with pytest.raises(ModelFailed, match="longer than 4 MiB"):
        await Ask(True)(failing(server))


# ---- time and attempts ---------------------------------------------------------------------


@pytest.mark.parametrize("code", [408, 409, 429, 500, 503])
async def test_refusals_that_pass(server: ChatServer, ask: Ask, code: int) -> None:
    server.script = [status(code), status(code), "At last."]
    assert (await ask(ChatModel(server.url, "m"))).text == "At last."
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (status(429), "The model's server is busy."),
        (status(500, SECRETS), "The model's server failed."),
        (drop(), "The model's server cannot be reached."),
        (cut(), "The connection to the model's server broke."),
    ],
    ids=["429", "500", "drop", "cut"],
)
async def test_attempts_end(server: ChatServer, ask: Ask, step: Any, words: str) -> None:
    server.script = lambda request: step
    with pytest.raises(ModelFailed) as failed:
        await ask(ChatModel(server.url, "m", attempts=2))
    assert (str(failed.value), len(server.requests)) == (words, 2)


async def test_a_broken_connection_before_the_first_token(server: ChatServer, ask: Ask) -> None:
    """Pieces of a call were not given away, so they do not count."""
    server.script = [drop(), cut("", Call("book", '{"city": "Rome"}')), "At last."]
    assert (await ask(ChatModel(server.url, "m"))).text == "At last."
    assert ask.pieces in ([], ["At last", "."])


async def test_a_stream_that_breaks_after_tokens_is_not_begun_again(server: ChatServer) -> None:
    server.script = [cut("Half an ans"), "never asked"]
    ask = Ask(True)
    with pytest.raises(ModelFailed, match="broke"):
        await ask(ChatModel(server.url, "m"))
    assert "".join(ask.pieces) == "Half an ans"
    assert len(server.requests) == 1


@pytest.mark.parametrize("form", ["seconds", "fraction", "date"])
async def test_retry_after(server: ChatServer, ask: Ask, form: str) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=2)
    wanted = {"seconds": "1", "fraction": "0.4", "date": format_datetime(soon, usegmt=True)}[form]
    server.script = [status(429, retry_after=wanted), "At last."]
    began = asyncio.get_running_loop().time()
    assert (await ask(ChatModel(server.url, "m"))).text == "At last."
    waited = asyncio.get_running_loop().time() - began
    least = {"seconds": 1.0, "fraction": 0.4, "date": 0.5}[form]
    assert least - 0.05 <= waited < 3


@pytest.mark.parametrize("wanted", ["61", "Fri, 31 Dec 2099 23:59:59 GMT"])
async def test_retry_after_that_is_too_long(server: ChatServer, ask: Ask, wanted: str) -> None:
    server.script = [status(429, retry_after=wanted), "never asked"]
    with pytest.raises(ModelFailed, match="busy"):
        await ask(ChatModel(server.url, "m"))
    assert len(server.requests) == 1


@pytest.mark.parametrize("wanted", ["soon", "-1", "9" * 400, "Fri, 99 Foo 2099", "1e9"])
async def test_retry_after_that_is_nonsense(server: ChatServer, wanted: str) -> None:
    server.script = [status(503, retry_after=wanted), "At last."]
    assert (await Ask(False)(ChatModel(server.url, "m"))).text == "At last."


async def test_a_server_that_hangs(server: ChatServer, ask: Ask) -> None:
    server.script = lambda request: hang()
    with pytest.raises(ModelFailed, match=r"did not answer within 0\.3 s"):
        await ask(ChatModel(server.url, "m", timeout=0.3))
    await server.until(lambda server: server.gone == 1)


async def test_a_stream_that_becomes_silent(server: ChatServer) -> None:
    server.script = [hang(), hang("Half an ans"), "never asked"]
    ask = Ask(True)
    with pytest.raises(ModelFailed, match="broke"):
        await ask(ChatModel(server.url, "m", idle=0.2))
    assert ("".join(ask.pieces), len(server.requests)) == ("Half an ans", 2)
    await server.until(lambda server: server.gone == 2)


async def test_an_error_whose_text_does_not_end(
    server: ChatServer, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_model, "GRACE", 0.1)

    async def step(request: Request, visit: Any) -> None:
        await visit.send(chat_server.head(503, "text/plain", size=9) + b"half")
        await visit.over()

    server.script = [step, "At last."]
    assert (await ask(ChatModel(server.url, "m"))).text == "At last."


async def test_nobody_listens(ask: Ask) -> None:
    async with serving([]) as server:
        pass
    with pytest.raises(ModelFailed, match="cannot be reached"):
        await ask(ChatModel(server.url, "m"))


async def test_a_caller_that_goes_away_closes_the_connection(server: ChatServer, ask: Ask) -> None:
    server.script = [hang("Half")]
    running = asyncio.create_task(ask(ChatModel(server.url, "m")))
    await server.until(lambda server: len(server.requests) == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await server.until(lambda server: server.gone == 1)


@pytest.mark.parametrize("kind", [ValueError, TimeoutError, ConnectionError])
async def test_an_error_of_write_stays_as_it_is(server: ChatServer, kind: type[Exception]) -> None:
    server.script = [say("Hello to you"), "never asked"]

    async def write(text: str) -> None:
        raise kind("mine")

    with pytest.raises(kind, match="mine"):
        await ChatModel(server.url, "m").answer(USER, [], write=write)
    assert len(server.requests) == 1
