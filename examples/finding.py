"""Find an agent in a registry, and give it work. First, each in a terminal of its own:

    dragoman registry serve
    dragoman serve examples.hello:agent
    dragoman registry add http://127.0.0.1:8000 --approve

Then `python -m examples.finding "greet people" Ann`."""

import asyncio
import sys

from dragoman.client import Client
from dragoman.registry import Registry


async def find(url: str, wanted: str, message: str) -> str:
    """Send the message to the agent that fits the wanted words best, and return its answer. The
    client uses the card that was approved, and refuses an agent whose own card has changed."""
    async with Registry(url) as registry:
        hits = await registry.search(wanted, healthy=True, limit=3)
        for hit in hits:
            print(f"{hit.score:5}  {hit.entry.card.name}  ({'; '.join(hit.reasons)})")
        if not hits.total:
            return "No approved agent fits."
        best = hits.hits[0].entry
        async with Client.connect(registry[best.alias or best.urn]) as agent:
            return (await agent.send(message)).text


if __name__ == "__main__":
    print(asyncio.run(find("http://127.0.0.1:8900", *sys.argv[1:3])))
