"""An agent of Microsoft's Agent Framework: `dragoman serve
examples.bridges.microsoft_agent:assistant`."""

from typing import Any

from agent_framework import Agent, BaseChatClient, ChatResponseUpdate, Content


class Client(BaseChatClient):
    """Your client takes its place, such as `OpenAIChatClient`."""

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
        async def answer() -> Any:
            contents = [Content.from_text("It is sunny.")]
            yield ChatResponseUpdate(role="assistant", contents=contents)

        return self._build_response_stream(answer())


assistant = Agent(Client(), name="Weather", description="Knows the weather.")
