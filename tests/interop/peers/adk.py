"""An agent of Google ADK behind the A2A server that ADK brings. Its model says what it is told."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from announcing import serve
from google.adk.a2a.utils.agent_to_a2a import to_a2a
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.genai import types
from starlette.applications import Starlette


class Echo(BaseLlm):
    """A model that gives back the text of the last message."""

    model: str = "echo"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncIterator[LlmResponse]:
        """See `BaseLlm.generate_content_async`."""
        parts = llm_request.contents[-1].parts or []
        text = " ".join(part.text for part in parts if part.text)
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]))


def application(url: str) -> Starlette:
    """The application whose card says this URL."""
    warnings.simplefilter("ignore")  # it calls its server experimental
    where = urlsplit(url)
    agent = LlmAgent(name="desk", description="Does what the text says.", model=Echo())
    return to_a2a(agent, host=where.hostname or "", port=where.port or 80)


if __name__ == "__main__":
    serve(application)
