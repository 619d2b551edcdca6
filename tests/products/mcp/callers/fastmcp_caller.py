"""FastMCP's client: `fastmcp_caller.py MODE TARGET…`, where the target is a URL, or a command. It
prints what it has seen as JSON, and runs in the environment of FastMCP."""

import asyncio
import json
import sys
from typing import Any

from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import ToolError
from fastmcp_tasks.client import call_tool_task

HELLO = {"message": "Hello"}
asked: list[str] = []
progress: list[str] = []


async def elicit(message: str, kind: Any, params: Any, context: Any) -> Any:
    """Answer each question."""
    asked.append(message)
    fields = params.requested_schema["properties"]
    if "approve" in fields:
        return ElicitResult(action="accept", content={"approve": True})
    if "nights" in fields:
        return ElicitResult(action="accept", content={"nights": 3})
    return ElicitResult(action="accept", content={"answer": "On Monday"})


async def report(done: float, total: float | None, message: str | None) -> None:
    """Remember progress."""
    progress.append(message or "")


def text(result: Any) -> str:
    """The text of a result."""
    return "\n".join(each.text for each in result.content if each.type == "text")


async def failure(client: Client, name: str, arguments: dict[str, Any]) -> str:
    """The error of a call."""
    try:
        await client.call_tool(name, arguments)
    except ToolError as error:
        return str(error)
    return ""


async def tasks(client: Client) -> dict[str, Any]:
    """Drive tasks."""
    task = await call_tool_task(client, "chat", HELLO)
    waiting = await task.wait(state="input_required", timeout=20)
    done = await task.result()
    endless = await call_tool_task(client, "wait", HELLO)
    working = (await endless.status()).status
    await endless.cancel()
    return {
        "waiting": waiting.status,
        "done": text(done),
        "working": working,
        "canceled": (await endless.wait(timeout=20)).status,
    }


async def main(mode: str, target: list[str]) -> None:
    """Call what there is."""
    where = (
        target[0] if len(target) == 1 else StdioTransport(target[0], target[1:], keep_alive=False)
    )
    client = Client(where, mode=mode, elicitation_handler=elicit, progress_handler=report)
    async with client:
        seen: dict[str, Any] = {
            "tools": [tool.name for tool in await client.list_tools()],
            "book": (await client.call_tool("book", {"city": "Rome"})).structured_content,
            "echo": text(await client.call_tool("echo", HELLO)),
            "chat": text(await client.call_tool("chat", HELLO)),
            "reserve": (await client.call_tool("reserve", {"city": "Rome"})).structured_content,
            "pay": text(await client.call_tool("pay", HELLO)),
            "progress": text(await client.call_tool("progress", HELLO)),
            "files": [each.type for each in (await client.call_tool("files", HELLO)).content],
            "fail": await failure(client, "fail", HELLO),
            "wrong": await failure(client, "book", {"town": "Rome"}),
            "prompts": [prompt.name for prompt in await client.list_prompts()],
        }
        if mode != "legacy":
            seen["tasks"] = await tasks(client)
    sys.stdout.write(json.dumps({**seen, "asked": asked, "reported": progress}) + "\n")


asyncio.run(main(sys.argv[1], sys.argv[2:]))
