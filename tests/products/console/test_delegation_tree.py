"""The tree of delegations: upwards, downwards, over several levels and stores, and its bounds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, Turn
from dragoman.console import delegation_tree
from tests.harness.server import serving
from tests.products.console.browser import browser, needs_browser, watched
from tests.products.console.parts import Running, consoled, stored

TREE = """() => [...document.querySelectorAll('[aria-label=Delegation] .place-line')].map(
  (each) => {
  let depth = 0;
  for (let up = each; (up = up.parentElement.closest('ul.tree')); ) depth++;
  return [depth, each.querySelector('b').innerText, each.querySelector('.state')?.innerText || '',
    each.querySelector('a')?.getAttribute('href') || ''];
})"""


ELSEWHERE = "Elsewhere <img src=x onerror=alert(1)>"
"""The name of an agent that wants to be HTML."""


class Offices:
    """An office that delegates to a helper of the same store, which asks an agent elsewhere."""

    def __init__(self) -> None:
        self.url = self.elsewhere = ""

    def agents(self) -> tuple[Agent, Agent]:
        office = Agent("Office", description="Delegates.", key="office")
        helper = Agent("Helper", description="Helps.", key="helper")

        @office.handler
        async def delegate(turn: Turn) -> AsyncIterator[Any]:
            async with turn.connect(f"{self.url}/helper", insecure=True) as client:
                result = await client.send(turn.text)
            yield turn.complete(f"sent: {result.state}")

        @helper.handler
        async def help_(turn: Turn) -> AsyncIterator[Any]:
            async with turn.connect(self.elsewhere, insecure=True) as client:
                for _ in range(3 if turn.text == "many" else 1):
                    await client.send(turn.text)
            yield turn.complete("done")

        return office, helper


def foreign() -> Agent:
    """An agent with a store of its own, which asks back."""
    agent = Agent(ELSEWHERE, description="Asks.", key="elsewhere")

    @agent.handler
    async def handle(turn: Turn) -> AsyncIterator[Any]:
        yield turn.ask("Which one?")

    return agent


@asynccontextmanager
async def offices(path: Path) -> AsyncIterator[Running]:
    found = Offices()
    async with (
        serving(App(foreign())) as found.elsewhere,
        consoled(App(*found.agents(), store=stored(path))) as running,
    ):
        found.url = running.url
        yield running


async def test_levels_of_this_store_and_of_another(tmp_path: Path) -> None:
    async with offices(tmp_path) as running, running.operator() as http:
        top = await running.send("go", "/office")
        shown = (await http.get(f"/console/api/tasks/{top['id']}")).json()
        assert shown["delegates"] is True
        tree = (await http.get(f"/console/api/tasks/{top['id']}/tree")).json()
        assert "above" not in tree
        (helper,) = tree["below"]
        assert (helper["agent"], helper["state"]) == ("helper", "completed")
        assert helper["here"] and helper["over"] and "address" not in helper
        (remote,) = helper["below"]
        assert (remote["agent"], remote["state"]) == (ELSEWHERE, "input-required")
        assert remote["address"].startswith("http://127.0.0.1") and remote["seen"]
        assert "here" not in remote

        tree = (await http.get(f"/console/api/tasks/{helper['task']}/tree")).json()
        (above,) = tree["above"]
        assert (above["task"], above["agent"], above["here"]) == (top["id"], "office", True)
        assert [each["task"] for each in tree["below"]] == [remote["task"]]


async def test_more_than_can_be_shown_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with offices(tmp_path) as running, running.operator() as http:
        top = await running.send("many", "/office")
        path = f"/console/api/tasks/{top['id']}/tree"
        monkeypatch.setattr(delegation_tree, "MOST", 3)
        (helper,) = (await http.get(path)).json()["below"]
        assert (len(helper["below"]), helper["cut"]) == (2, True)
        monkeypatch.setattr(delegation_tree, "DEPTH", 1)
        (helper,) = (await http.get(path)).json()["below"]
        assert (helper.get("below"), helper["cut"]) == (None, True)
        monkeypatch.setattr(delegation_tree, "DEPTH", 0)
        assert (await http.get(path)).json() == {"cut": True}


def lying(claims: list[str]) -> Any:
    """An agent that says that its task has an id which it was told."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        url = f"http://{dict(scope['headers'])[b'host'].decode()}/"
        form = {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        value: Any = {
            "name": "Liar",
            "description": "Lies.",
            "version": "1",
            "skills": [],
            "supportedInterfaces": [form],
            "capabilities": {},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
        }
        if scope["method"] == "POST":
            asked = json.loads((await receive())["body"])
            status = {"state": "TASK_STATE_COMPLETED", "timestamp": "2026-01-01T00:00:00Z"}
            task = {"id": claims[0], "contextId": "c", "status": status}
            value = {"jsonrpc": "2.0", "id": asked["id"], "result": {"task": task}}
        head = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": json.dumps(value).encode()})

    return answer


async def test_a_task_elsewhere_that_claims_the_id_of_one_here_does_not_open_it(
    tmp_path: Path,
) -> None:
    claims = ["made-up"]
    found = Offices()
    async with (
        serving(lying(claims), lifespan="off") as found.elsewhere,
        consoled(App(*found.agents(), store=stored(tmp_path))) as running,
        running.operator() as http,
    ):
        found.url = running.url
        victim = await running.send("first", "/helper")
        claims[:] = [victim["id"]]
        task = await running.send("second", "/helper")
        (below,) = (await http.get(f"/console/api/tasks/{task['id']}/tree")).json()["below"]
        assert (below["task"], below["agent"]) == (victim["id"], "Liar")
        assert "here" not in below and "below" not in below


@needs_browser
async def test_the_page_draws_the_tree_and_opens_what_is_here(tmp_path: Path) -> None:
    async with offices(tmp_path) as running, browser() as chromium, watched(chromium) as seen:
        top = await running.send("go", "/office")
        page: Any = seen.page
        await page.goto(running.fresh())
        await page.goto(f"{running.url}/console/#/task/{top['id']}")
        await page.wait_for_selector("[aria-label=Delegation] .place-line >> nth=2")
        mine, helper, remote = await page.evaluate(TREE)
        assert mine == [1, "office", "completed", ""]
        assert helper[:3] == [2, "helper", "completed"]
        assert remote[:3] == [3, ELSEWHERE, "input-required"]
        assert remote[3].startswith("http://127.0.0.1")
        await page.click("[aria-label=Delegation] a:has-text('helper')")
        await page.wait_for_selector("[aria-label=Delegation] .mine:has-text('helper')")
        shown = [each[:2] for each in await page.evaluate(TREE)]
        assert shown == [[1, "office"], [2, "helper"], [3, ELSEWHERE]]
        assert (seen.errors, seen.dialogs) == ([], [])
        assert await page.locator("img").count() == 0
