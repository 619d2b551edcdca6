"""An agent of Google ADK: `dragoman serve examples.bridges.adk_agent:assistant`."""

from collections.abc import AsyncIterator

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.genai.types import ModelContent


class Model(BaseLlm):
    """Your model takes its place, such as "gemini-3.5-flash"."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncIterator[LlmResponse]:
        """Answer the messages so far."""
        yield LlmResponse(content=ModelContent("It is sunny."))


assistant = LlmAgent(name="Weather", description="Knows the weather.", model=Model(model="fake"))
