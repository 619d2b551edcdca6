"""`dragoman card sign` and `verify`, as processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from joserfc import jwk

from dragoman import App
from dragoman.dialects.v1_0 import encode
from tests.cli.test_talk import agent, run
from tests.serving import serving


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
    good = (0, "Echo: signed by one (ES256), all of it\n", "")
    assert await run("card", "verify", card, "--key", str(folder / "pub.pem")) == good
    assert await run("card", "verify", card, "--jwks", str(folder / "jwks.json")) == good
    status, out, err = await run("card", "verify", card, "--key", str(folder / "other.pem"))
    assert (status, out) == (1, "")
    assert "not by the key 'one', or the card was changed" in err
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
        (("sign", card, "--key", str(folder / "pub.pem")), "does not sign"),
        (("sign", card, "--key", str(folder / "none.pem")), "No such file"),
        (("sign", str(folder / "bad.json"), "--key", key), "name: must not be empty"),
        (("sign", card), "--key"),
        (("sign", card, "--key", key, "--alg", "HS256"), "cannot be used with 'HS256'"),
        (("verify", card), "whom to trust?"),
        (("verify", card, "--key", str(folder / "none.pem")), "no such file"),
        (("verify", card, "--key", card), "EC, OKP or RSA"),
    ):
        status, out, err = await run("card", *words)
        assert (status, out) == (2, ""), words
        assert text in err
