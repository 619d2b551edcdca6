"""What a send came to: whether it is the answer, the best text there is, and its files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import (
    Agent,
    AgentCard,
    AgentSkill,
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
    Turn,
)
from dragoman.client import Client, Result, TransportRequest, sync
from dragoman.client.transport import ASGITransport
from dragoman.model.caller import Caller
from dragoman.testing import local_client
from tests.client.scripted_agent import begun, chunk, status, telling
from tests.client.transports import (
    BINDINGS,
    STREAM,
    Answer,
    Script,
    card,
    document,
    event,
    interface,
    result,
)
from tests.client.transports import task as wire

COMPLETED, WORKING = TaskState.COMPLETED, TaskState.WORKING
ASKS = TaskState.INPUT_REQUIRED


def said(text: str, role: Role = Role.AGENT) -> Message:
    """A message."""
    return Message(message_id=f"id of {text}", role=role, parts=(Part(text=text),))


def user(text: str) -> Message:
    """A message from this side."""
    return said(text, Role.USER)


def task(
    state: TaskState,
    message: str = "",
    artifacts: tuple[Artifact, ...] = (),
    history: tuple[Message, ...] = (),
) -> Task:
    """A task in this state."""
    words = said(message) if message else None
    return Task(
        id="t",
        context_id="c",
        status=TaskStatus(state=state, message=words),
        artifacts=artifacts,
        history=history,
    )


def made(*parts: Part, id: str = "a") -> Artifact:
    """An artifact."""
    return Artifact(artifact_id=id, parts=parts)


# ---- ok ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", TaskState)
def test_only_a_completed_task_is_ok(state: TaskState) -> None:
    assert Result(task(state, "words")).ok is (state is COMPLETED)


def test_a_direct_message_is_ok() -> None:
    assert Result(message=said("hi")).ok
    assert not Result().ok


# ---- the best text there is ----------------------------------------------------------------

BOTH = (made(Part(text="Hel"), Part(text="lo")), made(Part(text="you"), id="b"))
CHART = (made(Part(raw=b"png", filename="a.png"), Part(data={"n": 1})),)
MOVED = (user("first"), said("asked"), user("second"), said("looking"), said("found"))
CASES: list[tuple[str, Result, str]] = [
    ("a direct message", Result(message=said("hi")), "hi"),
    ("artifacts", Result(task(COMPLETED, "done", BOTH)), "Hello\nyou"),
    ("the status", Result(task(COMPLETED, "done")), "done"),
    ("the status beside a file", Result(task(COMPLETED, "done", CHART)), "done"),
    ("the history", Result(task(COMPLETED, history=MOVED)), "found"),
    ("the history beside a file", Result(task(COMPLETED, "", CHART, MOVED)), "found"),
    ("only of this turn", Result(task(COMPLETED, history=MOVED[:3])), ""),
    ("of a history that was cut", Result(task(COMPLETED, history=MOVED[-1:])), "found"),
    ("not progress", Result(task(COMPLETED, history=MOVED), None, {"id of found"}), "looking"),
    (
        "nothing but progress",
        Result(task(COMPLETED, history=MOVED), None, {"id of found", "id of looking"}),
        "",
    ),
    ("a question", Result(task(ASKS, "which?", BOTH, MOVED)), "which?"),
    ("a question in the history", Result(task(ASKS, "", BOTH, MOVED)), "found"),
    ("a failure", Result(task(TaskState.FAILED, "no seats")), "no seats"),
    ("what goes on", Result(task(WORKING, "looking", history=MOVED)), ""),
    ("what goes on, so far", Result(task(WORKING, "looking", BOTH)), "Hello\nyou"),
    ("nothing", Result(task(COMPLETED)), ""),
    ("nothing at all", Result(), ""),
]


@pytest.mark.parametrize(("result", "text"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_text(result: Result, text: str) -> None:
    assert result.text == text
    if text:
        assert result.parts


def test_data_and_files_are_those_of_the_artifacts() -> None:
    result = Result(task(COMPLETED, "done", CHART))
    assert result.data == {"n": 1}
    assert [part.filename for part in result.files] == ["a.png"]


@pytest.mark.parametrize("keep", [True, False])
async def test_progress_is_never_the_answer(keep: bool) -> None:
    def events() -> Iterator[Any]:
        yield begun()
        for state, words in ((WORKING, "looking"), (WORKING, "still looking"), (COMPLETED, "")):
            message = said(words) if words else None
            yield TaskStatusUpdateEvent(
                task_id="t",
                context_id="c",
                status=TaskStatus(state=state, message=message),
            )

    async with (
        telling("JSONRPC", events) as stranger,
        Client.connect(stranger.card, attempts=1) as client,
        client.stream("x", keep=keep) as stream,
    ):
        texts = []
        async for _ in stream:
            texts.append(stream.text)
        assert stream.task is not None
        assert [message.text for message in stream.task.history] == ["looking", "still looking"]
        assert set(texts) == {""}
        assert stream.result.ok


@pytest.mark.parametrize("answers", [True, False])
async def test_an_answer_that_is_only_in_the_history_is_looked_for(answers: bool) -> None:
    """Also if it was streamed; an agent that then does not tell has no answer."""

    def answer(request: TransportRequest) -> Answer:
        if document(request)["method"] == "SendStreamingMessage":
            ended = {"taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}
            return Answer(
                [event({"task": wire("WORKING")}), event({"statusUpdate": ended})], headers=STREAM
            )
        words = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "kept"}]}
        found = result({**wire("COMPLETED"), "history": [words]})
        return Answer(found) if answers else Answer(b"", status=503)

    async with (
        Client.connect(card(), transport=Script(answer)) as client,
        client.stream("x") as stream,
    ):
        assert len([happened async for happened in stream]) == 2
        assert stream.result.ok
        assert stream.text == ("kept" if answers else "")


# ---- text of what is streamed --------------------------------------------------------------


def test_text_of_artifacts_and_events() -> None:
    artifact = made(Part(text="Hel"), Part(data=1), Part(text="lo"))
    assert artifact.text == "Hello"
    assert made(Part(data=1)).text == ""
    update = TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=artifact)
    assert update.text == "Hello"
    for message, text in ((said("looking"), "looking"), (None, "")):
        now = TaskStatus(state=WORKING, message=message)
        event = TaskStatusUpdateEvent(task_id="t", context_id="c", status=now)
        assert now.text == event.text == text


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("keep", [True, False])
async def test_text_as_it_comes(binding: str, keep: bool) -> None:
    def events() -> Iterator[Any]:
        yield begun()
        yield status(WORKING)
        yield chunk("Hel", append=False)
        yield chunk("lo")
        yield chunk("you", artifact="b", append=False)
        yield status(COMPLETED)

    async with (
        telling(binding, events) as stranger,
        Client.connect(stranger.card, attempts=1) as client,
        client.stream("x", keep=keep) as stream,
    ):
        assert [text async for text in stream.iter_text()] == ["Hel", "lo", "\nyou"]
        assert stream.text == ("Hello\nyou" if keep else "")


async def test_text_that_comes_in_the_end() -> None:
    agent = Agent("Words", description="Answers in words.")

    @agent.handler(reply=True)
    async def answer(turn: Turn) -> Any:
        """Answer as one is asked to."""
        if turn.text == "reply":
            return turn.reply("at once")
        if turn.text == "ask":
            return turn.ask("which?")
        await turn.emit(turn.working("looking"))
        return turn.complete("done")

    async with local_client(agent) as client:
        for text, answered in (("reply", "at once"), ("ask", "which?"), ("work", "done")):
            async with client.stream(text) as stream:
                assert [piece async for piece in stream.iter_text()] == [answered]


async def test_a_follow_up_does_not_repeat_the_text_before_it() -> None:
    agent = Agent("Asks", description="Asks.")

    @agent.handler
    async def answer(turn: Turn) -> Any:
        """Ask once."""
        if len(turn.history) == 1:
            yield turn.artifact("draft")
            yield turn.ask("which?")
        else:
            yield turn.write("fi")
            yield turn.write("nal")

    async with local_client(agent) as client:
        first = await client.send("write")
        assert first.task is not None
        async with client.stream("this", task=first.task.id) as stream:
            assert "".join([text async for text in stream.iter_text()]) == "final"


# ---- files ---------------------------------------------------------------------------------


def test_files_are_saved_under_safe_names(tmp_path: Path) -> None:
    names = ["../../evil.png", "..\\evil.png", "/etc/passwd", "a.png", "", "..", "NUL"]
    parts = [Part(raw=name.encode(), filename=name) for name in names]
    parts.append(Part(url="https://example.com/far.png", filename="far.png"))
    folder = tmp_path / "deep" / "out"
    paths = Result(task(COMPLETED, "", (made(*parts),))).save(folder)
    assert [path.name for path in paths] == [
        *("evil.png", "evil-1.png", "passwd", "a.png", "file", "file-1", "_NUL")
    ]
    assert [path.read_bytes().decode() for path in paths] == names
    assert sorted(folder.iterdir()) == sorted(paths)
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert Result(message=said("not a file")).save(str(tmp_path / "none")) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a.png").symlink_to(tmp_path / "elsewhere" / "a.png")
    result = Result(message=Message(message_id="m", role=Role.AGENT, parts=(CHART[0].parts[0],)))
    for name in ("a-1.png", "a-2.png"):
        assert result.save(tmp_path) == [tmp_path / name]
    assert not list((tmp_path / "elsewhere").iterdir())


# ---- open and close ------------------------------------------------------------------------


def hello() -> Agent:
    """An agent that greets."""
    agent = Agent("Hello", description="Greets.")

    @agent.skill
    def greet(turn: Turn) -> str:
        """Greet."""
        return f"Hello, {turn.text}"

    return agent


async def test_a_client_without_a_block() -> None:
    from dragoman import App

    async with App(hello()) as app:
        client = Client.connect(app=app)
        with pytest.raises(RuntimeError, match=r"not open.*await Client.connect\(…\).open\(\)"):
            await client.send("Ann")
        assert await client.open() is client
        assert (await client.send("Ann")).text == "Hello, Ann"
        assert await client.open() is client  # it stays open
        assert (await client.send("Bob")).text == "Hello, Bob"
        await client.close()
        await client.close()
        with pytest.raises(RuntimeError, match="not open"):
            await client.send("Ann")
        await Client.connect(app=app).close()  # one that was never open


def test_a_client_that_does_not_await_without_a_block() -> None:
    from dragoman import App

    app = App(hello())
    client = sync.Client(Client("http://inside", transport=ASGITransport(app), insecure=True))
    assert client.open() is client
    assert client.send("Ann").text == "Hello, Ann"
    with client.stream("Bob") as stream:
        assert list(stream.iter_text()) == ["Hello, Bob"]
        assert stream.text == "Hello, Bob"
    client.close()
    with pytest.raises(RuntimeError, match="not open"):
        client.send("Ann")
    sync.shared().run(app.stop())


# ---- values --------------------------------------------------------------------------------


async def test_an_extended_card_is_made_with_replace() -> None:
    agent = hello()

    @agent.extended_card
    def extended(caller: Caller, public: AgentCard) -> AgentCard:
        more = AgentSkill(id="more", name="More", description="More.", tags=("more",))
        return public.replace(skills=(*public.skills, more))

    async with local_client(agent, identify=lambda request: Caller(identity="ann")) as client:
        found = await client.extended_card()
    assert [skill.id for skill in found.skills] == ["greet", "more"]
    with pytest.raises(TypeError, match="skillz"):
        found.replace(skillz=())


LONG = "a very long text " * 1000


def test_reprs_are_short() -> None:
    large = task(
        COMPLETED,
        LONG,
        tuple(made(Part(text=LONG), Part(raw=b"x" * 10_000), id=f"a{n}") for n in range(50)),
        tuple(user(LONG) for _ in range(100)),
    )
    webhook = TaskPushNotificationConfig(url="https://a.example", token="sesame")
    shown = [
        repr(value)
        for value in (
            *(large, large.status, large.artifacts[0], large.history[0], Result(large)),
            *(large.artifacts[0].parts, Result(message=said(LONG)), webhook, card(interface("u"))),
            large.replace(metadata={f"{n}": LONG for n in range(1000)}),
        )
    ]
    assert max(map(len, shown)) < 450
    assert not [text for text in shown if "sesame" in text or "\n" in text]
    assert "Task(id='t'" in shown[0]
    assert "… 47 more" in shown[0]
    assert "<10000 bytes>" in shown[2]
    assert shown[4].startswith("Result(task='t', state=TaskState.COMPLETED, text='a very long")


def test_reprs_of_small_values_leave_nothing_out() -> None:
    part = Part(text="a", media_type="text/html")
    assert repr(part) == "Part(text='a', media_type='text/html')"
    assert repr(Part(text="")) == "Part(text='')"
    assert repr(Part(data=None)) == "Part(data=None)"
    assert repr(user("hi")) == (
        "Message(message_id='id of hi', role=Role.USER, parts=[Part(text='hi')])"
    )


async def test_reprs_of_clients() -> None:
    assert repr(Client.connect("https://a.example")) == "Client('https://a.example', not open)"
    async with local_client(hello()) as client:
        assert repr(client) == "Client('Hello' at http://inside/, JSONRPC 1.0)"
        assert repr(client.task("t")) == "TaskHandle(task='t')"
        async with client.stream("Ann") as stream:
            assert repr(stream) == "Stream(task='')"
            async for _ in stream:
                pass
            assert stream.task is not None
            assert repr(stream) == f"Stream(task={stream.task.id!r}, TaskState.COMPLETED)"
