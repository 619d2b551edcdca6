"""The webhooks of logs in memory: which are due, in the order of turns of their scopes."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice

from msgspec.structs import replace

from dragoman.model.caller import Scope
from dragoman.stores.memory.log import Log
from dragoman.stores.store import Owner, Webhook, WebhookCursor, owner_of


class Deliveries:
    """The webhook cursors of these logs."""

    def __init__(self, logs: Mapping[str, Log]) -> None:
        self._logs = logs
        self._pushing: dict[Scope, dict[str, Log]] = {}  # with webhooks that may be due
        self._resting: list[tuple[float, str]] = []  # and when the other webhooks will be due

    def add(self, row: Log, webhook: Webhook, cursor: int) -> None:
        """Add or replace a webhook."""
        key = webhook.config.id
        known = row.lines.get(key)
        if not row.lines:
            row.lines = {}  # its own cursor
        row.lines[key] = WebhookCursor(
            scope=row.scope,
            task=row.id,
            webhook=webhook,
            cursor=known.cursor if known else cursor,
            # after a deletion it must not get a ticket that a delivery still holds
            ticket=known.ticket + 1 if known else time.time_ns(),
        )
        self.push(row)

    def take(
        self, agents: Collection[str], limit: int, lease: float, passing: Collection[Owner]
    ) -> Sequence[WebhookCursor]:
        """See `Store.dispatch`."""
        now = time.time()
        while self._resting and self._resting[0][0] <= now:
            task = heappop(self._resting)[1]
            if (known := self._logs.get(task)) is not None:
                self.push(known)
        taken: list[WebhookCursor] = []
        scopes = [
            scope
            for scope in self._pushing
            if scope.agent in agents and owner_of(scope) not in passing
        ]
        while scopes and len(taken) < limit:
            # one webhook of each scope in turn
            for scope in scopes[: limit - len(taken)]:
                if (line := self._first(scope, now, lease)) is None:
                    scopes.remove(scope)
                    continue
                taken.append(line)
                if scope in self._pushing:  # next time, the others go first
                    self._pushing[scope] = self._pushing.pop(scope)
        return taken

    def _first(self, scope: Scope, now: float, lease: float) -> WebhookCursor | None:
        """Take the webhook of a scope that has been due for the longest time."""
        while logs := self._pushing.get(scope):
            log = next(iter(logs.values()))
            due = min(log.behind, key=lambda line: line.due, default=None)
            if due is not None and due.due <= now:
                line = replace(due, ticket=due.ticket + 1, due=now + lease)
                log.lines[line.webhook.config.id] = line
                self._rest(log, now)
                return line
            self._rest(log, now)
        return None

    def record(
        self, line: WebhookCursor, cursor: int, *, wait: float, failed: str, parked: bool
    ) -> bool:
        """See `Store.dispatched`."""
        log = self._logs.get(line.task)
        known = log.lines.get(line.webhook.config.id) if log else None
        if log is None or known is None or known.ticket != line.ticket:
            return False
        log.lines[line.webhook.config.id] = replace(
            known,
            cursor=cursor,
            attempts=known.attempts + 1
            if failed
            else known.attempts
            if cursor == known.cursor
            else 0,
            due=time.time() + wait,
            parked=parked,
            reason=failed or (known.reason if cursor == known.cursor else ""),
        )
        self.push(log)
        return True

    def waiting(self, limit: int, parked: bool | None) -> Sequence[WebhookCursor]:
        """See `Store.undelivered`."""
        found = (
            line
            for log in self._logs.values()
            for line in log.lines.values()
            if line.cursor < log.last and parked in (None, line.parked)
        )
        return list(islice(found, limit))

    def redrive(self, task: str, webhook: str) -> int:
        """See `Store.redrive`."""
        count = 0
        for log in self._logs.values():
            for key, line in log.lines.items():
                if line.parked and task in ("", log.id) and webhook in ("", key):
                    log.lines[key] = replace(line, parked=False, attempts=0, due=0.0)
                    self.push(log)
                    count += 1
        return count

    def push(self, log: Log) -> None:
        """Look at a log whose webhooks may be due."""
        self._pushing.setdefault(log.scope, {})[log.id] = log

    def remove(self, log: Log) -> None:
        """Stop looking at a log."""
        logs = self._pushing.get(log.scope, {})
        logs.pop(log.id, None)
        if not logs:
            self._pushing.pop(log.scope, None)

    def _rest(self, log: Log, now: float) -> None:
        """Stop looking at a log until one of its webhooks is due."""
        due = min((line.due for line in log.behind), default=math.inf)
        if due <= now:
            return
        self.remove(log)
        if due < math.inf and not now < log.rests <= due:  # otherwise it is read earlier
            log.rests = due
            heappush(self._resting, (due, log.id))
