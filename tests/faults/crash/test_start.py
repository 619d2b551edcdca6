"""Files that cannot be served: `dragoman serve` says which and why, in a line, and ends."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dragoman.stores.sqlite import SqliteStore
from tests.faults.crash.agent import EFFECTS
from tests.faults.crash.server_process import HERE, Served


def serve(file: Path) -> subprocess.CompletedProcess[str]:
    """`dragoman serve` on a file that it should refuse."""
    known = {key: value for key, value in os.environ.items() if not key.startswith("DRAGOMAN_")}
    return subprocess.run(
        [
            *(sys.executable, "-m", "dragoman", "serve", "tests.faults.crash.agent:agent"),
            *("--port", "0", "--store", f"sqlite:///{file}"),
        ],
        cwd=HERE,
        env=known | {EFFECTS: os.devnull},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def refused(file: Path, *words: str) -> None:
    """It was said, clearly, that this file is of no use."""
    done = serve(file)
    assert done.returncode > 0, done
    assert "Traceback" not in done.stderr, done.stderr
    assert str(file) in done.stderr, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    """A sound file with something in it."""
    file = tmp_path / "tasks.db"
    store = SqliteStore(file)
    await store.open()
    await store.close()
    with closing(sqlite3.connect(file)) as db:
        db.executemany(
            "INSERT INTO scope (agent, tenant, owner) VALUES (?, ?, ?)",
            [(f"agent {n}", "t" * 200, "o" * 200) for n in range(200)],
        )
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file


def garbage(content: bytes) -> bytes:
    return os.urandom(len(content))


def header(content: bytes) -> bytes:
    return os.urandom(100) + content[100:]


def schema(content: bytes) -> bytes:
    return content[:100] + os.urandom(3996) + content[4096:]


def text(content: bytes) -> bytes:
    return b"Dear diary,\n" * 1000


@pytest.mark.parametrize("damage", [garbage, header, schema, text])
def test_a_damaged_file(file: Path, damage: Callable[[bytes], bytes]) -> None:
    file.write_bytes(damage(file.read_bytes()))
    before = file.read_bytes()
    refused(file, "damaged")
    assert file.read_bytes() == before  # nobody has made it worse


def test_a_file_that_was_cut_short(file: Path) -> None:
    os.truncate(file, 4096)
    refused(file, "damaged")


def test_the_file_of_another_application(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("CREATE TABLE task (name)")
    before = file.read_bytes()
    refused(file, "another application")
    assert file.read_bytes() == before


def test_a_file_of_a_newer_version(file: Path) -> None:
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA user_version = 99")
    refused(file, "newer", "99")


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("I am a file")
    refused(tmp_path / "folder" / "tasks.db")


def test_a_file_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "tasks.db").mkdir()
    refused(tmp_path / "tasks.db", "Is a directory")


async def test_a_second_server_on_the_same_file(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        await served.start()
        assert served.process is not None
        done = serve(served.file)
        assert done.returncode > 0, done
        assert "Traceback" not in done.stderr, done.stderr
        assert f"in use by another server (process {served.process.pid})" in done.stderr
        assert served.file.name in done.stderr
        assert (await served.get("/readyz"))["status"] == "ok"
