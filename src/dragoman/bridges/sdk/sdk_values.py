"""Values of a2a-sdk and ours: 1.x has protobuf messages, 0.3 has pydantic models."""

from __future__ import annotations

import json
from typing import Any, Protocol
from uuid import uuid4

import a2a.types
import a2a.utils.errors
import msgspec
from msgspec.structs import replace

from dragoman import Message, Role, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent, Turn

types: Any = a2a.types
errors: Any = a2a.utils.errors
"""Of whichever version is installed."""
KINDS = {
    "Message": Message,
    "Task": Task,
    "TaskStatusUpdateEvent": TaskStatusUpdateEvent,
    "TaskArtifactUpdateEvent": TaskArtifactUpdateEvent,
}

NOTHING = {"text": ""}


class Values(Protocol):
    """Converts between the SDK's values and ours."""

    def card(self, card: Any) -> dict[str, Any]:
        """A card as JSON."""

    def request(self, turn: Turn) -> Any:
        """The request that a turn answers."""

    def task(self, task: Task, message: Message | None = None) -> Any:
        """A task of ours for an executor, which may be going to execute its next message."""

    def event(self, event: Any) -> Any:
        """What an executor enqueued, as a value of ours."""

    def refusal(self, error: Exception) -> str | None:
        """The text that the SDK sends to a client for an error of an executor; None if none."""


class Protobuf:
    """a2a-sdk 1.x: the JSON form of its messages is that of A2A 1.0."""

    def card(self, card: Any) -> dict[str, Any]:
        """See `Values.card`."""
        return json.loads(self._json(card))

    def request(self, turn: Turn) -> Any:
        """See `Values.request`."""
        found = {"message": _plain(turn.message)}
        if turn.metadata:
            found["metadata"] = turn.metadata
        if turn.accepted_output_modes:
            modes = {"acceptedOutputModes": list(turn.accepted_output_modes)}
            found["configuration"] = modes
        return self._parse(found, types.SendMessageRequest())

    def task(self, task: Task, message: Message | None = None) -> Any:
        """See `Values.task`."""
        return self._parse(_plain(task), types.Task())

    def event(self, event: Any) -> Any:
        """See `Values.event`."""
        kind = KINDS.get(type(event).__name__)
        if kind is None:
            raise TypeError(f"an executor enqueued {type(event).__name__}, which is no event")
        from google.protobuf.json_format import MessageToDict

        found = MessageToDict(event)
        for message in _messages(found) if kind is not Message else (found,):
            # Protobuf leaves out what is empty. A2A wants a part, and executors send none, for
            # example in a message that is only metadata.
            message.setdefault("parts", [NOTHING])
            message.setdefault("role", Role.AGENT.value)
            message.setdefault("messageId", uuid4().hex)
        for artifact in (*found.get("artifacts", ()), *_one(found, "artifact")):
            artifact.setdefault("parts", [NOTHING])
        return msgspec.convert(found, type=kind)

    def refusal(self, error: Exception) -> str | None:
        """See `Values.refusal`."""
        return error.message if isinstance(error, errors.A2AError) else None

    @staticmethod
    def _json(message: Any) -> str:
        from google.protobuf.json_format import MessageToJson

        return MessageToJson(message, indent=None)

    @staticmethod
    def _parse(document: Any, message: Any) -> Any:
        from google.protobuf.json_format import ParseDict

        return ParseDict(document, message, ignore_unknown_fields=True)


class Pydantic:
    """a2a-sdk 0.3: pydantic models of A2A 0.3."""

    def card(self, card: Any) -> dict[str, Any]:
        """See `Values.card`."""
        found: dict[str, Any] = card.model_dump(mode="json", by_alias=True, exclude_none=True)
        return found

    def request(self, turn: Turn) -> Any:
        """See `Values.request`."""
        found: dict[str, Any] = {"message": _old_message(_plain(turn.message))}
        if turn.metadata:
            found["metadata"] = turn.metadata
        if turn.accepted_output_modes:
            modes = {"acceptedOutputModes": list(turn.accepted_output_modes)}
            found["configuration"] = modes
        return types.MessageSendParams.model_validate(found)

    def task(self, task: Task, message: Message | None = None) -> Any:
        """See `Values.task`. The message is already in its history."""
        found = _plain(task if message is None else _with(task, message))
        status = _old_status(found["status"])
        return types.Task.model_validate(
            {
                **found,
                "kind": "task",
                "status": status,
                "history": [_old_message(each) for each in found.get("history", ())],
                "artifacts": [_old_artifact(each) for each in found.get("artifacts", ())],
            }
        )

    def event(self, event: Any) -> Any:
        """See `Values.event`."""
        name = type(event).__name__
        if name not in KINDS:
            raise TypeError(f"an executor enqueued {name}, which is no event")
        found = event.model_dump(mode="json", by_alias=True, exclude_none=True)
        if name == "Message":
            found = _new_message(found)
        if "status" in found:
            found["status"] = _new_status(found["status"])
        if "artifact" in found:
            found["artifact"] = _new_artifact(found["artifact"])
        for key, convert in (("artifacts", _new_artifact), ("history", _new_message)):
            if key in found:
                found[key] = [convert(each) for each in found[key]]
        for key in ("kind", "final"):
            found.pop(key, None)
        return msgspec.convert(found, KINDS[name], str_keys=True)

    def refusal(self, error: Exception) -> str | None:
        """See `Values.refusal`."""
        if not isinstance(error, errors.ServerError):
            return None
        return getattr(error.error, "message", None) or "The agent could not do this"


