"""All settings: the name, type, default, limits and description of each."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct, field

from dragoman.model.protocol import HTTP_JSON, JSONRPC, LISTED_VERSIONS
from dragoman.model.units import parse_duration, parse_size, show_duration, show_size

# userinfo of each host in a URL, greedy up to its last @, and the query's password
_PASSWORD = re.compile(r"((?:://|,)[^/@:,]*:)[^,]*@|([?&]password=)[^&]*")
_PASSWORDS = re.compile(r"(?<=:)(?<!://)[^/@:,]+(?=@)")
TABLES = {"auth"}
"""Settings that are lists of tables: in a variable, JSON."""
HIDDEN = {"keys", "tokens", "users", "client_secret"}
"""The secret fields of a table."""
ELSEWHERE = ("sha256:", "env:", "file:")
"""How a reference to a secret begins."""
PORTS = 65535
"""The highest port."""
MAX_TASK_BYTES = 256 * 1024 * 1024
"""The default maximum size of a task in a database."""


class SettingsError(ValueError):
    """Settings are unknown or have wrong values; a line for each."""

    def __init__(self, *errors: str) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


class Setting(Struct, frozen=True, kw_only=True):
    """What a setting declares beside its name, type and default."""

    help: str
    unit: Literal["duration", "size"] | None = None
    """A value with a unit may also be written as text, such as 90m or 16MiB."""
    positive: bool = False
    """Whether 0 is refused. A negative number always is."""
    maximum: int | None = None
    secret: bool = False
    unset: str = ""
    """What the default means, where its value does not say so itself."""


_declared: list[Setting] = []


def setting(default: Any, help: str, **more: Any) -> Any:
    """A field of `Settings`, with what a `Setting` declares."""
    _declared.append(Setting(help=help, **more))
    return field(default=default)


def duration(default: float | tuple[float, ...] | None, help: str, **more: Any) -> Any:
    """A setting in seconds."""
    return setting(default, help, unit="duration", **more)


def size(default: int, help: str, **more: Any) -> Any:
    """A setting in bytes."""
    return setting(default, help, unit="size", **more)


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set, and the limits that cannot. Durations are in seconds, sizes in
    bytes."""

    # constants
    card_age: ClassVar[int] = 300
    """How long a client may cache the card."""
    grpc_calls: ClassVar[int] = 1000
    """The maximum number of concurrent calls on one gRPC connection."""
    keepalive: ClassVar[float] = 4.0
    """The interval of keepalive comments on an idle stream: below the 5 s that the reference client
    waits for a byte by default."""
    max_depth: ClassVar[int] = 100
    """The maximum nesting of JSON."""
    max_elements: ClassVar[int] = 100_000
    """The maximum number of JSON elements in one request."""
    max_events: ClassVar[int] = 100_000
    """The maximum number of events that one turn may write."""
    max_head: ClassVar[int] = 64 * 1024
    """The maximum size of a request line and headers."""
    max_hops: ClassVar[int] = 8
    """The maximum number of agents that may have passed a request on."""
    max_parts: ClassVar[int] = 1000
    """The maximum number of parts in a message."""
    push_per_host: ClassVar[int] = 8
    """The maximum number of concurrent deliveries to one host."""
    push_running: ClassVar[int] = 64
    """The maximum number of concurrent deliveries of one owner; twice as many of all owners."""
    push_timeout: ClassVar[float] = 15.0
    """The time limit of one delivery."""
    stream_buffer: ClassVar[int] = 64 * 1024
    """How much of a log a stream sends at once."""
    watchdog: ClassVar[float] = 1.0
    """Report a handler that blocks the event loop for this time."""

    # addresses and TLS
    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "port to listen on; 0 picks a free port", maximum=PORTS)
    url: str = setting("", "public URL of the server, for the card", unset="the URL of the request")
    cert: str = setting(
        "", "TLS certificate (PEM file) of `dragoman serve` and of gRPC", unset="no TLS"
    )
    key: str = setting(
        "", "private key of `cert` (PEM file)", unset="the key in the file of `cert`"
    )
    key_password: str = setting(
        "", "password of `key`, if the file is encrypted", secret=True, unset="none"
    )
    ca: str = setting(
        "",
        "CA bundle (PEM file) for client certificates; enables mutual TLS",
        unset="clients need no certificate",
    )
    ca_optional: bool = setting(
        False, "with `ca`, also accept clients without a certificate; gRPC then requests none"
    )
    grpc_port: int | None = setting(
        None,
        "port of gRPC; 0 picks a free port. Each further agent gets the next port",
        maximum=PORTS,
        unset="gRPC is not served",
    )
    bindings: tuple[str, ...] = setting(
        (JSONRPC.name, HTTP_JSON.name),
        "bindings that the card lists, in this order: JSONRPC, HTTP+JSON, GRPC (needs "
        "`grpc_port`); JSONRPC:/rpc sets the path, GRPC:grpc.example:443 the address. Other "
        "bindings are served, but not listed",
    )
    versions: tuple[str, ...] = setting(
        LISTED_VERSIONS, "protocol versions that the card lists, in this order"
    )
    trust_forwarded: bool = setting(
        False, "use the headers X-Forwarded-Proto, -Host and -Prefix for the URLs on the card"
    )
    trusted_hosts: tuple[str, ...] = setting(
        (),
        "names that the Host header may have, also *.example; others get 421",
        unset="all names; on a loopback address only the names of this machine and the host of "
        "`url`",
    )
    trusted_proxies: tuple[str, ...] = setting(
        (),
        "networks of the proxies in front of the server: their X-Forwarded-For gives the address "
        "of the client, and the limit of connections from one address does not hold for them",
        unset="none",
    )
    cors: tuple[str, ...] = setting(
        (), "origins whose pages may call the agents from a browser; * allows all", unset="none"
    )
    hsts: float = duration(
        0.0, "max-age of the header Strict-Transport-Security over https", unset="no such header"
    )
    # tasks
    store: str = setting(
        "memory:",
        "where tasks are stored, with options: memory:, sqlite:///file or postgresql://…",
        unset="memory:, and for `dragoman serve` a SQLite file named after the agents",
    )
    bell: str = setting(
        "",
        "how replicas notify each other: memory:, postgresql://…, nats://… or redis://…",
        unset="what fits the store",
    )
    retention: float | None = duration(
        None,
        "how long a task is kept after its end; 0 is for ever",
        unset="1d in memory, for ever in a database",
    )
    encryption_keys: tuple[str, ...] = setting(
        (),
        "keys that encrypt the secrets of webhooks and what handlers save in a database; the first "
        "one encrypts, all decrypt",
        secret=True,
        unset="no encryption",
    )
    idempotency: Literal["off", "authenticated", "always"] = setting(
        "authenticated",
        "callers whose identical messages count as one message, even without an Idempotency-Key",
    )
    # running agents
    serve_only: bool = setting(
        False,
        "serve requests, but leave the turns to `dragoman worker`; the store must be shared, such "
        "as PostgreSQL",
    )
    max_running: int = setting(
        1000, "maximum number of concurrent turns; others wait", positive=True
    )
    threads: int = setting(
        32, "maximum number of handlers that run in threads (plain functions)", positive=True
    )
    turn_timeout: float = duration(3600.0, "time limit of a turn", positive=True)
    cancel_grace: float = duration(5.0, "how long a canceled handler may take to stop")
    drain_timeout: float = duration(10.0, "how long running turns may continue at shutdown")
    lease: float = duration(
        30.0, "how long a worker holds a task without renewing its claim", positive=True
    )
    poll: float = duration(
        1.0, "how often to read the store when no notification comes", positive=True
    )
    # webhooks
    push: bool = setting(False, "offer webhooks and deliver to them")
    push_keys: tuple[str, ...] = setting(
        (), "keys that sign deliveries: whsec_… or whsk_…", secret=True, unset="no signatures"
    )
    push_retries: tuple[float, ...] = duration(
        (5, 30, 120, 300, 600, 1800, 7200, 18000, 36000, 50400, 72000, 86400),
        "pauses before a failed delivery is tried again; after the last one the webhook is parked",
    )
    egress_allow: tuple[str, ...] = setting(
        (),
        "hosts and networks that webhooks may reach although they are private or without https",
        unset="none",
    )
    # callers and cards
    auth: tuple[dict[str, Any], ...] = setting(
        (),
        "who may call: tables with a `scheme` and its arguments, see security.md",
        unset="everybody",
    )
    card_keys: tuple[str, ...] = setting(
        (),
        "files with the keys that sign the card (PEM or JWK); each key adds a signature",
        unset="no signatures",
    )
    card_jku: str = setting(
        "own",
        "URL of the public keys in the signatures of the card; own is /.well-known/jwks.json",
    )
    rate: float = setting(
        0.0, "maximum number of requests of one identity per second", unset="no limit"
    )
    rate_address: float = setting(
        0.0,
        "maximum number of requests from one address per second, counted before authentication",
        unset="no limit",
    )
    quota_tasks: int = setting(
        10_000,
        "maximum number of open tasks of one identity; half as many may wait for its answer, and "
        "it may open a tenth as many streams; 0 is no limit",
    )
    # limits of requests and tasks
    max_connections: int = setting(
        10_000,
        "maximum number of open connections, and of open streams; one address gets half of the "
        "connections. A low limit of open files lowers it",
        positive=True,
    )
    max_body: int = size(
        16 * 1024 * 1024,
        "maximum size of a request body; all large bodies and responses in memory may have 16 "
        "times this size, those of one address half of that",
        positive=True,
    )
    file_types: tuple[str, ...] = setting(
        (),
        "media types that files in messages may have, also image/*",
        unset="what the agent accepts",
    )
    max_task_bytes: int = size(
        MAX_TASK_BYTES,
        "maximum size of one task in a database; one turn may write a quarter of it",
        positive=True,
    )
    request_timeout: float = duration(
        30.0,
        "time limit for a request body; headers and a TLS handshake get a third of it",
        positive=True,
    )
    blocking_timeout: float = duration(
        300.0, "how long a send waits for the end of the turn before it answers"
    )
    stall: float = duration(
        120.0,
        "close a stream whose client has read nothing, or an idle gRPC connection, after this time",
        positive=True,
    )
    # monitoring
    metrics: int | str | None = setting(
        None,
        "port of /metrics, /healthz and /readyz on this machine, or its address, such as "
        "0.0.0.0:9464; 0 picks a free port",
        unset="these pages are not served",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "lowest log level")
    log_format: Literal["text", "json"] = setting("text", "format of log lines")
    access_log: bool = setting(False, "log every request")
    audit: bool = setting(
        False,
        "log to dragoman.audit: refused callers, requests for tasks of others, cancels, changes of "
        "webhooks, reads of the extended card",
    )
    fleet: bool = setting(
        False,
        "write a row about this process into the store every 10 seconds, so that operators see all "
        "replicas",
    )
    console: Literal["auto", "on", "off"] = setting(
        "auto",
        "the console of `dragoman serve` at /console/: auto offers it on a terminal of this "
        "machine, on also to callers with the scope operator (needs `auth`)",
    )
    console_client_id: str = setting(
        "",
        "the client id of the console at the authorization server, with which operators log in "
        "there (OAuth with a code)",
        unset="operators type it",
    )
    agent_page: bool = setting(
        True, "`dragoman serve` shows browsers a page about the agents at / and /KEY/"
    )

    # values that follow from other settings

    @property
    def header_timeout(self) -> float:
        """The time limit for request headers, and for a TLS handshake."""
        return self.request_timeout / 3

    @property
    def max_in_flight(self) -> int:
        """The maximum size of all large request bodies and responses in memory."""
        return 16 * self.max_body

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Where `metrics` are served, as host and port."""
        return None if self.metrics is None else listen_address(self.metrics)

    @property
    def max_streams(self) -> int:
        """The maximum number of open streams."""
        return self.max_connections

    @property
    def max_output(self) -> int:
        """The maximum size of all that one turn may write."""
        return self.max_task_bytes // 4

    @property
    def quota_waiting(self) -> int:
        """The maximum number of tasks of one identity that wait for its answer; 0 is no limit."""
        return (self.quota_tasks + 1) // 2

    @property
    def quota_streams(self) -> int:
        """The maximum number of open streams of one identity; 0 is no limit."""
        return (self.quota_tasks + 9) // 10

    @property
    def rate_burst(self) -> int:
        """The number of requests that may come at once within the rates."""
        return max(50, int(self.rate), int(self.rate_address))

    def secrets(self) -> list[str]:
        """Return the values that must not be shown: keys, and the passwords in URLs."""
        found: list[str] = []
        for name, declared in DECLARED.items():
            value = getattr(self, name)
            if declared.secret and value:
                found += [value] if isinstance(value, str) else value
        found += table_secrets(self.auth)
        return [*found, *_PASSWORDS.findall(self.store), *_PASSWORDS.findall(self.bell)]

    def masked(self) -> dict[str, Any]:
        """All values, with keys and the passwords in URLs hidden."""
        return {name: _shown(name, value) for name, value in msgspec.structs.asdict(self).items()}


DECLARED: dict[str, Setting] = dict(zip(Settings.__struct_fields__, _declared, strict=True))
DESCRIPTIONS: dict[str, str] = {name: each.help for name, each in DECLARED.items()}
GROUPS = {
    "host": "Addresses and TLS",
    "store": "Tasks",
    "serve_only": "Running agents",
    "push": "Webhooks",
    "auth": "Callers and cards",
    "max_connections": "Limits of requests and tasks",
    "metrics": "Monitoring",
}
"""The groups of settings, each by its first setting, in which documentation shows them."""


BOOLEAN = ("true", "false")


@cache
def types() -> dict[str, Any]:
    """The types of the settings. (To read them takes milliseconds.)"""
    return {item.name: item.type for item in msgspec.structs.fields(Settings)}


def choices(name: str) -> tuple[str, ...]:
    """All values that a setting may have, if they are a few words."""
    kind = types()[name]
    if kind is bool:
        return BOOLEAN
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def meaning(name: str) -> str:
    """What a setting is for, with the words that it may have as its value."""
    found = choices(name)
    return DESCRIPTIONS[name] + (
        f"; one of {', '.join(found)}" if found not in ((), BOOLEAN) else ""
    )


def convert(value: Any, kind: Any, declared: Setting, *, strict: bool = False) -> Any:
    """Convert a value to the type of a setting, and check its limits. Without `strict` a text may
    also stand for a number or a boolean. Raises ValueError."""
    value = _without_units(value, declared, strict=strict)
    try:
        found = msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        if typing.get_origin(kind) is not Literal:
            raise ValueError(_wrong_type(str(error), value, declared)) from None
        known = ", ".join(map(str, typing.get_args(kind)))
        raise ValueError(f"must be one of {known}; {declared.help}") from None
    numbers = found if isinstance(found, tuple) else (found,)
    if not all(number >= 0 for number in numbers if isinstance(number, int | float)):
        raise ValueError("must not be negative")
    if declared.positive and not found:
        raise ValueError("must be greater than 0")
    if declared.maximum is not None and isinstance(found, int) and found > declared.maximum:
        raise ValueError(f"must be at most {declared.maximum}, not {found}")
    return found


def _without_units(value: Any, declared: Setting, *, strict: bool) -> Any:
    """The value, with a number in place of a text such as 90m. Where a text cannot be a number,
    as in a file, it needs a unit."""
    if isinstance(value, list | tuple):
        return [_without_units(item, declared, strict=strict) for item in value]
    if declared.unit is None or not isinstance(value, str):
        return value
    if not strict and _is_number(value):
        return value.strip()
    return parse_duration(value) if declared.unit == "duration" else parse_size(value)


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "array": "a list",
    "object": "a table",
}


def _wrong_type(error: str, value: Any, declared: Setting) -> str:
    """What msgspec says about a value of a wrong type, in the words of the settings."""
    found = re.fullmatch(r"Expected `([\w |]+)`, got `\w+`(?: - at `\$(.*)`)?", error)
    if found is None:
        return error
    kinds = [_KINDS.get(kind, kind) for kind in found[1].split(" | ") if kind != "null"]
    place = f"the value at {found[2]} " if found[2] else ""
    given = "" if declared.secret or place else f", not {value!r}"
    return f"{place}must be {' or '.join(kinds)}{given}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def default_text(name: str) -> str:
    """The default of a setting, in words or as TOML writes it."""
    declared = DECLARED[name]
    return declared.unset or literal(getattr(Settings(), name), declared.unit)


def literal(value: Any, unit: str | None = None) -> str:
    """A value as TOML writes it, durations and sizes with a unit."""
    show = show_duration if unit == "duration" else show_size
    if isinstance(value, tuple) and unit:
        return _toml([show(item) for item in value])
    return _toml((show(value) if value else 0) if unit else value)


def listen_address(text: int | str) -> tuple[str, int]:
    """Parse a port of this machine, or host:port. Raises ValueError."""
    host, colon, number = str(text).rpartition(":")
    if not number.isascii() or not number.isdecimal() or (colon and not host):
        raise ValueError(f"{text!r} is neither a port nor an address such as 0.0.0.0:9464")
    if int(number) > PORTS:
        raise ValueError(f"the port must be at most {PORTS}, not {number}")
    return host.strip("[]") or "127.0.0.1", int(number)


def _toml(value: Any) -> str:
    """A value as TOML writes it, which is as JSON does but for tables."""
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(name)} = {_toml(item)}" for name, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


def _shown(name: str, value: Any) -> Any:
    """A value without its secrets."""
    if DECLARED[name].secret:
        return ("***",) * len(value) if isinstance(value, tuple) else value and "***"
    if name in TABLES:
        return _masked(value)
    return _PASSWORD.sub(_mask, value) if isinstance(value, str) else value


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
