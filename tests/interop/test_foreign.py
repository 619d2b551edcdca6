"""Clients that others wrote against our server: what each of them sees, in its own dialect.

`make test` runs those whose environment is there already, `make interop` all of them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.interop import callers
from tests.interop.callers import Foreign, Line
from tests.interop.callers.desk import desk_serving, has_grpc
from tests.interop.peers import Absent

Seen = dict[str, Any]


def missing(foreign: Foreign) -> str:
    """Why this one is left out from the beginning, if it is."""
    if foreign.binding == "GRPC" and not has_grpc():
        return "the server has no gRPC here; pip install 'dragoman[grpc]'"
    return ""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test with each of them that is here, and whose SDK can say what the test is about."""
    if "foreign" in metafunc.fixturenames:
        scene = named_after(metafunc.function.__name__)
        able = [one for one in callers.EVERY if one.can(scene) and not missing(one)]
        metafunc.parametrize("foreign", able, ids=str, scope="module")
    if "left_out" in metafunc.fixturenames:
        absent = [one for one in callers.EVERY if missing(one)]
        metafunc.parametrize("left_out", absent or [None], ids=str)


def named_after(test: str) -> str:
    """The scene that a test is about."""
    return test.removeprefix("test_").replace("_", " ")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def url() -> AsyncIterator[str]:
    """Where the desk is."""
    async with desk_serving() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def played(foreign: Foreign, url: str) -> dict[str, Line] | str:
    """What it tells of its scenes, which it plays once; or why there is nothing to tell."""
    try:
        return await callers.play(foreign, url)
    except Absent as why:
        return f"{foreign.name}: {why}"


@pytest.fixture
def lines(played: dict[str, Line] | str) -> dict[str, Line]:
    """What it tells, if there is something."""
    if isinstance(played, str):
        pytest.skip(played)
    return played


@pytest.fixture
def seen(request: pytest.FixtureRequest, lines: dict[str, Line]) -> Seen:
    """What it saw in the scene that the test is about."""
    line = lines[named_after(request.node.originalname)]
    assert line["ok"] is True, line["seen"]
    found: Seen = line["seen"]
    return found


def echoed(seen: Seen) -> Seen:
    """The one part that came back, in the task's only artifact."""
    assert (seen["kind"], seen["state"]) == ("task", "completed")
    assert [one["role"] for one in seen["history"]] == ["user"]
    (artifact,) = seen["artifacts"]
    assert artifact["name"] in ("echo", "")  # python-a2a drops it
    (part,) = artifact["parts"]
    assert [part] == seen["history"][0]["parts"]
    found: Seen = part
    return found


def counted(number: int) -> str:
    """What the desk counts."""
    return "".join(f"{n}," for n in range(number))


def text(parts: list[Seen]) -> str:
    """The texts of parts."""
    return "".join(part["text"] for part in parts)


def test_all_are_here(left_out: Foreign | None) -> None:
    if left_out is not None:
        pytest.skip(f"{left_out}: {missing(left_out)}")
    assert not any(map(missing, callers.EVERY))


def test_what_it_cannot_say(
    foreign: Foreign, lines: dict[str, Line], record_property: Callable[[str, object], None]
) -> None:
    absent = sorted(scene for scene, line in lines.items() if line["ok"] == "absent")
    record_property("absent", absent)
    assert absent == sorted(scene for scene in lines if not foreign.can(scene))
    assert sorted(lines) == sorted(
        named_after(name)
        for name, test in globals().items()
        if name.startswith("test_") and "seen" in inspect.signature(test).parameters
    )


# ---- messages --------------------------------------------------------------------------------


def test_card(foreign: Foreign, seen: Seen) -> None:
    assert (seen["name"], seen["streaming"]) == ("Desk", True)
    if foreign.dialect in ("1.0", "mixed"):
        assert seen["version"] == "1.0"
    elif seen["version"] is not None:
        assert re.match(r"0\.[23]\b", seen["version"])
    if foreign.dialect in ("1.0", "0.3"):
        assert {"JSONRPC", "HTTP+JSON", foreign.binding} <= set(seen["transports"])