def _one(document: dict[str, Any], key: str) -> tuple[Any, ...]:
    return (document[key],) if key in document else ()


def _messages(document: dict[str, Any]) -> tuple[Any, ...]:
    """Those in a task or an update."""
    return (*document.get("history", ()), *_one(document.get("status", {}), "message"))


def _with(task: Task, message: Message) -> Task:
    """The task when it has got the message."""
    if any(each.message_id == message.message_id for each in task.history):
        return task
    said = (task.status.message,) if task.status.message else ()
    status = replace(task.status, message=None)
    return replace(task, history=(*task.history, *said, message), status=status)


def _plain(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    return found


def _old_state(state: str) -> str:
    return state.removeprefix("TASK_STATE_").lower().replace("_", "-")


def _new_state(state: str) -> str:
    return f"TASK_STATE_{state.upper().replace('-', '_')}"


def _old_status(status: dict[str, Any]) -> dict[str, Any]:
    found = {**status, "state": _old_state(status["state"])}
    if "message" in found:
        found["message"] = _old_message(found["message"])
    return found


def _new_status(status: dict[str, Any]) -> dict[str, Any]:
    found = {**status, "state": _new_state(status["state"])}
    found.pop("timestamp", None)  # not every form of time is one of 1.0; the server has its own
    if "message" in found:
        found["message"] = _new_message(found["message"])
    return found


def _old_message(message: dict[str, Any]) -> dict[str, Any]:
    role = message["role"].removeprefix("ROLE_").lower()
    parts = [_old_part(part) for part in message.get("parts", ())]
    return {**message, "kind": "message", "role": role, "parts": parts}


def _new_message(message: dict[str, Any]) -> dict[str, Any]:
    parts = [_new_part(part) for part in message.get("parts", ())]
    found = {**message, "role": f"ROLE_{message['role'].upper()}", "parts": parts}
    found.pop("kind", None)
    return found


def _old_artifact(artifact: dict[str, Any]) -> dict[str, Any]:
    return {**artifact, "parts": [_old_part(part) for part in artifact.get("parts", ())]}


def _new_artifact(artifact: dict[str, Any]) -> dict[str, Any]:
    return {**artifact, "parts": [_new_part(part) for part in artifact.get("parts", ())]}


def _old_part(part: dict[str, Any]) -> dict[str, Any]:
    about = {"metadata": part["metadata"]} if part.get("metadata") else {}
    if "text" in part:
        return {"kind": "text", "text": part["text"], **about}
    if "data" in part:
        data = part["data"]
        return {
            "kind": "data",
            "data": data if isinstance(data, dict) else {"value": data},
            **about,
        }
    file = {"bytes": part["raw"]} if "raw" in part else {"uri": part.get("url", "")}
    if part.get("mediaType"):
        file["mimeType"] = part["mediaType"]
    if part.get("filename"):
        file["name"] = part["filename"]
    return {"kind": "file", "file": file, **about}


def _new_part(part: dict[str, Any]) -> dict[str, Any]:
    about = {"metadata": part["metadata"]} if part.get("metadata") else {}
    if part["kind"] == "text":
        return {"text": part["text"], **about}
    if part["kind"] == "data":
        return {"data": part["data"], **about}
    file = part["file"]
    found = {"raw": file["bytes"]} if "bytes" in file else {"url": file["uri"]}
    if file.get("mimeType"):
        found["mediaType"] = file["mimeType"]
    if file.get("name"):
        found["filename"] = file["name"]
    return {**found, **about}


VALUES: Values = Pydantic() if hasattr(types, "MessageSendParams") else Protobuf()
"""Those of the installed version."""
