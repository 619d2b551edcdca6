"""The connection to one agent: its card, the interface in use, and calls of operations with a
deadline and with retries where these are safe."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from dragoman.client.address_rules import NotAllowed
from dragoman.client.approved_card import (
    AgentReference,
    ApprovedAgent,
    changed_keys,
    check_unchanged,
)
from dragoman.client.bindings import BINDINGS, Binding, Order, minor, supported_bindings
from dragoman.client.credentials import LIMIT, Guard
from dragoman.client.deadline import Limit, Progress
from dragoman.client.delegation import current_steps
from dragoman.client.discovery import INSTALL, SPOKEN, Cards, address, interfaces
from dragoman.client.error_advice import explain
from dragoman.client.limits import DEFAULT, TooLarge
from dragoman.client.logged_result import ERRORS, known_agent, known_card
from dragoman.client.options import Options
from dragoman.client.retry_pauses import PASSING, Pauses
from dragoman.client.transport import Broken, Transport, Unreachable, origin
from dragoman.client.trusted_keys import to_verifier
from dragoman.client.upload import File
from dragoman.dialects.v0_3.card import UNSAID
from dragoman.model import protocol
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
from dragoman.model.types import AgentCard, AgentInterface, SendMessageRequest, WireStruct
from dragoman.security.card_signatures import Trust, Unverified
from dragoman.telemetry import logs, otel

T = TypeVar("T")

FOR_A_CARD = 4
"""How often to try to fetch a card, at most."""


class AgentConnection:
    """The connection of a client to one agent. Each method but `open` needs an open connection."""

    card: AgentCard
    interface: AgentInterface
    binding: Binding
    spans: otel.Spans | None = None
    """The OpenTelemetry spans, if the process uses OpenTelemetry."""
    resumes = False
    """The agent numbers its events, so a broken stream continues exactly where it stopped."""
    remembered = False
    """The card is one that an earlier run of the turn has fetched."""

    def __init__(
        self, target: str | AgentCard | AgentReference, transport: Transport, options: Options
    ) -> None:
        for name in options:
            if name not in Options.__annotations__:
                raise TypeError(f"a client has no option {name!r}")
        for name in ("trust", "allow", "extensions", "bindings"):
            if isinstance(options.get(name), str):
                raise TypeError(f"{name}: expected a list of strings, not a string")
        self.reference = target if isinstance(target, AgentReference) else None
        self.target = "" if isinstance(target, AgentReference) else target
        self._approved: ApprovedAgent | None = None
        """What the reference has named, once the client is open."""
        self.guard = Guard(
            transport,
            headers=options.get("headers"),
            auth=options.get("auth", ()),
            scopes_for=options.get("scopes_for", ""),
            trust=options.get("trust", ()),
            insecure=options.get("insecure", False),
            allow=options.get("allow", ()),
        )
        self.answerer = options.get("answer")
        more = () if self.answerer is None else self.answerer.extensions
        self.extensions = self._asked = (*options.get("extensions", ()), *more)
        """The extensions that the caller asked for and the agent offers."""
        self.binding_names = [
            name.upper() for name in options.get("bindings", supported_bindings(transport))
        ]
        if (
            "GRPC" in self.binding_names
            and getattr(transport, "grpc", False)
            and "GRPC" not in supported_bindings(transport)
        ):
            raise ModuleNotFoundError(f"gRPC is not installed{INSTALL}", name="grpc")
        self.timeout = options.get("timeout", 60.0)
        self.deadline = options.get("deadline")
        self.patience = options.get("patience", 60.0)
        self.attempts = options.get("attempts", 8)
        if self.timeout <= 0 or self.patience <= 0 or self.attempts < 1:
            raise ValueError("timeout, patience and attempts must be greater than 0")
        self.limits = options.get("limits", DEFAULT)
        self.delegation = options.get("delegation")
        self._good: set[AgentInterface] = set()
        """The interfaces that have given a valid response."""
        trusted = options.get("signed_by")
        self._verifier = None if trusted is None else to_verifier(trusted)
        # An extended card must not be shared, and a cached card may be unsigned or incomplete.
        strict = options.get("strict", False)
        own = options.get("headers") or self._verifier is not None or strict or self.reference
        card_cache = None if own else options.get("card_cache")
        self.cards = Cards(
            self.guard, card_cache, self._verifier, self.guard.confine, strict=strict
        )

    async def open(self) -> None:
        """Fetch the card. Opening an open connection has no effect."""
        if self.is_open:
            return
        self.spans = otel.spans()
        try:
            if self.reference is not None:
                await self._resolve(self.reference)
            target = self.target
            if isinstance(target, AgentCard):
                if self._verifier is not None:
                    found = await self._verifier.verify(target, fetch=self.cards.keys)
                    self.cards.signed = found is not None
                self.card = target
            else:
                where = address(target)
                if where:
                    self.guard.enter(where)
                self.card = await self._first_card(where or target)
            self.choose()
        except BaseException:
            await self.guard.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether the card was fetched, and the connection not closed since."""
        return "binding" in vars(self)

    async def close(self) -> None:
        """Close the transport. Closing a closed connection has no effect."""
        try:
            await self.guard.close()
        finally:
            vars(self).pop("binding", None)

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name: str) -> NoReturn:
            if name in AgentConnection.__annotations__:
                raise RuntimeError(
                    "the client is not open: use `async with Client.connect(…) as client`, or "
                    "`client = await Client.connect(…).open()`"
                )
            raise AttributeError(f"a client has no {name!r}")

    async def _resolve(self, reference: AgentReference) -> None:
        """Find the agent that the reference names. Its card must be signed by an approved key."""
        if (steps := current_steps(self.delegation)) is None:
            self._approved = approved = await reference.resolve()
        else:
            self._approved = approved = await known_agent(steps, reference)
        self.target = approved.url
        if approved.keys and self._verifier is None:
            self.cards.verifier = Trust(list(approved.keys.values()))

    async def _first_card(self, target: str) -> AgentCard:
        """The card; that of an earlier run, if the turn on whose behalf this works has one."""
        if (steps := current_steps(self.delegation)) is None:
            return await self._fetch_card(target)
        card, self.remembered = await known_card(steps, target, lambda: self._fetch_card(target))
        return card

    async def renew_card(self) -> None:
        """Fetch the card before the first request, if it comes from an earlier run: the agent may
        have moved. Without a new one, the old one must do."""
        assert isinstance(self.target, str)
        self.remembered = False
        with suppress(*ERRORS):
            self.card = await self._fetch_card(address(self.target) or self.target)
            self.choose()

    async def _fetch_card(self, target: str) -> AgentCard:
        async def once() -> AgentCard:
            async with asyncio.timeout(self.timeout):
                return await self._find(target)

        async with self.limit() as progress:
            try:
                return await self._retry(once, progress)
            except TimeoutError as error:
                if error.args:
                    raise
                raise progress.late(self.timeout) from error

    async def _find(self, target: str) -> AgentCard:
        """Fetch the card. If a reference has named the agent, return the approved card, which the
        agent's own card must not contradict."""
        if (approved := self._approved) is None:
            return await self.cards.find(target)
        try:
            live = await self.cards.find(target)
        except Unverified as error:
            raise changed_keys(approved, error) from None
        check_unchanged(approved, live)
        return approved.card

    def choose(self) -> None:
        """Pick the agent's first interface that this client supports, and the extensions to use."""
        target = self.target if isinstance(self.target, str) else ""
        usable = interfaces(
            self.card, self.binding_names, plain=address(target).startswith("http://")
        )
        if isinstance(self.target, AgentCard) or not address(self.target):
            self.guard.trust(item.url for item in usable)  # the giver of the card vouches
        self.guard.read(self.card)
        self.usable = self.guard.allowed_interfaces(usable)
        self.use(self.usable[0])
        offered = {item.uri for item in self.card.capabilities.extensions}
        self.resumes = RESUME in offered
        wanted = dict.fromkeys((*self._asked, RESUME))
        self.extensions = tuple(uri for uri in wanted if uri in offered)

    def use(self, interface: AgentInterface) -> None:
        """Call this interface from now on."""
        self.interface = interface
        self.binding = BINDINGS[interface.protocol_binding.upper()](
            self.guard, interface, self.limits
        )

    def rotate(self, asked: AgentInterface, error: BaseException) -> None:
        """Switch to the next interface if this one does not respond, unless a concurrent call has
        already done so. An interface whose response broke off stays in use."""
        if isinstance(error, NotAllowed):
            if asked in self.usable and len(self.usable) > 1:
                self.usable.remove(asked)
                self.use(self.usable[0])
            return
        silent = isinstance(error, Unreachable | TimeoutError) and not isinstance(error, Broken)
        if asked is self.interface and len(self.usable) > 1 and (silent or self.doubtful(error)):
            place = self.usable.index(asked)
            self.use(self.usable[(place + 1) % len(self.usable)])

    def answered(self) -> None:
        """Record that the current interface works as the card says."""
        self._good.add(self.interface)

    def doubtful(self, error: BaseException) -> bool:
        """Whether this interface is at fault and not the request: it has never worked and another
        one has, or its version was a guess."""
        if isinstance(error, NotAllowed):
            return "interface" in vars(self) and len(self.usable) > 1
        if "interface" not in vars(self) or self.interface in self._good:
            return False
        if isinstance(error, TooLarge):
            return False
        wrong = isinstance(error, InvalidAgentResponse | MethodNotFound | InternalError)
        return (wrong and bool(self._good)) or (
            isinstance(error, MethodNotFound | InvalidRequest | VersionNotSupported)
            and not self._good
            and {minor(found.protocol_version) for found in self.usable} == set(UNSAID)
        )

    # -- where the agent is

    @property
    def card_url(self) -> str:
        """The URL of the card; empty if the caller passed a card."""
        return address(self.target) if isinstance(self.target, str) else ""

    @property
    def verified(self) -> bool:
        """Whether a signature of the card was verified."""
        return self.cards.signed

    @property
    def recipient(self) -> str:
        """Whom this client calls: the same in each run of a turn."""
        target = self.target
        return target if isinstance(target, str) else target.supported_interfaces[0].url

    @property
    def public_address(self) -> str:
        """The address at which others find the agent, too."""
        return self.card_url or self.interface.url

    @property
    def where(self) -> str:
        """The origin of the agent, for error messages."""
        if "interface" in vars(self):
            return origin(self.interface.url) or self.interface.url
        return address(self.target) if isinstance(self.target, str) else ""

    @property
    def joins(self) -> bool:
        """Whether to subscribe to a running task. Before 1.0 the client polls instead: some agents
        send neither the past events nor the end, and some store each chunk again for every
        subscriber."""
        newest = minor(self.interface.protocol_version) == SPOKEN[0]
        return bool(self.card.capabilities.streaming) and (newest or self.resumes)

    # -- calls

    @property
    def until(self) -> float | None:
        """The deadline of a call that starts now, by the monotonic clock."""
        limits = [] if self.deadline is None else [time.monotonic() + self.deadline]
        if self.delegation is not None:
            limits.append(self.delegation.until)
        found = min(limits, default=math.inf)
        return found if math.isfinite(found) else None

    def limit(self, about: str = "") -> Limit:
        """A block that raises DeadlineExceeded at the deadline. `about` is the id of the task."""
        until = self.until
        seconds = None if until is None else max(until - time.monotonic(), 0)
        return Limit(Progress.of(self), seconds, about)

    def headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The headers of every request, without credentials."""
        version = minor(self.interface.protocol_version)
        found = {"a2a-version": version, **(more or {})}
        if self.extensions:
            name = "a2a-extensions" if version == SPOKEN[0] else "x-a2a-extensions"
            found[name] = ", ".join(self.extensions)
        logs.carry(found, self.delegation.trace if self.delegation else "")
        return found

    def _span(self, call: str, request: WireStruct) -> AbstractContextManager[Any]:
        """A block that is an OpenTelemetry span, if the process uses OpenTelemetry."""
        if self.spans is None:
            return nullcontext()
        return self.spans.open("CLIENT", BY_CALL[call].name, *self.about(call, request))

    def about(self, call: str, request: WireStruct) -> tuple[dict[str, str], str]:
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
        return about, self.delegation.trace if self.delegation else ""

    async def call(
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
                    call=call, request=request, headers=self.headers(headers), files=files or {}
                )
                async with asyncio.timeout(self.timeout) as limit:
                    before = LIMIT.set(limit)
                    try:
                        answer = await self.binding.call(order)
                    finally:
                        LIMIT.reset(before)
                if span is not None:
                    span.set_attributes(otel.ids(answer))
                return answer

        about = _task_of(request)
        async with self.limit(about) as progress:
            try:
                if self.remembered:
                    await self.renew_card()
                return await self._retry(attempt, progress, call, about)
            except TimeoutError as error:
                if error.args:
                    raise
                raise progress.late(self.timeout, about) from error

    def explain(self, error: BaseException, about: str = "") -> None:
        """Add details to an error: see `dragoman.client.error_advice`."""
        target = self.target if isinstance(self.target, str) else ""
        explain(
            error,
            card=self.card,
            found=target and (address(target) or target),
            called=self.interface,
            known=self.guard.has_credentials,
            about=about,
        )

    async def _retry(
        self, once: Callable[[], Awaitable[T]], progress: Progress, call: str = "", about: str = ""
    ) -> T:
        """Call `once` until it succeeds or the attempts are used up. Only for calls that may
        repeat."""
        # Fewer attempts for a card whose URL may be mistyped: nobody has seen an agent there.
        known = call or self._approved is not None or self.cards.knows(self.target)
        pauses = Pauses(self.attempts if known else min(self.attempts, FOR_A_CARD))
        while True:
            asked = self.interface if call else None
            try:
                found = await once()
                if call:
                    self.answered()
                progress.error = None
                return found
            except (*PASSING, TimeoutError, A2AError, NotAllowed) as error:
                if call:
                    self.explain(error, about)
                progress.failed(error)
                passing = isinstance(error, (*PASSING, TimeoutError)) and not self._gives_up(
                    call, error
                )
                if not passing and not self.doubtful(error):
                    raise
                if asked is not None:
                    self.rotate(asked, error)
                if not isinstance(error, NotAllowed):  # an address less to try
                    await pauses.after(error)

    def _gives_up(self, call: str, error: BaseException) -> bool:
        """Whether the call must not be repeated."""
        if call == "cancel":  # a second cancel gets a different response
            return isinstance(error, Unreachable | TimeoutError)
        # The agent may just be slow. One that does not deduplicate would start the task again.
        return call == "send" and isinstance(error, TimeoutError) and not self.resumes


def _task_of(request: WireStruct) -> str:
    """Return the id of the task that a request names; empty if none."""
    if isinstance(request, SendMessageRequest):
        return request.message.task_id
    found = getattr(request, "task_id", "") or getattr(request, "id", "")
    return str(found)
