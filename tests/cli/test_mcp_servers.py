"""`dragoman serve --mcp-server`: the options, and what is wrong with them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from dragoman import App
from dragoman.cli import UsageError, _parser, main
from dragoman.cli.mcp_servers import MCPServers, given
from dragoman.client import Client
from tests.products.mcp.desk import calling, command, over_http


def options(*words: str) -> MCPServers:
    return given(_parser().parse_args(["serve", *words]))


def desk() -> str:
    return shlex.join(command().command)


async def test_a_command_with_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_DESK", "secret")
    monkeypatch.setenv("OTHER", "secret")
    words = ("--mcp-server", desk(), "--mcp-env", "KEY_OF_DESK", "--mcp-env", "MODE=a=b")
    (agent,) = options(*words).agents()
    assert agent.key == "desk-server"
    async with calling(agent) as client:
        names = (await client.call_skill("environment"))["result"]
    assert {"KEY_OF_DESK", "MODE"} <= set(names)
    assert "OTHER" not in names


async def test_several_servers_with_a_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("ours\n")
    async with over_http() as url:
        other = url.replace("127.0.0.1", "localhost")
        words = ("--mcp-server", url, "--mcp-server", other, "--mcp-token", f"@{token}")
        first, second = options(*words).agents()
        async with (
            App(first, second, store="memory:") as app,
            Client.connect(f"http://agent.example/{second.key}", app=app) as client,
        ):
            assert await client.call_skill("add", a=1, b=2) == {"total": 3}
    assert first.key != second.key


def test_tools_are_approved(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    words = ("--mcp-server", desk(), "--mcp-approved", str(file), "--mcp-approve")
    (agent,) = options(*words).agents()
    assert "add" in agent.skills  # known without a connection
    assert "Add two numbers" in file.read_text()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--mcp-server", "http://tools.example/mcp"], "the URL is not https"),
        (["--mcp-server", "x", "--mcp-env", "NOT_THERE"], "there is no such variable"),
        (["--mcp-server", "x", "--mcp-approve"], "say with --mcp-approved in which file"),
        (["--mcp-server", ""], "needs a command or a URL"),
    ],
)
def test_what_is_wrong(words: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        options(*words).agents()


def test_nothing_to_serve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert "or give --mcp-server" in capsys.readouterr().err


def test_without_servers_nothing_is_loaded() -> None:
    found: Any = options("booking:agent")
    assert found.agents() == []
