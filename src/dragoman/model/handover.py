"""A handover: the address and the secret with which a task is finished from outside."""

from __future__ import annotations

from urllib.parse import urlsplit

from msgspec import Struct


class Handover(Struct, frozen=True):
    """Lets its holder write to a task that was handed over. `str(handover)` is one URL with the
    secret in it; keep it like a password."""

    url: str
    """Where to write: POST an event, with the secret as bearer token."""
    secret: str

    def __str__(self) -> str:
        return f"{self.url}#{self.secret}"

    def __repr__(self) -> str:
        return f"Handover(url={self.url!r}, secret=…)"

    @classmethod
    def parse(cls, text: str) -> Handover:
        """The handover of its text; ValueError."""
        url, _, secret = text.partition("#")
        if not secret or urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("handover: expected a URL with a secret after #, as str(handover) is")
        return cls(url, secret)
