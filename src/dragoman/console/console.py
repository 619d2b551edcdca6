"""The console of an application, in front of its agents."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dragoman import Caller, __version__
from dragoman.admin import Choice, Counts, StoreAdmin
from dragoman.console import actions, api, inspector, pages
from dragoman.console.access import (
    KEY,
    Access,
    Looks,
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
from dragoman.console.operator_login import PATH as FROM_SERVER
from dragoman.console.operator_login import OperatorLogin
from dragoman.console.remote_agent import RemoteAgent
from dragoman.console.remote_login import PATH as CALLBACK
from dragoman.console.session import Operator, Session, end_cookie, set_cookie, start
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
REFUSED = "This is not accepted. The console needs a caller with the scope operator."
REFUSED_CALLER = "The server does not accept these credentials."
CHAT = "/console/#/chat"
_FILE = re.compile(r"(?:vendor/)?[a-z0-9_]+\.(?:css|js|svg|txt)")
_CALL = re.compile(r"/console/agents/([^/]+)(/.*)?")


class Console:
    """A page in the browser that shows what an `App` does. Give it to `App.answer_first`.

    With `open`, callers with the scope `operator` (see), `operator:act` (see and act) or
    `operator:all` (see all tenants) may use it from anywhere; `client_id` is then the console's id
    at the authorization server, for OAuth with a code. `tell` prints the
    token of the address `/console/?token=…`, which works once and only on this machine; without
    `tell` there is no such address."""

    def __init__(
        self,
        *,
        open: bool = False,
        client_id: str = "",
        tell: Callable[[str], None] | None = None,
        source: Source | None = None,
        store: Callable[[], StoreAdmin] | None = None,
    ) -> None:
        self.token = OneTimeToken(tell) if tell is not None else None
        self.access = Access(open=open, token=self.token)
        self._source, self._store = source, store
        self._client_id, self._at_server = client_id, OperatorLogin()
        self._app: Any = None
        self._closed = True
        self.source: Source
        self.reader: StoreReader
        self.history: History
        self.delegations: Delegations
        self.looks: Looks

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
        self.looks = Looks()

    async def close(self) -> None:
        """Close the store that it reads, and end its streams. The next request opens it again."""
        if not self._closed:
            self._closed = True
            await self.reader.close()
            await self.source.close()

    async def _serve(self, request: Request, send: Any) -> bool:
        if request.path == FROM_SERVER and request.method == "GET":
            back = await self._from_server(request)
            if back is None:
                return False
            await respond(request, send, back)
            return True
        found = await self.access.session(request)
        if found is None or request.path == "/console/login":
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
            response = await self._answer(request, found)
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
                return await self._log_in_page(request)
        if request.path == "/console/login" and request.method == "POST" and self.access.open:
            if not same_origin(request) or not request.header(b"origin"):
                return None
            return await self._log_in(request, pages.filled(await request.body()))
        return None

    async def _log_in_page(self, request: Request, failed: str = "") -> Response:
        schemes, ways = await self.source.schemes(request), await self.source.ways(request)
        return pages.log_in(schemes, ways, failed=failed, client=self._client_id)

    async def _log_in(self, request: Request, given: Mapping[str, str]) -> Response:
        """Log in with what a person has typed."""
        schemes = await self.source.schemes(request)
        if given.get("client", "").strip() and isinstance(self.source, ServedAgents):
            try:
                return pages.forward(*await self._begin_at_server(request, given))
            except ConsoleError as error:
                return await self._log_in_page(request, str(error))
        credentials = pages.credentials(schemes, given)
        caller = None if credentials is None else await log_in(request, credentials)
        if caller is None:
            return await self._log_in_page(request, REFUSED)
        return await self._begin(request, Operator(caller=caller))

    async def _begin_at_server(
        self, request: Request, given: Mapping[str, str], session: Session | None = None
    ) -> tuple[str, dict[str, str]]:
        assert isinstance(self.source, ServedAgents)
        card = await self.source.card(request)
        name, client = given.get("scheme", ""), given["client"]
        return await self._at_server.begin(request, card, name, client, session)

    async def _from_server(self, request: Request) -> Response | None:
        """Answer a browser that comes from an authorization server; None for any other."""
        begun = await self._at_server.begun(request)
        if begun is None or not isinstance(self.source, ServedAgents):
            return None
        session = begun.session
        if not (self.access.open if session is None else self.access.allows(session, request)):
            return None
        try:
            card = await self.source.card(request)
            credentials = await self._at_server.finish(request, card, begun)
            wanted = session is None or not session.operator.local
            caller = await log_in(request, credentials, operator=wanted)
            failed = "" if caller else REFUSED if session is None else REFUSED_CALLER
        except ConsoleError as error:
            caller, failed = None, str(error)
        if caller is None:
            if session is None:
                return await self._log_in_page(request, failed)
            return pages.told(failed, 401, to=CHAT)
        if session is None:
            started = await self._begin(request, Operator(caller=caller))
            return pages.logged_in({"set-cookie": started.headers["set-cookie"]})
        return pages.logged_in(await self._changed(request, session, caller), CHAT)

    async def _begin(self, request: Request, operator: Operator) -> Response:
        """Start a session, and lead to an address without secrets."""
        self.audit(operator, "login")
        session = start(operator, origin_of(request))
        key = await request.scope["dragoman.app"].secret(KEY)
        headers = {"location": "/console/", "set-cookie": set_cookie(session, key)}
        return Response(b"", 303, "text/plain", headers)

    # -- with one

    async def _answer(self, request: Request, found: Session) -> Response:
        path, operator = request.path, found.operator
        if path == "/console":
            return Response(b"", 307, "text/plain", {"location": "/console/"})
        if path == "/console/" and request.method in ("GET", "HEAD"):
            if request.one("token"):
                return Response(b"", 303, "text/plain", {"location": "/console/"})
            return _static("index.html")
        if path.startswith("/console/static/") and request.method in ("GET", "HEAD"):
            return _static(path.removeprefix("/console/static/"), request.header(b"if-none-match"))
        if path == "/console/api/logout" and request.method == "POST":
            if not request.header(ACTION_HEADER):
                raise Forbidden("this needs the header X-Dragoman-Console")
            return Response({}, headers={"set-cookie": end_cookie(origin_of(request))})
        if path == "/console/api/caller" and request.method == "POST":
            return await self._become(request, found)
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

    async def _become(self, request: Request, found: Session) -> Response:
        """Log in as the caller that the chat has."""
        if not same_origin(request) or not request.header(ACTION_HEADER):
            raise Forbidden("this needs the header X-Dragoman-Console, from the same origin")
        given = await request.decode(dict[str, str])
        schemes = await self.source.schemes(request)
        if isinstance(self.source, RemoteAgent):
            await self.source.log_in(request, given, schemes)
            return Response({})
        if given.get("client", "").strip() and isinstance(self.source, ServedAgents):
            url, headers = await self._begin_at_server(request, given, found)
            return Response({"url": url}, headers=headers)
        credentials = pages.credentials(schemes, given)
        if credentials is None:
            raise ConsoleError("the credentials are not complete")
        caller = await log_in(request, credentials, operator=not found.operator.local)
        if caller is None:
            raise ConsoleError(REFUSED_CALLER, 401)
        return Response({}, headers=await self._changed(request, found, caller))

    async def _changed(self, request: Request, found: Session, caller: Caller) -> dict[str, str]:
        """The headers that give a session another caller for the chat. The session of the terminal
        is no longer by this."""
        changed = msgspec.structs.replace(found.operator, caller=caller)
        self.audit(changed, "caller")
        session = start(changed, origin_of(request))
        if changed.local:
            session = msgspec.structs.replace(session, ends=min(session.ends, found.ends))
        key = await request.scope["dragoman.app"].secret(KEY)
        return {"set-cookie": set_cookie(session, key)}

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
        schemes = await self.source.schemes(request)  # first: the inspector learns the name here
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
            schemes=schemes,
            ways=await self.source.ways(request),
            client=self._client_id,
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


def _static(name: str, known: str = "") -> Response:
    """A file of the page. A browser may keep it, and asks each time whether it is still `known`;
    the page itself is not kept."""
    if name != "index.html" and not _FILE.fullmatch(name):
        raise NotFound("the console has no such file")
    path = STATIC / name
    if not path.is_file():
        raise NotFound("the console has no such file")
    content, kind = path.read_bytes(), KINDS[path.suffix]
    if name == "index.html":
        return Response(content, kind=kind)
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"cache-control": "private, no-cache", "etag": tag}
    if tag in (each.strip().removeprefix("W/") for each in known.split(",")):
        return Response(b"", 304, kind, headers)
    return Response(content, kind=kind, headers=headers)
