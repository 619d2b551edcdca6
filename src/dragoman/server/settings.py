"""All settings: from arguments, `DRAGOMAN_*` variables and a TOML file, in that order."""

from __future__ import annotations

import json
import logging
import os
import re
import tomllib
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

PREFIX = "DRAGOMAN_"
FILE = "dragoman.toml"
# userinfo of each host in a URL, greedy up to its last @, and the query's password
_PASSWORD = re.compile(r"((?:://|,)[^/@:,]*:)[^,]*@|([?&]password=)[^&]*")
_PASSWORDS = re.compile(r"(?<=:)(?<!://)[^/@:,]+(?=@)")
POSITIVE = {
    *("max_body", "max_depth", "max_parts", "max_running", "max_tasks"),
    *("max_events", "max_output", "stream_buffer", "threads", "poll", "lease", "keepalive"),
    *("max_hops", "rate_burst", "connections"),
    *("stall", "turn_timeout", "body_timeout", "max_task"),
    *("max_connections", "max_head", "grpc_calls", "header_timeout"),
    *("push_timeout", "push_running", "push_per_host"),
}
SECRET = {"seal_keys", "push_keys"}
TABLES = {"auth"}
"""Settings that are lists of tables: in a variable, JSON."""
HIDDEN = {"keys", "tokens", "users", "client_secret"}
"""What is secret in a table."""
ELSEWHERE = ("sha256:", "env:", "file:")
"""How what stands for a secret begins, and is none."""
Checks = Mapping[str, Callable[[Any], None]]
"""What must be so of a setting beyond its type: ValueError says what is not, and begins with where
in it, such as `[0].name: …`."""
PASSWORD = {"key_password"}
INSTEAD = {
    "workers": "one server is one process: to use more of them, start `dragoman serve` several "
    "times with the same --store postgresql://… behind a load balancer",
}
"""What to do where other servers have a setting of this name."""
MAX_TASK = 256 * 1024 * 1024
"""How large a task in a database may be, unless something else is set."""


class SettingsError(ValueError):
    """A setting is unknown or has a wrong value."""


def setting(default: Any, help: str) -> Any:
    """A field of `Settings` with its line of help."""
    HELP.append(help)
    return field(default=default)


