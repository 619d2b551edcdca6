"""The exception whose text the client sees."""

from __future__ import annotations

MAX_CHARACTERS = 2000
"""How much of its text the client sees."""


class UserError(Exception):
    """A handler raises it to fail the task with this text. The client sees the text, and nothing
    of its cause; of any other exception it sees only the type and a correlation id."""

    text = ""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"UserError: expected a text, got {type(text).__name__}")
        super().__init__(text)
        self.text = text

    @property
    def shown(self) -> str:
        """What the client sees: the text, cut if it is long, always valid Unicode."""
        text = self.text.encode("utf-8", "replace").decode().strip()
        if len(text) > MAX_CHARACTERS:
            text = text[: MAX_CHARACTERS - 1] + "…"
        return text or "The agent could not do this"
