"""What the desks of all frameworks share."""

from __future__ import annotations

import os
from pathlib import Path

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
        """Say nothing, and leave a state."""
        return Outcome(state=b"\x00 of another time")


def unreadable(package: str) -> Agent:
    """An agent that leaves such a state in the conversation."""
    return bridge.serve(Unreadable(package))
