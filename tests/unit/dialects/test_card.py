"""The card in the words of 0.3, of what was before it, and of everybody at once."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from a2a.client.card_resolver import parse_agent_card
from a2a.compat.v0_3 import a2a_v0_3_pb2 as pb
from a2a.compat.v0_3.types import AgentCard as Reference
from a2a.types import a2a_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict
from hypothesis import HealthCheck, given, settings
from msgspec.structs import fields, replace

from dragoman.client.discovery import decode
from dragoman.dialects import v1_0
from dragoman.dialects.v0_3 import card as form
from dragoman.dialects.v0_3 import card_proto as proto
from dragoman.model import types
from dragoman.model.types import WireStruct
from tests.harness.scale import examples
from tests.unit.dialects.card_values import CARDS, OLDER

some = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def interface(
    url: str, version: str = "0.3", binding: str = "JSONRPC", tenant: str = ""
) -> types.AgentInterface:
    """An interface."""
    return types.AgentInterface(
        url=url, protocol_binding=binding, protocol_version=version, tenant=tenant
    )


def oauth(**flows: Any) -> types.SecurityScheme:
    """An OAuth scheme."""
    return types.SecurityScheme(
        oauth2_security_scheme=types.OAuth2SecurityScheme(
            description="O", flows=types.OAuthFlows(**flows), oauth2_metadata_url="https://m"
        )
    )


CODE = types.AuthorizationCodeOAuthFlow(
    authorization_url="https://a", token_url="https://t", scopes={"read": "to read"}
)
MACHINE = types.ClientCredentialsOAuthFlow(
    token_url="https://t", refresh_url="https://r", scopes={}
)
DEVICE = types.DeviceCodeOAuthFlow(
    device_authorization_url="https://d", token_url="https://t", scopes={"x": ""}
)
SCHEMES = {
    "key": types.SecurityScheme(
        api_key_security_scheme=types.APIKeySecurityScheme(location="cookie", name="k")
    ),
    "http": types.SecurityScheme(
        http_auth_security_scheme=types.HTTPAuthSecurityScheme(scheme="Bearer", bearer_format="JWT")
    ),
    "oidc": types.SecurityScheme(
        open_id_connect_security_scheme=types.OpenIdConnectSecurityScheme(
            open_id_connect_url="https://id"
        )
    ),
    "mtls": types.SecurityScheme(
        mtls_security_scheme=types.MutualTlsSecurityScheme(description="M")
    ),
    "code": oauth(authorization_code=CODE),
    "machine": oauth(client_credentials=MACHINE),
    "implicit": oauth(implicit=types.ImplicitOAuthFlow(authorization_url="https://a")),
    "password": oauth(password=types.PasswordOAuthFlow()),
}
NEEDED = (
    types.SecurityRequirement(schemes={"code": types.StringList(list=("read",))}),
    types.SecurityRequirement(schemes={"key": types.StringList(), "mtls": types.StringList()}),
)
CARD = types.AgentCard(
    name="Desk",
    description="Books.",
    supported_interfaces=(
        interface("https://x/", "1.0"),
        interface("https://x", "1.0", "HTTP+JSON"),
        interface("https://x/"),
        interface("https://x", "0.3", "HTTP+JSON"),
        interface("x:50051", "0.3", "GRPC"),
    ),
    provider=types.AgentProvider(url="https://example.com", organization="Example"),
    version="2",
    documentation_url="https://x/docs",
    icon_url="https://x/icon",
    capabilities=types.AgentCapabilities(
        streaming=True,
        push_notifications=False,
        extensions=(types.AgentExtension(uri="urn:x", params={"a": [1]}),),
        extended_agent_card=True,
    ),
    security_schemes=SCHEMES,
    security_requirements=NEEDED,
    default_input_modes=("text/plain",),
    default_output_modes=("application/json",),
    skills=(
        types.AgentSkill(
            id="book",
            name="Book",
            description="Books.",
            tags=("travel",),
            examples=("To Lyon",),
            security_requirements=NEEDED[:1],
        ),
        types.AgentSkill(id="b", name="b", description="b", tags=("b",), input_modes=("a/b",)),
    ),
    signatures=(types.AgentCardSignature(protected="p", signature="s", header={"a": 1}),),
)


def written(card: WireStruct) -> dict[str, Any]:
    """What is on the wire."""
    found: dict[str, Any] = json.loads(v1_0.encode(card))
    return found


def read(**document: Any) -> types.AgentCard:
    """What our client makes of a document, which is a card that 1.0 can say."""
    found = decode(json.dumps({"name": "a", "url": "http://x", **document}).encode(), "here")
    assert v1_0.decode(types.AgentCard, v1_0.encode(found)) == found
    return found


def spoken(card: types.AgentCard) -> list[tuple[str, str, str]]:
    """Where, how and in which version."""
    return [
        (item.url, item.protocol_binding, item.protocol_version)
        for item in card.supported_interfaces
    ]


# ---- 0.3 in JSON ---------------------------------------------------------------------------


def test_in_json() -> None:
    found = written(form.old(CARD))
    assert (found["protocolVersion"], found["url"]) == ("0.3.0", "https://x/")
    assert found["preferredTransport"] == "JSONRPC"
    assert found["additionalInterfaces"] == [
        {"url": "https://x/", "transport": "JSONRPC"},
        {"url": "https://x", "transport": "HTTP+JSON"},
        {"url": "x:50051", "transport": "GRPC"},
    ]
    assert found["security"] == [{"code": ["read"]}, {"key": [], "mtls": []}]
    assert [skill.get("security") for skill in found["skills"]] == [[{"code": ["read"]}], None]
    assert found["supportsAuthenticatedExtendedCard"] is True
    assert found["capabilities"] == {
        "streaming": True,
        "pushNotifications": False,
        "extensions": [{"uri": "urn:x", "params": {"a": [1]}}],
    }
    more = {"description": "O", "oauth2MetadataUrl": "https://m"}
    code = {"authorizationUrl": "https://a", "tokenUrl": "https://t", "scopes": {"read": "to read"}}
    machine = {"tokenUrl": "https://t", "refreshUrl": "https://r", "scopes": {}}
    assert found["securitySchemes"] == {
        "key": {"type": "apiKey", "in": "cookie", "name": "k"},
        "http": {"type": "http", "scheme": "Bearer", "bearerFormat": "JWT"},
        "oidc": {"type": "openIdConnect", "openIdConnectUrl": "https://id"},
        "mtls": {"type": "mutualTLS", "description": "M"},
        "code": {"type": "oauth2", **more, "flows": {"authorizationCode": code}},
        "machine": {"type": "oauth2", **more, "flows": {"clientCredentials": machine}},
        "implicit": {
            "type": "oauth2",
            **more,
            "flows": {"implicit": {"authorizationUrl": "https://a", "scopes": {}}},
        },
        "password": {
            "type": "oauth2",
            **more,
            "flows": {"password": {"tokenUrl": "", "scopes": {}}},
        },
    }
    assert not found.keys() & {"supportedInterfaces", "securityRequirements", "authentication"}
    again = Reference.model_validate(found).model_dump(mode="json", exclude_none=True)
    assert again == found


@some
@given(card=OLDER)
def test_nothing_is_lost_in_json(card: types.AgentCard) -> None:
    version = card.supported_interfaces[0].protocol_version
    old = form.old(card, version)
    assert form.new(old) == card
    assert decode(v1_0.encode(old), "here") == card
    assert form.old(form.new(old), version) == old


@some
@given(card=CARDS)
def test_the_reference_reads_any_card_in_json(card: types.AgentCard) -> None:
    document = written(form.old(card))
    found = Reference.model_validate(document)
    assert (found.name, found.url) == (document["name"], document["url"])
    assert {skill.id for skill in found.skills} == {skill.id for skill in card.skills}
    assert (found.security_schemes or {}).keys() == card.security_schemes.keys()


def test_what_0_3_cannot_say() -> None:
    pkce = replace(CODE, pkce_required=True)
    schemes = {
        "pkce": oauth(authorization_code=pkce),
        "device": oauth(device_code=DEVICE),
        "nothing": types.SecurityScheme(),
    }
    card = replace(CARD, security_schemes=schemes)
    found = written(form.old(card))["securitySchemes"]
    assert found.keys() == {"pkce", "device"}
    assert "pkceRequired" not in found["pkce"]["flows"]["authorizationCode"]
    assert found["device"]["flows"] == {}
    again = form.new(form.old(card)).security_schemes
    assert again == {"pkce": oauth(authorization_code=CODE), "device": oauth()}
    both = proto.new(proto.old(card)).security_schemes
    assert both == {**again, "nothing": types.SecurityScheme()}


# ---- which interfaces ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interfaces", "version", "protocol", "urls"),
    [
        (CARD.supported_interfaces, "0.3", "0.3.0", ["https://x/", "https://x", "x:50051"]),
        (CARD.supported_interfaces, "0.2", "0.2.6", ["https://x/"]),
        (CARD.supported_interfaces, "0.1", "0.1.0", ["https://x/"]),
        ([interface("a", "0.2"), interface("b", "0.1")], "0.3", "0.2.6", ["a"]),
        ([interface("a", "0.2"), interface("b", "0.1")], "0.1", "0.1.0", ["b"]),
        ([interface("a", "0.3.7"), interface("b", "2.0")], "0.3", "0.3.0", ["a"]),
        ([interface("a", "0.3", "GRPC")], "0.2", "0.2.6", ["a"]),
        ([interface("a", "1.0"), interface("b", "1.0")], "0.3", "1.0", ["a", "b"]),
        ([interface("a", tenant="t"), interface("b")], "0.3", "0.3.0", ["b"]),
        ([interface("a", tenant="t")], "0.3", "0.3.0", ["a"]),
    ],
)
def test_which_interfaces_are_told(
    interfaces: Any, version: str, protocol: str, urls: list[str]
) -> None:
    card = replace(CARD, supported_interfaces=tuple(interfaces))
    for old in (form.old(card, version), proto.old(card, version)):
        assert old.protocol_version == protocol
        assert [item.url for item in old.additional_interfaces] == urls
        assert old.url == urls[0]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, [("http://x", "JSONRPC", "0.2"), ("http://x", "JSONRPC", "0.1")]),
        ({"protocolVersion": None}, [("http://x", "JSONRPC", v) for v in ("0.2", "0.1")]),
        ({"protocolVersion": "new"}, [("http://x", "JSONRPC", v) for v in ("0.2", "0.1")]),
        ({"preferredTransport": "HTTP+JSON"}, [("http://x", "HTTP+JSON", "0.2")]),
        ({"protocolVersion": "0.2.5"}, [("http://x", "JSONRPC", "0.2")]),
        ({"protocolVersion": "0.1"}, [("http://x", "JSONRPC", "0.1")]),
        ({"protocolVersion": "v0.3.0"}, [("http://x", "JSONRPC", "0.3")]),
        ({"protocolVersion": "1.0"}, [("http://x", "JSONRPC", "1.0")]),
        (
            {"protocol_version": "0.3.1", "preferred_transport": "GRPC", "url": "x:1"},
            [("x:1", "GRPC", "0.3")],
        ),
        (
            {
                "protocolVersion": "0.3.0",
                "preferredTransport": "HTTP+JSON",
                "additionalInterfaces": [
                    {"url": "http://y", "transport": "JSONRPC"},
                    {"url": "http://x", "transport": "HTTP+JSON"},
                    {"url": "http://x", "transport": "JSONRPC"},
                    {"url": "http://z"},
                    {"transport": "GRPC", "url": None},
                    {"url": "http://y", "transport": "JSONRPC"},
                ],
            },
            [
                ("http://x", "HTTP+JSON", "0.3"),
                ("http://y", "JSONRPC", "0.3"),
                ("http://x", "JSONRPC", "0.3"),
            ],
        ),
    ],
)
def test_which_interfaces_are_found(document: dict[str, Any], expected: Any) -> None:
    assert spoken(read(**document)) == expected


# ---- what is in the field ------------------------------------------------------------------


def test_a_card_that_says_hardly_anything() -> None:
    card = read()
    assert (card.name, card.description, card.version) == ("a", "a", "0.0.0")
    assert card.default_input_modes == card.default_output_modes == ("text/plain",)
    assert card.capabilities == types.AgentCapabilities()
    assert card.skills == ()
    assert card.provider is None


def test_a_card_of_0_1() -> None:
    card = read(
        provider={"organization": "Example"},
        documentationUrl=None,
        capabilities={"streaming": True, "stateTransitionHistory": True, "more": 1},
        authentication={"schemes": ["Bearer", "none", "apiKey", "OAuth2"], "credentials": None},
        defaultInputModes=None,
        skills=[{"id": "s", "tags": None, "inputModes": None}, {"id": "t", "name": "T"}],
    )
    assert card.provider == types.AgentProvider(url="http://x", organization="Example")
    assert card.documentation_url is None
    assert card.capabilities == types.AgentCapabilities(streaming=True)
    first, second = card.skills
    assert (first.name, first.description, first.tags) == ("s", "s", ("s",))
    assert (second.name, second.description) == ("T", "T")
    assert [list(item.schemes) for item in card.security_requirements] == [
        ["Bearer"],
        ["apiKey"],
        ["OAuth2"],
    ]
    kinds = card.security_schemes
    assert kinds["Bearer"].http_auth_security_scheme.scheme == "Bearer"  # type: ignore[union-attr]
    assert kinds["OAuth2"].http_auth_security_scheme.scheme == "Bearer"  # type: ignore[union-attr]
    assert kinds["apiKey"].api_key_security_scheme.location == "header"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "given", [{}, {"url": "u"}, {"organization": "o"}, {"organization": None, "url": ""}]
)
def test_half_a_provider(given: dict[str, Any]) -> None:
    found = read(provider=given).provider
    assert found is not None
    assert found.url == (given.get("url") or "http://x")
    assert found.organization == (given.get("organization") or given.get("url") or "a")


def test_snake_case() -> None:
    card = read(
        supports_authenticated_extended_card=True,
        icon_url="i",
        default_input_modes=["a/b"],
        security_schemes={"o": {"type": "openIdConnect", "open_id_connect_url": "u"}},
        capabilities={"push_notifications": True},
    )
    assert (card.icon_url, card.default_input_modes) == ("i", ("a/b",))
    assert card.capabilities.extended_agent_card is True
    assert card.capabilities.push_notifications is True
    assert card.security_schemes["o"].open_id_connect_security_scheme is not None


@pytest.mark.parametrize(
    "scheme",
    [
        {},
        {"type": "magic", "x-more": 1},
        {"type": "apiKey", "in": "header"},
        {"type": "http"},
        {"type": "openIdConnect", "openIdConnectUrl": None},
    ],
)
def test_a_scheme_that_says_too_little(scheme: dict[str, Any]) -> None:
    """It keeps its name, so that what is required is known to be so."""
    card = read(securitySchemes={"s": scheme}, security=[{"s": []}])
    assert card.security_schemes == {"s": types.SecurityScheme()}
    assert card.security_requirements[0].schemes.keys() == {"s"}


def test_a_flow_without_its_addresses() -> None:
    flows = {"authorizationCode": {"tokenUrl": "t"}, "clientCredentials": {"tokenUrl": "t"}}
    card = read(securitySchemes={"s": {"type": "oauth2", "flows": flows}})
    (scheme,) = card.security_schemes.values()
    assert scheme.oauth2_security_scheme is not None
    flow = types.ClientCredentialsOAuthFlow(token_url="t", scopes={})
    assert scheme.oauth2_security_scheme.flows == types.OAuthFlows(client_credentials=flow)
    card = read(securitySchemes={"s": {"type": "oauth2"}})
    assert card.security_schemes["s"].oauth2_security_scheme is not None


def test_several_flows_become_several_schemes() -> None:
    flows = {
        "clientCredentials": {"tokenUrl": "t", "scopes": {"r": "R"}},
        "authorizationCode": {"authorizationUrl": "a", "tokenUrl": "t", "scopes": {"r": "R"}},
        "deviceCode": {"deviceAuthorizationUrl": "d", "tokenUrl": "t"},
    }
    card = read(
        securitySchemes={
            "o": {"type": "oauth2", "flows": flows},
            "o-deviceCode": {"type": "http", "scheme": "basic"},
        },
        security=[{"o": ["r"], "o-deviceCode": []}],
        skills=[{"id": "s", "security": [{"o": []}]}],
    )
    made = {
        name: scheme.oauth2_security_scheme and msgspec.to_builtins(scheme)
        for name, scheme in card.security_schemes.items()
    }
    assert {
        name: scheme and list(scheme["oauth2SecurityScheme"]["flows"])
        for name, scheme in made.items()
    } == {
        "o": ["authorizationCode"],
        "o-clientCredentials": ["clientCredentials"],
        "o-deviceCode-": ["deviceCode"],
        "o-deviceCode": None,
    }
    assert [
        {name: scopes.list for name, scopes in item.schemes.items()}
        for item in card.security_requirements
    ] == [
        {"o": ("r",), "o-deviceCode": ()},
        {"o-clientCredentials": ("r",), "o-deviceCode": ()},
        {"o-deviceCode-": ("r",), "o-deviceCode": ()},
    ]
    assert len(card.skills[0].security_requirements) == 3


# ---- the proto -----------------------------------------------------------------------------


def structs() -> dict[str, type[WireStruct]]:
    """The structs of the proto form, by the names of their messages."""
    return {
        name: kind
        for name, kind in vars(proto).items()
        if isinstance(kind, type) and issubclass(kind, WireStruct) and kind is not WireStruct
    }


@pytest.mark.parametrize("name", sorted(structs()))
def test_each_struct_is_a_message(name: str) -> None:
    kind, message = structs()[name], pb.DESCRIPTOR.message_types_by_name[name]
    assert kind.__name__ == name
    assert {item.encode_name for item in fields(kind)} == {
        item.json_name for item in message.fields
    }
    for item in fields(kind):
        (there,) = (each for each in message.fields if each.json_name == item.encode_name)
        if (
            there.type == FieldDescriptor.TYPE_MESSAGE
            and not there.message_type.GetOptions().map_entry
        ):
            inner = there.message_type.name
            assert inner == "Struct" or inner in str(item.type)


def doubles(document: Any) -> Any:
    """The only numbers that a proto's structs have."""
    if isinstance(document, dict):
        return {name: doubles(value) for name, value in document.items()}
    if isinstance(document, list | tuple):
        return [doubles(value) for value in document]
    return float(document) if type(document) is int else document


