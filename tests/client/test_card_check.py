"""What is said of cards: nothing of a good one, all of it of a bad one."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.client.discovery import decode
from dragoman.conformance.card import check
from dragoman.conformance.card_shape import Finding
from dragoman.dialects.v0_3.card import merged
from dragoman.model import types
from dragoman.model.errors import A2AError
from tests.harness.scale import examples

GONE: Any = object()
HOME = "https://agent.example/.well-known/agent-card.json"
SERVED = {"content-type": "application/json", "cache-control": "max-age=60", "etag": '"1"'}


def encoded(header: Any) -> str:
    """A protected header."""
    return base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()


def flow(*names: str) -> dict[str, Any]:
    """An OAuth flow with these addresses."""
    return {
        "scopes": {"read": "to read"},
        **{name: f"https://id.example/{name}" for name in names},
    }


def oauth(name: str, *urls: str) -> dict[str, Any]:
    """An OAuth scheme of one flow."""
    return {"oauth2SecurityScheme": {"flows": {name: flow(*urls)}}}


CARD: dict[str, Any] = {
    "name": "Desk",
    "description": "Books what moves.\nAlso by night.",
    "version": "1.0.0",
    "supportedInterfaces": [
        {"url": "https://agent.example/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        {
            "url": "https://agent.example",
            "protocolBinding": "HTTP+JSON",
            "protocolVersion": "1.0",
            "tenant": "a",
        },
        {"url": "agent.example:443", "protocolBinding": "GRPC", "protocolVersion": "1.0"},
        {"url": "https://agent.example/", "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
    ],
    "provider": {"url": "https://example.com", "organization": "Example"},
    "documentationUrl": "https://example.com/docs",
    "iconUrl": "https://example.com/icon.png",
    "capabilities": {
        "streaming": True,
        "pushNotifications": False,
        "extendedAgentCard": True,
        "extensions": [{"uri": "urn:example:x", "description": "X", "params": {"a": [1, None]}}],
    },
    "securitySchemes": {
        "key": {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}},
        "http": {"httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "JWT"}},
        "oidc": {"openIdConnectSecurityScheme": {"openIdConnectUrl": "https://id.example/x"}},
        "mtls": {"mtlsSecurityScheme": {}},
        "code": oauth("authorizationCode", "authorizationUrl", "tokenUrl", "refreshUrl"),
        "machine": oauth("clientCredentials", "tokenUrl"),
        "device": oauth("deviceCode", "deviceAuthorizationUrl", "tokenUrl"),
    },
    "securityRequirements": [{"schemes": {"code": {"list": ["read"]}, "key": {"list": []}}}],
    "defaultInputModes": ["text/plain", "image/*", "*/*"],
    "defaultOutputModes": ["application/json; charset=utf-8"],
    "skills": [
        {
            "id": "book",
            "name": "Book",
            "description": "Books.",
            "tags": ["travel"],
            "examples": ["To Lyon"],
            "inputModes": ["text/plain"],
            "securityRequirements": [{"schemes": {"oidc": {"list": ["openid"]}}}],
        }
    ],
    "signatures": [
        {
            "protected": encoded({"alg": "ES256", "kid": "1", "typ": "JOSE"}),
            "signature": "QUJD",
            "header": {"a": 1},
        }
    ],
}
OLDER = {
    "url": "https://agent.example/",
    "preferredTransport": "JSONRPC",
    "additionalInterfaces": [{"url": "https://agent.example/", "transport": "JSONRPC"}],
    "protocolVersion": "0.3.0",
    "security": [{"key": []}],
    "supportsAuthenticatedExtendedCard": True,
}


def changed(path: str, value: Any, card: dict[str, Any] | None = None) -> dict[str, Any]:
    """The good card with another value at one place, or without it."""
    card = copy.deepcopy(CARD if card is None else card)
    *before, last = [int(name) if name.isdigit() else name for name in path.split(".")]
    place: Any = card
    for name in before:
        place = place[name]
    if value is GONE:
        del place[last]
    elif isinstance(place, list) and last == len(place):
        place.append(value)
    else:
        place[last] = value
    return card


def of(card: Any, **more: Any) -> list[Finding]:
    """What is said of a card."""
    return check(json.dumps(card).encode(), url=HOME, headers=SERVED, **more)


def brief(findings: list[Finding]) -> list[tuple[str, str]]:
    """Levels and fields alone."""
    return [(finding.level, finding.field) for finding in findings]


# ---- good ones -----------------------------------------------------------------------------


def test_nothing_is_said_of_a_good_card() -> None:
    assert of(CARD) == []
    assert check(json.dumps(CARD).encode()) == []


def test_nothing_is_said_of_the_older_form_beside_the_newer() -> None:
    card = CARD | OLDER
    card["securitySchemes"] = {
        **CARD["securitySchemes"],
        "key": {**CARD["securitySchemes"]["key"], "type": "apiKey", "in": "header", "name": "X"},
    }
    card["skills"] = [{**CARD["skills"][0], "security": [{"oidc": ["openid"]}]}]
    assert of(card) == []


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "agents.localhost"])
def test_a_card_under_development(host: str) -> None:
    """Plain HTTP is fine where it does not leave the machine."""
    url = f"http://{host}:8000"
    one = {"url": f"{url}/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    card = CARD | {"supportedInterfaces": [one]}
    assert check(json.dumps(card).encode(), url=f"{url}/.well-known/agent-card.json") == []


# ---- documents -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "field", "words"),
    [
        (b"", "", "is empty"),
        (b"  \n", "", "is empty"),
        (b"{", "", "line 1 column 2"),
        (b'{"name": NaN}', "", "NaN"),
        (b"<!DOCTYPE html>", "", "web page"),
        (b"\xef\xbb\xbf{}", "", "byte order mark"),
        (b'{"name": "\xff"}', "", "byte 10"),
        (b"[]", "", "is a list"),
        (b'"card"', "", "is a string"),
        (b"null", "", "is null"),
        (b"[" * 100_000, "", "nested too deeply"),
        (b'{"a": ' * 100_000, "", "nested too deeply"),
        (b'{"name": "a", "name": "b"}', "name", "more than once"),
        (b'{"x": [{"y": {"z": 1, "z": 1}}]}', "x[0].y.z", "more than once"),
    ],
)
def test_documents(document: bytes, field: str, words: str) -> None:
    findings = [item for item in check(document) if item.level == "error" and item.field == field]
    assert words in findings[0].text


def test_what_only_the_decoder_refuses() -> None:
    """Half of a pair that makes one character is JSON for some, and not for our client."""
    (found,) = of(changed("name", "\ud800"))
    assert (found.level, found.field) == ("error", "")
    assert "surrogate" in found.text


def test_deep_but_not_too_deep_for_the_parser() -> None:
    """Wherever the limit is reached first, it is said and nothing is raised."""
    for depth in (50, 200, 900, 990, 5_000):
        params = b'{"a":' * depth + b"1" + b"}" * depth
        body = json.dumps(changed("capabilities.extensions.0.params", 0)).encode()
        check(body.replace(b'"params": 0', b'"params": ' + params))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Content-Type": "text/html"}, ("error", "Content-Type")),
        ({"Content-Type": "text/plain; charset=utf-8"}, ("warning", "Content-Type")),
        ({"Content-Type": "application/json; charset=latin-1"}, ("warning", "Content-Type")),
        ({"Content-Type": ""}, ("warning", "Content-Type")),
        ({"Cache-Control": ""}, ("note", "Cache-Control")),
        ({"Cache-Control": "no-cache"}, ("note", "Cache-Control")),
        ({"Content-Type": "application/a2a+json"}, None),
    ],
)
def test_headers(headers: dict[str, str], expected: tuple[str, str] | None) -> None:
    lower = {name.lower(): value for name, value in headers.items()}
    found = check(json.dumps(CARD).encode(), headers=SERVED | lower)
    assert brief(found) == ([expected] if expected else [])
    found = check(json.dumps(CARD).encode(), headers={"Content-Type": "application/json"})
    assert brief(found) == [("note", "Cache-Control"), ("note", "ETag")]


# ---- fields --------------------------------------------------------------------------------


def fields(kind: Any, value: Any, path: str = "") -> Iterator[tuple[str, Any, type]]:
    """Every field of the good card: its path, what msgspec knows of it, and whose it is."""
    for item in msgspec.structs.fields(kind):
        if item.encode_name not in value:
            continue
        found, place = value[item.encode_name], f"{path}{item.encode_name}"
        yield place, item, kind
        inner = [name for name in vars(types) if name in repr(item.type)]
        struct = getattr(types, max(inner, key=len)) if inner else None
        if not (isinstance(struct, type) and issubclass(struct, types.WireStruct)):
            continue
        if isinstance(found, list):
            many = [(str(n), one) for n, one in enumerate(found)]
        elif "dict" in repr(item.type):
            many = list(found.items())
        else:
            many = [("", found)]
        for name, one in many:
            yield from fields(struct, one, f"{place}.{name}." if name else f"{place}.")


FIELDS = list(fields(types.AgentCard, CARD))


def dotted(path: str) -> str:
    """A path of ours as findings write it."""
    return "".join(f"[{n}]" if n.isdigit() else f".{n}" for n in path.split("."))[1:]


def test_the_good_card_has_every_object() -> None:
    """So that the tests below see all of them; the deprecated flows have no required fields."""
    assert {kind for _, _, kind in FIELDS} == {
        *(types.AgentCard, types.AgentInterface, types.AgentProvider, types.AgentCapabilities),
        *(types.AgentExtension, types.AgentSkill, types.AgentCardSignature, types.StringList),
        *(types.SecurityRequirement, types.SecurityScheme, types.APIKeySecurityScheme),
        *(types.HTTPAuthSecurityScheme, types.OAuth2SecurityScheme, types.OAuthFlows),
        *(types.OpenIdConnectSecurityScheme, types.AuthorizationCodeOAuthFlow),
        *(types.ClientCredentialsOAuthFlow, types.DeviceCodeOAuthFlow),
    }


@pytest.mark.parametrize("path", [path for path, item, _ in FIELDS if item.required])
def test_required_fields(path: str) -> None:
    for value, words in ((GONE, "is missing; give "), (None, "is null")):
        found = [item for item in of(changed(path, value)) if item.field == dotted(path)]
        assert [item.level for item in found] == ["error"]
        assert found[0].text.startswith(words)


@pytest.mark.parametrize("path", [path for path, _, _ in FIELDS])
def test_types(path: str) -> None:
    """A number is of no field's type."""
    found = [item for item in of(changed(path, 5)) if item.field == dotted(path)]
    assert [item.level for item in found] == ["error"]
    assert "not a number; " in found[0].text


