"""SendMessage: what it waits for, what it rejects, and what it returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.bindings.conftest import Start, user
from tests.harness.app import RunningApp
from tests.harness.clients import Binding, Failed


@pytest.mark.clause(
    "send.task-or-message", "send.blocking", "send.blocking-complete", "results.in-artifacts"
)
@pytest.mark.first
async def test_blocks_until_the_end(client: Binding) -> None:
    task = (await client.call("SendMessage", message=user("hello")))["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert [part["text"] for part in task["artifacts"][0]["parts"]] == ["hello"]
    assert [m["role"] for m in task["history"]] == ["ROLE_USER", "ROLE_AGENT"]


@pytest.mark.clause("send.return-immediately", "get.current-state")
async def test_returns_at_once_when_asked(client: Binding, server: RunningApp) -> None:
    answer = await client.call(
        "SendMessage", message=user("gate"), configuration={"returnImmediately": True}
    )
    assert answer["task"]["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
    server.gate.set()
    task = await ended(client, answer["task"]["id"])
    assert task["artifacts"][0]["parts"][0]["text"] == "through the gate"


@pytest.mark.clause("send.task-or-message", "send.return-immediately-no-effect")
@pytest.mark.parametrize("immediately", [False, True])
async def test_direct_reply_has_no_task(client: Binding, immediately: bool) -> None:
    answer = await client.call(
        "SendMessage",
        message=user("hi", metadata={"skill": "talk"}),
        configuration={"returnImmediately": immediately},
    )
    assert answer["message"]["role"] == "ROLE_AGENT"
    assert answer["message"]["parts"] == [{"text": "you said hi"}]
    assert len(await client.tasks()) == 0
    assert "taskId" not in answer["message"]
    assert answer["message"]["contextId"]


@pytest.mark.clause("turns.input-required", "context.inferred", "message.agent-ids")
async def test_asks_back_and_goes_on(client: Binding) -> None:
    first = (await client.call("SendMessage", message=user("ask")))["task"]
    assert first["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    question = first["status"]["message"]
    assert question["parts"] == [{"text": "Which dates?"}]
    assert (question["taskId"], question["contextId"]) == (first["id"], first["contextId"])
    second = (await client.call("SendMessage", message=user("june", taskId=first["id"])))["task"]
    assert second["id"] == first["id"]
    assert second["contextId"] == first["contextId"]
    assert second["status"]["state"] == "TASK_STATE_COMPLETED"
    said = [message["parts"][0]["text"] for message in second["history"]]
    assert said == ["ask", "working on ask", "Which dates?", "june", "working on june"]


@pytest.mark.clause("send.while-working")
async def test_follow_ups_to_a_working_task_are_queued_in_order(
    client: Binding, server: RunningApp
) -> None:
    first = await client.call(
        "SendMessage", message=user("gate"), configuration={"returnImmediately": True}
    )
    task = first["task"]["id"]
    await until(client, task, "TASK_STATE_WORKING")
    for text in ("second", "third"):
        await client.call(
            "SendMessage",
            message=user(text, taskId=task),
            configuration={"returnImmediately": True},
        )
    server.gate.set()
    done = await ended(client, task)
    texts = [artifact["parts"][0]["text"] for artifact in done["artifacts"]]
    assert texts == ["through the gate", "second", "third"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_follow_up_waits_for_its_own_answer(client: Binding, server: RunningApp) -> None:
    first = await client.call(
        "SendMessage", message=user("gate"), configuration={"returnImmediately": True}
    )
    task = first["task"]["id"]
    follow = asyncio.create_task(client.call("SendMessage", message=user("next", taskId=task)))
    await until_history(client, task, "next")
    server.gate.set()
    answer = (await follow)["task"]
    assert [a["parts"][0]["text"] for a in answer["artifacts"]] == ["through the gate", "next"]


@pytest.mark.clause("send.terminal-task")
async def test_an_ended_task_takes_no_more(client: Binding) -> None:
    task = (await client.call("SendMessage", message=user("hello")))["task"]
    with pytest.raises(Failed) as failed:
        await client.call("SendMessage", message=user("more", taskId=task["id"]))
    assert failed.value.reason == "UNSUPPORTED_OPERATION"
    assert (await client.call("GetTask", id=task["id"]))["history"] == task["history"]


@pytest.mark.clause("send.unknown-task", "task-id.server-only")
async def test_clients_do_not_choose_task_ids(client: Binding) -> None:
    with pytest.raises(Failed) as failed:
        await client.call("SendMessage", message=user("hello", taskId="mine"))
    assert failed.value.reason == "TASK_NOT_FOUND"


@pytest.mark.clause("context.generated", "context.client-chosen", "turns.new-task-in-context")
async def test_contexts(client: Binding) -> None:
    one = (await client.call("SendMessage", message=user("a")))["task"]
    two = (await client.call("SendMessage", message=user("b", contextId="mine")))["task"]
    three = (await client.call("SendMessage", message=user("c", contextId="mine")))["task"]
    assert one["contextId"]
    assert two["contextId"] == three["contextId"] == "mine"
    assert len({one["id"], two["id"], three["id"]}) == 3


@pytest.mark.clause("context.mismatch")
async def test_a_context_that_contradicts_the_task(client: Binding) -> None:
    task = (await client.call("SendMessage", message=user("ask")))["task"]
    with pytest.raises(Failed) as failed:
        await client.call("SendMessage", message=user("june", taskId=task["id"], contextId="other"))
    assert failed.value.reason == "INVALID_PARAMS"
    assert failed.value.fields == ["message.contextId"]


def malformed(message: dict[str, Any], field: str) -> Any:
    """A case that a client of 0.3 has no words for."""
    return pytest.param(message, field, marks=pytest.mark.needs("malformed"))


def json_only(message: dict[str, Any], field: str) -> Any:
    """A case that a message of protobuf cannot hold."""
    return pytest.param(message, field, marks=pytest.mark.needs("json"))


@pytest.mark.storeless
@pytest.mark.clause("errors.field-violations", "errors.validate-first", "fields.required")
@pytest.mark.parametrize(
    ("message", "field"),
    [
        malformed({"role": "ROLE_USER", "parts": [{"text": "x"}]}, "message.messageId"),
        malformed({"messageId": "m", "parts": [{"text": "x"}]}, "message.role"),
        ({"messageId": "m", "role": "ROLE_USER", "parts": []}, "message.parts"),
        malformed({"messageId": "m", "role": "ROLE_USER", "parts": [{}]}, "message.parts[0]"),
        json_only(user(parts=[{"text": "x", "url": "y"}]), "message.parts[0]"),
        json_only(user(parts=[{"text": 5}]), "message.parts[0].text"),
        (user("x", metadata={"skill": "dance"}), "message.metadata.skill"),
        (user("x", metadata={"skill": 5}), "message.metadata.skill"),
        (user("x", metadata={"skill": "book"}), "message.parts"),
        (
            user(parts=[{"data": {"city": "Rome", "nights": "two"}}], metadata={"skill": "book"}),
            "message.parts[0].data.nights",
        ),
    ],
)
async def test_bad_messages_are_told_which_field(
    client: Binding, message: dict[str, Any], field: str
) -> None:
    with pytest.raises(Failed) as failed:
        await client.call("SendMessage", message=message)
    assert failed.value.reason == "INVALID_PARAMS"
    assert failed.value.fields == [field]
    assert field in failed.value.message
    assert len(await client.tasks()) == 0


async def test_structured_input_reaches_the_handler(client: Binding) -> None:
    message = user(parts=[{"data": {"city": "Rome", "nights": 2}}], metadata={"skill": "book"})
    task = (await client.call("SendMessage", message=message))["task"]
    assert task["artifacts"][0]["parts"] == [{"data": {"city": "Rome", "nights": 2}}]


@pytest.mark.clause("part.raw-base64", "part.data-any-json", "metadata.any-json")
async def test_parts_of_every_kind_go_there_and_back(client: Binding) -> None:
    parts = [
        {"text": "ünïcode \u2028"},
        {"raw": "AAEC", "filename": "a.bin"},
        {"url": "https://example.com/a.pdf"},
        {"data": None},
        {"data": [1, "two", {"three": [3.5, None, True]}]},
        {"text": "", "metadata": {"deep": {"er": [1, {}]}}},
    ]
    message = user(parts=parts, metadata={"skill": "files", "other": {"x": [1]}})
    task = (await client.call("SendMessage", message=message))["task"]
    assert task["artifacts"][0]["parts"] == parts
    assert task["history"][0]["parts"] == parts
    assert task["history"][0]["metadata"] == message["metadata"]


@pytest.mark.storeless
@pytest.mark.needs("media-type")
@pytest.mark.clause("send.content-type", "card.skill-modes")
async def test_media_types_are_checked_against_agent_and_skill(client: Binding) -> None:
    def message(media_type: str, skill: str | None) -> dict[str, Any]:
        data = {"data": {"city": "Rome"}, "mediaType": media_type}
        return user(parts=[data], **({"metadata": {"skill": skill}} if skill else {}))

    for media_type, skill in (
        ("image/png", None),
        ("text/html", "book"),
        ("text/plain", "book"),  # its own modes take the place of the agent's
    ):
        with pytest.raises(Failed) as failed:
            await client.call("SendMessage", message=message(media_type, skill))
        assert failed.value.reason == "CONTENT_TYPE_NOT_SUPPORTED"
        assert media_type in failed.value.message
    for media_type, skill in (
        ("image/png", "book"),
        ("application/json", "book"),  # its parameters are data
        ("application/json; charset=utf-8", None),
        ("TEXT/PLAIN", None),
    ):
        answer = await client.call("SendMessage", message=message(media_type, skill))
        assert answer["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize(
    ("text", "state", "words"),
    [
        ("reject", "TASK_STATE_REJECTED", "I will not"),
        ("fail", "TASK_STATE_FAILED", "I could not"),
    ],
)
async def test_the_agent_says_no(client: Binding, text: str, state: str, words: str) -> None:
    task = (await client.call("SendMessage", message=user(text)))["task"]
    assert task["status"]["state"] == state
    assert task["status"]["message"]["parts"] == [{"text": words}]


@pytest.mark.clause("errors.invalid-agent-response")
@pytest.mark.first
async def test_an_exception_becomes_a_failed_task_without_internals(client: Binding) -> None:
    task = (await client.call("SendMessage", message=user("raise")))["task"]
    words = task["status"]["message"]["parts"][0]["text"]
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert "ValueError" in words
    assert "correlation id" in words
    assert "secret" not in words


@pytest.mark.clause("auth-required.state")
async def test_auth_required_answers_while_the_handler_waits(
    client: Binding, server: RunningApp
) -> None:
    task = (await client.call("SendMessage", message=user("auth")))["task"]
    assert task["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    server.gate.set()
    assert (await ended(client, task["id"]))["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.clause("history.zero", "history.limit", "history.unset", "history.everywhere")
@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (None, 2),
        pytest.param(0, None, marks=pytest.mark.needs("history-zero")),
        (1, 1),
        (9, 2),
    ],
)
async def test_history_length(client: Binding, length: int | None, expected: int | None) -> None:
    configuration = {} if length is None else {"historyLength": length}
    task = (await client.call("SendMessage", message=user("x"), configuration=configuration))[
        "task"
    ]
    params = {} if length is None else {"historyLength": length}
    for found in (task, await client.call("GetTask", id=task["id"], **params)):
        history = found.get("history")
        assert (None if history is None else len(history)) == expected
        if expected == 1:
            assert history[0]["role"] == "ROLE_AGENT"


@pytest.mark.storeless
async def test_negative_history_length(client: Binding) -> None:
    with pytest.raises(Failed) as failed:
        await client.call("SendMessage", message=user("x"), configuration={"historyLength": -1})
    assert failed.value.fields == ["configuration.historyLength"]


@pytest.mark.first
async def test_the_blocking_limit_answers_with_the_task_as_it_is(
    start: Start, kind: type[Binding]
) -> None:
    server = await start(blocking_timeout=0.1)
    client = server.client(kind)
    task = (await client.call("SendMessage", message=user("gate")))["task"]
    assert task["status"]["state"] == "TASK_STATE_WORKING"
    server.gate.set()
    await ended(client, task["id"])


@pytest.mark.storeless
@pytest.mark.clause("limits.sizes")
@pytest.mark.first
async def test_the_number_of_parts_is_limited(
    start: Start, kind: type[Binding], constants: Callable[..., None]
) -> None:
    constants(max_parts=2)
    client = (await start()).client(kind)
    await client.call("SendMessage", message=user(parts=[{"text": "a"}] * 2))
    with pytest.raises(Failed) as failed:
        await client.call("SendMessage", message=user(parts=[{"text": "a"}] * 3))
    assert failed.value.fields == ["message.parts"]
    assert len(await client.tasks()) == 1


@pytest.mark.clause("send.idempotent")
async def test_the_same_key_is_the_same_send(server: RunningApp, kind: type[Binding]) -> None:
    client = server.client(kind, Idempotency_Key="k-1")
    answers = await asyncio.gather(
        *(client.call("SendMessage", message=user("hi")) for _ in "12345")
    )
    assert len({answer["task"]["id"] for answer in answers}) == 1
    assert len(await server.client(kind).tasks()) == 1
    with pytest.raises(Failed) as failed:
        await client.call("SendMessage", message=user("something else"))
    assert failed.value.fields == ["Idempotency-Key"]


@pytest.mark.storeless
async def test_a_key_that_is_too_long_is_refused(server: RunningApp, kind: type[Binding]) -> None:
    client = server.client(kind, Idempotency_Key="k" * 257)
    with pytest.raises(Failed) as failed:
        await client.call("SendMessage", message=user("hi"))
    assert failed.value.fields == ["Idempotency-Key"]
    assert len(await server.client(kind).tasks()) == 0


@pytest.mark.clause("send.idempotent")
async def test_only_known_callers_messages_are_merged(
    server: RunningApp, kind: type[Binding]
) -> None:
    for client, expected in ((server.client(kind, X_User="ann"), 1), (server.client(kind), 2)):
        for _ in range(2):
            await client.call("SendMessage", message=user("hi"))
        assert len(await client.tasks()) == expected
    ann = server.client(kind, X_User="ann")
    await ann.call("SendMessage", message=user("another text under the same id"))
    assert len(await ann.tasks()) == 2


async def test_a_direct_reply_is_repeated_too(server: RunningApp, kind: type[Binding]) -> None:
    client = server.client(kind, Idempotency_Key="k-2")
    message = user("hi", metadata={"skill": "talk"})
    one = await client.call("SendMessage", message=message)
    two = await client.call("SendMessage", message=message)
    assert one == two


async def ended(client: Binding, task: str) -> dict[str, Any]:
    """The task once it has ended."""
    return await until(client, task, "COMPLETED", "FAILED", "CANCELED", "REJECTED")


async def until(client: Binding, task: str, *states: str) -> dict[str, Any]:
    """The task once it is in one of these states."""
    async with asyncio.timeout(10):
        while True:
            found: dict[str, Any] = await client.call("GetTask", id=task)
            if found["status"]["state"].endswith(states):
                return found
            await asyncio.sleep(0.01)


async def until_history(client: Binding, task: str, text: str) -> None:
    """Until a message is in the task's history."""
    async with asyncio.timeout(10):
        while True:
            found = await client.call("GetTask", id=task)
            if any(m["parts"][0].get("text") == text for m in found["history"]):
                return
            await asyncio.sleep(0.01)


async def test_nobody_sees_a_question_that_was_answered(client: Binding) -> None:
    task = (await client.call("SendMessage", message=user("ask")))["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    answer = await client.call(
        "SendMessage",
        message=user("june", taskId=task["id"]),
        configuration={"returnImmediately": True},
    )
    seen = [answer["task"]["status"]["state"]]
    seen.append((await client.call("GetTask", id=task["id"]))["status"]["state"])
    assert "TASK_STATE_INPUT_REQUIRED" not in seen
