"""What is kept of a task between the turns of an executor, as a private value of the task."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman import Message, Role, Task, TaskState, TaskStatus, Turn


class ExecutorState(Struct, frozen=True, omit_defaults=True):
    """What an executor needs and the log of a task does not contain."""

    after: str = ""
    """The message whose turn has asked."""
    state: str = ""
    question: str = ""
    """The state and the message of that question."""
    turn: str = ""
    artifacts: dict[str, tuple[int, int]] = {}
    """The sizes of the artifacts when this turn began."""

    async def save(self, turn: Turn) -> None:
        """Keep it for the later turns."""
        await turn.save(msgspec.json.encode(self))

    def asked(self, turn: Turn, status: TaskStatus) -> ExecutorState:
        """The same with the question of a turn."""
        question = status.message.message_id if status.message else ""
        after, state = turn.message.message_id, status.state.value
        return replace(self, after=after, state=state, question=question)

    def forgotten(self) -> ExecutorState:
        """The same after a turn that has gone on without an answer."""
        return replace(self, after="", state="", question="")

    def before(self, task: Task, message: Message) -> Task:
        """The task as it was before it got this message. In the log, a question is over as soon as
        its answer has come; executors look at the state to see what the message is."""
        ids = [each.message_id for each in task.history]
        place = ids.index(message.message_id) if message.message_id in ids else 0
        if not place:
            return task
        history, status = task.history[:place], task.status
        asker = next((each for each in reversed(history) if each.role is Role.USER), None)
        if asker is not None and asker.message_id == self.after:
            status = replace(status, state=TaskState(self.state), message=None)
            if history[-1].message_id == self.question:
                status, history = replace(status, message=history[-1]), history[:-1]
        return replace(task, history=history, status=status)


def saved_state(turn: Turn) -> ExecutorState:
    """What was kept before this turn."""
    return msgspec.json.decode(turn.saved, type=ExecutorState) if turn.saved else ExecutorState()
