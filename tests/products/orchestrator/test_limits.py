"""The limits that nobody waits for in a test are those that the docs state; a cancel is tried for
a day."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, RemoteTask, TaskState, Turn
from dragoman.client import Client
from dragoman.orchestrator import Budget
from dragoman.orchestrator.agent_call import LARGE, MOST_QUESTIONS
from dragoman.orchestrator.agent_team import ABSENT, AGE, FIRST_PAUSE, LAST_PAUSE
from dragoman.orchestrator.cancel_remote_tasks import canceler
from dragoman.orchestrator.model_loop import REFUSED
from dragoman.orchestrator.plan_execution import Rules
from dragoman.security import Token
from dragoman.testing import run_handler
from tests.harness.server import serving

ROOT = Path(__file__).resolve().parents[3]
PAGE = " ".join((ROOT / "docs/orchestrator.md").read_text().split())


def test_the_budget() -> None:
    stated = re.search(r"`(Budget\(.*?\))`", PAGE)
    assert stated is not None
    assert eval(stated[1], {"Budget": Budget}) == Budget()


@pytest.mark.parametrize(
    ("words", "value", "number"),
    [
        ("or 30 seconds after the first question", Rules().ask_after, 30),
        ("An agent may ask five questions in a step", MOST_QUESTIONS, 5),
        ("is called again, at most twice", REFUSED, 2),
        ("asks for the cards again every minute", AGE, 60),
        ("and asked again after ten seconds", ABSENT, 10),
        ("results of more than 64 KiB", LARGE, 65536),
    ],
)
def test_what_the_page_says(words: str, value: float, number: float) -> None:
    assert words in PAGE
    assert value == number


def test_an_agent_that_is_away_is_waited_for() -> None:
    assert "A plan that is under way waits about a minute for it" in PAGE
    pauses = [FIRST_PAUSE]
    while 2 * pauses[-1] <= LAST_PAUSE:
        pauses.append(2 * pauses[-1])
    assert 55 < sum(pauses) < 70


async def test_a_cancel_is_tried_for_a_day(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Then it is named. The clock is the test's."""
    assert "it is tried again for a day, and the log names what could not be canceled" in PAGE
    passed, tried = 0.0, list[str]()

    async def sleep(turn: Turn, seconds: float) -> None:
        nonlocal passed
        passed += seconds

    async def away(task: RemoteTask, options: Any) -> bool:
        tried.append(task.id)
        return task.id == "1" and len(tried) > 4

    began = datetime(2026, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(Turn, "sleep", sleep)
    monkeypatch.setattr(Turn, "now", lambda turn: began + timedelta(seconds=passed))
    monkeypatch.setattr("dragoman.orchestrator.cancel_remote_tasks._canceled", away)
    tasks = [{"address": "http://127.0.0.1:1", "id": id} for id in ("1", "2")]
    found = await run_handler(
        canceler(lambda address: {}, key="canceler"), {"tasks": tasks, "of": "T"}, strict=True
    )
    assert 24 * 3600 < passed <= 24 * 3600 + 900
    assert tried[:6] == ["1", "2", "1", "2", "1", "2"] and set(tried[6:]) == {"2"}
    assert "not canceled: 2 at http://127.0.0.1:1" in found.text
    assert "task 2 at http://127.0.0.1:1 was not canceled in a day" in caplog.text
    assert "task 1 at" not in caplog.text


async def test_a_cancel_that_is_refused_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent has no such task, has ended it, or does not know us."""

    async def sleep(turn: Turn, seconds: float) -> None:
        raise AssertionError("it is tried again")

    monkeypatch.setattr(Turn, "sleep", sleep)
    agent = Agent("Done", description="Is done.")
    agent.handler(lambda turn: "done")
    closed = App(agent, auth=Token({"ann": "a-key"}))
    async with (
        serving(App(agent)) as url,
        serving(closed) as refusing,
        Client.connect(url) as client,
    ):
        ended = (await client.send("go")).task
        assert ended is not None
        found = await run_handler(
            canceler(lambda address: {}, key="canceler"),
            {
                "tasks": [
                    {"address": url, "id": ended.id},
                    {"address": url, "id": "unknown"},
                    {"address": refusing, "id": "closed"},
                ],
                "of": "T",
            },
            strict=True,
        )
    assert found.state is TaskState.COMPLETED and not found.text
