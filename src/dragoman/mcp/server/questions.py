"""What a task asks, as elicitation of MCP, and what the answer means for the task."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import mcp.types as mcp
from msgspec import UNSET, Struct

from dragoman import Task, TaskState
from dragoman.client import Client, Result, Stream
from dragoman.mcp.elicitation_schema import Form, answer, form, schema_of
from dragoman.prompt_safety import clean

WORDS = 8000
"""The most characters of a question."""
APPROVE = "approve"
"""The field of the form that asks for an approval."""
DECLINED = "The user has declined to answer."
LOGGED_IN = "The user has followed the link."
_URL = re.compile(r"https?://[^\s<>\"')\]]+")


class Question(Struct, frozen=True):
    """What a task waits for."""

    task: Task
    id: str
    """Unique among the questions of the task."""
    message: str
    form: Form
    url: str = ""
    """Where the user must log in, if that is what the task waits for."""
    approval: bool = False
    """Whether the task waits for an approval."""

    @property
    def request(self) -> mcp.ElicitRequest:
        """The question as a request of MCP."""
        if self.url:
            asked = mcp.ElicitRequestURLParams(
                message=self.message, url=self.url, elicitation_id=self.id
            )
            return mcp.ElicitRequest(params=asked)
        return mcp.ElicitRequest(
            params=mcp.ElicitRequestFormParams(
                message=self.form.message, requested_schema=self.form.schema
            )
        )


def question_of(task: Task) -> Question | None:
    """Return the question that a task waits for; None if it waits for none, or for something that
    words do not answer, such as a payment."""
    state, said = task.status.state, task.status.message
    if not state.interrupted or unpaid(task):
        return None
    parts = said.parts if said is not None else ()
    texts = [part.text for part in parts if part.text is not None]
    schema = None
    for part in parts:
        if part.data is not UNSET:
            found = schema_of(part.data)
            if found is not None and schema is None:
                schema = found
            else:
                texts.append(json.dumps(part.data, ensure_ascii=False))
    id = said.message_id if said is not None else task.status.timestamp or state.value
    words = clean("\n".join(texts), WORDS)
    if state is TaskState.INPUT_REQUIRED:
        words = words or "The agent needs an answer."
        return Question(task, id, words, form(words, schema))
    if (grant := Result(task=task).grant) is not None:
        operation = clean(json.dumps(grant.operation, ensure_ascii=False), WORDS)
        words = f"{words or 'The agent asks for an approval.'}\n\nOperation: {operation}"
        return Question(task, id, words, _approval(words), approval=True)
    words = words or "The agent needs a login."
    return Question(
        task, id, words, form(words), url=_page([part.url or "" for part in parts], words)
    )


def unpaid(task: Task) -> str:
    """What a task waits for that neither a model nor a user can answer in words; empty if it waits
    for nothing, or asks a question."""
    pause = Result(task=task).pause
    if pause is None or pause.in_words:
        return ""
    return f"{pause.text}, and there is no wallet that pays it"


def _page(urls: Sequence[str], words: str) -> str:
    """The page to open: the first URL of a part, else the first one in the words."""
    found = [url for url in urls if _URL.fullmatch(url)]
    found += [url.rstrip(".,;:!?") for url in _URL.findall(words)]
    return found[0] if found else ""


def _approval(words: str) -> Form:
    schema = {
        "type": "object",
        "properties": {APPROVE: {"type": "boolean", "title": "Approve"}},
        "required": [APPROVE],
    }
    return form(words, schema)


async def deliver(
    client: Client, question: Question, response: mcp.ElicitResult, key: str
) -> Stream | None:
    """Send the user's answer to the task. To decline tells the agent so, or declines the approval
    that it asks for. (To cancel is no answer, and is not for here.) Returns the stream of what
    follows, if the agent streams it; the message is sent when the stream is read."""
    accepted = response.action == "accept"
    content = response.content or {}
    if question.approval:
        await decide(client, question, key, accepted and bool(content.get(APPROVE)))
        return None
    said: Any = DECLINED
    if accepted:
        said = LOGGED_IN if question.url else answer(question.form, content)
    return await send_to_task(client, question.task.id, said, key)


async def send_to_task(client: Client, task: str, said: Any, key: str) -> Stream | None:
    """Send a message to a task; see `deliver`."""
    if client.card.capabilities.streaming:
        return client.stream(said, task=task, key=key)
    await client.send(said, task=task, wait=False, key=key)
    return None


async def decide(client: Client, question: Question, key: str, approved: bool) -> None:
    """Approve or decline the operation that the task asks about."""
    handle = client.task(question.task.id)
    grant = Result(task=question.task).grant
    assert grant is not None
    await (handle.approve if approved else handle.decline)(grant, wait=False, key=key)
