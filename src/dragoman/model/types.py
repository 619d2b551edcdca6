"""The wire values: every object of A2A 1.0, with Python names.

Each struct is the proto message of its name. A field without presence has its proto default (`""`,
`False`, `()`). A field with presence, and every member of a oneof, is `None` if absent. Only
`Part.data` uses `UNSET`, because `null` is a value there. All structs are frozen:
`value.replace(field=…)` makes a changed copy.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Self, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, field, structs

from dragoman.model.reprs import short

Metadata: TypeAlias = dict[str, Any]
Required = Annotated[str, Meta(min_length=1)]
_TIME = r"(?a)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z\Z"
Timestamp = Annotated[str, Meta(pattern=_TIME, extra={"timestamp": "strict"})]
LenientTimestamp = Annotated[str, Meta(pattern=_TIME, extra={"timestamp": "lenient"})]
"""A time from an agent. Some agents omit the zone; then the time counts as absent."""


class WireStruct(
    Struct,
    frozen=True,
    omit_defaults=True,
    rename="camel",
    # An unknown name may be a ProtoJSON variant (snake_case): it must not be ignored.
    forbid_unknown_fields=True,
    gc=False,
):
    """Base of all wire values."""

    def replace(self, **changes: Any) -> Self:
        """Make a copy with other values of these fields. Raises TypeError if there is no such
        field."""
        return structs.replace(self, **changes)

    def __repr__(self) -> str:
        return short(self)


class TaskState(Enum):
    """The state of a task. The proto's UNSPECIFIED is absence here."""

    SUBMITTED = "TASK_STATE_SUBMITTED"
    WORKING = "TASK_STATE_WORKING"
    COMPLETED = "TASK_STATE_COMPLETED"
    FAILED = "TASK_STATE_FAILED"
    CANCELED = "TASK_STATE_CANCELED"
    INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
    REJECTED = "TASK_STATE_REJECTED"
    AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"

    number: int
    """The proto's number."""
    terminal: bool
    """No event follows."""
    interrupted: bool
    """The agent waits for the client."""
    settled: bool
    """Terminal or interrupted: the agent does not continue by itself."""


for _number, _state in enumerate(TaskState, start=1):  # plain attributes, for speed
    _state.number = _number
    _state.terminal = _state.name in {"COMPLETED", "FAILED", "CANCELED", "REJECTED"}
    _state.interrupted = _state.name in {"INPUT_REQUIRED", "AUTH_REQUIRED"}
    _state.settled = _state.terminal or _state.interrupted


class Role(Enum):
    """Who wrote a message."""

    USER = "ROLE_USER"
    AGENT = "ROLE_AGENT"


ENUM_NUMBERS: dict[type[Enum], dict[int, Enum]] = {
    TaskState: dict(enumerate(TaskState, start=1)),
    Role: dict(enumerate(Role, start=1)),
}
"""The proto numbers; 0 is UNSPECIFIED."""


class Part(WireStruct, frozen=True, kw_only=True):
    """A piece of content: exactly one of text, raw, url, data."""

    text: str | None = None
    raw: bytes | None = None
    url: str | None = None
    data: Any | UnsetType = UNSET
    metadata: Metadata | None = None
    filename: str = ""
    media_type: str = ""

    def __post_init__(self) -> None:
        if self.text is not None and self.raw is None and self.url is None and self.data is UNSET:
            return  # nearly all parts
        found = (
            (self.text is not None)
            + (self.raw is not None)
            + (self.url is not None)
            + (self.data is not UNSET)
        )
        if found != 1:
            raise ValueError("a part must have exactly one of text, raw, url, data")


Parts = Annotated[tuple[Part, ...], Meta(min_length=1)]


class Message(WireStruct, frozen=True, kw_only=True):
    """A message from the client or the agent."""

    message_id: Required
    context_id: str = ""
    task_id: str = ""
    role: Role
    parts: Parts
    metadata: Metadata | None = None
    extensions: tuple[str, ...] = ()
    reference_task_ids: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The text parts, one line each."""
        if len(self.parts) == 1:
            return self.parts[0].text or ""
        return "\n".join(part.text for part in self.parts if part.text is not None)


class Artifact(WireStruct, frozen=True, kw_only=True):
    """A result of a task."""

    artifact_id: Required
    name: str = ""
    description: str = ""
    parts: Parts
    metadata: Metadata | None = None
    extensions: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The text parts as one text: an agent may have sent it in pieces."""
        if len(self.parts) == 1:
            return self.parts[0].text or ""
        return "".join(part.text for part in self.parts if part.text is not None)


class TaskStatus(WireStruct, frozen=True, kw_only=True):
    """The state of a task, its time, and the agent's message with it."""

    state: TaskState
    message: Message | None = None
    timestamp: LenientTimestamp | None = None

    @property
    def text(self) -> str:
        """The text of its message."""
        return self.message.text if self.message else ""


