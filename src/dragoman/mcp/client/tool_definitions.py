"""What a server says of its tools, made safe for a card.

The text comes from a server that may want to give orders to the model that reads the card. So it is
cut, cleaned of what cannot be seen, and put between delimiters that it cannot forge. A tool that is
too large, or has no usable name, is left out.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any

import mcp.types as mcp
from msgspec import Struct

from dragoman.prompt_safety import clean, clean_schema, sanitize

logger = logging.getLogger("dragoman")

MOST = 256
"""The most tools of a server."""
LONGEST_NAME, LONGEST_TEXT, LONGEST_NOTE = 64, 1000, 300
"""The most characters of a name, of a description, and of one inside of a schema."""
LARGEST_SCHEMA, LARGEST_TOTAL = 64 << 10, 1 << 20
"""The most bytes of the schemas of a tool, and of all tools of a server."""
DEEPEST = 32
TASK_TOOLS = frozenset(("get_task", "answer_task", "cancel_task"))
"""The tools of an MCP server of dragoman for calls that continue as tasks. They are not offered."""


class ToolDefinition(Struct, frozen=True, kw_only=True):
    """A tool as the card shows it, and the digest of what its server says of it."""

    server: str
    name: str
    title: str
    description: str
    input: dict[str, Any]
    """The JSON Schema of its arguments."""
    output: dict[str, Any] | None = None
    """The JSON Schema of its result; None if there is none."""
    wraps: bool = False
    """The result need not be an object; it is sent as the field `result` of one."""
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    digest: str = ""

    @property
    def repeatable(self) -> bool:
        """Whether it may be called again when it is not known how the last call ended."""
        return self.read_only or self.idempotent

    @property
    def text_parameter(self) -> str:
        """The parameter that a text can fill, if nothing else is needed; empty if there is none."""
        known = self.input.get("properties")
        known = known if isinstance(known, dict) else {}
        required = [name for name in _list(self.input.get("required")) if name in known]
        texts = [name for name, inner in known.items() if _is_text(inner)]
        if len(required) == 1 and required[0] in texts:
            return str(required[0])
        return texts[0] if not required and len(texts) == 1 and len(known) == 1 else ""


def definitions(
    server: str, tools: Sequence[mcp.Tool], *, trusted: bool = False
) -> dict[str, ToolDefinition]:
    """The tools that can be offered, by name. With `trusted`, descriptions have no delimiters."""
    found: dict[str, ToolDefinition] = {}
    total = 0
    if {tool.name for tool in tools} >= TASK_TOOLS:
        tools = [tool for tool in tools if tool.name not in TASK_TOOLS]
    for tool in tools[:MOST]:
        if too_deep(tool.input_schema) or too_deep(tool.output_schema):
            logger.warning("%s: a schema is nested too deeply: %r", server, tool.name[:100])
            continue
        definition = _definition(server, tool, trusted)
        size = _size(definition)
        if size > LARGEST_SCHEMA or total + size > LARGEST_TOTAL:
            logger.warning("%s: the schemas of a tool are too large: %r", server, tool.name[:100])
        elif not tool.name or tool.name in found:
            logger.warning("%s: a tool has no name of its own: %r", server, tool.name[:100])
        else:
            found[tool.name] = definition
            total += size
    if len(tools) > MOST:
        logger.warning("%s: has %d tools; only %d are offered", server, len(tools), MOST)
    return found


def skill_ids(tools: Iterable[ToolDefinition], *, several: bool) -> dict[str, ToolDefinition]:
    """The tools by the ids of their skills: their names, with the server's if there are several
    servers. Names that cannot be ids get one with a digest."""
    found: dict[str, ToolDefinition] = {}
    for tool in tools:
        name = f"{tool.server}.{tool.name}" if several else tool.name
        id = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:LONGEST_NAME]
        if id != name or id in found:
            id = f"{id}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        found[id] = tool
    return found


def differences(old: ToolDefinition, new: ToolDefinition) -> list[str]:
    """What has changed, in words."""
    names = ("title", "description", "input", "output", "read_only", "destructive", "idempotent")
    found = [name for name in names if getattr(old, name) != getattr(new, name)]
    return found or (["text that the card does not show"] if old.digest != new.digest else [])


def _definition(server: str, tool: mcp.Tool, trusted: bool) -> ToolDefinition:
    hints = tool.annotations or mcp.ToolAnnotations()
    title = _line(tool.title or hints.title or tool.name, 100) or "tool"
    text = tool.description or ""
    description = clean(text, LONGEST_TEXT) or title
    if not trusted and text:
        description = sanitize(text, limit=LONGEST_TEXT, source=f"the MCP server {server}")
    read_only = bool(hints.read_only_hint)
    output: Any = clean_schema(tool.output_schema, LONGEST_NOTE) if tool.output_schema else None
    wraps = output is not None and output.get("type") != "object"
    if wraps:
        output = {"type": "object", "properties": {"result": output}, "required": ["result"]}
    return ToolDefinition(
        server=server,
        name=tool.name,
        title=title,
        description=description,
        input={**clean_schema(tool.input_schema, LONGEST_NOTE), "type": "object"},
        output=output,
        wraps=wraps,
        read_only=read_only,
        destructive=not read_only and hints.destructive_hint is not False,
        idempotent=bool(hints.idempotent_hint),
        digest=_digest(tool),
    )


def _digest(tool: mcp.Tool) -> str:
    """Names exactly what the server says, also what is cut."""
    said = tool.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"meta", "icons"})
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def too_deep(value: Any, left: int = DEEPEST) -> bool:
    """Whether a schema is nested more deeply than anybody needs."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left < 0 or any(too_deep(item, left - 1) for item in inner)


def _size(definition: ToolDefinition) -> int:
    return len(json.dumps((definition.input, definition.output)))


def _line(text: str, limit: int) -> str:
    return " ".join(clean(text, limit).split())


def _is_text(schema: Any) -> bool:
    if not isinstance(schema, dict) or "enum" in schema or "const" in schema:
        return False
    return schema.get("type") == "string" or schema.get("type") == ["string", "null"]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
