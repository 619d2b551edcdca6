"""Signatures of webhooks: those of the specification's own libraries, and ours."""

from __future__ import annotations

import base64
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.webhooks import signature
from dragoman.webhooks.signature import MOST, SigningKey, sign, verify
from tests.harness.scale import examples

ID, AT, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
# from the test suites of github.com/standard-webhooks/standard-webhooks
VECTORS = {
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    "whsk_VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk=": (
        "v1a,tQ9V2XOqn7jL/DQenEFpqIugdBVtiMmER5mhSkXBNwM0mkATuDe6KYYUuxqtaiHeYGb7KaaBRdM5WqyeFiL8Ag=="
    ),
}
OTHER = "v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc="


def b64(raw: bytes) -> str:
    """Bytes as keys write them."""
    return base64.b64encode(raw).decode()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the extra."""
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)


# ---- known answers -------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "expected"), VECTORS.items())
def test_the_answers_of_the_reference_libraries(text: str, expected: str) -> None:
    key = SigningKey.parse(text)
    assert sign([key], ID, AT, BODY) == expected
    assert verify([key], ID, AT, expected, BODY)


def test_a_public_key_verifies_what_its_private_key_signed() -> None:
    (text,) = (text for text in VECTORS if text.startswith("whsk_"))
    public = SigningKey.parse(text).public()
    assert public.text.startswith("whpk_")
    assert verify([SigningKey.parse(public.text)], ID, AT, VECTORS[text], BODY)


def test_all_keys_sign_and_any_verifies() -> None:
    keys = [SigningKey.parse(text) for text in VECTORS]
    header = sign(keys, ID, AT, BODY)
    assert header == " ".join(VECTORS.values())
    for key in keys:
        assert verify([key], ID, AT, header, BODY)
        assert verify([signature.secret(), key], ID, AT, header, BODY)
    assert not verify([signature.secret(), signature.private()], ID, AT, header, BODY)
    assert not verify([], ID, AT, header, BODY)


def test_a_signature_among_others() -> None:
    for text, right in VECTORS.items():
        header = f"{OTHER} v2,{right[4:]} nonsense v1 v1, v1a, v1,= ,,, v1,é {right} {OTHER}"
        assert verify([SigningKey.parse(text)], ID, AT, header, BODY)


def test_a_signature_counts_only_under_its_own_scheme() -> None:
    for text, right in VECTORS.items():
        scheme, _, bare = right.partition(",")
        for wrong in {"v1", "v1a", "v2", "", "V1"} - {scheme}:
            assert not verify([SigningKey.parse(text)], ID, AT, f"{wrong},{bare}", BODY)
        assert not verify([SigningKey.parse(text)], ID, AT, bare, BODY)


def test_only_so_many_signatures_cost_a_hash() -> None:
    for text, right in VECTORS.items():
        scheme, key = right.partition(",")[0], SigningKey.parse(text)
        wrong = f"{scheme},{b64(bytes(signature.LENGTHS[scheme]))} "
        assert verify([key], ID, AT, wrong * (MOST - 1) + right, BODY)
        assert not verify([key], ID, AT, wrong * MOST + right, BODY)


# ---- what is signed ------------------------------------------------------------------------


@pytest.mark.parametrize("text", VECTORS)
def test_everything_is_signed(text: str) -> None:
    key, header = SigningKey.parse(text), VECTORS[text]
    assert not verify([key], ID + "x", AT, header, BODY)
    assert not verify([key], ID, AT + 1, header, BODY)
    assert not verify([key], ID, AT, header, BODY + b" ")
    assert not verify([key], ID, AT, header[:-8] + "AAAAAAA=", BODY)
    assert not verify([key], ID, AT, "", BODY)


@settings(max_examples=examples(50), deadline=None)
@given(
    keys=st.lists(st.sampled_from([signature.secret(), signature.private()]), min_size=1),
    id=st.from_regex(r"[!-\-/-~]{1,40}", fullmatch=True),
    timestamp=st.integers(0, 2**40),
    body=st.binary(),
    change=st.binary(min_size=1),
)
def test_what_is_signed_verifies_and_nothing_else(
    keys: list[SigningKey], id: str, timestamp: int, body: bytes, change: bytes
) -> None:
    header = sign(keys, id, timestamp, body)
    assert verify(keys, id, timestamp, header, body)
    assert not verify(keys, id, timestamp, header, body + change)
    assert not verify([signature.secret()], id, timestamp, header, body)


@given(header=st.text(), id=st.text())
def test_no_header_is_too_odd(header: str, id: str) -> None:
    assert not verify([SigningKey.parse(text) for text in VECTORS], id, AT, header, BODY)


@pytest.mark.parametrize("id", ["", "a.b", "a b", "a\n", "é", "x" * 9 + "\x7f"])
def test_ids_that_could_be_read_in_two_ways_are_not_signed(id: str) -> None:
    with pytest.raises(ValueError, match="webhook id"):
        sign([signature.secret()], id, AT, BODY)


def test_who_cannot_sign() -> None:
    with pytest.raises(ValueError, match="whpk_ key is public"):
        sign([signature.private().public()], ID, AT, BODY)
    with pytest.raises(ValueError, match="no signing key"):
        sign([], ID, AT, BODY)


# ---- keys ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [signature.secret, signature.private])
def test_new_keys(make: type[SigningKey]) -> None:
    key = make()
    assert SigningKey.parse(key.text) == key
    assert SigningKey.parse(f" {key.text.rstrip('=')}\n") == key  # as people copy them
    assert make() != key


@pytest.mark.parametrize("size", [24, 32, 64])
def test_lengths_of_a_secret(size: int) -> None:
    assert SigningKey.parse("whsec_" + b64(bytes(size))).raw == bytes(size)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must start with whsec_"),
        ("c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "must start with whsec_"),
        ("whsex_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "must start with whsec_"),
        ("whsec_*ZWNyZXRzZWNyZXRzZWNyZXRzZWNyZXRz", "whsec_ in a signing key must be base64"),
        ("whsec_é", "whsec_ in a signing key must be base64"),
        ("whsec_", "24 to 64 bytes, not 0"),
        ("whsec_" + b64(b"s" * 23), "24 to 64 bytes, not 23"),
        ("whsec_" + b64(b"s" * 65), "24 to 64 bytes, not 65"),
        ("whsk_" + b64(b"s" * 31), "a whsk_ key must have 32 bytes, not 31"),
        ("whsk_" + b64(b"s" * 64), "do not match"),
        ("whpk_" + b64(b"s" * 64), "a whpk_ key must have 32 bytes, not 64"),
    ],
)
def test_bad_keys_are_named_but_not_shown(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        SigningKey.parse(text)
    tail = text.partition("_")[2]
    assert len(tail) < 5 or tail[:8] not in str(caught.value)


def test_a_private_key_with_its_public_half_behind_it() -> None:
    key = signature.private()
    assert SigningKey.parse("whsk_" + b64(key.raw + key.public().raw)) == key


def test_a_secret_has_no_public_half() -> None:
    with pytest.raises(ValueError, match="no public key"):
        signature.secret().public()
    public = signature.private().public()
    assert public.public() == public


def test_no_secret_is_shown() -> None:
    for key in (signature.secret(), signature.private()):
        for shown in (repr(key), str(key), f"{[key]}"):
            assert key.text not in shown
            assert b64(key.raw)[:6] not in shown
            assert repr(key.raw) not in shown
    public = signature.private().public()
    assert public.text in repr(public)


# ---- without the extra ---------------------------------------------------------------------


@pytest.mark.usefixtures("bare")
def test_without_the_extra_the_error_says_what_to_install() -> None:
    for text in (f"whsk_{b64(bytes(32))}", f"whsk_{b64(bytes(64))}", f"whpk_{b64(bytes(32))}"):
        with pytest.raises(ImportError, match=r"pip install 'dragoman\[crypto\]'"):
            SigningKey.parse(text)
    with pytest.raises(ImportError, match="crypto"):
        signature.private()


@pytest.mark.usefixtures("bare")
def test_secrets_need_no_extra() -> None:
    key = SigningKey.parse(signature.secret().text)
    assert verify([key], ID, AT, sign([key], ID, AT, BODY), BODY)
