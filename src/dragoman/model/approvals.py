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
"""Our extension: the metadata of a task that asks for an approval describes the operation, and the
metadata of the reply names the approval request."""


class ApprovalRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request for approval. A task has at most one: a new request replaces the old one."""

    id: str
    operation: Any
    """The operation to approve."""
    digest: str
    """Binds the approval to the task, the id and the operation."""
    expires: str
    """When the approval expires."""
    used: str = ""
    """The turn that has used it."""


class Approval(Struct, frozen=True, kw_only=True):
    """A client's reply to an approval request."""

    id: str
    digest: str
    approved: bool = True


def issue(task: str, operation: Any, age: float) -> ApprovalRequest:
    """Make an approval request that is valid for `age` seconds. Raises TypeError if the operation
    is not JSON."""
    id = clock.uuid7()
    return ApprovalRequest(
        id=id,
        operation=msgspec.to_builtins(operation, str_keys=True),
        digest=digest(task, id, operation),
        expires=clock.stamp(time.time() + age),
    )


def digest(task: str, id: str, operation: Any) -> str:
    """The digest that an approval is bound to."""
    said = msgspec.json.encode([task, id, operation], order="sorted")
    return f"sha256:{hashlib.sha256(said).hexdigest()}"


def request_in(metadata: Mapping[str, Any] | None) -> ApprovalRequest | None:
    """The approval request of a task, also if it was answered."""
    return _read(metadata, ApprovalRequest)


def answer(grant: ApprovalRequest, *, approved: bool) -> dict[str, Any]:
    """The metadata of a message that approves or declines the request."""
    approval = Approval(id=grant.id, digest=grant.digest, approved=approved)
    return {GRANT: msgspec.to_builtins(approval)}


def approval_in(metadata: Mapping[str, Any] | None) -> Approval | None:
    """The approval in the metadata of a message; None if there is none."""
    return _read(metadata, Approval)


def refusal(
    grant: ApprovalRequest | None, approval: Approval, task: str, operation: Any, turn: str
) -> str:
    """Why the approval does not allow the operation in this turn; empty if it does."""
    if grant is None or grant.id != approval.id:
        return "it is for another approval request"
    if not approval.approved:
        return "it was declined"
    if approval.digest != grant.digest or grant.digest != digest(task, grant.id, operation):
        return "it is for another operation"
    # A turn that runs again has the same idempotency key, so it may repeat the operation.
    if grant.used not in ("", turn):
        return "it was used before"
    if clock.now() > grant.expires:
        return "it has expired"
    return ""


def _read(metadata: Mapping[str, Any] | None, kind: type[T]) -> T | None:
    found = (metadata or {}).get(GRANT)
    try:
        return msgspec.convert(found, kind) if found else None
    except msgspec.ValidationError:
        return None
