"""Settings: where they come from, which of them wins, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.model.units import parse_duration, show_duration, show_size
from dragoman.server.load_settings import PREFIX, load, resolve
from dragoman.server.settings import (
    DECLARED,
    DESCRIPTIONS,
    Settings,
    SettingsError,
    choices,
    default_text,
    meaning,
)
from dragoman.server.wiring import CHECKS
from dragoman.stores import connect
from dragoman.stores.memory import MemoryStore
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.sqlite import SqliteStore


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory without a configuration, and no variables."""
    monkeypatch.chdir(tmp_path)
    for name in Settings.__struct_fields__:
        monkeypatch.delenv(f"DRAGOMAN_{name.upper()}", raising=False)
    monkeypatch.delenv("DRAGOMAN_CONFIG", raising=False)
    yield tmp_path


def write(path: Path, text: str, name: str = "dragoman.toml") -> Path:
    """A configuration file."""
    file = path / name
    file.write_text(text, "utf-8")
    return file


# ---- where they come from ------------------------------------------------------------------


def test_defaults() -> None:
    assert load() == Settings()


def test_arguments_before_variables_before_the_file(elsewhere: Path) -> None:
    write(elsewhere, 'port = 1\nhost = "file"\nurl = "http://file"\npoll = 1')
    environ = {"DRAGOMAN_PORT": "2", "DRAGOMAN_HOST": "variable", "DRAGOMAN_DRAIN_TIMEOUT": "2"}
    found = load({"port": 3}, environ=environ)
    assert found == Settings(
        port=3, host="variable", url="http://file", poll=1.0, drain_timeout=2.0
    )


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_each_setting_has_the_same_precedence(name: str, elsewhere: Path) -> None:
    first, second, third = options(name)
    write(elsewhere, f"{name} = {literal(first)}")
    assert getattr(load(environ={}), name) == first
    environ = {f"DRAGOMAN_{name.upper()}": text(second)}
    assert getattr(load(environ=environ), name) == second
    assert getattr(load({name: third}, environ=environ), name) == third
    assert getattr(load(texts={name: text(third)}, environ=environ), name) == third


def options(name: str) -> tuple[Any, Any, Any]:
    """Three values of a setting's type, neighbours different where there are enough of them."""
    (kind,) = (f.type for f in msgspec.structs.fields(Settings) if f.name == name)
    if kind is bool:
        return True, False, True
    if kind in (int, int | None):
        return 11, 12, 13
    if kind in (float, float | None):
        return 1.5, 2.5, 3.0
    if kind in (str, int | str | None):
        return "a", "b", "c"
    if kind == tuple[str, ...]:
        return ("a",), ("b", "c"), ()
    if kind == tuple[float, ...]:
        return (1.0,), (2.0, 3.5), ()
    if kind == tuple[dict[str, Any], ...]:
        return ({"scheme": "a"},), ({"scheme": "b", "keys": ["c"]}, {}), ()
    choices = kind.__args__
    return choices[0], choices[1], choices[-1]