class Task(WireStruct, frozen=True, kw_only=True):
    """A piece of work: the fold of its log."""

    id: Required
    context_id: str = ""
    status: TaskStatus
    artifacts: tuple[Artifact, ...] = ()
    history: tuple[Message, ...] = ()
    metadata: Metadata | None = None


class TaskStatusUpdateEvent(WireStruct, frozen=True, kw_only=True):
    """A new status of the task."""

    task_id: Required
    context_id: Required
    status: TaskStatus
    metadata: Metadata | None = None

    @property
    def text(self) -> str:
        """The text of its message."""
        return self.status.text


class TaskArtifactUpdateEvent(WireStruct, frozen=True, kw_only=True):
    """A new artifact of the task, or a chunk of one."""

    task_id: Required
    context_id: Required
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: Metadata | None = None

    @property
    def text(self) -> str:
        """The text of the artifact, or of this chunk."""
        return self.artifact.text


# ---- the card ------------------------------------------------------------------------------


class StringList(WireStruct, frozen=True, kw_only=True):
    """A list of strings, as the value of a map."""

    list: tuple[str, ...] = ()


class SecurityRequirement(WireStruct, frozen=True, kw_only=True):
    """Schemes that are required together, each with its scopes."""

    schemes: dict[str, StringList] = {}


class APIKeySecurityScheme(WireStruct, frozen=True, kw_only=True):
    """A key in a header, query parameter or cookie."""

    description: str = ""
    location: Required
    name: Required


class HTTPAuthSecurityScheme(WireStruct, frozen=True, kw_only=True):
    """An HTTP authentication scheme, such as bearer or basic."""

    description: str = ""
    scheme: Required
    bearer_format: str = ""


class AuthorizationCodeOAuthFlow(WireStruct, frozen=True, kw_only=True):
    """OAuth 2 with a person's browser."""

    authorization_url: Required
    token_url: Required
    refresh_url: str = ""
    scopes: dict[str, str]
    pkce_required: bool = False


class ClientCredentialsOAuthFlow(WireStruct, frozen=True, kw_only=True):
    """OAuth 2 between machines."""

    token_url: Required
    refresh_url: str = ""
    scopes: dict[str, str]


class ImplicitOAuthFlow(WireStruct, frozen=True, kw_only=True):
    """Deprecated."""

    authorization_url: str = ""
    refresh_url: str = ""
    scopes: dict[str, str] = {}


class PasswordOAuthFlow(WireStruct, frozen=True, kw_only=True):
    """Deprecated."""

    token_url: str = ""
    refresh_url: str = ""
    scopes: dict[str, str] = {}


class DeviceCodeOAuthFlow(WireStruct, frozen=True, kw_only=True):
    """OAuth 2 for devices without a browser."""

    device_authorization_url: Required
    token_url: Required
    refresh_url: str = ""
    scopes: dict[str, str]


class OAuthFlows(WireStruct, frozen=True, kw_only=True):
    """Exactly one of the flows."""

    authorization_code: AuthorizationCodeOAuthFlow | None = None
    client_credentials: ClientCredentialsOAuthFlow | None = None
    implicit: ImplicitOAuthFlow | None = None
    password: PasswordOAuthFlow | None = None
    device_code: DeviceCodeOAuthFlow | None = None


class OAuth2SecurityScheme(WireStruct, frozen=True, kw_only=True):
    """OAuth 2."""

    description: str = ""
    flows: OAuthFlows
    oauth2_metadata_url: str = field(default="", name="oauth2MetadataUrl")


class OpenIdConnectSecurityScheme(WireStruct, frozen=True, kw_only=True):
    """OpenID Connect, by discovery."""

    description: str = ""
    open_id_connect_url: Required


class MutualTlsSecurityScheme(WireStruct, frozen=True, kw_only=True):
    """A client certificate."""

    description: str = ""


class SecurityScheme(WireStruct, frozen=True, kw_only=True):
    """Exactly one of the schemes."""

    api_key_security_scheme: APIKeySecurityScheme | None = None
    http_auth_security_scheme: HTTPAuthSecurityScheme | None = None
    oauth2_security_scheme: OAuth2SecurityScheme | None = field(
        default=None, name="oauth2SecurityScheme"
    )
    open_id_connect_security_scheme: OpenIdConnectSecurityScheme | None = None
    mtls_security_scheme: MutualTlsSecurityScheme | None = None


class AgentProvider(WireStruct, frozen=True, kw_only=True):
    """The organization that runs the agent."""

    url: Required
    organization: Required


class AgentInterface(WireStruct, frozen=True, kw_only=True):
    """A URL of an agent, with its binding and version."""

    url: Required
    protocol_binding: Required
    tenant: str = ""
    protocol_version: Required


class AgentExtension(WireStruct, frozen=True, kw_only=True):
    """An extension that the agent supports."""

    uri: str = ""
    description: str = ""
    required: bool = False
    params: Metadata | None = None


