"""The examples do what they say, and are short."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from dragoman import Agent, App, TaskState, Turn
from dragoman.client import Client
from dragoman.demo import show
from dragoman.demo.facilitator import FUNDS, PlayFacilitator
from dragoman.payments.networks import BASE_SEPOLIA_USDC
from dragoman.registry import Registry, RegistryApp
from dragoman.testing import local_client, run_handler
from examples import (
    as_tools,
    asking,
    buying,
    canceling,
    durable,
    finding,
    handing_over,
    hello,
    mcp_tools,
    mounted,
    orchestrating,
    remembering,
    resources,
    selling,
    streaming,
    typed,
)
from tests.harness.server import serving

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 60


async def test_hello() -> None:
    assert (await run_handler(hello.agent, "Ann")).text == "Hello, Ann!"


async def test_asking() -> None:
    first = await run_handler(asking.agent, "A shirt please")
    assert (first.state, first.text) == (TaskState.INPUT_REQUIRED, "Which size: S, M or L?")
    both = await run_handler(asking.agent, "A shirt please", "M")
    assert both.state is TaskState.COMPLETED


async def test_mcp_tools() -> None:
    async with (
        App(mcp_tools.agent, store="memory:") as app,
        Client.connect("http://agent.example", app=app) as client,
    ):
        assert await client.call_skill("add", a=1, b=2) == {"result": 3}


async def test_orchestrating() -> None:
    async with local_client(orchestrating.desk) as client:
        asked = await client.send("Lunch for four")
        assert asked.task is not None
        assert asked.text == "meal: kitchen (in this process) asks:\n> Soup or salad?"
        made = await client.task(asked.task.id).reply("soup")
    assert (made.state, made.text) == (TaskState.COMPLETED, "Soup of 8 tomatoes and 4 onions")


async def test_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with (
        serving(App(mounts={"/": RegistryApp(f"sqlite:///{tmp_path}/agents.db")})) as place,
        serving(App(hello.agent)) as url,
        Registry(place) as registry,
    ):
        assert await finding.find(place, "greet people", "Ann") == "No approved agent fits."
        await registry.add(url, approve=True)
        assert await finding.find(place, "greet people", "Ann") == "Hello, Ann!"
    assert hello.agent.name in capsys.readouterr().out


async def test_as_tools(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(as_tools.app) as url:
        assert await as_tools.call(f"{url}/mcp", "Lisbon") == "3 nights in Lisbon"
    shown = capsys.readouterr()
    assert "nights (whole number)" in shown.out
    assert "Looking for rooms in Lisbon" in shown.err


async def test_durable() -> None:
    asked = await run_handler(durable.agent, "bike")
    assert (asked.state, asked.text) == (TaskState.INPUT_REQUIRED, "Shall I buy bike for 40?")
    bought = await run_handler(durable.agent, "bike", "yes")
    assert (bought.state, bought.text) == (TaskState.COMPLETED, "Bought bike for 40")
    refused = await run_handler(durable.agent, "bike", "no")
    assert refused.state is TaskState.REJECTED


async def test_handing_over() -> None:
    app = App(handing_over.agent, url="http://inside")
    async with app, Client.connect(app=app) as client:
        sending = asyncio.create_task(client.send("A poster"))
        await handing_over.printer(app)
        result = await sending
    assert (result.state, result.text) == (TaskState.COMPLETED, "Printed: A poster")


async def test_remembering() -> None:
    async with App(remembering.agent) as app, Client.connect(app=app) as client:
        first = await client.send("I like tea", context="c")
        assert first.text == "You said: I like tea"
        second = await client.send("And honey", context="c")
        assert second.text == "You said: I like tea, And honey"


@pytest.mark.parametrize("skill", ["", "tell_slowly"])
async def test_streaming(skill: str) -> None:
    told = await run_handler(streaming.agent, "an owl", skill=skill)
    assert told.text.startswith("There was an owl")
    assert told.task is not None
    assert len(told.task.artifacts) == 1
    assert len(told.events) > 4
    assert len(told.task.artifacts[0].parts) == 1


async def test_selling_and_test_buying(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WALLET_KEY", "0x" + "11" * 32)
    with PlayFacilitator() as facilitator:
        monkeypatch.setattr(selling.facilitator, "url", facilitator.url)
        async with serving(App(selling.agent)) as url, Client.connect(url) as client:
            assert (await client.send("Hello")).text.startswith("Say whether")
            assert (await client.send(" ", skill="analyze")).text == "0 words"
            file = str(tmp_path / "wallet.json")
            assert await buying.buy(url, "good day", file) == "good dayus; 2 words"
            long = await buying.buy(url, "a b c d e f", file)
    assert "a b c d e fus; the agent asks for 0.06 USDC" in long
    shown = capsys.readouterr().out
    assert (shown.count("settled: 50000 units"), shown.count("settled: 20000 units")) == (2, 1)
    assert shown.count("wants to be paid") == 1 and shown.count("paid on") == 2
    money = facilitator.balances[selling.ADDRESS.lower(), BASE_SEPOLIA_USDC.address.lower()]
    assert money == FUNDS + 120_000


async def test_resources() -> None:
    async with resources.library(resources.agent) as books:
        assert (await run_handler(resources.agent, "Emma", state=books)).text == "Shelf B1"


async def test_canceling() -> None:
    async with serving(App(canceling.agent, cancel_grace=2.0)) as url, httpx.AsyncClient() as http:
        body = {
            "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "bread"}]},
            "configuration": {"returnImmediately": True},
        }
        task = (await http.post(f"{url}/message:send", json=body)).json()["task"]["id"]
        async with asyncio.timeout(30):
            while "WORKING" not in (await http.get(f"{url}/tasks/{task}")).text:
                await asyncio.sleep(0.01)
        ended = (await http.post(f"{url}/tasks/{task}:cancel")).json()
    assert ended["status"]["state"] == "TASK_STATE_CANCELED"
    said = [message["parts"][0]["text"] for message in ended["history"]]
    assert said == ["bread", "In the oven", "Taking it out of the oven"]


async def test_typed(capsys: pytest.CaptureFixture[str]) -> None:
    await typed.main()
    told, *question, last = capsys.readouterr().out.splitlines()
    assert told == "3 nights in Rome: 270 EUR"
    assert question[-1] == "nights (whole number): How many nights"
    assert last == "{'city': 'Rome', 'nights': 2, 'total': 180}"


async def test_mounted() -> None:
    async with serving(mounted.api) as url, httpx.AsyncClient() as http:
        card_path = (await http.get(url)).json()["greeter"]
        card = (await http.get(url + card_path)).json()
        call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage"}
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Bob"}]}
        address = card["supportedInterfaces"][0]["url"]
        answer = await http.post(address, json={**call, "params": {"message": message}})
    assert "Hello, Bob!" in answer.text


def test_without_server() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.without_server"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert "asked: Which size: S, M or L?" in done.stdout


def test_the_demo_runs_once() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "demo", "--once"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Booking reference: FL-0427" in done.stdout
    assert "HT-1138" in done.stdout
    assert "nights: expected int, got str" in done.stdout
    killed = done.stdout.partition("kill -9")[2]
    assert "Back: 2026-08-15" in killed
    assert killed.count("itinerary: Out:  2026-08-10 09:40; Back: 2026-08-15 18:15; Seats") == 1
    assert "completed" in killed
    assert "In Lisbon: walk up" in done.stdout
    assert "paid   0.1 USDC on eip155:84532: 0x" in done.stdout
    assert "the limit per_day is 0.15 USDC" in done.stdout
    assert "In Porto" not in done.stdout
    # no commands for agents that have just ended
    assert "The agents have stopped" in done.stdout
    assert "dragoman card http" not in done.stdout


def test_the_demo_pays_nobody_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "find_spec", lambda name: None)
    with ExitStack() as stack:
        assert show.pay_guide(stack, "/nowhere") == {}
    assert show.paying({}) == []


@pytest.mark.parametrize(
    ("how", "state", "text"),
    [
        ("reply", TaskState.COMPLETED, "Booked"),
        ("artifact", TaskState.COMPLETED, "Booked"),
        ("ask", TaskState.INPUT_REQUIRED, "When?"),
        ("fail", TaskState.FAILED, "No seats"),
    ],
)
async def test_the_delegation_in_the_docs(
    how: str, state: TaskState, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights = Agent("Flights", description="Books, or does not.")

    @flights.handler(reply=True)
    def book(turn: Turn) -> Any:
        """Answer as one is asked to."""
        say: Any = getattr(turn, turn.text)
        return say({"ask": "When?", "fail": "No seats"}.get(turn.text, "Booked"))

    page = (ROOT / "docs/client.md").read_text().partition("## Inside a handler")[2]
    code, *_ = re.findall(r"```python\n(.*?)```", page.partition("\n## ")[0], re.DOTALL)
    agent = Agent("Trips", description="Plans trips.")
    async with serving(App(flights)) as url:
        booking = ModuleType("booking")
        booking.agent = agent  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "booking", booking)
        exec(code.replace("https://flights.example", url), {})
        told = await run_handler(agent, how)
    assert (told.state, told.text) == (state, text)


def test_every_example_is_tried() -> None:
    tried = Path(__file__).read_text()
    for path in (ROOT / "examples").glob("*.py"):
        assert f"test_{path.stem}" in tried, f"{path.name} has no test"
    assert isinstance(hello.agent, Agent)
