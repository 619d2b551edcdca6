"""Subscribing over HTTP+JSON, where agents know POST, or GET, or both."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest

from dragoman.client import Client, TransportRequest
from dragoman.model.errors import MethodNotFound, TaskNotFound, Unavailable, UnsupportedOperation
from dragoman.model.types import Task, TaskState
from tests.client.transports import STREAM, Answer, Script, card, interface, task

GOOD = json.dumps({"task": task()}).encode()
Says = Callable[[], Answer]


def events() -> Answer:
    """A task that has ended, as a stream."""
    return Answer(b"data: %b\n\n" % GOOD, headers=STREAM)


def error(status: int, reason: str = "") -> Says:
    """A refusal; with a reason it is one of A2A, else what a web framework says."""
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}
    told = {"error": {"code": status, "message": reason, "details": [info]}}
    body = json.dumps(told if reason else {"detail": "Not Found"}).encode()
    return lambda: Answer(body, status=status)


MISSING = error(404, "TASK_NOT_FOUND")


class Agent(Script):
    """Answers a subscription by its verb, and everything else with the task."""

    def __init__(self, verbs: Mapping[str, Says]) -> None:
        super().__init__(self._answered)
        self.verbs = dict(verbs)

    def _answered(self, request: TransportRequest) -> Answer:
        if not request.url.endswith(":subscribe"):
            return Answer(json.dumps(task()).encode())
        return self.verbs[request.method]()

    @property
    def subscribed(self) -> list[str]:
        """The verbs of subscriptions so far."""
        return [one.method for one in self.asked if one.url.endswith(":subscribe")]


async def follow(client: Client) -> Task | None:
    """The task that a subscription tells."""
    async with client.task("t").subscribe() as stream:
        async for _ in stream:
            pass
    return stream.task


def connect(agent: Agent, attempts: int = 1) -> Client:
    """A client of it."""
    return Client.connect(
        card(interface("http://agent", "HTTP+JSON")), transport=agent, attempts=attempts
    )


async def test_post_comes_first() -> None:
    agent = Agent({"POST": events, "GET": MISSING})
    async with connect(agent) as client:
        found = await follow(client)
        assert found is not None
        assert found.status.state is TaskState.COMPLETED
        await follow(client)
    assert agent.subscribed == ["POST", "POST"]
    (first, *_) = [one for one in agent.asked if one.method == "POST"]
    assert (first.url, first.body) == ("http://agent/tasks/t:subscribe", b"{}")


@pytest.mark.parametrize(
    "refusal",
    [
        error(404),
        MISSING,
        error(405),
        error(405, "METHOD_NOT_FOUND"),
        error(501),
        lambda: Answer(b"<html>", status=404, headers={"content-type": "text/html"}),
    ],
    ids=["404", "not found", "405", "method", "501", "page"],
)
async def test_an_agent_that_knows_get_only(refusal: Says) -> None:
    agent = Agent({"POST": refusal, "GET": events})
    async with connect(agent) as client:
        assert await follow(client) is not None
        assert agent.subscribed == ["POST", "GET"]
        await follow(client)
    assert agent.subscribed == ["POST", "GET", "GET"]


@pytest.mark.parametrize(
    ("post", "get", "kind"),
    [
        (MISSING, MISSING, TaskNotFound),
        (MISSING, error(405), TaskNotFound),
        (error(405), MISSING, TaskNotFound),
        (error(404), MISSING, TaskNotFound),
        (error(404), error(405), MethodNotFound),
        (error(405), error(400, "UNSUPPORTED_OPERATION"), UnsupportedOperation),
        (error(405), error(503), Unavailable),
    ],
)
async def test_what_neither_verb_finds(post: Says, get: Says, kind: type[Exception]) -> None:
    agent = Agent({"POST": post, "GET": get})
    async with connect(agent) as client:
        with pytest.raises(kind):
            await follow(client)
    assert agent.subscribed == ["POST", "GET"]


async def test_once_a_verb_is_known_a_missing_task_is_one() -> None:
    agent = Agent({"POST": events, "GET": events})
    async with connect(agent) as client:
        await follow(client)
        agent.verbs["POST"] = MISSING
        with pytest.raises(TaskNotFound):
            await follow(client)
        assert agent.subscribed == ["POST", "POST"]
        # one that takes the verb no more is asked by the other
        agent.verbs["POST"] = error(405)
        await follow(client)
        await follow(client)
    assert agent.subscribed[2:] == ["POST", "GET", "GET"]


async def test_a_task_that_has_ended_tells_the_verb_too() -> None:
    ended = error(400, "UNSUPPORTED_OPERATION")
    agent = Agent({"POST": error(405), "GET": ended})
    async with connect(agent) as client:
        for _ in range(2):
            with pytest.raises(UnsupportedOperation):
                await follow(client)
    assert agent.subscribed == ["POST", "GET", "GET"]


async def test_what_passes_by_says_nothing_of_the_verb() -> None:
    answers = iter([error(503), error(405)])
    agent = Agent({"POST": lambda: next(answers)(), "GET": events})
    async with connect(agent, attempts=2) as client:
        assert await follow(client) is not None
    assert agent.subscribed == ["POST", "POST", "GET"]
