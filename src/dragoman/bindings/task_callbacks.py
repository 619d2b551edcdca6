"""Requests that show a secret of a task: notifications that wake its handler, and writes to
a task that was handed over. The secret is their only credential."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dragoman.bindings.agent_endpoint import LONGEST_KEY, Endpoint
from dragoman.bindings.http import PRIVATE, fail
from dragoman.bindings.http_request import A2A, Gone, HTTPRequest
from dragoman.bindings.pipeline import without_traceback
from dragoman.dialects import v1_0, versions
from dragoman.model import clock
from dragoman.model.errors import A2AError, InternalError, InvalidParams, MethodNotAllowed
from dragoman.model.types import (
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)
from dragoman.server import handover_writes, task_secrets
from dragoman.telemetry.logs import logger

PATH = re.compile(r"/(notifications|handovers)/([0-9a-f-]{36})")
"""The paths, with the id of the task. (`/handovers/tasks` is a path of a tenant of that name.)"""
TOKEN = b"x-a2a-notification-token"
MOST_EVENTS = 1000


async def serve(endpoint: Endpoint, incoming: HTTPRequest, path: str) -> None:
    """Answer one request."""
    _, name, task = path.split("/")
    try:
        if incoming.line is not None:
            incoming.line.begins(endpoint.service.agent.key, name, "http")
        if endpoint.limits is not None:
            endpoint.limits.knock(incoming.peer, incoming.every(b"x-forwarded-for"))
        if name == "notifications":
            body = await _notify(endpoint, incoming, task)
        else:
            body = await _handover(endpoint, incoming, task)
    except A2AError as error:
        endpoint.refused(error, incoming)
        return await fail(incoming, without_traceback(error))
    except Gone:
        raise
    except Exception as error:
        logger.exception("internal error")
        endpoint.refused(error, incoming)
        return await fail(incoming, InternalError.of(error))
    return await incoming.respond(200, body, A2A, (PRIVATE,))


async def _notify(endpoint: Endpoint, incoming: HTTPRequest, task: str) -> bytes:
    """Take a notification of another agent, in any version of the protocol."""
    if incoming.method != "POST":
        raise MethodNotAllowed("A notification requires POST", headers={"allow": "POST"})
    secret = incoming.header(TOKEN)
    found = versions.pushed(await incoming.body())
    if _settled(found):
        service = endpoint.service
        await task_secrets.notify(service.store, service.bell, service.agent.key, task, secret)
    return b"{}"


def _settled(found: StreamResponse) -> bool:
    """Whether a notification says that the other agent's task has ended or asks."""
    state = found.task or found.status_update
    return state is not None and state.status.state.settled


async def _handover(endpoint: Endpoint, incoming: HTTPRequest, task: str) -> bytes:
    """Show a task that was handed over, or write to it."""
    service = endpoint.service
    kind, _, secret = incoming.header(b"authorization").partition(" ")
    secret = secret.strip() if kind.lower() == "bearer" else ""
    store, agent = service.store, service.agent.key
    if incoming.method == "GET":
        return _shown(await handover_writes.current(store, agent, task, secret))
    if incoming.method != "POST":
        raise MethodNotAllowed("A handover requires GET or POST", headers={"allow": "GET, POST"})
    key = incoming.header(b"idempotency-key")
    if len(key) > LONGEST_KEY:
        raise InvalidParams.at("Idempotency-Key", f"is longer than {LONGEST_KEY} characters")
    document = v1_0.parse(await incoming.body())
    # only who knows the secret learns what is wrong with an event
    now = await handover_writes.current(store, agent, task, secret)
    events = _events(document, now)
    written = await handover_writes.write(store, service.bell, agent, task, secret, events, key)
    return _shown(written)


def _shown(task: Task) -> bytes:
    state = task.status.state
    return v1_0.encode({"taskId": task.id, "state": state, "ended": state.settled})


def _events(document: Any, task: Task) -> list[handover_writes.Written]:
    """The events of a body: one `StreamResponse` with a status or artifact update, or a list of
    them in `events`. What every event of the task has in common may be left out."""
    if not isinstance(document, dict):
        raise InvalidParams.at("body", "expected an object")
    given = document.get("events", [document])
    if not isinstance(given, list) or not 0 < len(given) <= MOST_EVENTS:
        raise InvalidParams.at("events", f"expected a list of 1 to {MOST_EVENTS} events")
    return [_event(each, task, f"events[{number}]") for number, each in enumerate(given)]


def _event(given: Any, task: Task, where: str) -> handover_writes.Written:
    ids = {"taskId": task.id, "contextId": task.context_id}
    match given:
        case {"statusUpdate": {"status": dict(status)} as update}:
            message = status.get("message")
            if isinstance(message, dict):
                own = {"messageId": clock.uuid7(), "role": "ROLE_AGENT", **ids}
                status = {**status, "message": {**own, **message, **ids, "role": "ROLE_AGENT"}}
            status = {**status, "timestamp": clock.now()}
            return _decoded(TaskStatusUpdateEvent, {**update, **ids, "status": status}, where)
        case {"artifactUpdate": {"artifact": dict(artifact)} as update}:
            if not update.get("append"):
                artifact = {"artifactId": clock.uuid7(), **artifact}
            return _decoded(TaskArtifactUpdateEvent, {**update, **ids, "artifact": artifact}, where)
        case _:
            raise InvalidParams.at(
                where,
                'expected {"statusUpdate": {"status": …}} or {"artifactUpdate": {"artifact": …}}',
            )


def _decoded(
    kind: type[handover_writes.Written], document: Mapping[str, Any], where: str
) -> handover_writes.Written:
    try:
        found: handover_writes.Written = v1_0.convert(kind, dict(document))
        return found
    except InvalidParams as error:
        wrong = [(f"{where}.{field}", what) for field, what in error.violations]
        raise InvalidParams(error.message, violations=wrong) from None
