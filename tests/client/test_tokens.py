"""Tokens once they are there: renewed in time, shared, and kept."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from dragoman import Caller, Request
from dragoman.client import File, OAuth, Unreachable
from dragoman.model.errors import Unauthenticated
from tests.client.authorization_server import CLIENT, CODE, REFRESH, SECRET, Authority
from tests.client.fake_user import Clock, Person, app, robot
from tests.client.protected_agent import Guarded, calling, counted, greeted, guarded
from tests.harness.raw_server import listening

BINDINGS = ["JSONRPC", "HTTP+JSON"]


# ---- renewal --------------------------------------------------------------------------------


async def test_a_token_lasts(authority: Authority, agent: Guarded, clock: Clock) -> None:
    agent.demand({"it": authority.scheme("client")})
    async with calling(agent, robot(authority)) as client:
        await client.send("hello")
        clock.forward(3000)
        await client.send("hello")
    assert authority.asked == [CLIENT]


@pytest.mark.parametrize(("lifetime", "later"), [(3600, 3590), (3600, 9999), (10, 9.5), (1, 60)])
async def test_a_token_is_renewed_before_its_end(
    authority: Authority,
    agent: Guarded,
    person: Person,
    clock: Clock,
    lifetime: int,
    later: float,
) -> None:
    authority.lifetime = lifetime
    agent.demand({"it": authority.scheme("code")}, {"it": ("talk",)})
    async with calling(agent, app(authority, person)) as client:
        assert (await client.send("hello")).text == "ann:talk"
        clock.forward(later)
        assert (await client.send("hello")).text == "ann:talk"
    assert authority.asked == [CODE, REFRESH]
    assert len(agent.requests) == 2  # nobody had to say 401
    assert len(person.invitations) == 1


async def test_a_machine_asks_again(authority: Authority, agent: Guarded, clock: Clock) -> None:
    agent.demand({"it": authority.scheme("client")})
    async with calling(agent, robot(authority)) as client:
        await client.send("hello")
        clock.forward(3590)
        await client.send("hello")
    assert authority.asked == [CLIENT, CLIENT]
    assert len(agent.requests) == 2


async def test_a_short_life_is_used(authority: Authority, agent: Guarded, clock: Clock) -> None:
    authority.lifetime = 5
    agent.demand({"it": authority.scheme("client")})
    async with calling(agent, robot(authority)) as client:
        for _ in range(3):
            await client.send("hello")
    assert authority.asked == [CLIENT]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_revoked_token(
    authority: Authority, agent: Guarded, person: Person, binding: str
) -> None:
    agent.demand({"it": authority.scheme("code")})
    async with calling(agent, app(authority, person), bindings=[binding]) as client:
        await client.send("hello")
        authority.revoke()
        assert (await client.send("hello")).text == "ann:"
        authority.revoke()
        assert await counted(client, 2) == "0,1,\nann:"
    assert authority.asked == [CODE, REFRESH, REFRESH]  # each with the latest refresh token
    assert len(person.invitations) == 1


async def test_a_file_is_sent_again(authority: Authority, agent: Guarded, tmp_path: Path) -> None:
    """What goes up in pieces goes up twice when the first token is refused."""
    (path := tmp_path / "big.bin").write_bytes(bytes(1 << 20))
    agent.demand({"it": authority.scheme("client")})
    async with calling(agent, robot(authority)) as client:
        await client.send("hello")
        authority.revoke()
        assert (
            await client.send(File(path, media_type="text/plain"))
        ).text == f"{1 << 20} bytes\nrobot:"
    assert authority.asked == [CLIENT, CLIENT]


async def test_an_end_that_was_not_told(authority: Authority, agent: Guarded) -> None:
    """The agent's clock is right, whatever ours says."""
    agent.demand({"it": authority.scheme("client")})
    async with calling(agent, robot(authority)) as client:
        await client.send("hello")
        authority.now += 4000
        assert (await client.send("hello")).text == "robot:"
    assert authority.asked == [CLIENT, CLIENT]


