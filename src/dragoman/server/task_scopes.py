"""Whose tasks a request may access: the tenant that it names, and the policy for shared tasks."""

from __future__ import annotations

import inspect
from collections.abc import Collection

from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.model.approvals import approval_in
from dragoman.model.caller import Access, Call, Policy, Scope, fault, long, unqualified
from dragoman.model.errors import Forbidden, InvalidParams
from dragoman.model.operator import ACT, ACTING, SEEING, OperatorAccess, may_act, may_see
from dragoman.model.reserved_path_names import reserved
from dragoman.model.types import SendMessageRequest
from dragoman.stores.store import Store
from dragoman.telemetry.logs import logger

FOREIGN = (
    "The caller may not use this tenant: send a credential of the tenant, omit the tenant, "
    "or allow it on the server (tenants= of the scheme)"
)


class TaskScopes:
    """Finds the scope of a request to an agent."""

    def __init__(
        self, agent: Agent, store: Store, policy: Policy | None, mounted: Collection[str]
    ) -> None:
        self._agent = agent
        self._store = store
        self._policy = policy
        self.anybody = Scope(agent.key)
        self._mounted = frozenset(mounted)
        """Names below the agent's path that lead to other applications, so they are no tenants."""

    def of_call(self, tenant: str, call: Call) -> Scope:
        """The caller's own tasks in the tenant that the request names, or in the caller's. Raises
        Forbidden."""
        caller = call.caller
        if not tenant and not caller.tenant and not caller.identity:
            return self.anybody
        if tenant and tenant != caller.tenant:
            if why := fault(tenant) or long(tenant) or reserved(tenant):
                raise InvalidParams.at("tenant", why)
            # The tenant on the card is for callers whose credential names no other.
            if not caller.may_name(tenant) and (caller.tenant or tenant != self._agent.tenant):
                raise Forbidden(FOREIGN)
        found = tenant or caller.tenant
        if found in self._mounted:
            raise InvalidParams.at("tenant", f"{found!r} is the path of another application")
        return Scope(self._agent.key, found, caller.qualified)

    async def of_task(self, tenant: str, call: Call, operation: str, task: str) -> Scope:
        """Whose tasks this operation may access: the caller's own, unless the policy shares this
        one."""
        scope = self.of_call(tenant, call)
        if call.operator is not None and task:
            found = await self._of_operator(scope, call, call.operator, operation, task)
            if found is not None:
                return found
        if self._policy is None or not task:
            return scope
        owner = await self._store.owner(scope, task)
        if owner is None or owner == scope.owner:
            return scope
        shared = await self._shared(call, operation, task, owner)
        return replace(scope, owner=owner) if shared else scope

    async def _of_operator(
        self, own: Scope, call: Call, access: OperatorAccess, operation: str, task: str
    ) -> Scope | None:
        """Whose task it is, if an operator may do this with it and it is not the operator's own.
        Raises Forbidden if the operator may only see it."""
        if not may_see(call.caller, call.caller.tenant) or operation not in SEEING | ACTING:
            return None
        head = await self._store.find(self._agent.key, task)
        if head is None or head.scope == own or not may_see(call.caller, head.scope.tenant):
            return None
        access.scope = head.scope
        if operation in ACTING and not may_act(call.caller, head.scope.tenant):
            raise Forbidden(f"The caller may see this task; to act on it needs the scope {ACT}")
        return head.scope

    async def check_message(
        self, request: SendMessageRequest, call: Call, operation: str, scope: Scope
    ) -> None:
        """Raise Forbidden if a message of an operator to the task of somebody else brings a
        webhook, or approves something that the policy does not let this operator approve."""
        if call.operator is None or call.operator.scope is None:
            return
        configuration, message = request.configuration, request.message
        if configuration is not None and configuration.task_push_notification_config is not None:
            raise Forbidden("An operator may not add a webhook to the task of another owner")
        approval = approval_in(request.metadata) or approval_in(message.metadata)
        if approval is None or not approval.approved:
            return
        if not await self._shared(call, operation, message.task_id, scope.owner):
            raise Forbidden("The policy does not let this operator approve for another owner")

    async def _shared(self, call: Call, operation: str, task: str, owner: str) -> bool:
        """Whether the policy allows the caller this operation on a task of this owner."""
        if self._policy is None:
            return False
        try:
            realm, identity = unqualified(owner)
            found = self._policy(Access(call.caller, operation, task, identity, realm))
            shared = await found if inspect.isawaitable(found) else found
        except Exception:
            logger.exception("the sharing policy raised an error, so nothing is shared")
            return False
        return shared is True
