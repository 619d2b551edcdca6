"""Signed catalogs: what a signature covers, and what is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import rfc8785
from joserfc import jwk
from joserfc.jws import JWSRegistry

from dragoman.client import Unverified
from dragoman.security.card_keys import CardKey
from dragoman.security.catalog_signatures import (
    CARD_KEYS,
    DID_WEB,
    Signer,
    did_document,
    sign,
    signer,
    verify,
    web_did,
)

ES256, EDDSA = CardKey.generate("ES256"), CardKey.generate("EdDSA")
HOST = "https://agents.example"
DID = "did:web:agents.example"
PLAIN: dict[str, Any] = {
    "specVersion": "1.0",
    "entries": [{"identifier": "urn:air:agents.example:x", "type": "t", "url": "https://a/é"}],
    "host": {"displayName": "Agents", "identifier": DID},
}


def signed(key: CardKey = ES256, base: str = HOST) -> dict[str, Any]:
    """The catalog, signed at this URL."""
    by = signer(base, [key], f"{base}/.well-known/jwks.json")
    assert by is not None
    return sign(PLAIN, by)


def checked(document: dict[str, Any], key: CardKey = ES256, **more: Any) -> str:
    """Who has signed it."""
    return verify(json.dumps(document).encode(), [key.jwk()], **more)


def test_a_host_signs_in_the_name_of_its_did() -> None:
    made = signed()
    assert made["signature"].keys() == {"signer", "profile", "issuedAt", "jws"}
    assert (made["signature"]["signer"], made["signature"]["profile"]) == (DID, DID_WEB)
    assert checked(made) == DID


def test_another_implementation_verifies_it() -> None:
    """By the text of the specification alone: detached JWS over JCS, the key from the DID."""
    made = signed()
    jws = made["signature"].pop("jws")
    protected, nothing, signature = jws.split(".")
    assert nothing == ""
    header = json.loads(base64.urlsafe_b64decode(protected + "=="))
    document = did_document(DID, [EDDSA, ES256])
    (method,) = document["verificationMethod"]
    assert header == {"alg": "ES256", "kid": method["id"], "typ": "ai-catalog+jws"}
    assert document["assertionMethod"] == [method["id"]]
    assert method["controller"] == document["id"] == DID
    assert "d" not in method["publicKeyJwk"]
    payload = base64.urlsafe_b64encode(rfc8785.dumps(made)).rstrip(b"=")
    key = jwk.ECKey.import_key(method["publicKeyJwk"])
    content = protected.encode() + b"." + payload
    raw = base64.urlsafe_b64decode(signature + "==")
    assert JWSRegistry.algorithms["ES256"].verify(content, raw, key)


@pytest.mark.parametrize(
    "base",
    [
        *("http://agents.example", "https://agents.example:8443", "https://agents.example/desk"),
        *("https://127.0.0.1", "https://localhost", "https://desk"),
    ],
)
def test_without_a_did_the_card_keys_sign_for_the_address(base: str) -> None:
    assert web_did(base) == ""
    made = signed(base=base)
    assert (made["signature"]["signer"], made["signature"]["profile"]) == (base, CARD_KEYS)
    assert checked(made) == base


def test_only_keys_for_es256_sign_for_a_did() -> None:
    both = signer(HOST, [EDDSA, ES256])
    assert both is not None and both.key is ES256
    assert signed(EDDSA)["signature"]["profile"] == CARD_KEYS
    assert checked(signed(EDDSA), EDDSA) == HOST
    assert signer(HOST, []) is None


def test_what_the_signature_does_not_cover() -> None:
    assert checked(signed() | {"additionalSignatures": ["anything"]}) == DID


def edit(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """A signed catalog that was changed."""
    made = json.loads(json.dumps(signed()))
    change(made)
    return dict(made)


def header(**changes: Any) -> dict[str, Any]:
    """A catalog whose signature is valid, but has other headers."""
    made = signed()
    about = {key: value for key, value in made["signature"].items() if key != "jws"}
    kid = f"{DID}#{ES256.kid}"
    found = {"alg": "ES256", "kid": kid, "typ": "ai-catalog+jws"} | changes
    protected = base64.urlsafe_b64encode(json.dumps(found).encode()).rstrip(b"=")
    payload = base64.urlsafe_b64encode(rfc8785.dumps({**PLAIN, "signature": about})).rstrip(b"=")
    raw = ES256.sign(protected + b"." + payload)
    jws = f"{protected.decode()}..{base64.urlsafe_b64encode(raw).rstrip(b'=').decode()}"
    return {**PLAIN, "signature": about | {"jws": jws}}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (PLAIN, "is not signed"),
        (PLAIN | {"signature": "e30..AAAA"}, "is not signed"),
        (edit(lambda d: d["entries"][0].update(url="https://evil")), "was changed"),
        (edit(lambda d: d.update(more=1)), "was changed"),
        (edit(lambda d: d["host"].update(displayName="Other")), "was changed"),
        (edit(lambda d: d["signature"].update(signer="did:web:evil")), "does not belong"),
        (edit(lambda d: d["signature"].update(issuedAt="2020-01-01T00:00:00Z")), "was changed"),
        (edit(lambda d: d["signature"].update(profile="x509")), "'x509' is not supported"),
        (edit(lambda d: d["signature"].update(profile=CARD_KEYS)), "was changed"),
        (edit(lambda d: d["signature"].update(issuedAt="now")), "time of the signature"),
        (edit(lambda d: d["signature"].update(issuedAt=7)), "time of the signature"),
        (edit(lambda d: d["signature"].update(jws="a.b.c")), "not base64url"),
        (edit(lambda d: d["signature"].update(jws=7)), "base64url of a JSON object"),
        (header(typ="ai-catalog-trust-manifest+jws"), "not that of a catalog"),
        (header(typ="JOSE"), "not that of a catalog"),
        (header(alg="none"), "alg 'none' is not accepted"),
        (header(alg="EdDSA"), "only ES256"),
        (header(jku="https://evil/keys"), "only ES256, and no jku"),
        (header(b64=False), "unknown critical headers"),
        (header(jwk=ES256.jwk()), "contains its own key"),
        (header(kid=f"did:web:evil#{ES256.kid}"), "does not belong"),
        (header(kid=DID), "does not belong"),
    ],
)
def test_a_signature_is_refused(document: dict[str, Any], text: str) -> None:
    with pytest.raises(Unverified, match=text):
        checked(document)


def test_the_forged_headers_above_fail_for_what_they_say_only() -> None:
    assert checked(header()) == DID


def test_another_key_is_not_trusted() -> None:
    with pytest.raises(Unverified, match="no trusted key"):
        checked(signed(), CardKey.generate())
    by_name = {f"did:web:other.example#{ES256.kid}": ES256}
    with pytest.raises(Unverified, match="no trusted key"):
        verify(json.dumps(signed()).encode(), by_name)


def test_a_member_that_appears_twice_is_refused() -> None:
    text = json.dumps(signed())
    with pytest.raises(Unverified, match="appears twice"):
        verify(text.replace("{", '{"host": {}, ', 1).encode(), [ES256.jwk()])


def test_a_signature_counts_from_its_time_to_its_end() -> None:
    now = datetime.now(UTC)
    assert checked(signed(), now=now - timedelta(minutes=4)) == DID
    with pytest.raises(Unverified, match="future"):
        checked(signed(), now=now - timedelta(minutes=6))
    by = Signer(DID, DID_WEB, ES256)
    ended = sign(PLAIN, by)
    ended["signature"]["expiresAt"] = (now - timedelta(seconds=1)).isoformat()
    with pytest.raises(Unverified, match="expired"):
        checked(ended)
