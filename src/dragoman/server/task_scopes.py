"""Whose tasks a request may access: the tenant that it names, and the policy for shared tasks."""

from __future__ import annotations

import inspect
from collections.abc import Collection

from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.model.caller import Access, Call, Policy, Scope, fault, long, unqualified
from dragoman.model.errors import Forbidden, InvalidParams
from dragoman.model.reserved_names import reserved
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
        if self._policy is None or not task:
            return scope
        owner = await self._store.owner(scope, task)
        if owner is None or owner == scope.owner:
            return scope
        try:
            realm, identity = unqualified(owner)
            found = self._policy(Access(call.caller, operation, task, identity, realm))
            shared = await found if inspect.isawaitable(found) else found
        except Exception:
            logger.exception("the sharing policy raised an error, so nothing is shared")
            shared = False
        return replace(scope, owner=owner) if shared is True else scope