def literal(value: Any) -> str:
    """A value in TOML."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name} = {literal(item)}' for name, item in value.items())}}}"
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def text(value: Any) -> str:
    """A value in a variable."""
    if isinstance(value, tuple) and any(isinstance(item, dict) for item in value):
        return json.dumps(value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_variables_are_those_of_the_process_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_PORT", "4321")
    assert load().port == 4321


def test_an_argument_of_none_is_none() -> None:
    assert load({"port": None, "host": None}) == Settings()


def test_the_file_that_is_named(elsewhere: Path) -> None:
    write(elsewhere, "port = 1")
    other = write(elsewhere, "port = 2", "other.toml")
    third = write(elsewhere, "port = 3", "third.toml")
    assert load(environ={}).port == 1
    assert load(environ={"DRAGOMAN_CONFIG": str(other)}).port == 2
    assert load(environ={"DRAGOMAN_CONFIG": str(other)}, file=third).port == 3


@pytest.mark.parametrize("word", ["true", "True", "1"])
def test_words_for_true(word: str) -> None:
    assert load(environ={"DRAGOMAN_PUSH": word}).push is True


@pytest.mark.parametrize("word", ["false", "False", "0"])
def test_words_for_false(word: str) -> None:
    assert load(environ={"DRAGOMAN_PUSH": word}).push is False


# ---- what Kubernetes sets ------------------------------------------------------------------


def links(service: str) -> dict[str, str]:
    """What Kubernetes sets in every pod of a namespace for one of its Services."""
    name = service.upper().replace("-", "_")
    port = f"{name}_PORT_80_TCP"
    return {
        f"{name}_SERVICE_HOST": "10.43.0.7",
        f"{name}_SERVICE_PORT": "80",
        f"{name}_SERVICE_PORT_HTTP": "80",
        f"{name}_PORT": "tcp://10.43.0.7:80",
        port: "tcp://10.43.0.7:80",
        f"{port}_PROTO": "tcp",
        f"{port}_PORT": "80",
        f"{port}_ADDR": "10.43.0.7",
    }


@pytest.mark.parametrize("service", ["dragoman", "dragoman-grpc", "dragoman-metrics"])
def test_the_links_of_a_service_with_our_name_are_no_settings(service: str) -> None:
    assert load(environ=links(service)) == Settings()  # a warning would fail this, too


def test_a_setting_beside_the_links_counts() -> None:
    environ = links("dragoman") | links("dragoman-metrics")
    chosen = {"DRAGOMAN_PORT": "8080", "DRAGOMAN_HOST": "0.0.0.0", "DRAGOMAN_URL": "https://x"}
    found = load(environ=environ | chosen)
    assert found == Settings(port=8080, host="0.0.0.0", url="https://x")


def test_an_address_in_the_place_of_a_port_is_refused_where_there_is_no_service() -> None:
    assert fault(environ={"DRAGOMAN_PORT": "tcp://10.43.0.7:80"}).startswith("DRAGOMAN_PORT: ")
    other = {**links("dragoman-grpc"), "DRAGOMAN_PORT": "tcp://10.43.0.7:80"}
    assert fault(environ=other).startswith("DRAGOMAN_PORT: ")


# ---- durations and sizes -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        *[("lease", "45s", 45.0), ("lease", "90m", 5400.0), ("lease", "12h", 43200.0)],
        *[("lease", "30d", 2592000.0), ("lease", "2w", 1209600.0), ("lease", "0.5s", 0.5)],
        *[("max_body", "16MiB", 16 << 20), ("max_body", "64KiB", 64 << 10)],
        *[("max_body", "1.5 GiB", 3 << 29), ("max_body", "12B", 12)],
    ],
)
def test_a_value_with_a_unit(name: str, text: str, value: float, elsewhere: Path) -> None:
    file = write(elsewhere, f'{name} = "{text}"', "other.toml")
    variable = {f"DRAGOMAN_{name.upper()}": text}
    assert getattr(load(file=file, environ={}), name) == value
    assert getattr(load(environ=variable), name) == value
    assert getattr(load(texts={name: text}, environ={}), name) == value
    assert getattr(load({name: text}, environ={}), name) == value


def test_a_list_of_durations(elsewhere: Path) -> None:
    file = write(elsewhere, 'push_retries = ["5s", "2m", 7]', "other.toml")
    assert load(file=file, environ={}).push_retries == (5, 120, 7)
    assert load(environ={"DRAGOMAN_PUSH_RETRIES": "5s, 2m, 7"}).push_retries == (5, 120, 7)


@pytest.mark.parametrize("text", ["x", "", "5", "45 parsecs", "45S", "-5s", "5m3s", "s", "\u0665s"])
def test_what_is_not_a_duration(text: str, elsewhere: Path) -> None:
    file = write(elsewhere, f'lease = "{text}"')
    words = f"{text!r} is not a duration; use 45s, 90m or 12h"
    assert fault(file=file) == f"{file}: lease: {words}"
    if text != "5":  # a variable has no other way to write a number
        assert fault(environ={"DRAGOMAN_LEASE": text}, file=os.devnull) == (
            f"DRAGOMAN_LEASE: {words}"
        )


@pytest.mark.parametrize("text", ["x", "16MB", "16mib", "0.3B", "16M", "45s"])
def test_what_is_not_a_size(text: str) -> None:
    words = f"{text!r} is not a size; use 64KiB, 16MiB or 1GiB"
    assert fault(texts={"max_body": text}) == f"max_body: {words}"


def test_no_unit_where_there_is_none() -> None:
    assert fault(texts={"port": "45s"}).startswith("port: ")


@pytest.mark.parametrize("number", [0.0, 0.25, 1.0, 59.0, 90.0, 5400.0, 43200.0, 604800.0, 1e9 / 3])
def test_a_duration_is_shown_as_it_is_read(number: float) -> None:
    assert parse_duration(show_duration(number)) == pytest.approx(number, rel=1e-12)


def test_the_unit_that_is_shown() -> None:
    assert [show_duration(each) for each in (0.5, 45, 5400, 43200, 2592000)] == [
        *("0.5s", "45s", "90m", "12h", "30d")
    ]
    assert [show_size(each) for each in (0, 1000, 65536, 16 << 20, 3 << 30)] == [
        *("0B", "1000B", "64KiB", "16MiB", "3GiB")
    ]


# ---- what is refused, and how it is named --------------------------------------------------


def fault(**arguments: Any) -> str:
    """What loading complains of."""
    with pytest.raises(SettingsError) as caught:
        load(**{"environ": {}, **arguments})
    return str(caught.value)


def test_an_unknown_key(elsewhere: Path) -> None:
    assert fault(arguments={"prot": 1}).startswith("prot: there is no such setting")
    assert fault(texts={"prot": "1"}).startswith("prot: there is no such setting")
    file = write(elsewhere, "prot = 1")
    assert fault(file=file).startswith(f"{file}: prot: there is no such setting")


def test_an_unknown_variable(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    assert load(environ={"DRAGOMAN_PROT": "1"}, warn=told.append) == Settings()
    assert told == ["DRAGOMAN_PROT: there is no such setting; did you mean DRAGOMAN_PORT?"]
    load(environ={"DRAGOMAN_PROT": "1"})
    assert told == [record.getMessage() for record in caplog.records]


def test_the_name_that_was_meant(elsewhere: Path) -> None:
    said = "there is no such setting; did you mean max_body?"
    assert fault(arguments={"max_boddy": 3}) == f"max_boddy: {said}"
    assert fault(texts={"maxbody": "3"}) == f"maxbody: {said}"
    file = write(elsewhere, "Max-Body = 3")
    assert fault(file=file) == f"{file}: Max-Body: {said}"
    file.unlink()
    assert fault(arguments={"xyzzy": 3}).endswith("; `dragoman config` lists all settings")


def test_all_that_is_wrong_is_said_at_once(elsewhere: Path) -> None:
    file = write(elsewhere, 'prot = 1\nlease = "x"\nhost = "a"')
    environ = {"DRAGOMAN_MAX_BODY": "16MB", "DRAGOMAN_POLL": "2s"}
    with pytest.raises(SettingsError) as caught:
        load({"push": 3}, texts={"threads": "0"}, environ=environ, file=file)
    assert [each.rpartition(": ")[0] or each for each in caught.value.errors] == [
        *(f"{file}: prot", f"{file}: lease", "DRAGOMAN_MAX_BODY", "push", "threads")
    ]
    assert str(caught.value).splitlines() == list(caught.value.errors)
    missing = elsewhere / "missing.toml"
    assert len(fault(file=missing, texts={"threads": "0"}).splitlines()) == 2


def test_the_source_of_each_value(elsewhere: Path) -> None:
    write(elsewhere, "port = 1\nthreads = 2\nrate = 3")
    environ = {"DRAGOMAN_PORT": "2", "DRAGOMAN_POLL": "2s"}
    chosen, sources = resolve({"lease": 5}, texts={"rate": "4"}, environ=environ)
    assert chosen == Settings(port=2, threads=2, rate=4, poll=2, lease=5)
    assert {name: source for name, source in sources.items() if source != "default"} == {
        "port": "DRAGOMAN_PORT",
        "threads": "dragoman.toml",
        "poll": "DRAGOMAN_POLL",
        "lease": "code",
        "rate": "command line",
    }
    assert list(sources) == list(Settings.__struct_fields__)


def test_one_table_where_several_may_be(elsewhere: Path) -> None:
    file = write(elsewhere, '[auth]\nscheme = "key"', "other.toml")
    words = "is one table, not a list of tables;"
    assert fault(file=file) == f"{file}: auth: {words} write [[auth]] with two brackets"
    said = fault(environ={"DRAGOMAN_AUTH": "{}"})
    assert said == f"DRAGOMAN_AUTH: {words} give a list, even for one table"


def test_the_stores_have_the_same_limit(tmp_path: Path) -> None:
    limit = Settings().max_task_bytes
    assert SqliteStore(tmp_path / "a.db").max_task_bytes == limit
    assert PostgresStore("postgresql://x/y").max_task_bytes == limit


@pytest.mark.parametrize(
    ("chosen", "memory", "database"), [(None, 86400.0, 0.0), (0.0, 0.0, 0.0), (60.0, 60.0, 60.0)]
)
def test_each_store_has_its_own_default_of_retention(
    chosen: float | None, memory: float, database: float, tmp_path: Path
) -> None:
    for url, expected in (
        ("memory:", memory),
        (f"sqlite:///{tmp_path}/a.db", database),
        ("postgresql://x/y", database),
    ):
        store = connect(Settings(store=url, retention=chosen))
        assert isinstance(store, MemoryStore | SqliteStore | PostgresStore)
        assert store.retention == expected


def test_a_table_in_the_file_is_no_setting(elsewhere: Path) -> None:
    file = write(elsewhere, "[server]\nport = 1")
    assert fault(file=file).startswith(f"{file}: server: there is no such setting")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "80"),
        ("port", 1.5),
        ("port", True),
        ("host", 1),
        ("push", "true"),
        ("push", 1),
        ("poll", "1"),
        ("idempotency", "never"),
        ("log_level", "loud"),
        ("max_body", None.__class__),
        ("url", ["http://x"]),
    ],
)
def test_an_argument_of_a_wrong_type(name: str, value: Any) -> None:
    assert fault(arguments={name: value}).startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("port", "eighty"),
        ("port", ""),
        ("port", "1.5"),
        ("push", "maybe"),
        ("poll", "soon"),
        ("idempotency", "never"),
        ("log_format", "xml"),
    ],
)
def test_a_variable_of_a_wrong_type(name: str, word: str) -> None:
    variable = f"DRAGOMAN_{name.upper()}"
    assert fault(environ={variable: word}).startswith(f"{variable}: ")
    assert fault(texts={name: word}).startswith(f"{name}: ")


def test_a_wrong_type_in_the_file(elsewhere: Path) -> None:
    file = write(elsewhere, 'port = "80"')
    assert fault(file=file).startswith(f"{file}: port: ")


NUMBERS = [field.name for field in msgspec.structs.fields(Settings) if field.type in (int, float)]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_negative_number(name: str, elsewhere: Path) -> None:
    variable = f"DRAGOMAN_{name.upper()}"
    assert fault(arguments={name: -1}) == f"{name}: must not be negative"
    assert fault(environ={variable: "-1"}) == f"{variable}: must not be negative"
    file = write(elsewhere, f"{name} = -1")
    assert fault(file=file) == f"{file}: {name}: must not be negative"


def test_what_is_not_a_number_is_no_time(elsewhere: Path) -> None:
    assert fault(arguments={"poll": float("nan")}).startswith("poll: ")
    assert fault(environ={"DRAGOMAN_POLL": "nan"}).startswith("DRAGOMAN_POLL: ")
    file = write(elsewhere, "poll = nan")
    assert fault(file=file).startswith(f"{file}: poll: ")


def test_a_file_that_is_not_there(elsewhere: Path) -> None:
    missing = elsewhere / "missing.toml"
    assert fault(file=missing) == f"{missing}: No such file or directory"
    assert fault(environ={"DRAGOMAN_CONFIG": str(missing)}).startswith(str(missing))


def test_a_file_that_is_not_toml(elsewhere: Path) -> None:
    file = write(elsewhere, "port: 80")
    assert fault(file=file).startswith(f"{file}: ")
    file.write_bytes(b'host = "\xff"')
    assert fault(file=file).startswith(f"{file}: ")


def test_what_is_wrong_is_refused_though_another_wins(elsewhere: Path) -> None:
    write(elsewhere, "port = -1")
    assert "port" in fault(arguments={"port": 1})


# ---- showing them --------------------------------------------------------------------------


@pytest.mark.clause("logs.no-secrets")
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory:", "memory:"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql://user@host/db", "postgresql://user@host/db"),
        ("postgresql://user:secret@host/db", "postgresql://user:***@host/db"),
        ("postgresql://user:@host/db", "postgresql://user:***@host/db"),
        ("redis://:secret@host:6379/0", "redis://:***@host:6379/0"),
        ("nats://u:secret@a:1,v:secret@b:2", None),
        ("postgresql://user:sec%40ret@host", "postgresql://user:***@host"),
        ("postgresql://user:sec@secret@host", None),
        ("postgresql://user:sec/secret@host", None),
        ("postgresql:///db?user=u&password=secret", None),
    ],
)
def test_passwords_are_masked(url: str, shown: str | None) -> None:
    masked = Settings(store=url, bell=url).masked()
    assert masked["store"] == masked["bell"]
    assert "secret" not in masked["store"]
    if shown is not None:
        assert masked["store"] == shown


def test_the_rest_is_shown_as_it_is() -> None:
    chosen = Settings(port=1, push=True, url="https://example.org/a:b@c")
    assert chosen.masked() == {**msgspec.structs.asdict(chosen), "auth": []}


def test_every_setting_has_a_line_of_help() -> None:
    assert list(DESCRIPTIONS) == list(Settings.__struct_fields__)
    assert all(DESCRIPTIONS.values())
    assert PREFIX == "DRAGOMAN_"


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Settings().port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "words"),
    [("log_format", "must be one of text, json"), ("log_level", "must be one of debug, info")],
)
def test_a_choice_says_what_there_is_to_choose(name: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load(texts={name: "4"}, environ={})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rate", "x", "rate: must be a number, not 'x'"),
        ("threads", "1.5", "threads: must be a whole number, not '1.5'"),
        ("push", "perhaps", "push: must be true or false, not 'perhaps'"),
    ],
)
def test_a_value_of_a_wrong_type(name: str, text: str, said: str) -> None:
    assert fault(texts={name: text}) == said


def test_a_wrong_value_in_a_list_or_of_a_secret() -> None:
    assert fault(arguments={"egress_allow": [3]}) == "egress_allow: the value at [0] must be a text"
    assert fault(arguments={"key_password": 1234}) == "key_password: must be a text"


@pytest.mark.parametrize("name", ["port", "grpc_port"])
def test_the_highest_port(name: str) -> None:
    assert getattr(load({name: 65535}, environ={}), name) == 65535
    assert fault(arguments={name: 65536}) == f"{name}: must be at most 65535, not 65536"


def test_where_metrics_are_served() -> None:
    assert Settings().metrics_address is None
    for given, address in (
        (0, ("127.0.0.1", 0)),
        ("9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("[::1]:9464", ("::1", 9464)),
    ):
        found = load(texts={"metrics": str(given)}, environ={}, checks=CHECKS)
        assert found.metrics_address == address
        assert load({"metrics": given}, environ={}, checks=CHECKS).metrics_address == address
    for given, why in (("x", "is neither a port nor"), (65536, "at most 65535"), (":1", "neither")):
        with pytest.raises(SettingsError, match=f"^metrics: .*{why}"):
            load({"metrics": given}, environ={}, checks=CHECKS)


def test_limits_that_follow_from_settings() -> None:
    found = Settings()
    assert (found.header_timeout, found.max_streams, found.max_output) == (10.0, 10_000, 64 << 20)
    assert (found.quota_waiting, found.quota_streams, found.rate_burst) == (5000, 1000, 50)
    assert (found.max_in_flight, Settings(max_body=100).max_in_flight) == (256 << 20, 1600)
    other = Settings(
        request_timeout=3, max_connections=7, max_task_bytes=400, quota_tasks=0, rate=80.0
    )
    assert (other.header_timeout, other.max_streams, other.max_output) == (1.0, 7, 100)
    assert (other.quota_waiting, other.quota_streams, other.rate_burst) == (0, 0, 80)


def test_the_default_in_words() -> None:
    assert default_text("log_level") == '"info"'
    assert default_text("url") == "the URL of the request"
    assert choices("log_format") == ("text", "json")
    assert meaning("log_format") == "format of log lines; one of text, json"
    for name, declared in DECLARED.items():
        empty = getattr(Settings(), name) in ("", None, (), 0.0) and choices(name) == ()
        assert not empty or declared.unset, f"{name}: what does its default mean?"
