"""The ids of tasks that MCP clients see.

The id of a task of an App's own agent is the id of the A2A task. The id of a task at a remote agent
also names the agent, and has a signature that is bound to the caller who began it: nobody else can
use it, and nothing needs to be stored.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from urllib.parse import quote, unquote

from msgspec import Struct

from dragoman import Caller


class RemoteId(Struct, frozen=True):
    """What the id of a task at a remote agent says."""

    agent: str
    """The key of the agent."""
    task: str
    """The id of the task at the agent."""


class RemoteIds:
    """Writes and reads ids with a secret that all replicas share."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def write(self, agent: str, task: str, caller: Caller) -> str:
        """Return the id for this caller."""
        name = f"{agent}.{quote(task, safe='')}"
        return f"{name}.{self._signature(name, caller)}"

    def read(self, id: str, caller: Caller) -> RemoteId | None:
        """Return what an id says; None if it was not written for this caller."""
        name, _, signature = id.rpartition(".")
        agent, _, task = name.partition(".")
        expected = self._signature(name, caller)
        if not task or not hmac.compare_digest(signature.encode(), expected.encode()):
            return None
        return RemoteId(agent, unquote(task))

    def _signature(self, name: str, caller: Caller) -> str:
        said = "\0".join((caller.tenant, caller.qualified, name)).encode("utf-8", "surrogatepass")
        found = hmac.digest(self._secret, said, hashlib.sha256)[:16]
        return urlsafe_b64encode(found).decode().rstrip("=")
