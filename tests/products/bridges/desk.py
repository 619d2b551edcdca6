"""Serves an agent of another framework by `dragoman serve`, in an environment that has it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.harness.forks import COMMAND, ROOT, SERVERS, SERVES, Forked, Forks
from tests.harness.services import free
from tests.interop.peers import environments

HERE = Path(__file__).parent
PATIENCE = 30.0


class Framework(NamedTuple):
    """A framework: its environment, and the module that has its desk."""

    environment: str
    module: str
    served: str = "desk"
    lacks: Mapping[str, str] = {}
    """Why it does not have a feature, by the key of the feature."""

    def object(self, name: str) -> Framework:
        """The same framework, but another object of the module is served."""
        return self._replace(served=name)


WORDS = (
    "The framework takes the answer to a question as words, or as a value of a type that is no "
    "file. The agent is told which file it did not get."
)
FRAMEWORKS = {
    "Pydantic AI": Framework(
        "pydantic-ai",
        "pydantic_ai_desk",
        lacks={"own": "The framework has no store of conversations."},
    ),
    "LangGraph": Framework("langgraph", "langgraph_desk"),
    "Google ADK": Framework("adk", "adk_desk"),
    "OpenAI Agents": Framework("openai-agents", "openai_agents_desk"),
    "LlamaIndex": Framework("llamaindex", "llamaindex_desk"),
    "Strands": Framework("strands", "strands_desk", lacks={"attached": WORDS}),
    "Agno": Framework("agno", "agno_desk", lacks={"attached": WORDS}),
    "Microsoft": Framework("microsoft", "microsoft_desk"),
    "smolagents": Framework(
        "smolagents",
        "smolagents_desk",
        lacks={
            "attached": WORDS,
            "gone": "The framework converts images: the conversation keeps them itself.",
            "own": "The framework has no store of conversations.",
            "schema": "The framework's agents do not say of which type their answers are.",
        },
    ),
    "CrewAI": Framework(
        "crewai",
        "crewai_desk",
        lacks={
            "attached": WORDS,
            "gone": "A model of the framework is not shown the files of earlier messages again.",
            "made": "An agent and a crew of the framework return text or structured data, "
            "never a file.",
            "own": "The framework's agents and crews have no store of conversations: their memory "
            "is of facts, and takes no name of a conversation.",
        },
    ),
}
QUICK = ("Pydantic AI", "LangGraph")
"""Those that `make test` runs; `make interop` runs all."""
EXECUTORS = {
    "a2a-sdk 1.x": Framework("", "executor_agent", "Desk"),
    "a2a-sdk 0.3": Framework("executors-0.3", "older_executor_agent", "Desk"),
}


LOADED: Mapping[str, Sequence[str]] = {
    "langgraph": (
        *("langgraph.checkpoint.sqlite.aio", "langgraph.graph", "langgraph.prebuilt"),
        "dragoman.bridges.langgraph",
    ),
    "pydantic-ai": ("pydantic_ai.models.function", "dragoman.bridges.pydantic_ai"),
}
"""What desks and callers in an environment import, as far as it survives a fork."""


@cache
def forks(environment: str) -> Forks:
    """What forks in the environment of a framework, or in our own."""
    if not environment:
        return SERVERS
    python = str(environments.python(environment))
    return Forks((*SERVES, *LOADED.get(environment, ())), python=python)


class Desk:
    """A process that serves the agent; it can be killed and started again."""

    def __init__(
        self, framework: Framework, folder: Path, *options: str, **environment: str
    ) -> None:
        self.framework = framework
        self.folder = folder
        self._options = options
        self._environment = environment
        self._process: Forked | None = None
        self._port = free()
        self.url = f"http://127.0.0.1:{self._port}"

    @property
    def done(self) -> list[str]:
        """What the agent has done, in order."""
        file = self.folder / "effects"
        return file.read_text().split("\n")[:-1] if file.exists() else []

    def start(self) -> None:
        """Serve, and wait until it answers."""
        named = self.framework.environment
        sources = (ROOT / "src", HERE / "desks", ROOT)
        environment = {
            **os.environ,
            **self._environment,
            "PYTHONPATH": os.pathsep.join(map(str, sources)),
            "EFFECTS": str(self.folder / "effects"),
            "DRAGOMAN_POLL": "0.1",
            "DRAGOMAN_LEASE": "5",
        }
        served = f"{self.framework.module}:{self.framework.served}"
        store = f"sqlite:///{self.folder / 'desk.db'}"
        with (self.folder / "log").open("a") as log:
            self._process = forks(named).start(
                *(COMMAND, "serve", served, "--port", str(self._port), "--store", store),
                *self._options,
                folder=self.folder,
                environment=environment,
                stderr=log.fileno(),
            )
        until = time.monotonic() + PATIENCE
        while True:
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"it did not start: {self.log}")
            try:
                if httpx.get(f"{self.url}/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)

    @property
    def log(self) -> str:
        """What the server has logged."""
        return (self.folder / "log").read_text()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it by SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it in order."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except TimeoutError:
                self.kill()
