"""The connection options of all commands that call an agent, and the client made from them."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli import UsageError, payment_options
from dragoman.cli.colors import RED, paint
from dragoman.cli.terminal_format import Meter, plain, seconds
from dragoman.model.errors import A2AError

if TYPE_CHECKING:
    from dragoman.client import Client, HTTPTransport, TrustedKeys
    from dragoman.client.credentials import Auth

MISTAKE, SILENT = 2, 3
"""Exit statuses. MISTAKE: wrong arguments. SILENT: the agent is unreachable or too slow."""
TOKENS, PINS = "tokens.json", "pins.json"
FETCHING = "fetching the card"
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def add(
    parser: argparse.ArgumentParser,
    *,
    needed: bool = True,
    several: bool = False,
    without: Collection[str] = (),
) -> None:
    """Add the argument URL and the connection options. With `several`, the command takes several
    URLs, as `urls`. `without` names options that the command does not have, because they would have
    no effect."""
    parser.add_argument(
        "urls" if several else "url",
        metavar="URL",
        nargs="+" if several else None if needed else "?",
        help="the URL of the agent or of its card, or a file that contains the card",
    )
    group = parser.add_argument_group("connection")

    def option(*names: str, **more: Any) -> None:
        name = names[-1].removeprefix("--").replace("-", "_")
        if name in without:
            parser.set_defaults(**{name: more.get("default", False)})
        else:
            group.add_argument(*names, **more)

    option(
        *("-H", "--header"),
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="send this header with every request; can be repeated (default: none)",
    )
    option(
        "--bearer",
        default="",
        metavar="TOKEN",
        help="send this bearer token; @FILE reads it from a file (default: none)",
    )
    option(
        "--api-key",
        default="",
        metavar="KEY",
        help="send this API key where the card says; @FILE reads it from a file (default: none)",
    )
    option(
        "--user",
        default="",
        metavar="NAME:PASSWORD",
        help="log in with HTTP Basic; @FILE reads it from a file (default: no login)",
    )
    option(
        "--client-id",
        default="",
        metavar="ID",
        help="log in with OAuth as this client (default: no login)",
    )
    option(
        "--client-secret",
        default="",
        metavar="SECRET",
        help="the OAuth client secret; @FILE reads it from a file (default: none)",
    )
    option(
        "--issuer",
        default="",
        metavar="URL",
        help="the OAuth server (default: the one that the agent names)",
    )
    option(
        "--resource",
        metavar="URL",
        help="the resource that the OAuth token is for (default: the agent's URL); '' omits it",
    )
    option(
        "--cert",
        default="",
        metavar="FILE",
        help="a client certificate and its key, in one PEM file (default: none)",
    )
    option(
        "--ca",
        default="",
        metavar="FILE",
        help="trust the certificate authorities in this PEM file (default: those of the system)",
    )
    option(
        "--trust",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="also send credentials to this origin, if the card names it; can be repeated "
        "(default: only the card's origin)",
    )
    option(
        "--allow",
        action="append",
        default=[],
        metavar="HOST",
        help="allow a card from a public address to name this private host or network; can be "
        "repeated (default: none)",
    )
    option(
        "--pin",
        action="store_true",
        help="accept only a card that is signed with the keys that signed the agent's first card",
    )
    option("--insecure-http", action="store_true", help="also send credentials over plain HTTP")
    option(
        "--binding",
        metavar="NAME",
        help="use this binding: JSONRPC, HTTP+JSON or GRPC (default: the first on the card that "
        "works)",
    )
    option(
        "--timeout",
        type=seconds,
        default=300.0,
        metavar="DURATION",
        help="time limit of one answer, such as 45s or 5m (default: 5m)",
    )
    option(
        "--trace",
        action="store_true",
        help="print the bytes of each request and response, with secrets masked",
    )


def client(
    arguments: argparse.Namespace,
    *,
    transport: Any = None,
    given: Mapping[str, Any] = {},
    more_headers: Mapping[str, str] = {},
    extensions: Sequence[str] = (),
    **more: Any,
) -> Client:
    """Create the client that the options describe; with another transport, credentials by scheme,
    headers, extensions, or options of the client, if these are given."""
    # imported late, because other commands do not need it
    from dragoman.client import PAUSE_EXTENSIONS, Client
    from dragoman.client.bindings import BINDINGS, supported_bindings
    from dragoman.client.transport import origin
    from dragoman.security.address_policy import Rule

    if not arguments.url:
        raise UsageError("URL: must not be empty")
    if arguments.timeout <= 0:
        raise UsageError("--timeout: must be greater than 0")
    for where in arguments.trust:
        if not origin(where):
            raise UsageError(f"--trust {where}: expected an origin, such as https://agent.example")
    for entry in arguments.allow:
        try:
            Rule.parse(entry)
        except ValueError as error:
            raise UsageError(f"--allow: {error}") from None
    # a stream may take longer than the timeout
    follows = getattr(arguments, "follows", False) or getattr(arguments, "stream", False)
    if arguments.binding and arguments.binding.upper() not in BINDINGS:
        raise UsageError(f"--binding {arguments.binding}: must be one of {', '.join(BINDINGS)}")
    transport = transport or sockets(arguments)
    _show_client_log()
    more.setdefault("answer", payment_options.answerer(arguments))
    return Client.connect(
        arguments.url,
        transport=transport,
        signed_by=pins(show=getattr(arguments, "shows_pins", True)) if arguments.pin else None,
        headers={**headers(arguments), **more_headers},
        auth=given or _auth(arguments),
        trust=arguments.trust,
        allow=arguments.allow,
        insecure=arguments.insecure_http,
        timeout=arguments.timeout,
        deadline=None if follows else arguments.timeout,
        extensions=[*extensions, *PAUSE_EXTENSIONS],
        bindings=[arguments.binding] if arguments.binding else supported_bindings(transport),
        **more,
    )


def sockets(arguments: argparse.Namespace) -> HTTPTransport:
    """Create the transport that the options describe."""
    from dragoman.cli.byte_trace import ByteTrace
    from dragoman.client import HTTPTransport, tls

    try:
        ssl = tls.context(ca=arguments.ca) if arguments.ca else None
    except OSError as error:
        raise UsageError(f"--ca {arguments.ca}: {error.strerror or error}") from None
    return HTTPTransport(ssl=ssl, trace=ByteTrace(_hidden(arguments)) if arguments.trace else None)


def headers(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the headers that the options set."""
    found = {}
    for item in arguments.header:
        name, colon, value = item.partition(":")
        if not colon or not _NAME.fullmatch(name.strip()) or not value.isprintable():
            raise UsageError(f"--header {item!r}: expected NAME: VALUE")
        found[name.strip().lower()] = value.strip()
    if arguments.bearer:
        found["authorization"] = f"Bearer {secret_text(arguments.bearer)}"
    return found


