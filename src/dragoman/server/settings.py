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
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct, field

from dragoman.model.units import parse_duration, parse_size, show_duration, show_size

PREFIX = "DRAGOMAN_"
FILE = "dragoman.toml"
# userinfo of each host in a URL, greedy up to its last @, and the query's password
_PASSWORD = re.compile(r"((?:://|,)[^/@:,]*:)[^,]*@|([?&]password=)[^&]*")
_PASSWORDS = re.compile(r"(?<=:)(?<!://)[^/@:,]+(?=@)")
TABLES = {"auth"}
"""Settings that are lists of tables: in a variable, JSON."""
HIDDEN = {"keys", "tokens", "users", "client_secret"}
"""What is secret in a table."""
ELSEWHERE = ("sha256:", "env:", "file:")
"""How what stands for a secret begins, and is none."""
Checks = Mapping[str, Callable[[Any], None]]
"""What must be so of a setting beyond its type: ValueError says what is not, and begins with where
in it, such as `[0].name: …`."""
INSTEAD = {
    "workers": "one server is one process: to use more of them, start `dragoman serve` several "
    "times with the same --store postgresql://… behind a load balancer",
}
"""What to do where other servers have a setting of this name."""
MAX_TASK_BYTES = 256 * 1024 * 1024
"""How large a task in a database may be, unless something else is set."""


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
    secret: bool = False


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
    max_depth: ClassVar[int] = 100
    """The maximum nesting of JSON."""
    max_elements: ClassVar[int] = 100_000
    """The maximum number of JSON elements in one request."""
    max_head: ClassVar[int] = 64 * 1024
    """The maximum size of a request line and headers."""
    max_hops: ClassVar[int] = 8
    """The maximum number of agents that may have passed a request on."""
    push_per_host: ClassVar[int] = 8
    """The maximum number of concurrent deliveries to one host."""
    push_running: ClassVar[int] = 64
    """The maximum number of concurrent deliveries of one owner; twice as many of all owners."""
    stream_buffer: ClassVar[int] = 64 * 1024
    """How much of a log a stream sends at once."""

    # addresses and TLS
    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "port to listen on; 0 picks a free one")
    url: str = setting("", "public URL on the card; by default the URL of the request")
    cert: str = setting(
        "", "TLS certificate (PEM file) of `dragoman serve` and gRPC; without it, no TLS"
    )
    key: str = setting("", "private key of `cert` (PEM file); by default in the file of `cert`")
    key_password: str = setting("", "password of an encrypted `key`", secret=True)
    ca: str = setting("", "CA bundle (PEM file) for client certificates; enables mutual TLS")
    ca_optional: bool = setting(
        False, "accept clients without a certificate, too; gRPC then requests none"
    )
    grpc_port: int | None = setting(
        None, "port of gRPC; 0 picks a free one; without it, gRPC is not served"
    )
    grpc_url: str = setting(
        "",
        "gRPC address on the card if `bindings` lists GRPC, host:port or a URL; by default the "
        "host of `url`",
    )
    bindings: tuple[str, ...] = setting(
        ("JSONRPC", "HTTP+JSON"),
        "bindings that the card lists, in this order: JSONRPC, HTTP+JSON, GRPC (needs "
        "`grpc_port`); JSONRPC:/rpc sets the path. Bindings that are not listed are served, too",
    )
    versions: tuple[str, ...] = setting(
        ("1.0", "0.3"), "protocol versions that the card lists, in this order"
    )
    trust_forwarded: bool = setting(
        False, "use X-Forwarded-Proto, -Host and -Prefix for the URLs on the card"
    )
    trusted_hosts: tuple[str, ...] = setting(
        (),
        "Host names that requests may use, also *.example; others get 421. Empty allows all, but "
        "on a loopback address only the names of this machine and the host of `url`",
    )
    trusted_proxies: tuple[str, ...] = setting(
        (), "networks of the proxies whose X-Forwarded-For gives the address of the client"
    )
    cors: tuple[str, ...] = setting(
        (), "origins whose pages may call the agents from a browser; * allows all"
    )
    hsts: float = duration(0.0, "max-age of Strict-Transport-Security over https; 0 sends none")
    # storage
    store: str = setting(
        "memory:",
        "where tasks are stored: memory:, sqlite:///file, postgresql://…; `dragoman serve` uses a "
        "SQLite file",
    )
    postgres_pool_size: int = setting(
        8, "maximum number of connections to PostgreSQL", positive=True
    )
    migrate: bool = setting(
        True, "update the tables of PostgreSQL at the start; if false, run `dragoman db migrate`"
    )
    bell: str = setting(
        "",
        "how replicas notify each other: memory:, postgresql://…, nats://…, redis://…; by default "
        "what fits the store",
    )
    synchronous: Literal["full", "normal"] = setting(
        "full", "what a SQLite commit survives: full a power loss, normal only a process crash"
    )
    retention: float | None = duration(
        None,
        "how long a task is kept after its end; 0 is for ever. By default 1d in memory, for ever "
        "in a database",
    )
    seal_keys: tuple[str, ...] = setting(
        (),
        "keys that encrypt the secrets of webhooks in a database; the first one encrypts, all "
        "decrypt",
        secret=True,
    )
    # webhooks
    push: bool = setting(False, "offer webhooks and deliver to them")
    push_keys: tuple[str, ...] = setting(
        (), "keys that sign deliveries: whsec_… or whsk_…", secret=True
    )
    push_retries: tuple[float, ...] = duration(
        (5, 30, 120, 300, 600, 1800, 7200, 18000, 36000, 50400, 72000, 86400),
        "pauses before a failed delivery is tried again; after the last one it is parked",
    )
    push_timeout: float = duration(15.0, "time limit of one delivery", positive=True)
    egress_allow: tuple[str, ...] = setting(
        (), "hosts and networks that webhooks may reach although they are private or without https"
    )
    # cards and callers
    idempotency: Literal["off", "authenticated", "always"] = setting(
        "authenticated",
        "callers whose identical messages count as one send without an Idempotency-Key",
    )
    card_keys: tuple[str, ...] = setting(
        (), "files with the keys that sign the card (PEM or JWK); each key adds a signature"
    )
    card_jku: str = setting(
        "own", "URL of the key set in card signatures; own is /.well-known/jwks.json"
    )
    auth: tuple[dict[str, Any], ...] = setting(
        (), "who may call: tables with a `scheme` and its arguments, see security.md"
    )
    # limits of the server
    max_connections: int = setting(
        10_000,
        "maximum number of open connections; fewer if the limit of open files is lower",
        positive=True,
    )
    max_per_address: int = setting(
        0,
        "maximum number of connections from one address (IPv6: one /64); 0 is half of "
        "`max_connections`",
    )
    max_body: int = size(16 * 1024 * 1024, "maximum size of a request body", positive=True)
    max_in_flight: int = size(
        256 * 1024 * 1024,
        "maximum size of all large bodies and answers in memory; one address may use half",
    )
    max_parts: int = setting(1000, "maximum number of parts in a message", positive=True)
    max_file: int = size(0, "maximum size of a file in a message; 0 is no limit but the body's")
    file_types: tuple[str, ...] = setting(
        (), "media types that files may have, also image/*; empty allows what the agent accepts"
    )
    max_streams: int = setting(10_000, "maximum number of open streams")
    # limits of turns and tasks
    serve_only: bool = setting(
        False,
        "serve requests and run no turns: `dragoman worker` processes run them. It needs a store "
        "that they can reach, such as PostgreSQL",
    )
    max_running: int = setting(
        1000, "maximum number of concurrent turns; others wait", positive=True
    )
    threads: int = setting(
        32, "maximum number of handlers that run in threads (plain functions)", positive=True
    )
    max_tasks: int = setting(
        50_000, "maximum number of tasks in the memory store; the oldest are deleted", positive=True
    )
    max_task_bytes: int = size(
        MAX_TASK_BYTES, "maximum size of one task in a database", positive=True
    )
    max_events: int = setting(
        100_000, "maximum number of events that one turn may write", positive=True
    )
    max_output: int = size(
        64 * 1024 * 1024, "maximum size of all that one turn may write", positive=True
    )
    # limits of each caller
    quota_tasks: int = setting(
        10_000, "maximum number of open tasks of one identity; 0 is no limit"
    )
    quota_waiting: int = setting(
        5_000, "maximum number of tasks of one identity that wait for its answer; 0 is no limit"
    )
    quota_streams: int = setting(
        1_000, "maximum number of open streams of one identity; 0 is no limit"
    )
    rate: float = setting(0.0, "requests per second that one identity may make; 0 is no limit")
    rate_address: float = setting(
        0.0, "requests per second from one address, counted before authentication; 0 is no limit"
    )
    rate_burst: int = setting(
        50, "requests that may come at once within those rates", positive=True
    )
    # times
    header_timeout: float = duration(
        10.0, "time limit for request headers, and for a TLS handshake", positive=True
    )
    body_timeout: float = duration(30.0, "time limit for a request body", positive=True)
    blocking_timeout: float = duration(300.0, "how long a send waits for its answer")
    turn_timeout: float = duration(3600.0, "time limit of a turn", positive=True)
    cancel_grace: float = duration(5.0, "how long a canceled handler may take to stop")
    drain_timeout: float = duration(10.0, "how long running turns may continue at shutdown")
    # below the 5 s that the reference client waits for a byte by default
    keepalive: float = duration(
        4.0, "interval of keepalive comments on an idle stream", positive=True
    )
    stall: float = duration(
        120.0,
        "close a stream whose client has read nothing, or an idle gRPC connection, after this time",
        positive=True,
    )
    lease: float = duration(
        30.0, "how long a worker that does not renew it holds a task", positive=True
    )
    poll: float = duration(
        1.0, "how often to read the store when no notification comes", positive=True
    )
    watchdog: float = duration(
        1.0, "report a handler that blocks the event loop for this time; 0 is off"
    )
    # monitoring
    metrics_port: int | None = setting(
        None, "port of /metrics, /healthz and /readyz; 0 picks a free one; without it, none"
    )
    metrics_host: str = setting("127.0.0.1", "address of `metrics_port`")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "lowest log level")
    log_format: Literal["text", "json"] = setting("text", "format of log lines")
    access_log: bool = setting(False, "log every request")
    audit: bool = setting(
        False,
        "log to dragoman.audit: refused callers, requests for tasks of others, cancels, webhook "
        "changes, reads of the extended card",
    )

    def secrets(self) -> list[str]:
        """What must not be shown: keys, and the passwords in URLs."""
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