def test_all_at_once() -> None:
    found = of({})
    missing = {path for path, item, kind in FIELDS if item.required and kind is types.AgentCard}
    assert set(brief(found)) == {("error", path) for path in missing}
    assert len(missing) == 8


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("name", "", "is empty; give a name"),
        ("supportedInterfaces", [], "is empty"),
        ("defaultInputModes", [], "is empty"),
        ("skills.0.tags", [], "is empty; give at least one keyword"),
        ("securitySchemes.key.apiKeySecurityScheme.name", "", "the header"),
        ("defaultInputModes", "text/plain", "put it in [ ]"),
        ("capabilities.streaming", "true", "without quotes"),
        ("version", True, "not true"),
        ("capabilities", [], "not a list"),
        ("defaultInputModes.0", None, "not null"),
        ("securityRequirements.0.schemes.key", ["read"], '{"list": […]}'),
    ],
)
def test_values(path: str, value: Any, words: str) -> None:
    found = [item for item in of(changed(path, value)) if item.field == dotted(path)]
    assert found[0].level == "error"
    assert words in found[0].text


@pytest.mark.parametrize(
    ("path", "value", "level", "words"),
    [
        ("descripton", "x", "warning", "did you mean description?"),
        ("supportedinterfaces", [], "warning", "did you mean supportedInterfaces?"),
        ("capabilities.pushNotification", True, "warning", "did you mean pushNotifications?"),
        ("skills.0.tag", [], "warning", "did you mean tags?"),
        ("default_input_modes", ["a/b"], "error", "repeats defaultInputModes"),
        ("skills.0.output_modes", ["a/b"], "warning", "must be written outputModes"),
        ("weather", "fine", "note", "remove it"),
        ("capabilities.stateTransitionHistory", True, "warning", "remove it"),
        ("skills.0.name", "a\nb", "warning", "line break"),
    ],
)
def test_names(path: str, value: Any, level: str, words: str) -> None:
    (found,) = of(changed(path, value))
    assert (found.level, found.field) == (level, dotted(path))
    assert words in found.text


