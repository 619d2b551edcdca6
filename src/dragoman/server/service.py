"""The eleven operations on typed requests, independent of HTTP and gRPC."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.agent.handler import Handler
from dragoman.bells.bell import Bell
from dragoman.dialects import client_quirks
from dragoman.model import clock
from dragoman.model.caller import Call, Policy, Scope, long
from dragoman.model.errors import (
    ExtendedAgentCardNotConfigured,
    ExtensionSupportRequired,
    InvalidParams,
    PushNotificationNotSupported,
    TaskNotCancelable,
    TaskNotFound,
    Unauthenticated,
    Unavailable,
    UnsupportedOperation,
)
from dragoman.model.events import RESUME, CancelRequested, Entry, Received, Reply
from dragoman.model.lifecycle import birth
from dragoman.model.lineage import admit, lineage, origin
from dragoman.model.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SendMessageResponse,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from dragoman.security.egress import Egress
from dragoman.security.file_rules import Files, Scan
from dragoman.security.limits import Quota
from dragoman.server import private_metadata, receipts
from dragoman.server.delegated_tasks import delegated_by, log_remaining
from dragoman.server.paging import (
    decode_cursor,
    encode_cursor,
    not_negative,
    since,
    trimmed,
)
from dragoman.server.reader import History, LogStream, Reader, Shutdown
from dragoman.server.settings import Settings
from dragoman.server.task_scopes import TaskScopes
from dragoman.server.webhook_configs import check_number, checked_webhook
from dragoman.stores.store import Accepted, Conflict, Draft, Head, Query, Store, Webhook

PAGE, LARGEST_PAGE = 50, 100
USED = "was used before with a different request"


class Service:
    """The operations of one agent. Each gets the call and sees only the caller's tasks."""

    def __init__(
        self,
        agent: Agent,
        store: Store,
        bell: Bell,
        settings: Settings,
        closing: Shutdown,
        *,
        policy: Policy | None = None,
        scan: Scan | None = None,
        mounted: Collection[str] = (),
    ) -> None:
        self.agent = agent
        self.egress: Egress | None = None
        """Sends requests to webhooks, while the server runs."""
        self.store = store
        self.bell = bell
        self.settings = settings
        self.reader = Reader(store, bell, closing)
        self.draining = False
        self.timed: Callable[[float], None] | None = None
        """Receives the seconds until a message was stored, for metrics."""
        self._files = Files(settings.file_types, scan)
        self._quota = Quota(settings.quota_tasks, settings.quota_waiting, store.tally)
        self.scopes = TaskScopes(agent, store, policy, mounted)
        self._work = f"work:{agent.key}"
        self.accepted = 0
        """How many messages it has accepted."""
        self.offered = frozenset(extension.uri for extension in agent.extensions)
        self.required = tuple(e.uri for e in agent.extensions if e.required)

    # -- messages

    async def send(self, request: SendMessageRequest, call: Call) -> SendMessageResponse:
        """Accept a message and wait for its result, unless the request says not to wait."""
        task = request.message.task_id
        scope = await self.scopes.of_task(request.tenant, call, "SendMessage", task)
        if call.operator is not None:
            await self.scopes.check_message(request, call, "SendMessage", scope)
        accepted = await self._accept(request, scope, call)
        number, configuration, head = accepted.number, request.configuration, accepted.head
        # Claimed in the write that accepted it: the log can have no events of it yet.
        claimed = accepted.fresh and number == 1 and head.holder
        del request, accepted  # free a large message during the wait

        def ready(head: Head) -> bool:
            return head.answers(number)

        def begun(head: Head) -> bool:
            return head.born or head.replied

        immediately = configuration is not None and configuration.return_immediately
        head = await self.reader.until(
            begun if immediately else ready,
            scope,
            head.id,
            self.settings.blocking_timeout,
            head if claimed else None,
        )
        if head.replied:
            return SendMessageResponse(message=await self._reply(scope, head))
        record = await self.store.load(scope, head.id)
        if record is None:
            raise Unavailable(
                "The agent has not answered in time; it is still working on the message"
            )
        length = configuration.history_length if configuration else None
        return SendMessageResponse(task=trimmed(record.task, length))

    async def stream(self, request: SendMessageRequest, call: Call) -> LogStream:
        """Accept a message and stream the events that follow."""
        self._streaming()
        task = request.message.task_id
        scope = await self.scopes.of_task(request.tenant, call, "SendStreamingMessage", task)
        if call.operator is not None:
            await self.scopes.check_message(request, call, "SendStreamingMessage", scope)
        accepted = await self._accept(request, scope, call)
        head, number = accepted.head, accepted.number
        place = None if accepted.fresh else self._place(call, head.id)
        if place is not None and number <= place <= head.last:
            return LogStream(
                self.reader, scope, head.id, context=head.context, after=place, answer=number
            )
        if number == 1 and (accepted.fresh or not head.born):
            first = Entry(1, birth(accepted.received))
        else:
            record = await self.store.load(scope, head.id)
            if record is None:
                raise TaskNotFound
            first = Entry(record.head.last, record.task)
            if accepted.fresh and record.head.last > number:
                # The turn was faster: stream its events as they were written.
                start = await self._start(scope, head.id, number)
                before = await History(self.store, scope, head.id).at(start)
                first = first if before is None else Entry(start, before)
        length = request.configuration.history_length if request.configuration else None
        first.event = trimmed(first.event, length)  # type: ignore[arg-type]
        return LogStream(
            self.reader,
            scope,
            head.id,
            context=head.context,
            after=first.number,
            first=first,
            answer=number,
            reset=place is not None,
        )

    async def _start(self, scope: Scope, task: str, number: int) -> int:
        """Where the stream of a follow-up starts: after its message, and after the `working` that
        replaced a question when the message was accepted."""
        entries = await self.store.read(scope, task, number, 1)
        event = entries[0].event if entries else None
        if isinstance(event, TaskStatusUpdateEvent) and event.status.message is None:
            return number + (event.status.state is TaskState.WORKING)
        return number

    # -- tasks

    async def get(self, request: GetTaskRequest, call: Call) -> Task:
        """Return the task."""
        not_negative("historyLength", request.history_length)
        scope = await self.scopes.of_task(request.tenant, call, "GetTask", request.id)
        return trimmed(await self._task(scope, request.id), request.history_length)

    async def list(self, request: ListTasksRequest, call: Call) -> ListTasksResponse:
        """Return a page of tasks."""
        not_negative("historyLength", request.history_length)
        size = PAGE if request.page_size is None else request.page_size
        if not 1 <= size <= LARGEST_PAGE:
            raise InvalidParams.at("pageSize", f"must be between 1 and {LARGEST_PAGE}")
        artifacts = bool(request.include_artifacts)
        page = await self.store.list(
            self.scopes.of_call(request.tenant, call),
            Query(
                artifacts=artifacts,
                context=request.context_id,
                state=request.status,
                since=since(request.status_timestamp_after),
                size=size,
                cursor=decode_cursor(request.page_token) if request.page_token else None,
            ),
        )
        return ListTasksResponse(
            tasks=tuple(trimmed(t, request.history_length, artifacts) for t in page.tasks),
            next_page_token=encode_cursor(page.cursor) if page.cursor else "",
            page_size=size,
            total_size=page.total,
        )

    async def cancel(self, request: CancelTaskRequest, call: Call) -> Task:
        """Cancel a task. The agent has a grace period; the first terminal status wins."""
        scope = await self.scopes.of_task(request.tenant, call, "CancelTask", request.id)
        head = await self.store.head(scope, request.id)
        if head is None or not head.born:
            raise TaskNotFound
        status = TaskStatus(state=TaskState.CANCELED, timestamp=clock.now())
        canceled = TaskStatusUpdateEvent(task_id=head.id, context_id=head.context, status=status)
        asked = CancelRequested(
            caller=call.caller.stored, at=clock.now(), metadata=request.metadata
        )
        grace = self.settings.cancel_grace
        receipt = receipts.of_cancel(request, call, scope)
        try:
            handler = self.agent.handler_of(head.skill)
            undo = handler.durable or handler.cancel is not None or head.began > 0
            undo = undo or bool(await delegated_by(self.store, head))
            known = head.private
            head = await self.store.cancel(
                scope, head.id, asked, canceled, grace, receipt, undo=undo
            )
            if not undo and head.private > known and head.state is TaskState.CANCELED:
                await log_remaining(self.store, head)  # it has begun something meanwhile
        except Conflict:
            raise InvalidParams.at("Idempotency-Key", USED) from None
        self.bell.ring(head.holder or f"work:{head.scope.agent}")
        with self.reader.closing.canceling():
            head = await self._canceled(scope, head, canceled)
            self.bell.ring(head.id)
            task = await self._task(scope, head.id)
        if head.state is not TaskState.CANCELED:
            raise TaskNotCancelable(f"Task has already ended ({head.state.name.lower()})")
        return task

    async def _canceled(self, scope: Scope, head: Head, canceled: TaskStatusUpdateEvent) -> Head:
        """Wait until the task has ended: by its agent within the grace period, else without it."""
        grace = self.settings.cancel_grace

        def ended(head: Head) -> bool:
            return head.state.terminal

        head = await self.reader.until(ended, scope, head.id, grace, closing=False)
        while not head.state.terminal:  # the agent did not stop in time
            status = replace(canceled.status, timestamp=clock.now())
            if await self.store.revoke(head, replace(canceled, status=status)):
                await log_remaining(self.store, head)
            self.bell.ring(head.holder)
            head = await self.reader.until(lambda _: True, scope, head.id, grace)
        return head

    async def subscribe(self, request: SubscribeToTaskRequest, call: Call) -> LogStream:
        """Stream the task as it is now and then its events, or the events after a position."""
        self._streaming()
        scope = await self.scopes.of_task(request.tenant, call, "SubscribeToTask", request.id)
        record = await self.store.load(scope, request.id)
        if record is None:
            raise TaskNotFound
        head = record.head
        place = self._place(call, head.id)
        if place is not None and 1 <= place <= head.last:
            return LogStream(self.reader, scope, head.id, context=head.context, after=place)
        if place is None and head.state.terminal:
            raise UnsupportedOperation(
                f"Task has ended ({head.state.name.lower()}); it cannot be subscribed to"
            )
        first = Entry(head.last, record.task)
        return LogStream(
            self.reader,
            scope,
            head.id,
            context=head.context,
            after=head.last,
            first=first,
            reset=place is not None,
        )

    # -- webhooks

    async def create_webhook(
        self, request: TaskPushNotificationConfig, call: Call
    ) -> TaskPushNotificationConfig:
        """Register a webhook."""
        self._pushing()
        if not request.task_id:
            raise InvalidParams.at("taskId", "is required")
        scope = await self.scopes.of_task(
            request.tenant, call, "CreateTaskPushNotificationConfig", request.task_id
        )
        config = replace(request, id=request.id or clock.uuid7())
        # first: an unknown task must cause no DNS lookup
        await check_number(self.store, scope, config)
        webhook = await checked_webhook(self.egress, config, request.task_id, "", call.caller)
        await self.store.put_webhook(scope, webhook)
        return webhook.config

    async def get_webhook(
        self, request: GetTaskPushNotificationConfigRequest, call: Call
    ) -> TaskPushNotificationConfig:
        """Return one webhook of a task. Before 1.0 the id is optional: it means the webhook that
        was created without an id, else the first."""
        operation = "GetTaskPushNotificationConfig"
        found = await self._webhooks(request.tenant, request.task_id, call, operation)
        wanted = request.id or request.task_id
        for config in found:
            if config.id == wanted:
                return config
        if found and not request.id:
            return found[0]
        raise TaskNotFound("Push notification config not found")

    async def list_webhooks(
        self, request: ListTaskPushNotificationConfigsRequest, call: Call
    ) -> ListTaskPushNotificationConfigsResponse:
        """Return the webhooks of a task."""
        not_negative("pageSize", request.page_size)
        operation = "ListTaskPushNotificationConfigs"
        found = await self._webhooks(request.tenant, request.task_id, call, operation)
        if request.page_token:
            last = decode_cursor(request.page_token)[1]
            found = [config for config in found if config.id > last]
        size = request.page_size or LARGEST_PAGE
        more = len(found) > size
        return ListTaskPushNotificationConfigsResponse(
            configs=tuple(found[:size]),
            next_page_token=encode_cursor(("", found[size - 1].id)) if more else "",
        )

    async def delete_webhook(
        self, request: DeleteTaskPushNotificationConfigRequest, call: Call
    ) -> None:
        """Delete a webhook."""
        self._pushing()
        operation = "DeleteTaskPushNotificationConfig"
        scope = await self.scopes.of_task(request.tenant, call, operation, request.task_id)
        await self.store.delete_webhook(scope, request.task_id, request.id)

    # -- the card

    async def extended_card(
        self, request: GetExtendedAgentCardRequest, call: Call, public: AgentCard
    ) -> AgentCard:
        """Return the extended card."""
        if not self.agent.extended:
            raise UnsupportedOperation("The agent has no extended card")
        if not call.caller.identity:
            raise Unauthenticated("The extended card requires authentication")
        if self.agent.extend is None:
            raise ExtendedAgentCardNotConfigured
        card = self.agent.extend(call.caller, public)
        return await card if inspect.isawaitable(card) else card

    # -- negotiation

    def negotiate(self, asked: Sequence[str]) -> tuple[str, ...]:
        """Return the active extensions. Raises ExtensionSupportRequired, which names a missing
        one."""
        for uri in self.required:
            if uri not in asked:
                raise ExtensionSupportRequired(
                    f"The agent requires the extension {uri}; name it in the A2A-Extensions header",
                    metadata={"extension": uri},
                )
        return tuple(dict.fromkeys(uri for uri in asked if uri in self.offered))

    # -- private

    async def _accept(
        self, request: SendMessageRequest, scope: Scope, call: Call, *, begins: bool = True
    ) -> Accepted:
        """Accept a message. `begins` is whether it may start the task that it names."""
        if self.draining:
            raise Unavailable("The server is shutting down", headers={"retry-after": "5"})
        message, configuration = request.message, request.configuration
        message = client_quirks.with_message_id(message, call.key)
        if len(message.parts) > self.settings.max_parts:
            raise InvalidParams.at(
                "message.parts", f"has more than {self.settings.max_parts} parts"
            )
        before, context, task = "", message.context_id, message.task_id
        new = not task
        awaited = False  # by a suspended handler, which takes any message
        if task:
            head = await self.store.head(scope, task)
            new = head is None and task == call.new_task
            if new and (why := long(task)):
                raise InvalidParams.at("id", f"{why}, in its stored form")
            if not new:
                if head is None or not head.born:
                    raise TaskNotFound
                if context and context != head.context:
                    raise InvalidParams.at("message.contextId", "is not the context of the task")
                before, context = head.skill, head.context
                awaited = head.began > 0
        if "\0" in context:  # not every database can search for it
            raise InvalidParams.at("message.contextId", "contains a NUL character")
        skill, handler = self.agent.route(message, before)
        if handler.reply and self.reader.closing.now:  # there would be no response
            raise Unavailable("The server is shutting down", headers={"retry-after": "1"})
        self.agent.permit(call.caller, skill)
        self.agent.admit(message, skill)
        if handler.parameters.checks and not awaited:
            if new:
                handler.parameters.check(message, ask=handler.ask)
            else:
                await self._check(handler, message, scope, task, before == skill)
        if request.metadata:
            here = origin(self.store.id, self.agent.key)
            admit(lineage(request.metadata), self.agent.name, here, self.settings.max_hops)
        if not self._files.lax:
            await self._files.check(message, call.caller)
        task = task or clock.uuid7()
        chosen = task if call.new_task and begins and (new or call.key) else ""
        webhook: Webhook | None = None
        modes: tuple[str, ...] = ()
        if configuration is not None:
            not_negative("configuration.historyLength", configuration.history_length)
            modes = configuration.accepted_output_modes
            if configuration.task_push_notification_config is not None:
                self._pushing()
                field = "configuration.taskPushNotificationConfig."
                config = configuration.task_push_notification_config
                # A webhook without an id gets the task's id, so a follow-up message does not add
                # another.
                config = replace(config, id=config.id or task, task_id=task)
                if not new:
                    await check_number(self.store, scope, config)
                webhook = await checked_webhook(self.egress, config, task, field, call.caller)
        # The receipt is about the whole message.
        receipt = receipts.of_send(message, call, chosen, scope, self.settings.idempotency)
        private = ""
        keys, tests = self.agent.private_metadata, self.agent.private_parts
        if tests or (keys and message.metadata):
            message, private = await private_metadata.put_aside(self.store, message, keys, tests)
        # Anonymous callers cannot be distinguished.
        counted = new and bool(scope.owner)
        full = await self._quota.take(scope) if counted else ""
        draft = Draft(
            task=task,
            received=Received(
                message=replace(message, task_id=task, context_id=context or clock.uuid7()),
                caller=call.caller.stored,
                at=clock.now(),
                skill=skill,
                modes=modes,
                metadata=request.metadata,
                trace=call.trace,
                private=private,
            ),
            new=new,
            born=not handler.reply,
            receipt=receipt,
            webhook=webhook,
            full=full,
        )
        accepting = self.store.accept(scope, draft)
        # Wake the local worker before the message is committed, so that a claim shares the commit;
        # it has no effect if the message is refused. Other replicas could not find it yet.
        self.bell.listeners.wake(self._work)
        timed = self.timed
        began = 0.0 if timed is None else time.perf_counter()
        try:
            accepted = await accepting
            self.accepted += 1
            if not accepted.head.holder:
                self.bell.carry(self._work)
            if timed is not None:
                timed(time.perf_counter() - began)
            return accepted
        except Conflict:
            if chosen:  # another message started it; this one follows it
                return await self._accept(request, scope, call, begins=False)
            raise InvalidParams.at("Idempotency-Key", USED) from None
        finally:
            if counted:
                self._quota.landed(scope)

    async def _check(
        self, handler: Handler, message: Message, scope: Scope, task: str, same: bool
    ) -> None:
        """Raise InvalidParams if a message to a task does not fit the handler's parameters. The
        task keeps its parameters; `same` is whether it keeps its skill, too."""
        if same and not handler.parameters.follows(message, handler.ask):
            return
        known = await self._task(scope, task)
        earlier = [*known.history]
        if known.status.message is not None:
            earlier.append(known.status.message)
        handler.parameters.check(message, earlier, ask=handler.ask)

    async def _reply(self, scope: Scope, head: Head) -> Message:
        # it is the last entry; private ones may stand before it
        entries = await self.store.read(scope, head.id, head.last - 1, 1)
        if not entries:
            raise TaskNotFound
        event = entries[-1].event
        assert isinstance(event, Reply)
        return event.message

    async def _task(self, scope: Scope, task: str) -> Task:
        record = await self.store.load(scope, task)
        if record is None:
            raise TaskNotFound
        return record.task

    def _place(self, call: Call, task: str) -> int | None:
        """The position to resume from; None if the reader named none, -1 if it is not valid."""
        if not call.place or RESUME not in call.caller.extensions:
            return None
        name, _, number = call.place.rpartition(":")
        if name != task or not number.isascii() or not number.isdigit() or len(number) > 18:
            return -1
        return int(number)

    def _streaming(self) -> None:
        if not self.agent.streaming:
            raise UnsupportedOperation("The agent does not support streaming")

    def _pushing(self) -> None:
        if not self.settings.push:
            raise PushNotificationNotSupported

    async def _webhooks(
        self, tenant: str, task: str, call: Call, operation: str
    ) -> Sequence[TaskPushNotificationConfig]:
        self._pushing()
        scope = await self.scopes.of_task(tenant, call, operation, task)
        found = await self.store.webhooks(scope, task)
        return [webhook.config for webhook in found]