def load(arguments: Mapping[str, Any] | None = None, **more: Any) -> Settings:
    """The settings in force; the arguments are those of `resolve`."""
    return resolve(arguments, **more)[0]


def resolve(
    arguments: Mapping[str, Any] | None = None,
    *,
    origin: str = "code",
    defaults: Mapping[str, Any] | None = None,
    texts: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | Path | None = None,
    checks: Checks | None = None,
    warn: Callable[[str], None] | None = None,
) -> tuple[Settings, dict[str, str]]:
    """The settings in force, and for each its source: default, a file, a variable, command line,
    or `origin` for `arguments`. `texts` are arguments from a command line, not yet of their type.
    The file is the one given, `DRAGOMAN_CONFIG`, or `dragoman.toml` if it exists. `warn` gets
    what may be a mistake; by default it is logged. SettingsError has all that is wrong."""
    warn = warn or logging.getLogger("dragoman").warning
    environ = _without_service_links(os.environ if environ is None else environ)
    values: dict[str, Any] = dict(defaults or {})
    sources = dict.fromkeys(Settings.__struct_fields__, "default")
    errors: list[str] = []

    def take(name: str, value: Any, where: str, source: str, *, strict: bool) -> None:
        try:
            values[name] = _one(name, value, where, checks or {}, strict=strict)
            sources[name] = source
        except SettingsError as error:
            errors.extend(error.errors)

    named = file or environ.get(PREFIX + "CONFIG")
    path = Path(named or FILE)
    if named or path.is_file():
        try:
            for name, value in _read(path).items():
                take(name, value, f"{path}: {name}", str(path), strict=True)
        except SettingsError as error:
            errors.extend(error.errors)
    for variable, text in environ.items():
        name = variable.removeprefix(PREFIX).lower()
        if variable in (name, PREFIX + "CONFIG") or variable.startswith(PREFIX + "_"):
            continue
        if variable.startswith(PREFIX) and name not in DECLARED:
            warn(f"{variable}: {_unknown(name, lambda known: PREFIX + known.upper())}")
        elif variable == PREFIX + name.upper():
            take(name, text, variable, variable, strict=False)
    for name, value in (arguments or {}).items():
        if value is not None:
            take(name, value, name, origin, strict=True)
    for name, text in (texts or {}).items():
        take(name, text, name, "command line", strict=False)
    if errors:
        raise SettingsError(*errors)
    return Settings(**values), sources


