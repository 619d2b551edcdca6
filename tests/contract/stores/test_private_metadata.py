"""Metadata that only a gate may read, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dragoman import (
    AgentExtension,
    GatedWork,
    Message,
    Part,
    PrivateMetadata,
    PrivateParts,
    Role,
    Turn,
)
from dragoman.model.caller import Call
from dragoman.model.errors import InvalidParams
from dragoman.model.types import SendMessageRequest, TaskState
from dragoman.security.encryption import Encryption, key
from dragoman.server import private_metadata
from dragoman.stores.admin import is_database
from dragoman.stores.store import Accepted, Store, UnknownEntry
from tests.contract.stores.test_conversation import administer
from tests.harness.lives import Lives
from tests.harness.stores import Make
from tests.harness.workers import CALL

CODE = "example.code"
SECRET = "open sesame"


class Door:
    """Asks for a code that nobody else may see."""

    private_metadata: Sequence[str] = (CODE,)

    def __init__(self) -> None:
        self.read: list[Any] = []
        self.first: list[Any] = []

    def extensions(self, skill: str) -> Sequence[AgentExtension]:
        return ()

    async def enter(self, turn: Turn, work: GatedWork) -> None:
        self.first.append(await work.private_metadata())
        answer = await turn.ask_for("The code, please")
        assert CODE not in (answer.metadata or {})
        self.read.append(await work.private_metadata())
        await work.run()


def behind(door: Door, store: Store, **options: Any) -> Lives:
    async def handler(turn: Turn) -> str:
        seen = [message.metadata for message in (turn.message, *turn.history)]
        return f"{turn.text} {seen}"

    return Lives(handler, store, gate=door, **{"durable": False, **options})


def code(task: str = "", value: Any = SECRET, **more: Any) -> Message:
    return Message(
        message_id="code",
        role=Role.USER,
        parts=(Part(text="Here"),),
        task_id=task,
        metadata={CODE: value, **more},
    )


async def say(lives: Lives, message: Message, call: Call = CALL) -> Accepted:
    return await lives.service._accept(SendMessageRequest(message=message), lives.scope, call)


async def everything(lives: Lives, task: str) -> str:
    """All that can be read of a task."""
    logged = [repr(entry) for entry in await lives.log(task)]
    logged += [repr(entry) for entry in await lives.store.private(lives.scope, task)]
    return repr(await lives.task(task)) + "".join(logged)


async def test_only_the_gate_reads_it(store: Store) -> None:
    door = Door()
    assert isinstance(door, PrivateMetadata)
    lives = behind(door, store)
    task = (await say(lives, code(other=1))).head.id
    await lives.life()
    accepted = await say(lives, code(task, {"x": SECRET}))
    assert SECRET not in repr(accepted)
    await lives.life()
    assert door.first[0] == {CODE: SECRET}
    assert door.read == [{CODE: {"x": SECRET}}]
    found = await lives.task(task)
    assert found.status.state is TaskState.COMPLETED
    assert SECRET not in await everything(lives, task)
    assert found.history[0].metadata == {"other": 1}


@pytest.mark.parametrize("die_at", [1, 2])
async def test_it_is_there_in_another_life(store: Store, die_at: int) -> None:
    class Dying(Door):
        async def enter(self, turn: Turn, work: GatedWork) -> None:
            await turn.ask_for("The code, please")
            await lives.point()
            self.read.append(await work.private_metadata())
            await lives.point()
            await work.run()

    door = Dying()
    lives = behind(door, store)
    task = (await lives.send()).head.id
    await lives.life()
    await say(lives, code(task))
    await lives.life(die_at)
    await lives.recover()
    await lives.life()
    assert door.read == [{CODE: SECRET}] * die_at
    assert (await lives.task(task)).status.state is TaskState.COMPLETED


async def test_the_same_message_again_is_the_same(store: Store) -> None:
    lives = behind(Door(), store)
    call = replace(CALL, key="again")
    first = await say(lives, code(), call)
    again = await say(lives, code(), call)
    assert (again.head.id, again.number, again.fresh) == (first.head.id, 1, False)
    # what is not shown counts, too
    with pytest.raises(InvalidParams):
        await say(lives, code(value="another"), call)


async def test_a_message_to_another_skill(store: Store) -> None:
    lives = behind(Door(), store)

    @lives.agent.skill
    async def free(turn: Turn) -> str:
        return str(turn.message.metadata)

    message = code(skill="free")
    task = (await say(lives, message)).head.id
    await lives.life()
    found = await lives.task(task)
    assert found.artifacts[0].parts[0].text == "{'skill': 'free'}"
    lives.agent.remove_skill("handler")
    assert not lives.agent.private_metadata


async def test_it_is_not_kept_for_ever(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_metadata, "KEPT", 0.01)
    door = Door()
    lives = behind(door, store)
    task = (await say(lives, code())).head.id
    await asyncio.sleep(0.02)
    await lives.life()
    assert (door.first, door.read) == ([{}], [])
    assert (await lives.task(task)).status.state is TaskState.INPUT_REQUIRED


async def test_it_may_be_too_large(store: Store) -> None:
    lives = behind(Door(), store)
    with pytest.raises(InvalidParams, match=r"example\.code: has 7\d+ bytes; at most 65536"):
        await say(lives, code(value="x" * 70_000))


class Vault(Door):
    """The same, with parts of messages."""

    def is_private(self, part: Part) -> bool:
        return isinstance(part.data, dict) and "code" in part.data

    async def enter(self, turn: Turn, work: GatedWork) -> None:
        await turn.ask_for("The code, please")
        await lives_of[self].point()
        self.read.append((await work.private_parts(), await work.private_metadata()))
        await work.run()


lives_of: dict[Vault, Lives] = {}


@pytest.mark.parametrize("die_at", [0, 1])
async def test_parts_that_only_the_gate_reads(store: Store, die_at: int) -> None:
    vault = Vault()
    assert isinstance(vault, PrivateParts)
    lives = lives_of[vault] = behind(vault, store)
    secret, open_ = Part(data={"code": SECRET}), Part(data={"name": "me"})
    task = (await say(lives, replace(code(), parts=(secret,)))).head.id
    await lives.life()
    said = replace(code(task), message_id="2", parts=(open_, secret, Part(text="Here")))
    await say(lives, said)
    await lives.life(die_at)
    if die_at:
        await lives.recover()
        await lives.life()
    assert vault.read == [((secret,), {CODE: SECRET})]
    found = await lives.task(task)
    assert found.status.state is TaskState.COMPLETED
    assert SECRET not in await everything(lives, task)
    first, second = (one for one in found.history if one.role is Role.USER)
    assert first.parts == (Part(data={}),)
    assert second.parts == (open_, Part(data={}), Part(text="Here"))


async def test_parts_may_be_too_large(store: Store) -> None:
    lives = behind(Vault(), store)
    part = Part(data={"code": "x" * 70_000})
    with pytest.raises(InvalidParams, match=r"private parts: has 7\d+ bytes; at most 65536"):
        await say(lives, replace(code(), metadata=None, parts=(part,)))
    lives.agent.remove_skill("handler")
    assert not lives.agent.private_parts


async def test_it_is_encrypted_with_a_key(make: Make) -> None:
    try:
        store: Any = await make(encryption=Encryption([key()]))
    except TypeError:
        return  # memory writes nothing down
    door = Door()
    lives = behind(door, store)
    accepted = await say(lives, code())
    found = await administer(store, lambda admin: list(admin.export_reservations(print)))
    assert [one.body[:10] for one in found] == ["sealed:v1:"]
    # without its key the turn waits, as with every private entry
    right, store._encryption = store._encryption, Encryption(())
    with pytest.raises(UnknownEntry, match=r"its key .* is missing"):
        await private_metadata.read(store, accepted.received)
    store._encryption = right
    await lives.life()
    assert door.first == [{CODE: SECRET}]


async def test_it_moves_with_the_task(make: Make) -> None:
    store, other = await make(), await make()
    if store.admin is None or not is_database(store.admin()):
        return
    lives = behind(Door(), store)
    task = (await say(lives, code())).head.id
    tasks = await administer(store, lambda admin: list(admin.export(print)))
    assert SECRET not in msgspec.json.encode(tasks).decode()
    reserved = await administer(store, lambda admin: list(admin.export_reservations(print)))
    await administer(other, lambda admin: admin.put(tasks, replace=False))
    await administer(other, lambda admin: admin.put_reservations(reserved, replace=False))
    door = Door()
    lives = behind(door, other)
    await lives.life()
    assert door.first == [{CODE: SECRET}]
    assert (await lives.task(task)).status.state is TaskState.INPUT_REQUIRED
