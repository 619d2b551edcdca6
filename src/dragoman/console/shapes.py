"""The values of the operator's API, as JSON has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from dragoman import Part, Role


class Shape(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A value of the API. Empty fields are omitted."""


class SessionView(Shape, frozen=True, kw_only=True):
    """Who looks, and at what."""

    name: str
    acts: bool
    actions: bool = False
    """Whether tasks can be canceled, answered and sent again from here."""
    everywhere: bool
    version: str
    source: str
    """`app` for a server, `store` for a store without one, `agent` for the inspector."""
    title: str
    tenant: str = ""
    caller: str = ""
    """Who calls agents in the chat; empty is anonymous."""
    needs_caller: bool = False
    """Whether the chat needs a log-in first."""
    ends: float = 0.0
    poll: float = 1.0
    agents: Sequence[AgentName] = ()
    schemes: Sequence[SchemeView] = ()
    ways: Sequence[Sequence[str]] = ()
    """The ways to log in: the names of the schemes that are typed together."""
    client: str = ""
    """The console's client id at the authorization server."""


class AgentName(Shape, frozen=True, kw_only=True):
    """An agent of the server, and the path below the console where the chat calls it."""

    key: str
    name: str
    path: str


class SchemeView(Shape, frozen=True, kw_only=True):
    """A way to log in: what a person types."""

    name: str
    kind: str
    """`key`, `bearer`, `basic`, `oauth` or `certificate`."""
    title: str
    where: str = ""
    """For a key: `header`, `query` or `cookie`."""
    field: str = ""
    description: str = ""
    server: str = ""
    """For OAuth: the origin of the authorization server."""
    flows: Sequence[str] = ()
    """For OAuth: `code`, `device` and `client`, as far as they are offered."""
    foreign: bool = False
    """For OAuth: whether the server is of another origin than the agent."""
    used: bool = False
    """Whether there are credentials for it."""


class SaidView(Shape, frozen=True, kw_only=True):
    """What was said in a conversation of the chat."""

    kind: str
    """`message` (of the caller), `artifact`, `question` or `answer`."""
    role: Role
    parts: Sequence[Part]
    task_id: str = ""
    """Empty if the agent answered without a task."""
    at: str
    """When the message was accepted that began this turn."""
    metadata: Mapping[str, Any] | None = None


class TaskView(Shape, frozen=True, kw_only=True):
    """A row of the table of tasks."""

    id: str
    agent: str
    state: str
    changed: str
    created: str = ""
    tenant: str = ""
    owner: str = ""
    realm: str = ""
    context: str = ""
    skill: str = ""
    text: str = ""
    last: int = 0
    attempt: int = 0
    version: int = 0
    holder: str = ""
    size: int = 0
    over: bool = False


class TablePage(Shape, frozen=True, kw_only=True):
    """A page of the table, with the number of tasks in each state."""

    rows: Sequence[TaskView]
    counts: Mapping[str, int] = {}
    complete: bool = True
    """Whether the counts are exact; otherwise there are more."""
    next: str = ""
    """The cursor of the next page."""
    searched: int = 0
    """How many tasks were searched for the text."""
    stopped: bool = False
    """Whether the search ended before it had seen all of them."""


class PartView(Shape, frozen=True, kw_only=True):
    """A part of a message or an artifact. The content of a file is at `path`."""

    kind: str
    """`text`, `data`, `file` or `link`."""
    text: str = ""
    data: Any = None
    media_type: str = ""
    filename: str = ""
    size: int = 0
    path: str = ""
    raw: str = ""
    """The content of a file in base64, in a log that is saved."""
    url: str = ""
    image: bool = False
    cut: int = 0
    """How many characters are left out."""


class EntryView(Shape, frozen=True, kw_only=True):
    """An entry of a log."""

    number: int
    kind: str
    """`message`, `status`, `artifact`, `reply`, `cancel` or `private`."""
    turn: int = 0
    at: str = ""
    who: str = ""
    role: str = ""
    state: str = ""
    id: str = ""
    """Of the message or the artifact."""
    name: str = ""
    description: str = ""
    append: bool = False
    last_chunk: bool = False
    skill: str = ""
    count: int = 0
    value: Any = None
    sealed: bool = False
    parts: Sequence[PartView] = ()
    metadata: Mapping[str, Any] = {}


class ArtifactView(Shape, frozen=True, kw_only=True):
    """An artifact as it is now, or was after an entry."""

    id: str
    name: str = ""
    description: str = ""
    parts: Sequence[PartView] = ()
    metadata: Mapping[str, Any] = {}


class MessageView(Shape, frozen=True, kw_only=True):
    """A message of a task."""

    id: str
    role: str
    parts: Sequence[PartView] = ()
    metadata: Mapping[str, Any] = {}


