"""The options of a client, and of what it sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from dragoman.client.credentials import Auth
from dragoman.client.delegation import Delegation
from dragoman.client.discovery import CardCache
from dragoman.client.inbox import Inbox
from dragoman.client.limits import Limits
from dragoman.client.paused_task import Answerer
from dragoman.model.types import TaskPushNotificationConfig
from dragoman.security.card_signatures import Keys, Verifier


class Options(TypedDict, total=False):
    """Options of a client."""

    headers: Mapping[str, str]
    """Headers of every request to the agent's origin. Other origins do not get them."""
    auth: Auth
    """Credentials for the card's security schemes: one, several, or a mapping by scheme name."""
    scopes_for: str
    """The id of a skill: tokens get the scopes that this skill needs. By default, they get those
    that the card requires for all skills."""
    trust: Sequence[str]
    """Other origins that may receive the headers and credentials; `*` means any."""
    allow: Sequence[str]
    """Hosts and networks that are not public, such as `10.0.0.0/8` or `*.intra.example`, to which a
    card from a public address may point."""
    insecure: bool
    """Send credentials over plain HTTP, too."""
    extensions: Sequence[str]
    """Extensions to activate if the agent offers them."""
    bindings: Sequence[str]
    """The bindings that the client may use."""
    timeout: float
    """Seconds that one attempt may take; 60 by default."""
    deadline: float | None
    """Seconds that a call may take with all attempts; then it raises `DeadlineExceeded`."""
    patience: float
    """Seconds that a stream may be silent before the client reconnects; 60 by default."""
    attempts: int
    """How often to try a call that fails; 8 by default, which takes about ten seconds."""
    limits: Limits
    """The most that the client accepts: bytes of a response and of a task, events of a stream."""
    signed_by: Verifier | Keys | None
    """The keys that must have signed the card: keys, `Trust`, `TrustedKeys` or `Origins`. By
    default, the client accepts an unsigned card."""
    strict: bool
    """Refuse a card that lacks a required field. By default, the client logs the missing fields and
    uses the card if it is enough to call the agent."""
    card_cache: CardCache | None
    """A cache of cards that several clients share."""
    inbox: Inbox | None
    """A webhook address where agents that do not stream can push updates."""
    answer: Answerer | None
    """What answers a task that waits for its client, before `send` returns and within a stream. By
    default, each pause is left to the caller."""
    delegation: Delegation | None
    """The turn on whose behalf this client works."""


class SendOptions(TypedDict, total=False):
    """Options of a message."""

    skill: str
    """The id of the skill to use."""
    modes: Sequence[str]
    """The media types that the caller accepts."""
    metadata: dict[str, Any]
    """Metadata of the request. A `Message` has its own metadata."""
    history: int
    """The most messages of the task's history to return."""
    webhook: TaskPushNotificationConfig | str
    """A webhook for the task: a URL, or a whole configuration."""
    references: Sequence[str]
    """Ids of other tasks that the message refers to."""
    key: str
    """The idempotency key, which is also the message id. By default, the client makes one."""


class CallOptions(SendOptions, total=False):
    """Options of the call of a skill."""

    task: str
    """The id of the task to continue; it keeps the parameters that it was given."""
    context: str
    """The id of the conversation."""
