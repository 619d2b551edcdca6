"""Who may call, as the settings say it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from dragoman import App, Settings
from dragoman.cli import Options, main, serve
from dragoman.model.caller import Request
from dragoman.security import (
    AllOf,
    Anonymous,
    ApiKey,
    Basic,
    Bearer,
    Certificate,
    Introspection,
    OAuth2,
    OpenId,
    Token,
)
from dragoman.security.from_config import SCHEMES, build
from dragoman.server.load_settings import load
from dragoman.server.settings import SettingsError
from dragoman.server.wiring import CHECKS
from dragoman.telemetry.logs import redacted
from tests.harness.server import serving
from tests.security.scheme_requests import doorman, said, send

TABLES: list[dict[str, Any]] = [
    {
        "scheme": "key",
        "header": "X-Key",
        "keys": {"ann": ["old-secret", "new-secret"]},
        "realm": "keys",
    },
    {"scheme": "token", "tokens": {"bob": "a-token-of-bob"}, "realm": "people"},
    {"scheme": "basic", "users": {"cy": "a-password"}, "realm": "people"},
    {
        "scheme": "bearer",
        "issuer": "https://id.example",
        "audience": ["flights", "hotels"],
        "scopes": ["talk"],
        "leeway": 5,
        "dpop": True,
        "realm": "id",
    },
    {"scheme": "openid", "issuer": "https://id.example", "audience": "flights", "realm": "id"},
    {
        "scheme": "introspection",
        "url": "https://id.example/ask",
        "client_id": "agent",
        "client_secret": "a-client-secret",
        "age": 5,
        "realm": "asked",
        "tenants": {"ann": "acme", "bob": ["acme", "blue"]},
    },
    {
        "scheme": "certificate",
        "identity": "uri",
        "header": "X-Cert",
        "proxies": ["10.0.0.0/8"],
        "realm": "",
    },
    {
        "scheme": "oauth2",
        "verify": {"scheme": "bearer", "issuer": "https://id.example", "audience": "flights"},
        "realm": "id",
        "flow": {"client_credentials": {"token_url": "https://id.example/t", "scopes": {"a": ""}}},
    },
    {"scheme": "anonymous", "tenants": ["*"]},
]
KINDS = (ApiKey, Token, Basic, Bearer, OpenId, Introspection, Certificate, OAuth2, Anonymous)
CLEAR = ["old-secret", "new-secret", "a-token-of-bob", "a-password", "a-client-secret"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory without a configuration."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def test_every_scheme() -> None:
    found = build(TABLES).schemes
    assert [type(scheme) for scheme in found] == list(KINDS)
    assert {table["scheme"] for table in TABLES} == set(SCHEMES)
    key, _, _, bearer, *_ = found
    assert key.identify(Request("", "", "", {"x-key": "new-secret"}, "")).identity == "ann"
    assert bearer.audience == ("flights", "hotels")
    assert bearer.scopes == ("talk",)
    assert bearer.dpop is True
    flow = found[7].declared().oauth2_security_scheme.flows.client_credentials
    assert flow.token_url == "https://id.example/t"


def test_all_of() -> None:
    (found,) = build([{"all_of": [TABLES[0], TABLES[1]]}]).schemes
    assert isinstance(found, AllOf)
    assert [type(scheme) for scheme in found.schemes] == [ApiKey, Token]


# ---- secrets -------------------------------------------------------------------------------


def test_secrets_from_elsewhere(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "from-a-variable")
    (elsewhere / "key").write_text("from-a-file\n")
    digest = "sha256:" + hashlib.sha256(b"from-a-digest").hexdigest()
    monkeypatch.setenv("THE_DIGEST", digest)
    keys = {"a": "env:THE_KEY", "b": ["file:key", digest], "c": "env:THE_DIGEST", "d": "a:b"}
    built = build([{"scheme": "key", "header": "X-Key", "keys": keys}])
    (scheme,) = built.schemes
    for secret, who in (("from-a-variable", "a"), ("from-a-file", "b"), ("a:b", "d")):
        assert scheme.identify(Request("", "", "", {"x-key": secret}, "")).identity == who
    assert sorted(built.secrets) == ["from-a-file", "from-a-variable"]


def test_secrets_are_known_to_the_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "only-in-a-variable")
    keys = {"scheme": "key", "header": "X-Key", "keys": ["env:THE_KEY"]}
    tables = [*TABLES[:6], {**keys, "name": "other", "realm": "other"}]
    settings = load({"auth": tables, "url": "https://a.example"}, environ={}, checks=CHECKS)
    assert sorted(settings.secrets()) == sorted(CLEAR)
    App(doorman(), settings=settings)
    for word in (*CLEAR, "only-in-a-variable"):
        assert word not in redacted(f"they said {word} to me")
    assert "id.example" in redacted("they said id.example to me")


def test_secrets_are_not_shown() -> None:
    masked = json.dumps(Settings(auth=tuple(TABLES)).masked())
    assert not [word for word in CLEAR if word in masked]
    for word in ("https://id.example", "ann", "X-Key", "agent", "client_credentials"):
        assert word in masked


# ---- what is wrong, and where --------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({}, r"\[1\]\.scheme: must be one of .*bearer"),
        ({"scheme": "beaer"}, r"\[1\]\.scheme: must be one of "),
        ({"scheme": ["key"]}, r"\[1\]\.scheme: must be one of "),
        (
            {"scheme": "bearer", "isuer": "x"},
            r"\[1\]\.isuer: unknown argument; bearer has issuer, audience, ",
        ),
        ({"scheme": "bearer", "issuer": "x"}, r"\[1\]\.audience: is required for bearer"),
        ({"scheme": "bearer", "issuer": 1, "audience": "x"}, r"\[1\]\.issuer: Expected `str`"),
        (
            {"scheme": "bearer", "issuer": "x", "audience": "x", "fetch": "y"},
            r"\[1\]\.fetch: unknown argument",
        ),
        (
            {"scheme": "bearer", "issuer": "x", "audience": "x", "algorithms": ["HS256"]},
            r"\[1\]: .*HS256",
        ),
        ({"scheme": "key", "keys": ["x"]}, r"\[1\]: ApiKey: give exactly one of header="),
        ({"scheme": "key", "header": "X", "keys": 5}, r"\[1\]\.keys: Expected"),
        ({"scheme": "key", "header": "X", "keys": ["env:NOT_SET"]}, r"keys\[0\]: .*NOT_SET"),
        ({"scheme": "token", "tokens": {"a": "file:gone"}}, r"tokens\.a: gone: No such file"),
        (
            {**TABLES[5], "client_secret": "sha256:" + "0" * 64},
            r"\[1\]\.client_secret: cannot be a digest",
        ),
        ({"scheme": "certificate", "identity": "mail"}, r"\[1\]\.identity: "),
        ({"scheme": "anonymous", "name": "x"}, r"\[1\]\.name: unknown argument"),
        ({"all_of": []}, r"\[1\]\.all_of: must be a list of two"),
        ({"all_of": [{"scheme": "x"}, {}]}, r"\[1\]\.all_of\[0\]\.scheme: must be"),
        ({"all_of": [TABLES[0], 5]}, r"\[1\]\.all_of\[1\]: must be a table"),
        ({"scheme": "oauth2", "verify": {}, "flow": {}}, r"\[1\]\.verify\.scheme: must be one of"),
        (
            {"scheme": "oauth2", "verify": TABLES[4], "flow": {"client": {}}},
            r"\[1\]\.flow: must be one of authorization_code, ",
        ),
        (
            {"scheme": "oauth2", "verify": TABLES[4], "flow": {"password": {"url": "x"}}},
            r"\[1\]\.flow\.password\.url: unknown field; the fields are token_url",
        ),
        (
            {"scheme": "oauth2", "verify": TABLES[4], "flow": {"client_credentials": {}}},
            r"\[1\]\.flow\.client_credentials: .*tokenUrl",
        ),
    ],
)
def test_faults_are_named(table: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=rf"^auth.*{told}"):
        load({"auth": [TABLES[0], table]}, environ={}, checks=CHECKS)
    with pytest.raises(SettingsError, match=told):
        App(doorman(), settings=Settings(auth=(TABLES[0], table)))


def test_faults_are_named_by_where_they_stand(elsewhere: Path) -> None:
    file = elsewhere / "dragoman.toml"
    file.write_text('[[auth]]\nscheme = "bearer"\nisuer = "x"\n')
    with pytest.raises(SettingsError, match=r"^dragoman.toml: auth\[0\]\.isuer: unknown argument"):
        load(environ={}, checks=CHECKS)
    file.unlink()
    with pytest.raises(SettingsError, match=r"^DRAGOMAN_AUTH: is not JSON"):
        load(environ={"DRAGOMAN_AUTH": "bearer"}, checks=CHECKS)
    with pytest.raises(SettingsError, match=r"^DRAGOMAN_AUTH\[0\]\.scheme: must be"):
        load(environ={"DRAGOMAN_AUTH": '[{"scheme": 1}]'}, checks=CHECKS)
    with pytest.raises(SettingsError, match=r"^DRAGOMAN_AUTH: is one table"):
        load(environ={"DRAGOMAN_AUTH": "{}"}, checks=CHECKS)


# ---- in force ------------------------------------------------------------------------------


async def test_a_file_closes_the_door(elsewhere: Path) -> None:
    (elsewhere / "dragoman.toml").write_text(
        """
        drain_timeout = 0

        [[auth]]
        scheme = "key"
        header = "X-Key"
        keys = { ann = "a-secret-key" }
        realm = "keys"

        [[auth]]
        all_of = [
            { scheme = "basic", users = { cy = "a-password" }, realm = "people" },
            { scheme = "key", header = "X-Other", keys = ["another-key"], name = "other" },
        ]
        """
    )
    async with serving(App(doorman())) as url:
        assert (await send(url)).status_code == 401
        assert said(await send(url, **{"x-key": "a-secret-key"})) == "ann:"
        login = {"authorization": "Basic Y3k6YS1wYXNzd29yZA=="}
        assert (await send(url, **login)).status_code == 401
        assert said(await send(url, **login, **{"x-other": "another-key"})) == "cy:"
        async with httpx.AsyncClient() as http:
            card = (await http.get(f"{url}/.well-known/agent-card.json")).json()
    assert set(card["securitySchemes"]) == {"key", "login", "other"}


async def test_what_the_program_says_comes_first() -> None:
    settings = Settings(auth=(TABLES[0],), drain_timeout=0.0)
    async with serving(App(doorman(), auth=Token({"x": "t"}), settings=settings)) as url:
        assert said(await send(url, "t")) == "x:"
        assert (await send(url, **{"x-key": "new-secret"})).status_code == 401


def test_it_survives_the_way_to_the_process_that_a_reload_starts(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "reloaded_agent.py").write_text(
        "from dragoman import Agent\n"
        "agent = Agent('A', description='B')\n"
        "@agent.handler\n"
        "def answer(turn): return ''\n"
    )
    texts = {"auth": json.dumps(TABLES), "url": "https://agents.example"}
    given = ["reloaded_agent:agent"], Options({"port": None}, texts), None, None
    monkeypatch.setenv(serve.CHILD, msgspec.json.encode(given).decode())
    app = serve.child()
    assert app.settings.auth == tuple(TABLES)
    (endpoint,) = app.endpoints.values()
    assert endpoint.authenticator is not None
    assert len(
        endpoint.authenticator.declared(
            endpoint.service.agent.card("http://x"), {}
        ).security_schemes
    )


def test_the_command_names_the_fault(elsewhere: Path) -> None:
    (elsewhere / "dragoman.toml").write_text('[[auth]]\nscheme = "key"\nheder = "X"\n')
    for command in (["config"], ["serve", "x:y"]):
        ended = subprocess.run(
            [sys.executable, "-m", "dragoman", *command],
            cwd=elsewhere,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 2
        assert ended.stderr.startswith("dragoman: dragoman.toml: auth[0].heder: unknown argument")


def test_nothing_of_it_is_loaded_where_nobody_asks_for_it() -> None:
    script = "import sys, dragoman; print(*[m for m in sys.modules if 'dragoman.security' in m])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout
    loaded = {name.removeprefix("dragoman.security").strip(".") for name in found.split()}
    assert "egress" in loaded
    unwanted = {"schemes", "tokens", "introspection", "certificates", "declared", "configured"}
    assert not loaded & {*unwanted, "dpop"}


# ---- in code -------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [True, False])
async def test_code_may_give_tables_too(several: bool) -> None:
    table = {"scheme": "token", "tokens": {"ann": "a-token-in-code"}}
    auth: Any = [table, ApiKey(header="X-Key", keys={"bob": "k"}, realm="keys")]
    if several:
        auth[0]["realm"] = "people"
    async with serving(App(doorman(), auth=auth if several else table)) as url:
        assert said(await send(url, "a-token-in-code")) == "ann:"
        assert (await send(url, "another")).status_code == 401
        assert (await send(url, **{"x-key": "k"})).status_code == (200 if several else 401)
    assert redacted("a-token-in-code") == "***"


@pytest.mark.parametrize(
    ("auth", "why"),
    [
        ([{"scheme": "tokn"}], r"^auth\[0\]\.scheme: must be one of"),
        ({"scheme": "token"}, r"^auth\.tokens: is required for token"),
        ([{"scheme": "basic", "realm": ""}], r"^auth\[0\]\.users: is required for basic"),
        ([Anonymous(), "bearer"], r"^auth\[1\]: expected a scheme or a table, got str"),
        ("bearer", r"^auth: expected a scheme or a table, got str"),
        (Anonymous, r"^auth: expected a scheme or a table, got type"),
        ([], r"^auth: must not be empty"),
    ],
)
def test_what_code_gives_and_is_no_scheme(auth: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        App(doorman(), auth=auth)


# ---- extras that are not installed -----------------------------------------------------------

JWT = {"issuer": "https://id.example", "audience": "flights"}
ASKING = {"url": "https://id.example/ask", "client_id": "me", "client_secret": "s"}


@pytest.mark.parametrize(
    ("missing", "extra", "make"),
    [
        ("joserfc", "crypto", lambda: Bearer(**JWT)),
        ("joserfc", "crypto", lambda: OpenId(**JWT)),
        ("joserfc", "crypto", lambda: Bearer(**JWT, jwks={"keys": []})),
        ("joserfc", "crypto", lambda: Introspection(**ASKING, dpop=True)),
        ("aiohttp", "client", lambda: Bearer(**JWT)),
        ("aiohttp", "client", lambda: Introspection(**ASKING)),
    ],
)
def test_a_missing_extra_is_named_before_anybody_calls(
    missing: str, extra: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(
        ImportError, match=rf"needs {missing}, .*`pip install 'dragoman\[{extra}\]'`"
    ):
        make()


def test_what_is_not_needed_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert Bearer(**JWT, jwks={"keys": []})
    monkeypatch.setitem(sys.modules, "joserfc", None)
    assert Token({"ann": "a-token"})


@pytest.mark.parametrize("scheme", ["bearer", "openid", "oauth2"])
def test_the_command_names_the_extra(
    scheme: str,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "joserfc", None)
    monkeypatch.setattr(serve, "hang_up", lambda: None)
    table: dict[str, Any] = {"scheme": scheme, **JWT}
    if scheme == "oauth2":
        flow = {"client_credentials": {"token_url": "https://id.example/token"}}
        table = {"scheme": scheme, "verify": {"scheme": "bearer", **JWT}, "flow": flow}
    assert main(["serve", "x:y", "--set", f"auth={json.dumps([table])}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("dragoman: auth[0]")
    assert "pip install 'dragoman[crypto]'" in said
