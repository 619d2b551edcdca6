"""Receipts: what identifies a repeated request."""

from __future__ import annotations

import hashlib

import msgspec

from dragoman.model.caller import Call, Scope
from dragoman.model.types import CancelTaskRequest, Message
from dragoman.stores.store import Receipt


def of_send(message: Message, call: Call, chosen: str, scope: Scope, merge: str) -> Receipt | None:
    """Identifies a repeated send; None if nothing does. `chosen` is the id of a new task, if the
    client chose it, and `merge` the setting `idempotency`."""
    merged = merge == "always" or (merge == "authenticated" and call.caller.identity)
    if not chosen and not call.key and not merged:
        return None
    # Callers that choose task ids send no message ids.
    said = (message.parts, call.key) if call.new_task else message
    digest = hashlib.sha256(msgspec.json.encode(said)).digest()
    if chosen:  # two concurrent starts are one
        return Receipt(f"task:{chosen}", digest)
    guest = _guest_prefix(call, scope)
    if call.key:
        return Receipt(f"{guest}key:{call.key}", digest)
    # Clients reuse message ids: only the same id with the same body is the same send.
    return Receipt(f"{guest}message:{message.message_id}:{digest.hex()}", digest)


def of_cancel(request: CancelTaskRequest, call: Call, scope: Scope) -> Receipt | None:
    """Identifies a repeated cancel, if it has a key."""
    if not call.key:
        return None
    said = ("CancelTask", request.id, request.metadata)
    digest = hashlib.sha256(msgspec.json.encode(said)).digest()
    return Receipt(f"{_guest_prefix(call, scope)}key:{call.key}", digest)


def _guest_prefix(call: Call, scope: Scope) -> str:
    """A prefix that separates the keys of callers with whom a task is shared from the owner's
    keys."""
    name = call.caller.qualified
    return "" if scope.owner == name else f"of:{name}:"