def test_send(seen: Seen) -> None:
    assert echoed(seen) == {"text": "hello é 😀"}


def test_poll(seen: Seen) -> None:
    assert seen["first"] in ("submitted", "working")
    assert seen["state"] == "completed"
    assert text(seen["artifacts"][0]["parts"]) == counted(20)


def test_data(seen: Seen) -> None:
    assert echoed(seen) == {"data": {"list": [1, 1.5, True, "x"], "deep": {"text": ""}}}


def named(foreign: Foreign, name: str) -> str | None:
    """The name of a file, which the JavaScript SDK leaves out where it writes protobuf."""
    return None if foreign.name == "javascript-0.3" and foreign.protobuf else name


def test_file_bytes(foreign: Foreign, seen: Seen) -> None:
    part = {"name": None, **echoed(seen)}
    assert part == {"bytes": "AP/+IGJ5dGVz", "name": named(foreign, "a.png"), "type": "image/png"}


def test_file_url(foreign: Foreign, seen: Seen) -> None:
    part = {"name": None, **echoed(seen)}
    assert part == {
        "url": "https://files.example/a?b=c",
        "name": named(foreign, "a.csv"),
        "type": "text/csv",
    }


def test_reply(foreign: Foreign, seen: Seen) -> None:
    if foreign.dialect == "0.1":  # which knows nothing but tasks
        assert (seen["kind"], seen["state"], seen["said"]) == ("task", "completed", "hi")
    else:
        assert seen == {"kind": "message", "role": "agent", "parts": [{"text": "hi"}]}


def test_fail(seen: Seen) -> None:
    assert (seen["kind"], seen["state"], seen["said"]) == ("task", "failed", "as told")


def test_ask(seen: Seen) -> None:
    assert (seen["asked"], seen["said"]) == ("input-required", "Which?")
    assert (seen["same task"], seen["same context"]) == (True, True)
    assert seen["state"] == "completed"
    assert text(seen["artifacts"][0]["parts"]) == "this one"


# ---- streams ---------------------------------------------------------------------------------


def final(foreign: Foreign, number: int) -> list[bool | None]:
    """The flag of so many status events, of which the last one is the last of the stream."""
    if foreign.dialect in ("1.0", "mixed"):
        return [None] * number
    return [False] * (number - 1) + [True]


def test_stream(foreign: Foreign, seen: Seen) -> None:
    assert seen["kinds"] == ["task", "status", *["artifact"] * 5, "status"]
    assert seen["states"] == ["submitted", "working", "completed"]
    assert seen["text"] == counted(5)
    assert seen["final"] == final(foreign, 2)
    if not (foreign.name == "javascript-0.3" and foreign.protobuf):  # which does not read it
        assert seen["append"] == [False, True, True, True, True]


def test_stream_reply(seen: Seen) -> None:
    assert seen == {"kinds": ["message"], "text": "hi"}


def test_subscribe(foreign: Foreign, seen: Seen) -> None:
    assert seen["kinds"] == ["task", "status"]
    assert seen["states"] == ["working", "canceled"]
    assert seen["final"] == final(foreign, 1)


# ---- tasks -----------------------------------------------------------------------------------


def test_history(foreign: Foreign, seen: Seen) -> None:
    if foreign.dialect != "0.1":  # whose client asks for none if it is not told
        assert seen["whole"] == [["user", "ask"], ["agent", "Which?"], ["user", "this one"]]
    assert seen["short"] == [["user", "this one"]]


def test_listing(seen: Seen) -> None:
    assert seen == {"found": True, "states": ["completed", "completed"]}


def test_cancel(seen: Seen) -> None:
    assert seen == {"state": "canceled"}


# ---- webhooks --------------------------------------------------------------------------------


def test_webhook(seen: Seen) -> None:
    given = {"id": "one", "url": "http://127.0.0.1:9/a", "token": "secret"}
    assert given.items() <= seen["made"].items()
    assert seen["got"] == seen["made"]


