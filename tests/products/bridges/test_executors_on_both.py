"""The same executor on a2a-sdk's own server and on dragoman: its clients see the same."""

from __future__ import annotations

import asyncio
import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from a2a.utils.errors import A2AError

from tests.products.bridges.both import both, plain, talk, told
from tests.products.bridges.desk import Desk, Framework

pytestmark = pytest.mark.skipif(
    importlib.metadata.version("a2a-sdk") < "1.3", reason="the servers are those of a2a-sdk 1.3"
)
PAGE = Path(__file__).resolve().parents[3] / "docs/from-a2a-sdk.md"
SAME = {
    "a message and no task": ("hello",),
    "a message in a context": ("say",),
    "an artifact in chunks, and data": ("report",),
    "a question": ("convert", "to USD"),
    "credentials by the next message": ("auth", "here"),
    "credentials from elsewhere": ("auth_elsewhere",),
    "what the executor gets": ("context", "more"),
    "rejected": ("reject",),
    "failed": ("fail",),
    "canceled by itself": ("give_up",),
    "a queue that is closed": ("close",),
    "events without helpers": ("bare",),
}


@pytest.fixture(scope="module")
def desks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, Desk]]:
    """The executor on both servers."""
    with both(Framework("", "patterns", "Patterns"), tmp_path_factory.mktemp("both")) as found:
        yield found


async def said(desk: Desk, texts: tuple[str, ...], *, streaming: bool = True) -> list[Any]:
    """What a server says to these messages, and the task in the end."""
    async with talk(desk, streaming=streaming) as server:
        found = [told(await server.say(text)) for text in texts]
        return [*found, plain(await server.get()) if server.task else None]


@pytest.mark.parametrize("texts", SAME.values(), ids=SAME.keys())
async def test_both_stream_the_same(desks: tuple[Desk, Desk], texts: tuple[str, ...]) -> None:
    theirs, ours = [await said(desk, texts) for desk in desks]
    assert ours == theirs


@pytest.mark.parametrize("texts", SAME.values(), ids=SAME.keys())
async def test_both_answer_the_same(desks: tuple[Desk, Desk], texts: tuple[str, ...]) -> None:
    if texts == ("auth_elsewhere",):
        pytest.skip("a blocking send is answered when credentials are asked for")
    theirs, ours = [await said(desk, texts, streaming=False) for desk in desks]
    assert ours == theirs


