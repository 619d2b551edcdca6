"""The tools of an MCP server as skills of an agent, in every version of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dragoman import TaskState
from dragoman.client import Client
from dragoman.mcp import agent
from dragoman.model.errors import InvalidParams
from dragoman.orchestrator import FunctionModel
from tests.products.mcp.desk import NEW, OLD, OLDER, VERSIONS, calling, command, over_http


@pytest.fixture(params=VERSIONS)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with over_http(request.param) as url, calling(agent(url, name="desk")) as found:
        yield found


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_process_is_served_in_every_version(version: str) -> None:
    async with calling(agent(command(version))) as client:
        assert await client.call_skill("add", a=1, b=2) == {"total": 3}
        asked = await client.send({"day": "Monday"}, skill="book")
        assert asked.state is TaskState.INPUT_REQUIRED
        told = await client.task(asked.task.id).reply({"seats": 2})
        assert told.text == "2 seats on Monday"


async def test_the_card_has_the_schemas(client: Client) -> None:
    skills = client.skills
    assert {"add", "greet", "book", "hang"} <= set(skills)
    add = skills["add"]
    assert add.input is not None
    assert add.output is not None
    jsonschema.Draft202012Validator.check_schema(add.input)
    assert set(add.input["properties"]) == {"a", "b"}
    assert add.output["required"] == ["total"]
    assert add.name == "Add two numbers"
    assert "read-only" in add.tags
    assert "destructive" in skills["book"].tags


async def test_results_are_artifacts(client: Client) -> None:
    assert await client.call_skill("add", a=1, b=2) == {"total": 3}
    assert await client.call_skill("numbers", most=3) == {"result": [1, 2, 3]}
    greeted = await client.send({"name": "Ada"}, skill="greet")
    assert greeted.task.artifacts[0].name == "greet"
    assert greeted.text == "Hello Ada"


async def test_files_and_links(client: Client) -> None:
    found = await client.send({}, skill="files")
    image, link, refused, drawer = found.task.artifacts[0].parts
    assert (image.raw, image.media_type) == (b"\x89PNG", "image/png")
    assert link.url == "https://files.example/a.pdf"
    assert refused.url is None
    assert "left out: the URL is not https" in refused.text
    # nobody but us reaches the resource, so it was read
    assert drawer.text == "a key"


async def test_progress_is_status(client: Client) -> None:
    said = []
    async for event in client.stream({"steps": 3}, skill="count"):
        status = getattr(event, "status", None)
        if status is not None and status.state is TaskState.WORKING and status.message:
            said.append((status.message.text, event.metadata))
    assert [text for text, _ in said][-1] == "step 3"
    assert said[-1][1] == {"urn:dragoman:mcp-progress:v1": {"progress": 3, "total": 3}}


async def test_an_error_is_a_failed_task_with_its_words(client: Client) -> None:
    failed = await client.send({}, skill="refuse")
    assert failed.state is TaskState.FAILED
    assert "refuse" in failed.text


async def test_what_does_not_fit_the_schema_is_refused(client: Client) -> None:
    with pytest.raises(InvalidParams, match=r"a: expected an integer"):
        await client.send({"a": "one", "b": 2}, skill="add")


async def test_what_is_missing_is_asked_for(client: Client) -> None:
    asked = await client.send({"a": 1}, skill="add")
    assert asked.state is TaskState.INPUT_REQUIRED
    assert asked.parts[1].data["required"] == ["b"]
    told = await client.task(asked.task.id).reply("b: 4")
    assert told.parts[0].data == {"total": 5}


async def test_a_question_has_its_schema_and_its_answer_goes_on(client: Client) -> None:
    asked = await client.send({"day": "Monday"}, skill="book")
    assert asked.state is TaskState.INPUT_REQUIRED
    assert asked.text.startswith("How many seats?")
    schema = asked.parts[1].data
    assert schema["properties"]["seats"]["minimum"] == 1
    task = client.task(asked.task.id)
    again = await task.reply({"seats": 0})
    assert again.text.startswith("That does not fit: seats: must be at least 1")
    told = await task.reply("seats: 2")
    assert (told.state, told.text) == (TaskState.COMPLETED, "2 seats on Monday")


@pytest.mark.parametrize("word", ["decline", "cancel"])
async def test_a_question_can_be_declined(client: Client, word: str) -> None:
    asked = await client.send({"day": "Monday"}, skill="book")
    told = await client.task(asked.task.id).reply(word)
    assert told.text == f"not booked: {word}"


async def test_questions_of_two_tasks_are_not_mixed_up(client: Client) -> None:
    asked = await asyncio.gather(
        *(client.send({"day": f"day {number}"}, skill="book") for number in range(4))
    )
    told = await asyncio.gather(
        *(
            client.task(each.task.id).reply({"seats": number + 1})
            for number, each in enumerate(asked)
        )
    )
    assert [each.text for each in told] == [f"{n + 1} seats on day {n}" for n in range(4)]


async def test_words_without_a_skill_get_a_question(client: Client) -> None:
    asked = await client.send("hello")
    assert asked.state is TaskState.INPUT_REQUIRED
    assert "add: Add two numbers" in asked.text
    assert "greet" in asked.parts[1].data["properties"]["skill"]["enum"]
    task = client.task(asked.task.id)
    asked = await task.reply("greet")
    assert "name: is required" in asked.text
    assert (await task.reply("name: Bob")).text == "Hello Bob"


async def test_words_without_a_skill_can_be_answered_by_data(client: Client) -> None:
    asked = await client.send("hello")
    data = {"skill": "greet", "arguments": {"name": "Bob"}}
    assert (await client.task(asked.task.id).reply(data)).text == "Hello Bob"


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_sampling_is_refused_or_passed_to_the_model(version: str) -> None:
    asked: list[Any] = []

    def write(messages: Any, tools: Any) -> str:
        asked.append((messages[-1].text, tools))
        return "Roses are red"

    async with over_http(version) as url:
        async with calling(agent(url)) as client:
            refused = await client.send({"about": "roses"}, skill="poem")
            assert refused.state is TaskState.FAILED
            if version == NEW:
                assert "asks for a model" in refused.text
        async with calling(agent(url, model=FunctionModel(write))) as client:
            assert (await client.send({"about": "roses"}, skill="poem")).text == "Roses are red"
    assert asked == [("roses", ())]


@pytest.mark.parametrize("version", [OLDER, NEW])
async def test_cancel_and_time_out_reach_the_tool(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    monkeypatch.setenv("NOTES", str(notes))

    async def noted(text: str) -> None:
        async with asyncio.timeout(10):
            while not notes.exists() or text not in notes.read_text():
                await asyncio.sleep(0.01)

    async with over_http(version) as url, calling(agent(url, timeout=0.5)) as client:
        began = await client.send({}, skill="hang", wait=False)
        await noted("hanging")
        await client.task(began.task.id).cancel()
        await noted("canceled")
        notes.unlink()
        failed = await client.send({}, skill="hang")
        assert failed.state is TaskState.FAILED
        assert failed.text == "The tool hang gave no sign for 0.5 seconds"
        await noted("canceled")
        # the server is well, and goes on
        assert await client.call_skill("add", a=1, b=2) == {"total": 3}


async def test_one_agent_for_several_servers() -> None:
    async with over_http() as one, over_http(OLD) as other:
        from dragoman.mcp import HTTPServer

        both = agent(HTTPServer(url=one, name="one"), HTTPServer(url=other, name="other"))
        async with calling(both) as client:
            assert await client.call_skill("one.add", a=1, b=2) == {"total": 3}
            assert await client.call_skill("other.add", a=1, b=2) == {"total": 3}


async def test_the_only_tool_can_be_called_by_words() -> None:
    from mcp.server.mcpserver import MCPServer

    from tests.harness.server import serving

    alone = MCPServer("alone")

    @alone.tool(structured_output=False)
    def shout(words: str) -> str:
        return words.upper()

    async with serving(alone.streamable_http_app()) as url, calling(agent(f"{url}/mcp")) as client:
        assert (await client.send("hello")).text == "HELLO"
        assert (await client.send({"words": "data"})).text == "DATA"
