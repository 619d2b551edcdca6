"""The guide for users of a2a-sdk: both agents do the same, and no class of the SDK is missing."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from a2a.utils import errors as sdk_errors

from dragoman import App, TaskState
from dragoman.client import Client
from dragoman.model import errors

PAGE = Path(__file__).resolve().parents[2] / "docs/from-a2a-sdk.md"
MODULES = (
    *("server.agent_execution", "server.cluster", "server.events", "server.request_handlers"),
    *("server.routes", "server.tasks", "client", "client.auth", "client.transports"),
)


def block(name: str) -> str:
    """The file of that name on the page."""
    found = re.search(rf"^```python\n(# {name}\.py\n.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert found is not None
    return found[1]


def module(name: str) -> ModuleType:
    """That file, run."""
    made = ModuleType(name)
    exec(compile(block(name), f"{name}.py", "exec"), vars(made))
    return made


def applications() -> list[Any]:
    """The agent on either."""
    return [
        pytest.param(lambda: module("sdk_booking").app, id="a2a-sdk"),
        pytest.param(lambda: App(module("booking").agent), id="dragoman"),
    ]


@pytest.mark.parametrize("application", applications())
async def test_the_booking_agent_asks_and_books(application: Any) -> None:
    app = application()
    async with Client.connect(app=app) as agent:
        asked = await agent.send("A flight please")
        assert asked.state is TaskState.INPUT_REQUIRED
        assert asked.text == "Which dates?"
        assert asked.task is not None
        booked = await agent.task(asked.task.id).reply("From 2026-08-10 to 2026-08-15")
        assert booked.state is TaskState.COMPLETED
        assert booked.data == {"reference": "FL-0427", "from": "2026-08-10", "to": "2026-08-15"}
    if isinstance(app, App):
        await app.stop()


@pytest.mark.parametrize(("name", "title"), [("sdk_booking", "a2a-sdk"), ("booking", "dragoman")])
def test_the_guide_counts_lines_right(name: str, title: str) -> None:
    told = re.search(rf"^On `?{title}`? \((\d+) lines\):$", PAGE.read_text(), re.M)
    assert told is not None
    assert int(told[1]) == block(name).count("\n")


@pytest.mark.parametrize("name", MODULES)
def test_each_name_of_the_sdk_has_a_replacement(name: str) -> None:
    if not importlib.metadata.version("a2a-sdk").startswith("1.3."):
        pytest.skip("the guide is for a2a-sdk 1.3")
    page = PAGE.read_text()
    public = importlib.import_module(f"a2a.{name}").__all__
    assert [one for one in public if f"`{one}`" not in page] == []


def test_the_errors_of_the_sdk_have_the_names_that_the_guide_says() -> None:
    differ = {"InternalError": "InternalError", "JSONParseError": "ParseError"}
    named = [n for n, one in vars(sdk_errors).items() if isinstance(one, type) and n != "A2AError"]
    known = [name for name in named if issubclass(getattr(sdk_errors, name), sdk_errors.A2AError)]
    assert len(known) > 10
    for name in known:
        ours = getattr(errors, differ.get(name, name.removesuffix("Error")))
        assert issubclass(ours, errors.A2AError)
