"""Stores and bells that another package brings: only its entry points make them known."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman import Agent, App, Turn, backends, bells, cli, stores
from dragoman.cli.serve import build
from dragoman.cli.server import announce
from dragoman.server.settings import Settings
from dragoman.testing import local_client

MODULE = """
from pathlib import Path

from dragoman.bells.memory import MemoryBell
from dragoman.stores.sqlite import SqliteStore


class ShelfStore(SqliteStore):
    bell = "shelf:"
    shared = True


class ShelfBell(MemoryBell):
    pass


def store(settings):
    found = ShelfStore(Path(settings.store.partition(":")[2]), retention=settings.retention or 0.0)
    found.url, found.name = settings.store, "the shelf"
    return found


def bell(url):
    return ShelfBell()
"""
AGENT = """
from dragoman import Agent, Turn

agent = Agent("Echo", description="Echoes.", version="1.0.0")


@agent.skill(tags=["echo"])
async def echo(turn: Turn) -> str:
    return turn.text
"""


def package(folder: Path, name: str, stores: str, bells: str = "", code: str = MODULE) -> None:
    """A package that is installed in a folder."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[dragoman.stores]\n{stores}\n[dragoman.bells]\n{bells}\n"
    )


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store whose package is installed."""
    package(tmp_path, "shelf_backend", "shelf = shelf_backend:store", "shelf = shelf_backend:bell")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "shelf_backend", raising=False)
    return f"shelf:{tmp_path}/tasks.db"


async def test_another_package_brings_a_store_and_a_bell(
    shelf: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("Echo", description="Echoes.", version="1.0.0")

    @agent.skill(tags=["echo"])
    async def echo(turn: Turn) -> str:
        return turn.text

    app = App(agent, store=shelf)
    assert type(app.store).__name__ == "ShelfStore"
    assert type(app.bell).__name__ == "ShelfBell"  # it is the bell that the store names
    with caplog.at_level(logging.INFO, "dragoman"):
        announce(app, 8000)
    assert "tasks are kept in the shelf" in caplog.messages
    async with local_client(agent, store=shelf) as client:
        assert (await client.send("hello")).text == "hello"


def test_the_command_works_on_it(
    shelf: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shelf_agent.py").write_text(AGENT)
    monkeypatch.delitem(sys.modules, "shelf_agent", raising=False)
    # it is shared, so that the turns may be run by other processes
    options = cli.Options({"store": shelf, "serve_only": True}, {})
    assert build(["shelf_agent:agent"], options).store.shared
    with stores.connect(Settings(store=shelf)).admin(create=True):  # type: ignore[misc]
        pass
    assert cli.main(["db", "list", "--json", "--store", shelf]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_scheme_that_nobody_brings(shelf: str) -> None:
    with pytest.raises(ValueError, match=r"store: no backend for 'shell'; .*memory:.* shelf:$"):
        stores.connect(Settings(store="shell:x"))
    with pytest.raises(ValueError, match=r"bell: no backend for 'shell'; .*nats:.* shelf:$"):
        bells.connect("shell:x")


def test_packages_that_do_not_fit(shelf: str, tmp_path: Path) -> None:
    package(tmp_path, "first_backend", "twice = first_backend:store")
    package(tmp_path, "second_backend", "twice = second_backend:store")
    with pytest.raises(ValueError, match=r"twice: .first_backend:store, second_backend:store"):
        backends.find("store", "twice:x")
    package(tmp_path, "broken_backend", "broken = broken_backend:store", code="import no_such_x")
    with pytest.raises(ValueError, match=r"broken_backend:store, .* imported: No module .*no_such"):
        backends.find("store", "broken:x")
    package(tmp_path, "empty_backend", "empty = empty_backend:store", code="store = 1")
    with pytest.raises(ValueError, match=r"empty_backend:store, .* is not a function"):
        backends.find("store", "empty:x")


def test_no_package_takes_the_place_of_a_backend_of_dragoman(tmp_path: Path, shelf: str) -> None:
    package(tmp_path, "taking_backend", "memory = shelf_backend:store")
    assert type(stores.connect(Settings())).__name__ == "MemoryStore"


@pytest.mark.parametrize("kind", ["store", "bell"])
def test_every_backend_of_the_table_is_there(kind: backends.Kind) -> None:
    for scheme in backends.TABLE[kind]:
        assert callable(backends.find(kind, f"{scheme}://x"))


CONTRACT = """
from dragoman.stores.memory import MemoryStore


class ShelfStore(MemoryStore):
    pass


def make(folder, **options):
    return ShelfStore(**options)
"""


@pytest.mark.slow
def test_another_packages_store_runs_the_contract_as_the_page_says(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs/backends.md").read_text()
    found = re.search(r"DRAGOMAN_TEST_STORE=(\S+) python -m pytest (\S+) -k \"(.+)\"", page)
    assert found is not None
    (tmp_path / "shelf_backend.py").write_text(CONTRACT)
    path = os.pathsep.join([str(tmp_path), str(root / "src"), str(root)])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", found[2]),
            *("-k", f"{found[3]} and follow_up"),
        ],
        cwd=root,
        env={**os.environ, "DRAGOMAN_TEST_STORE": found[1], "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"\b\d+ passed", done.stdout), done.stdout
