"""What the bridge for ADK says to the client, and the client to ADK."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from google.adk.auth import AuthConfig
from google.adk.models import LlmResponse
from google.adk.sessions import Session
from google.genai import types
from msgspec import UNSET

from dragoman import Part
from dragoman.bridges import third_party_internals
from dragoman.bridges.bridge import Answer, Question, Run, question_about
from dragoman.bridges.text_answers import files_of, value_of

CONFIRMATION, CREDENTIAL = "adk_request_confirmation", "adk_request_credential"
"""The calls by which ADK asks for an approval, and for the user's login elsewhere."""
INPUT = "adk_request_input"
"""The call by which ADK asks for input."""
INTERNAL = (CONFIRMATION, CREDENTIAL, INPUT, "set_model_response", "finish_task")
"""Calls that are not reported: those by which ADK asks, and by which a model gives its result."""


def text_of(response: LlmResponse) -> str:
    """The text of a response, without what the model has thought."""
    parts = (response.content and response.content.parts) or ()
    return "".join(part.text for part in parts if part.text and not part.thought)


WORDS = ("question", "message", "prompt", "text")
"""The arguments of a call that have the words of a question."""


def to_json(value: Any) -> str:
    """A value as the text that a model reads."""
    return json.dumps(value, ensure_ascii=False, default=str)


async def say(run: Run, response: LlmResponse, name: str, *, quiet: bool, streamed: bool) -> None:
    """Report a response of a model: its text, unless that was streamed, its files and calls."""
    if not quiet and not (streamed and not response.partial):
        await run.write(text_of(response), name)
    if response.partial:
        return
    for part in (response.content and response.content.parts) or ():
        if not part.thought:
            await send_file(run, part)
        call = part.function_call
        if call is not None and call.name not in INTERNAL:
            await run.tool(call.name)


async def send_file(run: Run, part: types.Part | None, name: str = "") -> None:
    """Send a file that the agent made."""
    if part is None:
        return
    if part.inline_data is not None and part.inline_data.data is not None:
        name = name or part.inline_data.display_name or ""
        kind = part.inline_data.mime_type or "application/octet-stream"
        file = Part(raw=part.inline_data.data, media_type=kind, filename=name)
        await run.file(file, name)
    elif part.file_data is not None and part.file_data.file_uri:
        kind = part.file_data.mime_type or ""
        await run.file(Part(url=part.file_data.file_uri, media_type=kind), name)
    elif name and part.text:
        await run.file(Part(text=part.text), name)


def to_parts(parts: Sequence[Part]) -> list[types.Part]:
    """The client's message as the model gets it."""
    found = []
    for part in parts:
        kind = part.media_type or "application/octet-stream"
        if part.text is not None:
            found.append(types.Part(text=part.text))
        elif part.raw is not None:
            blob = types.Blob(data=part.raw, mime_type=kind, display_name=part.filename)
            found.append(types.Part(inline_data=blob))
        elif part.url is not None:
            file = types.FileData(file_uri=part.url, mime_type=kind)
            found.append(types.Part(file_data=file))
        elif part.data is not UNSET:
            found.append(types.Part(text=to_json(part.data)))
    return found


def _calls(session: Session) -> dict[str, types.FunctionCall]:
    return {call.id: call for event in session.events for call in event.get_function_calls()}


def responses_of(session: Session) -> dict[str, Any]:
    """What was said to each call, by its id."""
    return {
        response.id: response.response
        for event in session.events
        for response in event.get_function_responses()
    }


