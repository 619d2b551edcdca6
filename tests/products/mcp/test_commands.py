"""`dragoman mcp` and `dragoman serve --mcp`, as a user types them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import StdioServerParameters

from dragoman import App
from dragoman.cli import UsageError, main, mcp_commands
from dragoman.mcp import mounts
from dragoman.security import ApiKey
from tests.harness.command import environment, refused, run, server_process
from tests.harness.server import served
from tests.interop.peers import FULL
from tests.products.mcp import served_agents as desk
from tests.products.mcp.clients import NEW, OLD, OLDER, User, client, task_of, text

HELLO = {"message": "Hello"}
AGENT = '''
from dragoman import Agent, Turn

agent = Agent("Booking", description="Books flights.", version="1.0")


@agent.skill(tags=["travel"])
async def book(turn: Turn) -> str:
    """Book a flight."""
    return "booked"
'''


@pytest.fixture
async def agent() -> AsyncIterator[str]:
    key = ApiKey(header="Authorization", keys={"bridge": "Bearer it"})
    async with served(App(desk.desk, auth=key, drain_timeout=0.2)) as server:
        yield server.url


def command(url: str, here: Path, *words: str) -> StdioServerParameters:
    """`dragoman mcp`, with the token in the environment."""
    env = environment(XDG_STATE_HOME=str(here), DRAGOMAN_MCP_BEARER="it")
    return StdioServerParameters(
        command=sys.executable, args=["-m", "dragoman", "mcp", url, *words], env=env
    )


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(OLDER, marks=pytest.mark.skipif(not FULL, reason="INTEROP=full")),
        pytest.param(OLD, marks=pytest.mark.skipif(not FULL, reason="INTEROP=full")),
        NEW,
    ],
)
async def test_on_standard_input_and_output(agent: str, tmp_path: Path, version: str) -> None:
    user = User({"answer": "On Monday"}, {"approve": True}, "cancel")
    async with client(command(agent, tmp_path, "--patience", "1s"), version, user) as found:
        assert {*desk.desk.skills} <= {tool.name for tool in (await found.list_tools()).tools}
        booked = await found.call_tool("book", {"city": "Rome"})
        assert booked.structured_content == {"reference": "FL-Rome", "seats": 1}
        said = await found.call_tool("progress", HELLO, progress_callback=user.report)
        assert (text(said), user.progress[:2]) == ("Found", ["searching", "comparing"])
        assert text(await found.call_tool("chat", HELLO)) == "Booked On Monday"
        assert text(await found.call_tool("pay", HELLO)) == "Paid"
        assert "No seats are left" in text(await found.call_tool("fail", HELLO))
        assert (await found.call_tool("files", HELLO)).content[1].type == "image"
        call = {"task_id": task_of(await found.call_tool("wait", HELLO))}
        assert text(await found.call_tool("cancel_task", call)) == "The task was canceled."
        assert "Which date?" in text(await found.call_tool("chat", HELLO))


async def test_each_agent_gets_its_own_token(tmp_path: Path) -> None:
    one = App(desk.desk, auth=ApiKey(header="Authorization", keys={"bridge": "Bearer first"}))
    two = App(desk.hotel, auth=ApiKey(header="Authorization", keys={"bridge": "Bearer second"}))
    async with served(one) as first, served(two) as second:
        env = {
            f"DRAGOMAN_MCP_BEARER_127_0_0_1_{url.rpartition(':')[2]}": token
            for url, token in ((first.url, "first"), (second.url, "second"))
        }
        words = StdioServerParameters(
            command=sys.executable,
            args=["-m", "dragoman", "mcp", first.url, second.url],
            env=environment(XDG_STATE_HOME=str(tmp_path), **env),
        )
        async with client(words) as found:
            assert text(await found.call_tool("Desk_echo", HELLO)) == "Hello"
            assert text(await found.call_tool("Hotel_book_room", HELLO)) == "room: Hello"


async def test_over_http(agent: str, tmp_path: Path) -> None:
    words = (agent, "--http", "0", "--log-level", "info")
    log = tmp_path / "http.log"
    env = environment(DRAGOMAN_MCP_BEARER="it")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "dragoman", "mcp", *words], cwd=tmp_path, stderr=output, env=env
        )
    try:
        url = await _announced(log)
        async with client(url) as found:
            assert text(await found.call_tool("echo", HELLO)) == "Hello"
    finally:
        process.terminate()
        assert process.wait(20) in (0, -15)
    assert (tmp_path / "mcp.db").exists()


async def _announced(log: Path) -> str:
    async with asyncio.timeout(30):
        while "McpApp at " not in log.read_text():
            await asyncio.sleep(0.05)
    return log.read_text().partition("McpApp at ")[2].split()[0]


async def test_serve_with_mcp(tmp_path: Path) -> None:
    (tmp_path / "booking.py").write_text(AGENT)
    with server_process(tmp_path, "booking:agent", "--mcp") as server:
        async with client(f"{server.url}/mcp") as found:
            assert text(await found.call_tool("book", HELLO)) == "booked"


def test_serving_without_mcp_loads_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "booking.py").write_text(AGENT)
    code = (
        "import sys; from dragoman.cli import Options, serve\n"
        "serve.build(['booking:agent'], Options({}, {}))\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('mcp', 'pydantic')"
        " or name.startswith('dragoman.mcp')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["https://a.example", "--patience", "0"], "--patience: must be greater than 0"),
        (
            ["https://a.example", "https://b.example", "--bearer", "x"],
            "set DRAGOMAN_MCP_BEARER_A_EXAMPLE",
        ),
        (["https://a.example", "--http", "0", "--host", "0.0.0.0"], "without [[auth]]"),
        (["https://a.example", "--allow", "???"], "--allow"),
        ([""], "URL: must not be empty"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, words: list[str], said: str) -> None:
    assert said in refused(run(tmp_path, "mcp", *words))


def test_a_patience_of_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "booking.py").write_text(AGENT)
    said = refused(run(tmp_path, "serve", "booking:agent", "--mcp", "--patience", "0s"))
    assert "--patience: must be greater than 0" in said


def test_processes_that_start_at_once_have_one_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with ThreadPoolExecutor(8) as several:
        found = {*several.map(lambda _: mcp_commands._secret(), range(8))}
    (key,) = tmp_path.rglob("mcp.*")
    assert found == {key.read_bytes()}
    assert key.stat().st_mode & 0o077 == 0
    key.write_bytes(b"short")
    with pytest.raises(UsageError, match="is no key"):
        mcp_commands._secret()


def test_an_app_has_its_own_mounts(tmp_path: Path) -> None:
    (tmp_path / "booking.py").write_text(AGENT + "\nfrom dragoman import App\napp = App(agent)\n")
    assert "mounts=dragoman.mcp.mounts" in refused(run(tmp_path, "serve", "booking:app", "--mcp"))


def test_without_the_extra_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import dragoman.mcp
    from dragoman.security import extras

    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    monkeypatch.delitem(vars(dragoman.mcp), "serve_stdio", raising=False)
    assert main(["mcp", "https://a.example"]) == 2
    assert "pip install 'dragoman[mcp]'" in capsys.readouterr().err


async def test_who_asks_for_a_token_is_told_where(tmp_path: Path) -> None:
    schemes: list[dict[str, Any]] = [
        {
            "scheme": "bearer",
            "issuer": "https://login.example",
            "audience": "https://agents.example",
            "jwks": "https://login.example/keys",
        }
    ]
    app = App(desk.desk, mounts=mounts(desk.desk), auth=schemes)
    async with served(app) as server, httpx.AsyncClient(trust_env=False) as http:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        refusal = await http.post(f"{server.url}/mcp", json=body)
        where = f"{server.url}/.well-known/oauth-protected-resource/mcp"
        document = (await http.get(where)).json()
    assert refusal.status_code == 401
    assert f'resource_metadata="{where}"' in refusal.headers["www-authenticate"]
    assert document["resource"] == f"{server.url}/mcp"
    assert document["authorization_servers"] == ["https://login.example"]
