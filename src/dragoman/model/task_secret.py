"""Secrets that a task gives to others, so that they may wake it or write to it.

The task's log keeps the digest of a secret, never the secret.
"""

from __future__ import annotations

import hashlib
import secrets

WAITING = "waiting"
"""The kind of the private entry whose secret wakes a handler that waits for another agent."""
HANDED_OVER = "handed_over"
"""The kind of the private entry whose secret lets its holder write to the task."""

WRITTEN = "written"
"""The kind of the private entry that names such a write, so that a repeated one is known."""


def new_secret() -> str:
    """A random secret."""
    return secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """The form of a secret that a log keeps."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
