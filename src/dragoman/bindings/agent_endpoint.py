"""One agent as the bindings see it: authenticates callers, applies limits, runs operations and
writes the card."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from dragoman.bindings.authentication import Authentication, outcome
from dragoman.bindings.card_interfaces import GRPC, JSONRPC, REST, Listed, listed
from dragoman.bindings.card_signing import EXAMPLE, CardSigner
from dragoman.bindings.http_request import HTTPRequest, RequestInfo
from dragoman.bindings.instrumentation import Instrumentation, Run
from dragoman.bindings.request_body import BodyReader
from dragoman.bindings.sse import Streams, current
from dragoman.dialects import versions
from dragoman.model.approvals import approval_in
from dragoman.model.caller import Call, Caller, unqualified
from dragoman.model.errors import (
    A2AError,
    Forbidden,
    InvalidParams,
    Misdirected,
    TaskNotFound,
    Unauthenticated,
)
from dragoman.model.operations import Operation
from dragoman.model.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    WireStruct,
)
from dragoman.security.card_keys import CardKey
from dragoman.server.service import Service
from dragoman.server.settings import Settings
from dragoman.telemetry.metrics import Metrics
from dragoman.telemetry.otel import Spans

Writing = Callable[[AgentCard, Sequence[CardKey], str], bytes]
"""Encodes a card, signed with these keys; the URL is that of the public key set."""

ANONYMOUS = {version: Call(Caller(version=version)) for version in versions.SUPPORTED}
"""The calls of anonymous callers, by protocol version."""
PARTICULARS = frozenset(
    (
        *(b"a2a-extensions", b"x-a2a-extensions"),
        *(b"idempotency-key", b"last-event-id", b"traceparent"),
    )
)
"""Headers that change a call. Without them all anonymous calls are equal."""
AUDITED = frozenset(("cancel", "create_webhook", "delete_webhook", "extended_card"))
"""Operations that the audit log always records. Of other operations it records refusals, and
requests for tasks that do not exist or belong to another caller."""
CARDS = 64
LONGEST_KEY = 256
LONGEST_TASK = 128
"""The maximum number of characters of a task id in an audit line."""


class Endpoint:
    """A service, and what all bindings need to serve it."""

    def __init__(
        self,
        service: Service,
        settings: Settings,
        streams: Streams,
        bodies: BodyReader,
        access: Authentication,
    ) -> None:
        self.service = service
        self.settings = settings
        self.streams = streams
        self.bodies = bodies
        self.access = access
        self.identify = access.identify
        self.authenticator = access.authenticator
        self.hosts = access.hosts
        self.limits = access.limits
        self.prefix = access.prefix
        """The agent's path below the application, if several agents share it."""
        self.caller = access.caller
        self.known = access.known
        self.url = access.url
        self.grpc = 0
        """The gRPC port while it is open, else 0."""
        self._listed = listed(settings.bindings)
        paths = {each.binding: each.path for each in self._listed if each.path}
        self._rpc, self._rest = paths.get(JSONRPC, "/").rstrip("/"), paths.get(REST, "")
        self.lists_grpc = any(each.binding == GRPC for each in self._listed)
        self.moved = bool(paths)
        """Whether the settings give a binding another path; see `path`."""
        self.signer = CardSigner((), settings)
        self._run: Run = self._audited if settings.audit else self._operate
        self._observer: Instrumentation | None = None
        self._open = self.identify is None and self.limits is None and not service.required
        self._cards: dict[tuple[str, Writing], tuple[bytes, bytes]] = {}

    def observe(self, metrics: Metrics | None, spans: Spans | None) -> None:
        """Record operations in these metrics and spans, and in the access log if it is on."""
        self._run = self._audited if self.settings.audit else self._operate
        self._observer = None
        if metrics is not None or spans is not None or self.settings.access_log:
            self._observer = Instrumentation(self.service.agent, self._run, metrics, spans)
            self._run = self._observer.run

    def refused(self, error: Exception, incoming: RequestInfo) -> None:
        """Record a request that failed."""
        if self._observer is not None:
            self._observer.refused(error, incoming)
        if isinstance(error, AuditedTaskNotFound):
            self.access.note(error.event, incoming, error.reason, error.caller, **error.about)

    def note_refusal(self, event: str, incoming: RequestInfo, error: A2AError) -> None:
        """Write to the audit log a request that was refused before its caller was known."""
        if self.settings.audit:
            self.access.note(event, incoming, error.reason)

    async def sign(self, keys: Sequence[CardKey]) -> None:
        """Sign the card with these keys from now on. Raises ValueError if they cannot sign it."""
        signer = CardSigner(keys, self.settings)
        await signer.check(self._card(EXAMPLE))
        self.signer = signer
        self._cards.clear()

    def plain(self, incoming: RequestInfo) -> bool:
        """Whether the call equals every other anonymous call of its version."""
        return self._open and PARTICULARS.isdisjoint(incoming.headers) and incoming.caller is None

    def call(self, incoming: RequestInfo, caller: Caller, version: str) -> Call:
        """Build the call from the caller and the headers. Raises A2AError if a header is wrong or
        a required extension is missing."""
        names = incoming.every(b"a2a-extensions") or incoming.every(b"x-a2a-extensions")
        active = self.service.negotiate([uri for text in names.split(",") if (uri := text.strip())])
        if active or version != caller.version:
            caller = replace(caller, extensions=active, version=version)
        key = incoming.header(b"idempotency-key")
        if len(key) > LONGEST_KEY:
            raise InvalidParams.at("Idempotency-Key", f"is longer than {LONGEST_KEY} characters")
        trace = incoming.header(b"traceparent")
        return Call(
            caller,
            key,
            incoming.header(b"last-event-id"),
            trace if len(trace) <= LONGEST_KEY and trace.isascii() else "",
            operator=incoming.operator,
        )

    def may_stream(self, call: Call, incoming: RequestInfo) -> None:
        """Raise LimitExceeded if the caller has too many open streams, and Unauthenticated if its
        credential has expired. `identify` may allow a leeway, but a stream would end at once."""
        try:
            current(call.caller.expires)
        except Unauthenticated as error:
            self.access.challenge(error, incoming)
            raise
        self.streams.check(call.caller.owner)

    def operate(
        self, operation: Operation, request: WireStruct, call: Call, incoming: RequestInfo
    ) -> Awaitable[Any]:
        """Run an operation and return its answer, or the stream that it opened."""
        if call.operator is not None:
            return self._operated(operation, request, call, incoming)
        if self.authenticator is not None and self.authenticator.tokens:
            return self._challenged(self._run(operation, request, call, incoming), incoming)
        return self._run(operation, request, call, incoming)

    async def _challenged(self, answer: Awaitable[Any], incoming: RequestInfo) -> Any:
        """Await the answer; if the caller lacks a scope, the error says how to get it."""
        try:
            return await answer
        except Forbidden as error:
            self.access.challenge(error, incoming)
            raise

    def _operate(
        self, operation: Operation, request: WireStruct, call: Call, incoming: RequestInfo
    ) -> Awaitable[Any]:
        if operation.call == "extended_card":
            return self._extended(request, call, incoming)  # type: ignore[arg-type]
        answer: Awaitable[Any] = getattr(self.service, operation.call)(request, call)
        return answer

    async def _extended(
        self, request: GetExtendedAgentCardRequest, call: Call, incoming: RequestInfo
    ) -> AgentCard:
        card = await self.service.extended_card(request, call, self.card(incoming))
        # the signature is over the 1.0 form, which older callers do not get
        if call.caller.version != "1.0":
            return card
        self.check_host(incoming)
        return await self.signer.signed(card, self.url(incoming))

    async def _audited(
        self, operation: Operation, request: WireStruct, call: Call, incoming: RequestInfo
    ) -> Any:
        """Run an operation, and write it to the audit log if it belongs there."""
        event, about = operation.call, _about(request)
        if about.get("target"):
            event = "create_webhook"  # a message can create a webhook, too
        result, recorded = "interrupted", event in AUDITED
        try:
            answering = self._operate(operation, request, call, incoming)
            del request  # it may be large, so free it before the wait
            answer = await answering
            result = "ok"
            return answer
        except TaskNotFound as error:
            # a binding may try another version; `refused` records only the last attempt
            recorded = False
            raise AuditedTaskNotFound(error, event, call.caller, about) from error
        except Exception as error:
            result = outcome(error)
            recorded = recorded or isinstance(error, Unauthenticated | Forbidden)
            raise
        finally:
            if recorded:
                self.access.note(event, incoming, result, call.caller, **about)

    async def _operated(
        self, operation: Operation, request: WireStruct, call: Call, incoming: RequestInfo
    ) -> Any:
        """Run an operation of an operator, and write it to the audit log, whatever the settings
        say, if it is about a task."""
        about = _about(request)
        if isinstance(request, SendMessageRequest):
            said = approval_in(request.metadata) or approval_in(request.message.metadata)
            if said is not None:
                about["decision"] = "approved" if said.approved else "declined"
        result = "interrupted"
        try:
            answer = await self._run(operation, request, call, incoming)
            result = "ok"
            return answer
        except Exception as error:
            result = outcome(error)
            raise
        finally:
            scope = call.operator.scope if call.operator is not None else None
            if about.get("task"):
                if scope is not None:
                    realm, owner = unqualified(scope.owner)
                    about |= {"owner": owner, "owner_realm": realm, "owner_tenant": scope.tenant}
                event = f"operator.{operation.call}"
                self.access.note(event, incoming, result, call.caller, **about)

    def card(self, incoming: RequestInfo) -> AgentCard:
        """Return the public card with the address that the caller used."""
        return self._card(self.url(incoming))

    def _card(self, url: str) -> AgentCard:
        card = self.service.agent.card(
            url,
            push=self.settings.push,
            addresses={each.binding: self._address(each, url) for each in self._listed},
            versions=self.settings.versions,
        )
        return self._declared(card)

    def _declared(self, card: AgentCard) -> AgentCard:
        """Add the security schemes in force to the card."""
        if self.authenticator is None:
            return card
        skills = self.service.agent.skills.items()
        return self.authenticator.declared(card, {key: skill.scopes for key, skill in skills})

    def _address(self, listed: Listed, url: str) -> str:
        """Return the address of a binding on a card for this URL."""
        if listed.binding == GRPC:
            if listed.address:
                return listed.address
            host = urlsplit(url).hostname or self.settings.host
            port = self.grpc or self.settings.grpc_port
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        # JSON-RPC needs the slash at the end: without it, a mounted application would redirect, and
        # a redirect drops the POST. HTTP+JSON clients append paths, so its address has no slash.
        return url + (listed.path or ("/" if listed.binding == JSONRPC else ""))

    def path(self, path: str) -> str:
        """Return the path of a request without the part that the setting `bindings` adds."""
        if path.rstrip("/") == self._rpc:
            return "/"
        if self._rest and path.startswith(f"{self._rest}/"):
            return path[len(self._rest) :]
        return path

    async def card_bytes(self, incoming: RequestInfo, form: Writing) -> tuple[bytes, bytes]:
        """Return the public card encoded in this form, and its ETag. Raises Misdirected if the card
        is signed, but not for the host that the request names."""
        self.check_host(incoming)
        url, signer = self.url(incoming), self.signer
        key = f"{self.grpc} {self.service.agent.revision} {url}", form
        known = self._cards.get(key)
        if known is None:
            card = self.card(incoming)

            def write() -> bytes:
                done = self._cards.get(key)  # another request may have made it meanwhile
                return done[0] if done else form(card, signer.keys, signer.jku(url))

            body = await signer.make(write)
            known = body, b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
            if len(self._cards) >= CARDS:  # callers can name any number of hosts
                self._cards.clear()
            self._cards[key] = known
        return known

    def check_host(self, incoming: RequestInfo) -> None:
        """Raise Misdirected if the card is signed and the request names a host that is not this
        server's."""
        if not self.signer.keys or not isinstance(incoming, HTTPRequest):
            return  # a gRPC request names no host
        if incoming.caller is not None:
            return  # code of this process may name any host
        if not self.hosts.signs(urlsplit(self.access.reached(incoming)).hostname or ""):
            raise Misdirected(
                "The card is signed, and not for this host; the server's `url` or `trusted_hosts`"
                " says for which"
            )


