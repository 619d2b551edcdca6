"""dragoman: an A2A (Agent2Agent) runtime. A task is an append-only log; all else is a view.

The flow of a request, and where to read on:

    bytes → bindings/ → service.py → store.append → (bell) → worker.py → agent
                                                                           │
    bytes ← bindings/ ← reader.py  ← store.read   ← (bell) ←  store.append ┘

`Agent` and `Turn` are what an author writes with, `App` serves agents under any ASGI server.
"""

from dragoman._version import __version__ as __version__
from dragoman.agent import Agent, AgentError
from dragoman.app import App
from dragoman.caller import Caller, Request
from dragoman.errors import A2AError
from dragoman.settings import Settings
from dragoman.turn import Turn
from dragoman.types import (
    AgentCard,
    AgentExtension,
    AgentProvider,
    AgentSkill,
    Artifact,
    AuthenticationInfo,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

__all__ = [
    "A2AError",
    "Agent",
    "AgentCard",
    "AgentError",
    "AgentExtension",
    "AgentProvider",
    "AgentSkill",
    "App",
    "Artifact",
    "AuthenticationInfo",
    "Caller",
    "Message",
    "Part",
    "Request",
    "Role",
    "Settings",
    "Task",
    "TaskArtifactUpdateEvent",
    "TaskPushNotificationConfig",
    "TaskState",
    "TaskStatus",
    "TaskStatusUpdateEvent",
    "Turn",
    "__version__",
]