async def test_a_refresh_token_that_is_refused(
    authority: Authority, agent: Guarded, person: Person
) -> None:
    agent.demand({"it": authority.scheme("code")})
    async with calling(agent, app(authority, person)) as client:
        await client.send("hello")
        authority.logout()
        assert (await client.send("hello")).text == "ann:"
    assert authority.asked == [CODE, REFRESH, CODE]
    assert len(person.invitations) == 2


async def test_a_refresh_url(authority: Authority, agent: Guarded, person: Person) -> None:
    seen: list[str] = []

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        await authority.app({**scope, "path": "/token"}, receive, send)

    agent.mounts["renew"] = watched
    agent.demand({"it": authority.scheme("code", refresh_url=f"{agent.url}/renew/it")})
    async with calling(agent, app(authority, person)) as client:
        await client.send("hello")
        assert seen == []
        authority.revoke()
        await client.send("hello")
    assert seen == ["/it"]
    assert authority.asked == [CODE, REFRESH]


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_an_authority_in_trouble_is_no_reason_to_log_in(
    authority: Authority, agent: Guarded, person: Person, status: int
) -> None:
    trouble = b'{"error":"temporarily_unavailable"}'
    head = f"HTTP/1.1 {status} No\r\nContent-Type: application/json\r\nContent-Length: "
    async with listening(f"{head}{len(trouble)}\r\n\r\n".encode() + trouble) as renewal:
        agent.mounts["id"] = authority.app
        issuer, authority.url = f"http://127.0.0.1:{renewal.port}", f"{agent.url}/id"
        agent.demand({"it": authority.scheme("code", refresh_url=f"{issuer}/renew")})
        auth = OAuth("app", issuer=issuer, tell=person)
        async with calling(agent, auth, attempts=1) as client:
            await client.send("hello")
            authority.revoke()
            with pytest.raises((Unreachable, Unauthenticated)):
                await client.send("hello")
            assert renewal.requests
    assert len(person.invitations) == 1


async def test_a_token_that_is_never_good_enough(authority: Authority) -> None:
    def guard(request: Request) -> Caller:
        raise Unauthenticated("go away")

    async with guarded(guard) as agent:
        agent.demand({"it": authority.scheme("client")})
        async with calling(agent, robot(authority)) as client:
            with pytest.raises(Unauthenticated, match="go away"):
                await client.send("hello")
        assert authority.asked == [CLIENT, CLIENT]
        assert len(agent.requests) == 2


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_stream_that_outlives_its_token(
    authority: Authority, agent: Guarded, person: Person, binding: str
) -> None:
    """Cut off, it is resumed with a new one."""
    agent.demand({"it": authority.scheme("code")})
    async with calling(agent, app(authority, person), bindings=[binding]) as client:
        await client.send("hello")
        agent.cuts = [1]
        agent.gate.clear()
        async with client.stream("count 50") as stream:
            async for _ in stream:
                authority.revoke()
                agent.gate.set()
    assert stream.result.text == "".join(f"{n}," for n in range(50)) + "\nann:"
    assert agent.cuts == []
    assert authority.asked[:2] == [CODE, REFRESH]


# ---- together -------------------------------------------------------------------------------


@pytest.mark.parametrize("spoilt", ["never", "expired", "revoked"])
@pytest.mark.parametrize("binding", BINDINGS)
async def test_fifty_at_once(
    authority: Authority, agent: Guarded, person: Person, clock: Clock, spoilt: str, binding: str
) -> None:
    agent.demand({"it": authority.scheme("code")})
    async with calling(agent, app(authority, person), bindings=[binding]) as client:
        if spoilt != "never":
            await client.send("hello")
            authority.revoke()
            clock.forward(3590 if spoilt == "expired" else 0)
        before = len(authority.asked)
        found = await asyncio.gather(*(client.send("hello") for _ in range(50)))
    assert {result.text for result in found} == {"ann:"}
    assert authority.asked[before:] == [CODE if spoilt == "never" else REFRESH]
    assert len(person.invitations) == 1


