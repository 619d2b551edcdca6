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
    url: str = setting("", "the public URL on the card; empty uses the URL of the request")
    cert: str = setting("", "the server certificate, a PEM file; empty disables TLS")
    key: str = setting(
        "", "the private key of `cert`; empty means that the key is in the same file"
    )
    key_password: str = setting("", "the password of an encrypted private key")
    ca: str = setting("", "CA bundle (PEM) for client certificates; enables mutual TLS")
    ca_optional: bool = setting(
        False, "accept clients without a certificate, too; gRPC then does not request one"
    )
    grpc_port: int | None = setting(None, "the gRPC port; 0 picks a free one; unset disables gRPC")
    grpc_url: str = setting(
        "",
        "the gRPC address on the card, host:port or a URL, if `bindings` names GRPC; empty "
        "uses the host of `url`",
    )
    grpc_cert: str = setting("", "the gRPC server certificate, a PEM file; empty uses `cert`")
    grpc_key: str = setting("", "the private key of `grpc_cert`; empty uses `key` with `cert`")
    grpc_ca: str = setting("", "CA bundle (PEM) for certificates of gRPC clients; empty uses `ca`")
    bindings: tuple[str, ...] = setting(
        ("JSONRPC", "HTTP+JSON"),
        "the bindings on the card, in this order: JSONRPC, HTTP+JSON, GRPC (needs "
        "`grpc_port`); JSONRPC:/rpc sets a path. The server serves all bindings, also "
        "those that are not on the card",
    )
    versions: tuple[str, ...] = setting(
        ("1.0", "0.3"), "the A2A versions on the card, in this order"
    )
    forwarded: bool = setting(
        False, "use X-Forwarded-Proto, -Host and -Prefix for the URLs on the card"
    )
    hosts: tuple[str, ...] = setting(
        (),
        "the allowed Host headers, also patterns such as *.example; other requests get "
        "421. Empty allows any host, but on a loopback address only the names of this "
        "machine and the host of `url`",
    )
    cors: tuple[str, ...] = setting(
        (), "other origins whose pages may call the agents from a browser; * allows any"
    )
    hsts: float = setting(
        0.0, "the max-age of the Strict-Transport-Security header, in seconds; 0 sends no header"
    )
    store: str = setting(
        "memory:",
        "where tasks are stored: memory:, sqlite:///file or postgresql://…; `dragoman "
        "serve` uses a SQLite file by default",
    )
    connections: int = setting(8, "the maximum number of PostgreSQL connections")
    migrate: bool = setting(
        True, "update the PostgreSQL tables at the start; if false, run `dragoman db migrate`"
    )
    bell: str = setting(
        "",
        "how replicas wake each other: memory:, postgresql://…, nats://… or redis://…; "
        "empty chooses by the store",
    )
    synchronous: Literal["full", "normal"] = setting(
        "full",
        "full: a SQLite commit survives a power loss; normal: it survives only the end of "
        "the process",
    )
    keep: float = setting(
        0.0, "how long a database keeps a task after it ended; 0 keeps it forever"
    )
    seal_keys: tuple[str, ...] = setting(
        (),
        "keys that encrypt webhook secrets in a database; the first key encrypts, all keys decrypt",
    )
    # what
    push: bool = setting(False, "offer webhooks and deliver events to them")
    push_keys: tuple[str, ...] = setting((), "keys that sign webhook deliveries: whsec_… or whsk_…")
    push_retries: tuple[float, ...] = setting(
        (5, 30, 120, 300, 600, 1800, 7200, 18000, 36000, 50400, 72000, 86400),
        "the pauses between delivery attempts; after the last attempt the webhook is parked",
    )
    push_timeout: float = setting(15.0, "how long to wait for the response of a webhook")
    push_running: int = setting(
        64, "the maximum number of deliveries of one owner at once; of all owners, twice as many"
    )
    push_per_host: int = setting(8, "the maximum number of deliveries to one host at once")
    egress_allow: tuple[str, ...] = setting(
        (), "private hosts and networks, and plain http hosts, that webhooks may reach"
    )
    duplicates: Literal["off", "authenticated", "always"] = setting(
        "authenticated",
        "merge identical messages without an Idempotency-Key: off, authenticated (from "
        "authenticated callers) or always",
    )
    card_age: int = setting(300, "how long clients may cache the card")
    card_keys: tuple[str, ...] = setting(
        (), "files with private keys (PEM or JWK) that sign the card; each key adds a signature"
    )
    card_jku: str = setting(
        "own", "the key URL in card signatures: own is /.well-known/jwks.json; or any URL"
    )
    auth: tuple[dict[str, Any], ...] = setting(
        (), "the authentication schemes: tables with `scheme` and its arguments; see security.md"
    )
    # limits
    max_connections: int = setting(
        10_000, "the maximum number of open connections; lower if the limit of open files is lower"
    )
    max_per_address: int = setting(
        0,
        "the maximum number of connections from one address (IPv6: one /64); 0 is half of "
        "max_connections",
    )
    max_head: int = setting(64 * 1024, "the maximum size of the request line and headers")
    grpc_calls: int = setting(
        1000,
        "the maximum number of calls at once on one gRPC connection; more calls wait or "
        "get UNAVAILABLE",
    )
    max_body: int = setting(16 * 1024 * 1024, "the maximum size of a request body")
    max_depth: int = setting(100, "the maximum nesting depth of JSON")
    max_elements: int = setting(100_000, "the maximum number of JSON elements in a request")
    max_in_flight: int = setting(
        256 * 1024 * 1024,
        "the maximum memory for large bodies and responses in progress; one address gets "
        "half of it",
    )
    max_parts: int = setting(1000, "the maximum number of parts in a message")
    workers: Literal[0, 1] = setting(
        1,
        "1 serves and runs turns; 0 only serves: other processes, such as `dragoman "
        "worker`, run the turns",
    )
    max_running: int = setting(
        1000, "the maximum number of turns that run at once; more turns wait"
    )
    max_streams: int = setting(10_000, "the maximum number of open streams")
    max_tasks: int = setting(
        50_000, "the maximum number of tasks in the memory store; the oldest are deleted first"
    )
    task_age: float = setting(24 * 3600.0, "how long the memory store keeps a task after it ended")
    max_events: int = setting(100_000, "the maximum number of events that a turn may write")
    max_task: int = setting(MAX_TASK, "the maximum size of a task in a database")
    max_output: int = setting(64 * 1024 * 1024, "the maximum number of bytes that a turn may write")
    stream_buffer: int = setting(
        64 * 1024, "the maximum number of bytes that a stream reads from a log at once"
    )
    threads: int = setting(
        32, "the maximum number of plain (not async) handlers that run at once, in threads"
    )
    max_hops: int = setting(8, "the maximum number of agents that may have forwarded a request")
    max_file: int = setting(
        0, "the maximum size of a file in a message; 0 means that only max_body limits it"
    )
    file_types: tuple[str, ...] = setting(
        (),
        "the allowed media types of files, also patterns such as image/*; empty allows all "
        "that the agent accepts",
    )
    # of each caller
    quota_tasks: int = setting(
        10_000, "the maximum number of unfinished tasks of one identity; 0 means no limit"
    )
    quota_waiting: int = setting(
        5_000, "the maximum number of tasks of one identity that wait for input; 0 means no limit"
    )
    quota_streams: int = setting(
        1_000, "the maximum number of open streams of one identity; 0 means no limit"
    )
    rate: float = setting(
        0.0, "the maximum number of requests per second of one identity; 0 means no limit"
    )
    rate_address: float = setting(
        0.0,
        "the maximum number of requests per second from one address, counted before "
        "authentication; 0 means no limit",
    )
    rate_burst: int = setting(50, "the maximum number of requests in a burst, for both rates")
    proxies: tuple[str, ...] = setting(
        (), "networks of trusted reverse proxies; the server uses their X-Forwarded-For"
    )
    # times
    header_timeout: float = setting(
        10.0, "how long the request line and headers, or a TLS handshake, may take to arrive"
    )
    body_timeout: float = setting(30.0, "how long a request body may take to arrive")
    blocking_timeout: float = setting(300.0, "how long a blocking send waits for its response")
    turn_timeout: float = setting(3600.0, "how long a turn may run")
    cancel_grace: float = setting(5.0, "how long an agent may take to stop after a cancel request")
    drain: float = setting(10.0, "how long running turns may continue at shutdown")
    # below the 5 s that the reference client waits for a byte by default
    keepalive: float = setting(4.0, "how often an idle stream sends a keep-alive")
    stall: float = setting(
        120.0,
        "close a stream whose client has read nothing, or an idle gRPC connection, after "
        "this many seconds",
    )
    lease: float = setting(30.0, "how long a worker holds a task without renewing its lease")
    poll: float = setting(1.0, "how often to read the store when no bell rings")
    watchdog: float = setting(
        1.0,
        "report a handler that blocks the event loop for this many seconds; 0 disables the report",
    )
    # what it tells of itself
    metrics_port: int | None = setting(
        None, "the port of /metrics, /healthz and /readyz; 0 picks a free one; unset disables them"
    )
    metrics_host: str = setting("127.0.0.1", "the address that metrics_port listens on")
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "the lowest level to log: debug, info, warning or error"
    )
    log_format: Literal["text", "json"] = setting("text", "the format of log lines: text or json")
    access_log: bool = setting(False, "log every request")
    audit: bool = setting(
        False,
        "log security events to dragoman.audit: refused callers, requests for the tasks of "
        "others, cancels, webhook changes, reads of the extended card",
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
            warn(f"{name}: unknown setting; `dragoman config` lists all settings")
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
        raise SettingsError(f"{where}: unknown setting; `dragoman config` lists all settings")
    if isinstance(value, str) and name in TABLES:
        try:
            value = json.loads(value or "[]")
        except ValueError as error:
            raise SettingsError(f"{where}: is not valid JSON: {error}") from None
    if isinstance(value, str) and typing.get_origin(kinds[name]) is tuple:
        value, strict = [item.strip() for item in value.split(",") if item.strip()], False
    if isinstance(value, Mapping) and name in TABLES:
        toml = where.endswith(f": {name}")
        way = f"write [[{name}]] with two brackets" if toml else "give a list, even for one table"
        raise SettingsError(f"{where}: is a table; expected a list of tables; {way}")
    try:
        found = msgspec.convert(value, kinds[name], strict=strict)
    except msgspec.ValidationError as error:
        if typing.get_origin(kinds[name]) is Literal:
            known = ", ".join(map(str, typing.get_args(kinds[name])))
            raise SettingsError(f"{where}: must be one of {known}: {DESCRIPTIONS[name]}") from None
        raise SettingsError(f"{where}: {error}") from None
    numbers = found if isinstance(found, tuple) else (found,)
    if not all(number >= 0 for number in numbers if isinstance(number, int | float)):
        raise SettingsError(f"{where}: must not be negative")
    if name in POSITIVE and not found:
        raise SettingsError(f"{where}: must be greater than 0")
    if name in checks:
        try:
            checks[name](found)
        except ValueError as error:
            raise SettingsError(f"{where}{error}") from None
    return found
