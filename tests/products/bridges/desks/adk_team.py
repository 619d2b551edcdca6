"""An agent of Google ADK whose sub-agent is the remote agent at `$REMOTE`."""

from __future__ import annotations

import os

from adk_kinds import Scripted
from google.adk.agents import LlmAgent

from dragoman.bridges import adk

talker = adk.remote_agent(os.environ["REMOTE"], name="talker", description="Talks.")
team = LlmAgent(
    name="Team",
    model=Scripted(script=lambda _: ("transfer_to_agent", {"agent_name": "talker"})),
    sub_agents=[talker],
)
