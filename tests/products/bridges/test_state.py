"""The common part of bridges, with frameworks of a few lines: states, files, approvals, calls."""

from __future__ import annotations

import base64
import json
import os
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import App, Caller, Message, Part, Request, Role, Task, TaskState
from dragoman.bridges import bridge
from dragoman.bridges.bridge import Outcome, Question, Run
from dragoman.bridges.merged_states import merged
from dragoman.bridges.saved_state import LIMIT, Files, change, changed, merged_packed
from dragoman.bridges.steps import long_step
from dragoman.client import Client
from dragoman.testing import local_client

PHOTO = os.urandom(1_000_000)


def message(*parts: Part) -> Message:
    return Message(message_id="m", role=Role.USER, parts=list(parts))


@pytest.mark.parametrize("encode", [bytes, base64.b64encode, base64.urlsafe_b64encode])
def test_files_of_messages_are_not_copied_into_a_state(encode: Any) -> None:
    files = Files([message(Part(raw=PHOTO, media_type="image/png"))])
    state = b"before" + encode(PHOTO) + b"after" + encode(PHOTO)
    packed = files.pack(state)
    assert len(packed) < 20_000
    assert files.unpack(packed) == state


def test_a_file_that_is_gone_leaves_the_state_readable() -> None:
    content = base64.b64encode(PHOTO)
    state = json.dumps({"file": content.decode(), "text": "hello"}).encode()
    packed = Files([message(Part(raw=PHOTO))]).pack(state)
    others = Files()
    assert others.missing(packed)
    found = json.loads(others.unpack(packed))
    assert found["text"] == "hello"
    assert len(base64.b64decode(found["file"])) >= len(PHOTO), "it is base64 still"
    assert not Files([message(Part(raw=PHOTO))]).missing(packed)


@pytest.mark.parametrize("count", [300, 301, 302])
def test_the_oldest_items_are_dropped_at_the_beginning_of_a_turn(count: int) -> None:
    items = [
        f"{'user' if n % 3 == 0 else 'tool'} {n} {os.urandom(2000).hex()}" for n in range(count)
    ]

    def encode(some: list[str]) -> bytes:
        return json.dumps(some).encode()

    files = Files()
    kept = json.loads(files.fitting(items, encode, lambda item: item.startswith("user")))
    assert kept == items[-len(kept) :]
    assert kept[0].startswith("user")
    assert LIMIT // 2 < len(files.pack(encode(kept))) <= LIMIT


class Photographer:
    """An agent that keeps all that it got, and asks before it ends."""

    package, name, description, output = "msgspec", "Photographer", "Keeps photos.", None
    logs_steps = False

    async def run(self, run: Run) -> Outcome:
        known: list[str] = run.load(json.loads) or []
        if run.answers:
            (size,) = (len(base64.b64decode(each)) for each in known[-1:])
            await run.write(f"{run.answers[0].text}: {size} bytes, {len(known)} photos")
            return Outcome(state=json.dumps(known).encode())
        raw = next(part.raw for part in run.parts if part.raw is not None)
        known.append(base64.b64encode(raw).decode())
        return Outcome(state=json.dumps(known).encode(), questions=(Question("q", "Where?"),))


async def test_a_large_photo_survives_a_question_and_the_next_task() -> None:
    async with local_client(bridge.serve(Photographer())) as client:
        for number in (1, 2):
            asked = await client.send([Part(raw=PHOTO, media_type="image/png")], context="c")
            assert asked.state is TaskState.INPUT_REQUIRED
            assert asked.task is not None
            result = await client.send("Rome", task=asked.task.id)
            assert result.text == f"Rome: 1000000 bytes, {number} photos"


async def test_a_long_result_of_a_step_takes_several_entries() -> None:
    calls = 0

    class Painter(Photographer):
        logs_steps = True

        async def run(self, run: Run) -> Outcome:
            async def paint() -> Any:
                nonlocal calls
                calls += 1
                return {"picture": PHOTO.hex()}

            found = await long_step(run.turn, "paint", paint)
            if not run.answers:
                return Outcome(questions=(Question("q", "More?"),))
            await run.write(str(len(found["picture"])))
            return Outcome()

    async with local_client(bridge.serve(Painter())) as client:
        asked = await client.send("paint")
        assert asked.task is not None
        result = await client.send("yes", task=asked.task.id)
        assert result.text == "2000000"
    assert calls == 2, "each run of the framework has painted once: no replay has"


