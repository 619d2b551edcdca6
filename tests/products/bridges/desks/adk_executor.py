"""The desk of Google ADK by the executor that ADK brings itself, in both of its forms."""

from __future__ import annotations

from typing import Any

from a2a.server.agent_execution import RequestContext
from a2a.types import AgentCapabilities, AgentCard
from adk_desk import desk
from google.adk.a2a.converters.request_converter import (
    AgentRunRequest,
    convert_a2a_request_to_agent_run_request,
)
from google.adk.a2a.executor.a2a_agent_executor import A2aAgentExecutor
from google.adk.a2a.executor.config import A2aAgentExecutorConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.runners import InMemoryRunner

card = AgentCard(
    name="Desk",
    description="Does what it is told.",
    version="1.0.0",
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    capabilities=AgentCapabilities(streaming=True),
)


def streaming(context: RequestContext, convert: Any) -> AgentRunRequest:
    """A request of a run that streams its tokens."""
    request = convert_a2a_request_to_agent_run_request(context, convert)
    assert request.run_config is not None
    request.run_config.streaming_mode = StreamingMode.SSE
    return request


executor = A2aAgentExecutor(runner=InMemoryRunner(desk, app_name="desk"))
newer = A2aAgentExecutor(
    runner=InMemoryRunner(desk, app_name="desk"),
    config=A2aAgentExecutorConfig(request_converter=streaming),
    force_new_version=True,
)
