"""The arguments of `dragoman registry`, which runs a registry of agents, or uses one."""

from __future__ import annotations

import argparse
from typing import Any

from dragoman.cli import VALUES, UsageError, _add_settings, examples
from dragoman.cli.terminal_format import duration

STORE = "sqlite:///agents.db"
PORT = 8900
SETTINGS = ("host", "url", "cert", "key", "ca", "log_level", "log_format", "access_log")
"""The settings that `registry serve` has options for, beside the port."""
STATES = ("pending", "approved", "changed", "rejected", "removed")


def add(commands: Any) -> None:
    """Add `registry` to the commands."""
    registry = commands.add_parser(
        "registry",
        help="run a registry of agents, or search one",
        description="Run a registry of agents, manage its entries, and search it.",
        **examples(
            "registry serve --store sqlite:///agents.db",
            "registry add https://flights.example --approve --alias flight-booking",
            'registry search "book a flight to Lisbon"',
        ),
    )
    inner = registry.add_subparsers(required=True, metavar="command")
    _serve(inner)

    one = _command(
        inner,
        "add",
        "add the agent at an address, also one that was rejected or removed",
        "https://flights.example --approve --alias flight-booking",
        "http://10.0.0.7:8000 --scope travel --query 'Fly me to Rome'",
    )
    one.add_argument("url", metavar="URL", help="the URL of the agent, or of its card")
    one.add_argument("--approve", action="store_true", help="approve its card at once")
    _alias(one)
    one.add_argument(
        "--scope",
        action="append",
        default=[],
        metavar="SCOPE",
        help="only callers with this scope see it; can be repeated, and all are needed (default: "
        "everybody sees it)",
    )
    one.add_argument(
        "--identity",
        action="append",
        default=[],
        metavar="NAME",
        help="this caller sees it, too; can be repeated (default: everybody sees it)",
    )
    one.add_argument(
        "--query",
        action="append",
        default=[],
        metavar="WORDS",
        help="a request that it is for, in the words of users; can be repeated (default: none)",
    )
    _allow(one, "the card may name this private host or network, beside that of the URL")

    one = _command(
        inner,
        "import-catalog",
        "import the agents of a foreign catalog; each waits for approval",
        "https://partner.example",
        "https://partner.example/agents.json --json",
    )
    one.add_argument(
        "url",
        metavar="URL",
        help="the host of the catalog, whose well-known paths are read, or the URL of the catalog",
    )
    _allow(one, "agents in the catalog may be at this private host or network")

    one = _command(inner, "list", "list entries", "", "--state pending --json")
    one.add_argument(
        "--state",
        choices=STATES,
        metavar="STATE",
        help=f"list only entries in this state: {', '.join(STATES)} (default: all)",
    )

    one = _command(
        inner,
        "show",
        "show an entry, and what has happened to it",
        "flight-booking",
        "flight-booking --json",
    )
    _name(one)
    one = _command(
        inner,
        "diff",
        "show how the new card of an agent differs from the approved one",
        "flight-booking",
        "flight-booking --registry https://agents.example",
    )
    _name(one)
    one = _command(
        inner,
        "approve",
        "approve the newest card of an entry",
        "flight-booking",
        "urn:air:flights.example:a2a:agent --alias flight-booking",
    )
    _name(one)
    _alias(one)
    one.add_argument(
        "--digest",
        default="",
        metavar="DIGEST",
        help="approve only the card with this digest, which `registry diff` prints (default: the "
        "newest card)",
    )
    one = _command(
        inner,
        "reject",
        "reject an entry, or the change of its card",
        "flight-booking",
        "urn:air:flights.example:a2a:agent",
    )
    _name(one)
    one = _command(
        inner,
        "remove",
        "remove an entry, until it is added again",
        "flight-booking",
        "flight-booking --registry https://agents.example --bearer @token",
    )
    _name(one)
    one = _command(
        inner,
        "refresh",
        "fetch the card of an agent now",
        "flight-booking",
        "flight-booking --json",
    )
    _name(one)
    _allow(one, "the card may name this private host or network")

    one = _command(
        inner,
        "search",
        "look for approved agents",
        '"book a flight to Lisbon"',
        "--tag travel --trust signed --json",
    )
    one.add_argument("text", nargs="?", default="", metavar="WORDS", help="what to look for")
    for name, what in (
        ("skill", "the skill with this id"),
        ("tag", "a skill with this tag"),
        ("mode", "this media type"),
        ("version", "this version"),
        ("publisher", "an address at this host, or below it"),
    ):
        one.add_argument(
            f"--{name}",
            action="append",
            default=[],
            metavar=name.upper(),
            help=f"only agents with {what}; can be repeated for alternatives (default: all)",
        )
    one.add_argument(
        "--trust",
        choices=("signed", "unsigned"),
        metavar="TRUST",
        help="only agents whose card is signed, or unsigned (default: all)",
    )
    one.add_argument(
        "--healthy", action="store_true", help="only agents whose card could be fetched last time"
    )
    one.add_argument(
        "--limit", type=_positive, default=10, help="the maximum number of agents (default: 10)"
    )

    _command(
        inner,
        "export",
        "print all entries as JSON, one line for each",
        "> agents.jsonl",
        "--registry https://agents.example > agents.jsonl",
        json=False,
    )


