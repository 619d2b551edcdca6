"""The tasks of other agents that a task began."""

from __future__ import annotations

from urllib.parse import urlsplit

from msgspec import Struct

from dragoman.model.types import TaskState


class RemoteTask(Struct, frozen=True):
    """A task of another agent: where that agent is, and the task's id there."""

    address: str
    id: str


class BegunTask(RemoteTask, frozen=True, omit_defaults=True):
    """A task of another agent that a message has begun or gone on with."""

    answers: tuple[str, str] | None = None
    """The time and the message id of the question that the message answers, if the task still
    showed it when the agent had the message."""


SENT = "sent"
"""The kind of the private entry that names a task of another agent."""
SEEN = "seen"
"""The kind of the private entry with the state in which such a task was last seen. The entry has
the turn 0, so that versions that do not know the kind pass over it when they run the turn again."""


class SentTask(BegunTask, frozen=True, omit_defaults=True, kw_only=True):
    """The same as it is logged, with the name on the agent's card."""

    agent: str = ""


class SeenTask(RemoteTask, frozen=True):
    """The state in which a task of another agent was seen."""

    state: TaskState


def plain_address(url: str) -> str:
    """A URL without what may be secret in it: user, password, query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="", fragment="").geturl()


def covers(base: str, address: str) -> bool:
    """Whether an address is at or below a base address, on the same host and port."""
    outer, inner = urlsplit(plain_address(base)), urlsplit(plain_address(address))
    if (outer.scheme, outer.netloc.lower()) != (inner.scheme, inner.netloc.lower()):
        return False
    path = outer.path.rstrip("/")
    return inner.path == path or inner.path.startswith(f"{path}/") or not path
