"""A stream ends with the credential that it was opened with, and says why; with a new one it is
resumed. What was asked for before is answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from dragoman import Agent, Caller, Turn
from dragoman.client import Client
from dragoman.client.credentials import AuthRequest, StaticToken
from dragoman.model.errors import Unauthenticated
from dragoman.model.events import RESUME
from dragoman.security import AllOf, ApiKey, Bearer
from dragoman.security.schemes import Authenticator
from tests.harness.app import RunningApp
from tests.harness.clients import Binding, Failed, Grpc, HttpJson, JsonRpc
from tests.harness.older_clients import Http03
from tests.harness.protected_app import KINDS, asked, message, protected
from tests.security.scheme_requests import identified, request

SIGNING = ECKey.generate_key("P-256", parameters={"kid": "one"})
JWKS = {"keys": [SIGNING.as_dict(private=False)]}
SHORT = 1.0
"""How long a token is good here. The server looks for what has expired every second."""


def token(life: float, **more: Any) -> str:
    """A token that is good for so many seconds."""
    claims = {"iss": "https://id.example", "aud": "a", "sub": "ann", "exp": time.time() + life}
    return jwt.encode({"alg": "ES256", "kid": "one"}, {**claims, **more}, SIGNING)


def bearer() -> Bearer:
    """The scheme: with its usual leeway of a minute."""
    return Bearer(issuer="https://id.example", audience="a", jwks=JWKS)


def counting() -> Agent:
    """Says a number now and then, until it is told to stop."""
    agent = Agent("Counter", description="Counts.")
    agent.stop = asyncio.Event()  # type: ignore[attr-defined]

    @agent.handler
    async def count(turn: Turn) -> AsyncIterator[Any]:
        stop: asyncio.Event = agent.stop  # type: ignore[attr-defined]
        number = 0
        yield turn.write("0,", name="counted")
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), 0.05)
            except TimeoutError:
                if turn.text == "count":
                    number += 1
                    yield turn.write(f"{number},", name="counted")
        yield turn.write("end", name="counted")

    return agent


def shown(server: RunningApp, kind: type[Binding], life: float, **headers: str) -> Binding:
    """A caller with a token of this life."""
    return server.client(kind, "", authorization=f"Bearer {token(life)}", **headers)


async def until_the_end(client: Binding, text: str) -> tuple[float, str, Failed]:
    """When the last event came, its place, and what the stream ended with."""
    last, place = 0.0, ""
    with pytest.raises(Failed) as failed:
        async with client.open("SendStreamingMessage", message=message(text)) as events:
            async for seen in events:
                last, place = time.time(), seen.id
    return last, place, failed.value


@pytest.mark.parametrize("text", ["count", "be quiet"])
async def test_a_stream_ends_with_its_token(text: str) -> None:
    """Over every binding and version, whether there is something to tell or not."""
    agent = counting()
    async with protected(agent, auth=bearer()) as server:
        expiry = time.time() + SHORT
        clients = [shown(server, kind, SHORT) for kind in KINDS]
        async with asyncio.timeout(20):
            ends = await asyncio.gather(*(until_the_end(client, text) for client in clients))
        agent.stop.set()  # type: ignore[attr-defined]
        for kind, (last, _, failed) in zip(KINDS, ends, strict=True):
            if kind is not Http03:  # there, an event can tell only the words
                assert failed.reason == "UNAUTHENTICATED", kind.name
            assert "has expired" in failed.message
            assert last < expiry + 0.5, kind.name  # what was on its way may arrive
        assert not server.app.streams.open


async def test_it_is_resumed_with_a_new_one() -> None:
    agent = counting()
    async with protected(agent, auth=bearer()) as server:
        first = shown(server, JsonRpc, SHORT, **{"A2A-Extensions": RESUME})
        async with asyncio.timeout(20):
            _, place, _ = await until_the_end(first, "count")
        agent.stop.set()  # type: ignore[attr-defined]
        name, _, number = place.rpartition(":")
        headers = {"A2A-Extensions": RESUME, "Last-Event-ID": place}
        again = shown(server, JsonRpc, 60, **headers)
        rest = await again.stream("SubscribeToTask", id=name)
        assert [int(seen.id.rpartition(":")[2]) for seen in rest] == list(
            range(int(number) + 1, int(number) + 1 + len(rest))
        )
        assert "COMPLETED" in str(rest[-1].event)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_the_leeway_is_for_single_requests(kind: type[Binding]) -> None:
    agent = counting()
    agent.stop.set()  # type: ignore[attr-defined]
    async with protected(agent, auth=bearer()) as server:
        late = shown(server, kind, -5)
        assert not isinstance(await asked(late, "SendMessage", {"message": message("x")}), Failed)
        refused = await asked(late, "SendStreamingMessage", {"message": message("y")})
        assert isinstance(refused, Failed)
        assert (refused.reason, refused.status) == ("UNAUTHENTICATED", 401)


async def test_a_send_that_waits_is_answered() -> None:
    agent = counting()
    async with protected(agent, auth=bearer()) as server:
        client = shown(server, JsonRpc, 0.3)
        expiry = time.time() + 0.3
        sending = asyncio.create_task(client.call("SendMessage", message=message("x")))
        await asyncio.sleep(max(expiry - time.time(), 0) + 0.1)
        agent.stop.set()  # type: ignore[attr-defined]
        assert "COMPLETED" in str((await sending)["task"]["status"])


async def test_the_first_credential_that_expires_counts() -> None:
    both = Authenticator(AllOf(ApiKey(header="X-Key", keys={"ann": "k"}), bearer()))
    found = await identified(both, request(token(60), **{"x-key": "k"}))
    assert 0 < found.expires - time.time() <= 60
    soon = {"k": Caller(identity="ann", expires=5.0)}
    both = Authenticator(AllOf(ApiKey(header="X-Key", keys=soon), bearer()))
    found = await identified(both, request(token(60), **{"x-key": "k"}))
    assert found.expires == 5.0
    # it is of the request, and not kept with the task
    assert found.stored.expires == 0.0


# ---- our client ----------------------------------------------------------------------------


class Issuer:
    """Gives short tokens, each once more than it has to."""

    def __init__(self) -> None:
        self.given = 0
        self._token, self._until = "", 0.0

    async def token(self, need: AuthRequest) -> str:
        """See `TokenProvider.token`."""
        if need.refused == self._token or time.time() >= self._until:
            self.given += 1
            self._token, self._until = token(SHORT), time.time() + SHORT
        return self._token


@pytest.mark.parametrize("kind", [JsonRpc, HttpJson, Grpc], ids=lambda kind: kind.name)
async def test_our_client_goes_on_by_itself(kind: type[Binding]) -> None:
    binding = {"jsonrpc": "JSONRPC", "http": "HTTP+JSON", "grpc": "GRPC"}[kind.name]
    agent, issuer = counting(), Issuer()
    async with protected(agent, auth=bearer()) as server, asyncio.timeout(30):
        trust = [f"grpc://127.0.0.1:{server.app.ports[0].number}"]
        options: dict[str, Any] = {"auth": issuer, "bindings": [binding], "trust": trust}
        async with (
            Client.connect(server.url, **options) as client,
            client.stream("count") as stream,
        ):
            async for _ in stream:
                if issuer.given > 2:
                    agent.stop.set()  # type: ignore[attr-defined]
        said = stream.result.text.removesuffix("end").rstrip(",").split(",")
    assert [int(number) for number in said] == list(range(len(said)))
    assert issuer.given >= 3


async def test_our_client_says_so_if_it_has_no_other() -> None:
    agent = counting()
    async with protected(agent, auth=bearer()) as server, asyncio.timeout(20):
        async with Client.connect(server.url, auth=StaticToken(token(SHORT))) as client:
            with pytest.raises(Unauthenticated, match="expired"):
                async with client.stream("be quiet") as stream:
                    async for _ in stream:
                        pass
        agent.stop.set()  # type: ignore[attr-defined]
