"""Which MCP server a text means, what a process inherits, and where requests may go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman import AgentError, TaskState
from dragoman.mcp import HTTPServer, StdioServer, agent, approve, parse_server
from dragoman.mcp.client.mcp_servers import INHERITED
from tests.harness.server import serving
from tests.products.mcp.desk import calling, command, over_http


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("uvx mcp-server-time", "mcp-server-time"),
        ("uvx mcp-server-time@1.2 --local-timezone=Europe/Rome", "mcp-server-time"),
        ("npx -y @modelcontextprotocol/server-everything", "server-everything"),
        ("python -m mcp_server_git --repository .", "mcp_server_git"),
        ("python3.12 /srv/desk.py 8000", "desk"),
        ("./tool", "tool"),
        ("https://tools.example/mcp", "tools.example"),
        ("http://127.0.0.1:8000/mcp", "127.0.0.1"),
    ],
)
def test_names(text: str, name: str) -> None:
    assert parse_server(text).name == name


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "needs a command or a URL"),
        ("http://tools.example/mcp", "not https; to permit that, allow the host"),
        ("https://ann:secret@tools.example/", "credentials in the URL"),
    ],
)
def test_servers_that_cannot_be_used(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_server(text)


def test_plain_http_can_be_allowed() -> None:
    server = HTTPServer(url="http://tools.example/mcp", allow=("tools.example",))
    assert parse_server(server).name == "tools.example"


def test_names_must_differ() -> None:
    with pytest.raises(AgentError, match="two servers have one name"):
        agent("uvx mcp-server-time", "uvx mcp-server-time")


async def test_a_process_inherits_nothing_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    async with calling(agent(command(GIVEN="yes"))) as client:
        found = await client.call_skill("environment")
    names = set(found["result"])
    assert "API_KEY" not in names
    assert {"GIVEN", "PATH"} <= names
    assert names <= {*INHERITED, "GIVEN", "LC_CTYPE", "PWD", "SHLVL", "_"}


async def test_requests_stay_at_their_origin_and_carry_only_our_credentials() -> None:
    seen: list[Any] = []

    async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append(scope)
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with serving(elsewhere, lifespan="off") as other:

        async def leading_away(scope: Any, receive: Any, send: Any) -> None:
            headers = [(b"location", f"{other}/mcp".encode())]
            await send({"type": "http.response.start", "status": 307, "headers": headers})
            await send({"type": "http.response.body", "body": b""})

        async with serving(leading_away, lifespan="off") as url:
            server = HTTPServer(url=f"{url}/mcp", headers={"Authorization": "Bearer ours"})
            with pytest.raises(AgentError, match="is not available"):
                async with calling(agent(server)):
                    raise AssertionError("it has started")
    assert not seen


async def test_callers_tokens_are_not_passed_on() -> None:
    seen: list[dict[bytes, bytes]] = []
    async with over_http() as url:
        from tests.products.mcp.servers import desk_server

        app = desk_server.server.streamable_http_app()

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                seen.append(dict(scope["headers"]))
            await app(scope, receive, send)

        async with serving(noting) as noted:
            server = HTTPServer(url=f"{noted}/mcp", headers={"Authorization": "Bearer ours"})
            async with calling(agent(server)) as client:
                message = {"a": 1, "b": 2}
                found = await client.send(message, skill="add", metadata={"token": "theirs"})
                assert found.state is TaskState.COMPLETED
    assert url
    assert {headers[b"authorization"] for headers in seen} == {b"Bearer ours"}
    assert "theirs" not in str(seen)


async def test_only_what_is_in_the_file_is_offered(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    async with over_http() as url:
        desk = HTTPServer(url=url, name="desk")
        async with calling(agent(desk, approved=file)) as client:
            before = set(client.skills)
        # an operator takes one out, and somebody changes another one
        text = file.read_text()
        import json

        tools = json.loads(text)
        del tools["desk"]["greet"]
        tools["desk"]["add"]["digest"] = "other"
        file.write_text(json.dumps(tools))
        async with calling(agent(desk, approved=file)) as client:
            assert set(client.skills) == before - {"greet"}
            refused = await client.send({"a": 1, "b": 2}, skill="add")
            assert refused.state is TaskState.FAILED
            assert "the operator of this agent must approve it again" in refused.text
            assert (await client.call_skill("numbers", most=1)) == {"result": [1]}
        await approve(file, desk)
        async with calling(agent(desk, approved=file)) as client:
            assert set(client.skills) == before
            assert await client.call_skill("add", a=1, b=2) == {"total": 3}


async def test_approved_tools_are_offered_while_the_server_is_away(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    async with over_http() as url:
        desk = HTTPServer(url=url, name="desk")
        await approve(file, desk)
    async with calling(agent(desk, approved=file, connect_timeout=2)) as client:
        assert "add" in client.skills
        failed = await client.send({"a": 1, "b": 2}, skill="add")
        assert failed.state is TaskState.FAILED
        assert failed.text == "The MCP server desk is not available"


def test_a_file_that_is_not_valid(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text("[]")
    with pytest.raises(ValueError, match=r"tools\.json"):
        agent("uvx mcp-server-time", approved=file)


def test_options_are_checked() -> None:
    with pytest.raises(AgentError, match="greater than 0"):
        agent(StdioServer(command=("x",)), connections=0)
    with pytest.raises(AgentError, match="at least one server"):
        agent()
