"""The sends that one client makes on behalf of a turn: which tasks they have begun, and what the
turn remembers of them when it is run again."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.client.agent_connection import AgentConnection
from dragoman.client.delegation import Delegation, Steps, current_steps
from dragoman.client.logged_result import content_of
from dragoman.client.upload import File
from dragoman.model.remote_task import BegunTask, SentTask
from dragoman.model.types import Message, TaskState, TaskStatus


class DelegatedSends:
    """The sends of one client. Without a delegation, nothing is remembered."""

    def __init__(self, delegation: Delegation | None, connection: AgentConnection) -> None:
        self.delegation = delegation
        self.open: set[str] = set()
        """Tasks that the client started for the turn and that have not ended."""
        self._connection = connection
        self._all = delegation.steps if delegation is not None else None

    @property
    def steps(self) -> Steps | None:
        """The steps of the turn, if what the client does now is a step; None otherwise."""
        return current_steps(self.delegation)

    @property
    def canceled(self) -> bool:
        """Whether the turn was canceled while tasks that it started still run."""
        return bool(self.open) and self.delegation is not None and self.delegation.canceled()

    def began(self, task: str) -> None:
        """Record that the client started a task."""
        if self.delegation is not None and task:
            if self.delegation.began is not None and task not in self.open:
                name = self._connection.card.name
                self.delegation.began(self._connection.public_address, task, name)
            self.open.add(task)

    def seen(self, task: str, state: TaskState) -> None:
        """Record in which state a task was, after the client has followed it."""
        if self.delegation is not None and self.delegation.seen is not None and task:
            self.delegation.seen(self._connection.public_address, task, state)

    def settled(self, task: str) -> None:
        """Record that the client followed a task until it ended or asked for input."""
        self.open.discard(task)

    def known(self, name: str) -> BegunTask | None:
        """The task that a send has begun in an earlier run of the turn."""
        return self._all.begun(name) if self._all is not None and name else None

    def log(self, name: str, task: str, question: TaskStatus | None = None) -> None:
        """Tell the turn which task a send has begun. `question` is what the send answers."""
        if self._all is not None and name and task:
            asked = question.message.message_id if question and question.message else ""
            answers = None if question is None else (question.timestamp or "", asked)
            where, agent = self._connection.public_address, self._connection.card.name
            self._all.begin(name, SentTask(where, task, answers, agent=agent))

    def name(self, message: Message, files: Mapping[str, File], key: str) -> str:
        """The name of a send; empty if the turn remembers nothing."""
        if self._all is None:
            return ""
        if key:
            return self._all.name(f"{self._connection.recipient}\n{key}".encode())
        return self._all.name(content_of(self._connection.recipient, message, files))
