"""`dragoman card keygen`, `sign`, `verify` and `trust`: creates keys, signs and verifies cards, and
pins keys."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from dragoman.cli import Parser, UsageError, connect_options, examples
from dragoman.cli.terminal_format import json_text, plain

if TYPE_CHECKING:
    from dragoman.client.trusted_keys import PinnedKeys

NOT_SENT = (
    *("api_key", "user", "client_id", "client_secret", "issuer", "resource", "cert"),
    *("trust", "allow", "pin", "binding"),
)
"""The connection options that `verify` does not have, because it only fetches the card."""


def add(card: Parser) -> None:
    """Add the commands to `card`, which shows a card if the first word names none of them."""
    keygen = Parser(
        prog=f"{card.prog} keygen",
        description="Create a private key that signs cards, and print its public key as a JWK.",
        **examples("card keygen private.pem", "card keygen private.pem --alg EdDSA"),
    )
    keygen.add_argument("file", metavar="FILE", help="write the private key to this file (PEM)")
    keygen.add_argument(
        "--alg",
        default="ES256",
        help="the algorithm: ES256, ES384, EdDSA, RS256 or PS256 (default: ES256)",
    )
    keygen.set_defaults(run=_keygen)

    sign = Parser(
        prog=f"{card.prog} sign",
        description="Sign a card; print the signature or add it to the file.",
        **examples(
            "card sign card.json --key private.pem",
            "card sign card.json --key private.pem --write",
            more="The signature covers the whole document. To sign the card that an agent serves, "
            "use\nthe setting `card_keys`.",
        ),
    )
    sign.add_argument("card", metavar="FILE", help="the card, a JSON file; - reads standard input")
    sign.add_argument(
        "--key", required=True, metavar="FILE", help="the private key, PEM or JWK (required)"
    )
    sign.add_argument(
        "--kid", default="", help="the key id in the signature (default: the thumbprint of the key)"
    )
    sign.add_argument(
        "--alg", default="", help="the algorithm for an RSA key: RS256 or PS256 (default: RS256)"
    )
    sign.add_argument(
        "--jku",
        default="",
        metavar="URL",
        help="the URL of the public keys, for the signature's `jku` header (default: none)",
    )
    sign.add_argument("--write", action="store_true", help="add the signature to the file")
    sign.set_defaults(run=_sign)

    verify = Parser(
        prog=f"{card.prog} verify",
        description="Verify the signatures of a card; exit with 1 if no trusted key signed it.",
        **examples(
            "card verify https://agent.example --key public.pem",
            "card verify card.json --jwks keys.json --json",
        ),
    )
    connect_options.add(verify, without=NOT_SENT)
    verify.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="FILE",
        help="trust this public key (PEM or JWK), even if the card names another key id "
        "(default: none)",
    )
    verify.add_argument(
        "--jwks",
        default="",
        metavar="FILE",
        help="trust the keys in this JWK set, by key id (default: none)",
    )
    verify.add_argument(
        "--jku",
        action="append",
        default=[],
        metavar="URL",
        help="trust keys at this URL or below it, if the card names it (default: none)",
    )
    verify.add_argument(
        "--json", action="store_true", help="print JSON with the signed part of the card"
    )
    verify.set_defaults(run=_verify)

    trust = Parser(
        prog=f"{card.prog} trust",
        description="Pin the keys that sign an agent's card now, for --pin; or list pinned keys.",
        **examples(
            "card trust https://agent.example",
            "card trust --list",
            "card trust --forget https://agent.example",
        ),
    )
    connect_options.add(trust, needed=False, without=("pin", "binding"))
    trust.add_argument("--list", action="store_true", help="list all pinned keys")
    trust.add_argument(
        "--forget",
        default="",
        metavar="ORIGIN",
        help="delete the pinned keys of this origin (default: none)",
    )
    trust.set_defaults(run=_trust, shows_pins=False)  # it prints them itself
    card.inner = {"keygen": keygen, "sign": sign, "verify": verify, "trust": trust}
    card.epilog = (
        "`card keygen FILE` creates a key, `card sign FILE` signs a card, `card verify URL` "
        "verifies\nits signatures, `card trust URL` pins its keys; each has its own --help.\n\n"
        f"{card.epilog}"
    )


def _keygen(arguments: argparse.Namespace) -> int:
    from dragoman.security.card_keys import CardKey

    path = Path(arguments.file)
    try:
        key = CardKey.generate(arguments.alg)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(key.pem())
    except FileExistsError:
        raise UsageError(f"{path}: the file exists; it was not overwritten") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--alg: {error}") from None
    print(json_text(json.dumps(key.jwk(), indent=2)))
    return 0


def _trust(arguments: argparse.Namespace) -> int:
    given = [bool(arguments.url), arguments.list, bool(arguments.forget)]
    if sum(given) != 1:
        raise UsageError("card trust: give a URL, --list, or --forget ORIGIN")

    def work() -> int:
        pins = connect_options.pins(show=False)
        if arguments.forget:
            if pins.forget(arguments.forget):
                return 0
            return connect_options.say(f"{plain(arguments.forget)} has no pinned keys", 1)
        if arguments.url:
            arguments.pin = True
            where = asyncio.run(_pinned(arguments))
            _show({where: pins.known()[where]})
        else:
            _show(pins.known())
        return 0

    return connect_options.guarded(work, arguments)


async def _pinned(arguments: argparse.Namespace) -> str:
    """Let the client pin the keys of an agent, and return the agent's origin."""
    from dragoman.client.discovery import address
    from dragoman.client.transport import origin

    async with AsyncExitStack() as stack:
        with connect_options.waiting(connect_options.FETCHING):
            await stack.enter_async_context(connect_options.client(arguments))
        return origin(address(arguments.url))


