"""A task that waits for a payment, as the products see it: never a question, without a wallet an
error with the price, and paid with one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, Message, Part, Role, Task, TaskState, TaskStatus, Turn
from dragoman.bridges import remote
from dragoman.bridges.remote import RemoteFailed
from dragoman.cli import main
from dragoman.client import PAUSE_EXTENSIONS, AnswerRefused, Client, Result, SkillNotCompleted
from dragoman.mcp import McpApp, mounts
from dragoman.model.errors import UnsupportedOperation
from dragoman.orchestrator import Budget, ModelAnswer, Orchestrator, Step, ToolCall
from dragoman.payments import Price, Wallet
from dragoman.payments.extension import REQUIRED, STATUS, URIS
from dragoman.payments.ledger_file import load
from dragoman.payments.objects import Offer, offer_object
from tests.harness.server import served
from tests.products.mcp.clients import OLD, VERSIONS, Tasks, User, begin, client, text, until
from tests.products.orchestrator.office import office, said, sources
from tests.products.payments.loopback_facilitator import SHOP, TOKEN, LoopbackFacilitator
from tests.products.payments.parts import Shop, wallet

PRICE_TEXT = f"a payment of 100000 units of {TOKEN.address} on eip155:31337 to {SHOP}"
WORDS = "This costs"
"""What the agent says: its words are not shown to a model."""
TIDES = {"message": "tides"}


class Selling:
    """A shop behind a server, and a wallet that may pay it."""

    def __init__(self, shop: Shop, url: str, wallet: Wallet) -> None:
        self.shop, self.url, self.wallet = shop, url, wallet

    @property
    def paid(self) -> int:
        """How many payments were signed."""
        return len(load(self.wallet.file).payments) if self.wallet.file.exists() else 0


@pytest.fixture
async def selling(facilitator: LoopbackFacilitator, tmp_path: Path) -> AsyncIterator[Selling]:
    shop = Shop(facilitator)
    async with served(shop.app) as server:
        paying = wallet(tmp_path, receivers={server.url: SHOP}, per_day="0.25 TEST")
        yield Selling(shop, server.url, paying)


def waiting(state: TaskState = TaskState.INPUT_REQUIRED, **said: Any) -> Result:
    asked = Message(message_id="m", role=Role.AGENT, parts=(Part(text="Pay!"),), metadata=said)
    return Result(Task(id="t", context_id="c", status=TaskStatus(state=state, message=asked)))


def test_the_kinds_of_pauses() -> None:
    question = waiting().pause
    assert question is not None and question.in_words
    assert (question.kind, question.text) == ("question", "Pay!")
    login = waiting(TaskState.AUTH_REQUIRED).pause
    assert login is not None and (login.kind, login.in_words) == ("login", True)
    assert waiting(TaskState.COMPLETED, **{STATUS: "payment-completed"}).pause is None
    assert set(PAUSE_EXTENSIONS) == set(URIS.values())


@pytest.mark.parametrize(
    ("offer", "shown"),
    [
        (
            [Price("0.10", "USDC", network="base-sepolia", to=SHOP)],
            f"a payment of 0.1 USDC on base-sepolia to {SHOP}",
        ),
        ([Price("0.10", TOKEN, to=SHOP)] * 2, PRICE_TEXT),
        (
            [Price(f"0.{n}", "USDC", network="base", to=SHOP) for n in range(1, 6)],
            f"0.3 USDC on base to {SHOP} or 2 other ways",
        ),
        (None, "a payment inside of another protocol (AP2)"),
        ([], "a payment in a way that is not understood"),
    ],
    ids=["known", "unknown asset", "many", "embedded", "malformed"],
)
def test_the_words_of_a_price(offer: Any, shown: str) -> None:
    ways = tuple(one._requirement() for one in offer or ())
    more = {} if offer is None else {REQUIRED: offer_object(Offer(ways))}
    pause = waiting(**{STATUS: "payment-required"}, **more).pause
    assert pause is not None and (pause.kind, pause.in_words) == ("payment", False)
    assert shown in pause.text and "Pay!" not in pause.text


async def test_the_call_of_a_skill(selling: Selling) -> None:
    async with Client.connect(selling.url, extensions=PAUSE_EXTENSIONS) as agent:
        with pytest.raises(SkillNotCompleted) as error:
            await agent.call_skill("analyze")
    assert PRICE_TEXT in str(error.value) and WORDS not in str(error.value)


async def test_a_task_that_waits_is_paid_later(selling: Selling) -> None:
    async with Client.connect(selling.url, extensions=PAUSE_EXTENSIONS) as agent:
        result = await agent.send("tides")
        assert result.task is not None
        same = await agent.task(result.task.id).answer_pause()
        assert same.state is TaskState.INPUT_REQUIRED
    async with Client.connect(selling.url, answer=selling.wallet) as agent:
        paid = await agent.task(result.task.id).answer_pause()
        assert (paid.text, selling.paid) == ("All about tides", 1)
        assert (await agent.task(result.task.id).answer_pause()).ok


# ---- frameworks


@pytest.mark.parametrize("reports", [False, True])
async def test_tools_of_frameworks(selling: Selling, reports: bool) -> None:
    heard: list[str] = []

    async def report(words: str) -> None:
        heard.append(words)

    more: Any = {"report": report} if reports else {}
    (tool,) = await remote.tools(selling.url)
    with pytest.raises(RemoteFailed) as error:  # and no RemoteQuestion
        await tool.call(TIDES, key="1", **more)
    assert PRICE_TEXT in str(error.value) and WORDS not in str(error.value)
    (tool,) = await remote.tools(selling.url, answer=selling.wallet)
    for number in range(2):
        found = await tool.call(TIDES, key=f"2-{number}", **more)
        assert found.text == "All about tides"
    with pytest.raises(RemoteFailed, match=r"limit per_day is 0.25 TEST"):
        await tool.call(TIDES, key="3", **more)
    assert selling.paid == 2


# ---- MCP


@asynccontextmanager
async def mcp_server(selling: Selling, paying: Wallet | None) -> AsyncIterator[str]:
    """An MCP server whose tools are the shop's skills."""

    def connect(url: str) -> Client:
        return Client.connect(url, answer=paying, extensions=PAUSE_EXTENSIONS)

    app = App(mounts={"/mcp": McpApp(urls=(selling.url,), connect=connect)})
    async with served(app) as server:
        yield f"{server.url}/mcp"


