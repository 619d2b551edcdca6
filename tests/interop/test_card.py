"""The reference SDK discovers agents by their cards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
from a2a.client import A2ACardResolver, AgentCardResolutionError, ClientConfig, ClientFactory
from a2a.compat.v0_3.conversions import to_compat_agent_card, to_core_agent_card
from a2a.compat.v0_3.types import AgentCard as Older
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import UnsupportedOperationError
from google.protobuf.json_format import MessageToDict, ParseDict

from dragoman import Agent, AgentExtension, AgentProvider, App
from dragoman.model.events import RESUME
from dragoman.model.skill_extension import SKILL_SCHEMA
from tests.harness.server import serving
from tests.interop.agents import agent, echo, reply, talk
from tests.interop.reference import BINDINGS, HTTP, Speak, asking, gather, kinds, send, state

pytestmark = pytest.mark.asyncio(loop_scope="session")

PRICES = "https://example.com/extensions/prices"


@pytest_asyncio.fixture(loop_scope="session")
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client as the SDK's card resolver wants it."""
    async with httpx.AsyncClient(verify=False) as client:
        yield client


def desk() -> Agent:
    """An agent with all that a card can tell of it."""
    made = Agent(
        "Travel Desk",
        description="Books what moves.",
        version="2.3.0",
        provider=AgentProvider(url="https://example.com", organization="Example Travel"),
        documentation_url="https://example.com/docs",
        icon_url="https://example.com/icon.png",
        input_modes=["text/plain", "image/png"],
        output_modes=["application/json"],
        extensions=[AgentExtension(uri=PRICES, description="Prices", params={"in": "EUR"})],
    )
    made.handler(echo)

    @made.skill(
        id="trains",
        name="Trains",
        description="Books a train.",
        tags=["rail", "travel"],
        examples=["To Lyon, please"],
        input_modes=["text/plain"],
        output_modes=["application/pdf"],
    )
    async def by_rail(text: str) -> str:
        return text

    @made.skill
    async def rent_a_car(text: str) -> str:
        """Rents a car."""
        return text

    return made


@pytest.mark.clause(
    "card.well-known", "card.required-fields", "card.interface-form", "card.all-bindings",
    "extensions.declared", "version.no-patch",
)  # fmt: skip
async def test_card_tells_all_about_the_agent(http: httpx.AsyncClient) -> None:
    async with serving(App(desk())) as url:
        card = MessageToDict(await A2ACardResolver(http, url).get_agent_card())
    assert [
        (item["protocolBinding"], item["protocolVersion"], item["url"])
        for item in card.pop("supportedInterfaces")
    ] == [
        ("JSONRPC", "1.0", f"{url}/"),
        ("HTTP+JSON", "1.0", url),
        ("JSONRPC", "0.3", f"{url}/"),
        ("HTTP+JSON", "0.3", url),
    ]
    capabilities = card.pop("capabilities")
    extensions = {item["uri"]: item for item in capabilities.pop("extensions")}
    assert capabilities == {
        "streaming": True,
        "pushNotifications": False,
        "extendedAgentCard": False,
    }
    assert extensions.keys() == {PRICES, RESUME, SKILL_SCHEMA}
    assert extensions[SKILL_SCHEMA]["params"]["trains"]["input"] == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }
    assert extensions[PRICES] == {"uri": PRICES, "description": "Prices", "params": {"in": "EUR"}}
    assert card == {
        "name": "Travel Desk",
        "description": "Books what moves.",
        "version": "2.3.0",
        "provider": {"url": "https://example.com", "organization": "Example Travel"},
        "documentationUrl": "https://example.com/docs",
        "iconUrl": "https://example.com/icon.png",
        "defaultInputModes": ["text/plain", "image/png"],
        "defaultOutputModes": ["application/json"],
        "skills": [
            {
                "id": "trains",
                "name": "Trains",
                "description": "Books a train.",
                "tags": ["rail", "travel"],
                "examples": ["To Lyon, please"],
                "inputModes": ["text/plain", "application/json"],
                "outputModes": ["application/pdf"],
            },
            {
                "id": "rent_a_car",
                "name": "Rent a car",
                "description": "Rents a car.",
                "tags": ["rent_a_car"],
                "inputModes": ["text/plain", "image/png", "application/json"],
                "outputModes": ["application/json"],
            },
        ],
    }


