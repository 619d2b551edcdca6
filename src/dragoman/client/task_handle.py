"""A handle on one task of an agent: get, follow, reply, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack

from dragoman.client.result import Result
from dragoman.client.stream import Stream
from dragoman.client.transport import Unreachable
from dragoman.model import clock
from dragoman.model.approvals import ApprovalRequest, answer
from dragoman.model.errors import A2AError, MethodNotFound, UnsupportedOperation
from dragoman.model.types import (
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)

if TYPE_CHECKING:
    from dragoman.client.client import Client
    from dragoman.client.inbox import Inbox
    from dragoman.client.options import SendOptions

LONGEST_POLL = 10.0
LOOK = 30.0
"""Seconds between two polls of a task that has a webhook."""


class TaskHandle:
    """A handle on a task."""

    def __init__(self, client: Client, id: str) -> None:
        self._client = client
        self.id = id

    def __repr__(self) -> str:
        return f"TaskHandle(task={self.id!r})"

    async def get(self, *, history: int | None = None) -> Task:
        """Fetch the task."""
        request = GetTaskRequest(id=self.id, history_length=history)
        task: Task = await self._client._connection.call("get", request)
        return task

    async def cancel(self, *, metadata: dict[str, Any] | None = None) -> Task:
        """Ask the agent to cancel the task."""
        request = CancelTaskRequest(id=self.id, metadata=metadata)
        headers = {"idempotency-key": clock.uuid7()}
        task: Task
        try:
            task = await self._client._connection.call("cancel", request, headers)
        except Unreachable:
            # The request may have arrived. An agent that does not deduplicate would refuse a second
            # one.
            task = await self.get()
            if task.status.state is not TaskState.CANCELED:
                task = await self._client._connection.call("cancel", request, headers)
        return task

    def subscribe(self, *, keep: bool = True) -> Stream:
        """Stream the task as it is now and then its events, until it ends."""
        return Stream(self._client, SubscribeToTaskRequest(id=self.id), keep=keep)

    async def reply(
        self, content: Any, *, wait: bool = True, **options: Unpack[SendOptions]
    ) -> Result:
        """Send the next message of this task."""
        return await self._client.send(content, task=self.id, wait=wait, **options)

    async def approve(
        self,
        grant: ApprovalRequest,
        content: Any = "Approved",
        *,
        wait: bool = True,
        **options: Unpack[SendOptions],
    ) -> Result:
        """Approve the operation that the task asks about (`Result.grant`), once."""
        return await self._answer(grant, True, content, wait, options)

    async def decline(
        self,
        grant: ApprovalRequest,
        content: Any = "Declined",
        *,
        wait: bool = True,
        **options: Unpack[SendOptions],
    ) -> Result:
        """Decline the operation that the task asks about."""
        return await self._answer(grant, False, content, wait, options)

    async def _answer(
        self, grant: ApprovalRequest, approved: bool, content: Any, wait: bool, options: SendOptions
    ) -> Result:
        options["metadata"] = {**options.get("metadata", {}), **answer(grant, approved=approved)}
        return await self.reply(content, wait=wait, **options)

    async def answer_pause(self, *, wait: bool = True) -> Result:
        """Have the client's answerer (`answer=`) answer what the task waits for, and return the
        result as `reply` does; the task as it is if it waits for nothing, or if nothing answers."""
        return await self._client._answered(Result(await self.get()), None, wait)

    async def wait(self, *, poll: float = 1.0) -> Task:
        """Wait until the task ends or asks for input, and return it. The client streams if the
        agent supports it, else it registers a webhook if it has an inbox, else it polls every
        `poll` seconds, more and more slowly."""
        async with self._client._connection.limit() as progress:
            progress.task = self.id
            return await self._wait(poll)

    @property
    def _pushes(self) -> bool:
        """Whether the agent says that it can call webhooks."""
        return bool(self._client.card.capabilities.push_notifications)

    async def _wait(self, poll: float) -> Task:
        task = await self.get()
        if self._client._connection.joins and not task.status.state.settled:
            with suppress(UnsupportedOperation, MethodNotFound):  # ended, or cannot stream
                async with self.subscribe(keep=False) as stream:
                    async for event in stream:
                        status = getattr(event, "status", None)
                        if status is not None and status.state.settled:
                            break
            task = await self.get()
        inbox = self._client._inbox if self._pushes else None
        if inbox is not None and not task.status.state.settled:
            return await self._pushed(inbox)
        while not task.status.state.settled:
            await asyncio.sleep(poll)
            poll = min(poll * 1.5, max(poll, LONGEST_POLL))
            task = await self.get()
        return task

    async def _pushed(self, inbox: Inbox) -> Task:
        with inbox.expecting(self.id) as arrived:
            config = inbox.config(self.id)
            try:
                config = await self._client._connection.call("create_webhook", config)
                while not (task := await self.get()).status.state.settled:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK):
                            await arrived.wait()
                    arrived.clear()
                return task
            finally:
                # A webhook that stays would be called for nothing.
                with suppress(A2AError, ConnectionError, TimeoutError):
                    await self.delete_webhook(config.id)

    # -- webhooks

    async def add_webhook(
        self,
        url: str,
        *,
        token: str = "",
        authentication: AuthenticationInfo | None = None,
        id: str = "",
    ) -> TaskPushNotificationConfig:
        """Register a webhook for this task."""
        request = TaskPushNotificationConfig(
            task_id=self.id,
            url=url,
            token=token,
            authentication=authentication,
            id=id or clock.uuid7(),  # a retry registers the same one
        )
        config: TaskPushNotificationConfig = await self._client._connection.call(
            "create_webhook", request
        )
        return config

    async def webhook(self, id: str) -> TaskPushNotificationConfig:
        """Fetch one webhook of this task."""
        request = GetTaskPushNotificationConfigRequest(task_id=self.id, id=id)
        config: TaskPushNotificationConfig = await self._client._connection.call(
            "get_webhook", request
        )
        return config

    async def webhooks(self) -> AsyncIterator[TaskPushNotificationConfig]:
        """Iterate over the webhooks of this task."""
        token = ""
        while True:
            request = ListTaskPushNotificationConfigsRequest(task_id=self.id, page_token=token)
            answer = await self._client._connection.call("list_webhooks", request)
            for config in answer.configs:
                yield config
            if not answer.next_page_token or answer.next_page_token == token:
                return
            token = answer.next_page_token

    async def delete_webhook(self, id: str) -> None:
        """Delete a webhook of this task."""
        request = DeleteTaskPushNotificationConfigRequest(task_id=self.id, id=id)
        await self._client._connection.call("delete_webhook", request)
