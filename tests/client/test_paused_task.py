"""What answers the pauses of tasks for a client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman import Agent, AgentExtension, App, Message, Part, Role, TaskState, Turn
from dragoman.client import Client, PausedTask, Result
from dragoman.client.sync import Client as SyncClient

URI = "https://example.org/ext/quiz"


class Quiz:
    """Answers what it knows."""

    extensions = (URI,)

    def __init__(self, **known: str) -> None:
        self.known = known
        self.seen: list[PausedTask] = []

    async def answer(self, paused: PausedTask) -> Message | None:
        self.seen.append(paused)
        message = paused.task.status.message
        assert message is not None
        said = self.known.get((message.metadata or {}).get("asks", ""))  # type: ignore[arg-type]
        if said is None:
            return None
        id = f"{paused.task.id}-{message.message_id}"
        return Message(
            message_id=id, role=Role.USER, parts=(Part(text=said),), metadata={"said": said}
        )


def quizzed(**options: Any) -> Agent:
    agent = Agent("Quiz", description="Asks.", extensions=[AgentExtension(uri=URI)], **options)
    agent.heard = {}  # type: ignore[attr-defined]

    @agent.skill(durable=True)
    async def play(turn: Turn) -> AsyncIterator[Any]:
        yield f"{turn.text}: "
        for what in turn.text.split():
            asked = Message(
                message_id=str(turn.uuid()),
                role=Role.AGENT,
                parts=(Part(text=f"Which {what}?"),),
                metadata={"asks": what},
            )
            answer = await turn.ask_for(turn.ask(asked))
            agent.heard[answer.message_id] = answer.metadata, turn.extensions  # type: ignore[attr-defined]
            yield f"{answer.text}, "

    return agent


def client(agent: Agent, quiz: Quiz | None, **options: Any) -> Client:
    return Client.connect(app=App(agent), answer=quiz, **options)


async def streamed(agent: Client, text: str) -> Result:
    async with agent.stream(text) as stream:
        async for _ in stream:
            pass
    assert stream.text == stream.result.text
    return stream.result


async def sent(agent: Client, text: str) -> Result:
    return await agent.send(text)


async def sent_in_time(agent: Client, text: str) -> Result:
    return await agent.send(text)


@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "polling"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("how", [sent, sent_in_time, streamed])
async def test_pauses_are_answered(how: Any, binding: str, streaming: bool) -> None:
    agent, quiz = quizzed(streaming=streaming), Quiz(city="Lisbon", month="May")
    deadline = 30.0 if how is sent_in_time else None
    async with client(agent, quiz, bindings=[binding], deadline=deadline) as found:
        result = await how(found, "city month")
        assert (result.state, result.text) == (TaskState.COMPLETED, "city month: Lisbon, May, ")
        assert [one.task.id for one in quiz.seen] == [result.task.id] * 2
        assert quiz.seen[0].card == found.card
        assert quiz.seen[0].url == found.interface.url
        assert not quiz.seen[0].verified
    heard = agent.heard.values()  # type: ignore[attr-defined]
    assert [metadata for metadata, _ in heard] == [{"said": "Lisbon"}, {"said": "May"}]
    assert all(URI in uris for _, uris in heard)


@pytest.mark.parametrize("how", [sent, streamed])
async def test_a_pause_without_an_answer_is_left_to_the_caller(how: Any) -> None:
    agent, quiz = quizzed(), Quiz(city="Lisbon")
    async with client(agent, quiz) as found:
        result = await how(found, "city month")
        assert (result.state, result.text) == (TaskState.INPUT_REQUIRED, "Which month?")
        quiz.known["month"] = "May"
        result = await found.task(result.task.id).reply("June")
        assert result.text == "city month: Lisbon, June, "


@pytest.mark.parametrize("how", [sent, streamed])
async def test_an_error_of_the_answerer_is_raised(how: Any) -> None:
    class Refuses(Quiz):
        async def answer(self, paused: PausedTask) -> Message | None:
            raise PermissionError("not this one")

    async with client(quizzed(), Refuses()) as found:
        with pytest.raises(PermissionError, match="not this one"):
            await how(found, "city")


@pytest.mark.parametrize("how", [sent, streamed])
async def test_answers_end_at_some_time(how: Any) -> None:
    agent, quiz = quizzed(), Quiz(city="Lisbon")
    async with client(agent, quiz) as found:
        result = await how(found, " ".join(["city"] * 20))
        assert result.state is TaskState.INPUT_REQUIRED
        assert len(agent.heard) == 16  # type: ignore[attr-defined]


async def test_the_same_answer_counts_once() -> None:
    agent, quiz = quizzed(), Quiz(city="Lisbon")
    async with client(agent, None) as asking:
        result = await asking.send("city month")
        message = await quiz.answer(PausedTask(result.task, asking.card, ""))
        for _ in range(2):
            again = await asking.task(result.task.id).reply(message, key=message.message_id)
            assert again.text == "Which month?"
    assert len(agent.heard) == 1  # type: ignore[attr-defined]


async def test_within_a_turn() -> None:
    quiz, other = Quiz(city="Lisbon"), App(quizzed())
    outer = Agent("Outer", description="Delegates.")

    @outer.skill(durable=True)
    async def ask(turn: Turn) -> str:
        async with turn.connect(app=other, answer=quiz) as found:
            return (await found.send("city")).text

    async with Client.connect(app=other), Client.connect(app=App(outer)) as asking:
        assert (await asking.send("x")).text == "city: Lisbon, "


def test_without_await() -> None:
    with SyncClient.connect(app=App(quizzed()), answer=Quiz(city="Lisbon")) as found:
        assert found.send("city").text == "city: Lisbon, "
