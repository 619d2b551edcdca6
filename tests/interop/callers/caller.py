"""What a Python caller is: what its SDK is asked to do. It imports nothing of ours and nothing of
any SDK, since a caller runs in an environment of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

Told = dict[str, Any]


class Absent(Exception):
    """The SDK has no way to say this."""


class Refused(Exception):
    """What the SDK gave back instead of raising: an error as a value."""

    def __init__(self, error: Told) -> None:
        super().__init__(error.get("message"))
        self.code = error.get("code")


class Caller:
    """What a caller is asked to do; each one does what its SDK can. Parts are given and told in
    the plain form; everything else is told as the SDK's own JSON."""

    async def card(self) -> Told:
        """Its name, and the transports that it announces."""
        raise Absent

    async def send(
        self, parts: list[Told], *, task: str = "", context: str = "", wait: bool = True,
        webhook: Told | None = None,
    ) -> Told:  # fmt: skip
        """A task or a message."""
        raise Absent

    def stream(self, parts: list[Told]) -> AsyncIterator[Told]:
        """The events of a new task."""
        raise Absent

    def subscribe(self, task: str) -> AsyncIterator[Told]:
        """The events of a task that runs."""
        raise Absent

    async def get(self, task: str, *, history: int | None = None) -> Told:
        """A task."""
        raise Absent

    async def list(self, context: str) -> list[Told]:
        """The tasks of a context."""
        raise Absent

    async def cancel(self, task: str) -> Told:
        """A task."""
        raise Absent

    async def add_webhook(self, task: str, webhook: Told) -> Told:
        """The webhook (`id`, `url`, `token`), as the server knows it."""
        raise Absent

    async def webhook(self, task: str, id: str) -> Told:
        """The same, later."""
        raise Absent

    async def webhooks(self, task: str) -> list[Told]:
        """All of them."""
        raise Absent

    async def delete_webhook(self, task: str, id: str) -> None:
        """No more."""
        raise Absent

    async def extended_card(self) -> Told:
        """What those who are known are shown."""
        raise Absent

    async def close(self) -> None:
        """The end."""
