"""What the desks of all frameworks share."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec

from dragoman import Agent
from dragoman.bridges import bridge
from dragoman.bridges.bridge import Outcome, Run


def note(what: str) -> None:
    """Write down that something was done, where the test can see it."""
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{what}\n")


def times(what: str) -> int:
    """How often something was done."""
    file = Path(os.environ["EFFECTS"])
    return file.read_text().split("\n").count(what) if file.exists() else 0


class Unreadable:
    """A framework of another time, whose state nothing of today can read."""

    name, description, output = "Desk", "Does what it is told.", None
    logs_steps = False

    def __init__(self, package: str) -> None:
        self.package = package

    async def run(self, run: Run) -> Outcome:
        """Say nothing, and leave a state: what there is, with other contents."""
        state = run.load(bytes)
        return Outcome(state=b"\x00 of another time" if state is None else other(state))


def other(state: bytes) -> bytes:
    """A state as another version of the framework may have saved it: what is outside is the same,
    and what is inside has other fields."""
    try:
        return json.dumps(changed(json.loads(state))).encode()
    except ValueError:
        return msgspec.msgpack.encode(changed(msgspec.msgpack.decode(state)))


def changed(value: Any, depth: int = 0) -> Any:
    """A value whose inner objects have other fields."""
    if isinstance(value, dict):
        mark = "_of_another_time" if depth else ""
        return {f"{key}{mark}": changed(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [changed(item, depth + 1) for item in value]
    if isinstance(value, bytes):
        return msgspec.msgpack.encode({"of": "another time"})
    return value


def unreadable(package: str) -> Agent:
    """An agent that leaves such a state in the conversation."""
    return bridge.serve(Unreadable(package))
