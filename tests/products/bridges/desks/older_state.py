"""An agent that leaves a state in the conversation, as an older version of a framework has."""

from __future__ import annotations

import os

from dragoman.bridges import bridge
from dragoman.bridges.bridge import Outcome, Run


class Older:
    """A framework of another time."""

    description, output = "Does what it is told.", None
    logs_steps = False
    package, name = os.environ["PACKAGE"], os.environ["NAME"]

    async def run(self, run: Run) -> Outcome:
        """Say nothing, and leave the state."""
        return Outcome(state=bytes.fromhex(os.environ["STATE"]))


agent = bridge.serve(Older())
