"""An MCP server with the kinds of tools that there are: `desk_server.py [PORT]`. Without a port it
speaks over its standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import mcp.types as mcp
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.request_state import RequestStateSecurity
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, Field

KEY = b"a key that all processes of this server share, so that they can go on"
server = MCPServer("desk", request_state_security=RequestStateSecurity(keys=[KEY]))
READ_ONLY = mcp.ToolAnnotations(read_only_hint=True)
SEATS = {
    "type": "object",
    "properties": {"seats": {"type": "integer", "minimum": 1}, "window": {"type": "boolean"}},
    "required": ["seats"],
}


class Seats(BaseModel):
    seats: int = Field(ge=1)
    window: bool | None = None


class Sum(BaseModel):
    total: int


@server.tool(title="Add two numbers", annotations=READ_ONLY)
def add(a: int, b: int) -> Sum:
    """Adds two numbers."""
    return Sum(total=a + b)


@server.tool(annotations=READ_ONLY)
def numbers(most: int) -> list[int]:
    """The numbers up to this one."""
    return list(range(1, most + 1))


@server.tool(annotations=READ_ONLY)
def greet(name: str) -> mcp.CallToolResult:
    """Greets somebody."""
    return mcp.CallToolResult(content=[mcp.TextContent(text=f"Hello {name}")])


@server.tool()
async def count(ctx: Context[Any, Any], steps: int) -> str:
    """Counts, and says how far it is."""
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"step {step}")
    return "counted"


def note(text: str) -> None:
    """Write down what was done, for the test."""
    if path := os.environ.get("NOTES"):
        with Path(path).open("a") as file:
            file.write(f"{text}\n")


async def _book(ctx: Context[Any, Any], day: str) -> Any:
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        answer = (ctx.input_responses or {}).get("seats")
        if answer is None:
            note(f"asked {day}")
            form = mcp.ElicitRequestFormParams(message="How many seats?", requested_schema=SEATS)
            return mcp.InputRequiredResult(
                input_requests={"seats": mcp.ElicitRequest(params=form)}, request_state=day
            )
        assert isinstance(answer, mcp.ElicitResult)
        assert ctx.request_state == day
        action, seats = answer.action, (answer.content or {}).get("seats")
    else:
        note(f"asked {day}")
        given = await ctx.elicit("How many seats?", Seats)
        action, seats = given.action, given.data.seats if given.action == "accept" else None
    if action != "accept":
        return f"not booked: {action}"
    note(f"booked {day}")
    return f"{seats} seats on {day}"


@server.tool(structured_output=False)
async def book(ctx: Context[Any, Any], day: str) -> Any:
    """Books seats, and asks how many."""
    return await _book(ctx, day)


@server.tool(structured_output=False, annotations=mcp.ToolAnnotations(idempotent_hint=True))
async def reserve(ctx: Context[Any, Any], day: str) -> Any:
    """Reserves seats, and asks how many; it may be called again."""
    return await _book(ctx, day)


@server.tool()
def refuse() -> str:
    """Fails."""
    raise ValueError("there are no seats left")


@server.tool()
async def hang() -> str:
    """Gives no sign any more."""
    note("hanging")
    try:
        await asyncio.sleep(3600)
    finally:
        note("canceled")
    return "never"


@server.tool()
def die() -> str:
    """Ends the process."""
    note("dying")
    os._exit(3)


@server.tool(annotations=READ_ONLY)
def die_once() -> str:
    """Ends the process the first time."""
    notes = Path(os.environ["NOTES"])
    if not notes.exists():
        notes.write_text("died\n")
        os._exit(3)
    return "alive"


@server.tool(annotations=READ_ONLY)
def process() -> int:
    """The id of this process."""
    return os.getpid()


@server.tool(annotations=READ_ONLY)
def environment() -> list[str]:
    """The names of all variables."""
    return sorted(os.environ)


@server.tool(structured_output=False)
def files() -> list[Any]:
    """An image, and links."""
    return [
        Image(data=b"\x89PNG", format="png"),
        mcp.ResourceLink(uri="https://files.example/a.pdf", name="a.pdf"),
        mcp.ResourceLink(uri="http://127.0.0.1/secret", name="secret"),
        mcp.ResourceLink(uri="desk://drawer", name="drawer"),
    ]


@server.resource("desk://drawer")
def drawer() -> str:
    return "a key"


@server.tool(structured_output=False)
async def poem(ctx: Context[Any, Any], about: str) -> Any:
    """Has a model write a poem."""
    asked = mcp.CreateMessageRequestParams(
        messages=[mcp.SamplingMessage(role="user", content=mcp.TextContent(text=about))],
        max_tokens=100,
    )
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        said = (ctx.input_responses or {}).get("poem")
        if said is None:
            return mcp.InputRequiredResult(
                input_requests={"poem": mcp.CreateMessageRequest(params=asked)}
            )
    else:
        said = await ctx.session.send_request(
            mcp.CreateMessageRequest(params=asked), mcp.CreateMessageResult
        )
    assert isinstance(said, mcp.CreateMessageResult)
    assert isinstance(said.content, mcp.TextContent)
    return said.content.text


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