@pytest.mark.parametrize("version", VERSIONS)
async def test_mcp_without_a_wallet(selling: Selling, version: str) -> None:
    user = User("cancel")
    async with mcp_server(selling, None) as url, client(url, version, user) as found:
        result = await found.call_tool("analyze", TIDES)
        task = {"task_id": result.meta["dragoman/task"]["id"]}
        later = await found.call_tool("get_task", task)
        answered = await found.call_tool("answer_task", {**task, "message": "paid"})
    for each in (result, later, answered):
        assert each.is_error and PRICE_TEXT in text(each)
        assert WORDS not in text(each) and "answer_task" not in text(each)
    assert (user.asked, selling.shop.worked) == ([], [])


@pytest.mark.parametrize("version", VERSIONS)
async def test_mcp_with_a_wallet(selling: Selling, version: str) -> None:
    user = User("cancel")
    async with mcp_server(selling, selling.wallet) as url, client(url, version, user) as found:
        results = [await found.call_tool("analyze", {"message": each}) for each in "abc"]
    assert [text(each) for each in results[:2]] == ["All about a", "All about b"]
    assert results[2].is_error and "limit per_day is 0.25 TEST" in text(results[2])
    assert (user.asked, selling.paid) == ([], 2)


async def test_mcp_of_the_agents_own_server(facilitator: LoopbackFacilitator) -> None:
    shop = Shop(facilitator)
    async with (
        served(App(shop.agent, mounts=mounts(shop.agent))) as server,
        client(f"{server.url}/mcp", OLD) as found,
    ):
        result = await found.call_tool("analyze", TIDES)
    assert result.is_error and PRICE_TEXT in text(result)


@pytest.mark.parametrize("pays", [False, True])
async def test_tasks_of_mcp(selling: Selling, pays: bool) -> None:
    paying = selling.wallet if pays else None
    async with (
        mcp_server(selling, paying) as url,
        client(url, extensions=[Tasks()]) as found,
    ):
        task = await begin(found, "analyze", TIDES)
        got = await until(found.session, task.task_id, lambda got: got.status != "working")
    assert got.input_requests is None
    if pays:
        assert got.status == "completed"
        return
    assert got.status == "failed" and got.error is not None
    assert PRICE_TEXT in got.error["message"] and WORDS not in str(got.error)


# ---- the orchestrator


def asking(selling: Selling, read: list[str], **options: Any) -> Orchestrator:
    """An orchestrator whose model calls the shop once, and keeps what it has read."""

    def model(messages: Any, tools: Any) -> ModelAnswer | str:
        read[:] = [message.text for message in messages]
        if messages[-1].role == "tool":
            return "That is what it costs."
        arguments = '{"agent": "shop", "text": "tides"}'
        return ModelAnswer(calls=(ToolCall("1", "send_message", arguments),))

    return Orchestrator("Desk", agents=[selling.url], model=model, **options)


def planning(selling: Selling, steps: int, **options: Any) -> Orchestrator:
    """An orchestrator whose plan calls the shop so often, one after the other."""

    def plan(turn: Turn, members: Any) -> list[Step]:
        return [Step(f"s{n}", "shop", "analyze", input=f"tides {n}") for n in range(steps)]

    return Orchestrator("Desk", agents=[selling.url], plan=plan, **options)


