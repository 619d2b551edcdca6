"""Workflows of Microsoft's Agent Framework, and agents whose calls are logged or not."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatContext,
    ChatMiddlewareLayer,
    ChatResponseUpdate,
    Content,
    Executor,
    FunctionInvocationContext,
    FunctionInvocationLayer,
    FunctionTool,
    Message,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    chat_middleware,
    handler,
    response_handler,
    tool,
)
from script import note

from dragoman.bridges import microsoft


class Scripted(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """A model that says what a function makes of the results of tools so far."""

    def __init__(self, script: Callable[[list[Content]], Any]) -> None:
        super().__init__()
        self.script = script

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Any, **_: Any
    ) -> Any:
        async def answer() -> AsyncIterator[ChatResponseUpdate]:
            note("model")
            contents = [content for message in messages for content in message.contents]
            said = self.script([each for each in contents if each.type == "function_result"])
            text = re.findall(r"\S+\s*", said) if isinstance(said, str) else []
            words = [Content.from_text(word) for word in text] or [said]
            for content in words:
                yield ChatResponseUpdate(role="assistant", contents=[content])

        return self._build_response_stream(answer())


QUESTION = {"type": "object", "properties": {"question": {"type": "string"}}}
ask = FunctionTool(name="ask", description="Ask.", func=None, input_model=QUESTION)


@tool
def camera(ctx: FunctionInvocationContext) -> Content:
    """Take a picture."""
    note("camera")
    ctx.session.state["pictures"] = ctx.session.state.get("pictures", 0) + 1
    return Content.from_data(b"\xff" * 600_000, "image/png")


@tool
def album(ctx: FunctionInvocationContext) -> str:
    """Count the pictures."""
    return f"{ctx.session.state['pictures']} taken"


def photograph(results: list[Content]) -> Any:
    calls = (("camera", "{}"), ("ask", '{"question": "Keep it?"}'), ("album", "{}"))
    if len(results) < len(calls):
        name, arguments = calls[len(results)]
        return Content.from_function_call(f"call-{name}", name, arguments=arguments)
    size = sum(len(item.uri) for item in results[0].items if item.uri)
    return f"{size > 600_000} {results[-1].result}"


photographer = Agent(Scripted(photograph), name="Photographer", tools=[camera, ask, album])


class Guide(Executor):
    """Counts the trips that it plans."""

    trips = 0

    @handler
    async def plan(self, messages: list[Message], context: WorkflowContext[str, Any]) -> None:
        """Ask for the city."""
        self.trips += 1
        await context.request_info("Which city?", str)

    @response_handler
    async def go(self, original: str, response: str, context: WorkflowContext[str, Any]) -> None:
        """Plan the trip."""
        note(f"trip to {response}")
        await context.yield_output({"city": response, "trips": self.trips})

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """See `Executor`."""
        return {"trips": self.trips}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """See `Executor`."""
        self.trips = state["trips"]


def guided() -> Workflow:
    return WorkflowBuilder(start_executor=Guide(id="guide"), name="Guided").build()


def team() -> Workflow:
    @tool(approval_mode="always_require")
    def delete(path: str) -> str:
        """Delete a file."""
        note("delete")
        return f"deleted {path}"

    def clean(results: list[Content]) -> Any:
        if results:
            return f"It says: {results[0].result}"
        return Content.from_function_call("call-1", "delete", arguments='{"path": "/tmp/x"}')

    one = Agent(Scripted(clean), name="one", tools=[delete])
    two = Agent(Scripted(lambda _: "second"), name="two")
    builder = WorkflowBuilder(start_executor=one, name="Team", output_from=[one, two])
    return builder.add_edge(one, two).build()


@chat_middleware
async def shout(context: ChatContext, call_next: Any) -> None:
    def louder(update: ChatResponseUpdate) -> ChatResponseUpdate:
        for content in update.contents:
            content.text = (content.text or "").upper()
        return update

    context.stream_transform_hooks.append(louder)
    await call_next()


loud = Agent(Scripted(lambda _: "secret words"), name="Loud", middleware=[shout])
trips = microsoft.serve(guided)
pair = microsoft.serve(team, description="Two agents, one after the other.")
shared = guided().as_agent()