class AgentCapabilities(WireStruct, frozen=True, kw_only=True):
    """The optional features that the agent offers."""

    streaming: bool | None = None
    push_notifications: bool | None = None
    extensions: tuple[AgentExtension, ...] = ()
    extended_agent_card: bool | None = None


class AgentSkill(WireStruct, frozen=True, kw_only=True):
    """Something the agent can do."""

    id: Required
    name: Required
    description: Required
    tags: Annotated[tuple[str, ...], Meta(min_length=1)]
    examples: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    security_requirements: tuple[SecurityRequirement, ...] = ()


class AgentCardSignature(WireStruct, frozen=True, kw_only=True):
    """A detached JWS over the card."""

    protected: Required
    signature: Required
    header: Metadata | None = None


Modes = Annotated[tuple[str, ...], Meta(min_length=1)]


class AgentCard(WireStruct, frozen=True, kw_only=True):
    """The description of an agent."""

    name: Required
    description: Required
    supported_interfaces: Annotated[tuple[AgentInterface, ...], Meta(min_length=1)]
    provider: AgentProvider | None = None
    version: Required
    documentation_url: str | None = None
    capabilities: AgentCapabilities
    security_schemes: dict[str, SecurityScheme] = {}
    security_requirements: tuple[SecurityRequirement, ...] = ()
    default_input_modes: Modes
    default_output_modes: Modes
    skills: tuple[AgentSkill, ...]
    signatures: tuple[AgentCardSignature, ...] = ()
    icon_url: str | None = None


# ---- requests and responses ----------------------------------------------------------------


class AuthenticationInfo(WireStruct, frozen=True, kw_only=True):
    """How to authenticate to the receiver of a webhook."""

    scheme: Required
    credentials: str = ""


class TaskPushNotificationConfig(WireStruct, frozen=True, kw_only=True):
    """A webhook of a task."""

    tenant: str = ""
    id: str = ""
    task_id: str = ""
    url: Required
    token: str = ""
    authentication: AuthenticationInfo | None = None


class SendMessageConfiguration(WireStruct, frozen=True, kw_only=True):
    """Options of a send: which output, how much history, whether to wait."""

    accepted_output_modes: tuple[str, ...] = ()
    task_push_notification_config: TaskPushNotificationConfig | None = None
    history_length: int | None = None
    return_immediately: bool = False


class SendMessageRequest(WireStruct, frozen=True, kw_only=True):
    """A message to an agent."""

    tenant: str = ""
    message: Message
    configuration: SendMessageConfiguration | None = None
    metadata: Metadata | None = None


class GetTaskRequest(WireStruct, frozen=True, kw_only=True):
    """Which task, and how much of its history."""

    tenant: str = ""
    id: Required
    history_length: int | None = None


class ListTasksRequest(WireStruct, frozen=True, kw_only=True):
    """Which tasks, and which page of them."""

    tenant: str = ""
    context_id: str = ""
    status: TaskState | None = None
    page_size: int | None = None
    page_token: str = ""
    history_length: int | None = None
    status_timestamp_after: Timestamp | None = None
    include_artifacts: bool | None = None


class ListTasksResponse(WireStruct, frozen=True, kw_only=True):
    """A page of tasks, the latest status first."""

    tasks: tuple[Task, ...]
    next_page_token: str
    page_size: int
    total_size: int


class CancelTaskRequest(WireStruct, frozen=True, kw_only=True):
    """Which task to cancel."""

    tenant: str = ""
    id: Required
    metadata: Metadata | None = None


class SubscribeToTaskRequest(WireStruct, frozen=True, kw_only=True):
    """Which task to follow."""

    tenant: str = ""
    id: Required


class GetTaskPushNotificationConfigRequest(WireStruct, frozen=True, kw_only=True):
    """Which webhook of which task."""

    tenant: str = ""
    task_id: Required
    id: Required


class DeleteTaskPushNotificationConfigRequest(WireStruct, frozen=True, kw_only=True):
    """Which webhook of which task."""

    tenant: str = ""
    task_id: Required
    id: Required


class ListTaskPushNotificationConfigsRequest(WireStruct, frozen=True, kw_only=True):
    """Which task's webhooks, and which page of them."""

    tenant: str = ""
    task_id: Required
    page_size: int = 0
    page_token: str = ""


class ListTaskPushNotificationConfigsResponse(WireStruct, frozen=True, kw_only=True):
    """A page of webhooks."""

    configs: tuple[TaskPushNotificationConfig, ...] = ()
    next_page_token: str = ""


class GetExtendedAgentCardRequest(WireStruct, frozen=True, kw_only=True):
    """A request for the extended card."""

    tenant: str = ""


class SendMessageResponse(WireStruct, frozen=True, kw_only=True):
    """The task that a message led to, or the direct reply."""

    task: Task | None = None
    message: Message | None = None


class StreamResponse(WireStruct, frozen=True, kw_only=True):
    """One event of a stream."""

    task: Task | None = None
    message: Message | None = None
    status_update: TaskStatusUpdateEvent | None = None
    artifact_update: TaskArtifactUpdateEvent | None = None
