"""The client: find agents by their cards, send them messages, follow their tasks."""

from dragoman.client.address_rules import NotAllowed
from dragoman.client.approved_card import (
    AgentReference,
    ApprovedAgent,
    CardChanged,
    FetchedCard,
    fetch_card,
    read_card,
)
from dragoman.client.client import Client
from dragoman.client.credentials import (
    AuthRequest,
    BasicAuth,
    ClientCertificate,
    CredentialsNotSent,
    StaticToken,
    TokenProvider,
)
from dragoman.client.deadline import DeadlineExceeded
from dragoman.client.delegation import Delegation
from dragoman.client.discovery import CardCache
from dragoman.client.download import fetch
from dragoman.client.handed_over_task import HandedOverTask
from dragoman.client.inbox import Inbox
from dragoman.client.limits import Limits, TooLarge
from dragoman.client.login_redirect import Redirect
from dragoman.client.oauth import LoginPrompt, OAuth
from dragoman.client.options import CallOptions, Options, SendOptions
from dragoman.client.paused_task import Answerer, AnswerRefused, PausedTask
from dragoman.client.result import Result
from dragoman.client.skills import RemoteSkill, SkillNotCompleted
from dragoman.client.stream import Stream
from dragoman.client.task_handle import TaskHandle
from dragoman.client.transport import (
    Body,
    HTTPTransport,
    Transport,
    TransportRequest,
    TransportResponse,
    Unreachable,
)
from dragoman.client.trusted_keys import Origins, TrustedKeys
from dragoman.client.upload import File
from dragoman.model.pauses import PAUSE_EXTENSIONS, Pause
from dragoman.model.types import OpenIdConnectSecurityScheme, SecurityScheme
from dragoman.security.card_signatures import Trust, Unverified

__all__ = (
    "PAUSE_EXTENSIONS",
    "AgentReference",
    "AnswerRefused",
    "Answerer",
    "ApprovedAgent",
    "AuthRequest",
    "BasicAuth",
    "Body",
    "CallOptions",
    "CardCache",
    "CardChanged",
    "Client",
    "ClientCertificate",
    "CredentialsNotSent",
    "DeadlineExceeded",
    "Delegation",
    "FetchedCard",
    "File",
    "HTTPTransport",
    "HandedOverTask",
    "Inbox",
    "Limits",
    "LoginPrompt",
    "NotAllowed",
    "OAuth",
    "OpenIdConnectSecurityScheme",
    "Options",
    "Origins",
    "Pause",
    "PausedTask",
    "Redirect",
    "RemoteSkill",
    "Result",
    "SecurityScheme",
    "SendOptions",
    "SkillNotCompleted",
    "StaticToken",
    "Stream",
    "TaskHandle",
    "TokenProvider",
    "TooLarge",
    "Transport",
    "TransportRequest",
    "TransportResponse",
    "Trust",
    "TrustedKeys",
    "Unreachable",
    "Unverified",
    "fetch",
    "fetch_card",
    "read_card",
)
