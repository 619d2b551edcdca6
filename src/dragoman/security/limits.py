"""How much one caller may ask for: a rate of requests, and a share of what is held."""

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
from dragoman.security.addresses import client_network

KNOWN = 100_000
"""The most callers that are remembered; the longest silent are forgotten first."""
GOOD = 5
"""For so many seconds a count of an owner's tasks is good."""
Count: TypeAlias = Callable[[Scope], Awaitable[Mapping[TaskState, int]]]


class Rate:
    """A token bucket for each caller: so many requests a second, and so many at once."""

    def __init__(
        self, rate: float, burst: int, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate = rate
        self.burst = max(1, burst)
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str) -> None:
        """Count a request; LimitExceeded says when the next one may come."""
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
    """The rates of an application: by address before anything is verified, then by identity."""

    def __init__(
        self, *, address: float, identity: float, burst: int, proxies: Sequence[str] = ()
    ) -> None:
        self.proxies = Proxies(proxies)
        self._addresses = Rate(address, burst) if address else None
        self._identities = Rate(identity, burst) if identity else None

    def knock(self, peer: str, forwarded: str) -> None:
        """LimitExceeded if too many requests come from there."""
        if self._addresses is not None:
            self._addresses.take(client_network(self.proxies.origin(peer, forwarded)))

    def enter(self, caller: Caller) -> None:
        """LimitExceeded if the caller makes too many."""
        if self._identities is not None:
            self._identities.take(caller.owner)


class Share:
    """What one owner may still begin."""

    def __init__(self) -> None:
        self.room = 0
        self.landing = 0
        """What has begun, and may not be counted yet."""
        self.until = 0.0
        """When others may have begun something, so that it must be counted again."""
        self.reason = ""
        self.counting = asyncio.Lock()


class Quota:
    """How many open tasks an owner may have, and how many of those that wait for its answer.

    They are not counted for each new one, but again when as many have begun as there was room
    for. With several replicas an owner can so have more, for as long as a count is good.
    """

    def __init__(self, tasks: int, waiting: int, count: Count) -> None:
        self._tasks = tasks or math.inf
        self._waiting = waiting or math.inf
        self._count = count
        self._shares: OrderedDict[Scope, Share] = OrderedDict()

    async def take(self, scope: Scope) -> str:
        """Count a task that begins, until it has `landed`; if the owner has too many, why it must
        not."""
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
        """It is in the store, or was refused there."""
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
    """The proxies in front of a server, whose word on where a request comes from is believed."""

    def __init__(self, networks: Sequence[str]) -> None:
        try:
            found = tuple(ipaddress.ip_network(network, strict=False) for network in networks)
        except ValueError as error:
            raise ValueError(f"proxies: {error}") from None
        self._networks = found

    def origin(self, peer: str, forwarded: str) -> str:
        """Where a request comes from: the last address that is not a proxy's."""
        found = peer
        hops = [hop.strip() for hop in forwarded.split(",")] if forwarded else []
        while hops and self._known(found):
            found = _bare(hops.pop())
        return found

    def _known(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)


def _bare(hop: str) -> str:
    """An address without its port, as some proxies write it."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    host, colon, rest = hop.partition(":")
    return host if colon and ":" not in rest else hop
