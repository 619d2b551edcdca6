"""A server that is killed between a question and its answer."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mcp.types as types
import pytest
from mcp import StdioServerParameters

from tests.harness.command import SERVE, ServerProcess, environment, server_process
from tests.products.mcp import served_agents
from tests.products.mcp.clients import (
    OLDER,
    Tasks,
    User,
    ask,
    begin,
    client,
    task_of,
    text,
    until,
)

HELLO = {"message": "Hello"}
ANSWER = types.ElicitResult(action="accept", content={"answer": "On Monday"})
Restart = Callable[[], None]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Restart]]:
    """The URL of a server with MCP, and a function that kills and restarts it."""
    here = tmp_path_factory.mktemp("killed")
    (here / "agents.py").write_text(Path(served_agents.__file__).read_text())
    with ExitStack() as stack:
        words = ("agents:desk", "--mcp", "--store", "sqlite:///tasks.db")
        running: list[ServerProcess] = [stack.enter_context(server_process(here, *words))]
        url = running[0].url
        port = url.rpartition(":")[2]

        def restart() -> None:
            running[-1].end(signal.SIGKILL)
            again = server_process(here, *words, "--port", port, url=url, command=SERVE[:-2])
            running.append(stack.enter_context(again))

        yield url, restart


async def asked(found: Any, name: str) -> types.InputRequiredResult:
    """Call a tool that asks."""
    result = await found.session.call_tool(name, HELLO, allow_input_required=True)
    assert isinstance(result, types.InputRequiredResult)
    return result


async def answer(found: Any, name: str, question: types.InputRequiredResult) -> Any:
    """Call it again with the answer."""
    return await found.session.call_tool(
        name,
        HELLO,
        input_responses=dict.fromkeys(question.input_requests or {}, ANSWER),
        request_state=question.request_state,
        allow_input_required=True,
    )


async def test_a_returned_question(serving: tuple[str, Restart]) -> None:
    url, restart = serving
    async with client(f"{url}/mcp", user=User()) as found:
        question = await asked(found, "chat")
    restart()
    async with client(f"{url}/mcp", user=User()) as found:
        first = await answer(found, "chat", question)
        second = await answer(found, "chat", question)  # a repetition
    assert text(first) == text(second) == "Booked On Monday"


async def test_a_task(serving: tuple[str, Restart]) -> None:
    url, restart = serving
    async with client(f"{url}/mcp", extensions=[Tasks()]) as found:
        task = await begin(found, "chat", HELLO)
    restart()
    async with client(f"{url}/mcp", extensions=[Tasks()]) as found:
        session = found.session
        waiting = await until(session, task.task_id, lambda got: got.status == "input_required")
        said = ANSWER.model_dump(by_alias=True, exclude_none=True)
        answers = dict.fromkeys(waiting.input_requests or {}, said)
        await ask(session, "tasks/update", task.task_id, inputResponses=answers)
        done = await until(session, task.task_id, lambda got: got.status == "completed")
    assert done.result is not None
    assert done.result["content"][0]["text"] == "Booked On Monday"


async def test_a_result_that_says_what_to_call(serving: tuple[str, Restart]) -> None:
    url, restart = serving
    async with client(f"{url}/mcp", OLDER) as found:
        id = task_of(await found.call_tool("chat", HELLO))
    restart()
    async with client(f"{url}/mcp", OLDER) as found:
        result = await found.call_tool("answer_task", {"task_id": id, "message": "On Monday"})
    assert text(result) == "Booked On Monday"


async def test_a_bridge_on_standard_input(serving: tuple[str, Restart], tmp_path: Path) -> None:
    url, _ = serving
    command = StdioServerParameters(
        command=sys.executable,
        args=[
            "-c",
            f"import os; print(os.getpid(), file=open({str(tmp_path / 'pid')!r}, 'w')); "
            f"from dragoman.cli import main; main(['mcp', {url!r}])",
        ],
        env=environment(XDG_STATE_HOME=str(tmp_path)),
    )
    async with client(command, user=User()) as found:
        question = await asked(found, "chat")
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    async with client(command, user=User()) as found:
        assert text(await answer(found, "chat", question)) == "Booked On Monday"
