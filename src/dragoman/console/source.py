"""What a console looks at: an application that serves agents, or something else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from dragoman import App, Caller
from dragoman.conformance.card import check
from dragoman.console.http import SAFE, NotFound, Request
from dragoman.console.session import Operator
from dragoman.console.shapes import AgentName, AgentView, FindingView, SaidView, SchemeView

CARD = "/.well-known/agent-card.json"
TURNS = 100
"""The most turns of a conversation that the chat shows: as many as the tasks that it lists."""
INSIDE = "http://inside"
"""The address of agents of the same process, which no browser can open."""


class Source(Protocol):
    """What a console looks at."""

    kind: str
    """`app` for a server, `store` for a store without one, `agent` for the inspector."""
    reads: bool
    """Whether there is a store to read."""

    @property
    def title(self) -> str:
        """What the console is named after."""

    def names(self) -> Sequence[AgentName]:
        """The agents, and where the chat calls them."""

    def needs_caller(self, operator: Operator) -> bool:
        """Whether the chat needs somebody who has logged in."""

    async def agents(self, request: Request) -> Sequence[AgentView]:
        """The agents with their cards."""

    async def schemes(self, request: Request) -> Sequence[SchemeView]:
        """What a person can log in with."""

    async def ways(self, request: Request) -> Sequence[Sequence[str]]:
        """The ways to log in: the names of the schemes that are typed together."""

    async def call(
        self, request: Request, operator: Operator, key: str, rest: str, send: Any
    ) -> None:
        """Answer a request of the chat. Raises ConsoleError."""

    async def close(self) -> None:
        """Release everything."""


class ServedAgents:
    """The agents of an `App`."""

    kind = "app"
    reads = True

    def __init__(self, app: App) -> None:
        self.app = app

    @property
    def title(self) -> str:
        """What the console is named after."""
        return ", ".join(agent.name for agent in self.app.agents.values())

    def prefix(self, key: str) -> str:
        """The path of an agent below the application."""
        return f"/{key}" if len(self.app.agents) > 1 else ""

    def names(self) -> Sequence[AgentName]:
        """The agents and where the chat calls them."""
        return [
            AgentName(key=key, name=agent.name, path=f"agents/{key}")
            for key, agent in self.app.agents.items()
        ]

    def needs_caller(self, operator: Operator) -> bool:
        """Whether the chat needs somebody who has logged in."""
        return not self.app.unguarded and not operator.caller.identity

    async def agents(self, request: Request) -> Sequence[AgentView]:
        """The agents with their cards."""
        return [await self._agent(key, request) for key in self.app.agents]

    async def _agent(self, key: str, request: Request) -> AgentView:
        name = self.app.agents[key].name
        url = request.scope["dragoman.url"] + self.prefix(key)
        status, headers, body = await self.get(request, self.prefix(key) + CARD)
        if status != 200:
            return AgentView(key=key, name=name, card=None, url=url, error=f"HTTP {status}")
        return AgentView(
            key=key,
            name=name,
            card=msgspec.json.decode(body),
            url=url,
            findings=[
                FindingView(level=each.level, path=each.field, text=each.text)
                for each in check(body, url=url + CARD, headers=headers)
            ],
        )

    async def get(self, request: Request, path: str) -> tuple[int, dict[str, str], bytes]:
        """Fetch a document of the application as anybody gets it."""
        status, headers, body = 0, {}, b""
        host = [(name, value) for name, value in request.scope["headers"] if name == b"host"]
        scope = {
            **_plain(request.scope),
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": host,
        }

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status, headers, body
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {
                    name.decode("latin-1"): value.decode("latin-1")
                    for name, value in message["headers"]
                }
            else:
                body += message.get("body", b"")

        await self.app.for_caller(Caller())(scope, receive, send)
        return status, headers, body

    async def call(
        self, request: Request, operator: Operator, key: str, rest: str, send: Any
    ) -> None:
        """Pass a request of the chat on to an agent, as made by the operator's own caller."""
        if key not in self.app.agents:
            raise NotFound("there is no such agent")
        path = self.prefix(key) + rest
        kept = [
            (name, value)
            for name, value in request.scope["headers"]
            if name not in (b"cookie", b"authorization", b"origin", b"referer")
        ]
        raw = request.scope.get("raw_path") or request.path.encode()
        start = raw.find(b"/", len(b"/console/agents/"))
        scope = {
            **_plain(request.scope),
            "path": path,
            "raw_path": self.prefix(key).encode() + (raw[start:] if start > 0 else b"/"),
            "headers": kept,
        }

        async def safe(message: Any) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message.get("headers", ())}
                more = [
                    (name.encode(), value.encode())
                    for name, value in SAFE.items()
                    if name.encode() not in given
                ]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        body = await request.body()
        read = False

        async def receive() -> Any:
            nonlocal read
            if read:
                return await request.receive()
            read = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app.for_caller(operator.caller)(scope, receive, safe)

    async def said(self, operator: Operator, key: str, context: str) -> list[SaidView]:
        """What the caller of the chat and an agent have said in a context. Raises NotFound."""
        if key not in self.app.agents:
            raise NotFound("there is no such agent")
        found = await self.app.conversation(operator.caller, key, context, TURNS, characters=0)
        return [
            SaidView(
                kind=each.kind,
                role=each.role,
                parts=each.parts,
                task_id=each.task_id,
                at=each.at,
                metadata=each.metadata,
            )
            for each in found
        ]

    async def close(self) -> None:
        """There is nothing to close."""

    async def card(self, request: Request) -> dict[str, Any]:
        """The card of the first agent; empty if it has none."""
        key = next(iter(self.app.agents), "")
        status, _, body = await self.get(request, self.prefix(key) + CARD)
        found: dict[str, Any] = msgspec.json.decode(body) if status == 200 else {}
        return found

    async def schemes(self, request: Request) -> Sequence[SchemeView]:
        """What a person can log in with, from the card of the first agent."""
        return schemes_of(await self.card(request))

    async def ways(self, request: Request) -> Sequence[Sequence[str]]:
        """The ways to log in, from the same card."""
        return ways_of(await self.card(request))


