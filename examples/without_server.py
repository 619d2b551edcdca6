"""Run an agent without a server: `python -m examples.without_server`."""

import asyncio

from dragoman import TaskState
from dragoman.testing import run_handler
from examples.asking import agent


async def main() -> None:
    """Run two turns of one task, and print the results."""
    first = await run_handler(agent, "A shirt please")
    assert first.state is TaskState.INPUT_REQUIRED
    print("asked:", first.text)

    both = await run_handler(agent, "A shirt please", "M")
    assert both.task is not None
    print("events:", [type(event).__name__ for event in both.events])
    print("made:", both.task.artifacts[0].parts[0].data)


if __name__ == "__main__":
    asyncio.run(main())
