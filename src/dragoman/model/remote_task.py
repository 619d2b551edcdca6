"""The tasks of other agents that a task began."""

from __future__ import annotations

from urllib.parse import urlsplit

from msgspec import Struct


class RemoteTask(Struct, frozen=True):
    """A task of another agent: where that agent is, and the task's id there."""

    address: str
    id: str


class BegunTask(RemoteTask, frozen=True, omit_defaults=True):
    """A task of another agent that a message has begun or gone on with."""

    answers: tuple[str, str] | None = None
    """The time and the message id of the question that the message answers, if the task still
    showed it when the agent had the message."""


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