def test_webhook_list(seen: Seen) -> None:
    assert seen == {"ids": ["one", "two"]}


def test_delivery(foreign: Foreign, seen: Seen) -> None:
    assert (seen["token"], seen["last"]) == (["secret"], "completed")
    if foreign.dialect == "1.0":
        assert seen["type"] == ["application/a2a+json"]
        assert {"statusUpdate"} <= set(seen["keys"]) <= {"task", "statusUpdate", "artifactUpdate"}
    else:
        assert seen["type"] == ["application/json"]
        assert seen["keys"] == ["task"]


# ---- mistakes --------------------------------------------------------------------------------

CODES: dict[str, tuple[int, tuple[int, ...], str]] = {
    "TaskNotFound": (-32001, (404,), "NOT_FOUND"),
    "TaskNotCancelable": (-32002, (400, 409), "FAILED_PRECONDITION"),
    "InvalidParams": (-32602, (400,), "INVALID_ARGUMENT"),
}


def check(foreign: Foreign, seen: Seen, error: str) -> None:
    """That an SDK took what it was told for this error."""
    rpc, http, grpc = CODES[error]
    prefix = {"JSONRPC": "JsonRpc", "HTTP+JSON": "Rest", "GRPC": "Grpc"}[foreign.binding]
    match foreign.name, foreign.binding:
        case "reference", _:
            assert seen["error"] == f"{error}Error"
        case "javascript", _:
            own = {"InvalidParams": "RequestMalformed"}.get(error, error)
            assert seen["error"] == f"{prefix}{own}Error"
        case "reference-0.3", "JSONRPC":
            assert (seen["error"], seen["code"]) == ("A2AClientJSONRPCError", rpc)
        case "reference-0.3", "HTTP+JSON":
            assert seen["error"] == "A2AClientHTTPError"
            assert seen["code"] in http
        case "reference-0.3", _:
            assert (seen["error"], seen["code"]) == ("AioRpcError", grpc)
        case "javascript-0.3", "JSONRPC":  # what it meets in a stream has no class
            assert seen["code"] == rpc or f"(Code: {rpc})" in seen["said"]
        case "javascript-0.3", _ if error == "InvalidParams":  # for which it has no class
            assert re.search(rf"\(Code: {rpc}\)|! 3 ", seen["said"])
        case "javascript-0.3", _:
            assert seen["error"] == f"{error}Error"
        case "python-a2a", _:  # makes up a task, or tells what it was told
            assert seen["error"]
        case _:
            assert (seen["error"], seen["code"]) == ("Refused", rpc)


def test_get_unknown(foreign: Foreign, seen: Seen) -> None:
    check(foreign, seen, "TaskNotFound")


def test_cancel_unknown(foreign: Foreign, seen: Seen) -> None:
    check(foreign, seen, "TaskNotFound")


def test_cancel_ended(foreign: Foreign, seen: Seen) -> None:
    check(foreign, seen, "TaskNotCancelable")


def test_subscribe_unknown(foreign: Foreign, seen: Seen) -> None:
    if (foreign.name, foreign.binding) == ("reference-0.3", "HTTP+JSON"):
        # it minds that it is no stream, and does not look at what it is instead
        assert (seen["error"], seen["code"]) == ("A2AClientHTTPError", 400)
    else:
        check(foreign, seen, "TaskNotFound")


def test_webhook_delete(foreign: Foreign, seen: Seen) -> None:
    check(foreign, seen, "TaskNotFound")


def test_refused(foreign: Foreign, seen: Seen) -> None:
    check(foreign, seen, "InvalidParams")


def test_stream_refused(foreign: Foreign, seen: Seen) -> None:
    check(foreign, seen, "InvalidParams")


def test_extended(seen: Seen) -> None:
    assert seen["error"]
    said = f"{seen['code']} {seen['said']}"
    assert re.search(r"\b401\b|UNAUTHENTICATED|\b16\b|authenticat", said)
