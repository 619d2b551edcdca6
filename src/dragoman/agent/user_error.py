"""The exception whose text the client sees."""

from __future__ import annotations

MAX_CHARACTERS = 2000
"""The most characters of its text that the client sees."""


class UserError(Exception):
    """Raise it in a handler to fail the task with this text. The client sees the text and nothing
    of the cause. For any other exception, the client sees only the type and a correlation id."""

    text = ""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"UserError: expected a text, got {type(text).__name__}")
        super().__init__(text)
        self.text = text

    @property
    def shown(self) -> str:
        """The text for the client: cut if it is long, always valid Unicode."""
        text = self.text.encode("utf-8", "replace").decode().strip()
        if len(text) > MAX_CHARACTERS:
            text = text[: MAX_CHARACTERS - 1] + "…"
        return text or "The agent could not do this"
