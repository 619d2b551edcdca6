"""An agent with the skills that MCP's conformance tests call as tools."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from dragoman import Agent, Part, Turn

agent = Agent("Conformance", description="Is called by conformance tests.", version="1.0.0")
PNG = b"\x89PNG\r\n\x1a\n"


@agent.handler
@agent.skill(tags=["test"], id="test_simple_text")
async def simple_text(turn: Turn, ignored: int = 0) -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@agent.skill(tags=["test"], id="test_image_content")
async def image(turn: Turn, ignored: int = 0) -> Part:
    """Return an image."""
    return Part(raw=PNG, media_type="image/png")


@agent.skill(tags=["test"], id="test_audio_content")
async def audio(turn: Turn, ignored: int = 0) -> Part:
    """Return a sound."""
    return Part(raw=b"RIFF", media_type="audio/wav")


@agent.skill(tags=["test"], id="test_embedded_resource")
async def resource(turn: Turn, ignored: int = 0) -> Part:
    """Return a file."""
    return Part(text="This is an embedded resource content.", filename="it.txt")


@agent.skill(tags=["test"], id="test_multiple_content_types")
async def mixed(turn: Turn, ignored: int = 0) -> list[Part]:
    """Return several parts."""
    return [
        Part(text="Multiple content types test:"),
        Part(raw=PNG, media_type="image/png"),
        Part(text='{"test": "data", "value": 123}', filename="it.json"),
    ]


@agent.skill(tags=["test"], id="test_tool_with_progress")
async def progress(turn: Turn, ignored: int = 0) -> Any:
    """Report progress."""
    for percent in ("0", "50", "100"):
        yield turn.working(f"{percent} %")
        await asyncio.sleep(0.05)
    yield turn.artifact("Done")


@agent.skill(tags=["test"], id="test_error_handling")
async def error(turn: Turn, ignored: int = 0) -> Any:
    """Fail."""
    yield turn.fail("This tool intentionally returns an error for testing")


@agent.skill(tags=["test"], id="test_elicitation")
async def elicitation(turn: Turn, message: str = "", username: str = "", email: str = "") -> Any:
    """Ask."""
    if username:
        yield turn.artifact(f"User response: {username}, {email}")
        return
    fields = {"username": {"type": "string"}, "email": {"type": "string"}}
    yield turn.ask(_form("Please give your name.", fields))


@agent.skill(tags=["test"], id="test_elicitation_sep1034_defaults")
async def defaults(
    turn: Turn,
    name: str = "",
    age: int = 0,
    score: float = 0.0,
    status: str = "",
    verified: bool = False,
) -> Any:
    """Ask with defaults."""
    if name:
        yield turn.artifact(f"Elicitation completed: {name}")
        return
    fields = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": True},
    }
    yield turn.ask(_form("Please check.", fields))


@agent.skill(tags=["test"], id="test_elicitation_sep1330_enums")
async def enums(
    turn: Turn,
    untitledSingle: str = "",
    titledSingle: str = "",
    legacyEnum: str = "",
    untitledMulti: list[str] | None = None,
    titledMulti: list[str] | None = None,
) -> Any:
    """Ask with choices."""
    if untitledSingle:
        yield turn.artifact(f"Elicitation completed: {untitledSingle}")
        return
    plain = ["option1", "option2", "option3"]
    titled = [{"const": name, "title": name.title()} for name in plain]
    fields = {
        "untitledSingle": {"type": "string", "enum": plain},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", "enum": plain, "enumNames": [n.title() for n in plain]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    yield turn.ask(_form("Please choose.", fields))


class address(Struct):
    """An address, and perhaps another one."""

    street: str = ""
    city: str = ""
    other: address | None = None


@agent.skill(tags=["test"], id="json_schema_2020_12_tool")
async def with_schema(turn: Turn, name: str = "", address: address | None = None) -> str:
    """Take a nested value."""
    return name


def _form(words: str, fields: dict[str, Any]) -> list[Part]:
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    return [Part(text=words), Part(data=schema)]
