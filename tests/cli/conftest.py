"""A folder to work in, and `dragoman db` on the store that is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import main
from tests.cli.filled_stores import Outcome
from tests.harness.command import AGENTS
from tests.harness.stores import database


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: agents, and no store yet."""
    (tmp_path / "booking.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("DRAGOMAN_"):
            monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture(params=["sqlite", "postgres"])
def backend(here: Path, request: pytest.FixtureRequest) -> str:
    """The store that the settings name, which is no file for the second time."""
    if request.param == "postgres":
        (here / "dragoman.toml").write_text(f'store = "{database()}"\n')
    return str(request.param)


@pytest.fixture
def db(here: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command in this process."""

    def call(*arguments: str) -> Outcome:
        capsys.readouterr()
        try:
            status = main(["db", *arguments])
        except SystemExit as error:  # argparse
            status = int(str(error.code))
        return Outcome(status, *capsys.readouterr())

    return call