async def test_an_artifact_of_an_earlier_turn_grows(desks: tuple[Desk, Desk]) -> None:
    for desk in desks:
        async with talk(desk) as server:
            await server.say("again")
            last = await server.say("more")
            assert last[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
            assert [e["artifactUpdate"]["append"] for e in last if "artifactUpdate" in e] == [True]
            (artifact,) = plain(await server.get())["artifacts"]
            assert artifact["parts"] == [{"text": "again more "}]


@pytest.mark.parametrize("text", ["slow", "tidy"])
async def test_a_cancel_ends_the_work_on_both(desks: tuple[Desk, Desk], text: str) -> None:
    for desk in desks:
        before = len(desk.done)
        async with talk(desk) as server:
            stream = asyncio.create_task(server.say(text))
            await server.at_work()
            canceled = await server.cancel()
            assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
            await stream
            assert (await server.get())["status"]["state"] == "TASK_STATE_CANCELED"
        # `cancel` is called while `execute` still runs, and without a message
        await server.done("execute is canceled", after=before)
        assert desk.done[before:] == [f"cancel {text} ''", "execute is canceled"]


async def test_a_cancel_of_a_task_that_asks(desks: tuple[Desk, Desk]) -> None:
    for desk in desks:
        async with talk(desk) as server:
            await server.say("convert")
            assert (await server.cancel())["status"]["state"] == "TASK_STATE_CANCELED"
            assert desk.done[-1] == "cancel convert ''"


async def test_ten_tasks_at_once(desks: tuple[Desk, Desk]) -> None:
    async def one(desk: Desk) -> Any:
        return await said(desk, ("report",))

    _, ours = desks
    found = await asyncio.gather(*(one(ours) for _ in range(10)))
    assert all(each == found[0] for each in found)


# ---- where they differ ---------------------------------------------------------------------


async def test_a_refused_cancel_ends_the_task_here_too(desks: tuple[Desk, Desk]) -> None:
    theirs, ours = desks
    for desk, ending in ((theirs, "FAILED"), (ours, "CANCELED")):
        async with talk(desk) as server:
            stream = asyncio.create_task(server.say("stubborn"))
            await server.at_work()
            if desk is theirs:
                with pytest.raises(A2AError):
                    await server.cancel()
            else:
                await server.cancel()
            await asyncio.gather(stream, return_exceptions=True)
            assert (await server.get())["status"]["state"] == f"TASK_STATE_{ending}"
    assert "cancel raised UnsupportedOperationError" in ours.log


async def test_a_canceled_task_stays_canceled(desks: tuple[Desk, Desk]) -> None:
    for desk, ending in zip(desks, ("FAILED", "CANCELED"), strict=True):
        async with talk(desk) as server:
            stream = asyncio.create_task(server.say("swallow"))
            await server.at_work()
            await server.cancel()
            await stream
            assert (await server.get())["status"]["state"] == f"TASK_STATE_{ending}"


async def test_an_error_for_the_client_is_in_the_task(desks: tuple[Desk, Desk]) -> None:
    theirs, ours = desks
    async with talk(theirs) as server:
        with pytest.raises(A2AError, match="Which flight"):
            await server.say("refuse")
    async with talk(ours) as server:
        *_, last = await server.say("refuse")
    status = last["statusUpdate"]["status"]
    assert status["state"] == "TASK_STATE_FAILED"
    assert status["message"]["parts"] == [{"text": "Which flight?"}]


async def test_another_error_is_masked(desks: tuple[Desk, Desk]) -> None:
    theirs, ours = desks
    async with talk(theirs) as server:
        with pytest.raises(A2AError, match="secret inside"):
            await server.say("raises")
    async with talk(ours) as server:
        *_, last = await server.say("raises")
    assert last["statusUpdate"]["status"]["state"] == "TASK_STATE_FAILED"
    assert "secret" not in str(last)


async def test_the_end_of_execute_is_the_end_of_the_task(desks: tuple[Desk, Desk]) -> None:
    for desk, ending in zip(desks, ("WORKING", "COMPLETED"), strict=True):
        async with talk(desk) as server:
            await server.say("silent")
            assert (await server.get())["status"]["state"] == f"TASK_STATE_{ending}"


async def test_nothing_comes_after_the_end(desks: tuple[Desk, Desk]) -> None:
    for desk, more in zip(desks, (True, False), strict=True):
        async with talk(desk) as server:
            await server.say("late")
            assert ("artifacts" in await server.get()) is more


async def test_nothing_comes_after_execute(desks: tuple[Desk, Desk]) -> None:
    _, ours = desks
    async with talk(ours) as server:
        await server.say("afterwards")
        await server.done("afterwards")
        assert (await server.get())["status"]["state"] == "TASK_STATE_COMPLETED"
    assert "dropped TaskStatusUpdateEvent, because its turn has ended" in ours.log


async def test_a_task_that_is_enqueued_again_counts(desks: tuple[Desk, Desk]) -> None:
    theirs, ours = desks
    async with talk(theirs) as server:
        await server.say("whole")
        assert (await server.get())["status"]["state"] == "TASK_STATE_SUBMITTED"
    async with talk(ours) as server:
        await server.say("whole")
        task = await server.get()
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["artifacts"][0]["parts"] == [{"text": "as a whole"}]
    assert task["metadata"] == {"price": 3.0}


async def test_no_task_needs_to_be_enqueued_first(desks: tuple[Desk, Desk]) -> None:
    theirs, ours = desks
    async with talk(theirs) as server:
        with pytest.raises(A2AError, match="should enqueue Task before"):
            await server.say("append_first")
    async with talk(ours) as server:
        await server.say("append_first")
        task = plain(await server.get())
    assert task["artifacts"][0]["parts"] == [{"text": "hello"}]


async def test_an_answer_is_in_the_context_of_its_task(desks: tuple[Desk, Desk]) -> None:
    for desk, same in zip(desks, (False, True), strict=True):
        async with talk(desk) as server:
            await server.say("context")
            context, server.context = server.context, ""
            events = await server.say("more")
            (seen,) = [event["artifactUpdate"] for event in events if "artifactUpdate" in event]
            message = seen["artifact"]["parts"][0]["data"]["message"]
            assert (message["contextId"] == context) is same


# ---- the booking agent of the guide --------------------------------------------------------


async def test_the_booking_agent_of_the_guide_is_the_same_on_both(tmp_path: Path) -> None:
    block = re.search(r"^```python\n(# sdk_booking\.py\n.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert block is not None
    (tmp_path / "sdk_booking.py").write_text(block[1])
    texts = ("A flight please", "From 2026-08-10 to 2026-08-15")
    with both(Framework("", "sdk_booking", "BookingExecutor"), tmp_path) as desks:
        theirs, ours = [await said(desk, texts) for desk in desks]
    assert ours == theirs
    assert ours[-1]["artifacts"][0]["parts"] == [
        {"data": {"reference": "FL-0427", "from": "2026-08-10", "to": "2026-08-15"}}
    ]
