"""The examples of skills as prompts of MCP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import mcp.types as mcp
from mcp import MCPError
from msgspec import Struct

from dragoman.mcp.server.tools import SkillTool
from dragoman.prompt_safety import clean

EXAMPLE, TITLE = 2000, 80
"""The most characters of an example, and of its title."""
MOST = 16
"""The most examples of a skill."""


class Example(Struct, frozen=True):
    """An example of a skill."""

    prompt: mcp.Prompt
    text: str


def examples(tools: Mapping[str, SkillTool]) -> Iterator[Example]:
    """The examples of these skills."""
    for name, found in tools.items():
        for number, example in enumerate(found.skill.examples[:MOST], start=1):
            text = clean(example, EXAMPLE)
            prompt = mcp.Prompt(
                name=f"{name}-{number}",
                title=clean(" ".join(text.split()), TITLE),
                description=f"An example for the tool {name}.",
            )
            yield Example(prompt, text)


def get(tools: Mapping[str, SkillTool], name: str) -> mcp.GetPromptResult:
    """The example of this name."""
    for example in examples(tools):
        if example.prompt.name == name:
            said = mcp.PromptMessage(role="user", content=mcp.TextContent(text=example.text))
            return mcp.GetPromptResult(description=example.prompt.description, messages=[said])
    raise MCPError(mcp.INVALID_PARAMS, f"There is no prompt {name[:128]!r}")
