"""Who may change entries, and who may see them; credentials of callers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from dragoman.client import (
    BasicAuth,
    CredentialsNotSent,
    OAuth,
    StaticToken,
)
from dragoman.registry import NotFound, Query, Registry, RegistryError
from dragoman.registry.database import Database
from dragoman.registry.entries import Audience
from dragoman.security import Basic, Bearer, Token
from dragoman.security.card_keys import CardKey
from tests.harness.server import served, serving
from tests.products.registry.parts import READER, TOKENS, Desk, registry


async def test_scopes(tmp_path: Path) -> None:
    desk = Desk()
    async with served(registry(tmp_path, auth=[TOKENS])) as server, desk.shows() as url:

        def caller(token: str) -> Registry:
            return Registry(server.url, auth=StaticToken(token))

        async with (
            Registry(server.url) as nobody,
            caller("reader") as reader,
            caller("operator") as operator,
        ):
            with pytest.raises(RegistryError, match="needs credentials"):
                await nobody.search("flight")
            with pytest.raises(RegistryError, match="'rita' may not do this; it needs"):
                await reader.add(url)
            with pytest.raises(RegistryError, match="registry:announce or registry:write"):
                await reader.announce(url)
            await operator.add(url, approve=True, alias="desk")
            assert (await reader.get("desk")).card.name == "Flight Desk"
            for call in (
                reader.approve("desk"),
                reader.reject("desk"),
                reader.remove("desk"),
                reader.refresh("desk"),
                reader.details("desk"),
                reader.changes("desk"),
                reader.changes(),
                reader.entries(),
            ):
                with pytest.raises(RegistryError, match="may not do this"):
                    await call
            assert [each.who for each in await operator.changes()] == ["olga"]


async def test_private_entries_are_neither_seen_nor_counted(tmp_path: Path) -> None:
    open_desk, secret = Desk(), Desk()
    async with (
        served(registry(tmp_path, auth=[TOKENS])) as server,
        open_desk.shows(name="Open Flight Desk") as one,
        secret.shows(name="Secret Flight Desk") as two,
    ):
        clients = {
            name: Registry(server.url, auth=StaticToken(name))
            for name in ("operator", "reader", "tom", "announcer")
        }
        await clients["operator"].add(one, approve=True, alias="open")
        audience = Audience(scopes=("travel",), identities=("agents",))
        await clients["operator"].add(two, approve=True, alias="secret", audience=audience)
        for name, sees in (("reader", 1), ("tom", 2), ("announcer", 2), ("operator", 2)):
            client = clients[name]
            for found in (
                await client.search("flight"),
                await client.search(tags=["travel"]),
                await client.search(limit=1),
            ):
                assert found.total == sees, name
                assert bool(found.next) is (sees > 1 and len(found.hits) == 1)
            names = {hit.entry.alias for hit in await client.search()}
            assert all(hit.entry.audience.everyone for hit in await client.search())
            assert not any(hit.entry.named_by for hit in await client.search())
            assert ("secret" in names) is (sees == 2)
            if sees == 1:
                with pytest.raises(NotFound) as hidden:
                    await client.get("secret")
                with pytest.raises(NotFound) as missing:
                    await client.get("nobody")
                assert str(hidden.value).replace("secret", "nobody") == str(missing.value)
            else:
                assert (await client.get("secret")).audience.everyone
        async with Database(f"sqlite:///{tmp_path}/agents.db") as database:
            for kind, counted in (("tag", [("travel", 1)]), ("publisher", [("127.0.0.1", 1)])):
                found = await database.run(Database.facets, Query(), kind, 9, READER)  # type: ignore[arg-type]
                assert found == counted
        for client in clients.values():
            await client.close()


async def test_operators_by_name(tmp_path: Path) -> None:
    """Where tokens have no scopes. The same name in another realm is somebody else."""
    tokens = [Token({"ann": "a", "bob": "b"}, realm=""), Basic({"ann": "secret"}, realm="guests")]
    desk = Desk()
    app = registry(tmp_path, auth=tokens, operators=["ann"])
    async with served(app) as server, desk.shows() as url:
        audience = Audience(identities=("bob",))
        for auth in (StaticToken("b"), BasicAuth("ann", "secret")):
            async with Registry(server.url, auth=auth) as other:
                with pytest.raises(RegistryError, match="may not do this"):
                    await other.add(url)
        async with Registry(server.url, auth=StaticToken("a")) as ann:
            await ann.add(url, approve=True, audience=audience)
            assert [each.who for each in await ann.changes()] == ["ann"]
        async with Registry(server.url, auth=BasicAuth("ann", "secret")) as other:
            assert not (await other.search()).total
        async with Registry(server.url, auth=StaticToken("b")) as bob:
            assert (await bob.search()).total == 1


async def test_tokens_of_an_issuer(tmp_path: Path) -> None:
    """The client gets its token where the registry says, and another one when it is refused."""
    key = CardKey.generate("ES256")
    issuer = Issuer(key)
    async with serving(issuer.app) as where:
        issuer.url = where
        scheme = Bearer(issuer=where, audience="registry", jwks={"keys": [key.jwk()]})
        desk = Desk()
        async with served(registry(tmp_path, auth=[scheme])) as server, desk.shows() as url:
            auth = OAuth("desk", "secret", issuer=where, resource="registry:")
            async with Registry(server.url, auth=auth) as client:
                issuer.audience = "another"
                with pytest.raises(RegistryError, match="needs credentials"):
                    await client.search()
                assert issuer.given == 2
                issuer.audience = "registry"
                await client.add(url, approve=True, alias="desk")
                await client.search()
                assert issuer.given == 3
                assert [each.who for each in await client.changes()] == ["desk"]


class Issuer:
    """Gives tokens for the client `desk`."""

    url, audience, given = "", "registry", 0

    def __init__(self, key: CardKey) -> None:
        self._key = key
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self.about),
                Route("/token", self.token, methods=["POST"]),
            ]
        )

    async def about(self, _: Any) -> JSONResponse:
        return JSONResponse({"issuer": self.url, "token_endpoint": f"{self.url}/token"})

    async def token(self, _: Any) -> JSONResponse:
        self.given += 1
        claims = {
            "iss": self.url,
            "aud": self.audience,
            "sub": "desk",
            "scope": "registry:write",
            "exp": int(time.time()) + 600,
            "jti": str(self.given),
        }
        header = {"alg": "ES256", "kid": self._key.kid}
        token = jwt.encode(header, claims, self._key.made)
        return JSONResponse({"access_token": token, "token_type": "Bearer", "expires_in": 600})


async def test_without_authentication_on_other_addresses(tmp_path: Path) -> None:
    """A proxy on this machine is how other addresses reach a server here."""
    desk = Desk()
    async with served(registry(tmp_path)) as server, desk.shows() as url:
        through = Registry(server.url, headers={"x-forwarded-for": "203.0.113.9"})
        with pytest.raises(RegistryError, match=r"configure callers with \[\[auth\]\]; or let"):
            await through.add(url)
        assert (await through.search()).total == 0
        await through.close()


def test_credentials_need_tls() -> None:
    with pytest.raises(CredentialsNotSent, match="plain HTTP"):
        Registry("http://agents.example", auth=StaticToken("x"))
    Registry("https://agents.example", auth=StaticToken("x"))
