"""Agents of an App as tools: what the official client of MCP sees."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import mcp.types as types
import pytest
from mcp import MCPError

from dragoman import Agent, AgentCard, AgentSkill, App, Caller, Turn
from dragoman.mcp import McpApp, mounts
from dragoman.security import Anonymous, ApiKey
from dragoman.stores.memory import MemoryStore
from tests.harness.server import served
from tests.harness.stores import database
from tests.products.mcp import served_agents as desk
from tests.products.mcp.clients import NEW, OLD, OLDER, VERSIONS, User, client, task_of, text

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = {"message": "Hello"}


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    app = App(desk.desk, mounts=mounts(desk.desk), drain_timeout=0.2)
    async with served(app) as server:
        yield f"{server.url}/mcp"


@pytest.fixture(scope="module")
async def hasty() -> AsyncIterator[str]:
    """A server that soon answers with a task."""
    app = App(desk.desk, mounts=mounts(desk.desk, patience=0.3), drain_timeout=0.2)
    async with served(app) as server:
        yield f"{server.url}/mcp"


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_skill_is_a_tool(url: str, version: str) -> None:
    async with client(url, version) as found:
        tools = {tool.name: tool for tool in (await found.list_tools()).tools}
    assert {*desk.desk.skills} <= {*tools}
    assert {*tools} - {*desk.desk.skills} == {"get_task", "answer_task", "cancel_task"}
    book = tools["book"]
    assert book.description == "Book a flight.\n(A skill of the agent Desk.)"
    assert book.input_schema["properties"]["city"] == {"type": "string", "description": "Where to"}
    assert book.input_schema["required"] == ["city"]
    assert book.output_schema is not None
    assert {*book.output_schema["properties"]} == {"reference", "seats"}
    assert tools["echo"].input_schema["required"] == ["message"]
    assert "required" not in tools["reserve"].input_schema  # the agent asks


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_call_returns_the_result_of_the_skill(url: str, version: str) -> None:
    async with client(url, version) as found:
        result = await found.call_tool("book", {"city": "Rome", "seats": 2})
        said = await found.call_tool("echo", HELLO)
    assert result.structured_content == {"reference": "FL-Rome", "seats": 2}
    assert json.loads(text(result)) == result.structured_content
    assert (text(said), said.is_error) == ("Hello", False)


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26"])
async def test_older_versions_are_understood(url: str, version: str) -> None:
    async with client(url, version) as found:
        assert len((await found.list_tools()).tools) > 10
        assert text(await found.call_tool("echo", HELLO)) == "Hello"


@pytest.mark.parametrize("version", VERSIONS)
async def test_wrong_arguments_are_an_error_that_names_them(url: str, version: str) -> None:
    async with client(url, version) as found:
        result = await found.call_tool("book", {"town": "Rome"})
        with pytest.raises(MCPError, match="Unknown tool"):
            await found.call_tool("nothing", {})
    assert result.is_error
    assert "city: is required" in text(result)


@pytest.mark.parametrize("version", VERSIONS)
async def test_progress_is_reported(url: str, version: str) -> None:
    user = User()
    async with client(url, version) as found:
        result = await found.call_tool("progress", HELLO, progress_callback=user.report)
    assert user.progress == ["searching", "comparing", "Found"]
    assert text(result) == "Found"


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_question_is_an_elicitation(url: str, version: str) -> None:
    user = User({"answer": "On Monday"})
    async with client(url, version, user) as found:
        result = await found.call_tool("chat", HELLO)
    assert [params.message for params in user.asked] == ["Which date?"]
    assert text(result) == "Booked On Monday"


@pytest.mark.parametrize("version", VERSIONS)
async def test_missing_parameters_are_the_fields_of_a_form(url: str, version: str) -> None:
    user = User({"nights": 3})
    async with client(url, version, user) as found:
        result = await found.call_tool("reserve", {"city": "Rome"})
    (asked,) = user.asked
    assert isinstance(asked, types.ElicitRequestFormParams)
    assert asked.requested_schema["properties"] == {"nights": {"type": "integer"}}
    assert result.structured_content == {"reference": "HO-Rome", "seats": 3}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("answer", "said"),
    [({"approve": True}, "Paid"), ({"approve": False}, "declined"), ("decline", "declined")],
)
async def test_an_approval_is_a_form_with_one_field(
    url: str, version: str, answer: Any, said: str
) -> None:
    user = User(answer)
    async with client(url, version, user) as found:
        result = await found.call_tool("pay", HELLO)
    assert "Operation: " in user.asked[0].message
    assert said in text(result)


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_a_login_is_a_page_to_open(hasty: str, version: str) -> None:
    user = User({})
    async with client(hasty, version, user) as found:
        result = await found.call_tool("login", HELLO)
        (asked,) = user.asked
        assert isinstance(asked, types.ElicitRequestURLParams)
        assert asked.url == "https://login.example/start?x=1"
        assert "when the user has logged in" in text(result)
        done = await found.call_tool("answer_task", {"task_id": task_of(result), "message": "Done"})
    assert text(done) == "Logged in"


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_an_agent_that_waits_for_the_login_goes_on(url: str, version: str) -> None:
    desk.logged_in = asyncio.Event()

    class Visitor(User):
        async def elicit(self, context: Any, params: types.ElicitRequestParams) -> Any:
            asyncio.get_running_loop().call_later(0.3, desk.logged_in.set)
            return await super().elicit(context, params)

    async with client(url, version, Visitor({})) as found:
        assert text(await found.call_tool("login_meanwhile", HELLO)) == "Logged in"


async def test_a_client_that_cannot_open_pages_is_told_the_address(hasty: str) -> None:
    async with client(hasty, OLDER) as found:
        result = await found.call_tool("login_meanwhile", HELLO)
    assert "must open https://login.example/wait" in text(result)


@pytest.mark.parametrize("version", VERSIONS)
async def test_to_decline_tells_the_agent(url: str, version: str) -> None:
    user = User("decline", {"answer": "On Sunday"})
    async with client(url, version, user) as found:
        result = await found.call_tool("chat", HELLO)
    assert len(user.asked) == 2  # the agent has asked again
    assert text(result) == "Booked On Sunday"


@pytest.mark.parametrize("version", VERSIONS)
async def test_after_cancel_the_question_waits(url: str, version: str) -> None:
    async with client(url, version, User("cancel")) as found:
        result = await found.call_tool("chat", HELLO)
        id = task_of(result)
        assert "call the tool `answer_task`" in text(result)
        answered = await found.call_tool("answer_task", {"task_id": id, "message": "On Friday"})
    assert text(answered) == "Booked On Friday"


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_client_that_cannot_ask_is_told_what_to_call(url: str, version: str) -> None:
    async with client(url, version) as found:
        result = await found.call_tool("pay", HELLO)
        assert not result.is_error
        assert '"approve": true' in text(result)
        call = {"task_id": task_of(result), "approve": True}
        assert text(await found.call_tool("answer_task", call)) == "Paid"
        typed = await found.call_tool("reserve", {"city": "Rome"})
        assert typed.is_error  # the tool promises data, and clients check that
        data = {"task_id": task_of(typed), "data": {"nights": 1}}
        assert (await found.call_tool("answer_task", data)).structured_content["seats"] == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_failure_has_the_words_and_what_there_is(url: str, version: str) -> None:
    async with client(url, version) as found:
        result = await found.call_tool("fail", HELLO)
    assert result.is_error
    assert text(result) == "The task has failed: No seats are left\nhalf"


@pytest.mark.parametrize("version", VERSIONS)
async def test_files_both_ways(url: str, version: str) -> None:
    async with client(url, version) as found:
        result = await found.call_tool("files", HELLO)
        _, image, ticket, terms = result.content
        read = await found.read_resource(ticket.resource.uri)
        size = await found.call_tool("size", {"document": "data:text/plain;base64,aGVsbG8="})
        wrong = await found.call_tool("size", {"document": "hello"})
    assert (image.type, image.mime_type) == ("image", "image/png")
    assert ticket.resource.blob == read.contents[0].blob == "JVBERg=="
    assert (terms.type, terms.uri) == ("resource_link", "https://a.example/terms.pdf")
    assert text(size) == "it has 5 bytes"
    assert "by its URL" in text(wrong)


@pytest.mark.parametrize("version", VERSIONS)
async def test_artifacts_of_past_tasks_are_resources(url: str, version: str) -> None:
    async with client(url, version) as found:
        id = task_of(await found.call_tool("echo", {"message": f"kept {version}"}))
        listed = (await found.list_resources()).resources
        (uri,) = [each.uri for each in listed if id in each.uri]
        read = await found.read_resource(uri)
        for wrong in (uri.replace("artifacts", "others"), f"{uri}/7", f"{uri}/x", "a2a://[", "b"):
            with pytest.raises(MCPError, match="no resource"):
                await found.read_resource(wrong)
    assert read.contents[0].text == f"kept {version}"


async def test_examples_are_prompts(url: str) -> None:
    async with client(url) as found:
        names = [prompt.name for prompt in (await found.list_prompts()).prompts]
        prompt = await found.get_prompt(names[0])
        with pytest.raises(MCPError, match="no prompt"):
            await found.get_prompt("book-9")
    assert names == ["book-1", "book-2"]
    assert prompt.messages[0].content.text == "Book a flight to Rome"


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_long_call_is_answered_with_its_task(hasty: str, version: str) -> None:
    async with client(hasty, version) as found, asyncio.timeout(15):
        result = await found.call_tool("wait", HELLO)
        id = task_of(result)
        assert "`get_task`" in text(result)
        assert "still working" in text(await found.call_tool("get_task", {"task_id": id}))
        canceled = await found.call_tool("cancel_task", {"task_id": id})
        again = await found.call_tool("get_task", {"task_id": id, "wait": 5})
    assert text(canceled) == text(again) == "The task was canceled."


@pytest.mark.parametrize("version", VERSIONS)
async def test_to_cancel_the_call_cancels_the_task(url: str, version: str) -> None:
    desk.began, desk.released = asyncio.Event(), asyncio.Event()
    async with client(url, version) as found:
        calling = asyncio.create_task(found.call_tool("wait", HELLO))
        async with asyncio.timeout(10):
            await desk.began.wait()
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            await desk.released.wait()


async def test_a_client_that_only_goes_away_cancels_nothing(url: str) -> None:
    desk.began, desk.released = asyncio.Event(), asyncio.Event()
    headers = {"accept": "application/json, text/event-stream"}
    params: dict[str, Any] = {"protocolVersion": OLD, "capabilities": {}}
    params["clientInfo"] = {"name": "test", "version": "1"}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    call = {"name": "wait", "arguments": HELLO}
    body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
    async with httpx.AsyncClient(trust_env=False) as http, asyncio.timeout(15):
        opened = await http.post(url, json=hello, headers=headers)
        headers["mcp-session-id"] = opened.headers["mcp-session-id"]
        posting = asyncio.create_task(http.post(url, json=body, headers=headers, timeout=None))
        await desk.began.wait()
        posting.cancel()
        await asyncio.gather(posting, return_exceptions=True)
        assert (await http.delete(url, headers=headers)).status_code == 200
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(desk.released.wait(), 0.5)


async def test_a_repetition_runs_nothing_twice(url: str) -> None:
    meta = {"dragoman/idempotency-key": "one"}
    async with client(url) as found:
        first = await found.call_tool("echo", HELLO, meta=meta)
        second = await found.call_tool("echo", HELLO, meta=meta)
        other = await found.call_tool("echo", HELLO)
        wrong = await found.call_tool("echo", {"message": "Bye"}, meta=meta)
    assert task_of(first) == task_of(second) != task_of(other)
    assert wrong.is_error
    header = {"Idempotency-Key": "one"}
    async with client(url, headers=header) as found, client(url, OLD, headers=header) as older:
        assert task_of(await found.call_tool("echo", HELLO)) == task_of(first)
        assert task_of(await older.call_tool("echo", HELLO)) == task_of(first)


async def test_ids_of_requests_alone_are_no_key(url: str) -> None:
    async with client(url) as one, client(url) as two:
        first = await one.call_tool("echo", HELLO)  # both have the same id
        second = await two.call_tool("echo", HELLO)
    assert task_of(first) != task_of(second)


async def test_callers_see_the_skills_of_the_card_that_is_for_them() -> None:
    shop = Agent("Shop", description="Sells.")

    @shop.handler
    @shop.skill
    async def sell(turn: Turn) -> str:
        """Sell something."""
        return turn.caller.identity or "nobody"

    @shop.extended_card
    def for_friends(caller: Caller, card: AgentCard) -> AgentCard:
        more = AgentSkill(id="discount", name="Discount", description="For friends.", tags=("x",))
        return card.replace(skills=(*card.skills, more))

    keys = ApiKey(header="X-Key", keys={"ann": "anns-key"})
    app = App(shop, mounts=mounts(shop), auth=[keys, Anonymous()])
    async with served(app) as server:
        async with client(f"{server.url}/mcp") as found:
            assert [tool.name for tool in (await found.list_tools()).tools][:1] == ["sell"]
            assert text(await found.call_tool("sell", HELLO)) == "nobody"
        async with client(f"{server.url}/mcp", headers={"X-Key": "anns-key"}) as found:
            names = [tool.name for tool in (await found.list_tools()).tools]
            assert names[:2] == ["sell", "discount"]
            assert text(await found.call_tool("sell", HELLO)) == "ann"


async def test_a_large_file_is_a_link(url: str) -> None:
    async with client(url) as found:
        result = await found.call_tool("large", {"bytes": 1_500_000})
        (link,) = result.content
        read = await found.read_resource(link.uri)
    assert (link.type, link.size, link.name) == ("resource_link", 1_500_000, "large.bin")
    assert len(base64.b64decode(read.contents[0].blob)) == 1_500_000


@pytest.mark.parametrize("kind", ["memory", pytest.param("postgres", marks=pytest.mark.slow)])
async def test_replicas_share_tasks_and_secrets(kind: str) -> None:
    store = MemoryStore() if kind == "memory" else database()
    one = App(desk.desk, mounts=mounts(desk.desk), store=store)
    two = App(desk.desk, mounts=mounts(desk.desk), store=store)
    async with served(one) as first, served(two) as second:
        async with client(f"{first.url}/mcp", user=User()) as found:
            asked = await found.session.call_tool("chat", HELLO, allow_input_required=True)
        async with client(f"{second.url}/mcp", user=User()) as found:
            said = types.ElicitResult(action="accept", content={"answer": "On Monday"})
            result = await found.session.call_tool(
                "chat",
                HELLO,
                input_responses=dict.fromkeys(asked.input_requests, said),
                request_state=asked.request_state,
            )
    assert text(result) == "Booked On Monday"


async def test_before_the_start_and_after_the_end_it_says_that_it_is_unavailable() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await McpApp()({"type": "http", "dragoman.caller": Caller()}, None, send)
    assert sent[0]["status"] == 503


async def test_open_streams_do_not_hold_up_the_end_of_the_server() -> None:
    app = App(desk.desk, mounts=mounts(desk.desk), drain_timeout=0.2)
    async with served(app) as server:
        url = f"{server.url}/mcp"
        old = client(url, OLD)
        session = await old.__aenter__()
        await session.list_tools()
        async with client(url) as found, found.listen(tools_list_changed=True) as changes:
            desk.began = asyncio.Event()
            calling = asyncio.create_task(found.call_tool("wait", HELLO))
            await desk.began.wait()
            began = asyncio.get_running_loop().time()
            server.should_exit = True
            async with asyncio.timeout(8):
                async for _ in changes:
                    raise AssertionError("nothing has changed")
            result = await calling
        assert "`get_task`" in text(result)
        assert asyncio.get_running_loop().time() - began < 5
        with contextlib.suppress(BaseExceptionGroup, Exception):
            await old.__aexit__(None, None, None)


async def test_several_agents_have_a_server_each_and_one_for_all() -> None:
    app = App(desk.desk, desk.hotel, mounts=mounts(desk.desk, desk.hotel))
    async with served(app) as server:
        async with client(f"{server.url}/mcp") as found:
            names = {tool.name for tool in (await found.list_tools()).tools}
            said = await found.call_tool("Hotel_book_room", HELLO)
            id = task_of(said)
        async with client(f"{server.url}/hotel/mcp") as found:
            alone = {tool.name for tool in (await found.list_tools()).tools}
            again = await found.call_tool("get_task", {"task_id": id})
        async with client(f"{server.url}/desk/mcp") as found:
            hidden = await found.call_tool("get_task", {"task_id": id})
    assert {"Hotel_book_room", "Desk_book", "get_task"} <= names
    assert alone == {"book_room", "get_task", "answer_task", "cancel_task"}
    assert text(said) == text(again) == "room: Hello"
    assert "there is no task" in text(hidden)


async def test_without_the_app_that_authenticates_nothing_is_served() -> None:
    with pytest.raises(RuntimeError, match="mount it in an App"):
        await McpApp()({"type": "http", "path": "/"}, None, None)
    with pytest.raises(ValueError, match="patience"):
        McpApp(patience=0)
    with pytest.raises(RuntimeError, match="no agent 'nobody'"):
        async with App(desk.desk, mounts={"/mcp": McpApp(agent="nobody")}):
            pass
