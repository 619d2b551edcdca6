"""What is published: a wheel and an archive of the sources, and what they bring along."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email import message_from_string
from email.message import Message
from pathlib import Path

import msgspec
import pytest

from dragoman import __version__

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = (
    *("uvicorn", "uvloop", "httptools", "watchfiles", "h11", "click"),
    *("pydantic", "a2a", "httpx", "requests", "starlette", "fastapi", "anyio", "aiohttp"),
    *("grpc", "google", "opentelemetry", "cryptography", "joserfc", "rfc8785"),
    *("sqlite3", "asyncpg", "psycopg", "nats", "redis"),
)
"""What others bring, or what only some need: none of it is loaded by the import."""
NEEDS = {
    "dragoman.bells.nats": "nats",
    "dragoman.bells.postgres": "asyncpg",
    "dragoman.bells.redis": "redis",
    "dragoman.bindings.grpc": "grpc",
    "dragoman.cli.served_connection": "uvicorn",
    "dragoman.cli.server": "uvicorn",
    "dragoman.client.grpc": "grpc",
    "dragoman.client.wire_trace": "aiohttp",
    "dragoman.demo.guide": "eth_account",
    "dragoman.dialects.protobuf": "google",
    "dragoman.payments.ledger_table": "asyncpg",
    "dragoman.stores.postgres": "asyncpg",
}
"""The modules that are only there for an extra, and what they miss without it."""

BRIDGES = {
    f"dragoman.bridges.{name}": missing
    for name, missing in {
        "adk": "google",
        "agno": "agno",
        "crewai": "crewai",
        "langgraph": "langchain_core",
        "llamaindex": "workflows",
        "microsoft": "agent_framework",
        "openai_agents": "agents",
        "pydantic_ai": "pydantic",
        "sdk": "a2a",
        "smolagents": "PIL",
        "strands": "pydantic",
    }.items()
}
"""The bridges, and what each misses without its framework."""


@dataclass
class Built:
    """What `python -m build` made."""

    wheel: Path
    sdist: Path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """One build for all tests; it takes its tools from the package index."""
    out = tmp_path_factory.mktemp("dist")
    done = execute(sys.executable, "-m", "build", "--outdir", str(out), str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="session")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the one thing that it needs."""
    target = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    done = execute(*pip, "--no-deps", "--no-index", "--target", str(target), str(built.wheel))
    assert done.returncode == 0, done.stderr
    (target / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    return target


def execute(*command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=90, check=False, env=env, cwd="/"
    )


def alone(installed: Path, code: str) -> str:
    """Run code with the standard library, what is installed there, and nothing else."""
    path = f"import sys; sys.path.insert(0, {str(installed)!r})\n"
    done = execute(sys.executable, "-I", "-S", "-W", "error", "-c", path + code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def metadata(built: Built) -> Message:
    """What the wheel says of itself."""
    with zipfile.ZipFile(built.wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        return message_from_string(archive.read(name).decode())


def test_the_wheel(built: Built) -> None:
    assert built.wheel.name == f"dragoman-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
    inside = {name for name in names if not name.startswith(f"dragoman-{__version__}.dist-info/")}
    assert "dragoman/py.typed" in inside
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "dragoman").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == sources
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_console_is_small(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        sizes = [
            each.compress_size
            for each in archive.infolist()
            if each.filename.startswith("dragoman/console/")
        ]
    assert 0 < sum(sizes) < 250_000


def test_the_archive_of_the_sources(built: Built) -> None:
    assert built.sdist.name == f"dragoman-{__version__}.tar.gz"
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("LICENSE", "README.md", "pyproject.toml", "PKG-INFO", "src/dragoman/py.typed"):
        assert name in names
    assert "tests/package/test_build.py" in names
    assert "benchmarks/out" not in names
    assert not [n for n in names if "__pycache__" in n or n.startswith((".venv", ".git/", "dist"))]


def test_links_lead_somewhere_in_the_archive_of_the_sources(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        names |= {above.as_posix() for name in names for above in Path(name).parents}
        pages = [name for name in names if name.endswith(".md")]
        for page in pages:
            file = archive.extractfile(f"dragoman-{__version__}/{page}")
            assert file is not None
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", file.read().decode()):
                found = os.path.normpath(Path(page).parent / target)
                assert found in names, f"{page}: {target}"
    assert {"README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md"} <= set(pages)


def test_this_version_is_in_the_changelog() -> None:
    page = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)$", page, re.MULTILINE)


def test_what_it_says_of_itself(built: Built) -> None:
    found = metadata(built)
    assert found["Author"] == "The dragoman authors"
    assert found.get_all("Project-URL")
    versions = [v.rpartition(" :: ")[2] for v in found.get_all("Classifier") or []]
    assert {"3", "3.11", "3.12", "3.13"} <= set(versions)
    assert (found["Name"], found["Version"]) == ("dragoman", __version__)
    assert found["Requires-Python"] == ">=3.11"
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Description-Content-Type"] == "text/markdown"
    assert "dragoman" in str(found.get_payload())
    needs = found.get_all("Requires-Dist") or []
    assert [need for need in needs if "extra ==" not in need] == ["msgspec>=0.19"]
    extras = found.get_all("Provides-Extra") or []
    assert "serve" in extras
    assert any(need.startswith("uvicorn") for need in needs)


def test_the_command(installed: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(installed)}
    done = execute(str(installed / "bin" / "dragoman"), "--version", env=env)
    assert (done.returncode, done.stdout) == (0, f"dragoman {__version__}\n")
    code = "import dragoman.cli as cli; cli.main(['config'])"
    assert 'store = "sqlite:"' in alone(installed, code)


def test_it_can_be_imported_without_any_extra(installed: Path) -> None:
    code = """
import dragoman, importlib, json, pkgutil
for name in dragoman.__all__:
    getattr(dragoman, name)
missing = {}
for found in pkgutil.walk_packages(dragoman.__path__, "dragoman."):
    if not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            missing[found.name] = error.name
print(json.dumps([dragoman.__file__, missing]))
"""
    file, missing = json.loads(alone(installed, code))
    assert file == str(installed / "dragoman" / "__init__.py")
    frameworks = {name: missing.pop(name) for name in list(missing) if name in BRIDGES}
    mcp = {what for name, what in missing.items() if name.startswith("dragoman.mcp.")}
    assert mcp and mcp <= {"mcp", "anyio", "httpx2"}  # the first brings the others
    others = {name: what for name, what in missing.items() if not name.startswith("dragoman.mcp.")}
    assert others == NEEDS
    assert frameworks == BRIDGES


def test_it_works_without_any_extra(installed: Path) -> None:
    code = """
import asyncio
from dragoman import Agent, App, Turn
from dragoman.testing import run_handler

agent = Agent("Echo", description="Says it again.")

@agent.skill
async def echo(turn: Turn) -> str:
    return turn.text

async def main():
    async with App(agent):
        pass
    return (await run_handler(agent, "hello")).text

print(asyncio.run(main()))
"""
    assert alone(installed, code) == "hello\n"


def test_serving_says_what_is_missing(installed: Path) -> None:
    code = """
import sys, types
from dragoman import Agent
from dragoman.cli import main

module = types.ModuleType("booking")
module.agent = Agent("Echo", description="Says it again.")
module.agent.handler(lambda turn: "x")
sys.modules["booking"] = module
sys.stderr = sys.stdout
print(main(["serve", "booking:agent"]))
"""
    said = alone(installed, code)
    assert "pip install 'dragoman[serve]'" in said
    assert said.endswith("2\n")


@pytest.mark.parametrize("statement", ["import dragoman", "from dragoman.cli import main"])
def test_the_import_brings_nothing_along(statement: str) -> None:
    code = f"{statement}\nimport sys\nprint(*sorted(sys.modules))"
    done = execute(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "dragoman" in loaded
    assert sorted(loaded & set(EXTRAS)) == []
