"""PostgreSQL's own backups, by the commands that docs/deploy.md tells."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.cli import main
from tests.cli.filled_stores import line, write
from tests.harness.command import eventually
from tests.harness.services import Missing, Postgres


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A server that archives its write-ahead log."""
    try:
        found = Postgres(archive_mode="on")
    except Missing as missing:
        pytest.skip(str(missing))
    archive = found.folder / "archive"
    archive.mkdir()
    shutil.chown(archive, "nobody")
    found.settings = {**found.settings, "archive_command": f"cp %p {archive}/%f"}
    with found:
        yield found


def call(server: Postgres, program: str, *arguments: str) -> None:
    """One of PostgreSQL's programs, as the user that the server is."""
    done = subprocess.run(
        [str(server.bin / program), *arguments],
        capture_output=True,
        text=True,
        cwd=server.folder,
        **server.options,
    )
    assert done.returncode == 0, done.stderr


def fill(folder: Path, url: str, *names: str) -> None:
    """Tasks in a database."""
    write(folder / "x.jsonl", *(line(name) for name in names))
    assert main(["db", "import", str(folder / "x.jsonl"), "--store", url]) == 0


def listed(url: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """The tasks that are there, in a store that is sound."""
    assert main(["db", "check", "--store", url]) == 0
    capsys.readouterr()
    assert main(["db", "list", "--json", "--store", url]) == 0
    return {item["id"] for item in json.loads(capsys.readouterr().out)}


def test_dump(server: Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = server.create("tasks")
    fill(tmp_path, url, "a", "b")
    file = str(server.folder / "tasks.dump")
    call(server, "pg_dump", "--format=custom", "--file", file, url)
    fill(tmp_path, url, "later")
    copy = server.create("copy")
    call(server, "pg_restore", "--dbname", copy, "--no-owner", "--exit-on-error", file)
    assert listed(copy, capsys) == {"a", "b"}
    fill(tmp_path, copy, "next")  # the sequence of keys came along
    assert listed(copy, capsys) == {"a", "b", "next"}


def test_a_point_in_time(
    server: Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = server.create("tasks")
    fill(tmp_path, url, "before")
    base = server.folder / "base"
    call(server, "pg_basebackup", "--checkpoint=fast", "-d", server.dsn(), "-D", str(base))
    fill(tmp_path, url, "between")
    moment = server.sql("SELECT now()")
    fill(tmp_path, url, "after")
    server.sql("SELECT pg_switch_wal()")
    server.stop()

    with (base / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"restore_command = 'cp {server.folder}/archive/%f %p'\n")
        settings.write(f"recovery_target_time = '{moment}'\n")
        settings.write("recovery_target_action = 'promote'\n")
    (base / "recovery.signal").touch()
    shutil.rmtree(server.folder / "data")
    base.rename(server.folder / "data")
    server.start()
    eventually(lambda: server.sql("SELECT pg_is_in_recovery()") == "f", 20)
    assert listed(url, capsys) == {"before", "between"}
    fill(tmp_path, url, "again")