async def test_two_clients_with_one_login(
    authority: Authority, agent: Guarded, person: Person
) -> None:
    agent.demand({"it": authority.scheme("code")})
    auth = app(authority, person)
    async with calling(agent, auth) as one, calling(agent, auth) as two:
        await asyncio.gather(one.send("hello"), two.send("hello"))
    assert authority.asked == [CODE]


async def test_two_agents_are_two_logins(
    authority: Authority, agent: Guarded, person: Person
) -> None:
    """An agent that names the same authority is not handed the token of another."""
    auth = app(authority, person)
    async with guarded(authority.identify) as other:
        for each in (agent, other):
            each.demand({"it": authority.scheme("code")})
            assert await greeted(each, auth) == "ann:"
        assert not {*agent.headers("authorization")} & {*other.headers("authorization")}


async def test_one_who_gives_up_hurts_nobody(authority: Authority, agent: Guarded) -> None:
    agent.demand({"it": authority.scheme("client")})
    authority.open.clear()
    async with calling(agent, robot(authority)) as client:
        first = asyncio.create_task(client.send("hello"))
        await authority.came(1)
        second = asyncio.create_task(client.send("hello"))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        authority.open.set()
        assert (await second).text == "robot:"
    assert authority.asked == [CLIENT]


async def test_a_refusal_is_shared(authority: Authority, agent: Guarded) -> None:
    agent.demand({"it": authority.scheme("client")})
    auth = OAuth("robot", "wrong", issuer=authority.url)
    async with calling(agent, auth) as client:
        calls = [client.send("hello") for _ in range(20)]
        found = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(error) for error in found} <= {*Unauthenticated.__subclasses__(), Unauthenticated}
    assert authority.asked == [CLIENT]


# ---- between runs ---------------------------------------------------------------------------


async def test_a_file_for_the_next_run(
    authority: Authority, agent: Guarded, person: Person, tmp_path: Path
) -> None:
    file = tmp_path / "kept" / "tokens.json"
    agent.demand({"it": authority.scheme("code")})
    for _ in range(2):
        assert await greeted(agent, app(authority, person, file=file)) == "ann:"
    assert authority.asked == [CODE]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [item.name for item in file.parent.iterdir()] == [file.name]


async def test_the_file_has_the_latest(
    authority: Authority, agent: Guarded, person: Person, tmp_path: Path
) -> None:
    file = tmp_path / "tokens.json"
    agent.demand({"it": authority.scheme("code")})
    for _ in range(3):
        assert await greeted(agent, app(authority, person, file=file)) == "ann:"
        authority.revoke()
    assert authority.asked == [CODE, REFRESH, REFRESH]
    assert len(person.invitations) == 1


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"a": 1}', b"\xff\xfe"])
async def test_a_file_that_is_broken(
    authority: Authority, agent: Guarded, person: Person, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "tokens.json"
    file.write_bytes(content)
    agent.demand({"it": authority.scheme("code")})
    for _ in range(2):
        assert await greeted(agent, app(authority, person, file=file)) == "ann:"
    assert authority.asked == [CODE]


async def test_one_file_for_several(
    authority: Authority, agent: Guarded, person: Person, tmp_path: Path
) -> None:
    """Neither takes the other's tokens, nor throws them away."""
    file = tmp_path / "tokens.json"
    async with guarded(authority.identify) as other:
        for each in (agent, other):
            each.demand({"it": authority.scheme("code")})
        first, second = (app(authority, person, file=file) for _ in range(2))
        await greeted(agent, first)
        await greeted(other, second)
        assert not {*agent.headers("authorization")} & {*other.headers("authorization")}
        assert authority.asked == [CODE, CODE]
        await greeted(agent, app(authority, person, file=file))
        await greeted(other, app(authority, person, file=file))
    assert authority.asked == [CODE, CODE]


async def test_a_file_of_another_client(
    authority: Authority, agent: Guarded, person: Person, tmp_path: Path
) -> None:
    file = tmp_path / "tokens.json"
    agent.demand({"it": authority.scheme("code")})
    await greeted(agent, app(authority, person, file=file))
    site = OAuth("site", SECRET, issuer=authority.url, tell=person, file=file)
    await greeted(agent, site)
    assert [token.client for token in authority.tokens] == ["app", "site"]
