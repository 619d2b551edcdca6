"""The interfaces on the card: bindings and versions, their order and paths, as configured."""

from __future__ import annotations

from typing import Any

import grpc
import httpx
import pytest
from msgspec.structs import replace

from dragoman import Agent, App, Settings, Turn
from dragoman.client import Client
from dragoman.security.card_keys import CardKey
from dragoman.server.load_settings import load
from dragoman.server.settings import SettingsError
from tests.contract.bindings.conftest import user
from tests.harness.clients import Grpc
from tests.harness.server import serving

CARD = "/.well-known/agent-card.json"


def echo(name: str = "Echo") -> Agent:
    """An agent that says it again."""
    agent = Agent(name, description="Says it again.")

    @agent.skill(tags=["x"])
    async def answer(turn: Turn) -> str:
        """Say it again."""
        return turn.text

    return agent


async def listed(app: App, **headers: str) -> list[tuple[str, str, str]]:
    """The interfaces on the card, with URL for that of the server."""
    async with serving(app) as url, httpx.AsyncClient(base_url=url, headers=headers) as http:
        card = (await http.get(CARD)).json()
    return [
        (item["protocolBinding"], item["protocolVersion"], item["url"].replace(url, "URL"))
        for item in card["supportedInterfaces"]
    ]


async def test_grpc_is_served_and_not_listed_by_default() -> None:
    """There are clients that fail when a card has an address of another origin."""
    app = App(echo(), grpc_port=0, drain_timeout=0.0)
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
        card = (await http.get(CARD)).json()
        assert [
            (item["protocolBinding"], item["protocolVersion"], item["url"].removeprefix(url))
            for item in card["supportedInterfaces"]
        ] == [
            ("JSONRPC", "1.0", "/"),
            ("HTTP+JSON", "1.0", ""),
            ("JSONRPC", "0.3", "/"),
            ("HTTP+JSON", "0.3", ""),
        ]
        assert [item["transport"] for item in card["additionalInterfaces"]] == [
            "JSONRPC",
            "HTTP+JSON",
        ]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{app.ports[0].number}") as channel:
            sent = await Grpc(url, http, {}, channel).call("SendMessage", message=user("hi"))
        assert sent["task"]["artifacts"][0]["parts"] == [{"text": "hi"}]


async def test_the_author_chooses_bindings_versions_and_their_order() -> None:
    settings = {"bindings": ["grpc:a.example:1", "HTTP+JSON"], "versions": ["0.3", "1.0"]}
    app = App(echo(), grpc_port=0, drain_timeout=0.0, **settings)
    assert await listed(app) == [
        ("GRPC", "0.3", "a.example:1"),
        ("HTTP+JSON", "0.3", "URL"),
        ("GRPC", "1.0", "a.example:1"),
        ("HTTP+JSON", "1.0", "URL"),
    ]


def test_they_are_settings() -> None:
    found = load(
        environ={"DRAGOMAN_BINDINGS": "HTTP+JSON, JSONRPC:/rpc", "DRAGOMAN_VERSIONS": "1.0"}
    )
    assert (found.bindings, found.versions) == (("HTTP+JSON", "JSONRPC:/rpc"), ("1.0",))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_path_is_on_the_card_and_served(version: str, several: bool) -> None:
    agents = [echo(), echo("Other")] if several else [echo()]
    app = App(*agents, bindings=["JSONRPC:/rpc", "HTTP+JSON:/rest/a2a"], drain_timeout=0.0)
    async with serving(app) as url:
        base = f"{url}/echo" if several else url
        for binding, address in (("JSONRPC", f"{base}/rpc"), ("HTTP+JSON", f"{base}/rest/a2a")):
            async with Client.connect(base) as client:
                (found,) = (
                    item
                    for item in client.card.supported_interfaces
                    if (item.protocol_binding, item.protocol_version) == (binding, version)
                )
                card = replace(client.card, supported_interfaces=(found,))
            assert found.url == address
            # where they always are, too
            usual = replace(found, url=f"{base}/" if binding == "JSONRPC" else base)
            for each in (found, usual):
                one = replace(card, supported_interfaces=(each,))
                async with Client.connect(one) as client:
                    assert (await client.send("hi")).text == "hi"


async def test_a_path_may_end_with_a_slash() -> None:
    app = App(echo(), bindings=["JSONRPC:/rpc/"], versions=["1.0"], drain_timeout=0.0)
    body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
        card = (await http.get(CARD)).json()
        assert [item["url"] for item in card["supportedInterfaces"]] == [f"{url}/rpc/"]
        for path in ("/rpc", "/rpc/", "/"):
            assert (await http.post(path, json=body)).json()["result"]["totalSize"] == 0


async def test_without_0_3_the_card_says_nothing_of_it() -> None:
    """Some readers of 1.0 prefer what they know from before, wherever they find it."""
    app = App(echo(), versions=["1.0"], drain_timeout=0.0)
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
        card = (await http.get(CARD)).json()
        assert {item["protocolVersion"] for item in card["supportedInterfaces"]} == {"1.0"}
        assert not {"url", "protocolVersion", "additionalInterfaces"} & set(card)
        # who asks for it is answered all the same
        older = (await http.get(CARD, headers={"a2a-version": "0.3"})).json()
        assert older["url"] == f"{url}/"
        message = {"messageId": "1", "role": "ROLE_USER", "content": [{"text": "hello"}]}
        sent = await http.post("/v1/message:send", json={"message": message})
        assert sent.status_code == 200


async def test_a_signed_card_may_list_grpc_alone() -> None:
    app = App(echo(), sign=[CardKey.generate()], grpc_port=0, bindings=["GRPC"], versions=["1.0"])
    (found,) = await listed(app)
    assert found[:2] == ("GRPC", "1.0")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"bindings": []}, r"^bindings: must name at least one of JSONRPC, HTTP\+JSON, GRPC$"),
        ({"bindings": ["JSONRPC", "SOAP"]}, r"^bindings\[1\]: 'SOAP' must be one of JSONRPC, "),
        ({"bindings": ["JSONRPC", "jsonrpc:/x"]}, r"^bindings\[1\]: JSONRPC is listed twice"),
        ({"bindings": ["GRPC:/x"]}, r"^bindings\[0\]: gRPC has no paths, but may have an address"),
        ({"bindings": ["JSONRPC:rpc"]}, r"^bindings\[0\]: 'rpc' is not a path"),
        ({"bindings": ["JSONRPC:/a/../b"]}, r"^bindings\[0\]: .* is not a path"),
        ({"bindings": ["HTTP+JSON:/v1"]}, r"^bindings\[0\]: the protocol uses '/v1'"),
        ({"bindings": ["HTTP+JSON:/.well-known"]}, r"^bindings\[0\]: .* is not a path"),
        ({"bindings": ["GRPC"]}, r"^bindings: GRPC needs grpc_port"),
        ({"versions": []}, r"^versions: must name at least one of 1\.0, 0\.3$"),
        ({"versions": ["0.2"]}, r"^versions\[0\]: '0\.2' must be one of 1\.0, 0\.3"),
        ({"versions": ["1.0", "1.0"]}, r"^versions\[1\]: 1\.0 is listed twice"),
    ],
)
def test_what_no_card_can_list(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        App(echo(), **settings)
    values = {name: tuple(value) for name, value in settings.items()}
    with pytest.raises(ValueError, match=why):
        App(echo(), settings=Settings(**values))


def test_a_wrong_binding_is_an_error_of_settings() -> None:
    with pytest.raises(SettingsError):
        App(echo(), bindings=["SOAP"])
