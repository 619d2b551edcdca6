"""Cards that lack what the specification requires: used where the agent can be called by them,
refused where that was asked for, and verified as they were received."""

from __future__ import annotations

import base64
import json
import logging
from copy import deepcopy
from typing import Any

import grpc
import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf import json_format
from joserfc import jwk
from msgspec.structs import replace

from dragoman.client import CardCache, Client, TransportRequest, Unverified
from dragoman.client.discovery import Cards, decode
from dragoman.conformance.card import check
from dragoman.dialects.missing_fields import partial
from dragoman.model.errors import InvalidAgentResponse, InvalidParams
from dragoman.model.types import AgentCapabilities, AgentCard
from dragoman.security.canonical_card import canonical
from dragoman.security.card_keys import CardKey
from tests.client.transports import Answer, Script, card, interface, result, task

FULL: dict[str, Any] = {
    "name": "A",
    "description": "d",
    "version": "1",
    "provider": {"url": "https://a.example", "organization": "A"},
    "supportedInterfaces": [
        {"url": "http://agent", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
    "capabilities": {"streaming": True},
    "securitySchemes": {
        "key": {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}},
        "login": {
            "oauth2SecurityScheme": {
                "flows": {"clientCredentials": {"tokenUrl": "https://id.example", "scopes": {}}}
            }
        },
    },
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "s", "name": "s", "description": "s", "tags": ["t"]}],
}
LACKS = [
    *("name", "description", "version", "capabilities"),
    *("defaultInputModes", "defaultOutputModes", "skills"),
    *("skills.0.id", "skills.0.name", "skills.0.description", "skills.0.tags"),
    *("provider.url", "provider.organization", "supportedInterfaces.0.protocolVersion"),
    "securitySchemes.key.apiKeySecurityScheme.location",
    "securitySchemes.login.oauth2SecurityScheme.flows.clientCredentials.scopes",
]


def without(path: str, document: dict[str, Any] = FULL, value: Any = ...) -> dict[str, Any]:
    """The card without this, or with another value there."""
    found = deepcopy(document)
    inner: Any = found
    *names, last = path.split(".")
    for name in names:
        inner = inner[int(name) if name.isdigit() else name]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return found


def shown(path: str) -> str:
    """A path as errors write it."""
    return path.replace(".0", "[0]")


def agent(document: Any, extended: Any = None) -> Script:
    """An agent with this card, which answers a send with what it has done."""

    def answer(request: TransportRequest) -> Answer:
        if request.method == "GET" and "well-known" in request.url:
            return Answer(json.dumps(document).encode())
        asked = json.loads(request.body) if request.body else {}  # type: ignore[arg-type]
        if asked.get("method") == "GetExtendedAgentCard":
            return Answer(result(extended))
        if request.url.endswith("/extendedAgentCard"):
            return Answer(json.dumps(extended).encode())
        return Answer(result({"task": task("COMPLETED", "done")}))

    return Script(answer)


@pytest.mark.parametrize("path", LACKS)
async def test_a_card_that_lacks_what_is_not_needed(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    document = without(path)
    with caplog.at_level(logging.WARNING, "dragoman"):
        async with Client.connect("http://agent", transport=agent(document)) as client:
            assert (await client.send("hello")).text == "done"
    (record,) = caplog.records
    assert record.getMessage() == (
        "the card at http://agent/.well-known/agent-card.json lacks required fields: "
        f"{shown(path)}; the client uses the card anyway"
    )
    with pytest.raises(InvalidAgentResponse, match=r"is not valid: .*: is required") as caught:
        async with Client.connect("http://agent", transport=agent(document), strict=True):
            pass
    assert f": {shown(path)}: " in str(caught.value)
    blamed = {finding.field for finding in check(json.dumps(document).encode())}
    assert shown(path) in blamed


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("description", ""),
        ("description", None),
        ("skills", None),
        ("skills.0.tags", []),
        ("defaultInputModes", []),
        ("capabilities", None),
    ],
)
def test_what_is_empty_or_null_is_missing(path: str, value: Any) -> None:
    document = without(path, value=value)
    body = json.dumps(document).encode()
    found = decode(body, "here")
    assert found.supported_interfaces
    assert decode(json.dumps(without(path)).encode(), "here") == found
    with pytest.raises(InvalidAgentResponse, match=path.rpartition(".")[2]):
        decode(body, "here", strict=True)