class Log:
    """The steps of an attempt, which ends when so many are known; other attempts know them."""

    def __init__(self, known: dict[str, Any], most: int) -> None:
        self._known, self._most = known, most
        self._counts: Counter[str] = Counter()

    async def step(self, name: str, call: Any, *args: Any, returns: Any) -> Any:
        self._counts[name] += 1
        place = f"{name}:{self._counts[name]}"
        if place not in self._known:
            if len(self._known) == self._most:
                raise ConnectionError("the process ends")
            self._known[place] = await call(*args)
        return self._known[place]


async def test_a_crash_between_the_pieces_of_a_result_does_not_mix_two_results() -> None:
    letters = iter("abc")
    known: dict[str, Any] = {}

    async def paint() -> str:
        return next(letters) * 250_000

    def attempt(most: int) -> Any:
        return long_step(Log(known, most), "paint", paint)  # type: ignore[arg-type]

    with pytest.raises(ConnectionError):
        await attempt(1)
    found = await attempt(9)
    assert len(set(found)) == 1
    assert await attempt(9) == found, "from the log"


async def test_what_was_used_before_a_question_counts() -> None:
    class Buyer(Photographer):
        async def run(self, run: Run) -> Outcome:
            asks = len(run.answers) == 0
            questions = (Question("q", "More?"),) if asks else ()
            return Outcome(questions=questions, usage={"requests": 1, "model": "m"})

    async with local_client(bridge.serve(Buyer())) as client:
        asked = await client.send("buy")
        assert asked.task is not None
        seen = []
        async with client.stream("yes", task=asked.task.id) as stream:
            async for event in stream:
                seen.append((getattr(event, "metadata", None) or {}).get(bridge.USAGE))
    assert {"requests": 2, "model": "m"} in seen


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"", b"new"),
        (b"old", b""),
        (os.urandom(5000), os.urandom(5000)),
        (PHOTO[:9000], PHOTO[5000:7000] + b"between" + PHOTO[:6000] + b"end"),
        (b"a" * 5000, b"a" * 7000),
    ],
)
def test_a_change_makes_one_state_of_another(old: bytes, new: bytes) -> None:
    files = Files()
    before, after = files.pack(old), files.pack(new)
    assert files.unpack(changed(before, change(before, after))) == new


def test_a_state_that_an_older_version_has_logged_is_read() -> None:
    files, state = Files(), b'{"messages": []}'
    for logged in (state, files.pack(state)):
        assert files.unpack(changed(files.pack(b"old"), logged)) == state


def test_a_change_has_only_what_is_new() -> None:
    old = os.urandom(100_000)
    new = b"head" + old[:50_000] + os.urandom(1000) + old[50_000:] + b"tail"
    packed = Files().pack
    assert len(change(packed(old), packed(new))) < 1200


async def test_the_log_of_a_task_has_only_what_is_new(tmp_path: Path) -> None:
    """In a conversation that grows, and is cut."""

    class Talker(Photographer):
        async def run(self, run: Run) -> Outcome:
            known: list[str] = [*(run.load(json.loads) or []), os.urandom(20_000).hex()]
            asks = len(run.answers) == 0
            if not asks:
                known = known[:-1]
            state = run.fitting(known, lambda some: json.dumps(some).encode(), lambda _: True)
            return Outcome(state=state, questions=(Question("q", "More?"),) if asks else ())

    store = tmp_path / "log.db"
    sizes = []
    async with local_client(bridge.serve(Talker()), store=f"sqlite:///{store}") as client:
        for _ in range(14):
            asked = await client.send("go", context="c")
            assert asked.task is not None
            assert (await client.send("well", task=asked.task.id)).state is TaskState.COMPLETED
            with closing(sqlite3.connect(store)) as read:
                ((size,),) = read.execute("SELECT sum(length(body)) FROM entry")
            sizes.append(size - sum(sizes))
    assert max(sizes) < 35_000, "only what is new"
    assert max(sizes) < 1.05 * min(sizes), "however much is remembered"


async def test_progress_is_told_as_much_as_the_author_wants() -> None:
    class Teller(Photographer):
        async def run(self, run: Run) -> Outcome:
            await run.tool("look")
            await run.detail("look returned 5")
            await run.write("done")
            return Outcome()

    said: dict[str, list[str]] = {}
    for progress in ("none", "tools", "all"):
        async with local_client(bridge.serve(Teller(), progress=progress)) as client:
            result = await client.send("go")
            assert isinstance(result.task, Task)
            said[progress] = [m.text for m in result.task.history if m.role is Role.AGENT]
    assert said == {
        "none": [],
        "tools": ["Calling look"],
        "all": ["Calling look", "look returned 5"],
    }


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="approvals must be grant or text"):
        bridge.serve(Photographer(), approvals="maybe")  # type: ignore[typeddict-item]


