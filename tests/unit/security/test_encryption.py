"""Sealed secrets: only with their key, only at their place, and plain before there was one."""

from __future__ import annotations

import base64
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.security import encryption
from dragoman.security.encryption import Encryption, Undecryptable

ABOUT = "task-1/webhook-1"
OLD, NEW = encryption.key(), encryption.key()
TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["sealed:", "sealed:v0:x", "sealed:v1:", "sealed:v1:00000000:AAAA", "sealed:v9:x"]
)


@given(text=TEXT, about=TEXT, keys=st.sampled_from([(), (OLD,), (NEW, OLD)]))
def test_what_is_sealed_opens_as_it_was(text: str, about: str, keys: tuple[str, ...]) -> None:
    here = Encryption(keys)
    assert here.decrypt(here.encrypt(text, about), about) == text


def test_a_sealed_text_shows_nothing() -> None:
    sealed = Encryption([OLD]).encrypt("hush", ABOUT)
    assert sealed.startswith("sealed:v1:")
    assert "hush" not in sealed
    assert b"hush" not in base64.b64decode(sealed.rpartition(":")[2])
    assert Encryption([OLD]).encrypt("hush", ABOUT) != sealed  # equal secrets do not look equal


def test_the_first_key_seals_and_all_open() -> None:
    sealed = Encryption([OLD]).encrypt("hush", ABOUT)
    both = Encryption([NEW, OLD])
    assert both.decrypt(sealed, ABOUT) == "hush"
    again = both.encrypt("hush", ABOUT)
    assert Encryption([NEW]).decrypt(again, ABOUT) == "hush"
    with pytest.raises(Undecryptable, match="not among the 1 configured"):
        Encryption([OLD]).decrypt(again, ABOUT)


def test_it_cannot_be_moved() -> None:
    here = Encryption([OLD])
    with pytest.raises(Undecryptable, match="moved from another place"):
        here.decrypt(here.encrypt("hush", ABOUT), "task-2/webhook-1")


def test_it_cannot_be_changed() -> None:
    here = Encryption([OLD])
    head, _, rest = here.encrypt("hush", ABOUT).rpartition(":")
    raw = base64.b64decode(rest)
    for place in range(len(raw)):
        changed = bytes([*raw[:place], raw[place] ^ 1, *raw[place + 1 :]])
        with pytest.raises(Undecryptable, match="changed"):
            here.decrypt(f"{head}:{base64.b64encode(changed).decode()}", ABOUT)


@pytest.mark.parametrize("rest", ["", "A", "*", "é", "AAAA", "A" * 16, "A" * 40])
def test_it_cannot_be_cut_or_filled_with_nonsense(rest: str) -> None:
    here = Encryption([OLD])
    head = here.encrypt("hush", ABOUT).rpartition(":")[0]
    with pytest.raises(Undecryptable):
        here.decrypt(f"{head}:{rest}", ABOUT)


def test_another_key_under_the_same_name_opens_nothing() -> None:
    sealed = Encryption([OLD]).encrypt("hush", ABOUT)
    name = Encryption([NEW]).encrypt("", ABOUT).split(":")[2]
    swapped = ":".join(["sealed", "v1", name, sealed.rpartition(":")[2]])
    with pytest.raises(Undecryptable, match="changed"):
        Encryption([NEW]).decrypt(swapped, ABOUT)


def test_what_was_stored_before_there_was_a_key() -> None:
    stored = Encryption().encrypt("hush", ABOUT)
    assert stored == "hush"
    assert Encryption([OLD]).decrypt(stored, ABOUT) == "hush"


def test_a_secret_that_looks_sealed_survives_a_key_that_comes_later() -> None:
    looks = Encryption([NEW]).encrypt("x", ABOUT)
    assert Encryption([OLD]).decrypt(Encryption().encrypt(looks, ABOUT), ABOUT) == looks


def test_without_its_key_the_error_says_so_and_no_more() -> None:
    sealed = Encryption([OLD]).encrypt("hush", ABOUT)
    with pytest.raises(Undecryptable, match=r"key .* is missing") as caught:
        Encryption().decrypt(sealed, ABOUT)
    assert sealed.rpartition(":")[2] not in str(caught.value)


def test_a_form_of_later_times_is_not_taken_for_plain_text() -> None:
    for here in (Encryption(), Encryption([OLD])):
        with pytest.raises(Undecryptable, match="unknown format"):
            here.decrypt("sealed:v2:whatever", ABOUT)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "encryption key 2 must have 32 bytes, not 0"),
        (base64.b64encode(b"s" * 31).decode(), "encryption key 2 must have 32 bytes, not 31"),
        ("secret*secret", "encryption key 2 must be base64"),
        ("schlüssel", "encryption key 2 must be base64"),
    ],
)
def test_bad_keys_are_named_but_not_shown(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        Encryption([OLD, text])
    assert not text or text not in str(caught.value)


def test_no_key_is_shown() -> None:
    shown = repr(Encryption([OLD, NEW]))
    for key in (OLD, NEW):
        assert key[:6] not in shown
        assert base64.b64decode(key).hex()[:8] not in shown


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = Encryption([OLD]).encrypt("hush", ABOUT)
    for name in ("cryptography.hazmat.primitives.ciphers.aead", "cryptography.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'dragoman\[crypto\]'"):
        Encryption([OLD])
    assert Encryption().decrypt(Encryption().encrypt("hush", ABOUT), ABOUT) == "hush"
    with pytest.raises(Undecryptable, match="missing"):
        Encryption().decrypt(sealed, ABOUT)
