"""`dragoman call`: options, help and completion from the schema of a skill."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from dragoman import Agent, AgentExtension, App, Part, Turn, cli
from dragoman.cli import _parser
from dragoman.cli.completion import complete
from dragoman.model.skill_extension import SKILL_SCHEMA
from tests.harness.server import serving


@dataclass
class Booking:
    """A booking."""

    city: str
    nights: int
    extras: list[str]
    late: bool
    place: dict[str, float] | None = None


def hotels() -> Agent:
    """An agent with typed skills."""
    agent = Agent("Hotels", description="Books rooms.")

    @agent.handler
    async def anything(turn: Turn) -> str:
        return turn.text

    @agent.skill
    async def book_hotel(
        city: str,
        nights: Annotated[int, Meta(ge=1, description="How many nights, 100% sure")] = 2,
        extras: list[str] | None = None,
        board: Literal["half", "full"] = "half",
        late_arrival: bool = True,
        place: dict[str, float] | None = None,
    ) -> Booking:
        """Books a room."""
        return Booking(city, nights, extras or [], late_arrival, place)

    @agent.skill(ask=True)
    async def develop(photo: Part, task: str) -> str:
        """Develops a photo."""
        return f"{photo.filename} {task}"

    @agent.skill
    async def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @agent.skill
    async def free(turn: Turn) -> Any:
        """Takes anything."""
        return {"got": turn.data}

    return agent


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Where it is served."""
    async with serving(App(hotels())) as found:
        yield found


async def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The command in this process: status, output, errors."""

    def work() -> int:
        try:
            return cli.main(["call", *words])
        except SystemExit as error:  # argparse
            return int(str(error.code))

    capfd.readouterr()
    status = await asyncio.to_thread(work)
    return status, *capfd.readouterr()


Capture = pytest.CaptureFixture[str]


async def test_options_are_arguments(capfd: Capture, url: str) -> None:
    status, out, _ = await run(capfd, url, "book_hotel", "--city", "Rome", "--nights", "3")
    assert status == 0
    assert json.loads(out) == {
        "city": "Rome",
        "nights": 3,
        "extras": [],
        "late": True,
        "place": None,
    }
    words = ("--extras=a", "--extras", "b", "--no-late-arrival", "--place", '{"x": 1.5}')
    status, out, _ = await run(capfd, url, "book_hotel", "--city", "Rome", *words, "--json")
    assert status == 0
    (artifact,) = json.loads(out)["artifacts"]
    assert artifact["parts"][0]["data"] == {
        "city": "Rome",
        "nights": 2,
        "extras": ["a", "b"],
        "late": False,
        "place": {"x": 1.5},
    }


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["book_hotel"], "the following arguments are required: --city"),
        (["book_hotel", "--city", "R", "--nights", "x"], "--nights: 'x' is not a whole number"),
        (["book_hotel", "--city", "R", "--nights", "0"], "nights: must be at least 1"),
        (["book_hotel", "--city", "R", "--board", "none"], "--board: invalid choice: 'none'"),
        (["book_hotel", "--city", "R", "--place", "{"], "--place: not valid JSON"),
        (["book_hotel", "--city", "R", "--place", "[]"], "place: expected an object, got array"),
        (["book_hotel", "--cty", "R", "--city", "R"], "unrecognized arguments: --cty R"),
        (["develop", "--photo", "nowhere"], "--photo: nowhere: No such file or directory"),
        (["free", "--data", "[]"], "--data: expected a JSON object"),
        (
            ["dance"],
            "the agent has no skill 'dance'; its skills are: book_hotel, develop, add, free",
        ),
    ],
    ids=str,
)
async def test_what_does_not_fit_is_a_mistake(
    capfd: Capture, url: str, words: list[str], reason: str
) -> None:
    status, out, err = await run(capfd, url, *words)
    assert (status, out) == (2, "")
    assert reason in err


async def test_help_comes_from_the_schema(capfd: Capture, url: str) -> None:
    status, out, _ = await run(capfd, url, "book_hotel", "--help")
    assert status == 0
    for words in (
        "Books a room.",
        "--city STRING",
        "How many nights, 100% sure (default: 2)",
        "--late-arrival, --no-late-arrival",
        "(can be repeated)",
    ):
        assert words in out
    status, out, _ = await run(capfd, "--help")
    assert status == 0
    assert "dragoman call URL SKILL --help" in out


async def test_files_and_questions(capfd: Capture, url: str, tmp_path: Path) -> None:
    photo = tmp_path / "face.png"
    photo.write_bytes(b"x")
    status, out, _ = await run(capfd, "--json", url, "develop", "--photo", str(photo))
    assert status == 4  # it asks
    task = json.loads(out)["id"]
    # behind the skill, --task is its own parameter
    status, out, _ = await run(capfd, "--task", task, url, "develop", "--task", "crop")
    assert (status, out.strip()) == (0, "face.png crop")


async def test_an_option_may_be_the_beginning_of_another(capfd: Capture, url: str) -> None:
    status, out, _ = await run(capfd, url, "add", "--a", "1", "--b", "2")
    assert (status, json.loads(out)) == (0, {"result": 3})


async def test_a_skill_without_a_schema_takes_data(capfd: Capture, url: str) -> None:
    status, out, _ = await run(capfd, url, "free", "--data", '{"a": 1}')
    assert (status, json.loads(out)) == (0, {"got": {"a": 1}})


async def test_completion_comes_from_the_schema(url: str) -> None:
    async def offers(*words: str) -> list[str]:
        return await asyncio.to_thread(complete, _parser(), ["call", *words])

    assert await offers(url, "") == ["book_hotel", "develop", "add", "free"]
    assert await offers("--timeout", "5s", url, "bo") == ["book_hotel"]
    assert await offers(url, "book_hotel", "--c") == ["--city", "--context"]
    assert await offers(url, "book_hotel", "--city", "x", "--board", "") == ["full", "half"]
    assert await offers(url, "dance", "--") == []
    assert await offers("http://127.0.0.1:1", "") == []
    assert "--bearer" in await offers("--be")


async def test_names_of_a_stranger_do_no_harm(capfd: Capture) -> None:
    odd = {
        "--help": {"type": "string"},
        "help": {"type": "string"},
        "a b": {"type": "string"},
        "\x1b[31m": {"type": "string"},
        "fine": {"type": "string", "description": "red \x1b[31m %s %(prog)s", "enum": ["\x1b"]},
        "wild": {"type": 5, "description": 7, "enum": "x"},
        "loop": {"$ref": "#/$defs/a"},
    }
    schema = {"type": "object", "properties": odd, "$defs": {"a": {"$ref": "#/$defs/a"}}}
    extension = AgentExtension(uri=SKILL_SCHEMA, params={"free": {"input": schema}})
    agent = Agent("Odd", description="Is odd.", extensions=[extension])

    @agent.skill
    async def free(turn: Turn) -> str:
        """Takes \x1b[31m anything."""
        return str(turn.data)

    async with serving(App(agent)) as url:
        status, out, err = await run(capfd, url, "free", "--help")
        assert (status, err) == (0, "")
        assert "\x1b" not in out
        assert "--fine" in out
        status, out, _ = await run(capfd, url, "free", "--data", '{"a b": "x"}')
        assert (status, out) == (0, "{'a b': 'x'}\n")