def older(**change: Any) -> dict[str, Any]:
    """A good card as it was written before 1.0, with some fields changed."""
    card = {**OLDER, "name": "a", "description": "b", "version": "1", "capabilities": {}}
    card |= {"defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"]}
    card |= {"skills": [{"id": "a", "name": "a", "description": "b", "tags": ["c"]}]}
    card |= {"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X"}}}
    return {name: value for name, value in (card | change).items() if value is not GONE}


@pytest.mark.parametrize(
    ("version", "said"), [("0.3.0", "0.3"), ("0.2.6", "0.2"), ("0.1", "0.1"), (GONE, "0.2")]
)
def test_a_card_of_before_1_0_alone(version: str, said: str) -> None:
    (found,) = of(older(protocolVersion=version))
    assert (found.level, found.field) == ("note", "")
    assert f"for A2A {said}," in found.text


@pytest.mark.parametrize(
    ("change", "field", "level", "words"),
    [
        ({"name": GONE}, "name", "error", "is missing"),
        ({"url": ""}, "url", "error", "is empty"),
        ({"url": GONE}, "url", "error", "is missing"),
        ({"url": "http://0.0.0.0:80/"}, "url", "error", "clients cannot call"),
        ({"version": 1}, "version", "error", "put it in quotes"),
        ({"description": GONE}, "description", "warning", "is missing"),
        ({"skills": GONE}, "skills", "warning", "is missing"),
        ({"skills": [{"id": "a", "name": "a", "description": "b"}]}, "skills[0].tags", "warning",
         "is missing"),
        ({"preferredTransport": "REST"}, "preferredTransport", "warning", "write HTTP+JSON"),
        ({"additionalInterfaces": [{"url": "http://localhost/", "transport": "JSONRPC"}]},
         "additionalInterfaces[0].url", "error", "loopback"),
        ({"security": [{"other": []}]}, "security[0].other", "error", "not among"),
        ({"securitySchemes": {"key": {"type": "secret"}}}, "securitySchemes.key.type", "error",
         "write one of apiKey"),
        ({"securitySchemes": {"key": {"type": "openIdConnect", "openIdConnectUrl": "http://a.b"}}},
         "securitySchemes.key.openIdConnectUrl", "error", "write https"),
        ({"documentationurl": "x"}, "documentationurl", "warning", "did you mean documentationUrl"),
        ({"more": "x"}, "more", "note", "not a field of A2A 0.3"),
    ],
)  # fmt: skip
def test_a_card_of_before_1_0_with_something_wrong(
    change: dict[str, Any], field: str, level: str, words: str
) -> None:
    (found,) = (item for item in of(older(**change)) if item.field)
    assert (found.field, found.level) == (field, level)
    assert words in found.text


