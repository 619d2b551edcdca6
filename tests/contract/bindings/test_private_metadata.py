"""Metadata that only a gate may read, over every binding and version: no client gets it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dragoman import Agent, GatedWork, Part, Turn
from tests.contract.bindings.conftest import Start, user
from tests.harness.clients import Binding

KEY = "example.code"
SECRET = "open sesame"


class Door:
    """Reads a code."""

    private_metadata = (KEY,)

    def __init__(self) -> None:
        self.read: list[Any] = []

    def extensions(self, skill: str) -> Any:
        return ()

    async def enter(self, turn: Turn, work: GatedWork) -> None:
        self.read.append(await work.private_metadata())
        await work.run()


class Vault(Door):
    """Reads parts with a code, as well."""

    def is_private(self, part: Part) -> bool:
        return isinstance(part.data, dict) and "code" in part.data

    async def enter(self, turn: Turn, work: GatedWork) -> None:
        self.read.append([part.data for part in await work.private_parts()])
        await work.run()


@pytest.mark.first
@pytest.mark.storeless
async def test_no_client_gets_the_parts(
    start: Start, kind: type[Binding], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    agent, vault = Agent("Vault", description="Opens."), Vault()

    @agent.skill(gate=vault)
    async def enter(turn: Turn) -> str:
        return f"{len(turn.message.parts)} parts, {turn.message.parts[0].text}"

    client = (await start(agent=agent)).client(kind)
    message = user("x")
    message["parts"] = [*message["parts"], {"data": {"code": SECRET}}, {"data": {"other": 1}}]
    sent = await client.call("SendMessage", message=message)
    found = [sent, await client.call("GetTask", id=sent["task"]["id"])]
    assert "3 parts, x" in str(found) and "other" in str(found) and SECRET not in str(found)
    assert vault.read == [[{"code": SECRET}]]
    assert SECRET not in caplog.text


@pytest.mark.first
@pytest.mark.storeless
async def test_no_client_gets_it(
    start: Start, kind: type[Binding], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    agent, door = Agent("Door", description="Opens."), Door()

    @agent.skill(gate=door)
    async def enter(turn: Turn) -> str:
        return "Come in"

    client = (await start(agent=agent)).client(kind)
    message = user("x", metadata={KEY: {"of": [SECRET]}, "other": 1})
    sent = await client.call("SendMessage", message=message)
    task = sent["task"]["id"]
    found = [sent, await client.call("GetTask", id=task)]
    if kind.can("stream"):
        events = await client.stream("SendStreamingMessage", message={**message, "messageId": "n"})
        found += [seen.event for seen in events]
    if kind.can("list"):
        found.append(await client.call("ListTasks", includeArtifacts=True))
    assert "Come in" in str(found) and SECRET not in str(found)
    assert door.read and all(read == {KEY: {"of": [SECRET]}} for read in door.read)
    assert SECRET not in caplog.text
