"""An agent inside a FastAPI application. Run it with `uvicorn examples.mounted:api`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from dragoman import App
from examples.hello import agent

app = App(agent)


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    """A mounted application gets no lifespan events, so the host's lifespan runs it."""
    async with app:
        yield


api = FastAPI(lifespan=lifespan)
api.mount("/agents/greeter", app)


@api.get("/")
def index() -> dict[str, str]:
    """The host's own routes do not change."""
    return {"greeter": "/agents/greeter/.well-known/agent-card.json"}