async def test_card_is_at_the_old_address_too(http: httpx.AsyncClient, server_url: str) -> None:
    resolver = A2ACardResolver(http, f"{server_url}/echo")
    old = await resolver.get_agent_card(relative_card_path="/.well-known/agent.json")
    assert old == await resolver.get_agent_card()
    assert old.name == "Echo"


@pytest.mark.parametrize("version", ["", "0.3", "0.2"])
@pytest.mark.parametrize("made", [desk, lambda: agent(echo)], ids=["full", "small"])
async def test_card_is_read_by_clients_of_0_3(
    http: httpx.AsyncClient, made: Any, version: str
) -> None:
    async with serving(App(made())) as url:
        address = f"{url}/.well-known/agent-card.json"
        answer = await http.get(address, headers={"A2A-Version": version})
        card = await A2ACardResolver(http, url).get_agent_card()
    old = Older.model_validate(answer.json())
    assert old.url == f"{url}/"
    assert to_core_agent_card(old).skills == card.skills
    assert to_compat_agent_card(card).skills == old.skills


@pytest.mark.clause("json.camel-case")
@pytest.mark.parametrize("made", [desk, lambda: agent(echo)], ids=["full", "small"])
async def test_card_holds_nothing_that_the_protocol_does_not_know(
    http: httpx.AsyncClient, made: Any
) -> None:
    async with serving(App(made())) as url:
        answer = await http.get(
            f"{url}/.well-known/agent-card.json", headers={"A2A-Version": "1.0"}
        )
    document = answer.json()
    assert document["supportedInterfaces"]
    assert MessageToDict(ParseDict(document, pb.AgentCard())) == document


async def test_no_card_where_no_agent_is(http: httpx.AsyncClient, server_url: str) -> None:
    with pytest.raises(AgentCardResolutionError) as caught:
        await A2ACardResolver(http, f"{server_url}/nobody").get_agent_card()
    assert caught.value.status_code == 404


@pytest.mark.clause("card.interfaces-true", "bindings.same-operations")
@pytest.mark.parametrize("binding", BINDINGS)
async def test_client_made_from_the_url_alone(
    http: httpx.AsyncClient, server_url: str, binding: str
) -> None:
    config = ClientConfig(
        streaming=False,
        httpx_client=http,
        supported_protocol_bindings=[binding],
        grpc_channel_factory=grpc.aio.insecure_channel,
    )
    client = await ClientFactory(config).create_from_url(f"{server_url}/echo")
    assert state(await send(client, "hello")) == "completed"


@pytest.mark.clause("card.preference-order")
async def test_client_without_preference_takes_the_first_interface(
    http: httpx.AsyncClient, server_url: str
) -> None:
    """Whatever the order of its own list, the SDK asks at the address that the card prefers."""
    asked: list[str] = []

    async def note(request: httpx.Request) -> None:
        asked.append(str(request.url))

    http.event_hooks = {"request": [note]}
    bindings = list(reversed(HTTP))
    for preference in (False, True):
        config = ClientConfig(
            streaming=False,
            httpx_client=http,
            supported_protocol_bindings=bindings,
            use_client_preference=preference,
        )
        client = await ClientFactory(config).create_from_url(f"{server_url}/echo")
        await send(client, "hello")
    card = f"{server_url}/echo/.well-known/agent-card.json"
    assert asked == [card, f"{server_url}/echo/", card, f"{server_url}/echo/message:send"]


@pytest.mark.clause("card.capabilities", "capability.streaming")
async def test_agent_that_does_not_stream(speak: Speak) -> None:
    """A client that read the card falls back to a plain send; one that did not is refused."""
    async with serving(App(agent(talk, streaming=False))) as url:
        async with speak(url) as peer:
            assert peer.card.capabilities.HasField("streaming")
            assert not peer.card.capabilities.streaming
            events = await gather(peer.live.send_message(asking("one two")))
            assert kinds(events) == ["task"]
            assert state(events[0].task) == "completed"
        async with speak(url, capabilities=pb.AgentCapabilities(streaming=True)) as peer:
            with pytest.raises(UnsupportedOperationError):
                await gather(peer.live.send_message(asking("one two")))
            task = events[0].task.id
            with pytest.raises(UnsupportedOperationError):
                await gather(peer.live.subscribe(pb.SubscribeToTaskRequest(id=task)))


@pytest.mark.parametrize("push", [False, True])
async def test_card_says_whether_there_is_push(http: httpx.AsyncClient, push: bool) -> None:
    async with serving(App(agent(reply), push=push)) as url:
        card = await A2ACardResolver(http, url).get_agent_card()
    assert card.capabilities.push_notifications is push
