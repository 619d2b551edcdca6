"""Delivers webhooks. Each webhook reads one log and has a durable cursor.

The sender claims a webhook from the store for some time, posts its next entries one by one, and
moves the cursor after each. A failed delivery is retried later, by a schedule that spans days.
After too many failures the webhook is parked until an operator redrives it. None of this delays the
task.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from dragoman._version import __version__
from dragoman.bells.bell import Bell
from dragoman.dialects import v1_0, versions
from dragoman.model.errors import Unavailable
from dragoman.model.events import Received
from dragoman.model.types import TaskStatusUpdateEvent
from dragoman.security.address_policy import EgressRefused
from dragoman.security.egress import Busy, Egress, EgressResponse, EgressUnreachable, Slot
from dragoman.server.reader import History
from dragoman.server.settings import Settings
from dragoman.stores.store import Owner, Store, Unreadable, WebhookCursor, owner_of
from dragoman.telemetry.logs import carry, logger
from dragoman.telemetry.metrics import Metrics
from dragoman.telemetry.otel import About, Spans
from dragoman.webhooks import signature

if TYPE_CHECKING:
    from opentelemetry.trace import Span

BATCH = 64
LOOK = 256
"""The most webhooks to claim at once: appends to logs wait for as long."""
TAKEN = 1024
"""The most webhooks that this process holds at once. Most of them may wait for their host."""
RATE = 1024 * 1024
"""The most bytes of whole tasks per second for one webhook: the next delivery waits according to
the size of the last ones."""
FEW = 8
"""A webhook with more pending statuses to post as whole tasks is behind: it gets only the last
one."""
SMALL = 256 * 1024
"""The same for one whose tasks have more bytes in total."""
SHORT = 512
"""The same for one whose log has more entries: each task would have to be folded from the start."""
READS = 64
"""The most reads of a log for one whole task."""
LONGEST = 24 * 3600.0
"""The most seconds that a receiver can ask to wait."""
TRACES = 1024
"""The most messages whose trace is remembered."""
TOPIC = "push:"


class Failure(Struct, frozen=True):
    """Why a delivery failed."""

    reason: str
    kind: str
    """A short form: the HTTP status or the kind of error."""
    final: bool = False
    """A retry is useless."""
    after: float = 0.0
    """The `Retry-After` of the receiver, in seconds."""


class Delivery(Struct, frozen=True):
    """The request for one entry of a log; the entry may need none."""

    number: int
    body: bytes = b""
    turn: int = 0
    """The message that the entry's writer was processing; 0 if no turn wrote it."""
    context: str = ""


