"""`dragoman card sign` and `verify`, as processes."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from joserfc import jwk

from dragoman import App
from dragoman.dialects.v1_0 import encode
from dragoman.security.card_keys import CardKey
from tests.cli.test_agent_commands import agent, run
from tests.harness.server import serving


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A card, a key and its halves."""
    key = jwk.ECKey.generate_key("P-256")
    (tmp_path / "key.pem").write_bytes(key.as_pem(private=True))
    (tmp_path / "pub.pem").write_bytes(key.as_pem(private=False))
    halves = {"keys": [key.as_dict(private=False) | {"kid": "one"}]}
    (tmp_path / "jwks.json").write_text(json.dumps(halves))
    (tmp_path / "other.pem").write_bytes(jwk.ECKey.generate_key("P-256").as_pem(private=False))
    (tmp_path / "card.json").write_bytes(encode(agent().card("https://a.example")))
    return tmp_path


async def test_sign_and_verify_a_file(folder: Path) -> None:
    card, key = str(folder / "card.json"), str(folder / "key.pem")
    before = json.loads((folder / "card.json").read_text())
    status, out, err = await run("card", "sign", card, "--key", key, "--kid", "one")
    assert (status, err, set(json.loads(out))) == (0, "", {"protected", "signature"})
    assert json.loads((folder / "card.json").read_text()) == before
    for _ in range(2):
        assert await run("card", "sign", card, "--key", key, "--kid", "one", "--write") == (
            0,
            "",
            "",
        )
    after = json.loads((folder / "card.json").read_text())
    assert len(after.pop("signatures")) == 2
    assert after == before
    good = (0, "Echo: signed by one (ES256), the whole document\n", "")
    assert await run("card", "verify", card, "--key", str(folder / "pub.pem")) == good
    assert await run("card", "verify", card, "--jwks", str(folder / "jwks.json")) == good
    status, out, err = await run("card", "verify", card, "--key", str(folder / "other.pem"))
    assert (status, out) == (1, "")
    assert "the key 'one' did not make it, or the card was changed" in err
    assert (await run("card", card))[0] == 0  # which is shown as ever


async def test_verify_what_is_served(folder: Path) -> None:
    served = App(agent(), card_keys=(str(folder / "key.pem"),))
    async with serving(served) as url:
        status, out, _ = await run(
            "card", "verify", url, "--key", str(folder / "pub.pem"), "--json"
        )
        assert (status, json.loads(out)["form"]) == (0, "whole")
    async with serving(App(agent())) as url:
        status, _, err = await run("card", "verify", url, "--key", str(folder / "pub.pem"))
        assert (status, err) == (1, "dragoman: the card is not signed\n")


async def test_mistakes(folder: Path) -> None:
    card, key = str(folder / "card.json"), str(folder / "key.pem")
    (folder / "bad.json").write_text('{"name": ""}')
    for words, text in (
        (("sign", card, "--key", str(folder / "pub.pem")), "can verify, but not sign"),
        (("sign", card, "--key", str(folder / "none.pem")), "No such file"),
        (("sign", str(folder / "bad.json"), "--key", key), "name: must not be empty"),
        (("sign", card), "--key"),
        (("sign", card, "--key", key, "--alg", "HS256"), "cannot be used with 'HS256'"),
        (("verify", card), "no trusted keys:"),
        (("verify", card, "--key", str(folder / "none.pem")), "no such file"),
        (("verify", card, "--key", card), "EC, OKP or RSA"),
    ):
        status, out, err = await run("card", *words)
        assert (status, out) == (2, ""), words
        assert text in err


# ---- keys ----------------------------------------------------------------------------------


@pytest.mark.parametrize("alg", ["", "ES384", "EdDSA", "RS256", "PS256"])
async def test_keygen(alg: str, tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    status, out, err = await run("card", "keygen", str(file), *(("--alg", alg) if alg else ()))
    assert (status, err) == (0, "")
    shown, made = json.loads(out), CardKey.load(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (shown["alg"], shown["kid"]) == (alg or "ES256", made.thumbprint)
    assert CardKey.load(shown).thumbprint == made.thumbprint
    assert made.private
    assert not CardKey.load(shown).private
    before = file.read_bytes()
    status, out, err = await run("card", "keygen", str(file))
    assert (status, out) == (2, "")
    assert "the file exists; it was not overwritten" in err
    assert file.read_bytes() == before


async def test_keygen_of_no_kind(tmp_path: Path) -> None:
    status, _, err = await run("card", "keygen", str(tmp_path / "key"), "--alg", "HS256")
    assert (status, "--alg: alg 'HS256': must be one of" in err) == (2, True)
    assert not list(tmp_path.iterdir())


# ---- pins ----------------------------------------------------------------------------------


async def test_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one, two = CardKey.generate("ES256"), CardKey.generate("ES256")
    async with serving(App(agent(), sign=[one])) as url:
        assert await run("card", "trust", "--list") == (0, "", "")
        status, out, err = await run("card", "trust", url)
        assert (status, out.split()[:2]) == (0, [url, one.thumbprint])
        assert (out.count("\n"), err) == (1, "")  # it is told once
        assert (await run("card", "trust", "--list"))[1] == out
        assert (await run("card", url, "--pin"))[::2] == (0, "")
        assert (await run("send", url, "hello", "--pin"))[:2] == (0, "hello \n")
    async with serving(App(agent(), sign=[two]), port=int(url.rpartition(":")[2])):
        for words in (
            ("card", url, "--pin"),
            ("send", url, "hi", "--pin"),
            ("card", "trust", url),
            ("chat", url, "--pin"),
        ):
            status, out, err = await run(*words)
            assert (status, out) == (1, ""), words
            assert f"dragoman card trust --forget {url}" in err
            assert one.thumbprint in err
            assert two.thumbprint in err
        assert (await run("send", url, "hello"))[0] == 0  # who does not ask takes it
        assert await run("card", "trust", "--forget", url) == (0, "", "")
        assert (await run("send", url, "hello", "--pin"))[:2] == (0, "hello \n")


async def test_mistakes_with_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    status, _, err = await run("card", "trust", "--forget", "https://a.example")
    assert (status, err) == (1, "dragoman: https://a.example has no pinned keys\n")
    for words in (("trust",), ("trust", "x.example", "--list")):
        status, _, err = await run("card", *words)
        assert (status, "give a URL, --list, or --forget" in err) == (2, True)
    status, _, err = await run("card", "127.0.0.1:1", "--raw", "--pin")
    assert (status, "--pin: cannot be used with --check or --raw" in err) == (2, True)
    (tmp_path / "dragoman").mkdir(exist_ok=True)
    (tmp_path / "dragoman" / "pins.json").write_text("{")
    status, _, err = await run("card", "trust", "--list")
    assert (status, "pins.json: is not a valid file of pinned keys" in err) == (2, True)
