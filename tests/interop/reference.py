"""The client of the reference SDK, and short ways to say things with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.helpers import new_message, new_text_part
from a2a.types import a2a_pb2 as pb

HTTP = ("JSONRPC", "HTTP+JSON")
BINDINGS = (*HTTP, "GRPC")
PATIENCE = 10
"""After so many seconds a test that waits for something has failed."""
Item = str | pb.Part


class Peer(NamedTuple):
    """One agent as the SDK sees it: by a client that waits for answers, and one that streams."""

    card: pb.AgentCard
    plain: Client
    live: Client
    http: httpx.AsyncClient
    binding: str


Speak = Callable[..., contextlib.AbstractAsyncContextManager[Peer]]
"""What opens a peer of the agent at a URL."""


@contextlib.asynccontextmanager
async def peer(
    url: str,
    *,
    binding: str,
    headers: Mapping[str, str] | None = None,
    tenant: str = "",
    capabilities: pb.AgentCapabilities | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    **config: Any,
) -> AsyncIterator[Peer]:
    """Discover the agent at this URL and speak one binding with it. What is given as `tenant` or
    `capabilities` is written into the client's copy of the card."""
    async with (
        asyncio.timeout(PATIENCE),
        httpx.AsyncClient(
            timeout=PATIENCE, headers=headers, transport=transport, verify=False
        ) as http,
    ):
        card = await A2ACardResolver(http, url).get_agent_card()
        if tenant:
            for interface in card.supported_interfaces:
                interface.tenant = tenant
        if capabilities is not None:
            card.capabilities.CopyFrom(capabilities)

        def client(streaming: bool) -> Client:
            return ClientFactory(
                ClientConfig(
                    streaming=streaming,
                    httpx_client=http,
                    supported_protocol_bindings=[binding],
                    grpc_channel_factory=grpc.aio.insecure_channel,
                    **config,
                )
            ).create(card)

        yield Peer(card, client(False), client(True), http, binding)


def asking(
    *items: Item,
    task: str = "",
    context: str = "",
    id: str = "",
    references: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    configuration: pb.SendMessageConfiguration | None = None,
) -> pb.SendMessageRequest:
    """A request with a user's message made of texts and parts; the metadata is the message's."""
    parts = [new_text_part(item) if isinstance(item, str) else item for item in items]
    message = new_message(parts, context_id=context, task_id=task, role=pb.ROLE_USER)
    message.reference_task_ids.extend(references)
    if id:
        message.message_id = id
    if metadata:
        message.metadata.update(metadata)
    return pb.SendMessageRequest(message=message, configuration=configuration)


async def send(client: Client, *items: Item, **options: Any) -> pb.Task:
    """Send by a client that waits, and expect a task."""
    (event,) = await gather(client.send_message(asking(*items, **options)))
    assert event.HasField("task"), event
    return event.task


async def begin(client: Client, *items: Item, **options: Any) -> pb.Task:
    """Send without waiting for the answer."""
    configuration = pb.SendMessageConfiguration(return_immediately=True)
    return await send(client, *items, configuration=configuration, **options)


async def gather(stream: AsyncIterable[pb.StreamResponse]) -> list[pb.StreamResponse]:
    """A stream to its end."""
    return [event async for event in stream]


def kinds(events: Sequence[pb.StreamResponse]) -> list[str | None]:
    """What each event holds."""
    return [event.WhichOneof("payload") for event in events]


def states(events: Sequence[pb.StreamResponse]) -> list[str]:
    """The states that the events tell, in order and in short."""
    found = [
        event.task.status.state if event.HasField("task") else event.status_update.status.state
        for event in events
        if event.HasField("task") or event.HasField("status_update")
    ]
    return [pb.TaskState.Name(state).removeprefix("TASK_STATE_").lower() for state in found]


def state(task: pb.Task) -> str:
    """The state of a task, in short."""
    return pb.TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()


def assembled(events: Sequence[pb.StreamResponse]) -> dict[str, list[pb.Part]]:
    """The artifacts that a stream's chunks make up, as a client puts them together."""
    found: dict[str, list[pb.Part]] = {}
    for event in events:
        if event.HasField("artifact_update"):
            update = event.artifact_update
            if not update.append:
                found[update.artifact.artifact_id] = []
            found[update.artifact.artifact_id].extend(update.artifact.parts)
    return found


def texts(parts: Sequence[pb.Part]) -> list[str]:
    """The texts of parts that are all text."""
    assert all(part.HasField("text") for part in parts)
    return [part.text for part in parts]
