"""`dragoman card sign` and `dragoman card verify`: who vouches for a card."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from dragoman.cli import Parser, UsageError, reach
from dragoman.cli.table import plain


def add(card: Parser) -> None:
    """Add both to `card`, which shows one when neither of them comes first."""
    sign = Parser(
        prog=f"{card.prog} sign",
        description="Print a signature of a card, or put it into the card's file.",
        epilog="The whole document is signed. A card that is served is signed by the setting "
        "`card_keys`.",
    )
    sign.add_argument("card", metavar="FILE", help="the card; - is standard input")
    sign.add_argument("--key", required=True, metavar="FILE", help="the private key, PEM or JWK")
    sign.add_argument("--kid", default="", help="what it is called; by default its thumbprint")
    sign.add_argument("--alg", default="", help="for RSA keys: RS256, or PS256")
    sign.add_argument("--jku", default="", metavar="URL", help="where its public half can be found")
    sign.add_argument("--write", action="store_true", help="put the signature into the file")
    sign.set_defaults(run=_sign)

    verify = Parser(
        prog=f"{card.prog} verify", description="Say who has signed a card; 1 if nobody trusted."
    )
    reach.add(verify)
    verify.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="FILE",
        help="a public key to trust, PEM or JWK, whatever the card calls it",
    )
    verify.add_argument("--jwks", default="", metavar="FILE", help="keys to trust, by their kid")
    verify.add_argument(
        "--jku",
        action="append",
        default=[],
        metavar="URL",
        help="trust the keys at and below this address, if the card names it",
    )
    verify.add_argument("--json", action="store_true", help="as JSON, with what is covered")
    verify.set_defaults(run=_verify)
    card.inner = {"sign": sign, "verify": verify}
    card.epilog = "`card sign FILE` signs a card, `card verify URL` says who has signed it."


def _sign(arguments: argparse.Namespace) -> int:
    from dragoman.security.canonical import parse
    from dragoman.security.signing import sign

    name = arguments.card
    try:
        body = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        if arguments.write and name == "-":
            raise UsageError("--write: standard input is no file")
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
        print(json.dumps(signature, indent=2))
        return 0
    others = document.get("signatures") or []
    if not isinstance(others, list):
        raise UsageError("signatures: is not a list")
    document["signatures"] = [*others, signature]
    _replace(Path(name), json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    return 0


def _replace(path: Path, text: str) -> None:
    """Write all of it, or nothing."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text)
        beside.chmod(path.stat().st_mode & 0o777)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UsageError(f"{path}: {error.strerror}") from None


def _verify(arguments: argparse.Namespace) -> int:
    def work() -> int:
        return asyncio.run(_verified(arguments))

    return reach.guarded(work, arguments)


async def _verified(arguments: argparse.Namespace) -> int:
    from dragoman.cli.check import fetch
    from dragoman.security.jwk import Key, key_set
    from dragoman.security.signing import Trust

    if not (arguments.key or arguments.jwks or arguments.jku):
        raise UsageError("whom to trust? give --key, --jwks or --jku")
    named = key_set(Path(arguments.jwks)) if arguments.jwks else {}
    every = [Key.load(Path(file)) for file in arguments.key]
    keys: Any = every or named
    if every and named:
        raise UsageError("--key, --jwks: give one of them")
    trust = Trust(keys, jku=arguments.jku)
    found = await trust.verify((await fetch(arguments)).body)
    if arguments.json:
        print(json.dumps(to_builtins(found), indent=2, ensure_ascii=False))
        return 0
    what = "all of it" if found.form == "whole" else "its fields of A2A 1.0"
    print(
        f"{plain(found.document.get('name'))}: signed by {plain(found.kid)} ({found.alg}), {what}"
    )
    return 0