def _show(pinned: PinnedKeys) -> None:
    for where, pins in sorted(pinned.items()):
        for name, pin in pins.items():
            print(plain(where), plain(name), plain(pin.since))


def _sign(arguments: argparse.Namespace) -> int:
    from dragoman.security.canonical_card import parse
    from dragoman.security.card_signatures import sign

    name = arguments.card
    try:
        body = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        if arguments.write and name == "-":
            raise UsageError("--write: needs a file, not standard input")
        document = parse(body)
        made = sign(
            document,
            Path(arguments.key),
            kid=arguments.kid,
            jku=arguments.jku,
            alg=arguments.alg,
        )
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(plain(error)) from None
    signature = to_builtins(made)
    if not arguments.write:
        print(json_text(json.dumps(signature, indent=2)))
        return 0
    others = document.get("signatures") or []
    if not isinstance(others, list):
        raise UsageError("signatures: must be a list")
    document["signatures"] = [*others, signature]
    _replace(Path(name), json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    return 0


def _replace(path: Path, text: str) -> None:
    """Replace the content of a file atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.chmod(path.stat().st_mode & 0o777)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"{path}: {error.strerror}") from None


def _verify(arguments: argparse.Namespace) -> int:
    def work() -> int:
        return asyncio.run(_verified(arguments))

    return connect_options.guarded(work, arguments)


async def _verified(arguments: argparse.Namespace) -> int:
    from dragoman.cli.card_check import fetch
    from dragoman.security.card_keys import CardKey, key_set
    from dragoman.security.card_signatures import Trust

    if not (arguments.key or arguments.jwks or arguments.jku):
        raise UsageError("no trusted keys: give --key, --jwks or --jku")
    named = key_set(Path(arguments.jwks)) if arguments.jwks else {}
    every = [CardKey.load(Path(file)) for file in arguments.key]
    keys: Any = every or named
    if every and named:
        raise UsageError("--key, --jwks: give only one of the two")
    trust = Trust(keys, jku=arguments.jku)
    found = await trust.verify((await fetch(arguments)).body)
    if arguments.json:
        print(json_text(json.dumps(to_builtins(found), indent=2, ensure_ascii=False)))
        return 0
    what = "the whole document" if found.form == "whole" else "its A2A 1.0 fields"
    print(
        f"{plain(found.document.get('name'))}: signed by {plain(found.kid)} ({found.alg}), {what}"
    )
    return 0