def test_a_card_that_says_1_0_in_older_words() -> None:
    """It is measured by what it says that it is."""
    first, *_ = found = of(older(protocolVersion="1.0"))
    assert brief(found)[:2] == [("error", "securitySchemes.key"), ("error", "supportedInterfaces")]
    assert '{"apiKeySecurityScheme": {…}}' in first.text
    assert "form of A2A 0.3" in found[1].text
    warned = {item.field: item.text for item in found if item.level == "warning"}
    assert warned.keys() == OLDER.keys()
    assert "securityRequirements" in warned["security"]
    assert "capabilities.extendedAgentCard" in warned["supportsAuthenticatedExtendedCard"]


def test_a_card_for_everybody() -> None:
    card = decode(json.dumps(CARD).encode(), "here")
    assert of(merged(card)) == []


# ---- rules ---------------------------------------------------------------------------------

INTERFACE = "supportedInterfaces.0"
CODE = "securitySchemes.code.oauth2SecurityScheme.flows"


@pytest.mark.parametrize(
    ("path", "value", "level", "words"),
    [
        (f"{INTERFACE}.protocolBinding", "jsonrpc", "warning", "write JSONRPC"),
        (f"{INTERFACE}.protocolBinding", "JSON-RPC 2.0", "warning", "write JSONRPC"),
        (f"{INTERFACE}.protocolBinding", "REST", "warning", "write HTTP+JSON"),
        (f"{INTERFACE}.protocolBinding", "http", "warning", "write HTTP+JSON"),
        (f"{INTERFACE}.protocolBinding", "http_json", "warning", "write HTTP+JSON"),
        (f"{INTERFACE}.protocolBinding", "grpc", "warning", "write GRPC"),
        (f"{INTERFACE}.protocolBinding", "soap", "warning", "do not know"),
        (f"{INTERFACE}.protocolBinding", "https://x.example/soap", "note", "custom binding"),
        (f"{INTERFACE}.protocolVersion", "1", "error", "Major.Minor"),
        (f"{INTERFACE}.protocolVersion", "v1.0", "error", "Major.Minor"),
        (f"{INTERFACE}.protocolVersion", "1.0.1", "warning", 'write "1.0"'),
        (f"{INTERFACE}.url", "/rpc", "error", "not absolute"),
        (f"{INTERFACE}.url", "agent.example/rpc", "error", "not absolute"),
        (f"{INTERFACE}.url", "localhost:80", "error", "not absolute"),
        (f"{INTERFACE}.url", "https://", "error", "not absolute"),
        (f"{INTERFACE}.url", "https://agent.example:x/", "error", "is not a URL"),
        (f"{INTERFACE}.url", "https://[::1/", "error", "is not a URL"),
        (f"{INTERFACE}.url", "https://agent.example/a b", "error", "characters"),
        (f"{INTERFACE}.url", "https://a:b@agent.example/", "error", "credentials"),
        (f"{INTERFACE}.url", "ws://agent.example/", "error", "do not support"),
        (f"{INTERFACE}.url", "https://agent.example/#a", "warning", "fragment"),
        (f"{INTERFACE}.url", "https://0.0.0.0:80/", "error", "clients cannot call"),
        (f"{INTERFACE}.url", "https://[::]:80/", "error", "clients cannot call"),
        (f"{INTERFACE}.url", "https://localhost/", "error", "loopback"),
        (f"{INTERFACE}.url", "https://127.1.2.3/", "error", "loopback"),
        (f"{INTERFACE}.url", "https://[::ffff:127.0.0.1]/", "error", "loopback"),
        (f"{INTERFACE}.url", "https://10.0.0.1/", "warning", "private"),
        (f"{INTERFACE}.url", "https://agents/", "warning", "private"),
        (f"{INTERFACE}.url", "https://agents.internal./", "warning", "private"),
        (f"{INTERFACE}.url", "https://other.example/", "warning", "do not send credentials"),
        (f"{INTERFACE}.url", "https://agent.example:8443/", "warning", "do not send credentials"),
        ("supportedInterfaces.2.url", "agent.example", "warning", "no port"),
        ("supportedInterfaces.2.url", "agent.example:70000", "error", "is not a URL"),
        ("supportedInterfaces.2.url", "grpc://agent.example:1", "error", "write host:port"),
        ("supportedInterfaces.2.url", "dns:///agent.example:1", "error", "write host:port"),
        ("supportedInterfaces.2.url", "https://agent.example/a2a", "note", "path"),
        ("supportedInterfaces.2.url", "http://agent.example:1", "warning", "plain http"),
        ("supportedInterfaces.2.url", "other.example:1", "warning", "do not send credentials"),
        ("documentationUrl", "http://example.com", "warning", "write https://"),
        ("documentationUrl", "docs/index.html", "warning", "not absolute"),
        ("iconUrl", "http://example.com/a.png", "warning", "write https://"),
        ("provider.url", "example.com", "warning", "not absolute"),
        ("name", "x" * 201, "warning", "201 characters"),
        ("description", "x" * 5001, "warning", "5001 characters"),
        ("skills.0.description", "x" * 5001, "warning", "5001 characters"),
        ("skills.0.examples.0", "a\x1b[31mb", "warning", "U+001B"),
        ("description", "a\u202eb", "warning", "U+202E"),
        ("defaultInputModes.0", "text", "warning", "write text/plain"),
        ("defaultOutputModes.0", "json", "warning", "write application/json"),
        ("skills.0.inputModes.0", "a/b/c", "warning", "type/subtype"),
        ("skills", [], "note", "is empty; name"),
        ("skills.0.tags.0", " ", "warning", "is empty"),
        ("capabilities.extensions.0.uri", "x402", "warning", "not a URI"),
        ("capabilities.extensions.0.required", True, "note", "A2A-Extensions"),
        (f"{CODE}.authorizationCode.tokenUrl", "http://id.example/", "error", "write https://"),
        (f"{CODE}.authorizationCode.refreshUrl", "refresh", "error", "not absolute"),
        ("securitySchemes.machine", {}, "error", "is empty; give one of apiKey"),
        ("securitySchemes.key.apiKeySecurityScheme.location", "Header", "error", "write header"),
        ("securitySchemes.key.httpAuthSecurityScheme", {"scheme": "x"}, "error", "only one is"),
        (f"{CODE}.deviceCode", flow("deviceAuthorizationUrl", "tokenUrl"), "error", "each flow"),
        ("securityRequirements.0.schemes.kye", {"list": []}, "error", "did you mean key?"),
        ("securityRequirements.0.schemes.code.list.0", "wrte", "warning", "no flow"),
        ("securityRequirements.0.key", ["a"], "error", '{"schemes": {"key": {"list": ["a"]}}}'),
        ("skills.0.securityRequirements.0.schemes.zz", {}, "error", "not among securitySchemes"),
        ("securityRequirements.1", {}, "note", "anyone may call"),
        ("signatures.0.protected", "e30=", "error", "without padding"),
        ("signatures.0.protected", encoded([]), "error", "JSON object"),
        ("signatures.0.signature", "not base64", "error", "base64url"),
    ],
)  # fmt: skip
def test_rules(path: str, value: Any, level: str, words: str) -> None:
    (found,) = of(changed(path, value))
    assert words in found.text
    assert found.level == level
    # itself, or the object that it is in
    assert found.field in (dotted(path), dotted(path.rpartition(".")[0]))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ({"alg": "none"}, [("error", "proves nothing")]),
        ({"alg": ""}, [("error", "proves nothing")]),
        ({"alg": "HS256"}, [("warning", "can forge one")]),
        ({"kid": ""}, [("error", "no kid")]),
        ({"typ": "JWT"}, [("note", "JOSE")]),
        ({"jku": "http://keys.example"}, [("error", "jku")]),
        ({"jku": "https://keys.example"}, []),
    ],
)
def test_signatures(header: dict[str, str], expected: list[tuple[str, str]]) -> None:
    protected = encoded({"alg": "ES256", "kid": "1", "typ": "JOSE"} | header)
    found = of(changed("signatures.0.protected", protected))
    assert [item.level for item in found] == [level for level, _ in expected]
    for item, (_, words) in zip(found, expected, strict=True):
        assert words in item.text
        assert item.field == "signatures[0].protected"