def _serve(inner: Any) -> None:
    serve = inner.add_parser(
        "serve",
        help="run the server of a registry",
        description="Run the server of a registry, with the settings of `dragoman serve`.",
        **examples(
            "registry serve",
            "registry serve --store sqlite:///agents.db --allow 10.0.0.0/8 --refresh 15m",
            "registry serve --host 0.0.0.0 --cert server.pem --config registry.toml",
            more="Settings such as `auth` are those of `dragoman serve`; see `dragoman config`.",
        ),
    )
    _store(serve, "the SQLite file of the registry")
    serve.add_argument(
        "--port", type=int, default=PORT, metavar="PORT", help=f"the port (default: {PORT})"
    )
    _add_settings(serve, SETTINGS)
    serve.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="HOST",
        help="announced agents, and what cards name, may be at this private host or network; can "
        "be repeated (default: the setting egress_allow)",
    )
    serve.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="URL",
        help="searches by ARD also ask the registry at this URL; can be repeated (default: none)",
    )
    serve.add_argument(
        "--operator",
        action="append",
        default=[],
        metavar="NAME",
        help="this caller may change entries without the scope registry:write; 'NAME in REALM' if "
        "there are realms; can be repeated (default: only callers with the scope)",
    )
    serve.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="FIELD",
        help="take changes of this field of a card without approval, such as version, or '*' for "
        "all but addresses, keys and security schemes; can be repeated (default: none)",
    )
    serve.add_argument(
        "--refresh",
        type=duration,
        default=3600.0,
        metavar="DURATION",
        help="fetch each card again after this time: 15m, 12h (default: 1h)",
    )
    serve.set_defaults(run=_run, command="serve")


def _command(
    inner: Any, name: str, help: str, *lines: str, json: bool = True
) -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = inner.add_parser(
        name,
        help=help,
        description=f"{help[0].upper()}{help[1:]}.",
        **examples(*(f"registry {name} {each}".rstrip() for each in lines)),
    )
    where = one.add_mutually_exclusive_group()
    _store(where, "the SQLite file of the registry, also while its server runs")
    where.add_argument(
        "--registry", metavar="URL", help="the URL of a registry (default: use --store)"
    )
    one.add_argument(
        *("-H", "--header"),
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="send this header to --registry; can be repeated (default: none)",
    )
    one.add_argument(
        "--bearer",
        default="",
        metavar="TOKEN",
        help="send this bearer token to --registry; @FILE reads it from a file (default: none)",
    )
    one.add_argument(
        "--ca",
        default="",
        metavar="FILE",
        help="trust the certificate authorities in this PEM file (default: those of the system)",
    )
    if json:
        one.add_argument("--json", action="store_true", help="print JSON")
    one.set_defaults(run=_run, command=name, timeout=60.0, trace=False)
    return one


def _store(parser: Any, what: str) -> None:
    parser.add_argument(
        "--store",
        dest="file",
        metavar=VALUES["store"],
        default=STORE,
        help=f"{what} (default: {STORE})",
    )


def _allow(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="HOST",
        help=f"with --store, {what}; can be repeated (default: none)",
    )


def _name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the alias or the URN of the entry")


def _alias(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--alias",
        default="",
        metavar="ALIAS",
        help="a short name for it, such as flight-booking (default: none)",
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be greater than 0")
    return number


def _run(arguments: argparse.Namespace) -> int:
    from dragoman.cli import registry_commands
    from dragoman.registry import RegistryError

    try:
        if arguments.command == "serve":
            return registry_commands.serve(arguments)
        return registry_commands.run(arguments)
    except RegistryError as error:
        raise UsageError(str(error)) from None