def to_question(call: types.FunctionCall, responses: dict[str, Any]) -> Question:
    """What a call waits for. Of a credential, only the address of the login is shown."""
    arguments = call.args or {}
    if call.name == CONFIRMATION:
        asked = arguments["originalFunctionCall"]
        operation = {"tool": asked["name"], "arguments": asked.get("args", {})}
        text = f"May I call {asked['name']} with {to_json(operation['arguments'])}?"
        hint = arguments.get("toolConfirmation", {}).get("hint", "")
        if hint and not third_party_internals.is_standard_hint(hint, asked["name"]):
            text = f"{hint}\n{text}"
        return Question(call.id, text, approval=True, operation=operation)
    if call.name == CREDENTIAL:
        login = _login(AuthConfig.model_validate(arguments["authConfig"]))
        address = login.auth_uri if login is not None else None
        text = f"Log in at {address} and send me the address of the page that you come to"
        return Question(call.id, text if address else "A login is needed, which I cannot ask for")
    if (wanted := remote_operation(call)) is not None:
        return Question(call.id, wanted["question"], approval=True, operation=wanted)
    known = responses.get(call.id)
    asked = question_about(call.id, arguments, WORDS, f"{call.name}: {to_json(arguments)}")
    if any(isinstance(arguments.get(key), str) for key in WORDS):
        # the payload of a remote agent's question is for the bridge
        return Question(call.id, asked.text) if asks_for_remote(call) else asked
    told = question_about(call.id, known if isinstance(known, dict) else {}, WORDS, asked.text)
    return Question(call.id, told.text)


def asks_for_remote(call: types.FunctionCall) -> bool:
    """Whether a remote agent asks that is a tool: it gets files, too."""
    asked = (call.args or {}).get("payload") if call.name == INPUT else None
    return isinstance(asked, dict) and "task" in asked and "call" in asked


def remote_operation(call: types.FunctionCall) -> dict[str, Any] | None:
    """What a remote agent wants to have approved; None if the call asks for something else."""
    asked = (call.args or {}).get("payload") if call.name == INPUT else None
    if not isinstance(asked, dict) or not asked.get("approval") or "task" not in asked:
        return None
    return {name: asked.get(name, "") for name in ("tool", "question", "task")}


def _login(config: AuthConfig) -> Any:
    exchanged = config.exchanged_auth_credential
    return None if exchanged is None else exchanged.oauth2


def to_responses(answers: Sequence[Answer], session: Session) -> list[types.Part]:
    """The answers, as responses of the calls that asked."""
    calls, found = _calls(session), []
    for answer in answers:
        if (call := calls.get(answer.id)) is None:
            raise ValueError("the session does not have the call that asked")
        response: Any
        files: list[types.FunctionResponsePart] = []
        if call.name == CONFIRMATION:
            payload = (call.args or {}).get("toolConfirmation", {}).get("payload")
            response = {"confirmed": answer.approved, "payload": payload}
        elif call.name == CREDENTIAL:
            # the client gives the address only: where the secret is sent to is the author's
            config = AuthConfig.model_validate((call.args or {})["authConfig"])
            if (login := _login(config)) is not None:
                login.auth_response_uri = answer.text
            response = config.model_dump(mode="json", exclude_none=True, by_alias=True)
        elif remote_operation(call) is not None:
            response = {"result": answer.approved}  # words and data approve nothing
        else:
            said = answer.text if answer.data is None else answer.data
            if call.name == INPUT and not asks_for_remote(call):
                said = value_of(answer)  # a node gets no files
            else:
                files = [_file(part) for part in files_of(answer)]
            response = said if isinstance(said, dict) else {"result": said}
        given = types.FunctionResponse(
            id=call.id, name=call.name, response=response, parts=files or None
        )
        found.append(types.Part(function_response=given))
    return found


def _file(part: Part) -> types.FunctionResponsePart:
    """A file as a part of what a call returns."""
    kind = part.media_type or "application/octet-stream"
    if part.raw is None:
        data = types.FunctionResponseFileData(file_uri=part.url, mime_type=kind)
        return types.FunctionResponsePart(file_data=data)
    blob = types.FunctionResponseBlob(data=part.raw, mime_type=kind, display_name=part.filename)
    return types.FunctionResponsePart(inline_data=blob)


def parsed(text: str) -> Any:
    """A structured result: JSON, if the model kept to the schema."""
    try:
        return json.loads(text)
    except ValueError:
        return text