async def test_an_orchestrator_without_a_wallet(selling: Selling) -> None:
    async with office(planning(selling, 1)) as desk:
        result = await desk.send("go")
        await canceled(selling)
    assert result.state is TaskState.FAILED
    assert PRICE_TEXT in said(result) and WORDS not in said(result)


async def test_a_model_reads_the_price_as_an_error(selling: Selling) -> None:
    read: list[str] = []
    async with office(asking(selling, read)) as desk:
        result = await desk.send("the tides, please")
    assert result.state is TaskState.COMPLETED
    assert PRICE_TEXT in read[-1] and WORDS not in "".join(read)


async def canceled(selling: Selling) -> None:
    """Wait until the shop's only task is canceled."""
    async with Client.connect(selling.url, extensions=PAUSE_EXTENSIONS) as agent:
        (task,) = [task async for task in agent.list()]
        async with asyncio.timeout(10), agent.task(task.id).subscribe() as stream:
            with suppress(UnsupportedOperation):  # it has ended
                async for _ in stream:
                    pass
        assert (await agent.task(task.id).get()).status.state is TaskState.CANCELED


async def test_an_unpaid_task_is_canceled_with_the_task_that_began_it(selling: Selling) -> None:
    agent = Agent("Buyer", description="Buys.")
    asked = asyncio.Event()

    @agent.handler
    async def buy(turn: Turn) -> None:
        async with turn.connect(selling.url, extensions=PAUSE_EXTENSIONS) as shop:
            await shop.send("tides")
            asked.set()
            await asyncio.Event().wait()

    async with App(agent, drain_timeout=0.0) as app, Client.connect(app=app) as buyer:
        task = (await buyer.send("go", wait=False)).task
        assert task is not None
        await asyncio.wait_for(asked.wait(), 10)
        await buyer.task(task.id).cancel()
        await canceled(selling)


async def test_the_steps_of_a_plan_share_the_money(selling: Selling) -> None:
    paying = replace_day(selling.wallet)
    desk = planning(selling, 4, wallet=paying, budget=Budget(money="0.25 TEST"))
    async with office(desk) as orchestrator:
        result = await orchestrator.send("go")
        second = await orchestrator.send("go")  # another task has a budget of its own
    assert sorted(sources(result).values()) == ["done", "done", "failed", "failed"]
    assert "0.2 TEST are counted already, and the budget of the task is 0.25 TEST" in said(result)
    assert sorted(sources(second).values()) == ["done", "done", "failed", "failed"]
    assert selling.paid == 4


def replace_day(paying: Wallet) -> Wallet:
    """The same wallet with a larger limit for the day."""
    return wallet(paying.file.parent, receivers=paying._given, per_day="5 TEST")


def test_an_orchestrator_needs_both(selling_nothing: str, tmp_path: Path) -> None:
    for more in ({"wallet": wallet(tmp_path)}, {"budget": Budget(money="1 TEST")}):
        with pytest.raises(Exception, match="wallet needs budget=Budget"):
            Orchestrator("Desk", agents=[selling_nothing], **more)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="part: expected an amount"):
        Orchestrator(
            "Desk", agents=[selling_nothing], wallet=wallet(tmp_path), budget=Budget(money="1")
        )


@pytest.fixture
def selling_nothing() -> str:
    return "http://127.0.0.1:9"


# ---- on behalf of a task


async def test_a_part_of_a_wallet(selling: Selling) -> None:
    part = replace_day(selling.wallet).part("0.15 TEST")
    async with Client.connect(selling.url, answer=part) as agent:
        with pytest.raises(AnswerRefused, match="only on behalf of a task"):
            await agent.send("tides")
    assert selling.paid == 0


# ---- the command


async def command(*words: str) -> int:
    """Run it in a thread; its exit status."""
    return await asyncio.to_thread(main, words)


@pytest.mark.parametrize("how", [["send"], ["send", "--stream"], ["send", "--json"], ["call"]])
async def test_the_command(
    selling: Selling, how: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tides"]
    if how == ["call"]:
        words = ["analyze"]
    status = await command(*how, selling.url, *words)
    out, err = capsys.readouterr()
    assert status == 5
    assert PRICE_TEXT in err and "--pay-max" in err
    if "--json" not in how:
        assert WORDS not in out
    assert selling.shop.worked == []


async def test_the_chat(
    selling: Selling, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["tides", "waves"])

    def read(prompt: str = "") -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    assert await command("chat", selling.url) == 5
    out, err = capsys.readouterr()
    assert err.count(PRICE_TEXT) == 2 and out == ""
    # no line was sent to a task that waits for a payment
    async with Client.connect(selling.url, extensions=PAUSE_EXTENSIONS) as agent:
        tasks = [task async for task in agent.list(history=10)]
    assert len(tasks) == 2
    assert all(len([m for m in task.history if m.role is Role.USER]) == 1 for task in tasks)
