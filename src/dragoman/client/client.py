"""The client: calls an agent, whoever made it.

It finds the card, picks the interface by the agent's order, and speaks. Reads are repeated when the
network fails, and so are sends, which carry the same `messageId` and `Idempotency-Key` each time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, TypeVar, Unpack
from urllib.parse import urlsplit

from msgspec.structs import replace

from dragoman.client.address_rules import NotAllowed
from dragoman.client.binding import BINDINGS, Binding, Order, minor, spoken
from dragoman.client.credentials import ANYWHERE, LIMIT, Auth, Guard
from dragoman.client.deadline import Limit, Progress
from dragoman.client.delegation import Delegation
from dragoman.client.discovery import INSTALL, SPOKEN, CardCache, Cards, address, interfaces
from dragoman.client.error_messages import explain
from dragoman.client.inbox import Inbox
from dragoman.client.limits import DEFAULT, Limits, TooLarge
from dragoman.client.result import Result
from dragoman.client.retry import PASSING, Pauses
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
from dragoman.client.trusted_keys import judge
from dragoman.client.upload import File
from dragoman.dialects.v0_3.card import UNSAID
from dragoman.model import clock, content
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
    WireStruct,
)
from dragoman.security.signing import Keys, Verifier
from dragoman.telemetry import logs, otel

T = TypeVar("T")

LAST_WORD = 3.0
"""How long the agents may take to be told that nobody wants their results."""


class Options(TypedDict, total=False):
    """How a client behaves."""

    headers: Mapping[str, str]
    """Sent with every request, to the agent's origin only."""
    auth: Auth
    """Credentials for the card's security schemes: one, several, or by the scheme's name."""
    trust: Sequence[str]
    """Other origins that may have the headers and credentials; `*` is any."""
    allow: Sequence[str]
    """Hosts and networks that a card from a public address may lead to although they are not
    public, such as `10.0.0.0/8` or `*.intra.example`."""
    insecure: bool
    """Send credentials over plain HTTP, too."""
    extensions: Sequence[str]
    """Extensions to activate where the agent offers them."""
    bindings: Sequence[str]
    """The bindings that may be used."""
    timeout: float
    """How long one attempt at a call may take; 60 s."""
    deadline: float | None
    """How long anything may take in all, with all attempts; then `DeadlineExceeded`."""
    patience: float
    """How long a stream may bring nothing at all before it is taken up again; 60 s."""
    attempts: int
    """How often to try what fails; 8, which takes about ten seconds."""
    limits: Limits
    """How much is taken of the agent: bytes of an answer and of a task, events of a stream."""
    signed_by: Verifier | Keys | None
    """Whose signature the card must have: keys, `Trust`, `TrustedKeys` or `Origins`; by default
    none is needed."""
    strict: bool
    """Refuse a card that lacks a field which the specification requires. Without it, such a card
    is used if the agent can be called by it, and a line in the log names the fields."""
    card_cache: CardCache | None
    """Where clients share the cards that they have found."""
    inbox: Inbox | None
    """Where agents that do not stream can push what is waited for."""
    delegation: Delegation | None
    """The turn that this client works for."""


class SendOptions(TypedDict, total=False):
    """What may go with a message."""

    skill: str
    """The skill to use."""
    modes: Sequence[str]
    """The media types that can be taken."""
    metadata: dict[str, Any]
    """Of the request; a `Message` has its own."""
    history: int
    """The most messages of the history to answer with."""
    webhook: TaskPushNotificationConfig | str
    """Where to push what comes of it: a URL, or more than that."""
    references: Sequence[str]
    """Other tasks that it refers to."""
    key: str
    """The idempotency key, which is the message's id, too; a new one if there is none."""


