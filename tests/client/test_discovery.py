"""Which card a client reads, and which of its interfaces it uses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import to_builtins

from dragoman.client import Client, discovery
from dragoman.dialects.v0_3.card import merged, old
from dragoman.model.errors import InvalidAgentResponse
from dragoman.model.types import AgentCard, AgentInterface, Part
from tests.client.transports import Answer, Script, card, result
from tests.client.transports import document as sent

BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")


def interface(url: str, binding: str = "JSONRPC", version: str = "1.0") -> AgentInterface:
    """An interface."""
    return AgentInterface(url=url, protocol_binding=binding, protocol_version=version)


def decode(document: Any) -> AgentCard:
    """The card in a document."""
    return discovery.decode(json.dumps(document).encode(), "here")


OLDER = {"name": "a", "url": "http://x", "protocolVersion": "0.3.0"}


def test_the_part_of_1_0_wins() -> None:
    document = merged(card(interface("http://one"))) | OLDER
    found = decode(document)
    assert found.supported_interfaces == (interface("http://one"),)
    assert found.name == "a"


def test_an_older_card() -> None:
    found = decode(to_builtins(old(card(interface("http://one", version="0.3")))))
    assert found == card(interface("http://one", version="0.3"))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"url": None}, "url: is required"),
        ({"url": ""}, "url: must not be empty"),
        ({"name": 5}, "name: expected str"),
        ({"skills": [{"name": "x"}]}, r"skills\[0\]\.id: is required"),
        ({"capabilities": []}, "capabilities: expected object"),
        ({"additionalInterfaces": {}}, "additionalInterfaces: expected array"),
        ({"securitySchemes": {"a": 5}}, "securitySchemes"),
        ({"security": [{"a": "b"}]}, r"security\[0\]"),
    ],
)
def test_what_is_wrong_with_an_older_card(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidAgentResponse, match=f"the card at here is not valid: {field}"):
        decode(OLDER | change)


def test_the_order_is_that_of_the_agent() -> None:
    offered = (
        interface("http://a", "HTTP+JSON", "0.2"),
        interface("http://b", "jsonrpc", "0.3.1"),
        interface("http://c", "JSONRPC", "2.0"),
        interface("http://d", "JSONRPC", "1.0.1"),
        interface("http://e", "SOAP", "1.0"),
        interface("http://f", "HTTP+JSON", "0.3"),
    )
    found = discovery.interfaces(card(*offered), BINDINGS)
    assert [item.url[-1] for item in found] == ["b", "f"]
    assert [item.url[-1] for item in discovery.interfaces(card(*offered[3:]), BINDINGS)] == ["d"]


@pytest.mark.parametrize(
    ("version", "order"), [("1.0", "abc"), ("0.3", "cab"), ("0.3.0", "cab"), ("0.2", "c")]
)
def test_before_1_0_json_rpc_comes_first(version: str, order: str) -> None:
    offered = (
        interface("http://a", "GRPC", version),
        interface("http://b", "HTTP+JSON", version),
        interface("http://c", "jsonrpc", version),
    )
    found = discovery.interfaces(card(*offered), BINDINGS)
    assert "".join(item.url[-1] for item in found) == order
    if version != "0.2":
        without = discovery.interfaces(card(*offered), ("GRPC", "HTTP+JSON"))
        assert "".join(item.url[-1] for item in without) == "ab"


async def test_a_file_to_an_agent_of_0_3_is_encoded_once() -> None:
    said = {"kind": "message", "messageId": "r", "role": "agent", "parts": [TEXT]}
    transport = Script(lambda _: Answer(result(said)))
    offered = (
        interface("http://a", "HTTP+JSON", "0.3"),
        interface("http://b", "JSONRPC", "0.3"),
    )
    async with Client.connect(card(*offered), transport=transport) as client:
        await client.send(Part(raw=b"\x00\xff", filename="f"))
    (request,) = transport.asked
    assert request.url == "http://b"
    (part,) = sent(request)["params"]["message"]["parts"]
    assert part["file"] == {"bytes": "AP8=", "name": "f"}


TEXT = {"kind": "text", "text": "done"}


def test_a_version_that_is_not_said_is_tried_out() -> None:
    offered = (interface("http://a", "JSONRPC", "0.2"), interface("http://a", "JSONRPC", "0.1"))
    assert discovery.interfaces(card(*offered), BINDINGS) == list(offered)


@pytest.mark.parametrize(
    ("url", "binding", "dialled"),
    [
        ("x:50051", "GRPC", "grpcs://x:50051"),
        ("[::1]:50051", "GRPC", "grpc://[::1]:50051 grpcs://[::1]:50051"),
        ("x", "grpc", "grpcs://x"),
        ("https://x:50051", "GRPC", "grpcs://x:50051"),
        ("http://x:50051/", "GRPC", "grpc://x:50051"),
        ("dns:///x:50051", "GRPC", ""),
        ("", "GRPC", ""),
        ("x:port", "GRPC", ""),
        ("x:50051", "JSONRPC", ""),
        ("x:50051", "HTTP+JSON", ""),
        ("ftp://x", "JSONRPC", ""),
        ("http://x", "JSONRPC", "http://x"),
    ],
)
def test_addresses(url: str, binding: str, dialled: str) -> None:
    for version in ("1.0", "0.3"):
        one = interface(url, binding, version)
        if dialled:
            found = discovery.interfaces(card(one), BINDINGS)
            assert " ".join(each.url for each in found) == dialled
            continue
        with pytest.raises(InvalidAgentResponse, match="is not the address of an interface"):
            discovery.interfaces(card(one), BINDINGS)
