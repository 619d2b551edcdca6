"""The console of an application, in front of its agents."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dragoman import Caller, __version__
from dragoman.admin import Choice, Counts, StoreAdmin
from dragoman.console import actions, api, inspector, pages
from dragoman.console.access import (
    KEY,
    Access,
    OneTimeToken,
    check_action,
    local,
    log_in,
    origin_of,
    same_origin,
)
from dragoman.console.delegation_tree import Delegations
from dragoman.console.history import History
from dragoman.console.http import (
    ACTION_HEADER,
    ConsoleError,
    Forbidden,
    NotFound,
    Request,
    Response,
    Route,
    respond,
)
from dragoman.console.remote_agent import RemoteAgent
from dragoman.console.remote_login import PATH as CALLBACK
from dragoman.console.session import Operator, end_cookie, set_cookie, start
from dragoman.console.shapes import SessionView
from dragoman.console.source import ServedAgents, Source
from dragoman.console.store_reader import StoreReader

STATIC = Path(__file__).with_name("static")
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_FILE = re.compile(r"(?:vendor/)?[a-z0-9_]+\.(?:css|js|svg|txt)")
_CALL = re.compile(r"/console/agents/([^/]+)(/.*)?")


class Console:
    """A page in the browser that shows what an `App` does. Give it to `App.answer_first`.

    With `open`, callers with the scope `operator` (see), `operator:act` (see and act) or
    `operator:all` (see all tenants) may use it from anywhere. `tell` prints the
    token of the address `/console/?token=…`, which works once and only on this machine; without
    `tell` there is no such address."""

    def __init__(
        self,
        *,
        open: bool = False,
        tell: Callable[[str], None] | None = None,
        source: Source | None = None,
        store: Callable[[], StoreAdmin] | None = None,
    ) -> None:
        self.token = OneTimeToken(tell) if tell is not None else None
        self.access = Access(open=open, token=self.token)
        self._source, self._store = source, store
        self._app: Any = None
        self._closed = True
        self.source: Source
        self.reader: StoreReader
        self.history: History
        self.delegations: Delegations

    async def __call__(self, scope: Any, receive: Any, send: Any) -> bool:
        """Answer a request, or leave it to the agents."""
        path: str = scope["path"]
        inside = path == "/console" or path.startswith("/console/")
        if not inside and not (path == CALLBACK and isinstance(self._source, RemoteAgent)):
            return False
        self._bind(scope["dragoman.app"])
        request = Request.read(scope, receive)
        return await (self._serve(request, send) if inside else self._come_back(request, send))

    async def _come_back(self, request: Request, send: Any) -> bool:
        """Answer a browser that comes from an authorization server."""
        assert isinstance(self.source, RemoteAgent)
        response = self.source.login.come_back(request)
        if response is None:
            return False
        await respond(request, send, response)
        return True

    def _bind(self, app: Any) -> None:
        if self._app is app and not self._closed:
            return
        self._app, self._closed = app, False
        self.source = self._source or ServedAgents(app)
        self.reader = StoreReader(
            self._store or (lambda: app.admin(write=True)), prepare=self._store is None
        )
        self._counted: tuple[float, Any, Any] = (0.0, None, None)
        self.history = History(self.reader)
        self.delegations = Delegations(self.reader)

    async def close(self) -> None:
        """Close the store that it reads, and end its streams. The next request opens it again."""
        if not self._closed:
            self._closed = True
            await self.reader.close()
            await self.source.close()

    async def _serve(self, request: Request, send: Any) -> bool:
        found = await self.access.session(request)
        if found is None:
            response = await self._without_session(request)
            if response is None:
                return False
            await respond(request, send, response)
            return True
        if not same_origin(request) and request.path != "/console/":
            return False
        operator = found.operator
        try:
            if call := _CALL.fullmatch(request.path):
                return await self._call(request, operator, call[1], call[2] or "/", send)
            response = await self._answer(request, operator)
        except ConsoleError as error:
            response = Response({"message": str(error)}, error.status)
        await respond(request, send, response)
        return True

    # -- without a session

    async def _without_session(self, request: Request) -> Response | None:
        if request.path == "/console" and request.html and self.access.open:
            return Response(b"", 307, headers={"location": "/console/"})
        if request.path == "/console/" and request.method == "GET":
            if self.token is not None and local(request):
                if (text := request.one("token")) and self.token.use(text):
                    return await self._begin(request, Operator(caller=Caller(), local=True))
                if request.html:
                    self.token.renew()
            if self.access.open and request.html and same_origin(request):
                return pages.log_in(await self.source.schemes(request))
        if request.path == "/console/login" and request.method == "POST" and self.access.open:
            if not same_origin(request) or not request.header(b"origin"):
                return None
            schemes = await self.source.schemes(request)
            headers = pages.credentials(schemes, await request.body())
            caller = await log_in(request, headers) if headers else None
            if caller is None:
                return pages.log_in(schemes, failed=True)
            return await self._begin(request, Operator(caller=caller))
        return None

    async def _begin(self, request: Request, operator: Operator) -> Response:
        """Start a session, and lead to an address without secrets."""
        self.audit(operator, "login")
        session = start(operator, origin_of(request))
        key = await request.scope["dragoman.app"].secret(KEY)
        headers = {"location": "/console/", "set-cookie": set_cookie(session, key)}
        return Response(b"", 303, "text/plain", headers)

    # -- with one

    async def _answer(self, request: Request, operator: Operator) -> Response:
        path = request.path
        if path == "/console":
            return Response(b"", 307, "text/plain", {"location": "/console/"})
        if path == "/console/" and request.method in ("GET", "HEAD"):
            if request.one("token"):
                return Response(b"", 303, "text/plain", {"location": "/console/"})
            return _static("index.html")
        if path.startswith("/console/static/") and request.method in ("GET", "HEAD"):
            return _static(path.removeprefix("/console/static/"))
        if path == "/console/api/logout" and request.method == "POST":
            if not request.header(ACTION_HEADER):
                raise Forbidden("this needs the header X-Dragoman-Console")
            return Response({}, headers={"set-cookie": end_cookie(origin_of(request))})
        if path == "/console/api/caller" and request.method == "POST":
            return await self._become(request, operator)
        allowed = []
        for route in self._routes():
            names = route.matches(path)
            if names is None:
                continue
            if route.method == request.method or (route.method, request.method) == ("GET", "HEAD"):
                if route.method != "GET":
                    check_action(request, operator, harmless=route.harmless)
                return await route.answer(request, self, operator, **names)
            allowed.append(route.method)
        if allowed:
            raise ConsoleError(f"this needs {' or '.join(allowed)}", 405)
        raise NotFound("the console has nothing at this path")

    def _routes(self) -> Sequence[Route]:
        if isinstance(self.source, RemoteAgent):
            return (*api.ANY, *actions.ANY, *inspector.ROUTES)
        return (*api.ROUTES, *actions.ROUTES)

    async def _become(self, request: Request, operator: Operator) -> Response:
        """Log in as the caller that the chat has."""
        if not same_origin(request) or not request.header(ACTION_HEADER):
            raise Forbidden("this needs the header X-Dragoman-Console, from the same origin")
        given = await request.decode(dict[str, str])
        schemes = await self.source.schemes(request)
        if isinstance(self.source, RemoteAgent):
            await self.source.log_in(request, given, schemes)
            return Response({})
        headers = pages.headers_for(schemes, given)
        if not headers:
            raise ConsoleError("the credentials are not complete")
        caller = await log_in(request, headers, operator=not operator.local)
        if caller is None:
            raise ConsoleError("the server does not accept these credentials", 401)
        changed = msgspec.structs.replace(operator, caller=caller)
        self.audit(changed, "caller")
        session = start(changed, origin_of(request))
        key = await request.scope["dragoman.app"].secret(KEY)
        return Response({}, headers={"set-cookie": set_cookie(session, key)})

    async def _call(
        self, request: Request, operator: Operator, key: str, rest: str, send: Any
    ) -> bool:
        if not request.header(ACTION_HEADER):
            raise Forbidden("this needs the header X-Dragoman-Console")
        if self.source.needs_caller(operator):
            raise ConsoleError("log in first as a caller of this agent", 401)
        await self.source.call(request, operator, key, rest, send)
        return True

    # -- what the API shows

    async def session_view(self, request: Request, operator: Operator) -> SessionView:
        """Who looks, and at what."""
        return SessionView(
            name=operator.name,
            acts=operator.acts,
            actions=self.source.kind == "app",
            everywhere=operator.everywhere,
            version=__version__,
            source=self.source.kind,
            title=self.source.title,
            tenant=operator.caller.tenant,
            caller=operator.caller.identity,
            needs_caller=self.source.needs_caller(operator),
            poll=self.poll,
            agents=self.source.names(),
            schemes=await self.source.schemes(request),
        )

    async def redrive(self, operator: Operator, task: str, webhook: str) -> int:
        """Deliver the parked webhooks of a task again, or one of them. Returns how many."""
        if self.source.kind == "app":
            try:
                number: int = await self._app.redrive(operator.acting, task, webhook)
            except PermissionError:
                raise Forbidden("the operator may not act on this task") from None
            return number
        self.audit(operator, "redrive", task=task, webhook=webhook)
        return await self.reader.redrive(task, webhook)

    async def counts(self, choice: Choice) -> Counts:
        """How many tasks are in each state. In a large store this is counted at times only."""
        known_at, known, found = self._counted
        began = time.monotonic()
        if known != choice or began > known_at:
            found = await self.reader.counts(choice)
            took = time.monotonic() - began
            self._counted = began + 20 * took, choice, found
        counted: Counts = found
        return counted

    @property
    def poll(self) -> float:
        """Seconds between two reads of the table."""
        return min(1.0, float(self._app.settings.poll))

    @property
    def closing(self) -> bool:
        """Whether the server stops, so that streams must end."""
        return self._closed or bool(self._app.closing.now)

    async def pause(self, seconds: float) -> None:
        """Wait between two reads."""
        await asyncio.sleep(seconds)

    def audit(self, operator: Operator, event: str, row: Any = None, **about: str) -> None:
        """Write what an operator does to the audit log, whatever the settings say."""
        if row is not None:
            about |= {"agent": row.agent, "task": row.id, "owner": row.identity}
        self._app.audit(operator.acting, event, **about)


def _static(name: str) -> Response:
    """A file of the page."""
    if name != "index.html" and not _FILE.fullmatch(name):
        raise NotFound("the console has no such file")
    path = STATIC / name
    if not path.is_file():
        raise NotFound("the console has no such file")
    return Response(path.read_bytes(), kind=KINDS[path.suffix])