class Diary(Photographer):
    """An agent that knows what it was told, and the name of the conversation."""

    async def run(self, run: Run) -> Outcome:
        known: list[str] = [*(run.load(json.loads) or []), run.text]
        await run.write(f"{run.session} {' '.join(known)}")
        return Outcome(state=json.dumps(known).encode())


CALLERS = {
    "ann": Caller(identity="ann", tenant="red"),
    "bob": Caller(identity="bob", tenant="red"),
    "ann-elsewhere": Caller(identity="ann", tenant="blue"),
}


async def test_agents_tenants_and_callers_do_not_share_a_conversation() -> None:
    """Each says one thing in a context of the same name."""

    def identify(request: Request) -> Caller:
        return CALLERS[request.headers["x-name"]]

    agents = [bridge.serve(Diary(), name=name) for name in ("One", "Two")]
    found: dict[tuple[str, str], list[str]] = {}
    async with App(*agents, identify=identify) as app:
        for agent, name in product(agents, CALLERS):
            url, headers = f"http://agents/{agent.key}", {"x-name": name}
            async with Client.connect(url, app=app, headers=headers) as client:
                await client.send(name, context="c")
                result = await client.send("again", context="c")
                found[agent.key, name] = result.text.split()
    assert all(words[1:] == [name, "again"] for (_, name), words in found.items())
    assert len({words[0] for words in found.values()}) == len(found), "six names"


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "both"),
    [
        ([1], [1, 2], [1, 3], [1, 3, 2]),
        ([], [2], [3], [3, 2]),
        ([1], [5, 2], [5, 3], [5, 3, 2]),  # both have written the known item anew
        ([1, 2], [2, 4], [1, 2, 3], [2, 4]),  # ours has forgotten something
        ({"a": [1], "b": 1}, {"a": [1, 2], "b": 2}, {"a": [1], "b": 3}, {"a": [1, 2], "b": 2}),
        ({"a": 1}, {"a": 1, "b": 2}, {"c": 3}, {"c": 3, "b": 2}),
        (["j", [1]], ["j", [1, 2]], ["j", [1, 3]], ["j", [1, 3, 2]]),
        ({"a": {"m": []}}, {"a": {"m": [2]}}, {"a": {"m": [3]}}, {"a": {"m": [3, 2]}}),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_two_states_are_merged(base: Any, ours: Any, theirs: Any, both: Any, inside: bool) -> None:
    def encode(value: Any) -> bytes:
        data = json.dumps(value).encode()
        return msgspec.msgpack.encode({"state": data, "n": 5}) if inside else data

    found = merged(encode(base), encode(ours), encode(theirs))
    if inside:
        found = msgspec.msgpack.decode(found)["state"]
    assert json.loads(found) == both


def test_the_first_states_of_a_conversation_are_merged() -> None:
    assert json.loads(merged(b"", b"[1]", b"[2]")) == [2, 1]


@pytest.mark.parametrize("theirs", [b"", b"\xff\x00", b"5", b"[1"])
def test_what_cannot_be_merged_stays_as_it_is(theirs: bytes) -> None:
    assert merged(b"[]", b"[1]", theirs) == b"[1]"


def test_a_merged_state_that_is_too_large_is_not_kept() -> None:
    packed = Files().pack
    ours, theirs = (packed(json.dumps([os.urandom(100_000).hex()]).encode()) for _ in range(2))
    assert merged_packed(packed(b"[]"), ours, theirs) == ours
    small = packed(b"[7]")
    assert json.loads(Files().unpack(merged_packed(packed(b"[]"), small, small))) == [7]


async def test_a_task_that_runs_while_another_one_waits() -> None:
    class Listener(Photographer):
        async def run(self, run: Run) -> Outcome:
            said = run.answers[0].text if run.answers else run.text
            known: list[str] = [*(run.load(json.loads) or []), said]
            questions = (Question("q", "What?"),) if said == "ask" else ()
            await run.write(" ".join(known))
            return Outcome(state=json.dumps(known).encode(), questions=questions)

    async with local_client(bridge.serve(Listener())) as client:
        waiting = [await client.send("ask", context="c") for _ in range(2)]
        assert (await client.send("one", context="c")).text == "one"
        for number, asked in enumerate(waiting):
            assert asked.task is not None
            result = await client.send(f"answer {number}", task=asked.task.id)
            assert result.state is TaskState.COMPLETED
        result = await client.send("two", context="c")
        assert result.text == "one ask answer 0 ask answer 1 two"
