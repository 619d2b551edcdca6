"""An agent of Google ADK whose model calls a remote agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.events import Event
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from play import play

from dragoman.bridges.adk import tools
from dragoman.bridges.remote import RemoteFailed

NAMES = {"app_name": "caller", "user_id": "u", "session_id": "s"}


class Script(BaseLlm):
    """A model that makes calls, and then ends."""

    model: str = "script"
    calls: list[tuple[str, dict[str, Any]]]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncIterator[LlmResponse]:
        """See `BaseLlm.generate_content_async`."""
        last = llm_request.contents[-1].parts
        parts = [
            types.Part(function_call=types.FunctionCall(id=f"call-{n}", name=name, args=arguments))
            for n, (name, arguments) in enumerate(self.calls)
        ]
        if last[0].function_response:
            parts = [types.Part(text="done")]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


class Caller:
    """An agent; its session is in a file."""

    def __init__(
        self, url: str, folder: Path, *calls: tuple[str, dict[str, Any]], **callbacks: Any
    ) -> None:
        self._url = url
        self._file = str(folder / "sessions.db")
        self._calls = list(calls)
        self._callbacks = callbacks
        self.events: list[Event] = []

    async def run(self, *parts: types.Part, invocation: str | None = None) -> Caller:
        """Run the agent, as a new process does."""
        agent = LlmAgent(
            name="Caller",
            model=Script(calls=self._calls),
            tools=await tools(self._url),
            **self._callbacks,
        )
        resumable = ResumabilityConfig(is_resumable=invocation is not None)
        app = App(name="caller", root_agent=agent, resumability_config=resumable)
        service = SqliteSessionService(self._file)
        if await service.get_session(**NAMES) is None:
            await service.create_session(**NAMES)
        runner = Runner(app=app, session_service=service)
        message = types.Content(role="user", parts=list(parts)) if parts else None
        try:
            async for _ in runner.run_async(
                user_id="u", session_id="s", invocation_id=invocation, new_message=message
            ):
                continue
        finally:
            session = await service.get_session(**NAMES)
            self.events = session.events
        return self

    @property
    def asked(self) -> types.FunctionCall:
        """The call that waits."""
        event = next(event for event in reversed(self.events) if event.long_running_tool_ids)
        (call,) = event.get_function_calls()
        return call

    def seen(self) -> dict[str, Any]:
        """What the model got to see."""
        given = [
            response
            for event in self.events
            if event.author != "user"
            for response in event.get_function_responses()
        ]
        files = [part.inline_data for each in given for part in each.parts or ()]
        return {
            "answers": [each.response.get("result", each.response) for each in given],
            "files": [[file.data.decode(), file.mime_type] for file in files],
        }


def words(text: str) -> types.Part:
    """What the user says."""
    return types.Part(text=text)


async def price(url: str, folder: Path) -> dict[str, Any]:
    """Two calls at the same time."""
    calls = (("price", {"nights": 2}), ("price", {"nights": 3}))
    return (await Caller(url, folder, *calls).run(words("go"))).seen()


async def book(url: str, folder: Path) -> dict[str, Any]:
    """Two questions, each answered to a new runner."""
    caller = await Caller(url, folder, ("book", {"city": "Rome"})).run(words("go"))
    questions = []
    for said in ("window", "vegan"):
        call = caller.asked
        questions.append(call.args["message"])
        answer = types.FunctionResponse(id=call.id, name=call.name, response={"result": said})
        caller = await Caller(url, folder).run(types.Part(function_response=answer))
    return {**caller.seen(), "questions": questions}


async def wait(url: str, folder: Path) -> dict[str, Any]:
    """The remote server dies meanwhile."""
    return (await Caller(url, folder, ("wait", {"city": "Rome"})).run(words("go"))).seen()


async def again(url: str, folder: Path) -> dict[str, Any]:
    """The process ends before the result is stored, and the invocation is resumed."""
    times, called = 0, asyncio.Event()

    def count(**_: Any) -> None:
        nonlocal times
        times += 1

    async def stop(**_: Any) -> None:
        called.set()
        await asyncio.Event().wait()

    call = ("price", {"nights": 2})
    begun = Caller(url, folder, call, before_tool_callback=count, after_tool_callback=stop)
    running = asyncio.create_task(begun.run(words("go")))
    await called.wait()
    running.cancel()
    await asyncio.wait([running])
    caller = Caller(url, folder, call, before_tool_callback=count)
    await caller.run(invocation=begun.events[0].invocation_id)
    return {**caller.seen(), "times": times}


async def refuse(url: str, folder: Path) -> dict[str, Any]:
    """An agent that rejects the task."""
    caller = Caller(url, folder, ("refuse", {"city": "Rome"}))
    try:
        await caller.run(words("go"))
    except RemoteFailed as error:
        return {**caller.seen(), "error": str(error)}
    return caller.seen()


async def sell(url: str, folder: Path) -> dict[str, Any]:
    """An agent that wants money."""
    caller = Caller(url, folder, ("sell", {"city": "Rome"}))
    try:
        await caller.run(words("go"))
    except RemoteFailed as error:
        return {**caller.seen(), "error": str(error)}
    return caller.seen()


async def picture(url: str, folder: Path) -> dict[str, Any]:
    """A file."""
    return (await Caller(url, folder, ("picture", {"city": "Rome"})).run(words("go"))).seen()


if __name__ == "__main__":
    scenes = (price, book, wait, again, refuse, sell, picture)
    play({scene.__name__: scene for scene in scenes})
