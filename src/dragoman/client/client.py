"""The client: calls an A2A agent, built with any framework.

It fetches the card, picks the first interface that it supports, in the agent's order of preference,
and sends requests. It retries reads when the network fails. It retries sends, too: each attempt has
the same `messageId` and `Idempotency-Key`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, TypeVar, Unpack, overload
from urllib.parse import urlsplit

from msgspec import UNSET
from msgspec.structs import replace

from dragoman.client import skills
from dragoman.client.address_rules import NotAllowed
from dragoman.client.approved_card import (
    AgentReference,
    ApprovedAgent,
    changed_keys,
    check_unchanged,
)
from dragoman.client.binding import BINDINGS, Binding, Order, minor, supported_bindings
from dragoman.client.credentials import ANYWHERE, LIMIT, Auth, Guard
from dragoman.client.deadline import Limit, Progress
from dragoman.client.delegation import Delegation, Steps
from dragoman.client.discovery import INSTALL, SPOKEN, CardCache, Cards, address, interfaces
from dragoman.client.error_advice import explain
from dragoman.client.inbox import Inbox
from dragoman.client.limits import DEFAULT, Limits, TooLarge
from dragoman.client.logged_result import ERRORS, content_of, digest, known_agent, known_card, once
from dragoman.client.result import Result
from dragoman.client.retry_pauses import PASSING, Pauses
from dragoman.client.skills import RemoteSkill
from dragoman.client.stream import Stream
from dragoman.client.task_handle import TaskHandle
from dragoman.client.transport import (
    ASGITransport,
    Broken,
    HTTPTransport,
    Transport,
    Unreachable,
    origin,
)
from dragoman.client.trusted_keys import to_verifier
from dragoman.client.upload import File
from dragoman.dialects.v0_3.card import UNSAID
from dragoman.model import clock, protocol, to_parts
from dragoman.model.errors import (
    A2AError,
    InternalError,
    InvalidAgentResponse,
    InvalidRequest,
    MethodNotFound,
    VersionNotSupported,
)
from dragoman.model.events import RESUME
from dragoman.model.operations import BY_CALL
from dragoman.model.remote_task import BegunTask
from dragoman.model.types import (
    AgentCard,
    AgentInterface,
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    WireStruct,
)
from dragoman.security.card_signatures import Keys, Trust, Unverified, Verifier
from dragoman.telemetry import logs, otel

T = TypeVar("T")

INSIDE = "http://inside"
"""The address of an application in this process."""
LAST_WORD = 3.0
"""Seconds that the client may spend on canceling tasks before it closes."""


FOR_A_CARD = 4
"""How often to try to fetch a card, at most."""


class Options(TypedDict, total=False):
    """Options of a client."""

    headers: Mapping[str, str]
    """Headers of every request to the agent's origin. Other origins do not get them."""
    auth: Auth
    """Credentials for the card's security schemes: one, several, or a mapping by scheme name."""
    scopes_for: str
    """The id of a skill: tokens get the scopes that this skill needs. By default, they get those
    that the card requires for all skills."""
    trust: Sequence[str]
    """Other origins that may receive the headers and credentials; `*` means any."""
    allow: Sequence[str]
    """Hosts and networks that are not public, such as `10.0.0.0/8` or `*.intra.example`, to which a
    card from a public address may point."""
    insecure: bool
    """Send credentials over plain HTTP, too."""
    extensions: Sequence[str]
    """Extensions to activate if the agent offers them."""
    bindings: Sequence[str]
    """The bindings that the client may use."""
    timeout: float
    """Seconds that one attempt may take; 60 by default."""
    deadline: float | None
    """Seconds that a call may take with all attempts; then it raises `DeadlineExceeded`."""
    patience: float
    """Seconds that a stream may be silent before the client reconnects; 60 by default."""
    attempts: int
    """How often to try a call that fails; 8 by default, which takes about ten seconds."""
    limits: Limits
    """The most that the client accepts: bytes of a response and of a task, events of a stream."""
    signed_by: Verifier | Keys | None
    """The keys that must have signed the card: keys, `Trust`, `TrustedKeys` or `Origins`. By
    default, the client accepts an unsigned card."""
    strict: bool
    """Refuse a card that lacks a required field. By default, the client logs the missing fields and
    uses the card if it is enough to call the agent."""
    card_cache: CardCache | None
    """A cache of cards that several clients share."""
    inbox: Inbox | None
    """A webhook address where agents that do not stream can push updates."""
    delegation: Delegation | None
    """The turn on whose behalf this client works."""


