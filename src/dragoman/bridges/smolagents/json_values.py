"""Values of smolagents, as JSON: what the model and tools have returned, and the memory."""

from __future__ import annotations

import base64
import io
import json
import mimetypes
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from PIL import Image
from smolagents import (
    ActionStep,
    AgentAudio,
    AgentError,
    AgentImage,
    AgentLogger,
    ChatMessage,
    LogLevel,
    MemoryStep,
    PlanningStep,
    TaskStep,
    Timing,
    TokenUsage,
    ToolCall,
)

from dragoman import Part, UserError
from dragoman.bridges.bridge import Run
from dragoman.bridges.saved_state import LIMIT


class State(Struct, frozen=True, kw_only=True):
    """What a run needs of those before it."""

    steps: list[dict[str, Any]] = []
    """The memory of the tasks before this one."""
    calls: dict[str, Any] = {}
    """What this task's calls have returned, if it is not done: they are not made again."""
    answers: dict[str, tuple[str, bool]] = {}
    """The client's answers to its questions: what it said, and whether it approves."""


class Unknown(Exception):
    """A value has no JSON form."""


def encoded(run: Run, state: State) -> bytes:
    """A state. Beyond the limit, the oldest images are dropped, then the oldest messages."""

    def encode(steps: list[dict[str, Any]]) -> bytes:
        return msgspec.json.encode(msgspec.structs.replace(state, steps=steps))

    steps = [dict(step) for step in state.steps]
    for step in steps:
        if step.get("images") and len(run.pack(encode(steps))) > LIMIT:
            step["images"] = []
    data = run.fitting(steps, encode, lambda step: step["kind"] == "task")
    if len(run.pack(data)) > LIMIT:
        raise UserError("The agent has done too much to wait for an answer now; ask for less")
    return data


def decoded(data: bytes) -> State:
    """What `encoded` wrote; raises an error if it cannot be read."""
    found = msgspec.json.decode(data, type=State)
    loaded_steps(found.steps)
    return found


def dumped_steps(steps: Sequence[MemoryStep]) -> list[dict[str, Any]]:
    """The memory, as JSON."""
    found: list[dict[str, Any]] = []
    shown: Any = None
    for step in steps:
        if isinstance(step, TaskStep):
            shown = step.task_images
            found.append({"kind": "task", "text": step.task, "images": _dumped_images(shown)})
        elif isinstance(step, PlanningStep):
            found.append({"kind": "plan", "text": step.plan})
        elif isinstance(step, ActionStep):
            # each step of a task has the task's images
            own = None if step.observations_images is shown else step.observations_images
            calls = [[call.name, call.arguments, call.id] for call in step.tool_calls or ()]
            found.append(
                {
                    "kind": "action",
                    "number": step.step_number,
                    "output": step.model_output,
                    "calls": calls,
                    "observations": step.observations,
                    "images": _dumped_images(own),
                    "error": None if step.error is None else str(step.error),
                }
            )
    # what is no JSON, such as an object that a tool was given, the model has seen as text
    return list(json.loads(json.dumps(found, default=str)))


def loaded_steps(steps: Sequence[dict[str, Any]]) -> list[MemoryStep]:
    """The memory; raises an error if it cannot be read."""
    quiet = AgentLogger(level=LogLevel.OFF)
    never = Timing(start_time=0.0, end_time=0.0)
    found: list[MemoryStep] = []
    for step in steps:
        images = [_image(each) for each in step.get("images", ())] or None
        if step["kind"] == "task":
            found.append(TaskStep(task=step["text"], task_images=images))
        elif step["kind"] == "plan":
            said = ChatMessage(role="assistant", content=step["text"])
            found.append(PlanningStep([], said, step["text"], never))
        else:
            calls = [ToolCall(name, arguments, id) for name, arguments, id in step["calls"]]
            error = None if step["error"] is None else AgentError(step["error"], quiet)
            found.append(
                ActionStep(
                    step["number"],
                    never,
                    tool_calls=calls or None,
                    error=error,
                    model_output=step["output"],
                    observations=step["observations"],
                    observations_images=images,
                )
            )
    return found


def dumped(value: Any) -> Any:
    """What a tool has returned, as JSON; None if it has no such form: then it is called again."""
    if isinstance(value, AgentImage):
        try:
            return {"image": _dumped_image(value.to_raw())}
        except OSError:
            return None
    if isinstance(value, Image.Image):
        return {"picture": _dumped_image(value)}
    try:
        return {"value": json.loads(_strict(value))}
    except Unknown:
        return None


def loaded(found: dict[str, Any]) -> Any:
    """What `dumped` wrote; raises the error that a call has raised."""
    if "error" in found:
        name, text = found["error"]
        raise type(name, (Exception,), {})(text)  # the model gets to read the name
    if "image" in found:
        return AgentImage(_image(found["image"]))
    return _image(found["picture"]) if "picture" in found else found["value"]


def _strict(value: Any) -> str:
    """A value as JSON that is the same value when it is read."""
    try:
        text = json.dumps(value, allow_nan=False)
        if json.loads(text) == value:
            return text
    except (TypeError, ValueError, RecursionError):
        pass
    raise Unknown(type(value).__name__)


def dumped_message(message: ChatMessage) -> Any:
    """What a model has returned, as JSON; None if it has no such form."""
    usage = message.token_usage
    found = {
        "role": str(getattr(message.role, "value", message.role)),
        "content": message.content,
        "tool_calls": [
            {
                "id": call.id,
                "type": call.type,
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in message.tool_calls or ()
        ],
        "usage": None if usage is None else [usage.input_tokens, usage.output_tokens],
    }
    try:
        return json.loads(_strict(found))
    except Unknown:
        return None


def loaded_message(found: dict[str, Any]) -> ChatMessage:
    """What `dumped_message` wrote."""
    fields = {key: found[key] for key in ("role", "content", "tool_calls")}
    fields["tool_calls"] = fields["tool_calls"] or None
    usage = None if found["usage"] is None else TokenUsage(*found["usage"])
    return ChatMessage.from_dict(fields, token_usage=usage)


def _dumped_images(images: Sequence[Any] | None) -> list[str]:
    return [_dumped_image(image) for image in images or ()]


def _dumped_image(image: Any) -> str:
    file = io.BytesIO()
    image.save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()


def _image(text: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(text)))


def file_of(value: Any) -> Part | None:
    """An image or a sound, as it is in its file, or as a new file; None if it is neither."""
    if isinstance(value, Image.Image):
        with suppress(OSError):  # a file that Pillow cannot read is given as it is
            image = value.to_raw() if isinstance(value, AgentImage) else value
            if not getattr(image, "filename", ""):
                raw = base64.b64decode(_dumped_image(image))
                return Part(raw=raw, media_type="image/png", filename="image.png")
            value = AgentImage(image.filename)
    if not isinstance(value, AgentImage | AgentAudio):
        return None
    path = Path(value.to_string())
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Part(raw=path.read_bytes(), media_type=kind, filename=path.name)
