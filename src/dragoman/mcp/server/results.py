"""What a task has brought, as the result of a tool."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import mcp.types as mcp
from msgspec import UNSET

from dragoman import Artifact, TaskState
from dragoman.client import Result
from dragoman.mcp import content
from dragoman.mcp.server.exposed_agents import ExposedAgent
from dragoman.mcp.server.questions import Question, unpaid

LARGE = 1_000_000
"""A file with more bytes is a link; `resources/read` returns its content."""
TASK = "dragoman/task"
"""The key in `_meta` of a result: the task and its state."""
WORDS = {
    TaskState.FAILED: "The task has failed",
    TaskState.REJECTED: "The agent has rejected the task",
    TaskState.CANCELED: "The task was canceled",
}


def artifact_uri(agent: ExposedAgent, task: str, artifact: str) -> str:
    """The address of an artifact as a resource. `task` is the id at the agent."""
    names = (agent.name_task(task), "artifacts", artifact)
    return f"a2a://{agent.key}/tasks/" + "/".join(quote(name, safe="") for name in names)


def tool_result(
    agent: ExposedAgent, result: Result, *, schema: bool = False, modern: bool = True
) -> mcp.CallToolResult:
    """The result of a task that has ended or is not paid, or of a direct reply. `schema` says that
    the tool promises structured content, `modern` that it need not be an object."""
    blocks = _blocks(agent, result)
    failed = not result.ok
    words = _last_words(result)
    if failed and result.state is not None:
        text = WORDS.get(result.state, f"The task is {_state(result)}")
        if result.task is not None and (why := unpaid(result.task)):
            text, words = "The task cannot go on", why  # and not what the agent says
        blocks.insert(0, mcp.TextContent(text=f"{text}: {words}" if words else f"{text}."))
    elif not blocks:
        blocks.append(mcp.TextContent(text=words or "Done."))
    data = content.structured(result.parts) if result.ok else UNSET
    fits = data is not UNSET and (modern or isinstance(data, dict))
    if schema and result.ok and not fits:
        failed = True
        said = "The agent has not returned the data that its skill promises."
        blocks.append(mcp.TextContent(text=said))
    found = mcp.CallToolResult(content=blocks, is_error=failed, _meta=_meta(agent, result))
    return found.model_copy(update={"structured_content": data}) if fits else found


def asks(agent: ExposedAgent, question: Question, *, schema: bool = False) -> mcp.CallToolResult:
    """A result that says what the task waits for, and which tool to call next."""
    id = agent.name_task(question.task.id)
    call: dict[str, Any] = {"task_id": id}
    if question.approval:
        call["approve"] = True
        how = "to approve the operation, or with `approve` false to decline it"
        do = "Ask the user first."
    elif question.url:
        call["message"] = "Done"
        how, do = "when the user has logged in", f"The user must open {question.url}"
    else:
        call["message"] = "…"
        how = "with the answer in `message`, or in `data`"
        do = "If you do not know the answer, ask the user."
    text = (
        f"The agent asks: {question.form.message}\n\n{do} Then call the tool `answer_task` {how}: "
        f"{json.dumps(call, ensure_ascii=False)}"
    )
    return _unfinished(agent, Result(task=question.task), text, schema=schema)


def still_working(
    agent: ExposedAgent, result: Result, *, schema: bool = False
) -> mcp.CallToolResult:
    """A result that says that the task continues, and which tool to call next."""
    assert result.task is not None
    id = agent.name_task(result.task.id)
    words = result.task.status.text
    call = json.dumps({"task_id": id, "wait": 30})
    text = (
        f"The agent is still working{f' ({words})' if words else ''}. The task goes on. Call the "
        f"tool `get_task` for its result: {call}. To stop it, call `cancel_task`."
    )
    return _unfinished(agent, result, text, schema=schema)


def _unfinished(
    agent: ExposedAgent, result: Result, text: str, *, schema: bool
) -> mcp.CallToolResult:
    # clients refuse a result without the promised data, unless it is marked as an error
    return mcp.CallToolResult(
        content=[mcp.TextContent(text=text)], is_error=schema, _meta=_meta(agent, result)
    )


def _meta(agent: ExposedAgent, result: Result) -> Any:
    if result.task is None:
        return None
    about = {"id": agent.name_task(result.task.id), "state": _state(result)}
    if result.task.context_id:
        about["contextId"] = result.task.context_id
    return {TASK: about}


def _state(result: Result) -> str:
    return result.state.name.lower().replace("_", "-") if result.state else "unknown"


def _last_words(result: Result) -> str:
    if result.task is None:
        return ""
    if result.ok and result.artifacts:
        return ""
    return result.task.status.text or (result.text if not result.artifacts else "")


def _blocks(agent: ExposedAgent, result: Result) -> list[mcp.ContentBlock]:
    if result.message is not None:
        uri = f"a2a://{agent.key}/messages/{result.message.message_id}"
        return content.blocks(result.message.parts, uri=uri)
    found: list[mcp.ContentBlock] = []
    for artifact in result.artifacts:
        found += _artifact_blocks(agent, result, artifact)
    if not found and result.ok and result.task is not None:
        uri = f"a2a://{agent.key}/tasks/{agent.name_task(result.task.id)}/message"
        found += content.blocks(result.parts, uri=uri)
    return found


def _artifact_blocks(
    agent: ExposedAgent, result: Result, artifact: Artifact
) -> list[mcp.ContentBlock]:
    assert result.task is not None
    uri = artifact_uri(agent, result.task.id, artifact.artifact_id)
    blocks = content.artifact_blocks(artifact, uri=uri)
    return [
        _link(block, part.media_type, f"{uri}/{number}", part.filename, len(part.raw))
        if part.raw is not None and len(part.raw) > LARGE
        else block
        for number, (block, part) in enumerate(zip(blocks, artifact.parts, strict=True))
    ]


def _link(block: mcp.ContentBlock, kind: str, uri: str, name: str, size: int) -> mcp.ResourceLink:
    if isinstance(block, mcp.EmbeddedResource):
        uri = block.resource.uri
    return mcp.ResourceLink(
        uri=uri,
        name=name or "file",
        mime_type=kind or content.BINARY,
        size=size,
        _meta=block.meta,
    )
