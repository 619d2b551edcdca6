"""One name, given by several: two issuers, keys and passwords each have their own ann. She is one
caller only where a realm is shared in so many words."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from joserfc import jwt
from joserfc.jwk import ECKey

from dragoman import Agent, App, Caller, Turn
from dragoman.model.caller import SEPARATOR, Access, fault, long, qualified, unqualified
from dragoman.model.types import ClientCredentialsOAuthFlow
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
from dragoman.security.schemes import Authenticator
from dragoman.server.load_settings import load
from dragoman.server.settings import SettingsError
from dragoman.server.wiring import CHECKS
from tests.harness.app import RunningApp
from tests.harness.clients import Binding, Failed, JsonRpc
from tests.harness.older_clients import Grpc03, JsonRpc03
from tests.harness.protected_app import KINDS, asked, message, protected
from tests.security.scheme_requests import doorman, identified, request
from tests.security.test_identities import PEOPLE
from tests.security.test_ownership import CALLS, UNKNOWN

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIGNING = ECKey.generate_key("P-256", parameters={"kid": "one"})
JWKS = {"keys": [SIGNING.as_dict(private=False)]}
FLOW = ClientCredentialsOAuthFlow(token_url="https://id.example/token", scopes={})


def bearer(issuer: str, **more: Any) -> Bearer:
    """Tokens of this issuer. All of them have one key here, so that only `iss` tells them apart."""
    return Bearer(**{"issuer": issuer, "audience": "flights", "jwks": JWKS, "name": issuer, **more})


def token(issuer: str, subject: str = "ann") -> dict[str, str]:
    """The header with a token of this issuer."""
    claims = {"iss": issuer, "aud": "flights", "sub": subject, "exp": int(time.time()) + 86_400}
    return {
        "authorization": f"Bearer {jwt.encode({'alg': 'ES256', 'kid': 'one'}, claims, SIGNING)}"
    }


ANNS: dict[str, dict[str, str]] = {
    "a": token("https://a.example"),
    "b": token("https://b.example"),
    "keys": {"x-key": "anns-key"},
    "people": {"authorization": "Basic YW5uOnB3"},
}
"""What the ann of each realm shows."""


def schemes() -> list[Any]:
    """Four who say who ann is."""
    return [
        bearer("https://a.example", realm="a"),
        bearer("https://b.example", realm="b"),
        ApiKey(header="X-Key", keys={"ann": "anns-key"}, realm="keys"),
        Basic({"ann": "pw"}, realm="people"),
    ]


def teller() -> Agent:
    """Tells who has come, and what of theirs it can see."""
    agent = Agent("Teller", description="Tells who has come.", extended=True)

    @agent.handler
    async def tell(turn: Turn) -> AsyncIterator[Any]:
        around = len(await turn.context_tasks())
        yield turn.artifact({"who": [turn.caller.realm, turn.caller.identity], "around": around})
        yield turn.ask("And?")

    return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["memory", "sqlite"])
async def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningApp]:
    """A server that takes four credentials."""
    file: Path = tmp_path_factory.mktemp("realms") / "x.db"
    settings: dict[str, Any] = {"push": True, "egress_allow": ["*.example"], "audit": True}
    store = "memory:" if request.param == "memory" else f"sqlite:///{file}"
    async with protected(teller(), auth=schemes(), store=store, **settings) as found:
        yield found


# ---- nobody is the other's ann -------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", CALLS)
async def test_the_ann_of_another_realm_is_a_stranger(
    server: RunningApp, name: str, kind: type[Binding]
) -> None:
    if not kind.can(name) or (name == "ListTasks" and kind in (JsonRpc03, Grpc03)):
        return
    first = server.client(JsonRpc, "", **ANNS["a"])
    task = (await first.call("SendMessage", message=message("ask")))["task"]
    hook = {"taskId": task["id"], "id": "hook", "url": "https://h.example/x", "token": "t"}
    await first.call("CreateTaskPushNotificationConfig", **hook)
    for realm in ("b", "keys", "people"):
        other = server.client(kind, "", **ANNS[realm])
        if CALLS[name] is None:
            assert task["id"] not in str(await asked(other, name, {}))
            continue
        theirs = await asked(other, name, CALLS[name](task["id"]))
        nobodys = await asked(other, name, CALLS[name](UNKNOWN))
        assert isinstance(theirs, Failed)
        assert theirs.reason == "TASK_NOT_FOUND"
        assert vars(theirs) == vars(nobodys)
    assert await first.call("GetTask", id=task["id"]) == task


async def test_everything_is_kept_apart(server: RunningApp) -> None:
    """Repeated sends, contexts, lists; and the handler is told who it is."""
    key = {"Idempotency-Key": f"the-same-{time.time_ns()}"}
    said = message("ask", contextId="shared")
    tasks = {}
    for realm, shown in ANNS.items():
        client = server.client(JsonRpc, "", **shown, **key)
        for _ in range(2):
            task = (await client.call("SendMessage", message=said))["task"]
            assert tasks.setdefault(realm, task["id"]) == task["id"]
        told = task["artifacts"][0]["parts"][0]["data"]
        assert told == {"who": [realm, "ann"], "around": 0}
        listed = await client.call("ListTasks", contextId="shared")
        assert [found["id"] for found in listed["tasks"]] == [task["id"]]
    assert len(set(tasks.values())) == len(ANNS)


async def test_a_shared_realm_is_one_caller() -> None:
    auth = [
        bearer("https://a.example", realm="us"),
        ApiKey(header="X-Key", keys={"ann": "anns-key"}, realm="us"),
        Basic({"ann": "pw"}, realm=""),
    ]
    async with protected(teller(), auth=auth) as server:
        anns = [server.client(JsonRpc, "", **ANNS[name]) for name in ("a", "keys", "people")]
        task = (await anns[0].call("SendMessage", message=message("ask")))["task"]
        assert (await anns[1].call("GetTask", id=task["id"]))["id"] == task["id"]
        assert isinstance(await asked(anns[2], "GetTask", {"id": task["id"]}), Failed)


async def test_a_policy_is_told_both() -> None:
    seen: list[Access] = []

    def policy(access: Access) -> bool:
        seen.append(access)
        return access.realm == "a"

    async with protected(teller(), auth=schemes(), policy=policy) as server:
        first = server.client(JsonRpc, "", **ANNS["a"], **{"Idempotency-Key": "k"})
        guest = server.client(JsonRpc, "", **ANNS["b"], **{"Idempotency-Key": "k"})
        task = (await first.call("SendMessage", message=message("ask")))["task"]["id"]
        said = message("more", taskId=task)
        # a guest of the same name is a guest: neither its keys nor its other tasks are the owner's
        answer = (await guest.call("SendMessage", message=said))["task"]
        assert [m["parts"][0]["text"] for m in answer["history"][-2:] if "parts" in m][-1] == "more"
        assert (await guest.call("ListTasks"))["totalSize"] == 0
    assert {(a.caller.realm, a.caller.identity, a.realm, a.owner) for a in seen} == {
        ("b", "ann", "a", "ann")
    }


async def test_streams_and_rates_are_counted_apart(constants: Callable[..., None]) -> None:
    constants(rate_burst=6)
    async with protected(teller(), auth=schemes(), quota_tasks=10, rate=0.01) as server:
        for realm in ANNS:
            client = server.client(JsonRpc, "", **ANNS[realm])
            task = (await client.call("SendMessage", message=message("ask")))["task"]["id"]
            async with client.open("SubscribeToTask", id=task) as events:
                assert await anext(events)
                refused = await asked(client, "SubscribeToTask", {"id": task})
                assert "1 of your streams" in refused.message


async def test_the_audit_names_the_realm(
    server: RunningApp, caplog: pytest.LogCaptureFixture
) -> None:
    client = server.client(JsonRpc, "", **ANNS["keys"])
    with caplog.at_level(logging.INFO, "dragoman.audit"):
        await asked(client, "CancelTask", {"id": UNKNOWN})
    (line,) = [json.loads(r.getMessage()) for r in caplog.records if r.name == "dragoman.audit"]
    assert (line["realm"], line["who"]) == ("keys", "ann")


# ---- the names of owners -------------------------------------------------------------------


async def test_no_two_identities_have_one_owner() -> None:
    words = sorted({word for pair in PEOPLE for word in pair if word} | {"a", "a:ann", "a/ann"})
    pairs = list(itertools.product(["", *words], words))
    assert len({qualified(*pair) for pair in pairs}) == len(pairs)
    # one that is too long is known by its digest
    short = [pair for pair in pairs if not long("".join(pair) + SEPARATOR)]
    assert all(unqualified(qualified(*pair)) == pair for pair in short)
    # as it was before there were realms
    assert all(Caller(identity=word).qualified == word for word in words if not long(word))
    assert Caller(realm="a").qualified == ""
    # and nobody can bring the separator along
    assert fault(f"a{SEPARATOR}ann")


async def test_the_separator_is_refused_wherever_it_comes_from() -> None:
    forged = f"a{SEPARATOR}ann"
    for caller in (Caller(identity=forged), Caller(identity="ann", realm=forged)):
        app = App(teller(), identify=lambda _, caller=caller: caller, drain_timeout=0.0)
        async with app:
            inside = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=inside, base_url="http://x") as http:
                answer = await http.get("/tasks")
        assert answer.status_code == 401, answer.text


# ---- at the start --------------------------------------------------------------------------


KEY = {"header": "X-Key", "keys": {"ann": "anns-key"}}


@pytest.mark.parametrize(
    ("auth", "names"),
    [
        ([bearer("https://a.example"), bearer("https://b.example")], ("a.example", "b.example")),
        ([bearer("https://a.example", realm="a"), bearer("https://b.example")], ("b.example",)),
        ([ApiKey(**KEY), Basic({"ann": "pw"})], ("'key'", "'login'", "ApiKey")),
        ([ApiKey(**KEY, realm=""), Token({"ann": "t"})], ("'token'", "Token")),
        ([Anonymous(), Certificate(), ApiKey(**KEY)], ("'certificate'", "'key'")),
        ([AllOf(ApiKey(**KEY), Basic({"a": "b"})), Token(["t"])], ("'key'", "'token'")),
        (
            [
                OAuth2(verify=bearer("https://a.example"), flow=FLOW),
                Introspection(url="https://a.example/i", client_id="a", client_secret="b"),
            ],
            ("'oauth2'", "'introspection'"),
        ),
    ],
)
async def test_two_who_name_people_need_a_realm_each(auth: Any, names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="realm=") as refused:
        App(doorman(), auth=auth)
    assert all(name in str(refused.value) for name in names), refused.value


@pytest.mark.parametrize(
    "auth",
    [
        ApiKey(**KEY),
        [ApiKey(**KEY), Anonymous()],
        # who asks is what the first one says
        [AllOf(ApiKey(**KEY), bearer("https://a.example"))],
        # one issuer, however many ways there are to its tokens
        [bearer("https://a.example"), bearer("https://a.example", audience="hotels", name="b")],
        [
            OAuth2(verify=bearer("https://a.example"), flow=FLOW),
            OpenId(issuer="https://a.example", audience="flights", jwks=JWKS),
        ],
    ],
)
async def test_one_alone_has_the_empty_realm(auth: Any) -> None:
    found = await identified(Authenticator(auth), request(**ANNS["a"], **ANNS["keys"]))
    assert (found.realm, found.identity, found.qualified) == ("", "ann", "ann")


async def test_every_scheme_takes_a_realm() -> None:
    verify = bearer("https://a.example", realm="inner")
    assert OAuth2(verify=verify, flow=FLOW).realm == "inner"
    assert OAuth2(verify=verify, flow=FLOW, realm="outer").realm == "outer"
    found = await identified(Authenticator(OAuth2(verify=verify, flow=FLOW)), request(**ANNS["a"]))
    assert found.qualified == f"inner{SEPARATOR}ann"
    # one that a key is given stays
    keys = {"anns-key": Caller(identity="ann", realm="own")}
    gate = Authenticator(ApiKey(header="X-Key", keys=keys, realm="keys"))
    assert (await identified(gate, request(**ANNS["keys"]))).realm == "own"
    assert (await identified(Authenticator(Anonymous()), request())).realm == ""


async def test_a_file_is_refused_as_well() -> None:
    key = {"scheme": "key", "header": "X-Key", "keys": {"ann": "k"}}
    login = {"scheme": "basic", "users": {"ann": "pw"}}
    with pytest.raises(SettingsError, match=r"^auth: 'key', 'login' each identify callers.*realm="):
        load({"auth": [key, login]}, environ={}, checks=CHECKS)
    load({"auth": [{**key, "realm": "k"}, {**login, "realm": ""}]}, environ={}, checks=CHECKS)
    with pytest.raises(SettingsError, match="auth: ApiKey: realm contains a control character"):
        load({"auth": [{**key, "realm": "a\nb"}]}, environ={}, checks=CHECKS)
