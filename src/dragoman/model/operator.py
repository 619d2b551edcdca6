"""Operators: callers that may see the tasks of other owners, and act on them."""

from __future__ import annotations

from dragoman.model.caller import Caller
from dragoman.model.caller import Scope as TaskScope

SEE = "operator"
"""The scope of a caller that may see all tasks of its tenant."""
ACT = "operator:act"
"""The scope of one that may also act on them."""
ALL = "operator:all"
"""With this scope, both hold for all tenants."""

SEEING = frozenset(("GetTask", "SubscribeToTask"))
ACTING = frozenset(("SendMessage", "SendStreamingMessage", "CancelTask"))


class OperatorAccess:
    """One request of an operator, and whose task it was found to be about."""

    __slots__ = ("scope",)

    def __init__(self) -> None:
        self.scope: TaskScope | None = None


def may_see(caller: Caller, tenant: str) -> bool:
    """Whether the caller may see the tasks of all owners of a tenant."""
    if not caller.scopes & {SEE, ACT}:
        return False
    return ALL in caller.scopes or caller.tenant == tenant


def may_act(caller: Caller, tenant: str) -> bool:
    """Whether the caller may also act on them."""
    return ACT in caller.scopes and may_see(caller, tenant)