@some
@given(card=CARDS)
def test_the_proto_has_all_that_is_said(card: types.AgentCard) -> None:
    document = written(proto.old(card))
    message = ParseDict(document, pb.AgentCard())  # refuses what it does not know
    again = MessageToDict(message)
    assert v1_0.convert(proto.AgentCard, again) == v1_0.convert(proto.AgentCard, doubles(document))


@some
@given(card=OLDER)
def test_nothing_is_lost_in_the_proto(card: types.AgentCard) -> None:
    able = card.capabilities
    card = replace(  # what has no presence there
        card,
        documentation_url=card.documentation_url or None,
        icon_url=card.icon_url or None,
        capabilities=replace(
            able,
            streaming=bool(able.streaming),
            push_notifications=bool(able.push_notifications),
            extended_agent_card=bool(able.extended_agent_card),
        ),
    )
    version = card.supported_interfaces[0].protocol_version
    assert proto.new(proto.old(card, version)) == card


def test_a_proto_that_says_hardly_anything() -> None:
    card = proto.new(v1_0.convert(proto.AgentCard, {"name": "a", "url": "x:1"}))
    assert v1_0.decode(types.AgentCard, v1_0.encode(card)) == card
    assert spoken(card) == [("x:1", "JSONRPC", "0.2"), ("x:1", "JSONRPC", "0.1")]


