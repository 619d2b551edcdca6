"""Bells: wake-ups between processes, by memory, PostgreSQL, NATS or Redis.

`connect` makes the bell of a URL; the backends are in the table of `dragoman.backends`.
"""

from __future__ import annotations

from dragoman import backends
from dragoman.bells.bell import Bell


def connect(url: str) -> Bell:
    """Make the bell of a URL; it opens nothing yet. Raises ValueError."""
    found: Bell = backends.find("bell", url)(url)
    return found
