"""The application: connects all parts of the server."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from secrets import token_bytes
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import asdict, replace

from dragoman import bells, stores
from dragoman.agent.agent import Agent, AgentError
from dragoman.bells.bell import Bell
from dragoman.bindings import http, jsonrpc
from dragoman.bindings.agent_endpoint import Endpoint
from dragoman.bindings.apps_before_agents import First, answered
from dragoman.bindings.authentication import Authentication, Identify, origin
from dragoman.bindings.header_checks import HeaderChecks
from dragoman.bindings.http_request import Gone, HTTPRequest, Receive, Scope, Send
from dragoman.bindings.in_process_requests import CallerApp, CallerRequest
from dragoman.bindings.mounted_apps import ASGI, Mount, check_path, lifespan, names_below
from dragoman.bindings.request_body import BodyReader
from dragoman.bindings.routing import Router
from dragoman.bindings.sse import Streams
from dragoman.bindings.trusted_hosts import TrustedHosts
from dragoman.model.caller import Caller, Policy, unqualified
from dragoman.model.caller import Scope as LogScope
from dragoman.model.conversation import ConversationMessage
from dragoman.model.errors import A2AError, Unavailable
from dragoman.model.operator import may_act
from dragoman.security.card_keys import CardKey
from dragoman.security.egress import Egress
from dragoman.security.file_rules import Scan
from dragoman.server import load_settings, startup_log, wiring
from dragoman.server.app_options import AppOptions
from dragoman.server.conversation import latest_turns
from dragoman.server.gate_store import maintain, maintained
from dragoman.server.maintenance import Maintenance
from dragoman.server.reader import Shutdown
from dragoman.server.service import Service
from dragoman.server.settings import Settings, SettingsError
from dragoman.server.watchdog import Watchdog
from dragoman.server.worker import Worker, blamed
from dragoman.stores.reservations import SECRETS, check_reservation, check_space, wrong_name
from dragoman.stores.store import Head, Store
from dragoman.telemetry.logs import audit, logger, redacted, secret
from dragoman.telemetry.process_telemetry import Monitoring
from dragoman.webhooks import delivery

if TYPE_CHECKING:
    from dragoman.bindings.grpc import Port
    from dragoman.server.fleet import FleetReporter, Numbers
    from dragoman.stores.admin import StoreAdmin

NOT_STARTED = "App: the application has not started, so its store is not open"


class App:
    """An ASGI application that serves one agent at its root, or several, each under its key.

    It starts with the server's lifespan. If it is mounted in another application that passes no
    lifespan on, it starts with the first request; close it with `await app.stop()`, or run it from
    the host's lifespan with `async with app:`.

    `auth` are schemes of `dragoman.security`, or tables as in the setting `auth`; the server
    enforces them and lists them on the card. `identify` is enforced but not listed on the card.
    Other keyword arguments are settings: `App(agent, bindings=["JSONRPC", "GRPC"],
    grpc_port=50051)`.

    `mounts` are ASGI applications beside the agents, or instead of them, by path. They are called
    after authentication: `scope["dragoman.caller"]` is the `Caller`, `scope["dragoman.app"]` this
    `App`.

    `sign` are keys that sign the card, in addition to the setting `card_keys`, for example
    `CardKey.remote` for a key in a KMS.
    """

    def __init__(
        self,
        *agents: Agent,
        mounts: Mapping[str, ASGI] | None = None,
        store: Store | str | None = None,
        bell: Bell | str | None = None,
        auth: wiring.Given | None = None,
        identify: Identify | None = None,
        policy: Policy | None = None,
        scan: Scan | None = None,
        sign: Sequence[CardKey] = (),
        settings: Settings | None = None,
        **options: Unpack[AppOptions],
    ) -> None:
        arguments: dict[str, Any] = {**options}
        if auth is not None and identify is not None:
            raise TypeError(
                "App: give either auth, which appears on the card, or identify, which does not"
            )
        self._keys = tuple(sign)
        for key in self._keys:
            if not isinstance(key, CardKey):
                raise TypeError(
                    f"App: sign expects keys (CardKey.load, CardKey.remote), not {key!r:.40}"
                )
        self._mounted = dict(mounts or {})
        if not agents and not self._mounted:
            raise AgentError("App: needs at least one agent, or mounts")
        if isinstance(store, str):
            arguments["store"], store = store, None
        if isinstance(bell, str):
            arguments["bell"], bell = bell, None
        if settings is not None and arguments:
            raise TypeError(
                "App: give either settings or individual settings as keywords, not both"
            )
        self.agents = {agent.key: agent for agent in agents}
        if len(self.agents) < len(agents):
            raise AgentError("App: two agents have the same key; set Agent(key=…) for one of them")
        for path in self._mounted:
            check_path(path, self.agents)
        self._below = {key: self._mounted_below(agent) for key, agent in self.agents.items()}
        """The names of the mounted applications below the path of each agent."""
        self._store, self._bell = store, bell
        self._auth, self._identify, self._policy, self._scan = auth, identify, policy, scan
        self.arguments: dict[str, Any] = asdict(settings) if settings is not None else arguments
        """The settings that were passed in code."""
        self._compose(settings or load_settings.load(arguments, checks=wiring.CHECKS))
        for name, given in (("store", store), ("bell", bell)):
            if given is not None:  # no other setting replaces it
                self.arguments[name] = getattr(self.settings, name)
        self.serves = True
        """False in a process that only runs turns and accepts no requests."""
        self.ports: list[Port] = []
        """The open gRPC ports, in the order of the agents."""
        self.monitoring: Monitoring | None = None
        """Metrics and health, once it has started."""
        self._worker: Worker | None = None
        self._draining = False
        self._drain_began = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that it runs on; None before start and after stop."""
        self._first: list[First] = []
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._opened = False
        """Whether the store is open."""
        self._known_secrets: dict[str, bytes] = {}
        self._stopped = False
        self._logged_access = False
        self._starting: asyncio.Future[None] | None = None
        self._stopping: asyncio.Event | None = None

    def _mounted_below(self, agent: Agent) -> frozenset[str]:
        """Return the names below an agent's path that lead to other applications. Raises ValueError
        if one of them is the agent's tenant."""
        found = (names_below(path, self.agents) for path in self._mounted)
        names = frozenset(name for key, name in found if key == agent.key)
        if agent.tenant in names:
            raise ValueError(
                f"mounts: below the agent {agent.key!r}, {agent.tenant!r} is the path of its tenant"
            )
        return names

    def reconfigure(self, settings: Settings) -> None:
        """Replace the settings. Objects that were passed to the constructor stay. Raises ValueError
        if a setting would replace such an object, and RuntimeError if the application runs."""
        if self._runner is not None:
            raise RuntimeError("App: cannot change settings after the start")
        for name, given in (("store", self._store), ("bell", self._bell)):
            if given is not None and getattr(settings, name) != getattr(self.settings, name):
                raise ValueError(
                    f"{name}: cannot be changed here, because the App received it in code"
                )
        self._compose(settings)

    def _compose(self, settings: Settings) -> None:
        """Make the parts that these settings ask for. It opens nothing yet."""
        if self._store is not None:
            settings = replace(settings, store=self._store.url)
        self.settings = settings
        identify, authenticator, auth = self._identify, None, self._auth
        if auth is None and identify is None:
            auth = settings.auth or None
        if auth is not None:
            authenticator = wiring.authenticator(wiring.auth(auth), settings)
            identify = authenticator.identify
        wiring.check_card(settings)
        wiring.check_grpc(settings, len(self.agents))
        for key, agent in self.agents.items():
            agent.check()
            wiring.check_mounted(settings, self._below[key])
        secret(*settings.secrets())
        self.store: Store = stores.connect(settings) if self._store is None else self._store
        self.bell: Bell = (
            bells.connect(settings.bell or self.store.bell) if self._bell is None else self._bell
        )
        if self.settings.push:  # now, so that a wrong setting is reported early
            self._make_egress()
            delivery.keys(self.settings)
        self.closing = Shutdown()
        self.streams = Streams(self.settings)
        self.bodies = BodyReader(self.settings)
        self.hosts = TrustedHosts(self.settings)
        """The host names that this server accepts. The server adds the address that it listens
        on."""
        self._limits = limits = wiring.limits(self.settings)
        several = len(self.agents) > 1

        def access(prefix: str, name: str, agent: Agent | None = None) -> Authentication:
            skills = agent.skills.values() if agent is not None else ()
            return Authentication(
                settings,
                self.hosts,
                identify=identify,
                authenticator=authenticator,
                limits=limits,
                prefix=prefix,
                name=name,
                title=name if agent is None else agent.name,
                scopes=[scope for skill in skills for scope in sorted(skill.scopes)],
            )

        self.endpoints = {
            key: Endpoint(
                Service(
                    agent,
                    self.store,
                    self.bell,
                    self.settings,
                    self.closing,
                    policy=self._policy,
                    scan=self._scan,
                    mounted=self._below[key],
                ),
                self.settings,
                self.streams,
                self.bodies,
                access(f"/{key}" if several else "", key, agent),
            )
            for key, agent in self.agents.items()
        }
        self.mounts = [
            Mount(path, mounted, access(path.rstrip("/"), path), self)
            for path, mounted in sorted(self._mounted.items(), reverse=True)
        ]
        """The mounted applications; the longest path comes first."""
        self.access = access("", "")
        """How callers are authenticated."""
        self._header_checks = HeaderChecks(
            self.settings, self.hosts, single=self.access.single, limits=limits
        )
        self._router = Router(self.endpoints, self.mounts, self._state)
        self._only = self._router.only

    # -- requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection scope."""
        kind = scope["type"]
        if kind == "lifespan":
            return await self._lifespan(receive, send)
        if kind == "websocket":
            return await send({"type": "websocket.close", "code": 1003})
        incoming = HTTPRequest(scope, receive, send, self.bodies)
        line = None
        if self.settings.access_log:
            line = incoming.follow(origin(incoming, self._limits))
        try:
            checks = self._header_checks
            if not checks.passes(incoming) and await checks.stops(incoming):
                return None
            # Before Python 3.12 it is a system call to get the running loop.
            running = self._loop is not None and self._loop.is_running()
            if not running and not await self._start_once(incoming):
                return None
            if incoming.path == "/" and self._only is not None and scope["method"] == "POST":
                await jsonrpc.serve(self._only, incoming)
            elif not self._first or not await answered(self._first, incoming, self.access, self):
                await self._router.serve(incoming)
        except Gone:
            return None
        finally:
            if incoming.reserved:
                incoming.release()
            if line is not None:
                line.write()
        return None

    def for_caller(self, caller: Caller) -> ASGI:
        """Return an ASGI application for code of this process: requests to it are made as this
        caller, without authentication. Limits, tenants, scopes and the policy apply as always, and
        a caller that has expired is refused.

        A mounted application calls agents on behalf of its caller with it:
        `Client.connect(app=app.for_caller(caller))`, where `app` is `scope["dragoman.app"]`. Never
        serve it to others: everyone who reaches it acts as this caller.
        """
        return CallerApp(caller, lambda: self.bodies, self._serve_caller)

    def for_operator(self, caller: Caller) -> ASGI:
        """The same as `for_caller` for an operator: a caller with the scope `operator` may also get
        and follow the tasks of other owners in its tenant. With `operator:act` it may cancel them
        and send messages to them; to approve something, it also needs the policy. With
        `operator:all` this holds for all tenants. The log and `turn.caller` name the operator. Each
        request about a task is in the audit log, whatever the settings say.

        Without these scopes, the application is that of `for_caller`.
        """
        return CallerApp(caller, lambda: self.bodies, self._serve_caller, operates=True)

    async def conversation(
        self,
        caller: Caller,
        agent: str,
        context: str,
        limit: int = 20,
        *,
        characters: int = 8_000,
    ) -> list[ConversationMessage]:
        """Return what this caller and an agent have said in a context, oldest first: the last
        `limit` turns, also those that the agent answered without a task. It is
        `Turn.conversation` for an application that shows a conversation to its caller. Raises
        ValueError if there is no such agent."""
        if agent not in self.agents:
            raise ValueError(f"conversation: there is no agent {agent!r}")
        if limit < 1 or characters < 0:
            raise ValueError("conversation: limit must be at least 1, characters at least 0")
        scope = LogScope(agent, caller.tenant, caller.qualified)
        return await latest_turns(self.store, scope, context, limit, characters)

    async def redrive(self, caller: Caller, task: str, webhook: str = "") -> int:
        """Resume the delivery of the parked webhooks of a task, or of one of them, for an operator
        who may act on the task. Returns how many there were. It is in the audit log, whatever the
        settings say. Raises PermissionError if the caller may not, also if there is no such
        task."""
        found = await self._head(task)
        if found is None or not may_act(caller, found.scope.tenant):
            self.audit(caller, "redrive", "refused", task=task, webhook=webhook)
            raise PermissionError(f"the caller may not redrive webhooks of the task {task!r}")
        number = await self.store.redrive(task, webhook)
        owner = unqualified(found.scope.owner)[1]
        self.audit(caller, "redrive", task=task, webhook=webhook, owner=owner)
        return number

    async def _head(self, task: str) -> Head | None:
        for agent in self.agents:
            if (found := await self.store.find(agent, task)) is not None:
                return found
        return None

    def audit(self, caller: Caller, event: str, result: str = "ok", **about: str) -> None:
        """Write what an operator did or looked at to the audit log, whatever the settings say. An
        application that shows tasks of other owners calls it for each look. `about` may name the
        `agent`, the `task` and its `owner`."""
        who = {"who": caller.identity, "realm": caller.realm, "tenant": caller.tenant}
        audit(f"operator.{event}", result=result, **{**about, **who})

    def answer_first(
        self, handler: First, *, close: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Let an application see each request before the agents and the mounts do.

        The server calls it like an ASGI application, for HTTP only; it returns whether it has
        answered. The server has not authenticated the request yet:
        `await scope["dragoman.authenticate"]()` returns the `Caller`, or raises as for the agents;
        with `headers` or a `query_string`, it does so for a request that has these. The application
        can append headers to the list `scope["dragoman.headers"]`: every response to this request
        gets them. JSON-RPC to a single agent (`POST /`) goes directly to the agent. The `App`
        awaits `close` when it stops.
        """
        self._first.append(handler)
        if close is not None:
            self._closers.append(close)

    def admin(self, *, write: bool = False) -> StoreAdmin:
        """Return the admin interface of the store, for a `with`: it reads the tasks of all owners,
        see `dragoman.admin`. With `write` it may change something. Its calls block, so a server
        makes them in a thread. Raises ValueError if the store has no admin interface."""
        make = self.store.admin
        if make is None:
            raise ValueError(f"store: {self.store.name} has no admin interface")
        opened: StoreAdmin = make(write=write)
        return opened

    async def _serve_caller(self, incoming: CallerRequest) -> None:
        line = incoming.follow("") if self.settings.access_log else None
        try:
            running = self._loop is not None and self._loop.is_running()
            if running or await self._start_once(incoming):
                await self._router.serve(incoming)
        except Gone:
            pass
        finally:
            if incoming.reserved:
                incoming.release()
            if line is not None:
                line.write()

    async def _state(self, path: str) -> str:
        """What `/healthz` or `/readyz` reports: ok, or why not."""
        if self._loop is None or self.monitoring is None:
            return "down"
        return await self.monitoring.state() if path == "/readyz" else "ok"

    # -- what all replicas share

    async def reserve(self, space: str, key: str, value: bytes, *, keep: float | None) -> bytes:
        """Store a value under a space and key, if there is none, and return the value that is
        stored. Of all calls, in all replicas of the store and after restarts, the first one
        decides.

        It is kept for at least `keep` seconds, or for ever (None), independent of tasks. A
        space and a key have at most 512 bytes, a value 64 KiB. Raises ValueError, Unavailable, and
        RuntimeError if the application has not started.
        """
        check_reservation(space, key, value, keep)
        check_space(space)
        return await self._reserve(space, key, value, keep)

    async def release(self, space: str, key: str) -> bool:
        """Delete the value that is stored under this space and key by `reserve`. Returns whether
        there was one. Raises the same as `reserve`."""
        check_space(space)
        if not self._opened:
            raise RuntimeError(NOT_STARTED)
        return await self.store.release(space, key)

    async def secret(self, name: str) -> bytes:
        """Return the secret of this name: 32 random bytes, the same in all replicas of the store
        and after restarts. Logs do not show it. Raises the same as `reserve`."""
        if (known := self._known_secrets.get(name)) is not None:
            return known
        if why := wrong_name(name):
            raise ValueError(f"secret: name {why}")
        found = await self._reserve(SECRETS, name, token_bytes(32), None)
        plain = b64encode(found).decode()
        safe = plain.translate(str.maketrans("+/", "-_"))
        shown = (found.hex(), plain, safe, repr(found)[2:-1])
        secret(*shown, plain.rstrip("="), safe.rstrip("="))
        self._known_secrets[name] = found
        return found

    async def _reserve(self, space: str, key: str, value: bytes, keep: float | None) -> bytes:
        if not self._opened:
            raise RuntimeError(NOT_STARTED)
        return await self.store.reserve(space, key, value, keep)

    # -- start and stop

    @property
    def unguarded(self) -> bool:
        """Whether no authentication is configured and nobody has confirmed that this is
        intended."""
        return self.access.identify is None

    async def _close_first(self) -> None:
        for close in self._closers:
            await close()

    async def start(self) -> None:
        """Open the store, enter the agents' lifespans and start working."""
        loop = asyncio.get_running_loop()
        if self._ending is not None and self._ending.get_loop() is loop:
            await asyncio.wait([self._ending])
        if self._runner is None or self._runner.done() or self._runner.get_loop() is not loop:
            self._stopped = False
            self._drain_began = asyncio.Event()
            self._starting = loop.create_future()
            self._stopping = asyncio.Event()
            self._runner = loop.create_task(self._run(self._starting, self._stopping))
        assert self._starting is not None
        await asyncio.shield(self._starting)

    async def drain(self) -> None:
        """Let running turns end within the grace period, then end all streams. Accept new messages
        only if other replicas can process them."""
        self._draining = True
        self._drain_began.set()
        alone = self._worker is not None and not self.store.shared
        for endpoint in self.endpoints.values():
            endpoint.service.draining = alone
        for port in self.ports:
            await port.drain()
        if self._worker is not None:
            await self._worker.drain(self.settings.drain_timeout)
        self.closing.now = True
        self.bell.listeners.wake_all()
        await self.closing.cancels_ended(self.settings.cancel_grace)

    async def until_drain(self) -> None:
        """Wait until the application begins to drain. A mounted application that keeps responses
        open ends them then, so that the server need not wait for them."""
        await self._drain_began.wait()

    @property
    def stuck(self) -> list[str]:
        """The handlers that still run although they were canceled. Closing the loop would wait for
        them."""
        return self._worker.stuck if self._worker else []

    async def stop(self) -> None:
        """Drain, and close everything that `start` opened."""
        runner, self._runner = self._runner, None
        self._stopped = True
        if runner is None or runner.done():
            return
        assert self._stopping is not None
        self._stopping.set()
        self._ending = runner
        try:
            await runner
        finally:
            self._ending = None

    async def __aenter__(self) -> App:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _run(self, started: asyncio.Future[None], stopping: asyncio.Event) -> None:
        """Own every background task from start to stop."""
        try:
            if self._store is None:  # otherwise several Apps of this process may share it
                wiring.check_serve_only(self.settings, self.store)
            async with AsyncExitStack() as stack:
                await self.store.open()
                stack.push_async_callback(self.store.close)
                self._opened = True
                stack.push_async_callback(self._close_first)
                await self.bell.open()
                stack.push_async_callback(self.bell.close)
                monitoring = self._make_monitoring()
                bell = monitoring.bell(self.bell)
                worker = None
                if self.agents and not self.settings.serve_only:
                    worker = await self._make_worker(stack, bell, monitoring)
                egress = self._make_egress() if self.settings.push else None
                if egress is not None:
                    await stack.enter_async_context(egress)
                await self._sign()
                self._begin(worker, egress, bell, monitoring)
                startup_log.recursion_limit()
                if self.serves:
                    if self.agents and not self._logged_access:
                        startup_log.open_access(self.settings, self.access)
                    self._logged_access = True
                    for port in wiring.ports(self.settings, self.endpoints.values()):
                        self.ports.append(await stack.enter_async_context(port))
                    for mount in self.mounts:
                        await stack.enter_async_context(lifespan(mount.app, self))
                await stack.enter_async_context(monitoring)
                async with asyncio.TaskGroup() as group:
                    maintenance = Maintenance(self.agents, self.store, bell, self.settings)
                    jobs = [
                        maintenance.run(),
                        self.streams.run(),
                        self.bodies.run(),
                        monitoring.run(),
                    ]
                    if self.settings.fleet:
                        jobs.append(self._reporter().run())
                    if self.ports:
                        jobs.append(self._update_ports(monitoring))
                    if egress is not None:
                        jobs.append(
                            delivery.WebhookSender(
                                self.agents,
                                self.store,
                                bell,
                                self.settings,
                                egress,
                                metrics=monitoring.metrics,
                                spans=monitoring.spans,
                                names={key: agent.name for key, agent in self.agents.items()},
                            ).run()
                        )
                    jobs.append(Watchdog(self.settings.watchdog, blamed).run())
                    if worker is not None:
                        if gates := maintained(self.agents):
                            counts = worker.gate_events
                            jobs.append(maintain(gates, self.store, self.settings, counts))
                        group.create_task(worker.run())  # it ends when it is drained
                    tasks = [group.create_task(job) for job in jobs]
                    self._loop = self.bell.listeners.loop = asyncio.get_running_loop()
                    started.set_result(None)
                    await stopping.wait()
                    await self.drain()
                    for task in tasks:
                        task.cancel()
        except asyncio.CancelledError:
            if not started.done():
                started.cancel()
            raise
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
                return
            logger.exception("the application has stopped")
            raise
        finally:
            self._loop = self.bell.listeners.loop = None
            self._opened = False
            self._known_secrets.clear()
            self.ports.clear()

    async def _start_once(self, incoming: HTTPRequest) -> bool:
        """Start with the first request, if no lifespan has started it. Returns whether it runs;
        otherwise the request has been answered."""
        try:
            if self._stopped:
                raise RuntimeError("the application was stopped")
            await self.start()
        except Exception as why:
            # the message of these is enough
            if isinstance(why, A2AError | AgentError | SettingsError):
                logger.error("the application cannot start: %s", why)
            else:
                logger.exception("the application cannot start")
            error = Unavailable("The agent has not started", headers={"retry-after": "5"})
            await (jsonrpc if incoming.path == "/" else http).fail(incoming, error)
            return False
        return True

    async def _sign(self) -> None:
        """Sign the cards. If that fails, the application does not start."""
        keys = (*wiring.keys(self.settings), *self._keys)
        for name, endpoint in self.endpoints.items():
            try:
                await endpoint.sign(keys)
            except SettingsError:
                raise
            except ValueError as error:
                hint = "; give the agent one: @agent.skill(…)" if "skills: " in str(error) else ""
                raise SettingsError(f"card_keys: agent {name!r}: {error}{hint}") from None
        startup_log.unnamed_hosts(self.settings, keys, self.access, serves=self.serves)

    async def _make_worker(
        self, stack: AsyncExitStack, bell: Bell, monitoring: Monitoring
    ) -> Worker:
        """Make a worker, with the values of the agents' lifespans."""
        worker = Worker(
            self.agents,
            self.store,
            bell,
            self.settings,
            metrics=monitoring.metrics,
            spans=monitoring.spans,
        )
        if base := self.settings.url.rstrip("/"):
            worker.addresses = {key: base + each.prefix for key, each in self.endpoints.items()}
        for key, agent in self.agents.items():
            worker.states[key] = await stack.enter_async_context(agent.opened(self))
        return worker

    def _make_monitoring(self) -> Monitoring:
        return Monitoring(
            self.agents,
            self.store,
            self.settings,
            draining=lambda: self._draining,
            running=lambda: self._worker.runs if self._worker else {},
            streams=lambda: len(self.streams.open),
        )

    def _reporter(self) -> FleetReporter:
        """Make what writes the rows of this process."""
        from dragoman.server.fleet import FleetReporter

        worker, services = self._worker, [each.service for each in self.endpoints.values()]
        role = "worker" if not self.serves else "server" if worker else "serve only"

        def numbers() -> Numbers:
            messages = sum(service.accepted for service in services)
            if worker is None:
                return 0, len(self.streams.open), messages, 0, 0, 0
            ended = worker.ended, worker.failed, worker.lost
            return len(worker.runs), len(self.streams.open), messages, *ended

        return FleetReporter(self.store, role, self.agents, numbers)

    async def _update_ports(self, monitoring: Monitoring) -> None:
        """Let the gRPC health service report the same as `/readyz`."""
        while True:
            ready = await monitoring.health.beats()
            for port in self.ports:
                await port.set_ready(ready)
            await asyncio.sleep(self.settings.poll)

    def _begin(
        self, worker: Worker | None, egress: Egress | None, bell: Bell, monitoring: Monitoring
    ) -> None:
        self._worker, self.monitoring = worker, monitoring
        self._draining = self.closing.now = False
        self.streams.metrics = monitoring.metrics
        for endpoint in self.endpoints.values():
            endpoint.observe(monitoring.metrics, monitoring.spans)
            endpoint.service.draining = False
            endpoint.service.egress = egress
            endpoint.service.timed = (
                None if monitoring.metrics is None else monitoring.metrics.accept.at().observe
            )
            endpoint.service.bell = bell

    def _make_egress(self) -> Egress:
        return Egress(
            allow=self.settings.egress_allow,
            timeout=self.settings.push_timeout,
            per_host=self.settings.push_per_host,
            # One owner may use `push_running` of them, so that others find some free.
            total=2 * self.settings.push_running,
        )

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except Exception as error:
                    # The server prints the message of these, which is enough.
                    if not isinstance(error, A2AError | AgentError | SettingsError):
                        logger.exception("the application cannot start")
                    failed = {"type": "lifespan.startup.failed", "message": redacted(str(error))}
                    await send(failed)
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return
