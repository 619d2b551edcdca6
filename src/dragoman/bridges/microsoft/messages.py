"""What the bridge for Microsoft's Agent Framework says to the client, and the client to it."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from agent_framework import Content, Message
from msgspec import UNSET

from dragoman import Part
from dragoman.bridges.bridge import Answer, Question, Run, question_about
from dragoman.bridges.text_answers import files_of


class Report:
    """Reports what the agent says while it says it."""

    def __init__(self, run: Run, *, structured: bool) -> None:
        self._run = run
        self._structured = structured
        self._begun = ""
        self._called: dict[str, str] = {}

    async def take(self, update: Any, name: str = "") -> None:
        """Report an update of a stream, or a message. Its text is for the artifact of this name."""
        for content in update.contents:
            if content.type == "text":
                await self._write(content.text, name)
            elif content.type == "function_call":
                self._begun = ""
                if content.name and content.call_id not in self._called:
                    self._called[content.call_id] = content.name
                    await self._run.tool(content.name)
            elif content.type == "function_result":
                tool = self._called.get(content.call_id, "the tool")
                await self._run.detail(f"{tool} returned {to_text(content.result)}")
            elif content.type == "error":
                raise RuntimeError(f"the model has failed: {content.message}")
            await self._files(content)

    @staticmethod
    def is_json(text: str) -> bool:
        """Whether this is the beginning of a structured result."""
        return text.lstrip()[:1] in ("{", "[")

    async def _write(self, text: str, name: str) -> None:
        """Write text. A structured result is not for reading: it is sent as data in the end."""
        if not self._structured:
            await self._run.write(text, name)
            return
        shown, self._begun = self._begun.strip(), self._begun + text
        if self._begun.strip() and not self.is_json(self._begun):
            await self._run.write(text if shown else self._begun, name)

    async def _files(self, content: Content) -> None:
        """Send the files that the agent made."""
        if content.type in ("data", "uri") and content.uri:
            kind = content.media_type or "application/octet-stream"
            head, _, data = content.uri.partition(",")
            if head.startswith("data:") and head.endswith(";base64"):
                await self._run.file(Part(raw=base64.b64decode(data), media_type=kind))
            else:
                await self._run.file(Part(url=content.uri, media_type=kind))
        made = content.outputs if isinstance(content.outputs, list) else [content.outputs]
        for each in made:
            if isinstance(each, Content):
                await self._files(each)


def to_contents(parts: Sequence[Part]) -> list[Content]:
    """The client's message as the model gets it."""
    found = []
    for part in parts:
        kind = part.media_type or "application/octet-stream"
        if part.text is not None:
            found.append(Content.from_text(part.text))
        elif part.raw is not None:
            found.append(Content.from_data(part.raw, kind))
        elif part.url is not None:
            found.append(Content.from_uri(part.url, media_type=kind))
        elif part.data is not UNSET:
            found.append(Content.from_text(json.dumps(part.data, ensure_ascii=False)))
    return found


def to_text(result: Any) -> str:
    """The result of a tool, as people read it."""
    if isinstance(result, Content):
        return result.text or f"({result.type})"
    if isinstance(result, list):
        return " ".join(map(to_text, result))
    return str(result)


def usage_of(found: Any) -> dict[str, int]:
    """What a response, or the contents of an update, have used."""
    if isinstance(found, list):
        details = [each.usage_details for each in found if each.type == "usage"]
    else:
        details = [found.usage_details]
    used: Counter[str] = Counter()
    for each in details:
        used["input_tokens"] += (each or {}).get("input_token_count") or 0
        used["output_tokens"] += (each or {}).get("output_token_count") or 0
    return {name: number for name, number in used.items() if number}


def arguments_of(call: Content) -> Any:
    """The arguments of a call, as JSON."""
    if not isinstance(call.arguments, str):
        return dict(call.arguments or {})
    try:
        return json.loads(call.arguments or "{}")
    except ValueError:
        return call.arguments


def to_question(request: Content) -> Question:
    """What the agent waits for."""
    if request.type == "function_approval_request" and request.function_call is not None:
        call = request.function_call
        operation = {"tool": call.name, "arguments": arguments_of(call)}
        shown = json.dumps(operation["arguments"], ensure_ascii=False)
        text = f"May I call {call.name} with {shown}?"
        return Question(request.id, text, approval=True, operation=operation)
    if request.type == "oauth_consent_request":
        return Question(request.id or "consent", f"Log in at {request.consent_link} and tell me")
    arguments = arguments_of(request)
    id = request.call_id or request.id or ""
    known = arguments if isinstance(arguments, dict) else {}
    text = f"{request.name}: {json.dumps(arguments, ensure_ascii=False)}"
    return question_about(id, known, ("question", "message", "prompt", "text"), text)


def to_messages(answers: Sequence[Answer], asked: Sequence[Content]) -> list[Message]:
    """The answers, as the messages that the agent waits for."""
    approvals, results, words = [], [], []
    requests = {to_question(request).id: request for request in asked}
    for answer in answers:
        request = requests[answer.id]
        if request.type == "function_approval_request":
            approvals.append(request.to_function_approval_response(answer.approved))
        elif request.call_id:
            results.append(to_result(request, answer))
        else:
            words += to_contents(answer.parts)
    found = [Message("user", approvals), Message("tool", results), Message("user", words)]
    return [message for message in found if message.contents]


def to_result(request: Content, answer: Answer) -> Content:
    """The answer to a call of a tool that the client is to make."""
    value: Any = answer.text if answer.data is None else answer.data
    if files_of(answer):
        value = to_contents(answer.parts)
    return Content.from_function_result(str(request.call_id), result=value)