@pytest.mark.parametrize(
    ("name", "url"), [("implicit", "authorizationUrl"), ("password", "tokenUrl")]
)
def test_deprecated_flows(name: str, url: str) -> None:
    (found,) = of(changed("securitySchemes.code", oauth(name, url)))
    assert (found.level, found.field) == ("warning", f"{dotted(CODE)}.{name}")
    assert "authorizationCode with PKCE" in found.text


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({"protocolVersion": "0.3"}, "warning"),
        ({"protocolVersion": "0.9"}, "error"),
        ({"protocolBinding": "SOAP"}, "error"),
    ],
)
def test_nothing_that_a_client_of_1_0_can_use(change: dict[str, str], level: str) -> None:
    one = {**CARD["supportedInterfaces"][0], **change}
    found = of(CARD | {"supportedInterfaces": [one]})
    assert (level, "supportedInterfaces") in brief(found)


def test_things_said_twice() -> None:
    again = changed("supportedInterfaces.4", CARD["supportedInterfaces"][0])
    assert brief(of(again)) == [("warning", "supportedInterfaces[4]")]
    assert brief(of(changed("skills.1", CARD["skills"][0]))) == [("error", "skills[1].id")]
    one = {"uri": "urn:example:x"}
    again = changed("capabilities.extensions.1", one)
    assert brief(of(again)) == [("warning", "capabilities.extensions[1].uri")]
    again = changed("capabilities.extensions.1", {"description": "without"})
    assert brief(of(again)) == [("error", "capabilities.extensions[1].uri")]


