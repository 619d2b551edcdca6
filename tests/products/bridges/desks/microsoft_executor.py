"""The desk of Microsoft's Agent Framework by the executor that Microsoft brings itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from a2a.types import AgentCapabilities, AgentCard
from agent_framework import Agent, ChatResponse, Message
from agent_framework.a2a import A2AExecutor
from microsoft_desk import History, Script, slow, weather

card = AgentCard(
    name="Desk",
    description="Does what it is told.",
    version="1.0.0",
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    capabilities=AgentCapabilities(streaming=True),
)


class Model(Script):
    """The model, which also answers as a whole."""

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Any, **more: Any
    ) -> Any:
        if stream:
            return super()._inner_get_response(
                messages=messages, stream=stream, options=options, **more
            )
        return self._whole(messages)

    async def _whole(self, messages: Sequence[Message]) -> ChatResponse:
        return ChatResponse.from_updates([update async for update in self._said(messages)])


agent = Agent(
    Model(),
    "A secret prompt that no card shows.",
    name="Desk",
    tools=[weather, slow],
    context_providers=[History(Path(os.environ["EFFECTS"]).parent / "history")],
)
executor = A2AExecutor(agent)
streaming = A2AExecutor(agent, stream=True)
