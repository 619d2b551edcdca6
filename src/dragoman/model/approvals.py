"""Approvals: permission for one operation of one task, once."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from dragoman.model import clock

T = TypeVar("T")

GRANT = "urn:dragoman:grant:v1"
"""Our extension: the metadata of a task that asks for an approval tells what for, and the metadata
of the message that answers tells which one it approves."""


class ApprovalRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An approval that is asked for. A task has one at a time: another one takes its place."""

    id: str
    operation: Any
    """What is to be done."""
    digest: str
    """Of the task, the id and the operation: what is approved is this and nothing else."""
    expires: str
    """When it is too late to use it."""
    used: str = ""
    """The turn that has used it."""


class Approval(Struct, frozen=True, kw_only=True):
    """What a client says of a grant."""

    id: str
    digest: str
    approved: bool = True


def issue(task: str, operation: Any, age: float) -> ApprovalRequest:
    """A new grant, good for so many seconds; TypeError if the operation is not JSON."""
    id = clock.uuid7()
    return ApprovalRequest(
        id=id,
        operation=msgspec.to_builtins(operation, str_keys=True),
        digest=digest(task, id, operation),
        expires=clock.stamp(time.time() + age),
    )


def digest(task: str, id: str, operation: Any) -> str:
    """What an approval is bound to."""
    said = msgspec.json.encode([task, id, operation], order="sorted")
    return f"sha256:{hashlib.sha256(said).hexdigest()}"


def asked(metadata: Mapping[str, Any] | None) -> ApprovalRequest | None:
    """The grant that a task asks for, or has last asked for."""
    return _read(metadata, ApprovalRequest)


def answer(grant: ApprovalRequest, *, approved: bool) -> dict[str, Any]:
    """The metadata of a message that approves or declines it."""
    told = Approval(id=grant.id, digest=grant.digest, approved=approved)
    return {GRANT: msgspec.to_builtins(told)}


def answered(metadata: Mapping[str, Any] | None) -> Approval | None:
    """What a message says of a grant."""
    return _read(metadata, Approval)


def refusal(
    grant: ApprovalRequest | None, approval: Approval, task: str, operation: Any, turn: str
) -> str:
    """Why the approval does not allow the operation in this turn; nothing if it does."""
    if grant is None or grant.id != approval.id:
        return "it is for another approval request"
    if not approval.approved:
        return "it was declined"
    if approval.digest != grant.digest or grant.digest != digest(task, grant.id, operation):
        return "it is for another operation"
    # a turn that is run again has the same idempotency key, and so may do again what it did
    if grant.used not in ("", turn):
        return "it was used before"
    if clock.now() > grant.expires:
        return "it has expired"
    return ""


def _read(metadata: Mapping[str, Any] | None, kind: type[T]) -> T | None:
    told = (metadata or {}).get(GRANT)
    try:
        return msgspec.convert(told, kind) if told else None
    except msgspec.ValidationError:
        return None