def _unknown(name: str, spell: Callable[[str], str] = str) -> str:
    """The error for a name that no setting has, with the name that was probably meant."""
    from difflib import get_close_matches  # only where something is wrong

    close = get_close_matches(name.lower().replace("-", "_"), DECLARED, 1)
    hint = f"did you mean {spell(close[0])}?" if close else "`dragoman config` lists all settings"
    return f"there is no such setting; {hint}"


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


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from error


def literal(name: str, value: Any) -> str:
    """The value of a setting as TOML writes it, durations and sizes with a unit."""
    unit = DECLARED[name].unit
    show = show_duration if unit == "duration" else show_size
    if isinstance(value, tuple) and unit:
        return _toml([show(item) for item in value])
    return _toml((show(value) if value else 0) if unit else value)


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


def _one(name: str, value: Any, where: str, checks: Checks, *, strict: bool) -> Any:
    kinds = {item.name: item.type for item in msgspec.structs.fields(Settings)}
    if name not in kinds:
        instead = INSTEAD.get(name)
        why = f"there is no such setting; {instead}" if instead else _unknown(name)
        raise SettingsError(f"{where}: {why}")
    if isinstance(value, str) and name in TABLES:
        try:
            value = json.loads(value or "[]")
        except ValueError as error:
            raise SettingsError(f"{where}: is not JSON: {error}") from None
    if isinstance(value, str) and typing.get_origin(kinds[name]) is tuple:
        value, strict = [item.strip() for item in value.split(",") if item.strip()], False
    if isinstance(value, Mapping) and name in TABLES:
        toml = where.endswith(f": {name}")
        way = f"write [[{name}]] with two brackets" if toml else "give a list, even for one table"
        raise SettingsError(f"{where}: is one table, not a list of tables; {way}")
    try:
        value = _without_units(value, DECLARED[name], strict=strict)
    except ValueError as error:
        raise SettingsError(f"{where}: {error}") from None
    try:
        found = msgspec.convert(value, kinds[name], strict=strict)
    except msgspec.ValidationError as error:
        if typing.get_origin(kinds[name]) is Literal:
            known = ", ".join(map(str, typing.get_args(kinds[name])))
            raise SettingsError(f"{where}: must be one of {known}; {DESCRIPTIONS[name]}") from None
        raise SettingsError(f"{where}: {error}") from None
    numbers = found if isinstance(found, tuple) else (found,)
    if not all(number >= 0 for number in numbers if isinstance(number, int | float)):
        raise SettingsError(f"{where}: must not be negative")
    if DECLARED[name].positive and not found:
        raise SettingsError(f"{where}: must be greater than 0")
    if name in checks:
        try:
            checks[name](found)
        except ValueError as error:
            raise SettingsError(f"{where}{error}") from None
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


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
