"""Who somebody is, character by character: no two are taken for one, and what cannot be kept,
shown or compared everywhere alike is nobody's name."""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dragoman import App
from dragoman.model.caller import LONGEST, Caller, Request, Scope, fault
from dragoman.model.operations import OPERATIONS
from tests.harness import agents
from tests.harness.app import RunningApp, running
from tests.harness.clients import Binding, Failed, JsonRpc
from tests.security.test_not_found_cost import EVERY, expressible
from tests.security.test_ownership import CALLS, UNKNOWN, asked, message

pytestmark = pytest.mark.asyncio(loop_scope="module")

PEOPLE = [
    ("", "ann"),
    ("", "Ann"),
    ("", "ANN"),
    ("", "ann "),
    ("", " ann"),
    ("", "\u0430nn"),  # it looks the same
    ("", "ann\u200b"),
    ("", "ann\u0301"),
    ("", "\xe9"),
    ("", "e\u0301"),
    ("", "\ufb01"),
    ("", "fi"),
    ("", "\u212a"),
    ("", "K"),
    ("", "\u0131"),
    ("", "i"),
    ("", "\U0001f600"),
    ("", "\ufffd"),
    ("", "%00"),
    ("", "ann' --"),
    ("", "ann%"),
    ("", "_nn"),
    ("", "null"),
    ("", "1"),
    ("", "01"),
    ("", "x" * LONGEST),
    ("", "x" * (LONGEST - 1) + "y"),
    ("ann", ""),
    ("a", "nn"),
    ("an", "n"),
    ("ann", "ann"),
    ("ANN", "ann"),
    ("ann", "Ann"),
]
"""Tenants and identities that are all somebody else."""

WRONG = {
    "a NUL": "ann\x00",
    "only a NUL": "\x00",
    "a new line": "ann\nERROR all is lost",
    "a carriage return": "ann\rbob",
    "an escape": "ann\x1b[2J",
    "a delete": "ann\x7f",
    "a next line": "ann\x85",
    "half a character": "ann\ud800",
    "the other half": "\udfffann",
    "too long": "x" * (LONGEST + 1),
    "a megabyte": "<megabyte>",
}


def told(tenant: str, identity: str) -> dict[str, str]:
    """The headers of this caller."""

    def text(value: str) -> str:
        return base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()

    return {"x-tenant": text(tenant), "x-who": text(identity)}


def identify(request: Request) -> Caller:
    """Believes whatever it is told."""

    def text(name: str) -> str:
        raw = base64.b64decode(request.headers.get(name, ""))
        found = raw.decode("utf-8", "surrogatepass")
        return "x" * 1_000_000 if found == "<megabyte>" else found

    return Caller(identity=text("x-who"), tenant=text("x-tenant"))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["memory", "sqlite"])
async def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningApp]:
    """A server that believes everybody."""
    file: Path = tmp_path_factory.mktemp("identities") / "x.db"
    app = App(
        agents.make(extended=True),
        store="memory:" if request.param == "memory" else f"sqlite:///{file}",
        identify=identify,
        push=True,
        egress_allow=["*.example"],
        grpc_port=0,
        drain_timeout=0.0,
        audit=True,
    )
    async with running(app) as found:
        yield found


def client(
    server: RunningApp, kind: type[Binding], tenant: str, identity: str, **more: str
) -> Binding:
    """This caller."""
    return server.client(kind, **told(tenant, identity), **more)


async def test_nobody_is_taken_for_another(server: RunningApp) -> None:
    key = {"Idempotency-Key": "the-same"}
    callers = [client(server, JsonRpc, *who, **key) for who in PEOPLE]
    tasks = [
        (await caller.call("SendMessage", message=message("ask")))["task"]["id"]
        for caller in callers
    ]
    assert len(set(tasks)) == len(PEOPLE)
    for caller, own in zip(callers, tasks, strict=True):
        listed = await caller.call("ListTasks", pageSize=100)
        assert [task["id"] for task in listed["tasks"]] == [own]
        assert listed["totalSize"] == 1
        assert (await caller.call("GetTask", id=own))["id"] == own
        found = [await asked(caller, "GetTask", {"id": task}) for task in tasks if task != own]
        assert {failed.reason for failed in found} == {"TASK_NOT_FOUND"}


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_what_is_nobody_s_name(
    server: RunningApp, kind: type[Binding], wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    for field, who in (("identity", ("", wrong)), ("tenant", (wrong, "ann"))):
        caller = client(server, kind, *who)
        for operation in OPERATIONS:
            if not expressible(kind, operation.name):
                continue
            call = CALLS[operation.name]
            found = await asked(caller, operation.name, {} if call is None else call(UNKNOWN))
            assert isinstance(found, Failed), operation.name
            assert found.status == 401
            assert f"The {field} of the caller " in found.message
            assert wrong not in found.message
            assert len(found.message) < 200
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
    assert "all is lost" not in "".join(
        line for r in caplog.records for line in r.getMessage().splitlines()[1:]
    )


@pytest.mark.parametrize("wrong", [w for w in WRONG.values() if w != "<megabyte>"])
async def test_a_tenant_that_is_named(server: RunningApp, wrong: str) -> None:
    """What a request names is bounded like what a credential says."""
    try:
        wrong.encode()
    except UnicodeEncodeError:
        return  # no JSON can carry it; that is refused as such
    caller = client(server, JsonRpc, "", "ann")
    for operation in OPERATIONS:
        call = CALLS[operation.name]
        params = {} if call is None else call(UNKNOWN)
        found = await asked(caller, operation.name, {**params, "tenant": wrong})
        if operation.name == "GetExtendedAgentCard":
            continue  # it is the same for all of them
        assert isinstance(found, Failed)
        assert found.reason == "INVALID_PARAMS"
        assert found.fields == ["tenant"]


async def test_what_is_wrong_is_said() -> None:
    assert fault("x" * (LONGEST + 1)) == "is longer than 1024 characters"
    assert "control character" in fault("\n")
    assert all(not fault(text) for pair in PEOPLE for text in pair)
    assert Scope("a", "b", "c") != Scope("a", "bc", "")
