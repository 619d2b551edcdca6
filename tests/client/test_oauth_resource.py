"""What a token is for: every OAuth request names the agent (RFC 8707), and no other one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.client import OAuth
from dragoman.client.credentials import canonical
from dragoman.model.errors import Unauthenticated
from tests.client.authorization_server import CODE, DEVICE, REFRESH, SECRET, Authority
from tests.client.fake_user import Clock, Person, robot
from tests.client.protected_agent import Guarded, calling, greeted
from tests.client.test_oauth import asked

BINDINGS = ["JSONRPC", "HTTP+JSON"]


class Metadata:
    """An application that tells what the agent calls itself."""

    def __init__(self, body: Any, status: int = 200) -> None:
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.status = status
        self.paths: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        head = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": self.status, "headers": head})
        await send({"type": "http.response.body", "body": self.body})


def named(forms: list[dict[str, Any]]) -> set[str | None]:
    return {form.get("resource") for form in forms}


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_machine_says_what_its_token_is_for(
    authority: Authority, agent: Guarded, binding: str
) -> None:
    agent.demand({"it": authority.scheme("client")}, {"it": ("talk",)})
    await greeted(agent, robot(authority), binding)
    assert [form.get("resource") for form in authority.forms] == [agent.url]


async def test_a_person_does_and_so_does_the_renewal(
    authority: Authority, agent: Guarded, person: Person, clock: Clock
) -> None:
    agent.demand({"it": authority.scheme("code")}, {"it": ("talk",)})
    auth = OAuth("app", issuer=authority.url, tell=person)
    async with calling(agent, auth) as client:
        await client.send("hello")
        clock.forward(authority.lifetime)
        await client.send("hello")
    assert authority.asked == [CODE, REFRESH]
    assert named(authority.forms) == named(authority.other_forms) == {agent.url}


async def test_a_device_does(authority: Authority, agent: Guarded, clock: Clock) -> None:
    async with asked(authority, agent) as (invitation, call):
        await authority.came(1)
        authority.device(invitation.code).verdict = True
        await call
    assert set(authority.asked) == {DEVICE}
    assert named(authority.forms) == named(authority.other_forms) == {agent.url}


async def test_a_resource_of_ones_own_or_none(authority: Authority, agent: Guarded) -> None:
    agent.demand({"it": authority.scheme("client")})
    await greeted(agent, robot(authority, resource="urn:flights"))
    await greeted(agent, robot(authority, resource=""))
    assert [form.get("resource") for form in authority.forms] == ["urn:flights", None]
    for wrong in ("flights", "https://a/#b"):
        with pytest.raises(ValueError, match="must be a URI without a fragment"):
            OAuth("robot", SECRET, resource=wrong)


async def test_a_server_that_refuses_resources(authority: Authority, agent: Guarded) -> None:
    authority.refuses_resources = True
    agent.demand({"it": authority.scheme("client")})
    with pytest.raises(Unauthenticated, match=r"invalid_target \(the token was .*OAuth\(resource"):
        await greeted(agent, robot(authority))
    assert await greeted(agent, robot(authority, resource="")) == "robot:"


@pytest.mark.parametrize(
    ("told", "taken"),
    [
        ("{url}", True),
        ("{url}/", True),
        ("{url}/other", False),
        ("https://victim.example", False),
        ("{url}.victim.example", False),
        ("{url}#x", False),
        ("", False),
        (7, False),
    ],
)
async def test_what_the_metadata_may_name(
    authority: Authority, agent: Guarded, told: Any, taken: bool
) -> None:
    value = told.format(url=agent.url) if isinstance(told, str) else told
    agent.mounts[".well-known"] = _card_or(agent, Metadata({"resource": value}))
    agent.demand({"it": authority.scheme("client")})
    await greeted(agent, robot(authority))
    assert named(authority.forms) == {value if taken else agent.url}


@pytest.mark.parametrize("metadata", [Metadata(b"<html>"), Metadata([]), Metadata({}, 500)])
async def test_metadata_that_are_none(
    authority: Authority, agent: Guarded, metadata: Metadata
) -> None:
    agent.mounts[".well-known"] = _card_or(agent, metadata)
    agent.demand({"it": authority.scheme("client")})
    await greeted(agent, robot(authority))
    assert named(authority.forms) == {agent.url}
    assert metadata.paths == ["/oauth-protected-resource"]


async def test_two_agents_of_one_origin_have_tokens_of_their_own(
    authority: Authority, agent: Guarded, tmp_path: Path
) -> None:
    agent.demand({"it": authority.scheme("client")})
    agent.mounts["a"] = agent.mounts["b"] = agent.app
    auth = robot(authority, file=tmp_path / "tokens")
    for path in ("a", "b", "a"):
        agent.point("JSONRPC", f"{agent.url}/{path}/")
        async with calling(agent, auth) as client:
            await client.send("hello")
    assert [form["resource"] for form in authority.forms] == [f"{agent.url}/a", f"{agent.url}/b"]
    assert len({*agent.headers("authorization")}) == 2
    agent.point("JSONRPC", f"{agent.url}/b/")
    async with calling(agent, robot(authority, file=tmp_path / "tokens")) as client:
        await client.send("hello")
    assert len(authority.forms) == 2  # it is kept


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://a.example/", "https://a.example"),
        ("https://A.example:443/x/?q#f", "https://a.example/x"),
        ("grpcs://a.example:443", "https://a.example"),
        ("grpc://a.example:50051", "http://a.example:50051"),
    ],
)
def test_one_form(url: str, form: str) -> None:
    assert canonical(url) == form


def _card_or(agent: Guarded, metadata: Metadata) -> Any:
    """The card, and the metadata beside it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if "oauth" in scope["path"]:
            return await metadata(scope, receive, send)
        del agent.mounts[".well-known"]
        try:
            return await agent({**scope, "path": f"/.well-known{scope['path']}"}, receive, send)
        finally:
            agent.mounts[".well-known"] = app

    return app
