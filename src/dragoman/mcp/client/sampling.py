"""What a tool asks of a model (sampling): passed to the model that was given, with limits."""

from __future__ import annotations

import mcp.types as mcp

from dragoman.orchestrator import Model, ModelFailed, ModelMessage
from dragoman.prompt_safety import clean

MESSAGES, LONGEST = 100, 100_000
"""The most messages, and the most characters in all, that a server may send to the model."""
REFUSED = "The tool asks for a model (sampling), and this agent has none for it"


async def sample(model: Model, params: mcp.CreateMessageRequestParams) -> mcp.CreateMessageResult:
    """What the model says. Raises ValueError if the request is refused or the model fails."""
    if params.tools:
        raise ValueError("The model that this agent has for MCP servers calls no tools")
    messages = [
        ModelMessage(role="user" if each.role == "user" else "assistant", text=_text(each))
        for each in params.messages
    ]
    if params.system_prompt:
        messages.insert(0, ModelMessage(role="system", text=clean(params.system_prompt, LONGEST)))
    if len(messages) > MESSAGES or sum(len(each.text) for each in messages) > LONGEST:
        raise ValueError("The tool sends too much to the model")
    try:
        answer = await model.answer(messages, ())
    except ModelFailed as error:
        raise ValueError(str(error)) from None
    return mcp.CreateMessageResult(
        role="assistant",
        content=mcp.TextContent(text=answer.text),
        model=model.name,
        stop_reason="endTurn",
    )


def _text(message: mcp.SamplingMessage) -> str:
    blocks = message.content if isinstance(message.content, list) else [message.content]
    found = []
    for block in blocks:
        if not isinstance(block, mcp.TextContent):
            raise ValueError("The model that this agent has for MCP servers reads only text")
        found.append(clean(block.text, LONGEST))
    return "\n".join(found)