def schemes_of(card: Any) -> list[SchemeView]:
    """What a person types for each scheme of a card."""
    found = []
    for name, scheme in (card.get("securitySchemes") or {}).items():
        (kind, about), *_ = scheme.items()
        more: dict[str, Any] = {}
        match kind:
            case "apiKeySecurityScheme":
                more = {"kind": "key", "title": "API key"}
                more |= {"where": about.get("location", ""), "field": about.get("name", "")}
            case "httpAuthSecurityScheme":
                basic = about.get("scheme", "").lower() == "basic"
                more = {"kind": "basic" if basic else "bearer"}
                more["title"] = "User and password" if basic else "Token"
            case "oauth2SecurityScheme":
                more = {"kind": "oauth", "title": "OAuth"} | _flows(about.get("flows") or {})
            case "openIdConnectSecurityScheme":
                server = _origin(about.get("openIdConnectUrl", ""))
                more = {"kind": "oauth", "title": "OpenID Connect", "server": server}
                more["flows"] = tuple(FLOWS.values())
            case "mtlsSecurityScheme":
                more = {"kind": "certificate", "title": "Client certificate"}
            case _:
                continue
        found.append(SchemeView(name=name, description=about.get("description", ""), **more))
    return found


def ways_of(card: Any) -> list[list[str]]:
    """The schemes that a card requires together, for each way to log in."""
    known = [each.name for each in schemes_of(card)]
    found: list[list[str]] = []
    for requirement in card.get("securityRequirements") or ():
        names = sorted(requirement.get("schemes") or (), key=_place(known))
        if names and names not in found and set(names) <= set(known):
            found.append(names)
    return found or [[name] for name in known]


def _place(known: Sequence[str]) -> Callable[[str], int]:
    return lambda name: known.index(name) if name in known else len(known)


def required_scopes(card: Any, name: str) -> list[str]:
    """The scopes that a card requires with a scheme."""
    found: dict[str, None] = {}
    for requirement in card.get("securityRequirements") or ():
        wanted = (requirement.get("schemes") or {}).get(name) or {}
        found |= dict.fromkeys(map(str, wanted.get("list") or ()))
    return list(found)


FLOWS = {"authorizationCode": "code", "deviceCode": "device", "clientCredentials": "client"}
"""The flows of OAuth that work here, and their short names."""


def _flows(flows: Any) -> dict[str, Any]:
    """The flows of an OAuth scheme, and where a person logs in."""
    known = [name for name in FLOWS if flows.get(name)]
    server = _origin(flows[known[0]].get("tokenUrl", "")) if known else ""
    return {"flows": tuple(FLOWS[name] for name in known), "server": server}


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.lower()}" if parts.netloc else ""


def _plain(scope: Any) -> dict[str, Any]:
    """The scope of a request without what this process has added."""
    return {name: value for name, value in scope.items() if not name.startswith("dragoman.")}