# ---- everybody -----------------------------------------------------------------------------


def test_for_everybody() -> None:
    found = form.merged(CARD)
    new, old = written(CARD), written(form.old(CARD))
    assert found.keys() == new.keys() | old.keys()
    assert list(found)[: len(new)] == list(new)
    assert found["capabilities"] == new["capabilities"]
    for name, scheme in found["securitySchemes"].items():
        assert scheme == new["securitySchemes"][name] | old["securitySchemes"][name]
    for place, skill in enumerate(found["skills"]):
        assert skill == new["skills"][place] | old["skills"][place]


@some
@given(card=CARDS)
def test_everybody_reads_the_card_for_everybody(card: types.AgentCard) -> None:
    document = form.merged(card)
    body = v1_0.encode(document)
    assert decode(body, "here") == card
    pure = ParseDict(written(card), a2a_pb2.AgentCard())
    assert ParseDict(json.loads(body), a2a_pb2.AgentCard(), ignore_unknown_fields=True) == pure
    resolved = parse_agent_card(json.loads(body))
    assert resolved == pure
    old = Reference.model_validate(json.loads(body))
    assert old == Reference.model_validate(written(form.old(card)))


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"url": "x"}, True),
        ({"protocolVersion": "0.3.0"}, True),
        ({"additional_interfaces": []}, True),
        ({"url": "x", "supportedInterfaces": []}, True),
        ({"url": "x", "supportedInterfaces": [{}]}, False),
        ({"url": "x", "supported_interfaces": [{}]}, False),
        ({"name": "x"}, False),
        ([], False),
        (None, False),
    ],
)
def test_which_is_older(document: Any, expected: bool) -> None:
    assert form.older(document) is expected
