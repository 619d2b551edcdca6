"""dragoman: an A2A (Agent2Agent) runtime. A task is an append-only log; all else is a view.

The flow of a request, and where to read on:

    bytes → bindings/ → server/service.py → store.append → (bell) → server/worker.py → agent/
                                                                                         │
    bytes ← bindings/ ← server/reader.py  ← store.read   ← (bell) ← store.append ←───────┘

The folders: `model/` has values and pure functions, `agent/` what authors write, `server/` the
runtime, `stores/` and `bells/` the backends, `bindings/` and `dialects/` the protocol, `webhooks/`,
`security/`, `telemetry/`, `client/`, `admin/`; `bridges/`, `mcp/`, `registry/`, `orchestrator/`,
`console/`, `cli/`, `testing/`, `conformance/` and `demo/` stand beside them. `Agent` and `Turn` are
what an author writes with, `serve` starts the server from code, `App` serves agents under any ASGI
server.
"""

from dragoman._resume import resume
from dragoman._serve import serve
from dragoman._version import __version__ as __version__
from dragoman.agent.agent import Agent, AgentError
from dragoman.agent.gate import (
    Gate,
    GatedWork,
    GateStore,
    MaintainedGate,
    OutputGate,
    PrivateMetadata,
    PrivateParts,
)
from dragoman.agent.step_results import StepFailed, StepUncertain
from dragoman.agent.turn import Turn
from dragoman.agent.user_error import UserError
from dragoman.model.caller import Caller, Request
from dragoman.model.conversation import ContextChanged, ConversationMessage
from dragoman.model.errors import A2AError, HandoverEnded
from dragoman.model.handover import Handover
from dragoman.model.remote_task import RemoteTask
from dragoman.model.skill_extension import JsonSchema
from dragoman.model.types import (
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
from dragoman.server.app import App
from dragoman.server.app_options import AppOptions
from dragoman.server.settings import Settings
from dragoman.stores.reservations import Reservation

__all__ = [
    "A2AError",
    "Agent",
    "AgentCard",
    "AgentError",
    "AgentExtension",
    "AgentProvider",
    "AgentSkill",
    "App",
    "AppOptions",
    "Artifact",
    "AuthenticationInfo",
    "Caller",
    "ContextChanged",
    "ConversationMessage",
    "Gate",
    "GateStore",
    "GatedWork",
    "Handover",
    "HandoverEnded",
    "JsonSchema",
    "MaintainedGate",
    "Message",
    "OutputGate",
    "Part",
    "PrivateMetadata",
    "PrivateParts",
    "RemoteTask",
    "Request",
    "Reservation",
    "Role",
    "Settings",
    "StepFailed",
    "StepUncertain",
    "Task",
    "TaskArtifactUpdateEvent",
    "TaskPushNotificationConfig",
    "TaskState",
    "TaskStatus",
    "TaskStatusUpdateEvent",
    "Turn",
    "UserError",
    "__version__",
    "resume",
    "serve",
]
