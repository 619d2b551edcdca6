"""What has arrived of the answer to a message, or of a task that is followed, and whether more can
follow."""

from __future__ import annotations

from dragoman.client.agent_connection import AgentConnection
from dragoman.client.fold import Event, Folding
from dragoman.model.remote_task import BegunTask
from dragoman.model.types import (
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)


class AnswerState:
    """The task and the message so far, and where the stream of their events stands."""

    def __init__(
        self,
        request: SendMessageRequest | SubscribeToTaskRequest,
        connection: AgentConnection,
        known: BegunTask | None,
        *,
        polls: bool,
        keep: bool,
    ) -> None:
        self.request = request
        self.known = known
        """The task that the send has begun in an earlier run of the turn."""
        self.polls = polls
        """Whether the agent cannot stream this, so that the client polls."""
        self.folding = Folding(keep=keep)
        self.number = 0
        """The number of the last event, where the agent numbers events."""
        self.last: Event | None = None
        """The last event of the latest connection."""
        self.before: TaskStatus | None = None
        """The status that a follow-up message answers, if it had to be fetched."""
        self.asked: TaskStatus | None = None
        """The same, if it was fetched for later runs of the turn."""
        self._connection = connection

    @property
    def id(self) -> str:
        """The id of the task; empty until it is known."""
        if self.folding.id:
            return self.folding.id
        request = self.request
        if isinstance(request, SubscribeToTaskRequest):
            return request.id
        return request.message.task_id

    def question(self, event: Event) -> TaskStatus | None:
        """The status that the message answers, if the agent still shows it."""
        before = self.before or self.asked
        if before is None and self.follows and isinstance(event, Task):
            before = event.status
        return before if before is not None and before.state.interrupted else None

    @property
    def follows(self) -> bool:
        """Whether the message goes to an existing task."""
        request = self.request
        return isinstance(request, SendMessageRequest) and bool(request.message.task_id)

    @property
    def can_resume(self) -> bool:
        """Whether the agent can send exactly the events after the last one."""
        return self._connection.resumes and self.number > 0

    @property
    def place(self) -> str:
        """The place of the last event in the log of the task."""
        return f"{self.folding.id}:{self.number}"

    def asks(self) -> bool:
        """Whether the agent asks the sender for input."""
        status = self.folding.status
        sent = isinstance(self.request, SendMessageRequest)
        return sent and status is not None and status.state.interrupted

    def answered(self) -> bool:
        """Whether the last event was a question: the next turn is another stream."""
        last = self.last
        asked = isinstance(last, TaskStatusUpdateEvent) and last.status.state
        return self.asks() and asked is TaskState.INPUT_REQUIRED

    def needs_login(self) -> bool:
        """Whether a person must log in first. A subscription would be silent until then."""
        status = self.folding.status
        login = status is not None and status.state is TaskState.AUTH_REQUIRED
        return login and self.asks() and not self._unread()

    def final(self) -> bool:
        """Whether nothing more can follow, even if the connection broke."""
        status = self.folding.status
        if status is None:
            return self.folding.message is not None
        # A follow-up may first receive the question that it answers.
        return status.state.terminal or (self.answered() and not (self.follows and self.can_resume))

    def complete(self) -> bool:
        """Whether a connection that ended normally has brought everything."""
        if self.final() or self.answered():
            return True
        # A follow-up starts with the task as it was when the message arrived, and after
        # auth-required the agent may continue. If the agent numbers events, the client asks once
        # more and gets nothing.
        return (
            self.asks()
            and not self._unread()
            and (self.last is None or self.polls or not self.can_resume or self.known is not None)
        )

    def _unread(self) -> bool:
        """Whether the agent has only received the follow-up: the status is still the one before
        it."""
        before, status = self.before, self.folding.status
        if self.known is not None and self.known.answers is not None and status is not None:
            timestamp, question = self.known.answers
            said = status.message.message_id if status.message is not None else question
            return bool(timestamp) and (status.timestamp, said) == self.known.answers
        if before is None or status is None:
            return False
        same = status.timestamp is not None and status.timestamp == before.timestamp
        return same and status.message in (None, before.message)
