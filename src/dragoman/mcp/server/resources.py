"""Artifacts of past tasks as resources of MCP."""

from __future__ import annotations

from itertools import islice
from urllib.parse import unquote

import mcp.types as mcp
from mcp import MCPError

from dragoman import Artifact, Task
from dragoman.mcp import content
from dragoman.mcp.server.exchange import Exchange
from dragoman.mcp.server.exposed_agents import FAILURES, ExposedAgent
from dragoman.mcp.server.results import artifact_uri
from dragoman.prompt_safety import clean

LISTED = 100
"""The most tasks of an agent whose artifacts are listed, newest first."""
TEMPLATE = "a2a://{agent}/tasks/{task}/artifacts/{artifact}"
WORDS = 200
"""The most characters of a name."""


async def listed(exchange: Exchange) -> list[mcp.Resource]:
    """The artifacts of the caller's last tasks at the server's own agents. (A remote agent would
    list the tasks of all callers.)"""
    found: list[mcp.Resource] = []
    try:
        for agent in await exchange.state.agents.visible(exchange.caller):
            if agent.own:
                found += await _of(agent)
    except FAILURES as error:
        raise MCPError(mcp.INTERNAL_ERROR, str(error)) from None
    return found


def templates() -> list[mcp.ResourceTemplate]:
    """The form of the addresses of artifacts."""
    return [
        mcp.ResourceTemplate(
            name="artifact",
            title="An artifact of a task",
            uri_template=TEMPLATE,
            description="The addresses are in the results of the tools.",
        )
    ]


async def read(exchange: Exchange, uri: str) -> mcp.ReadResourceResult:
    """The content of an artifact, or of one of its parts, of a task of the caller."""
    scheme, _, path = uri.partition("://")
    names = [unquote(each) for each in path.split("/")]
    match names:
        case [key, "tasks", id, "artifacts", artifact, *rest] if scheme == "a2a":
            try:
                found = await exchange.state.agents.find(id, exchange.caller)
            except FAILURES as error:
                raise MCPError(mcp.INTERNAL_ERROR, str(error)) from None
            if found is not None and found.agent.key == key:
                for each in found.task.artifacts:
                    if each.artifact_id == artifact:
                        return _content(found.agent, found.task, each, rest, uri)
    raise MCPError(mcp.INVALID_PARAMS, f"There is no resource {uri[:512]!r}", {"uri": uri[:512]})


def _content(
    agent: ExposedAgent, task: Task, artifact: Artifact, rest: list[str], uri: str
) -> mcp.ReadResourceResult:
    where = artifact_uri(agent, task.id, artifact.artifact_id)
    contents = content.resources(artifact.parts, uri=where)
    if rest:
        number = int(rest[0]) if rest[0].isdigit() and len(rest[0]) < 6 else len(contents)
        contents = contents[number : number + 1]
        if not contents:
            raise MCPError(mcp.INVALID_PARAMS, f"There is no resource {uri[:512]!r}")
    return mcp.ReadResourceResult(contents=contents)


async def _of(agent: ExposedAgent) -> list[mcp.Resource]:
    found: list[mcp.Resource] = []
    async with agent.connect() as client:
        tasks: list[Task] = []
        async for task in client.list(artifacts=True, page=LISTED):
            tasks.append(task)
            if len(tasks) == LISTED:
                break
    for task in islice(tasks, LISTED):
        found += [_resource(agent, task, artifact) for artifact in task.artifacts]
    return found


def _resource(agent: ExposedAgent, task: Task, artifact: Artifact) -> mcp.Resource:
    kinds = {part.media_type for part in artifact.parts}
    name = " ".join(clean(artifact.name or artifact.artifact_id, WORDS).split())
    return mcp.Resource(
        uri=artifact_uri(agent, task.id, artifact.artifact_id),
        name=name,
        description=clean(artifact.description, WORDS) or None,
        mime_type=kinds.pop() or None if len(kinds) == 1 else None,
    )