def _auth(arguments: argparse.Namespace) -> Auth:
    from dragoman.client import BasicAuth, ClientCertificate, OAuth, StaticToken, TokenProvider

    found: list[TokenProvider] = []
    if arguments.api_key:
        found.append(StaticToken(secret_text(arguments.api_key)))
    if arguments.user:
        user, colon, password = secret_text(arguments.user).partition(":")
        if not colon:
            raise UsageError("--user: expected NAME:PASSWORD")
        found.append(BasicAuth(user, password))
    if arguments.client_id:
        found.append(
            OAuth(
                arguments.client_id,
                secret_text(arguments.client_secret),
                issuer=arguments.issuer,
                resource=arguments.resource,
                file=state() / TOKENS,
            )
        )
    if arguments.cert:
        if not Path(arguments.cert).is_file():
            raise UsageError(f"--cert {arguments.cert}: no such file")
        found.append(ClientCertificate(arguments.cert, ca=arguments.ca))
    return found


def _hidden(arguments: argparse.Namespace) -> list[str]:
    """Return the secrets in the options, which a trace must mask wherever they appear."""
    given = (arguments.bearer, arguments.api_key, arguments.user, arguments.client_secret)
    found = [secret_text(text) for text in given]
    password = secret_text(arguments.user).partition(":")[2]
    return [*found, password]


def secret_text(text: str) -> str:
    """Return an option's value. @FILE reads it from a file, which keeps it out of the process
    list."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text().strip()
    except OSError as error:
        raise UsageError(f"{text[1:]}: {error.strerror}") from None


def state() -> Path:
    """Return the folder in which the command stores tokens, pinned keys and history."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "dragoman"


def pins(*, show: bool = True) -> TrustedKeys:
    """Return the pinned keys of agents. With `show`, print a line when a key is pinned."""
    from dragoman.client import TrustedKeys

    _show_client_log(pins=show)
    return TrustedKeys(state() / PINS)


class _ClientLogHandler(logging.Handler):
    """Prints what the client logs about cards and, with `pins`, about pinned keys."""

    pins = True

    def emit(self, record: logging.LogRecord) -> None:
        if record.module == "discovery" or (self.pins and record.module == "trusted_keys"):
            say(plain(record.getMessage()), 0)


def _show_client_log(*, pins: bool = True) -> None:
    logger = logging.getLogger("dragoman")
    handler = next((each for each in logger.handlers if isinstance(each, _ClientLogHandler)), None)
    if handler is None:
        logger.addHandler(handler := _ClientLogHandler())
    handler.pins = pins


def run(arguments: argparse.Namespace, work: Callable[[Client, Any], Awaitable[int]]) -> int:
    """Run a function with a client, and return the exit status."""

    async def main() -> int:
        async with AsyncExitStack() as stack:
            with waiting(FETCHING):
                agent = await stack.enter_async_context(client(arguments))
            return await work(agent, arguments)

    return guarded(lambda: asyncio.run(main()), arguments)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show the elapsed seconds on the terminal while the block runs, from the first second on."""
    if not sys.stderr.isatty():
        yield
        return
    over = threading.Event()

    def tick() -> None:
        with Meter() as meter:
            for seconds in count(1):
                if over.wait(1):
                    return
                if not payment_options.asking:
                    meter.show(f"{what}: {seconds} s")

    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    try:
        yield
    finally:
        over.set()
        ticking.join()


def guarded(work: Callable[[], int], arguments: argparse.Namespace) -> int:
    """Run a function, and print an error in one line instead of a traceback."""
    from dragoman.cli.terminal_output import FAILED, UNPAID, error_text
    from dragoman.client import AnswerRefused, CredentialsNotSent, Unreachable, Unverified

    try:
        return work()
    except BrokenPipeError:  # handled in `main`; it is an OSError
        raise
    except (Unreachable, TimeoutError) as error:
        words = error_text(error) or f"no answer within {arguments.timeout:g} s"
        return say(words, SILENT)
    except FileNotFoundError as error:
        return say(f"{error.filename}: no such file", MISTAKE)
    except ValueError as error:
        return say(error_text(error), MISTAKE)
    except AnswerRefused as error:
        return say(f"nothing was paid: {error_text(error)}", UNPAID)
    except (A2AError, ModuleNotFoundError, Unverified, CredentialsNotSent, OSError) as error:
        return say(error_text(error), FAILED)


def say(text: str, status: int) -> int:
    """Print an error, and return the exit status."""
    print(paint(f"dragoman: {text}", RED, sys.stderr), file=sys.stderr)
    return status