def test_the_least_that_a_card_can_be() -> None:
    interfaces = [{"url": "http://agent", "protocolBinding": "JSONRPC"}]
    found = decode(json.dumps({"supportedInterfaces": interfaces}).encode(), "here")
    assert found == AgentCard(
        name="",
        description="",
        version="",
        supported_interfaces=(interface("http://agent"),),
        capabilities=AgentCapabilities(),
        default_input_modes=(),
        default_output_modes=(),
        skills=(),
    )
    older = {"supportedInterfaces": interfaces, "protocolVersion": "0.3.0"}
    found = decode(json.dumps(older).encode(), "here")
    assert found.supported_interfaces == (interface("http://agent", version="0.3.0"),)


def test_a_complete_card_is_read_as_before(caplog: pytest.LogCaptureFixture) -> None:
    found = decode(json.dumps(FULL).encode(), "here", strict=True)
    again, missing = partial(AgentCard, FULL)
    assert (again, missing, caplog.records) == (found, [], [])


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("supportedInterfaces", ..., "supportedInterfaces: is required"),
        ("supportedInterfaces", [], "supportedInterfaces: is required"),
        ("supportedInterfaces.0.url", ..., r"supportedInterfaces\[0\]\.url: is required"),
        (
            "supportedInterfaces.0.protocolBinding",
            "",
            r"supportedInterfaces\[0\]\.protocolBinding: is required",
        ),
        ("skills.0.tags", "t", r"skills\[0\]\.tags: expected array, got str"),
        ("provider", "A", "provider: expected object, got str"),
        ("capabilities.streaming", "yes", r"capabilities\.streaming: expected bool"),
        ("securitySchemes", {"a b": 5}, r'securitySchemes\["a b"\]: expected object'),
    ],
)
def test_what_cannot_be_worked_with(path: str, value: Any, field: str) -> None:
    document = without("description")  # which is let pass
    with pytest.raises(InvalidAgentResponse, match=f"the card at here is not valid: {field}"):
        decode(json.dumps(without(path, document, value)).encode(), "here")


def test_an_interface_without_an_address_is_passed_over() -> None:
    second = {"url": "http://two", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}
    document = without("supportedInterfaces.0.url")
    document["supportedInterfaces"].append(second)
    found = decode(json.dumps(document).encode(), "here")
    assert found.supported_interfaces == (interface("http://two", "HTTP+JSON"),)


def test_a_scheme_that_does_not_say_enough_is_passed_over() -> None:
    document = without("securitySchemes.key.apiKeySecurityScheme.name")
    assert set(decode(json.dumps(document).encode(), "here").security_schemes) == {"login"}
    path = "securitySchemes.login.oauth2SecurityScheme.flows.clientCredentials.tokenUrl"
    assert set(decode(json.dumps(without(path)).encode(), "here").security_schemes) == {"key"}


async def test_many_missing_fields_are_not_all_named(caplog: pytest.LogCaptureFixture) -> None:
    document = without("skills", value=[{}] * 50)
    decode(json.dumps(document).encode(), "here")
    (record,) = caplog.records
    assert "skills[0].id, skills[0].name" in record.getMessage()
    assert record.getMessage().count("skills[") == 5
    assert ", …; " in record.getMessage()


async def test_who_is_strict_takes_no_card_that_others_took() -> None:
    card_cache, transport = CardCache(), agent(without("description"))
    async with Client.connect("http://agent", transport=transport, card_cache=card_cache):
        pass
    for url, (found, tag, _) in list(card_cache.known.items()):
        card_cache.put(url, found, tag, float("inf"))  # as with a long max-age
    async with Client.connect("http://agent", transport=transport, card_cache=card_cache):
        pass
    assert len(transport.asked) == 1
    with pytest.raises(InvalidAgentResponse, match="description: is required"):
        async with Client.connect(
            "http://agent", transport=transport, card_cache=card_cache, strict=True
        ):
            pass


# ---- the extended card ---------------------------------------------------------------------


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_an_extended_card_that_lacks_something(
    binding: str, caplog: pytest.LogCaptureFixture
) -> None:
    more = without("skills.0.tags") | {"name": "For ann"}
    transport = agent(FULL, more)
    known = card(interface("http://agent", binding))
    async with Client.connect(known, transport=transport) as client:
        assert (await client.extended_card()).name == "For ann"
    assert "lacks required fields: skills[0].tags" in caplog.text
    async with Client.connect(known, transport=transport, strict=True) as client:
        with pytest.raises(InvalidAgentResponse, match=r"skills\[0\]\.tags: is required"):
            await client.extended_card()


