"""The desk as a `FunctionAgent` of LlamaIndex, with a model that follows a script, and the same as
an `AgentWorkflow` and as a plain workflow."""

# no `from __future__ import annotations`: the framework finds the context of a tool by its class
import asyncio
import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.llms import (
    ChatMessage,
    ChatResponse,
    ImageBlock,
    LLMMetadata,
)
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.memory import Memory
from pydantic import BaseModel
from script import note, times, unreadable
from workflows import Context, Workflow, step
from workflows.events import Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent

from dragoman.bridges import llamaindex

CALLS: dict[str, list[tuple[str, Any]]] = {
    "weather": [("weather", {"city": "Rome"})],
    "question": [("question", {})],
    "delete": [("delete", {"path": "/tmp/x"})],
    "delete both": [("delete", {"path": "/tmp/a"}), ("delete", {"path": "/tmp/b"})],
    "slow": [("slow", {})],
}


class Script(FunctionCallingLLM):
    """A model that streams what the script says."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_function_calling_model=True, context_window=10_000)

    def _prepare_chat_with_tools(self, tools: Any, **kwargs: Any) -> dict[str, Any]:
        return {"messages": kwargs["chat_history"]}

    def get_tool_calls_from_response(self, response: ChatResponse, **_: Any) -> list[ToolSelection]:
        return list(response.message.additional_kwargs.get("calls", ()))

    async def astream_chat(self, messages: Sequence[ChatMessage], **_: Any) -> Any:
        note("model")
        return self._streamed(messages)

    async def _streamed(self, messages: Sequence[ChatMessage]) -> Any:
        last = messages[-1]
        text = last.content or ""
        users = sum(message.role == "user" for message in messages)
        usage = {"usage": {"prompt_tokens": 5, "completion_tokens": 3}}
        images = [block for block in last.blocks if isinstance(block, ImageBlock)]
        if last.role == "user" and text in CALLS:
            calls = [
                ToolSelection(tool_id=f"{name}-{users}-{number}", tool_name=name, tool_kwargs=given)
                for number, (name, given) in enumerate(CALLS[text])
            ]
            message = ChatMessage(role="assistant", additional_kwargs={"calls": calls})
            yield ChatResponse(message=message, raw=usage)
            return
        if text == "picture":
            picture = ImageBlock(image=b"pixels", image_mimetype="image/png")
            yield ChatResponse(message=ChatMessage(role="assistant", blocks=[picture]), raw=usage)
            return
        shown = sum(block.block_type == "image" for message in messages for block in message.blocks)
        if text == "fail":
            raise ValueError("secret inside")
        words = ["You said ", text, f" as message {users}"]
        if last.role == "tool":
            words = ["The tool says: ", text]
        elif text == "files":
            words = [f"{shown} files"]
        elif images:
            words = [f"{len(images[0].resolve_image().read())} bytes of {images[0].image_mimetype}"]
        said = ""
        for number, word in enumerate(words):
            said += word
            message = ChatMessage(role="assistant", content=said)
            last_one = number == len(words) - 1
            yield ChatResponse(message=message, delta=word, raw=usage if last_one else None)
            if text == "half" and number == 1:
                note("half")
                if times("half") == 1:
                    await asyncio.sleep(60)

    def chat(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    stream_chat = complete = stream_complete = chat

    async def achat(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    acomplete = astream_complete = achat


def weather(city: str) -> str:
    """Look at the sky."""
    note("weather")
    return f"sunny in {city}"


class Reply(HumanResponseEvent):
    """An answer, perhaps with files."""

    files: list[Any] = []  # noqa: RUF012


async def question(ctx: Context) -> str:
    """Ask the user."""
    asked = InputRequiredEvent(prefix="Which color?")
    answer = await ctx.wait_for_event(Reply, waiter_event=asked)
    files = [f"a file, {file['media_type']}, and " for file in answer.files]
    return f"{''.join(files)}{answer.response}"


async def delete(ctx: Context, path: str) -> str:
    """Delete a file, if the user approves it."""
    call = {"tool_name": "delete", "tool_kwargs": {"path": path}}
    answer = await ctx.wait_for_event(
        HumanResponseEvent, waiter_event=InputRequiredEvent(**call), requirements=call
    )
    if not answer.approved:
        return "not deleted"
    note("delete" if path == "/tmp/x" else f"delete {path}")
    return f"deleted {path}"


async def slow() -> str:
    """Take a minute."""
    note("slow begins")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note("slow is stopped")
        raise
    return "done"


def structured(messages: list[ChatMessage]) -> dict[str, Any]:
    """A forecast, if it was asked for."""
    asked = [message.content for message in messages if message.role == "user"]
    return {"city": "Rome", "degrees": 21} if asked[-1] == "structured" else {}


desk = FunctionAgent(
    name="Desk",
    description="Does what it is told.",
    system_prompt="A secret prompt that no card shows.",
    llm=Script(),
    tools=[weather, question, delete, slow],
    structured_output_fn=structured,
)


def memory(session: str) -> Memory:
    """A conversation in a file."""
    note(f"session {session}")
    file = Path(os.environ["EFFECTS"]).parent / "conversations.db"
    return Memory.from_defaults(
        session_id=session, async_database_uri=f"sqlite+aiosqlite:///{file}"
    )


by_words = llamaindex.serve(desk, approvals="text")
own = llamaindex.serve(desk, memory=memory)
unreadable = unreadable("llama-index-workflows")
several = AgentWorkflow(agents=[desk])


class Trip(StartEvent):
    """Where to go."""

    city: str
    nights: int = 1


class Priced(Event):
    """What it costs."""

    price: int


class Delta(Event):
    """A part of the answer."""

    delta: str


class Booked(StopEvent):
    """What was booked."""

    city: str
    name: str
    runs: int


class Journey(Workflow):
    """A workflow that calls no model."""

    @step
    def plan(self, ev: Trip) -> Priced:
        """Find a price; this one is no coroutine."""
        note("plan")
        return Priced(price=10 * ev.nights)

    @step
    async def ask(self, ctx: Context, ev: Priced) -> InputRequiredEvent:
        """Ask for a name."""
        note("ask")
        for word in ("It costs ", str(ev.price)):
            ctx.write_event_to_stream(Delta(delta=word))
        await ctx.store.set("runs", await ctx.store.get("runs", default=0) + 1)
        return InputRequiredEvent(prefix="Your name?")

    @step
    async def book(self, ctx: Context, ev: HumanResponseEvent) -> Booked:
        """Book it."""
        note("book")
        return Booked(city="Rome", name=ev.response, runs=await ctx.store.get("runs"))


journey = Journey(timeout=5)


class Forecast(StopEvent):
    """A forecast."""

    city: str
    degrees: int


class Forecaster(Workflow):
    """Makes forecasts."""

    @step
    async def forecast(self, ev: StartEvent) -> Forecast:
        """Make one."""
        return Forecast(city="Rome", degrees=21)


class Weather(BaseModel):
    """A forecast."""

    city: str
    degrees: int


typed = llamaindex.serve(Forecaster(), name="Desk")
formed = llamaindex.serve(FunctionAgent(llm=Script(), output_cls=Weather), name="Desk")


class Sent(HumanResponseEvent):
    """An answer with files."""

    files: list[dict[str, Any]]


class Album(Workflow):
    """Asks for a photo."""

    @step
    async def ask(self, ev: StartEvent) -> InputRequiredEvent:
        """Ask for it."""
        return InputRequiredEvent(prefix="Which photo?")

    @step
    async def keep(self, ev: Sent) -> StopEvent:
        """Say what it is."""
        (file,) = ev.files
        size = len(base64.b64decode(file["base64"]))
        about = f"{file['name']}, {file['media_type']}, {size} bytes"
        return StopEvent(result=f"{ev.response}: {about}")


album = Album(timeout=5)