class AuditedTaskNotFound(TaskNotFound):
    """A TaskNotFound with the fields of its audit line."""

    def __init__(
        self, error: TaskNotFound, event: str, caller: Caller, about: dict[str, str]
    ) -> None:
        super().__init__(
            error.message,
            violations=error.violations,
            metadata=error.metadata,
            headers=error.headers,
        )
        self.event, self.caller, self.about = event, caller, about


def _about(request: WireStruct) -> dict[str, str]:
    """Return the audit fields that the request names: task, webhook, its host, tenant."""
    task = ""
    config: TaskPushNotificationConfig | None = None
    match request:
        case TaskPushNotificationConfig():
            task, config = request.task_id, request
        case (
            GetTaskPushNotificationConfigRequest()
            | ListTaskPushNotificationConfigsRequest()
            | DeleteTaskPushNotificationConfigRequest()
        ):
            task = request.task_id
        case GetTaskRequest() | SubscribeToTaskRequest() | CancelTaskRequest():
            task = request.id
        case SendMessageRequest():
            task = request.message.task_id
            if request.configuration is not None:
                config = request.configuration.task_push_notification_config
    found = {"task": task[:LONGEST_TASK], "asked": getattr(request, "tenant", "")}
    if isinstance(request, DeleteTaskPushNotificationConfigRequest):
        found["webhook"] = request.id
    if config:
        found |= {"webhook": config.id, "target": _site(config.url)}
    return found


def _site(url: str) -> str:
    """Return the scheme and host of a URL; the rest of it may contain a secret."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname}"
    except ValueError:
        return "?"
