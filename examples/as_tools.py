"""An agent whose skills are tools for MCP clients, too, and a client whose user answers a question.

`dragoman serve examples.as_tools:app` offers the tools at http://127.0.0.1:8000/mcp."""

from __future__ import annotations

import sys
from typing import Any

from mcp import Client
from mcp.types import ElicitResult, TextContent

from dragoman import Agent, App, Turn
from dragoman.mcp import mounts

desk = Agent("Travel Desk", description="Books flights and hotels.")


@desk.skill(ask=True, examples=["Three nights in Lisbon"])
async def book_hotel(turn: Turn, city: str, nights: int) -> str:
    """Books a hotel room."""
    await turn.emit(turn.working(f"Looking for rooms in {city}"))
    return f"{nights} nights in {city}"


app = App(desk, mounts=mounts(desk))


async def call(url: str, city: str) -> str:
    """Call the tool without saying how many nights: the agent asks the user for them."""

    async def ask(context: Any, params: Any) -> ElicitResult:
        print(params.message)  # a real client shows the form, params.requested_schema
        return ElicitResult(action="accept", content={"nights": 3})

    async def report(progress: float, total: float | None, message: str | None) -> None:
        print(message, file=sys.stderr)

    async with Client(url, elicitation_callback=ask) as client:
        result = await client.call_tool("book_hotel", {"city": city}, progress_callback=report)
    return "".join(block.text for block in result.content if isinstance(block, TextContent))
