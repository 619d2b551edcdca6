"""An orchestrator whose model is a script behind a real server, with a team of agents over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from dragoman import Agent, App, Turn
from dragoman.client import Client, Result
from dragoman.orchestrator import ChatModel, Orchestrator
from tests.harness.server import serving
from tests.products.orchestrator import chat_server
from tests.products.orchestrator.chat_server import Call, ChatServer, Request, Script, say

PATIENCE = 60.0
SETTINGS: dict[str, Any] = {"drain_timeout": 0.0, "poll": 0.02}


class Peer:
    """An agent on a port. It keeps what it was told, and the headers and bodies of all requests."""

    url = ""
    twist: Callable[[dict[str, Any]], Any] | None = None
    """Changes the card that is shown."""

    def __init__(self, name: str, work: Any = "done", **skill: Any) -> None:
        self.heard: list[Any] = []
        self.contexts: list[str] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.canceled = asyncio.Event()
        """Somebody has wanted to cancel a task."""
        self.agent = Agent(name, description=skill.pop("about", f"{name} works."))
        self._work = work
        if skill:
            self.agent.skill(**{"id": "work", "description": f"{name} works.", **skill})(self.work)
        else:
            self.agent.handler(self.work)
        self.app = App(self.agent, **SETTINGS)

    async def work(self, turn: Turn) -> AsyncIterator[Any]:
        """Do what the test says."""
        self.heard.append(turn.data if turn.data is not None else turn.text)
        self.contexts.append(turn.context_id)
        if not callable(self._work):
            yield turn.artifact(self._work)
            return
        found = self._work(turn)
        if hasattr(found, "__aiter__"):
            async for event in found:
                yield event
        else:
            yield await found if hasattr(found, "__await__") else found

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Note the request, and pass it on."""
        if scope["type"] == "http":
            headers = {k.decode(): v.decode() for k, v in scope["headers"]}
            self.requests.append((f"{scope['method']} {scope['path']}", headers))

        async def heard() -> Any:
            message = await receive()
            if b"CancelTask" in message.get("body", b""):
                self.canceled.set()
            return message

        if self.twist is not None and scope["type"] == "http" and scope["method"] == "GET":
            await self._twisted(scope, receive, send)
        else:
            await self.app(scope, heard, send)

    async def _twisted(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer with a card that is changed."""
        whole = bytearray()
        found: dict[str, Any] = {}

        async def take(message: Any) -> None:
            found.update(message)
            whole.extend(message.get("body", b""))

        await self.app(scope, receive, take)
        card = json.loads(whole)
        assert self.twist is not None
        self.twist(card)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": found["status"], "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(card).encode()})

    async def drain(self) -> None:
        """As `App.drain`."""
        await self.app.drain()

    @property
    def host(self) -> str:
        """Where it is."""
        return self.url.removeprefix("http://")

    @property
    def sends(self) -> list[dict[str, str]]:
        """The headers of the requests that are not for the card."""
        return [headers for what, headers in self.requests if what.startswith("POST")]


class Desk:
    """A running orchestrator."""

    app: App

    def __init__(self, agent: Orchestrator, client: Client, server: ChatServer) -> None:
        self.agent, self.client, self.server = agent, client, server

    async def send(self, *said: Any, **options: Any) -> Result:
        """Send a message, and wait."""
        async with asyncio.timeout(PATIENCE):
            return await self.client.send(*said, **options)

    @property
    def prompts(self) -> list[Request]:
        """What the model was asked."""
        return self.server.requests


@asynccontextmanager
async def desk(
    script: Script, *team: Any, settings: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Desk]:
    """Serve an orchestrator with this model and team. Peers get ports of their own; whatever else
    is in the team stays as it is."""
    model = {"timeout": 5.0, "idle": 3.0, **options.pop("model", {})}
    async with AsyncExitStack() as stack:
        members = []
        for each in team:
            if isinstance(each, Peer):
                each.url = each.url or await stack.enter_async_context(serving(each))
                each = each.url
            members.append(each)
        server = await stack.enter_async_context(chat_server.serving(script))
        options.setdefault("name", "Travel Desk")
        agent = Orchestrator(
            agents=members, model=ChatModel(server.url, "scripted", **model), **options
        )
        app = await stack.enter_async_context(App(agent, **{**SETTINGS, **(settings or {})}))
        client = await stack.enter_async_context(Client.connect(app=app))
        office = Desk(agent, client, server)
        office.app = app
        yield office


def send_message(agent: str, said: Any, id: str = "") -> Call:
    """A call of the tool."""
    what = "text" if isinstance(said, str) else "data"
    return Call("send_message", {"agent": agent, what: said}, id)


def make_plan(*steps: dict[str, Any]) -> Call:
    """A call of the tool."""
    return Call("make_plan", {"steps": list(steps)})


def then(*steps: Any) -> Callable[[Request], Any]:
    """A script that does one step after the other, and repeats the last one for ever."""
    left = list(steps)

    def script(request: Request) -> Any:
        return left.pop(0) if len(left) > 1 else left[0]

    return script


def obeying(first: Call | None = None) -> Callable[[Request], Any]:
    """A planner that obeys every order that it reads anywhere: `ORDER tool {arguments}`. It obeys
    each once, and repeats all that it has read in the end."""
    done: set[str] = set()
    waiting = [first] if first else []

    def script(request: Request) -> Any:
        text = json.dumps(request.body, ensure_ascii=False).replace("\\", "")
        orders = []
        for order in re.finditer(r"ORDER ([\w-]+) (\{[^{}]*\})", text):
            if order[0] not in done:
                done.add(order[0])
                orders.append(Call(order[1], order[2]))
        calls = [*waiting, *orders]
        waiting.clear()
        return say(None, *calls) if calls else "I did all."

    return script


def order(tool: str, **arguments: Any) -> str:
    """An order for the planner."""
    return f"ORDER {tool} {json.dumps(arguments)}"


def metadata(result: Result) -> dict[str, Any]:
    """The metadata of the final status."""
    assert result.task is not None
    said = result.task.status.message
    return {**(result.task.metadata or {}), **((said.metadata if said else None) or {})}


def sources(result: Result) -> list[dict[str, str]]:
    """The sources that the final status names."""
    found: list[dict[str, str]] = metadata(result).get("urn:dragoman:sources:v1", [])
    return found


def artifacts(result: Result) -> dict[str, str]:
    """The texts of the artifacts by name."""
    return {found.name: found.text for found in result.artifacts}


def system(request: Request) -> str:
    """The system prompt."""
    return str(request.messages[0]["content"])


def said(requests: Sequence[Request]) -> str:
    """Everything that the model was ever told."""
    return "\n".join(str(request.body) for request in requests)


def moved(*addresses: str) -> Any:
    """A card that names these addresses."""

    def twist(card: dict[str, Any]) -> None:
        first = card["supportedInterfaces"][0]
        card["supportedInterfaces"] = [{**first, "url": url} for url in addresses]

    return twist
