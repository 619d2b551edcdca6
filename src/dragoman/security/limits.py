"""Limits for one caller: a rate of requests, and a number of open tasks."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from dragoman.model.caller import Caller, Scope
from dragoman.model.errors import LimitExceeded
from dragoman.model.types import TaskState
from dragoman.security.client_network import client_network

KNOWN = 100_000
"""The most callers to remember; the least recently active are removed first."""
GOOD = 5
"""Seconds for which a count of an owner's tasks is reused."""
Count: TypeAlias = Callable[[Scope], Awaitable[Mapping[TaskState, int]]]


class Rate:
    """A token bucket for each caller: a rate per second, and a burst."""

    def __init__(
        self, rate: float, burst: int, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate = rate
        self.burst = max(1, burst)
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str) -> None:
        """Count a request. Raises LimitExceeded, which says when the next one may come."""
        now = self._now()
        left, then = self._buckets.pop(who, (float(self.burst), now))
        left = min(float(self.burst), left + (now - then) * self.rate)
        late = left < 1
        self._buckets[who] = (left if late else left - 1), now
        if len(self._buckets) > KNOWN:
            self._buckets.popitem(last=False)
        if late:
            raise LimitExceeded(
                f"More than {self.rate:g} requests per second",
                retry_after=math.ceil((1 - left) / self.rate),
            )


class Limits:
    """The rates of an application: by address before authentication, then by identity."""

    def __init__(
        self, *, address: float, identity: float, burst: int, proxies: Sequence[str] = ()
    ) -> None:
        self.proxies = Proxies(proxies)
        self._addresses = Rate(address, burst) if address else None
        self._identities = Rate(identity, burst) if identity else None

    def knock(self, peer: str, forwarded: str) -> None:
        """Raise LimitExceeded if too many requests come from this address."""
        if self._addresses is not None:
            self._addresses.take(client_network(self.proxies.origin(peer, forwarded)))

    def enter(self, caller: Caller) -> None:
        """Raise LimitExceeded if the caller sends too many requests."""
        if self._identities is not None:
            self._identities.take(caller.owner)


class Share:
    """What one owner may still start."""

    def __init__(self) -> None:
        self.room = 0
        self.landing = 0
        """The tasks that have started and may not be counted yet."""
        self.until = 0.0
        """When to count again, because other replicas may have started tasks."""
        self.reason = ""
        self.counting = asyncio.Lock()


class Quota:
    """Limits the open tasks of an owner, and those of them that wait for its input.

    It does not count for each new task, but again when the free places are used up. With several
    replicas an owner can exceed the limit for as long as a count is reused.
    """

    def __init__(self, tasks: int, waiting: int, count: Count) -> None:
        self._tasks = tasks or math.inf
        self._waiting = waiting or math.inf
        self._count = count
        self._shares: OrderedDict[Scope, Share] = OrderedDict()

    async def take(self, scope: Scope) -> str:
        """Count a new task until `landed` is called. Return the reason if the owner has too
        many."""
        share = self._shares.get(scope)
        if share is None:
            share = self._shares[scope] = Share()
            if len(self._shares) > KNOWN:
                self._shares.popitem(last=False)
        share.landing += 1
        if share.room < 1 or time.monotonic() >= share.until:
            async with share.counting:
                if share.room < 1 or time.monotonic() >= share.until:
                    await self._recount(scope, share)
        if share.room < 1:
            return share.reason
        share.room -= 1
        return ""

    def landed(self, scope: Scope) -> None:
        """The task is in the store, or the store refused it."""
        if share := self._shares.get(scope):
            share.landing -= 1

    async def _recount(self, scope: Scope, share: Share) -> None:
        found = await self._count(scope)
        open = sum(number for state, number in found.items() if not state.terminal)
        waiting = sum(number for state, number in found.items() if state.interrupted)
        if waiting >= self._waiting:
            share.reason = (
                f"{waiting} of your tasks wait for your input; answer or cancel some of them"
            )
        else:
            share.reason = f"{open} of your tasks are unfinished; wait until some of them end"
        room = min(self._tasks - open, self._waiting - waiting) - (share.landing - 1)
        share.room = int(min(room, sys.maxsize))
        share.until = time.monotonic() + GOOD


class Proxies:
    """The trusted proxies in front of a server, whose forwarded client addresses are accepted."""

    def __init__(self, networks: Sequence[str]) -> None:
        try:
            found = tuple(ipaddress.ip_network(network, strict=False) for network in networks)
        except ValueError as error:
            raise ValueError(f"proxies: {error}") from None
        self._networks = found

    def origin(self, peer: str, forwarded: str) -> str:
        """The address of the client: the last one that is not a proxy."""
        found = peer
        hops = [hop.strip() for hop in forwarded.split(",")] if forwarded else []
        while hops and self.trusts(found):
            found = _without_port(hops.pop())
        return found

    def trusts(self, address: str) -> bool:
        """Whether this is the address of a proxy."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)


def _without_port(hop: str) -> str:
    """An address without its port, which some proxies add."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    host, colon, rest = hop.partition(":")
    return host if colon and ":" not in rest else hop
