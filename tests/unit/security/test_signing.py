"""Signed cards: what is signed, whose signatures count, and forgeries of many kinds."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from joserfc import jwk
from msgspec import to_builtins

from dragoman.dialects.v0_3.card import merged
from dragoman.dialects.v1_0 import decode, encode
from dragoman.model.types import AgentCard
from dragoman.security import canonical_card as forms
from dragoman.security import card_signatures
from dragoman.security.address_policy import EgressRefused
from dragoman.security.canonical_card import canonical
from dragoman.security.card_keys import CardKey, key_set
from dragoman.security.card_signatures import Trust, Unverified, sign, signed, verify

CARD: dict[str, Any] = {
    "name": "Grüße €",
    "description": "Signs.",
    "version": "1.0.0",
    "supportedInterfaces": [
        {"url": "https://a.example/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        {"url": "https://a.example/", "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
    ],
    "capabilities": {"streaming": False, "extensions": [{"uri": "urn:x", "params": {"n": 1.5}}]},
    "securitySchemes": {
        "key": {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}},
    },
    "securityRequirements": [{"schemes": {"key": {"list": ["all"]}}}],
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "a", "name": "A", "description": "Does.", "tags": ["t"]}],
}


SCOPELESS = {
    "oauth2SecurityScheme": {
        "flows": {"clientCredentials": {"tokenUrl": "https://id.example/token", "scopes": {}}}
    }
}


@cache
def made(kind: str) -> Any:
    """A key of a kind, as joserfc has it."""
    if kind.startswith("RSA"):
        return jwk.RSAKey.generate_key(2048)
    if kind.startswith("Ed"):
        return jwk.OKPKey.generate_key("Ed25519")
    return jwk.ECKey.generate_key(kind[:5])


def private(kind: str = "P-256") -> str:
    """Its PEM."""
    return str(made(kind).as_pem(private=True).decode())


def public(kind: str = "P-256") -> str:
    """Its public half in PEM."""
    return str(made(kind).as_pem(private=False).decode())


def with_signature(*signatures: Any, document: dict[str, Any] = CARD) -> dict[str, Any]:
    """A document that has these."""
    return document | {"signatures": [to_builtins(each) for each in signatures]}


def header(**changes: Any) -> str:
    """A protected header."""
    said = {"alg": "ES256", "kid": "k", "typ": "JOSE"} | changes
    return base64.urlsafe_b64encode(json.dumps(said).encode()).rstrip(b"=").decode()


def forged(**changes: Any) -> dict[str, Any]:
    """A card whose signature is right in all but its header, which the signer chose."""
    protected = header(**changes)
    content = card_signatures.signing_input(protected, canonical(CARD))
    signature = CardKey.load(private()).sign(content)
    return with_signature(
        {"protected": protected, "signature": card_signatures.base64url(signature)}
    )


# ---- the form ------------------------------------------------------------------------------


@pytest.mark.clause("card.sign.fields")
def test_the_example_of_the_specification() -> None:
    document = {
        "name": "Example Agent",
        "description": "",
        "capabilities": {"streaming": False, "pushNotifications": False, "extensions": []},
        "skills": [],
    }
    assert canonical(document) == (
        b'{"capabilities":{"pushNotifications":false,"streaming":false},"description":"",'
        b'"name":"Example Agent","skills":[]}'
    )


@pytest.mark.clause("card.sign.canonical", "card.sign.fields")
def test_what_is_kept_and_what_is_dropped() -> None:
    document = CARD | {
        "documentationUrl": "",  # presence
        "provider": None,  # absent
        "securityRequirements": [],  # a default
        "supportedInterfaces": [{**CARD["supportedInterfaces"][0], "tenant": ""}],
        "capabilities": {"streaming": False, "extensions": [{"required": False, "params": {}}]},
        "securitySchemes": {
            "m": {"mtlsSecurityScheme": {"description": ""}},
            "o": {"oauth2SecurityScheme": {"flows": {"clientCredentials": {"scopes": {}}}}},
        },
        "signatures": [{"protected": "x"}],
    }
    found = json.loads(canonical(document))
    assert found["documentationUrl"] == ""
    assert not {"provider", "securityRequirements", "signatures"} & set(found)
    assert found["supportedInterfaces"] == CARD["supportedInterfaces"][:1]
    assert found["capabilities"] == {"streaming": False, "extensions": [{"params": {}}]}
    assert found["securitySchemes"]["m"] == {"mtlsSecurityScheme": {}}
    flow = found["securitySchemes"]["o"]["oauth2SecurityScheme"]["flows"]["clientCredentials"]
    assert flow == {"scopes": {}}


def test_a_card_and_its_document_have_one_form() -> None:
    card = decode(AgentCard, encode(CARD))
    assert canonical(card) == canonical(CARD) == canonical(json.dumps(CARD, indent=3))
    assert canonical(merged(card), "1.0") == canonical(card)
    assert canonical(merged(card)) != canonical(card)


def test_the_other_spelling() -> None:
    document = {k: v for k, v in CARD.items() if k != "defaultInputModes"}
    document["default_input_modes"] = CARD["defaultInputModes"]
    assert canonical(document, "1.0") == canonical(CARD)
    with pytest.raises(ValueError, match="defaultInputModes appears twice"):
        canonical(CARD | {"default_input_modes": ["x/y"]}, "1.0")


# RFC 8785, appendix B: the bits of a double, and how it is written
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_numbers_that_the_rfc_refuses(bits: str) -> None:
    with pytest.raises(ValueError):
        canonical({"x": struct.unpack(">d", bytes.fromhex(bits))[0]})


@pytest.mark.clause("card.sign.canonical")
def test_the_sample_of_the_rfc() -> None:
    """Its section 3.2: literals, and numbers that are written in many ways."""
    document = (
        '{ "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],\n'
        '  "string": "\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/",\n'
        '  "literals": [null, true, false]\n}'
    )
    assert (
        canonical(document)
        == (
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )


def test_every_character_that_is_escaped() -> None:
    """Section 3.2.2.2: seven have short forms, other controls are in lower-case hex, and all else
    stands for itself, DEL and line separators with it."""
    short = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
    for code in range(0x20):
        text = short.get(code, f"\\u{code:04x}")
        assert canonical({"x": chr(code)}) == f'{{"x":"{text}"}}'.encode()
    for char in ("\x7f", "\u2028", "\u2029", "\ufeff", "\U0010ffff", "e\u0301", "\u00e9"):
        assert canonical({"x": char}) == f'{{"x":"{char}"}}'.encode()


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_numbers_of_the_rfc(bits: str, text: str) -> None:
    number = struct.unpack(">d", bytes.fromhex(bits))[0]
    assert canonical({"x": number}) == f'{{"x":{text}}}'.encode()


@pytest.mark.clause("card.sign.canonical")
def test_order_and_texts_of_the_rfc() -> None:
    document = (
        '{"\\u20ac":"Euro Sign","\\r":"Carriage Return","\\ufb33":"Hebrew Letter Dalet With Dagesh"'
        ',"1":"One","\\ud83d\\ude00":"Emoji: Grinning Face","\\u0080":"Control",'
        '"\\u00f6":"Latin Small Letter O With Diaeresis"}'
    )
    names = list(json.loads(canonical(document)))
    assert names == ["\r", "1", "\x80", "ö", "€", "😀", "\ufb33"]
    text = '{"string":"\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/"}'
    assert canonical(text) == '{"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'.encode()


# ---- signing -------------------------------------------------------------------------------


@pytest.mark.clause("card.sign.form")
@pytest.mark.parametrize(
    ("kind", "alg", "asked"),
    [
        *(("P-256", "ES256", ""), ("P-384", "ES384", ""), ("Ed25519", "EdDSA", "")),
        *(("RSA", "RS256", ""), ("RSA", "PS256", "PS256")),
    ],
)
def test_every_algorithm(kind: str, alg: str, asked: str) -> None:
    made_of = sign(CARD, private(kind), kid="k", alg=asked, jku="https://k.example/jwks.json")
    padding = "=" * (-len(made_of.protected) % 4)
    said = json.loads(base64.urlsafe_b64decode(made_of.protected + padding))
    assert said == {"alg": alg, "kid": "k", "typ": "JOSE", "jku": "https://k.example/jwks.json"}
    found = verify(with_signature(made_of), {"k": public(kind)})
    assert (found.kid, found.alg, found.form) == ("k", alg, "whole")
    assert found.document == json.loads(canonical(CARD))
    changed = with_signature(made_of) | {"name": "Other"}
    with pytest.raises(Unverified, match="or the card was changed"):
        verify(changed, {"k": public(kind)})


def test_keys_in_files(tmp_path: Path) -> None:
    pem, own, shared = tmp_path / "a.pem", tmp_path / "a.json", tmp_path / "jwks.json"
    pem.write_text(private())
    own.write_text(json.dumps(made("Ed25519").as_dict(private=True) | {"kid": "ed"}))
    halves = [made("Ed25519").as_dict(private=False) | {"kid": "ed"}]
    shared.write_text(json.dumps({"keys": [*halves, {"kty": "oct", "k": "AAAA", "kid": "o"}]}))
    document = with_signature(sign(CARD, pem), sign(CARD, str(own)))
    assert verify(document, public()).kid == made("P-256").thumbprint()
    assert verify(document, key_set(shared)).kid == "ed"
    assert verify(document, json.loads(shared.read_text())).kid == "ed"
    assert verify(document, lambda kid, jku: public("Ed25519") if kid == "ed" else None).kid == "ed"


@pytest.mark.parametrize("der", [False, True])
def test_a_key_that_is_kept_elsewhere(der: bool) -> None:
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    def kms(content: bytes) -> bytes:
        raw = CardKey.load(private()).sign(content)
        numbers = (int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
        return encode_dss_signature(*numbers) if der else raw

    document = with_signature(sign(CARD, kms, kid="k", alg="ES256"))
    assert verify(document, {"k": public()}).kid == "k"
    with pytest.raises(ValueError, match="must be one of"):
        sign(CARD, kms, kid="k", alg="HS256")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name: must not be empty"),
        ({"version": None}, "version: is required"),
        ({"supportedInterfaces": []}, "supportedInterfaces: must not be empty"),
        ({"skills": [{"id": "a", "name": "A", "tags": ["t"]}]}, "description: is required"),
        ({"capabilities": []}, "capabilities: expected object"),
        ({"skills": []}, "skills: must not be empty"),
        ({"capabilities": {}}, "capabilities: must not be empty"),
        ({"capabilities": {"extensions": []}}, "capabilities: must not be empty"),
        ({"securitySchemes": {"o": SCOPELESS}}, r"clientCredentials\.scopes: must not be empty"),
        ({"skills": [{"id": "a", "name": "A", "description": "D", "tags": []}]}, "tags: must not"),
    ],
)
def test_a_card_that_says_too_little_is_not_signed(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        sign(CARD | change, private(), kid="k")


REQUIRED = [name for name in CARD if not name.startswith("security")]


@pytest.mark.parametrize("name", REQUIRED)
def test_no_required_field_is_signed_empty_or_missing(name: str) -> None:
    empty: dict[str, Any] = {"str": "", "list": [], "dict": {}}
    for without in (CARD | {name: empty[type(CARD[name]).__name__]}, CARD | {name: None}):
        with pytest.raises(ValueError, match=f"cannot be signed: {name}: "):
            sign(without, private(), kid="k")


def test_all_of_the_required_fields_are_tried() -> None:
    needed = {each.encode_name for each in msgspec.structs.fields(AgentCard) if each.required}
    assert needed == set(REQUIRED)


@pytest.mark.filterwarnings("ignore:Key size")
@pytest.mark.parametrize(
    ("source", "why"),
    [
        (public(), "it can verify, but not sign"),
        ({"kty": "oct", "k": "AAAA"}, "EC, OKP or RSA, not 'oct'"),
        (b"-----BEGIN NOTHING-----", "is not a readable PEM key or JWK"),
        (jwk.ECKey.generate_key("P-521").as_pem(private=True), "the curve must be one of"),
        (jwk.RSAKey.import_key(made("RSA").as_dict(private=True) | {"use": "enc"}).as_dict(
            private=True
        ) | {"use": "enc"}, "not for signatures"),
        ('{"kty":"EC","kty":"RSA"}', "not valid JSON"),
    ],
)  # fmt: skip
def test_keys_that_cannot_sign(source: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        sign(CARD, source, kid="k")


@pytest.mark.filterwarnings("ignore:Key size")
def test_small_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 2048 bits"):
        CardKey.load(jwk.RSAKey.generate_key(1024).as_pem(private=True))


# ---- verifying -----------------------------------------------------------------------------


def test_several_signatures() -> None:
    old, new = sign(CARD, private(), kid="old"), sign(CARD, private("Ed25519"), kid="new")
    document = with_signature({"junk": 1}, "junk", old, new)
    assert verify(document, {"new": public("Ed25519")}).kid == "new"
    assert verify(document, {"old": public()}).kid == "old"
    with pytest.raises(Unverified, match=r"signature 3: the key 'old' is not trusted; signature 4"):
        verify(document, {"other": public()})


def refused(document: Any, match: str, keys: Any = None) -> None:
    """It is not verified, for this reason."""
    with pytest.raises(Unverified, match=match):
        verify(document, {"k": public()} if keys is None else keys)


def test_a_right_forgery_of_a_header_would_pass() -> None:
    assert verify(forged(), {"k": public()}).alg == "ES256"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"alg": "none"}, "alg 'none' is not accepted"),
        ({"alg": "HS256"}, "alg 'HS256' is not accepted"),
        ({"alg": None}, "alg 'None' is not accepted"),
        ({"alg": ["ES256"]}, "is not accepted"),
        ({"alg": "RS256"}, "is not for RS256"),
        ({"alg": "ES384"}, "is not for ES384"),
        ({"kid": ""}, "it has no kid"),
        ({"kid": 5}, "it has no kid"),
        ({"kid": "other"}, "'other' is not trusted"),
        ({"crit": ["exp"], "exp": 1}, "critical headers"),
        ({"crit": []}, "critical headers"),
        ({"b64": False}, "critical headers"),
        ({"jwk": made("P-256").as_dict(private=False)}, r"its own key \(jwk\)"),
        ({"x5c": ["AAAA"]}, r"its own key \(x5c\)"),
        ({"x5u": "https://a.example"}, r"its own key \(x5u\)"),
    ],
)
def test_headers_that_are_refused(change: dict[str, Any], why: str) -> None:
    refused(forged(**change), why)


def test_a_secret_made_of_the_public_key() -> None:
    import hashlib
    import hmac

    protected = header(alg="HS256")
    content = card_signatures.signing_input(protected, canonical(CARD))
    mac = hmac.digest(public("RSA").encode(), content, hashlib.sha256)
    document = with_signature({"protected": protected, "signature": card_signatures.base64url(mac)})
    refused(document, "alg 'HS256' is not accepted", {"k": public("RSA")})


def test_headers_that_nobody_protects() -> None:
    good = to_builtins(sign(CARD, private(), kid="k"))
    for loose in ({"alg": "none"}, {"crit": ["x"]}, {"jwk": {}}, {"kid": "k"}):
        refused(with_signature(good | {"header": loose}), "outside of the protected header")
    assert verify(with_signature(good | {"header": {"note": 1}}), {"k": public()})


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Other"},
        {"supportedInterfaces": [CARD["supportedInterfaces"][0] | {"url": "https://evil/"}]},
        {"securityRequirements": []},
        {"capabilities": {"streaming": True}},
        {"capabilities": {}},
        {"iconUrl": ""},
    ],
)
def test_a_changed_card(change: dict[str, Any]) -> None:
    refused(with_signature(sign(CARD, private(), kid="k")) | change, "the card was changed")


def test_no_signature_and_another_key() -> None:
    for none in (CARD, CARD | {"signatures": []}, CARD | {"signatures": {}}):
        refused(none, "the card is not signed")
    other = jwk.ECKey.generate_key("P-256").as_pem(private=False)
    refused(
        with_signature(sign(CARD, private(), kid="k")), "the key 'k' did not make it", {"k": other}
    )
    good = sign(CARD, private(), kid="k")
    refused(with_signature({"protected": good.protected, "signature": ""}), "not base64url")
    refused(with_signature({"protected": "e30=", "signature": good.signature}), "protected header")


def test_only_some_signatures_are_looked_at() -> None:
    good = sign(CARD, private(), kid="k")
    assert verify(with_signature(*[{}] * (card_signatures.MOST - 1), good), {"k": public()})
    refused(
        with_signature(*[{}] * card_signatures.MOST, good), "no signature of the card is accepted"
    )


def test_names_that_are_there_twice() -> None:
    text = json.dumps(with_signature(sign(CARD, private(), kid="k")))
    assert verify(text, {"k": public()})
    refused('{"name": "Evil", ' + text[1:], "'name' appears twice")
    refused(text.replace('"uri": "urn:x"', '"uri": "urn:y", "uri": "urn:x"'), "'uri' appears")
    inner = '{"alg":"none","alg":"ES256","kid":"k"}'
    protected = base64.urlsafe_b64encode(inner.encode()).rstrip(b"=").decode()
    refused(with_signature({"protected": protected, "signature": "AAAA"}), "protected header")


def test_documents_without_bounds() -> None:
    good = sign(CARD, private(), kid="k")
    deep: Any = "x"
    for _ in range(forms.DEEPEST):
        deep = [deep]
    refused(with_signature(good) | {"x": deep}, "nested deeper")
    refused(b'{"x":' + b"[" * 100_000, "nested deeper")
    refused(b'{"x":"' + b"a" * forms.LARGEST + b'"}', "longer than")
    refused(b"[]", "not a JSON object")
    refused(b"\xff", "not UTF-8")
    refused(b"{", "not valid JSON")
    refused('{"x": NaN}', "not a JSON number")
    refused(with_signature(good) | {"x": 2**60}, "no canonical form")
    refused(with_signature(good) | {"x": "\ud800"}, "no canonical form")
    refused('{"x": 1e999, "signatures": [1]}', "no canonical form")


# ---- more than 1.0 -------------------------------------------------------------------------


def test_a_merged_document() -> None:
    card = signed(decode(AgentCard, encode(CARD)), [CardKey.load(private(), kid="k")])
    document = merged(card)
    found = verify(document, {"k": public()})
    assert found.form == "1.0"
    assert "url" not in found.document  # which nobody has signed
    evil = document | {"url": "https://evil.example/"}
    assert verify(evil, {"k": public()}).document == found.document
    whole = with_signature(sign(document, private(), kid="k"), document=document)
    assert verify(whole, {"k": public()}).document["url"] == "https://a.example/"
    refused(whole | {"url": "https://evil.example/"}, "the card was changed")
    without = {k: v for k, v in document.items() if k != "supportedInterfaces"}
    refused(without, "the card was changed")


def test_another_spelling_does_not_get_in() -> None:
    document = with_signature(sign(CARD, private(), kid="k"))
    evil = [CARD["supportedInterfaces"][0] | {"url": "https://evil.example/"}]
    refused(document | {"supported_interfaces": evil}, "appears twice, in two spellings")


# ---- keys at an address --------------------------------------------------------------------


class Web:
    """A way out that leads to one page."""

    def __init__(self, page: bytes) -> None:
        self.page, self.asked = page, list[str]()

    async def fetch(self, url: str) -> AsyncIterator[bytes]:
        self.asked.append(url)
        if "refused" in url:
            raise EgressRefused("the address is not public (loopback)")
        yield self.page


SET = json.dumps({"keys": [made("P-256").as_dict(private=False) | {"kid": "k"}]}).encode()
Ask = Callable[..., Any]


def trust(page: bytes = SET, *, at: str = "https://keys.example/a") -> tuple[Trust, Web]:
    """Trust in one address."""
    web = Web(page)
    return Trust(jku=[at], egress=web), web  # type: ignore[arg-type]


def at(url: str) -> dict[str, Any]:
    """A card whose key is there."""
    return with_signature(sign(CARD, private(), kid="k", jku=url))


async def test_keys_at_a_trusted_address() -> None:
    whom, web = trust()
    for _ in range(2):
        found = await whom.verify(at("https://keys.example/a/jwks.json"))
        assert found.kid == "k"
    assert web.asked == ["https://keys.example/a/jwks.json"]


@pytest.mark.parametrize(
    "url",
    [
        "https://keys.example.evil.example/a/jwks.json",
        "https://keys.example/ab",
        "https://keys.example/a/../b",
        "https://keys.example/a/%2E%2e/b",
        "https://keys.example/a/..%2fb",
        "https://keys.example/a/#x",
        "http://keys.example/a/jwks.json",
        "https://evil.example/",
    ],
)
async def test_keys_at_other_addresses(url: str) -> None:
    whom, web = trust()
    with pytest.raises(Unverified, match="are not trusted"):
        await whom.verify(at(url))
    assert web.asked == []


@pytest.mark.parametrize(
    ("page", "path", "why"),
    [
        (b" " * (card_signatures.SET_SIZE + 1), "", "the key set is larger"),
        (b"nothing", "", "it is not valid JSON"),
        (b"[]", "", "not a JSON object"),
        (b'{"keys":[],"keys":[]}', "", "appears twice"),
        (b'{"keys":[]}', "", "the key 'k' is not trusted"),
        (SET, "/refused", "the address is not public"),
    ],
)
async def test_key_sets_that_are_no_use(page: bytes, path: str, why: str) -> None:
    whom, _ = trust(page)
    with pytest.raises(Unverified, match=why):
        await whom.verify(at("https://keys.example/a" + path))


async def test_addresses_inside_a_network_are_not_asked() -> None:
    whom = Trust(jku=["https://127.0.0.1/"])
    with pytest.raises(Unverified, match="the address is not public"):
        await whom.verify(at("https://127.0.0.1/jwks.json"))


async def test_few_key_sets_are_asked_for() -> None:
    whom, web = trust(b'{"keys":[]}')
    card = with_signature(
        *(sign(CARD, private(), kid="k", jku=f"https://keys.example/a/{n}") for n in range(9))
    )
    with pytest.raises(Unverified):
        await whom.verify(card)
    assert len(web.asked) == card_signatures.MOST_SETS


def test_what_is_no_address() -> None:
    for prefix in ("", "keys.example", "https://", "https://a@b/"):
        with pytest.raises(ValueError, match="jku"):
            Trust(jku=[prefix])


# ---- the reference -------------------------------------------------------------------------


def reference(document: dict[str, Any]) -> Any:
    """The card as the reference has it."""
    from a2a.types import AgentCard as Theirs
    from google.protobuf.json_format import ParseDict

    return ParseDict(document, Theirs(), ignore_unknown_fields=True)


KINDS = {"ES256": "P-256", "ES384": "P-384", "RS256": "RSA", "PS256": "RSA", "EdDSA": "Ed25519"}


@pytest.mark.parametrize("alg", KINDS)
def test_the_reference_verifies_ours(alg: str) -> None:
    theirs = pytest.importorskip("a2a.utils.signing", exc_type=ImportError)
    kind = KINDS[alg]
    check = theirs.create_signature_verifier(lambda *_: public(kind), [alg])
    good = with_signature(sign(CARD, private(kind), kid="k", alg=alg, heirs=["x"]))
    check(reference(good))
    card = signed(decode(AgentCard, encode(CARD)), [CardKey.load(private(kind), alg=alg)])
    check(reference(merged(card)))
    with pytest.raises(theirs.InvalidSignaturesError):
        check(reference(good | {"name": "x"}))


@pytest.mark.parametrize("alg", KINDS)
def test_ours_verifies_the_reference(alg: str) -> None:
    theirs = pytest.importorskip("a2a.utils.signing", exc_type=ImportError)
    from google.protobuf.json_format import MessageToDict

    header = {"kid": "k", "alg": alg, "typ": "JOSE", "jku": "https://a.example/jwks.json"}
    card = theirs.create_agent_card_signer(private(KINDS[alg]), header)(reference(CARD))
    document = MessageToDict(card)
    assert verify(document, {"k": public(KINDS[alg])}).kid == "k"
    both = merged(decode(AgentCard, encode(document)))  # with the fields of 0.3 beside it
    assert verify(both, {"k": public(KINDS[alg])}).form == "1.0"


@pytest.mark.parametrize(
    "change",
    [
        {"documentationUrl": ""},
        {"securityRequirements": [{"schemes": {"key": {}}}]},
        {"securitySchemes": {"m": {"mtlsSecurityScheme": {}}}},
        {"capabilities": {"extensions": [{"uri": "urn:x", "params": {"a": ""}}]}},
    ],
)
def test_where_the_reference_drops_more(change: dict[str, Any]) -> None:
    """It drops whatever is empty, also where the specification keeps it: a signature over such a
    card is good for one of us only."""
    theirs = pytest.importorskip("a2a.utils.signing", exc_type=ImportError)
    check = theirs.create_signature_verifier(lambda *_: public(), ["ES256"])
    document = CARD | change
    with pytest.raises(theirs.InvalidSignaturesError):
        check(reference(with_signature(sign(document, private(), kid="k"), document=document)))