class Folded(Shape, frozen=True, kw_only=True):
    """A task as it was after an entry."""

    number: int
    state: str
    at: str = ""
    status: MessageView | None = None
    history: Sequence[MessageView] = ()
    artifacts: Sequence[ArtifactView] = ()
    metadata: Mapping[str, Any] = {}
    cut: int = 0
    """How many characters of texts are left out, because the answer would be too large."""


class TreeView(Shape, frozen=True, kw_only=True):
    """A task in a tree of delegations."""

    task: str
    agent: str = ""
    """Its key if the task is in the same store, otherwise the name on its card."""
    address: str = ""
    """Where the agent is, if the task is not in the same store."""
    state: str = ""
    """Its state; of a task elsewhere, the one in which it was last seen."""
    seen: str = ""
    """When a task elsewhere was last seen."""
    here: bool = False
    """Whether the task is in the same store, and can be opened."""
    over: bool = False
    """Whether a task of the same store has ended."""
    below: Sequence[TreeView] = ()
    """The tasks that it has begun."""
    cut: bool = False
    """Whether it has begun more than is shown."""


class DelegationTree(Shape, frozen=True, kw_only=True):
    """The tasks around a task."""

    above: Sequence[TreeView] = ()
    """Those that led to it, the first one first, as its first message says."""
    below: Sequence[TreeView] = ()
    """Those that it has begun at other agents, as its log says."""
    cut: bool = False
    """Whether it has begun more than is shown."""


class WebhookView(Shape, frozen=True, kw_only=True):
    """A webhook and the state of its delivery, without secrets."""

    task: str
    id: str
    agent: str
    host: str
    cursor: int
    last: int
    attempts: int = 0
    due: float = 0.0
    parked: bool = False
    reason: str = ""


class TaskDetails(Shape, frozen=True, kw_only=True):
    """Everything about a task but its log."""

    row: TaskView
    why: str
    """One sentence: why the task is where it is."""
    task: Folded
    asks: str = ""
    """`answer`, `approval` or `payment`, if the task waits for one."""
    operation: Any = None
    """What an approval is for."""
    delegates: bool = False
    """Whether its tree of delegations has more than itself."""
    webhooks: Sequence[WebhookView] = ()
    first: Any = None
    """The first message, as A2A has it, to be sent again."""


class FindingView(Shape, frozen=True, kw_only=True):
    """What the card checker says."""

    level: str
    path: str
    text: str


class AgentView(Shape, frozen=True, kw_only=True):
    """An agent: its card as served, and what the checker says."""

    key: str
    name: str
    card: Any
    url: str = ""
    findings: Sequence[FindingView] = ()
    error: str = ""


class ProcessView(Shape, frozen=True, kw_only=True):
    """A process that serves or works, with its last rows."""

    name: str
    role: str = ""
    version: str = ""
    agents: Sequence[str] = ()
    first: float = 0.0
    """The time of its first row that is still kept."""
    seen: float = 0.0
    """The time of its latest row."""
    gone: bool = False
    """Whether it has written nothing for 30 seconds."""
    running: int = 0
    streams: int = 0
    rows: Sequence[Mapping[str, float]] = ()


class Done(Shape, frozen=True, kw_only=True):
    """What an action did."""

    done: str


class RequestView(Shape, frozen=True, kw_only=True):
    """A request as it would be sent."""

    title: str
    method: str = ""
    url: str = ""
    headers: Mapping[str, str] = {}
    body: str = ""
    error: str = ""


class ExchangeView(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A request of the inspector and its answer, which grows while it arrives."""

    number: int
    at: float
    method: str
    url: str
    sent: Mapping[str, str]
    body: str = ""
    status: int = 0
    received: Mapping[str, str] = {}
    answer: str = ""
    error: str = ""
    call: str = ""
    """The method of the chat that it was sent for; empty if for none."""
    params: Any = None
    undecoded: str = ""
    """Why the answer could not be read."""


class ExchangeSummary(Shape, frozen=True, kw_only=True):
    """A request of the inspector, without headers and bodies."""

    number: int
    at: float
    method: str
    url: str
    status: int = 0
    error: str = ""
    call: str = ""


class CallOptions(Shape, frozen=True, forbid_unknown_fields=True):
    """What the inspector sends with each call."""

    headers: Mapping[str, str]
    extensions: Sequence[str]
    metadata: Mapping[str, Any]


class PromptView(Shape, frozen=True, kw_only=True):
    """How far a log-in of the inspector is."""

    state: str = ""
    """`trying` (the agent is asked), `waiting` (for a person), `done` or `failed`; empty before."""
    url: str = ""
    """Where the person must log in."""
    code: str = ""
    """What to type there."""
    error: str = ""
