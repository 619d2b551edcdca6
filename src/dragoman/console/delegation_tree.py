"""The tasks around a task: those that led to it, and those that it has begun at other agents."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from dragoman.admin import (
    Delegated,
    Entry,
    Received,
    TaskRow,
    ancestors,
    delegations,
)
from dragoman.console.http import NotFound
from dragoman.console.session import Operator
from dragoman.console.shapes import DelegationTree, TreeView
from dragoman.console.source import INSIDE
from dragoman.console.store_reader import StoreReader
from dragoman.console.timeline import state_name

DEPTH = 8
"""How many levels below a task are shown."""
MOST = 200
"""How many tasks are shown at most."""
BATCH = 1000
"""How many entries are read at once."""
KEPT = 64
"""The number of logs of which the last place is kept."""


class _Read:
    """What a log says about other tasks, as far as it was read."""

    def __init__(self) -> None:
        self.place = 0
        self.served: set[str] = set()
        """The tasks on whose behalf its messages came."""
        self.begun: tuple[Delegated, ...] = ()
        """The tasks that it has begun."""

    def take(self, entries: Sequence[Entry]) -> None:
        """Go on with what was read. Two requests may have read the same."""
        entries = [entry for entry in entries if entry.number > self.place]
        for entry in entries:
            self.place = entry.number
            if isinstance(entry.event, Received):
                self.served.update(each.task for each in ancestors([entry])[-1:])
        self.begun = delegations(entries, self.begun)


class _Node:
    """A task of the tree, and what hangs on it."""

    def __init__(self, task: str, row: TaskRow | None, logged: Delegated | None = None) -> None:
        self.task, self.row, self.logged = task, row, logged
        self.below: list[_Node] = []
        self.cut = False

    def view(self) -> TreeView:
        """Show it, with everything below it."""
        row, logged = self.row, self.logged
        state, address = "", ""
        if row is not None:
            state = "replied" if row.replied else state_name(row.state)
        elif logged is not None:
            state = state_name(logged.state) if logged.state else ""
            address = "" if logged.address == INSIDE else logged.address
        return TreeView(
            task=self.task,
            agent=row.agent if row is not None else logged.agent if logged is not None else "",
            address=address,
            state=state,
            seen=logged.seen if logged is not None and row is None else "",
            here=row is not None,
            over=row is not None and row.over,
            below=tuple(node.view() for node in self.below),
            cut=self.cut,
        )


class Delegations:
    """Reads trees of tasks. It keeps how far it has read some logs, so that a tree that is read
    again costs only what is new."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._kept: OrderedDict[str, _Read] = OrderedDict()

    async def tree(self, operator: Operator, row: TaskRow) -> DelegationTree:
        """The tasks around a task. A task is shown as one of this store only if the operator may
        see it, and if its own log says that it serves the task above it."""
        above = []
        for each in ancestors(await self._reader.entries(row.id, 0, 1)):
            found = await self._visible(operator, each.task)
            here = _Node(each.task, found).view()
            above.append(here if found else TreeView(task=each.task, agent=each.agent))
        root = _Node(row.id, row)
        known, left = {row.id, *(each.task for each in above)}, MOST
        level = [root]
        for depth in range(DEPTH + 1):
            below: list[_Node] = []
            for node in level:
                for logged in await self._begun(node):
                    if depth == DEPTH or not left:
                        node.cut = True
                        break
                    left -= 1
                    theirs = None
                    if logged.task not in known:
                        theirs = await self._serving(operator, logged.task, node.task)
                    known.add(logged.task)
                    node.below.append(_Node(logged.task, theirs, logged))
                below += node.below
            level = below
        return DelegationTree(above=tuple(above), below=root.view().below, cut=root.cut)

    async def _begun(self, node: _Node) -> tuple[Delegated, ...]:
        if node.row is None or not node.row.private:
            return ()
        return (await self._read(node.task)).begun

    async def _serving(self, operator: Operator, task: str, above: str) -> TaskRow | None:
        """The row of a task, if its log says that it serves the one above."""
        row = await self._visible(operator, task)
        if row is None:
            return None
        first = ancestors(await self._reader.entries(task, 0, 1))
        if first and first[-1].task == above:
            return row
        return row if above in (await self._read(task)).served else None

    async def _visible(self, operator: Operator, task: str) -> TaskRow | None:
        try:
            row = await self._reader.row(task)
        except NotFound:
            return None
        mine = operator.everywhere or row.tenant == operator.caller.tenant
        return row if mine else None

    async def _read(self, task: str) -> _Read:
        """What a log says, to its end."""
        read = self._kept.setdefault(task, _Read())
        self._kept.move_to_end(task)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        while found := await self._reader.entries(task, read.place, BATCH):
            read.take(found)
        return read