HELP: list[str] = []


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set. Times are in seconds, sizes in bytes."""

    # where
    host: str = setting("127.0.0.1", "the address to listen on")
    port: int = setting(8000, "the port to listen on; 0 picks a free one")
    url: str = setting("", "the public URL that the card tells; by default that of the request")
    cert: str = setting("", "the certificate of `dragoman serve`, a PEM file; without it no TLS")
    key: str = setting("", "the key of that certificate; by default it is in the same file")
    key_password: str = setting("", "what opens that key, if it is locked")
    ca: str = setting("", "who must have signed the certificates of clients, a PEM file")
    ca_optional: bool = setting(
        False, "take clients without a certificate, too; gRPC then asks nobody for one"
    )
    grpc_port: int | None = setting(
        None, "the port of gRPC; 0 picks a free one, and without it there is no gRPC"
    )
    grpc_url: str = setting(
        "",
        "the gRPC address that the card tells if `bindings` names GRPC, host:port or a URL; by "
        "default the host of `url`",
    )
    grpc_cert: str = setting("", "the certificate of gRPC, a PEM file; by default `cert`")
    grpc_key: str = setting("", "the key of that certificate; by default `key` for `cert`")
    grpc_ca: str = setting(
        "", "who must have signed the certificates of gRPC clients; by default `ca`"
    )
    bindings: tuple[str, ...] = setting(
        ("JSONRPC", "HTTP+JSON"),
        "what the card lists, in this order: JSONRPC, HTTP+JSON, GRPC (it needs `grpc_port`); with "
        "a path of its own as JSONRPC:/rpc. All are served, also those that are not listed",
    )
    versions: tuple[str, ...] = setting(
        ("1.0", "0.3"), "the versions in which the card lists them, in this order"
    )
    forwarded: bool = setting(False, "trust X-Forwarded-Proto, -Host and -Prefix for the card")
    hosts: tuple[str, ...] = setting(
        (),
        "the hosts that requests may name, also as *.example; others get 421. Empty is any; of a "
        "server on loopback, the names of this machine and the host of `url`",
    )
    cors: tuple[str, ...] = setting(
        (), "origins whose pages may call the agents from a browser, beside its own; * is any"
    )
    hsts: float = setting(
        0.0, "tell browsers that come over https to do so for so many seconds; 0 is not"
    )
    store: str = setting(
        "memory:",
        "where the logs are kept: memory:, sqlite:///file, postgresql://…; `serve` keeps a file",
    )
    connections: int = setting(8, "the most connections to PostgreSQL")
    migrate: bool = setting(
        True, "bring PostgreSQL's tables up to date at the start; else `dragoman db migrate` has to"
    )
    bell: str = setting(
        "",
        "how replicas wake each other: memory:, postgresql://…, nats://…, redis://…; by default "
        "what fits the store",
    )
    synchronous: Literal["full", "normal"] = setting(
        "full", "what a SQLite commit survives: a power loss, or only the end of the process"
    )
    keep: float = setting(0.0, "how long a database keeps a task that ended; 0 is for ever")
    seal_keys: tuple[str, ...] = setting(
        (), "keys that encrypt the secrets of webhooks in a database; the first one seals"
    )
    # what
    push: bool = setting(False, "offer webhooks, and deliver to them")
    push_keys: tuple[str, ...] = setting((), "keys that sign deliveries: whsec_… or whsk_…")
    push_retries: tuple[float, ...] = setting(
        (5, 30, 120, 300, 600, 1800, 7200, 18000, 36000, 50400, 72000, 86400),
        "the pauses after which a failed delivery is tried again; then it is parked",
    )
    push_timeout: float = setting(15.0, "how long a webhook may take to answer")
    push_running: int = setting(
        64, "the most deliveries at once of one owner; twice as many of all"
    )
    push_per_host: int = setting(8, "the most deliveries at once to one host")
    egress_allow: tuple[str, ...] = setting(
        (), "hosts and networks that webhooks may reach although they are not public, or not https"
    )
    duplicates: Literal["off", "authenticated", "always"] = setting(
        "authenticated", "whose identical messages count as one send without an Idempotency-Key"
    )
    card_age: int = setting(300, "how long a card may be cached")
    card_keys: tuple[str, ...] = setting(
        (), "files with the keys that sign the card, PEM or JWK; each of them signs"
    )
    card_jku: str = setting(
        "own", "where signatures say that their keys are: own is /.well-known/jwks.json; or a URL"
    )
    auth: tuple[dict[str, Any], ...] = setting(
        (), "who may call: tables with a `scheme` and its arguments, as security.md has them"
    )
    # limits
    max_connections: int = setting(
        10_000, "the most open connections; fewer if the limit of open files is lower"
    )
    max_per_address: int = setting(
        0, "the most connections of one address, of IPv6 one /64; 0 is half of max_connections"
    )
    max_head: int = setting(64 * 1024, "the largest head of a request: its line and its headers")
    grpc_calls: int = setting(
        1000, "the most calls at once on one gRPC connection; others wait or are UNAVAILABLE"
    )
    max_body: int = setting(16 * 1024 * 1024, "the largest request body")
    max_depth: int = setting(100, "the deepest nesting of JSON")
    max_elements: int = setting(100_000, "the most elements of JSON in one request")
    max_in_flight: int = setting(
        256 * 1024 * 1024,
        "the most bytes of large bodies and answers at once; one address has half of them",
    )
    max_parts: int = setting(1000, "the most parts in a message")
    serve_only: bool = setting(
        False,
        "serve requests and run no turns: `dragoman worker` processes run them. It needs a store "
        "that they can reach, such as PostgreSQL",
    )
    max_running: int = setting(1000, "the most turns that run at once; others wait their turn")
    max_streams: int = setting(10_000, "the most streams that are open at once")
    max_tasks: int = setting(50_000, "the most tasks in the memory store; old ones make room")
    task_age: float = setting(24 * 3600.0, "how long the memory store keeps a task that ended")
    max_events: int = setting(100_000, "the most events that one turn may write")
    max_task: int = setting(MAX_TASK, "the most bytes of one task in a database")
    max_output: int = setting(64 * 1024 * 1024, "the most bytes that one turn may write")
    stream_buffer: int = setting(64 * 1024, "how much of a log a stream hands over at once")
    threads: int = setting(32, "the most plain functions that run at once, in threads")
    max_hops: int = setting(8, "how often a request may have been handed on by other agents")
    max_file: int = setting(0, "the largest file in a message; 0 is whatever a body may hold")
    file_types: tuple[str, ...] = setting(
        (),
        "the media types that files may have, also as image/*; empty is any that the agent takes",
    )
    # of each caller
    quota_tasks: int = setting(10_000, "the most open tasks of one identity; 0 is any number")
    quota_waiting: int = setting(
        5_000, "the most tasks of one identity that wait for its answer; 0 is any number"
    )
    quota_streams: int = setting(1_000, "the most open streams of one identity; 0 is any number")
    rate: float = setting(0.0, "the requests a second that one identity may make; 0 is any number")
    rate_address: float = setting(
        0.0, "the same for one address, whoever asks; it counts before anything is verified"
    )
    rate_burst: int = setting(50, "how many requests may come at once within those rates")
    proxies: tuple[str, ...] = setting(
        (), "networks of the proxies in front, whose X-Forwarded-For is believed"
    )
    # times
    header_timeout: float = setting(
        10.0, "how long the head of a request may take to arrive, and a TLS handshake"
    )
    body_timeout: float = setting(30.0, "how long a request body may take to arrive")
    blocking_timeout: float = setting(300.0, "how long a send waits for its answer")
    turn_timeout: float = setting(3600.0, "how long a turn may run")
    cancel_grace: float = setting(5.0, "how long an agent may take to stop when canceled")
    drain: float = setting(10.0, "how long running turns may go on at shutdown")
    # below the 5 s that the reference client waits for a byte by default
    keepalive: float = setting(4.0, "how often an idle stream says that it is alive")
    stall: float = setting(
        120.0, "how long a reader may take no byte, and a gRPC connection no call, before it is cut"
    )
    lease: float = setting(30.0, "how long a worker holds a task without renewing")
    poll: float = setting(1.0, "how often to look at the store when no bell rings")
    watchdog: float = setting(1.0, "report a handler that blocks the event loop so long; 0 is off")
    # what it tells of itself
    metrics_port: int | None = setting(
        None, "the port of /metrics, /healthz and /readyz; 0 picks a free one, without it none"
    )
    metrics_host: str = setting("127.0.0.1", "the address of that port")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "what to log")
    log_format: Literal["text", "json"] = setting("text", "how to log")
    access_log: bool = setting(False, "log every request")
    audit: bool = setting(
        False,
        "tell dragoman.audit who was refused, named another's task, canceled, set webhooks or saw "
        "the extended card",
    )

    def secrets(self) -> list[str]:
        """What must not be shown: keys, and the passwords in URLs."""
        found = [key for name in sorted(SECRET) for key in getattr(self, name)]
        found += table_secrets(self.auth)
        found += [word for name in sorted(PASSWORD) if (word := getattr(self, name))]
        return [*found, *_PASSWORDS.findall(self.store), *_PASSWORDS.findall(self.bell)]

    def masked(self) -> dict[str, Any]:
        """All values, with keys and the passwords in URLs hidden."""
        return {
            name: ("***",) * len(value)
            if name in SECRET
            else _masked(value)
            if name in TABLES
            else value and "***"
            if name in PASSWORD
            else _PASSWORD.sub(_mask, value)
            if isinstance(value, str)
            else value
            for name, value in msgspec.structs.asdict(self).items()
        }


DESCRIPTIONS: dict[str, str] = dict(zip(Settings.__struct_fields__, HELP, strict=True))


def load(
    arguments: Mapping[str, Any] | None = None,
    *,
    defaults: Mapping[str, Any] | None = None,
    texts: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | Path | None = None,
    checks: Checks | None = None,
    warn: Callable[[str], None] | None = None,
) -> Settings:
    """The settings in force. `texts` are arguments from a command line, not yet of their type.
    The file is the one given, `DRAGOMAN_CONFIG`, or `dragoman.toml` if it is there. `warn` is told
    what may be a mistake; by default it is logged."""
    warn = warn or logging.getLogger("dragoman").warning
    environ = _without_service_links(os.environ if environ is None else environ)
    checks = checks or {}
    values: dict[str, Any] = dict(defaults or {})
    named = file or environ.get(PREFIX + "CONFIG")
    path = Path(named or FILE)
    if named or path.is_file():
        values.update(_read(path, checks))
    for name in environ:
        known = name[len(PREFIX) :].lower() in (*Settings.__struct_fields__, "config")
        if name.startswith(PREFIX) and not name.startswith(PREFIX + "_") and not known:
            warn(f"{name}: there is no such setting; `dragoman config` lists them")
    for name in Settings.__struct_fields__:
        text = environ.get(PREFIX + name.upper())
        if text is not None:
            values[name] = _one(name, text, f"{PREFIX}{name.upper()}", checks, strict=False)
    for name, value in (arguments or {}).items():
        if value is not None:
            values[name] = _one(name, value, name, checks, strict=True)
    for name, text in (texts or {}).items():
        values[name] = _one(name, text, name, checks, strict=False)
    return Settings(**values)


def _without_service_links(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables without those that Kubernetes sets in each pod for a Service whose name begins
    with dragoman, such as `DRAGOMAN_PORT=tcp://10.0.0.7:80`: nobody chose them."""
    found = dict(environ)
    for name in environ:
        service = name.removesuffix("_SERVICE_HOST")
        if service == name or not name.startswith(PREFIX):
            continue
        for link in environ:
            if link.startswith((f"{service}_SERVICE_", f"{service}_PORT_")) or (
                # a plain number there was chosen by somebody, and comes before the link
                link == f"{service}_PORT" and "://" in environ[link]
            ):
                found.pop(link, None)
    return found