async def test_an_extended_card_that_lacks_something_over_grpc() -> None:
    more = json_format.ParseDict(without("skills.0.tags") | {"name": "For ann"}, pb.AgentCard())

    async def answer(request: bytes, context: Any) -> bytes:
        return more.SerializeToString()

    class Any_(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    server.add_generic_rpc_handlers((Any_(),))
    await server.start()
    known = card(interface(f"http://127.0.0.1:{port}", "GRPC"))
    try:
        async with Client.connect(known) as client:
            found = await client.extended_card()
            assert (found.name, found.skills[0].tags) == ("For ann", ())
        async with Client.connect(known, strict=True) as client:
            with pytest.raises(InvalidAgentResponse, match=r"skills\[0\]\.tags: is required"):
                await client.extended_card()
    finally:
        await server.stop(0)


# ---- signatures ----------------------------------------------------------------------------

KEY = jwk.ECKey.generate_key("P-256")
TRUST = {"k": KEY.as_pem(private=False)}


def signed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with a signature over it as it is; ours would refuse to sign it."""
    key = CardKey.load(KEY.as_pem(private=True), kid="k")
    header = {"alg": "ES256", "kid": "k", "typ": "JOSE"}
    protected = encoded(json.dumps(header).encode())
    payload = encoded(canonical(document))
    signature = encoded(key.sign(f"{protected}.{payload}".encode()))
    return document | {"signatures": [{"protected": protected, "signature": signature}]}


def encoded(raw: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


async def test_a_signature_is_verified_over_the_card_as_received() -> None:
    document = signed(without("skills.0.tags") | {"supportedInterfaces": FULL_VERSIONLESS})
    transport = agent(document)
    async with Client.connect("http://agent", transport=transport, signed_by=TRUST) as client:
        assert client.card.skills[0].tags == ()
        assert client.card.supported_interfaces == (interface("http://agent"),)
    with pytest.raises(InvalidAgentResponse, match="is required"):
        async with Client.connect(
            "http://agent", transport=transport, signed_by=TRUST, strict=True
        ):
            pass
    # what the client reads into it is not what was signed
    for change in ("skills.0.tags", "supportedInterfaces.0.protocolVersion"):
        value: Any = [] if change.endswith("tags") else "1.0"
        forged = agent(without(change, document, value))
        with pytest.raises(Unverified, match="was changed"):
            async with Client.connect("http://agent", transport=forged, signed_by=TRUST):
                pass


FULL_VERSIONLESS = [{"url": "http://agent", "protocolBinding": "JSONRPC"}]


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_an_extended_card_is_verified_as_received(binding: str) -> None:
    # with a field that the client does not know, too: it was signed with the rest
    more = signed(without("skills.0.tags") | {"name": "For ann", "x-more": {"n": 1}})
    public = signed(FULL | {"supportedInterfaces": [at(binding)]})
    async with Client.connect(
        "http://agent", transport=agent(public, more), signed_by=TRUST
    ) as client:
        assert (await client.extended_card()).name == "For ann"
    forged = agent(public, more | {"name": "For bob"})
    async with Client.connect("http://agent", transport=forged, signed_by=TRUST) as client:
        with pytest.raises(Unverified, match="was changed"):
            await client.extended_card()


def at(binding: str) -> dict[str, Any]:
    """The interface of the agent over this binding."""
    return {"url": "http://agent", "protocolBinding": binding, "protocolVersion": "1.0"}


# ---- by itself -----------------------------------------------------------------------------


def test_what_is_no_object() -> None:
    for document in (None, [], "card", 5):
        with pytest.raises(InvalidParams, match="params: expected object"):
            partial(AgentCard, document)


async def test_the_command_reads_such_a_card(tmp_path: Any) -> None:
    path = tmp_path / "card.json"
    path.write_text(json.dumps(without("skills.0.tags")))
    found = await Cards(agent({})).find(str(path))
    assert replace(found.skills[0], tags=("t",)) == decode(json.dumps(FULL).encode(), "").skills[0]
