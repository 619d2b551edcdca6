"""The result of a tool, as artifacts of the task."""

from __future__ import annotations

from collections.abc import Sequence

import mcp.types as mcp
from mcp import MCPError
from msgspec import UNSET
from msgspec.structs import replace

from dragoman import Turn, UserError
from dragoman.mcp import content
from dragoman.mcp.client.connection import Connection, reason
from dragoman.mcp.client.tool_definitions import ToolDefinition
from dragoman.mcp.client.tool_questions import NotUnderstood, check
from dragoman.prompt_safety import clean
from dragoman.security.address_policy import EgressRefused, Rule, parse
from dragoman.security.address_policy import check as check_address

TASK = "dragoman/task"
"""The key in `_meta` of a result: the task of A2A and its state, of a server of dragoman."""
GOING_ON, WAITING = ("submitted", "working"), ("input-required", "auth-required")
LINKS = 16
"""The most resources of a server that are read for one result."""


def continued_task(result: mcp.CallToolResult) -> str:
    """The id of the task that a call has become, if it still continues: an MCP server of dragoman
    returns it after a while. Raises UserError if the task waits for an answer that did not come."""
    about = (result.meta or {}).get(TASK)
    if not isinstance(about, dict) or not isinstance(about.get("id"), str):
        return ""
    if about.get("state") in WAITING:
        raise UserError(_words(result) or "The question of the tool was not answered")
    return str(about["id"]) if about.get("state") in GOING_ON else ""


async def emit_result(
    turn: Turn,
    tool: ToolDefinition,
    result: mcp.CallToolResult,
    connection: Connection,
    allow: Sequence[str],
) -> None:
    """Add the result to the task. Raises UserError with the words of the tool if it failed, and if
    the result is not what the tool promises."""
    if result.is_error:
        raise UserError(_words(result) or f"The tool {tool.name} failed")
    found = result.structured_content
    structured = UNSET if found is None else {"result": found} if tool.wraps else found
    if structured is not UNSET and tool.output is not None:
        _check(tool, structured)
    blocks = [
        block for each in result.content for block in await _resolved(each, connection, allow)
    ]
    try:
        artifacts = content.artifacts(blocks, UNSET if found is None else found)
    except ValueError as error:
        raise UserError(f"The result of the tool {tool.name} cannot be read: {error}") from error
    for each in artifacts:
        parts = [
            replace(part, data=structured) if found is not None and part.data == found else part
            for part in each.parts
        ]
        if parts:
            await turn.emit(
                turn.artifact(
                    parts,
                    name=each.name or tool.name,
                    description=each.description,
                    metadata=each.metadata,
                )
            )


def _words(result: mcp.CallToolResult) -> str:
    texts = [each.text for each in result.content if isinstance(each, mcp.TextContent)]
    return clean("\n".join(texts)).strip()


def _check(tool: ToolDefinition, structured: object) -> None:
    """Raise UserError if a result does not fit its schema."""
    try:
        if not isinstance(structured, dict):
            raise NotUnderstood("expected an object")
        check(tool.output or {}, structured)
    except NotUnderstood as error:
        raise UserError(
            f"The result of the tool {tool.name} does not fit its schema: {error}"
        ) from None


async def _resolved(
    block: mcp.ContentBlock, connection: Connection, allow: Sequence[str]
) -> list[mcp.ContentBlock]:
    """What a link to a resource means for a client that does not reach the MCP server: an address
    that everybody can open stays, a resource of the server is read."""
    if not isinstance(block, mcp.ResourceLink):
        return [block]
    if block.uri.lower().startswith(("https:", "http:")):
        why = _refused(block.uri, allow)
        if not why:
            return [block]
        return [mcp.TextContent(text=f"(A link to {clean(block.uri, 200)} is left out: {why})")]
    try:
        read = await connection.read_resource(block.uri)
    except MCPError as error:
        text = f"(The resource {clean(block.uri, 200)} cannot be read: {reason(error)})"
        return [mcp.TextContent(text=text)]
    return [mcp.EmbeddedResource(resource=each) for each in read.contents[:LINKS]]


def _refused(url: str, allow: Sequence[str]) -> str:
    """Why a client must not be sent to an address; empty if it may. These are the rules for
    outgoing requests."""
    try:
        target = parse(url)
        rules = [Rule.parse(entry) for entry in allow]
        if not any(rule.matches(target.named, target.port) for rule in rules):
            check_address(target.scheme, target.named, target.port)
    except EgressRefused as error:
        return str(error)
    return ""