class WebhookSender:
    """Delivers the webhooks of some agents. `run` it until canceled."""

    def __init__(
        self,
        agents: Collection[str],
        store: Store,
        bell: Bell,
        settings: Settings,
        egress: Egress,
        *,
        metrics: Metrics | None = None,
        spans: Spans | None = None,
        names: Mapping[str, str] = {},
    ) -> None:
        """`names` maps the agents' keys to their names, for spans."""
        self.agents = agents
        self.metrics = metrics
        self.spans = spans
        self.names = names
        self.store = store
        self.bell = bell
        self.settings = settings
        self.egress = egress
        self.keys = keys(settings)
        # Longer than a wait or a delivery can take, so that a webhook is never claimed twice.
        self.lease = 2 * egress.timeout + settings.lease
        self._held = 0
        self._hosts: Counter[str] = Counter()
        self._owners: Counter[Owner] = Counter()
        self._accepted_at: dict[str, float] = {}
        """When each host last accepted a delivery."""
        self._wake: Callable[[], None] = lambda: None
        self._traces: dict[tuple[str, int], str] = {}
        """The `traceparent` of messages, by task and number."""

    async def run(self) -> None:
        """Deliver forever. If the store fails, try again later."""
        with self.bell.listeners.listen(*(f"{TOPIC}{key}" for key in self.agents)) as listener:
            self._wake = listener.wake
            async with asyncio.TaskGroup() as group:
                while True:
                    try:
                        more = await self._claim_due(group)
                    except Unavailable as error:
                        more = False
                        logger.error("processing of webhooks failed; retrying: %s", error)
                    except Exception:
                        more = False
                        logger.exception("processing of webhooks failed; retrying")
                    if not more:
                        await listener.wait(min(self.settings.poll, 4.0))

    async def _claim_due(self, group: asyncio.TaskGroup) -> bool:
        """Claim due webhooks, as far as there is room. Return whether there may be more."""
        # At most half of the free places for an owner and for a host, so that others find some.
        room = min(LOOK, (TAKEN - self._held + 1) // 2)
        if room <= 0:
            return False
        full = {owner for owner, held in self._owners.items() if held > (TAKEN - self._held) // 2}
        lines = await self.store.dispatch(self.agents, room, self.lease, full)
        back: list[tuple[WebhookCursor, str]] = []
        for line in lines:
            host, owner = self._host(line), owner_of(line.scope)
            most = (TAKEN - self._held) // 2
            if self._hosts[host] >= max(self.egress.per_host, most) or owner in full:
                back.append((line, host))
                continue
            self._hosts[host] += 1
            self._owners[owner] += 1
            self._held += 1
            self._accepted_at.setdefault(host, time.monotonic())
            # A fresh context: the spans that are open now do not belong to a delivery.
            task = group.create_task(self._deliver(line, host), context=Context())
            task.add_done_callback(partial(self._left, host, owner))
        # Together, so that they share a commit.
        await asyncio.gather(*(self._put_back(line, line.cursor, host) for line, host in back))
        return bool(lines) and (bool(full) or len(lines) >= room // 2)

    def _host(self, line: WebhookCursor) -> str:
        try:
            return self.egress.admit(line.webhook.config.url).host
        except EgressRefused:
            return ""

    def _left(self, host: str, owner: Owner, _: asyncio.Task[None]) -> None:
        self._held -= 1
        self._owners[owner] -= 1
        if not self._owners[owner]:
            del self._owners[owner]
        self._hosts[host] -= 1
        if not self._hosts[host]:
            del self._hosts[host], self._accepted_at[host]
        self._wake()

    async def _put_back(self, line: WebhookCursor, cursor: int, host: str) -> None:
        """Put back a webhook that was not tried, for as long as its host has accepted nothing: many
        webhooks of a hanging host must not be claimed again and again."""
        silent = time.monotonic() - self._accepted_at.get(host, math.inf)
        with _recording(line):
            wait = min(max(silent, self.settings.poll), self.lease)
            await self.store.dispatched(line, cursor, wait=wait)

    # -- one webhook

    async def _deliver(self, line: WebhookCursor, host: str) -> None:
        """Post the pending entries of a webhook, or a batch of them, until one fails."""
        cursor, sent = line.cursor, 0
        try:
            async with self.egress.place(host, owner_of(line.scope)) as place:
                if place.waited and not await self.store.dispatched(line, cursor, wait=self.lease):
                    return  # deleted in the meantime
                # One batch: an endless log must not keep the place for itself.
                events = versions.BY_NAME[line.webhook.version].pushes_events
                for item in await (self._events if events else self._tasks)(line):
                    body = item.body
                    attempt = line.attempts + 1 if cursor == line.cursor else 1
                    if body and (failure := await self._post(line, item, attempt, place)):
                        await self._failed(line, cursor, failure)
                        return
                    if body:
                        self._count(line, "delivered")
                        sent += len(body)
                    cursor = item.number
                    self._accepted_at[host] = time.monotonic()
                    if body and not await self.store.dispatched(line, cursor, wait=self.lease):
                        return  # deleted, or claimed by another
                wait = 0.0 if events else sent / RATE
                await self.store.dispatched(line, cursor, wait=wait)
                if wait:
                    asyncio.get_running_loop().call_later(wait, self._wake)
        except asyncio.CancelledError:
            with _recording(line):
                await asyncio.shield(self.store.dispatched(line, cursor))
            raise
        except Busy:
            await self._put_back(line, cursor, host)
        except Unavailable as error:
            logger.error("webhook %s: %s", line.webhook.config.id, error)  # its lease expires
        except Unreadable as error:  # a retry could not read more
            with _recording(line):
                await self._failed(line, cursor, Failure(str(error), "Unreadable", final=True))
        except Exception:
            logger.exception("webhook %s", line.webhook.config.id, extra={"task": line.task})
            with _recording(line):
                await self._failed(line, cursor, Failure("internal error", "Exception"))

    async def _events(self, line: WebhookCursor) -> Iterable[Delivery]:
        """The requests for the next entries of the log."""
        entries = await self.store.read(line.scope, line.task, line.cursor, BATCH)
        return (
            Delivery(
                *(entry.number, v1_0.streamed(entry), entry.turn),
                getattr(entry.event, "context_id", ""),
            )
            for entry in entries or ()
        )

    async def _tasks(self, line: WebhookCursor) -> Iterable[Delivery]:
        """The requests for clients before 1.0, which get the whole task whenever its status
        changes. If there are many or large ones, only the last one is posted."""
        last, changes = line.cursor, dict[int, int]()
        for _ in range(READS):
            entries = await self.store.read(line.scope, line.task, last, SHORT) or ()
            for entry in entries:
                last = entry.number
                if isinstance(entry.event, TaskStatusUpdateEvent):
                    changes[last] = entry.turn
            if len(entries) < SHORT:
                record = await self.store.load(line.scope, line.task)
                if record is None or record.head.last <= last:
                    break
        else:
            record = await self.store.load(line.scope, line.task)
        skipped = Delivery(last)
        if record is None or not changes:
            return [skipped]
        encode = versions.BY_NAME[line.webhook.version].push
        if len(changes) <= FEW and record.head.last <= SHORT:
            past = History(self.store, line.scope, line.task)
            tasks = [(number, await past.at(number)) for number in changes]
            found = [
                Delivery(number, encode(task), changes[number], task.context_id)
                for number, task in tasks
                if task is not None
            ]
            if sum(len(item.body) for item in found) <= SMALL:
                return [*found, skipped]
        number, turn = changes.popitem()
        return [Delivery(number, encode(record.task), turn, record.task.context_id), skipped]

    async def _post(
        self, line: WebhookCursor, item: Delivery, attempt: int, place: Slot
    ) -> Failure | None:
        """Post it, as part of the trace of its message."""
        headers = self._headers(line, item.number, item.body)
        trace = await self._trace(line, item.turn or 1)
        if self.spans is None:
            carry(headers, trace)
            return await self._request(line, headers, item.body, place)
        agent = line.scope.agent
        about: About = {
            "a2a.agent": agent,
            "gen_ai.agent.name": self.names.get(agent, ""),
            "a2a.task.id": line.task,
            "gen_ai.conversation.id": item.context,
            "a2a.webhook.id": line.webhook.config.id,
            "a2a.attempt": attempt,
            "http.request.method": "POST",
            "server.address": self._host(line),
        }
        with self.spans.open("CLIENT", f"webhook {agent}", about, trace) as span:
            carry(headers, trace)
            failure = await self._request(line, headers, item.body, place, span)
            if failure is not None:
                self.spans.failed(span, failure.kind)
            return failure

    async def _request(
        self,
        line: WebhookCursor,
        headers: dict[str, str],
        body: bytes,
        place: Slot,
        span: Span | None = None,
    ) -> Failure | None:
        try:
            answer = await self.egress.post(
                line.webhook.config.url,
                body,
                headers=headers,
                owner=owner_of(line.scope),
                place=place,
            )
        except EgressRefused as error:
            return Failure(f"refused: {error}", "Refused", final=True)
        except Busy:
            raise  # it was not tried
        except EgressUnreachable as error:
            return Failure(str(error), "Unreachable")
        if span is not None:
            span.set_attribute("http.response.status_code", answer.status)
        return _verdict(answer)

    async def _trace(self, line: WebhookCursor, number: int) -> str:
        """The `traceparent` of this message of the log."""
        key = line.task, number
        if key not in self._traces:
            try:
                entries = await self.store.read(line.scope, line.task, number - 1, 1)
            except Unreadable:  # post without it
                entries = ()
            event = entries[0].event if entries else None
            if len(self._traces) >= TRACES:
                self._traces.clear()
            self._traces[key] = event.trace if isinstance(event, Received) else ""
        return self._traces[key]

    async def _failed(self, line: WebhookCursor, cursor: int, failure: Failure) -> None:
        # The earlier ones succeeded, so this is the first failure.
        attempts = line.attempts if cursor == line.cursor else 0
        plan = self.settings.push_retries
        parked = failure.final or attempts >= len(plan)
        self._count(line, "parked" if parked else "failed")
        wait = 0.0
        if not parked:
            wait = max(plan[attempts] * random.uniform(0.9, 1.1), failure.after)
        level = logger.warning if parked else logger.info
        level(
            "webhook %s: entry after %d not delivered (%s); %s",
            line.webhook.config.id,
            cursor,
            failure.reason,
            "parked" if parked else f"retrying in {wait:.0f} s",
            extra={"task": line.task},
        )
        await self.store.dispatched(line, cursor, wait=wait, failed=failure.reason, parked=parked)

    def _count(self, line: WebhookCursor, outcome: str) -> None:
        if self.metrics is not None:
            self.metrics.deliveries.add(line.scope.agent, outcome)

    def _headers(self, line: WebhookCursor, number: int, body: bytes) -> dict[str, str]:
        config = line.webhook.config
        id = delivery(line.task, config.id, number)
        now = int(time.time())
        headers = {
            "content-type": versions.BY_NAME[line.webhook.version].push_type,
            "user-agent": f"dragoman/{__version__}",
            signature.ID: id,
            signature.TIMESTAMP: str(now),
        }
        if self.keys:
            headers[signature.SIGNATURE] = signature.sign(self.keys, id, now, body)
        if config.token:
            headers["x-a2a-notification-token"] = config.token
        if config.authentication is not None:
            scheme, credentials = config.authentication.scheme, config.authentication.credentials
            headers["authorization"] = f"{scheme} {credentials}".strip()
        return headers


@contextmanager
def _recording(line: WebhookCursor) -> Iterator[None]:
    """A block in which a failing store costs time, not a delivery: the claim expires."""
    try:
        yield
    except Unavailable as error:
        logger.error(
            "webhook %s: cannot store the outcome of a delivery: %s", line.webhook.config.id, error
        )
    except Exception:
        logger.exception(
            "webhook %s: cannot store the outcome of a delivery",
            line.webhook.config.id,
            extra={"task": line.task},
        )


def keys(settings: Settings) -> list[signature.SigningKey]:
    """Parse the signing keys. Raises ValueError if one of them cannot sign."""
    found = []
    for text in settings.push_keys:
        try:
            key = signature.SigningKey.parse(text)
        except ValueError as error:
            raise ValueError(f"push_keys: {error}") from None
        if key.prefix == signature.PUBLIC:
            raise ValueError(
                "push_keys: a whpk_ key is for receivers; use the whsk_ key of the pair"
            )
        found.append(key)
    return found


def delivery(task: str, webhook: str, number: int) -> str:
    """The id of a delivery, the same for each attempt."""
    name = f"{task}:{webhook}:{number}".encode()
    return f"msg_{hashlib.sha256(name).hexdigest()[:32]}"


def _verdict(answer: EgressResponse) -> Failure | None:
    """Interpret the receiver's response."""
    if 200 <= answer.status < 300:
        return None
    after = 0.0
    wish = answer.headers.get("retry-after", "")
    if wish.isascii() and wish.isdigit():
        after = min(float(wish[:8]), LONGEST)
    status = answer.status
    return Failure(f"answered {status}", str(status), final=status == 410, after=after)
