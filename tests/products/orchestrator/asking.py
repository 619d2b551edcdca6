"""Asks a model, in one piece or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dragoman.orchestrator import Model, ModelAnswer, ModelMessage, Tool

USER = [ModelMessage(role="user", text="Rome, please")]
KEY = "sk-test-1234567890"
QUICK = 5.0
"""Seconds within which every failure is known."""


class Ask:
    """A model and the pieces that it gave away."""

    def __init__(self, streamed: bool) -> None:
        self.streamed = streamed
        self.pieces: list[str] = []

    async def __call__(
        self,
        model: Model,
        messages: Sequence[ModelMessage] = USER,
        tools: Sequence[Tool] = (),
    ) -> ModelAnswer:
        async def write(text: str) -> None:
            self.pieces.append(text)

        async with asyncio.timeout(QUICK):
            return await model.answer(messages, tools, write=write if self.streamed else None)
