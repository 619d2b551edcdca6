"""The reference SDK gets, lists and cancels tasks."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError, TaskNotCancelableError, TaskNotFoundError
from google.protobuf.json_format import MessageToDict, ParseDict

from tests.interop.agents import TaskGate
from tests.interop.reference import (
    BINDINGS,
    HTTP,
    Peer,
    Speak,
    asking,
    begin,
    gather,
    kinds,
    peer,
    send,
    state,
    states,
    texts,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")


# ---- get -------------------------------------------------------------------------------------


@pytest.mark.clause("get.current-state", "history.unset")
async def test_get_shows_the_task_as_it_is(meet: Speak) -> None:
    gate = TaskGate()
    async with meet("story") as peer:
        task = await begin(peer.plain, gate.name)
        await gate.reached.wait()
        now = await peer.plain.get_task(pb.GetTaskRequest(id=task.id))
        assert state(now) == "working"
        assert texts(now.status.message.parts) == ["At the gate"]
        assert texts(now.artifacts[0].parts) == ["before"]
        assert [message.parts[0].text for message in now.history] == [gate.name]
        stream = peer.live.subscribe(pb.SubscribeToTaskRequest(id=task.id))
        await anext(stream)
        gate.open.set()
        await gather(stream)
        end = await peer.plain.get_task(pb.GetTaskRequest(id=task.id))
    assert state(end) == "completed"
    assert texts(end.artifacts[0].parts) == ["beforeafter"]
    assert [message.parts[0].text for message in end.history] == [gate.name, "At the gate"]


@pytest.mark.clause("history.unset", "history.zero", "history.limit", "fields.presence")
@pytest.mark.parametrize(
    ("length", "said"),
    [
        (None, ["Lyon", "Which dates?", "In May"]),
        (0, []),
        (1, ["In May"]),
        (2, ["Which dates?", "In May"]),
        (9, ["Lyon", "Which dates?", "In May"]),
    ],
)
async def test_get_with_so_much_history(meet: Speak, length: int | None, said: list[str]) -> None:
    async with meet("book") as peer:
        task = await send(peer.plain, "Lyon")
        await send(peer.plain, "In May", task=task.id)
        request = pb.GetTaskRequest(id=task.id, history_length=length)
        task = await peer.plain.get_task(request)
    assert [message.parts[0].text for message in task.history] == said
    assert texts(task.status.message.parts) == ["Which class?"]


@pytest.mark.clause("get.unknown-task")
async def test_get_of_an_unknown_task(meet: Speak) -> None:
    async with meet("echo") as peer:
        with pytest.raises(TaskNotFoundError):
            await peer.plain.get_task(pb.GetTaskRequest(id="unknown"))


async def test_task_of_another_agent_is_unknown(meet: Speak) -> None:
    async with meet("echo") as one, meet("talk") as other:
        task = await send(one.plain, "hello")
        with pytest.raises(TaskNotFoundError):
            await other.plain.get_task(pb.GetTaskRequest(id=task.id))


@pytest.mark.clause("bindings.same-results")
async def test_all_bindings_show_the_same(server_url: str) -> None:
    async with (
        peer(f"{server_url}/book", binding=BINDINGS[0]) as one,
        peer(f"{server_url}/book", binding=BINDINGS[1]) as two,
    ):
        task = await send(one.plain, "Lyon")
        await send(two.plain, "In May", task=task.id)
        for request in (pb.GetTaskRequest(id=task.id), pb.GetTaskRequest(id="unknown")):
            assert await _outcome(one, request) == await _outcome(two, request)


async def _outcome(of: Peer, request: pb.GetTaskRequest) -> object:
    try:
        return await of.plain.get_task(request)
    except TaskNotFoundError as error:
        return error.message, error.data


@pytest.mark.clause("json.camel-case", "json.enum-names", "json.no-kind")
async def test_task_holds_nothing_that_the_protocol_does_not_know(server_url: str) -> None:
    async with peer(f"{server_url}/book", binding="HTTP+JSON") as one:
        task = await send(one.plain, "Lyon", metadata={"a": 1})
        document = (await one.http.get(f"{server_url}/book/tasks/{task.id}")).json()
    read = MessageToDict(ParseDict(document, pb.Task()))
    assert ParseDict(document, pb.Task()) == task
    del read["status"]["timestamp"], document["status"]["timestamp"]  # fractions may be shorter
    assert read == document


# ---- list ------------------------------------------------------------------------------------


def _ids(page: pb.ListTasksResponse) -> list[str]:
    return [task.id for task in page.tasks]


@pytest.mark.clause("list.page-size", "list.answer-fields", "list.total-size", "list.order")
async def test_list_page_by_page(meet: Speak) -> None:
    context = uuid.uuid4().hex
    async with meet("echo") as peer:
        sent = [await send(peer.plain, "hello", context=context) for _ in range(5)]
        # two may have ended in one millisecond
        sent.sort(key=lambda task: (task.status.timestamp.ToMilliseconds(), task.id))
        made = [task.id for task in sent]
        request = pb.ListTasksRequest(context_id=context, page_size=2)
        pages = []
        while not pages or request.page_token:
            pages.append(await peer.plain.list_tasks(request))
            request.page_token = pages[-1].next_page_token
    assert [_ids(page) for page in pages] == [
        [made[4], made[3]],
        [made[2], made[1]],
        [made[0]],
    ]
    assert [page.page_size for page in pages] == [2, 2, 2]
    assert [page.total_size for page in pages] == [5, 5, 5]


@pytest.mark.clause("list.cursor")
async def test_newcomers_do_not_disturb_the_pages(meet: Speak) -> None:
    context = uuid.uuid4().hex
    async with meet("echo") as peer:
        made = [(await send(peer.plain, "hello", context=context)).id for _ in range(4)]
        request = pb.ListTasksRequest(context_id=context, page_size=2)
        first = await peer.plain.list_tasks(request)
        await send(peer.plain, "one more", context=context)
        request.page_token = first.next_page_token
        second = await peer.plain.list_tasks(request)
    assert _ids(first) + _ids(second) == made[::-1]
    assert second.next_page_token == ""


async def test_list_of_all_there_is(meet: Speak) -> None:
    """Without filters; a tenant of its own gives the test a world of its own."""
    async with meet("echo", tenant=uuid.uuid4().hex) as peer:
        none = await peer.plain.list_tasks(pb.ListTasksRequest())
        made = [(await send(peer.plain, "hello")).id for _ in range(3)]
        all_ = await peer.plain.list_tasks(pb.ListTasksRequest())
    assert (_ids(none), none.total_size, none.next_page_token) == ([], 0, "")
    assert _ids(all_) == made[::-1]
    assert (all_.total_size, all_.page_size, all_.next_page_token) == (3, 50, "")


@pytest.mark.clause("list.order")
async def test_task_that_moved_on_comes_first(meet: Speak) -> None:
    context = uuid.uuid4().hex
    async with meet("book") as peer:
        older = await send(peer.plain, "Lyon", context=context)
        newer = await send(peer.plain, "Nice", context=context)
        request = pb.ListTasksRequest(context_id=context)
        before = _ids(await peer.plain.list_tasks(request))
        await send(peer.plain, "In May", task=older.id)
        after = _ids(await peer.plain.list_tasks(request))
    assert before == [newer.id, older.id]
    assert after == [older.id, newer.id]


@pytest.mark.clause("list.filters")
async def test_list_by_context_and_state(meet: Speak) -> None:
    context = uuid.uuid4().hex
    async with meet("book", tenant=uuid.uuid4().hex) as peer:
        waiting = await send(peer.plain, "Lyon", context=context)
        done = await send(peer.plain, "Nice", context=context)
        await send(peer.plain, "In May", task=done.id)
        await send(peer.plain, "Second", task=done.id)
        elsewhere = await send(peer.plain, "Metz")

        async def found(**filters: object) -> set[str]:
            return set(_ids(await peer.plain.list_tasks(pb.ListTasksRequest(**filters))))

        assert await found(context_id=context) == {waiting.id, done.id}
        assert await found(context_id=elsewhere.context_id) == {elsewhere.id}
        assert await found(context_id="unknown") == set()
        assert await found(status=pb.TASK_STATE_COMPLETED) == {done.id}
        assert await found(status=pb.TASK_STATE_INPUT_REQUIRED) == {waiting.id, elsewhere.id}
        assert await found(context_id=context, status=pb.TASK_STATE_INPUT_REQUIRED) == {waiting.id}
        assert await found(status=pb.TASK_STATE_FAILED) == set()
        page = await peer.plain.list_tasks(
            pb.ListTasksRequest(status=pb.TASK_STATE_INPUT_REQUIRED, page_size=1)
        )
    assert (len(page.tasks), page.total_size) == (1, 2)


@pytest.mark.clause("context.client-chosen", "http.query-parameters")
@pytest.mark.parametrize("context", ["a b/c?d=e&f#g%20", "ünï:©ødé"])
async def test_list_by_a_context_of_any_form(meet: Speak, context: str) -> None:
    async with meet("echo", tenant=uuid.uuid4().hex) as peer:
        task = await send(peer.plain, "hello", context=context)
        assert task.context_id == context
        await send(peer.plain, "elsewhere")
        page = await peer.plain.list_tasks(pb.ListTasksRequest(context_id=context))
    assert _ids(page) == [task.id]


@pytest.mark.clause("list.filters", "time.parsed")
async def test_list_by_time(meet: Speak) -> None:
    context = uuid.uuid4().hex
    async with meet("echo") as peer:
        early = await send(peer.plain, "hello", context=context)
        late = early
        while late.status.timestamp.ToMilliseconds() == early.status.timestamp.ToMilliseconds():
            late = await send(peer.plain, "hello", context=context)
        request = pb.ListTasksRequest(context_id=context)

        async def since(shift: int) -> set[str]:
            moment = late.status.timestamp.ToNanoseconds() + shift
            request.status_timestamp_after.FromNanoseconds(moment)
            return set(_ids(await peer.plain.list_tasks(request)))

        assert await since(0) == {late.id}
        assert early.id in await since(-60_000_000_000)
        assert await since(1) == set()
        assert await since(1_000_000) == set()


@pytest.mark.clause("list.artifacts", "history.everywhere")
async def test_list_with_artifacts_and_history_as_asked(meet: Speak) -> None:
    context = uuid.uuid4().hex
    async with meet("echo") as peer:
        task = await send(peer.plain, "hello", context=context)

        async def listed(**options: object) -> pb.Task:
            request = pb.ListTasksRequest(context_id=context, **options)
            (found,) = (await peer.plain.list_tasks(request)).tasks
            return found

        assert list((await listed()).artifacts) == []
        assert list((await listed(include_artifacts=False)).artifacts) == []
        assert await listed(include_artifacts=True) == task
        assert len((await listed()).history) == 2
        assert len((await listed(history_length=1)).history) == 1
        assert len((await listed(history_length=0)).history) == 0


@pytest.mark.clause("list.invalid-params")
@pytest.mark.parametrize(
    "request_",
    [
        pb.ListTasksRequest(page_size=0),
        pb.ListTasksRequest(page_size=-1),
        pb.ListTasksRequest(page_size=101),
        pb.ListTasksRequest(page_token="not a token"),
        pb.ListTasksRequest(page_token="ü"),
        pb.ListTasksRequest(history_length=-1),
        pb.ListTasksRequest(status=99),  # type: ignore[arg-type]
    ],
    ids=lambda request: str(request).strip(),
)
async def test_list_refuses_what_cannot_be(meet: Speak, request_: pb.ListTasksRequest) -> None:
    async with meet("echo") as peer:
        with pytest.raises(InvalidParamsError):
            await peer.plain.list_tasks(request_)


# ---- cancel ----------------------------------------------------------------------------------


@pytest.mark.clause("cancel.updated-task", "state.terminal-final")
async def test_cancel_of_a_running_task(meet: Speak) -> None:
    gate = TaskGate()
    async with meet("story") as peer:
        stream = peer.live.send_message(asking(gate.name))
        task = (await anext(stream)).task
        await gate.reached.wait()
        canceled = await peer.plain.cancel_task(pb.CancelTaskRequest(id=task.id))
        assert state(canceled) == "canceled"
        assert texts(canceled.artifacts[0].parts) == ["before"]
        assert gate.stopped
        gate.open.set()
        assert states(await gather(stream))[-1] == "canceled"
        assert await peer.plain.get_task(pb.GetTaskRequest(id=task.id)) == canceled


async def test_cancel_ends_a_send_that_waits(meet: Speak) -> None:
    gate, context = TaskGate(), uuid.uuid4().hex
    async with meet("story") as peer:
        sending = asyncio.create_task(send(peer.plain, gate.name, context=context))
        await gate.reached.wait()
        (task,) = (await peer.plain.list_tasks(pb.ListTasksRequest(context_id=context))).tasks
        await peer.plain.cancel_task(pb.CancelTaskRequest(id=task.id))
        assert state(await sending) == "canceled"


async def test_cancel_of_a_task_that_waits_for_input(meet: Speak) -> None:
    async with meet("book") as peer:
        task = await send(peer.plain, "Lyon")
        canceled = await peer.plain.cancel_task(pb.CancelTaskRequest(id=task.id))
    assert state(canceled) == "canceled"
    assert [text for m in canceled.history for text in texts(m.parts)] == ["Lyon", "Which dates?"]


async def test_agent_tidies_up_when_canceled(meet: Speak) -> None:
    gate = TaskGate()
    async with meet("careful") as peer:
        task = await begin(peer.plain, gate.name)
        await gate.reached.wait()
        canceled = await peer.plain.cancel_task(pb.CancelTaskRequest(id=task.id))
    assert state(canceled) == "canceled"
    assert [artifact.name for artifact in canceled.artifacts] == ["rest"]


async def test_agent_that_finishes_instead(meet: Speak) -> None:
    gate = TaskGate()
    async with meet("linger") as peer:
        task = await begin(peer.plain, gate.name)
        await gate.reached.wait()
        with pytest.raises(TaskNotCancelableError):
            await peer.plain.cancel_task(pb.CancelTaskRequest(id=task.id))
        task = await peer.plain.get_task(pb.GetTaskRequest(id=task.id))
    assert state(task) == "completed"


@pytest.mark.clause("cancel.idempotent")
@pytest.mark.parametrize("meet", HTTP, indirect=True)  # over one gRPC channel they come in turn
async def test_cancels_at_the_same_time_share_one_outcome(meet: Speak) -> None:
    gate = TaskGate()
    async with meet("story") as peer:
        stream = peer.live.send_message(asking(gate.name))
        task = (await anext(stream)).task
        await gate.reached.wait()
        request = pb.CancelTaskRequest(id=task.id)
        one, two = await asyncio.gather(
            peer.plain.cancel_task(request), peer.plain.cancel_task(request)
        )
        events = await gather(stream)
    assert one == two
    assert state(one) == "canceled"
    assert states(events).count("canceled") == 1
    assert kinds(events)[-1] == "status_update"


@pytest.mark.clause("cancel.terminal-task")
@pytest.mark.parametrize("name", ["echo", "fall", "refuse", "book"])
async def test_cancel_of_a_task_that_has_ended(meet: Speak, name: str) -> None:
    async with meet(name) as peer:
        task = await send(peer.plain, "reject")
        if name == "book":
            task = await peer.plain.cancel_task(pb.CancelTaskRequest(id=task.id))
        with pytest.raises(TaskNotCancelableError):
            await peer.plain.cancel_task(pb.CancelTaskRequest(id=task.id))
        assert await peer.plain.get_task(pb.GetTaskRequest(id=task.id)) == task


@pytest.mark.clause("cancel.unknown-task")
async def test_cancel_of_an_unknown_task(meet: Speak) -> None:
    async with meet("echo") as peer:
        with pytest.raises(TaskNotFoundError):
            await peer.plain.cancel_task(pb.CancelTaskRequest(id="unknown"))