class Client:
    """An agent to talk to: `async with Client.connect("https://agent.example") as agent: …`, or
    `agent = await Client.connect(…).open()` and, in the end, `await agent.close()`."""

    card: AgentCard
    interface: AgentInterface
    _binding: Binding
    _spans: otel.Spans | None = None
    """Those of OpenTelemetry, where the process uses it."""
    _resumes = False
    """The agent tells places: a broken stream goes on exactly where it was."""

    def __init__(
        self, target: str | AgentCard, *, transport: Transport, **options: Unpack[Options]
    ) -> None:
        for name in options:
            if name not in Options.__annotations__:
                raise TypeError(f"a client has no option {name!r}")
        for name in ("trust", "allow", "extensions", "bindings"):
            if isinstance(options.get(name), str):
                raise TypeError(f"{name}: expected a list of strings, not a string")
        self._target = target
        self._guard = Guard(
            transport,
            headers=options.get("headers"),
            auth=options.get("auth", ()),
            trust=options.get("trust", ()),
            insecure=options.get("insecure", False),
            allow=options.get("allow", ()),
        )
        self.extensions = tuple(options.get("extensions", ()))
        """Those that are asked for and offered."""
        self._spoken = [name.upper() for name in options.get("bindings", spoken(transport))]
        if (
            "GRPC" in self._spoken
            and isinstance(transport, HTTPTransport)
            and "GRPC" not in spoken(transport)
        ):
            raise ModuleNotFoundError(f"gRPC is not installed{INSTALL}", name="grpc")
        self._timeout = options.get("timeout", 60.0)
        self._deadline = options.get("deadline")
        self._patience = options.get("patience", 60.0)
        self._attempts = options.get("attempts", 8)
        if self._timeout <= 0 or self._patience <= 0 or self._attempts < 1:
            raise ValueError("timeout, patience and attempts must be more than nothing")
        self._limits = options.get("limits", DEFAULT)
        self._inbox = options.get("inbox")
        self._delegation = options.get("delegation")
        self._open: set[str] = set()
        """Tasks that were begun here on somebody's behalf, and have not ended."""
        self._good: set[AgentInterface] = set()
        """The interfaces that have answered as they should."""
        trusted = options.get("signed_by")
        self._judge = None if trusted is None else judge(trusted)
        # what one is shown by name is not for all; what others took may be unsigned or incomplete
        strict = options.get("strict", False)
        own = options.get("headers") or self._judge is not None or strict
        card_cache = None if own else options.get("card_cache")
        self._cards = Cards(
            self._guard, card_cache, self._judge, self._guard.confine, strict=strict
        )

    @classmethod
    def connect(
        cls,
        target: str | AgentCard = "",
        *,
        app: Any = None,
        transport: Transport | None = None,
        **options: Unpack[Options],
    ) -> Client:
        """A client of the agent at a URL, of a card (its address, file or object), or of an ASGI
        application in this process. Nothing is dialled yet. The client closes the transport."""
        if app is not None:
            transport = transport or ASGITransport(app)
            target = target or "http://inside"
            options = {**options, "trust": [ANYWHERE], "insecure": True}
        if not target:
            raise ValueError("connect: give a URL, a card, or app=…")
        return cls(target, transport=transport or HTTPTransport(), **options)

    async def open(self) -> Client:
        """Find the card, as at the beginning of a block. An open client stays open."""
        if "_binding" in vars(self):
            return self
        self._spans = otel.spans()
        try:
            target = self._target
            if isinstance(target, AgentCard):
                if self._judge is not None:
                    await self._judge.verify(target, fetch=self._cards.keys)
                self.card = target
            else:
                where = address(target)
                if where:
                    self._guard.enter(where)
                self.card = await self._found(where or target)
            self._choose()
        except BaseException:
            await self._guard.close()
            raise
        return self

    async def close(self) -> None:
        """Close all connections, as at the end of a block. A closed client stays closed."""
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
        return f"Client({target!r}, not open)"

    if not TYPE_CHECKING:  # or a checker would take any name for one of a client

        def __getattr__(self, name: str) -> NoReturn:
            if name in Client.__annotations__:
                raise RuntimeError(
                    "the client is not open: use `async with Client.connect(…) as client`, or "
                    "`client = await Client.connect(…).open()`"
                )
            raise AttributeError(f"a client has no {name!r}")

    async def _leave(self) -> None:
        if self._open and self._delegation is not None and self._delegation.canceled():
            # shielded: whoever cancelled us once may do so again
            await asyncio.shield(asyncio.ensure_future(self._cancel_all()))
        else:
            await self._guard.close()

    async def _found(self, target: str) -> AgentCard:
        async def once() -> AgentCard:
            async with asyncio.timeout(self._timeout):
                return await self._cards.find(target)

        async with self._limit() as progress:
            try:
                return await self._repeat(once, progress)
            except TimeoutError as error:
                if error.args:
                    raise
                raise progress.late(self._timeout) from error

    def _choose(self) -> None:
        """Take the agent's first interface that is spoken here, and our extension if it has it."""
        target = self._target if isinstance(self._target, str) else ""
        usable = interfaces(self.card, self._spoken, plain=address(target).startswith("http://"))
        if isinstance(self._target, AgentCard) or not address(self._target):
            self._guard.trust(item.url for item in usable)  # whoever gave the card vouches for it
        self._guard.read(self.card)
        self._usable = self._guard.admitted(usable)
        self._use(self._usable[0])
        offered = {item.uri for item in self.card.capabilities.extensions}
        self._resumes = RESUME in offered
        wanted = dict.fromkeys((*self.extensions, RESUME))
        self.extensions = tuple(uri for uri in wanted if uri in offered)

    def _use(self, interface: AgentInterface) -> None:
        self.interface = interface
        self._binding = BINDINGS[interface.protocol_binding.upper()](
            self._guard, interface, self._limits
        )

    def _rotate(self, asked: AgentInterface, error: BaseException) -> None:
        """Use the next interface if this one does not answer; unless another call, which failed at
        the same time, has done so. One whose answer merely broke off is good enough."""
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
        """The interface in use is what the card says of it."""
        self._good.add(self.interface)

    def _doubtful(self, error: BaseException) -> bool:
        """Whether it is this interface that is wrong, and not what was asked: another one is good,
        and this one has never been; or its version was only guessed."""
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
        said: Any,
        *,
        task: str = "",
        context: str = "",
        wait: bool = True,
        **saying: Unpack[SendOptions],
    ) -> Result:
        """Send a message and wait for its answer; `wait=False` only until the task exists."""
        if wait and self._follows(saying):
            async with self.stream(said, task=task, context=context, **saying) as stream:
                async for _ in stream:
                    pass
            return Result(stream.task, stream.result.message)
        request, key, files = self._request(said, task, context, wait, **saying)
        async with self._limit():
            answer = await self._call("send", request, {"idempotency-key": key}, files)
            found: Task | None = answer.task
            if found is not None:
                self._begun(found.id)
                if wait and not found.status.state.settled:  # not every agent waits, nor for ever
                    found = await self.task(found.id).wait()
            elif answer.message is None:
                raise InvalidAgentResponse(
                    "the response of SendMessage is neither a task nor a message"
                )
        return Result(found, answer.message)

    def stream(
        self,
        said: Any,
        *,
        task: str = "",
        context: str = "",
        keep: bool = True,
        **saying: Unpack[SendOptions],
    ) -> Stream:
        """Send a message and follow what comes of it, over broken connections. Without `keep` the
        content of artifacts is in the events only, so that memory stays bounded."""
        request, key, files = self._request(said, task, context, True, **saying)
        return Stream(self, request, key=key, files=files, keep=keep)

    def task(self, id: str) -> TaskHandle:
        """A handle on a task."""
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
        """All tasks that fit, the latest first, page by page."""
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
        """The card for those who are known to the agent."""
        found = await self._call("extended_card", GetExtendedAgentCardRequest())
        return await self._cards.extended(found, self._address)

    @property
    def _address(self) -> str:
        """Where the card was found; empty if it was given."""
        return address(self._target) if isinstance(self._target, str) else ""

    # -- for streams and tasks

    @property
    def _joins(self) -> bool:
        """Whether to listen to a task that is under way. Before 1.0 it is only looked at: some
        agents tell neither what there was nor that it ends, and some keep each chunk once more
        for every one who listens."""
        newest = minor(self.interface.protocol_version) == SPOKEN[0]
        return bool(self.card.capabilities.streaming) and (newest or self._resumes)

    @property
    def _until(self) -> float | None:
        """When what begins now must have ended, by the monotonic clock."""
        limits = [] if self._deadline is None else [time.monotonic() + self._deadline]
        if self._delegation is not None:
            limits.append(self._delegation.until)
        found = min(limits, default=math.inf)
        return found if math.isfinite(found) else None

    def _limit(self, about: str = "") -> Limit:
        """A block that ends with DeadlineExceeded when what begins now must have ended. `about` is
        the task that is asked for."""
        until = self._until
        seconds = None if until is None else max(until - time.monotonic(), 0)
        return Limit(Progress.of(self), seconds, about)

    @property
    def _where(self) -> str:
        """The origin that is called, for people."""
        if "interface" in vars(self):
            return origin(self.interface.url) or self.interface.url
        return address(self._target) if isinstance(self._target, str) else ""

    def _headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """What every request carries, beside what is secret."""
        version = minor(self.interface.protocol_version)
        found = {"a2a-version": version, **(more or {})}
        if self.extensions:
            name = "a2a-extensions" if version == SPOKEN[0] else "x-a2a-extensions"
            found[name] = ", ".join(self.extensions)
        logs.carry(found, self._delegation.trace if self._delegation else "")
        return found

    def _span(self, call: str, request: WireStruct) -> AbstractContextManager[Any]:
        """A block that is a span of OpenTelemetry, where the process uses it."""
        if self._spans is None:
            return nullcontext()
        return self._spans.open("CLIENT", BY_CALL[call].name, *self._about(call, request))

    def _about(self, call: str, request: WireStruct) -> tuple[dict[str, str], str]:
        """What such a span says, and the trace that the work came with."""
        binding = self.interface.protocol_binding
        about = {
            "a2a.method.name": BY_CALL[call].name,
            "gen_ai.agent.name": self.card.name[: otel.LONGEST],
            "a2a.binding": otel.BINDINGS.get(binding, binding),
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
        """Ask for an operation, as often as it takes and may be done."""

        async def once() -> Any:
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
                return await self._repeat(once, progress, call, about)
            except TimeoutError as error:
                if error.args:
                    raise
                raise progress.late(self._timeout, about) from error

    def _explain(self, error: BaseException, about: str = "") -> None:
        """Say more in an error of a call: see `dragoman.client.error_messages`."""
        target = self._target if isinstance(self._target, str) else ""
        explain(
            error,
            card=self.card,
            found=target and (address(target) or target),
            called=self.interface,
            known=self._guard.carries,
            about=about,
        )

    def _begun(self, task: str) -> None:
        """A task was begun here."""
        if self._delegation is not None and task:
            self._open.add(task)

    def _settled(self, task: str) -> None:
        """It was followed to where it ends or asks."""
        self._open.discard(task)

    # -- inside

    def _follows(self, saying: SendOptions) -> bool:
        """Whether to follow a send as a stream, so that its task is known before it has ended: it
        may have to be ended, or named when the time is over. (Of agents that keep no receipts, a
        stream is not as sure as an answer.)"""
        if self._delegation is not None:
            return True
        streams = self._resumes and bool(self.card.capabilities.streaming)
        return self._deadline is not None and streams and "history" not in saying

    def _request(
        self,
        said: Any,
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
    ) -> tuple[SendMessageRequest, str, dict[str, File]]:
        files: dict[str, File] = {}
        own = not isinstance(said, Message)
        message = (
            said
            if isinstance(said, Message)
            else Message(message_id=clock.uuid7(), role=Role.USER, parts=_parts(said, files))
        )
        message = replace(
            message,
            task_id=task or message.task_id,
            context_id=context or message.context_id,
            reference_task_ids=(*message.reference_task_ids, *references),
        )
        if skill:
            message = replace(message, metadata={**(message.metadata or {}), "skill": skill})
        if self._delegation is not None:
            metadata = {**(metadata or {}), **self._delegation.told()}
            if not key and not files:  # of files, only the names would count
                key = self._delegation.key(replace(message, message_id="") if own else message)
        if key and own:  # the same key, the same message
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
        return request, key or clock.uuid7(), files

    async def _repeat(
        self, once: Callable[[], Awaitable[T]], progress: Progress, call: str = "", about: str = ""
    ) -> T:
        """Try until it succeeds, or has failed too often; only for what may be done twice."""
        # whoever asks for a card may have mistyped its address
        pauses = Pauses(self._attempts if call else min(self._attempts, 4))
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
                passing = isinstance(error, (*PASSING, TimeoutError)) and not self._once(
                    call, error
                )
                if not passing and not self._doubtful(error):
                    raise
                if asked is not None:
                    self._rotate(asked, error)
                if not isinstance(error, NotAllowed):  # there is one less to be tried
                    await pauses.after(error)

    def _once(self, call: str, error: BaseException) -> bool:
        """Whether to leave it at that."""
        if call == "cancel":  # done twice, it is answered otherwise
            return isinstance(error, Unreachable | TimeoutError)
        # An agent may simply take long. One that keeps no receipts would begin again.
        return call == "send" and isinstance(error, TimeoutError) and not self._resumes

    async def _cancel_all(self) -> None:
        """Nobody wants the results any more: say so, and close."""

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
    """The task that a request names; empty if it names none."""
    if isinstance(request, SendMessageRequest):
        return request.message.task_id
    found = getattr(request, "task_id", "") or getattr(request, "id", "")
    return str(found)


def _webhook(given: Any) -> TaskPushNotificationConfig | None:
    """Where to push: a URL alone will do."""
    if isinstance(given, str):
        return TaskPushNotificationConfig(url=given)
    if given is None or isinstance(given, TaskPushNotificationConfig):
        return given
    kind = type(given).__name__
    raise TypeError(f"webhook: expected a URL or a TaskPushNotificationConfig, got {kind}")


def _parts(said: Any, files: dict[str, File]) -> tuple[Part, ...]:
    """What was said as parts; files are noted, and a sign stands for each."""
    items = said if isinstance(said, list | tuple) else [said]
    if not any(isinstance(item, File) for item in items):
        return content.parts(said)
    found: list[Part] = []
    for item in items:
        if isinstance(item, File):
            files[item.sign] = item
            found.append(item.part())
        else:
            found += content.parts(item)
    return tuple(found)
