"""A server on FastMCP, with elicitation and progress: `fastmcp_server.py [PORT]`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import mcp_types
from fastmcp import Context, FastMCP  # type: ignore[import-not-found]
from fastmcp.utilities.tasks import TaskConfig  # type: ignore[import-not-found]
from fastmcp_tasks import TasksExtension  # type: ignore[import-not-found]

server = FastMCP("fast")
server.add_extension(TasksExtension(url="memory://"))


@dataclass
class Seats:
    seats: int


@server.tool
async def book(day: str, ctx: Context) -> Any:
    """Books seats."""
    await ctx.report_progress(1, 2, "looking")
    answer = await ctx.elicit("How many seats?", response_type=Seats)
    if answer.action != "accept":
        return f"not booked: {answer.action}"
    await ctx.report_progress(2, 2, "booking")
    return f"{answer.data.seats} seats on {day}"


@server.tool
async def reserve(day: str, ctx: Context) -> Any:
    """Reserves seats, as protocol 2026-07-28 has it."""
    answer = (ctx.input_responses or {}).get("seats")
    if answer is None:
        fields = {"seats": {"type": "integer"}}
        schema = {"type": "object", "properties": fields, "required": ["seats"]}
        form = mcp_types.ElicitRequestFormParams(message="How many?", requested_schema=schema)
        asked = {"seats": mcp_types.ElicitRequest(params=form)}
        return mcp_types.InputRequiredResult(input_requests=asked, request_state=day)
    return f"{answer.content['seats']} seats on {ctx.request_state}"


@server.tool(task=TaskConfig(mode="required"))
async def deliver(day: str, ctx: Context) -> Any:
    """Runs only as a task."""
    return await reserve(day, ctx)


@server.tool
async def count(steps: int, ctx: Context) -> int:
    """Counts."""
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"step {step}")
    return steps


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run(transport="http", port=int(sys.argv[1]), show_banner=False)
    else:
        server.run(show_banner=False)