def _read(path: Path, checks: Checks) -> dict[str, Any]:
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from error
    return {
        name: _one(name, value, f"{path}: {name}", checks, strict=True)
        for name, value in found.items()
    }


def _mask(match: re.Match[str]) -> str:
    return f"{match[1]}***@" if match[1] else f"{match[2]}***"


def table_secrets(tables: Any) -> list[str]:
    """The secrets that stand in tables themselves, and not elsewhere."""
    return [text for text in _hidden(tables) if not text.startswith(ELSEWHERE)]


def _hidden(value: Any, secret: bool = False) -> Iterator[str]:
    """The secrets of tables."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _hidden(item, secret or name in HIDDEN)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _hidden(item, secret)
    elif secret and isinstance(value, str):
        yield value


def _masked(value: Any, secret: bool = False) -> Any:
    """Tables without their secrets."""
    if isinstance(value, Mapping):
        return {name: _masked(item, secret or name in HIDDEN) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, secret) for item in value]
    return "***" if secret and isinstance(value, str) else value


def _one(name: str, value: Any, where: str, checks: Checks, *, strict: bool) -> Any:
    kinds = {item.name: item.type for item in msgspec.structs.fields(Settings)}
    if name not in kinds:
        instead = INSTEAD.get(name, "`dragoman config` lists them")
        raise SettingsError(f"{where}: there is no such setting; {instead}")
    if isinstance(value, str) and name in TABLES:
        try:
            value = json.loads(value or "[]")
        except ValueError as error:
            raise SettingsError(f"{where}: is no JSON: {error}") from None
    if isinstance(value, str) and typing.get_origin(kinds[name]) is tuple:
        value, strict = [item.strip() for item in value.split(",") if item.strip()], False
    if isinstance(value, Mapping) and name in TABLES:
        toml = where.endswith(f": {name}")
        way = f"write [[{name}]] with two brackets" if toml else "give a list, also of one"
        raise SettingsError(f"{where}: is one table, not a list of tables; {way}")
    try:
        found = msgspec.convert(value, kinds[name], strict=strict)
    except msgspec.ValidationError as error:
        if typing.get_origin(kinds[name]) is Literal:
            known = ", ".join(map(str, typing.get_args(kinds[name])))
            raise SettingsError(f"{where}: is one of {known}: {DESCRIPTIONS[name]}") from None
        raise SettingsError(f"{where}: {error}") from None
    numbers = found if isinstance(found, tuple) else (found,)
    if not all(number >= 0 for number in numbers if isinstance(number, int | float)):
        raise SettingsError(f"{where}: must not be negative")
    if name in POSITIVE and not found:
        raise SettingsError(f"{where}: must be more than nothing")
    if name in checks:
        try:
            checks[name](found)
        except ValueError as error:
            raise SettingsError(f"{where}{error}") from None
    return found
