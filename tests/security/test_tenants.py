"""Which tenant a caller may name: the one that its credential says, those that were configured for
it, and the one that the card names. Nobody else's."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Agent, App, Caller, Turn
from dragoman.client import Client
from dragoman.model.errors import Forbidden
from dragoman.security import AllOf, Anonymous, ApiKey, Basic, Token
from dragoman.security.schemes import Authenticator
from tests.harness import agents
from tests.harness.clients import Binding, Failed, Grpc, HttpJson, JsonRpc
from tests.harness.protected_app import asked, message, protected
from tests.harness.server import serving
from tests.security.scheme_requests import identified, request
from tests.security.test_ownership import CALLS

NAMING: tuple[type[Binding], ...] = (JsonRpc, HttpJson, Grpc)
"""Before 1.0, requests name no tenants."""


def keys(**more: Any) -> ApiKey:
    """Keys of several anns: without a tenant, of two tenants, and one that may name some."""
    known = {
        "ann": "plain-key",
        "acme-key": Caller(identity="ann", tenant="acme"),
        "blue-key": Caller(identity="ann", tenant="blue"),
        "cy": "cys-key",
    }
    return ApiKey(header="X-Key", keys=known, tenants={"cy": ["acme", "red"]}, **more)


@pytest.mark.parametrize("kind", NAMING, ids=lambda kind: kind.name)
async def test_a_credential_that_says_no_tenant_names_none(kind: type[Binding]) -> None:
    """In every operation, whether the task is there or not."""
    settings: dict[str, Any] = {"push": True, "egress_allow": ["*.example"]}
    async with protected(agents.make(extended=True), auth=keys(), **settings) as server:
        hers = server.client(kind, "acme-key")
        task = (await hers.call("SendMessage", message=message("ask")))["task"]["id"]
        assert (await hers.call("GetTask", id=task, tenant="acme"))["id"] == task
        for key in ("plain-key", "blue-key"):
            other = server.client(kind, key)
            for name, call in CALLS.items():
                if name == "GetExtendedAgentCard":  # it is the same for all tenants
                    continue
                told = set()
                for tenant in ("acme", "nobodys"):
                    params = {} if call is None else call(task)
                    refused = await asked(other, name, {**params, "tenant": tenant})
                    assert isinstance(refused, Failed), name
                    assert (refused.reason, refused.status) == ("PERMISSION_DENIED", 403)
                    told.add(refused.message)
                # neither is it told which tenants there are
                (words,) = told
                assert "may not use this tenant" in words
            assert isinstance(await asked(other, "GetTask", {"id": task}), Failed)
        assert (await hers.call("ListTasks"))["totalSize"] == 1


async def test_new_tenants_are_no_way_around_a_quota() -> None:
    async with protected(agents.make(), auth=keys(), quota_tasks=1) as server:
        client = server.client(JsonRpc, "plain-key")
        await client.call("SendMessage", message=message("ask"))
        found = [
            await asked(client, "SendMessage", {"message": message("ask two"), **more})
            for more in ({}, {"tenant": "one"}, {"tenant": "two"})
        ]
    assert [failed.status for failed in found] == [429, 403, 403]


async def test_what_was_configured_may_be_named() -> None:
    async with protected(agents.make(), auth=keys()) as server:
        cy = server.client(HttpJson, "cys-key")
        made = {}
        for tenant in ("acme", "red"):
            sent = await cy.call("SendMessage", message=message("ask"), tenant=tenant)
            made[tenant] = sent["task"]["id"]
            listed = await cy.call("ListTasks", tenant=tenant)
            assert [task["id"] for task in listed["tasks"]] == [made[tenant]]
        assert (await cy.call("ListTasks"))["totalSize"] == 0
        refused = await asked(cy, "ListTasks", {"tenant": "blue"})
        assert refused.reason == "PERMISSION_DENIED"
        # what is not hers in a tenant that she may name is not found
        hers = server.client(HttpJson, "acme-key")
        theirs = await asked(hers, "GetTask", {"id": made["acme"], "tenant": "acme"})
        assert theirs.reason == "TASK_NOT_FOUND"


@pytest.mark.parametrize("auth", [None, Anonymous()], ids=["none", "anonymous"])
async def test_anonymous_callers_name_none_unless_it_is_allowed(auth: Any) -> None:
    async with protected(agents.make(), auth=auth) as server:
        refused = await asked(server.client(JsonRpc, ""), "ListTasks", {"tenant": "acme"})
    assert refused.reason == "PERMISSION_DENIED"


async def test_anonymous_callers_may_be_allowed_to() -> None:
    for tenants, allowed in ((["acme"], ["acme"]), (["*"], ["acme", "blue"])):
        async with protected(agents.make(), auth=Anonymous(tenants=tenants)) as server:
            client = server.client(JsonRpc, "")
            for tenant in ("acme", "blue"):
                found = await asked(client, "ListTasks", {"tenant": tenant})
                assert isinstance(found, Failed) is (tenant not in allowed)


async def test_the_tenant_of_the_card_is_for_everybody() -> None:
    """Our client copies it, over each binding; another one is nobody's."""
    agent = Agent("Branch", description="Serves one tenant.", tenant="north")

    @agent.handler
    async def greet(turn: Turn) -> str:
        """Greet."""
        return f"hello {turn.caller.identity}"

    async with protected(agent, auth=keys()) as server:
        headers = {"x-key": "plain-key"}
        async with Client.connect(server.url, headers=headers) as client:
            found = {i.protocol_binding: i.tenant for i in client.card.supported_interfaces[:3]}
            assert found == dict.fromkeys(("JSONRPC", "HTTP+JSON", "GRPC"), "north")
            assert (await client.send("hi")).text == "hello ann"
        for kind in NAMING:
            ann = server.client(kind, "plain-key")
            assert (await ann.call("ListTasks", tenant="north"))["totalSize"] == 1
            assert (await ann.call("ListTasks"))["totalSize"] == 0
            # not for who belongs elsewhere
            refused = await asked(server.client(kind, "acme-key"), "ListTasks", {"tenant": "north"})
            assert refused.reason == "PERMISSION_DENIED"


async def test_who_says_what_of_tenants_when_both_are_needed() -> None:
    login = Basic({"bob": "pw"}, tenants=["red"])
    shown = {"authorization": "Basic Ym9iOnB3"}
    gate = Authenticator(AllOf(keys(), login))
    found = {
        key: await identified(gate, request(**shown, **{"x-key": key}))
        for key in ("plain-key", "acme-key", "cys-key")
    }
    assert (found["plain-key"].tenant, found["plain-key"].tenants) == ("", {"red"})
    assert (found["acme-key"].tenant, found["acme-key"].tenants) == ("acme", frozenset())
    assert (found["cys-key"].tenant, found["cys-key"].tenants) == ("", {"acme", "red"})


@pytest.mark.parametrize("tenants", ["acme", [""], ["a\nb"], {"ann": "x" * 2000}])
async def test_tenants_that_make_no_sense(tenants: Any) -> None:
    with pytest.raises(ValueError, match="auth: Token: tenants"):
        App(agents.make(), auth=Token({"ann": "t"}, tenants=tenants))


async def test_it_is_told_to_our_client() -> None:
    app = App(agents.make(), drain_timeout=0.0)
    async with serving(app) as url, Client.connect(url) as client:
        first = client.card.supported_interfaces[0]
        wrong = replace(client.card, supported_interfaces=(replace(first, tenant="acme"),))
        async with Client.connect(wrong) as other:
            with pytest.raises(Forbidden, match="send a credential of the tenant"):
                await other.send("hi")