class SendOptions(TypedDict, total=False):
    """Options of a message."""

    skill: str
    """The id of the skill to use."""
    modes: Sequence[str]
    """The media types that the caller accepts."""
    metadata: dict[str, Any]
    """Metadata of the request. A `Message` has its own metadata."""
    history: int
    """The most messages of the task's history to return."""
    webhook: TaskPushNotificationConfig | str
    """A webhook for the task: a URL, or a whole configuration."""
    references: Sequence[str]
    """Ids of other tasks that the message refers to."""
    key: str
    """The idempotency key, which is also the message id. By default, the client makes one."""


class CallOptions(SendOptions, total=False):
    """Options of the call of a skill."""

    task: str
    """The id of the task to continue; it keeps the parameters that it was given."""
    context: str
    """The id of the conversation."""


class Client:
    """A client for one agent: `async with Client.connect("https://agent.example") as agent: …`, or
    `agent = await Client.connect(…).open()` and later `await agent.close()`."""

    card: AgentCard
    interface: AgentInterface
    _binding: Binding
    _spans: otel.Spans | None = None
    """The OpenTelemetry spans, if the process uses OpenTelemetry."""
    _resumes = False
    """The agent numbers its events, so a broken stream continues exactly where it stopped."""
    _remembered = False
    """The card is one that an earlier run of the turn has fetched."""

    def __init__(
        self,
        target: str | AgentCard | AgentReference,
        *,
        transport: Transport,
        **options: Unpack[Options],
    ) -> None:
        for name in options:
            if name not in Options.__annotations__:
                raise TypeError(f"a client has no option {name!r}")
        for name in ("trust", "allow", "extensions", "bindings"):
            if isinstance(options.get(name), str):
                raise TypeError(f"{name}: expected a list of strings, not a string")
        self._reference = target if isinstance(target, AgentReference) else None
        self._target = "" if isinstance(target, AgentReference) else target
        self._approved: ApprovedAgent | None = None
        """What the reference has named, once the client is open."""
        self._guard = Guard(
            transport,
            headers=options.get("headers"),
            auth=options.get("auth", ()),
            scopes_for=options.get("scopes_for", ""),
            trust=options.get("trust", ()),
            insecure=options.get("insecure", False),
            allow=options.get("allow", ()),
        )
        self.extensions = self._asked = tuple(options.get("extensions", ()))
        """The extensions that the caller asked for and the agent offers."""
        self._binding_names = [
            name.upper() for name in options.get("bindings", supported_bindings(transport))
        ]
        if (
            "GRPC" in self._binding_names
            and isinstance(transport, HTTPTransport)
            and "GRPC" not in supported_bindings(transport)
        ):
            raise ModuleNotFoundError(f"gRPC is not installed{INSTALL}", name="grpc")
        self._timeout = options.get("timeout", 60.0)
        self._deadline = options.get("deadline")
        self._patience = options.get("patience", 60.0)
        self._attempts = options.get("attempts", 8)
        if self._timeout <= 0 or self._patience <= 0 or self._attempts < 1:
            raise ValueError("timeout, patience and attempts must be greater than 0")
        self._limits = options.get("limits", DEFAULT)
        self._inbox = options.get("inbox")
        self._delegation = options.get("delegation")
        self._open: set[str] = set()
        """Tasks that this client started for a turn and that have not ended."""
        self._good: set[AgentInterface] = set()
        """The interfaces that have given a valid response."""
        trusted = options.get("signed_by")
        self._verifier = None if trusted is None else to_verifier(trusted)
        # An extended card must not be shared, and a cached card may be unsigned or incomplete.
        strict = options.get("strict", False)
        own = options.get("headers") or self._verifier is not None or strict or self._reference
        card_cache = None if own else options.get("card_cache")
        self._cards = Cards(
            self._guard, card_cache, self._verifier, self._guard.confine, strict=strict
        )

    @classmethod
    def connect(
        cls,
        target: str | AgentCard | AgentReference = "",
        *,
        app: Any = None,
        transport: Transport | None = None,
        **options: Unpack[Options],
    ) -> Client:
        """Make a client for the agent at a URL, for a card (its URL, file or object), for an agent
        that a registry names, or for an ASGI application in this process. It does not connect yet.
        The client closes the transport."""
        if app is not None:
            transport = transport or ASGITransport(app)
            target = target or INSIDE
            options = {**options, "trust": [ANYWHERE], "insecure": True}
        if not target:
            raise ValueError("connect: give a URL, a card, or app=…")
        return cls(target, transport=transport or HTTPTransport(), **options)

    async def open(self) -> Client:
        """Fetch the card. `async with` does this, too. Opening an open client has no effect."""
        if "_binding" in vars(self):
            return self
        self._spans = otel.spans()
        try:
            if self._reference is not None:
                await self._resolve(self._reference)
            target = self._target
            if isinstance(target, AgentCard):
                if self._verifier is not None:
                    await self._verifier.verify(target, fetch=self._cards.keys)
                self.card = target
            else:
                where = address(target)
                if where:
                    self._guard.enter(where)
                self.card = await self._first_card(where or target)
            self._choose()
        except BaseException:
            await self._guard.close()
            raise
        return self

    async def close(self) -> None:
        """Close all connections. `async with` does this, too. Closing a closed client has no
        effect."""
        try:
            await self._leave()
        finally:
            vars(self).pop("_binding", None)

    async def __aenter__(self) -> Client:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        if "_binding" in vars(self):
            used = f"{self.interface.protocol_binding} {self.interface.protocol_version}"
            return f"Client({self.card.name!r} at {self.interface.url}, {used})"
        target = self._target if isinstance(self._target, str) else self._target.name
        return f"Client({target or self._reference!r}, not open)"

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name: str) -> NoReturn:
            if name in Client.__annotations__:
                raise RuntimeError(
                    "the client is not open: use `async with Client.connect(…) as client`, or "
                    "`client = await Client.connect(…).open()`"
                )
            raise AttributeError(f"a client has no {name!r}")

    async def _leave(self) -> None:
        if self._open and self._delegation is not None and self._delegation.canceled():
            # Shielded, because a second cancellation may arrive.
            await asyncio.shield(asyncio.ensure_future(self._cancel_all()))
        else:
            await self._guard.close()

    async def _resolve(self, reference: AgentReference) -> None:
        """Find the agent that the reference names. Its card must be signed by an approved key."""
        if (steps := self._steps) is None:
            self._approved = approved = await reference.resolve()
        else:
            self._approved = approved = await known_agent(steps, reference)
        self._target = approved.url
        if approved.keys and self._verifier is None:
            self._cards.verifier = Trust(list(approved.keys.values()))

    async def _first_card(self, target: str) -> AgentCard:
        """The card; that of an earlier run, if the turn on whose behalf this works has one."""
        if (steps := self._steps) is None:
            return await self._fetch_card(target)
        card, self._remembered = await known_card(steps, target, lambda: self._fetch_card(target))
        return card

    async def _renew_card(self) -> None:
        """Fetch the card before the first request, if it is one of an earlier run: the agent may
        have moved. Without a new one, the old one must do."""
        assert isinstance(self._target, str)
        self._remembered = False
        with suppress(*ERRORS):
            self.card = await self._fetch_card(address(self._target) or self._target)
            self._choose()

    async def _fetch_card(self, target: str) -> AgentCard:
        async def once() -> AgentCard:
            async with asyncio.timeout(self._timeout):
                return await self._find(target)

        async with self._limit() as progress:
            try:
                return await self._retry(once, progress)
            except TimeoutError as error:
                if error.args:
                    raise
                raise progress.late(self._timeout) from error

    async def _find(self, target: str) -> AgentCard:
        """Fetch the card. If a reference has named the agent, return the approved card, which the
        agent's own card must not contradict."""
        if (approved := self._approved) is None:
            return await self._cards.find(target)
        try:
            live = await self._cards.find(target)
        except Unverified as error:
            raise changed_keys(approved, error) from None
        check_unchanged(approved, live)
        return approved.card

    def _choose(self) -> None:
        """Pick the agent's first interface that this client supports, and the extensions to use."""
        target = self._target if isinstance(self._target, str) else ""
        usable = interfaces(
            self.card, self._binding_names, plain=address(target).startswith("http://")
        )
        if isinstance(self._target, AgentCard) or not address(self._target):
            self._guard.trust(item.url for item in usable)  # the giver of the card vouches
        self._guard.read(self.card)
        self._usable = self._guard.allowed_interfaces(usable)
        self._use(self._usable[0])
        offered = {item.uri for item in self.card.capabilities.extensions}
        self._resumes = RESUME in offered
        wanted = dict.fromkeys((*self._asked, RESUME))
        self.extensions = tuple(uri for uri in wanted if uri in offered)

    def _use(self, interface: AgentInterface) -> None:
        self.interface = interface
        self._binding = BINDINGS[interface.protocol_binding.upper()](
            self._guard, interface, self._limits
        )

    def _rotate(self, asked: AgentInterface, error: BaseException) -> None:
        """Switch to the next interface if this one does not respond, unless a concurrent call has
        already done so. An interface whose response broke off stays in use."""
        if isinstance(error, NotAllowed):
            if asked in self._usable and len(self._usable) > 1:
                self._usable.remove(asked)
                self._use(self._usable[0])
            return
        silent = isinstance(error, Unreachable | TimeoutError) and not isinstance(error, Broken)
        if asked is self.interface and len(self._usable) > 1 and (silent or self._doubtful(error)):
            place = self._usable.index(asked)
            self._use(self._usable[(place + 1) % len(self._usable)])

    def _answered(self) -> None:
        """Record that the current interface works as the card says."""
        self._good.add(self.interface)

    def _doubtful(self, error: BaseException) -> bool:
        """Whether this interface is at fault and not the request: it has never worked and another
        one has, or its version was a guess."""
        if isinstance(error, NotAllowed):
            return "interface" in vars(self) and len(self._usable) > 1
        if "interface" not in vars(self) or self.interface in self._good:
            return False
        if isinstance(error, TooLarge):
            return False
        wrong = isinstance(error, InvalidAgentResponse | MethodNotFound | InternalError)
        return (wrong and bool(self._good)) or (
            isinstance(error, MethodNotFound | InvalidRequest | VersionNotSupported)
            and not self._good
            and {minor(found.protocol_version) for found in self._usable} == set(UNSAID)
        )

    # -- messages

    async def send(
        self,
        content: Any,
        *,
        task: str = "",
        context: str = "",
        wait: bool = True,
        **options: Unpack[SendOptions],
    ) -> Result:
        """Send a message and wait for the result. With `wait=False`, wait only until the task
        exists."""
        if wait and self._follows(options):
            stream = self.stream(content, task=task, context=context, **options)
            result = await stream._once("send", stream._drain)
            return Result(result.task, result.message)
        request, key, files, name = self._request(content, task, context, wait, **options)

        async def send() -> Result:
            if (known := self._known(name)) is not None:
                self._begun(known.id)
                return Result(await self.task(known.id).get())
            async with self._limit():
                answer = await self._call("send", request, {"idempotency-key": key}, files)
                found: Task | None = answer.task
                if found is not None:
                    self._begun(found.id)
                    self._log_send(name, found.id)
                    if wait and not found.status.state.settled:  # agents may return early
                        found = await self.task(found.id).wait()
                elif answer.message is None:
                    raise InvalidAgentResponse(
                        "the response of SendMessage is neither a task nor a message"
                    )
            return Result(found, answer.message)

        if (steps := self._steps) is None:
            return await send()
        result = await once(steps, "send", name, send, again=send, fetch=self._fetch)
        if result.task is not None and not result.task.status.state.settled:
            self._open.add(result.task.id)
        return result

    def stream(
        self,
        content: Any,
        *,
        task: str = "",
        context: str = "",
        keep: bool = True,
        **options: Unpack[SendOptions],
    ) -> Stream:
        """Send a message and follow its task; the stream reconnects when the connection breaks.
        With `keep=False`, only the events have the content of artifacts, so memory stays bounded.
        """
        request, key, files, name = self._request(content, task, context, True, **options)
        return Stream(self, request, key=key, files=files, keep=keep, name=name)

    @property
    def skills(self) -> Mapping[str, RemoteSkill]:
        """The skills on the card, by id, with the schemas of their parameters and results."""
        return skills.skills(self.card)

    @overload
    async def call_skill(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: type[T],
        options: CallOptions | None = None,
        **named: Any,
    ) -> T: ...
    @overload
    async def call_skill(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: Any = ...,
        options: CallOptions | None = None,
        **named: Any,
    ) -> Any: ...
    async def call_skill(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: Any = UNSET,
        options: CallOptions | None = None,
        **named: Any,
    ) -> Any:
        """Call a skill with arguments, by name or as a mapping, and return its result as the type
        `returns`; without a type, the data or the text. Raises InvalidParams before anything is
        sent, if the arguments do not fit the skill's schema, and SkillNotCompleted if there is no
        result. With `returns=Result`, return the result as `send` does."""
        found = skills.find(self.card, skill)
        given = {**(arguments or {}), **named}
        sending: CallOptions = {**(options or {}), "skill": skill}
        found.check(given, partial=bool(sending.get("task")))
        result = await self.send(found.parts(given), **sending)
        return skills.typed(found, result, returns)

    def task(self, id: str) -> TaskHandle:
        """Return a handle on a task."""
        return TaskHandle(self, id)

    async def list(
        self,
        *,
        context: str = "",
        state: TaskState | None = None,
        since: str | None = None,
        history: int | None = None,
        artifacts: bool | None = None,
        page: int | None = None,
    ) -> AsyncIterator[Task]:
        """Iterate over all matching tasks, newest first; the client fetches page after page."""
        token = ""
        while True:
            request = ListTasksRequest(
                context_id=context,
                status=state,
                status_timestamp_after=since,
                history_length=history,
                include_artifacts=artifacts,
                page_size=page,
                page_token=token,
            )
            answer = await self._call("list", request)
            for found in answer.tasks:
                yield found
            if not answer.next_page_token or answer.next_page_token == token:
                return
            token = answer.next_page_token

    async def extended_card(self) -> AgentCard:
        """Fetch the extended card, which the agent shows to authenticated callers."""
        found = await self._call("extended_card", GetExtendedAgentCardRequest())
        return await self._cards.extended(found, self._address)

    @property
    def _address(self) -> str:
        """The URL of the card; empty if the caller passed a card."""
        return address(self._target) if isinstance(self._target, str) else ""

    # -- for streams and tasks

    @property
    def _joins(self) -> bool:
        """Whether to subscribe to a running task. Before 1.0 the client polls instead: some agents
        send neither the past events nor the end, and some store each chunk again for every
        subscriber."""
        newest = minor(self.interface.protocol_version) == SPOKEN[0]
        return bool(self.card.capabilities.streaming) and (newest or self._resumes)

    @property
    def _until(self) -> float | None:
        """The deadline of a call that starts now, by the monotonic clock."""
        limits = [] if self._deadline is None else [time.monotonic() + self._deadline]
        if self._delegation is not None:
            limits.append(self._delegation.until)
        found = min(limits, default=math.inf)
        return found if math.isfinite(found) else None

    def _limit(self, about: str = "") -> Limit:
        """A block that raises DeadlineExceeded at the deadline. `about` is the id of the task."""
        until = self._until
        seconds = None if until is None else max(until - time.monotonic(), 0)
        return Limit(Progress.of(self), seconds, about)

    @property
    def _where(self) -> str:
        """The origin of the agent, for error messages."""
        if "interface" in vars(self):
            return origin(self.interface.url) or self.interface.url
        return address(self._target) if isinstance(self._target, str) else ""

    def _headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The headers of every request, without credentials."""
        version = minor(self.interface.protocol_version)
        found = {"a2a-version": version, **(more or {})}
        if self.extensions:
            name = "a2a-extensions" if version == SPOKEN[0] else "x-a2a-extensions"
            found[name] = ", ".join(self.extensions)
        logs.carry(found, self._delegation.trace if self._delegation else "")
        return found

    def _span(self, call: str, request: WireStruct) -> AbstractContextManager[Any]:
        """A block that is an OpenTelemetry span, if the process uses OpenTelemetry."""
        if self._spans is None:
            return nullcontext()
        return self._spans.open("CLIENT", BY_CALL[call].name, *self._about(call, request))

    def _about(self, call: str, request: WireStruct) -> tuple[dict[str, str], str]:
        """The attributes of a span, and the trace context of its parent."""
        binding = self.interface.protocol_binding
        about = {
            "a2a.method.name": BY_CALL[call].name,
            "gen_ai.agent.name": self.card.name[: otel.LONGEST],
            "a2a.binding": protocol.label(binding),
            "a2a.protocol.version": self.interface.protocol_version,
            "server.address": urlsplit(self.interface.url).hostname or "",
            **otel.ids(request),
        }
        return about, self._delegation.trace if self._delegation else ""

    async def _call(
        self,
        call: str,
        request: WireStruct,
        headers: Mapping[str, str] | None = None,
        files: Mapping[str, File] | None = None,
    ) -> Any:
        """Call an operation, with retries where a retry is safe."""

        async def attempt() -> Any:
            with self._span(call, request) as span:
                order = Order(
                    call=call, request=request, headers=self._headers(headers), files=files or {}
                )
                async with asyncio.timeout(self._timeout) as limit:
                    before = LIMIT.set(limit)
                    try:
                        answer = await self._binding.call(order)
                    finally:
                        LIMIT.reset(before)
                if span is not None:
                    span.set_attributes(otel.ids(answer))
                return answer

        about = _about(request)
        async with self._limit(about) as progress:
            try:
                if self._remembered:
                    await self._renew_card()
                return await self._retry(attempt, progress, call, about)
            except TimeoutError as error:
                if error.args:
                    raise
                raise progress.late(self._timeout, about) from error

    def _explain(self, error: BaseException, about: str = "") -> None:
        """Add details to an error: see `dragoman.client.error_advice`."""
        target = self._target if isinstance(self._target, str) else ""
        explain(
            error,
            card=self.card,
            found=target and (address(target) or target),
            called=self.interface,
            known=self._guard.has_credentials,
            about=about,
        )

    def _begun(self, task: str) -> None:
        """Record that this client started a task."""
        if self._delegation is not None and task:
            if self._delegation.began is not None and task not in self._open:
                self._delegation.began(self._address or self.interface.url, task)
            self._open.add(task)

    # -- for turns that are run again

    @property
    def _steps(self) -> Steps | None:
        """The steps of the turn, if what the client does now is a step; None otherwise."""
        steps = self._delegation.steps if self._delegation is not None else None
        return None if steps is None or steps.inside else steps

    def _known(self, name: str) -> BegunTask | None:
        """The task that a send has begun in an earlier run of the turn."""
        steps = self._delegation.steps if self._delegation is not None else None
        return steps.begun(name) if steps is not None and name else None

    def _log_send(self, name: str, task: str, question: TaskStatus | None = None) -> None:
        """Tell the turn which task a send has begun. `question` is what the send answers."""
        steps = self._delegation.steps if self._delegation is not None else None
        if steps is not None and name and task:
            asked = question.message.message_id if question and question.message else ""
            answers = None if question is None else (question.timestamp or "", asked)
            steps.begin(name, BegunTask(self._address or self.interface.url, task, answers))

    def _name(self, message: Message, files: Mapping[str, File], key: str) -> str:
        """The name of a send; empty if the turn remembers nothing."""
        steps = self._delegation.steps if self._delegation is not None else None
        if steps is None:
            return ""
        if key:
            return steps.name(f"{self._recipient}\n{key}".encode())
        return steps.name(content_of(self._recipient, message, files))

    @property
    def _recipient(self) -> str:
        """Whom this client calls: the same in each run of a turn."""
        target = self._target
        return target if isinstance(target, str) else target.supported_interfaces[0].url

    async def _fetch(self, task: str) -> Task:
        return await self.task(task).get()

    def _task_settled(self, task: str) -> None:
        """Record that the client followed a task until it ended or asked for input."""
        self._open.discard(task)

    # -- private

    def _follows(self, options: SendOptions) -> bool:
        """Whether to send as a stream, so that the client knows the task's id before the task ends:
        it may have to cancel the task, or name it when the deadline passes. (With agents that do
        not deduplicate, a stream is less reliable than a plain send.)"""
        if self._delegation is not None:
            return True
        streams = self._resumes and bool(self.card.capabilities.streaming)
        return self._deadline is not None and streams and "history" not in options

    def _request(
        self,
        content: Any,
        task: str,
        context: str,
        wait: bool,
        *,
        skill: str = "",
        modes: Sequence[str] = (),
        metadata: dict[str, Any] | None = None,
        history: int | None = None,
        webhook: TaskPushNotificationConfig | str | None = None,
        references: Sequence[str] = (),
        key: str = "",
    ) -> tuple[SendMessageRequest, str, dict[str, File], str]:
        files: dict[str, File] = {}
        own = not isinstance(content, Message)
        message = (
            content
            if isinstance(content, Message)
            else Message(message_id=clock.uuid7(), role=Role.USER, parts=_parts(content, files))
        )
        message = replace(
            message,
            task_id=task or message.task_id,
            context_id=context or message.context_id,
            reference_task_ids=(*message.reference_task_ids, *references),
        )
        if skill:
            message = replace(message, metadata={**(message.metadata or {}), "skill": skill})
        name = ""
        if self._delegation is not None:
            metadata = {**(metadata or {}), **self._delegation.metadata()}
            name = self._name(message, files, key)
            if not key and not files:  # only file names would count
                if name:
                    key = name if own else digest(f"{name}:{message.message_id}".encode())
                else:
                    key = self._delegation.key(replace(message, message_id="") if own else message)
        if key and own:  # the same key means the same message
            message = replace(message, message_id=key)
        request = SendMessageRequest(
            message=message,
            configuration=SendMessageConfiguration(
                accepted_output_modes=tuple(modes),
                history_length=history,
                return_immediately=not wait,
                task_push_notification_config=_webhook(webhook),
            ),
            metadata=metadata,
        )
        return request, key or clock.uuid7(), files, name

    async def _retry(
        self, once: Callable[[], Awaitable[T]], progress: Progress, call: str = "", about: str = ""
    ) -> T:
        """Call `once` until it succeeds or the attempts are used up. Only for calls that may
        repeat."""
        # Fewer attempts for a card whose URL may be mistyped: nobody has seen an agent there.
        known = call or self._approved is not None or self._cards.knows(self._target)
        pauses = Pauses(self._attempts if known else min(self._attempts, FOR_A_CARD))
        while True:
            asked = self.interface if call else None
            try:
                found = await once()
                if call:
                    self._answered()
                progress.error = None
                return found
            except (*PASSING, TimeoutError, A2AError, NotAllowed) as error:
                if call:
                    self._explain(error, about)
                progress.failed(error)
                passing = isinstance(error, (*PASSING, TimeoutError)) and not self._gives_up(
                    call, error
                )
                if not passing and not self._doubtful(error):
                    raise
                if asked is not None:
                    self._rotate(asked, error)
                if not isinstance(error, NotAllowed):  # an address less to try
                    await pauses.after(error)

    def _gives_up(self, call: str, error: BaseException) -> bool:
        """Whether the call must not be repeated."""
        if call == "cancel":  # a second cancel gets a different response
            return isinstance(error, Unreachable | TimeoutError)
        # The agent may just be slow. One that does not deduplicate would start the task again.
        return call == "send" and isinstance(error, TimeoutError) and not self._resumes

    async def _cancel_all(self) -> None:
        """Cancel the tasks that this client started for the turn, and close the connections."""

        async def cancel(task: str) -> None:
            with suppress(A2AError, ConnectionError, TimeoutError):
                async with asyncio.timeout(LAST_WORD):
                    await self._binding.call(
                        Order(
                            call="cancel",
                            request=CancelTaskRequest(id=task),
                            headers=self._headers({"idempotency-key": clock.uuid7()}),
                        )
                    )

        try:
            await asyncio.gather(*(cancel(task) for task in self._open))
        finally:
            await self._guard.close()


def _about(request: WireStruct) -> str:
    """Return the id of the task that a request names; empty if none."""
    if isinstance(request, SendMessageRequest):
        return request.message.task_id
    found = getattr(request, "task_id", "") or getattr(request, "id", "")
    return str(found)


def _webhook(given: Any) -> TaskPushNotificationConfig | None:
    """Return the webhook configuration; a URL alone is enough."""
    if isinstance(given, str):
        return TaskPushNotificationConfig(url=given)
    if given is None or isinstance(given, TaskPushNotificationConfig):
        return given
    kind = type(given).__name__
    raise TypeError(f"webhook: expected a URL or a TaskPushNotificationConfig, got {kind}")


def _parts(content: Any, files: dict[str, File]) -> tuple[Part, ...]:
    """Convert content to parts. Files go to `files`, with a placeholder in the part."""
    items = content if isinstance(content, list | tuple) else [content]
    if not any(isinstance(item, File) for item in items):
        return to_parts.parts(content)
    found: list[Part] = []
    for item in items:
        if isinstance(item, File):
            files[item.sign] = item
            found.append(item.part())
        else:
            found += to_parts.parts(item)
    return tuple(found)