def test_an_extended_card_for_nobody() -> None:
    card = changed("securitySchemes", GONE, changed("securityRequirements", GONE))
    del card["skills"][0]["securityRequirements"]
    assert brief(of(card)) == [("warning", "capabilities.extendedAgentCard")]


def test_schemes_that_nothing_requires() -> None:
    card = changed("securityRequirements", GONE)
    del card["skills"][0]["securityRequirements"]
    assert brief(of(card)) == [("note", "securitySchemes")]


def test_where_the_card_was_found() -> None:
    """What is said of an address depends on it."""
    plain = changed(f"{INTERFACE}.url", "http://10.0.0.1/")
    body = json.dumps(plain | {"supportedInterfaces": plain["supportedInterfaces"][:1]}).encode()
    assert [item.text[:13] for item in check(body)] == ["is plain http"]
    (near,) = check(body, url="http://10.0.0.1/card.json")
    assert near.text.startswith("is plain http")
    away = [item.text for item in check(body, url="https://agent.example/card.json")]
    assert any("is a private address" in text for text in away)
    inside = check(body.replace(b"10.0.0.1", b"localhost"), url="http://10.0.0.1/card.json")
    assert [(item.level, item.text[:21]) for item in inside] == [("error", "is a loopback address")]


def test_the_worst_comes_first() -> None:
    card = changed("skills", [], changed("iconUrl", "http://x.example", changed("name", "")))
    assert [item.level for item in of(card)] == ["error", "warning", "note"]


# ---- whatever comes ------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["list", "schemes", "url", "flows"]) | st.text(), inner)
    ),
    max_leaves=4,
)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_what_a_client_refuses_is_an_error(data: st.DataObject) -> None:
    card = CARD
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from([path for path, _, _ in FIELDS if path != "signatures"]))
        try:
            card = changed(path, data.draw(st.just(GONE) | VALUES), card)
        except (KeyError, IndexError, TypeError):
            continue  # the other change has taken the place away
    body = json.dumps(card).encode()
    found = check(body, url=HOME, headers=SERVED)
    assert all(finding.text and finding.level in ("error", "warning", "note") for finding in found)
    try:
        decode(body, "here")
    except A2AError:
        assert any(finding.level == "error" for finding in found), card


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode()), st.text())
def test_nothing_is_raised(document: bytes, url: str) -> None:
    assert [finding for finding in check(document, url=url) if finding.level == "error"]
