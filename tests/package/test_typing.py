"""Type checkers accept a right program and find what is wrong in another."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.peers import environments

HERE = Path(__file__).parent / "typing"
RIGHT, WRONG = HERE / "right.py", HERE / "wrong.py"


def checker(name: str, folder: Path) -> list[str]:
    """The command of a type checker."""
    if name == "mypy":  # what is imported is not checked again; workers share what was read
        options = ("--strict", "--follow-imports=silent", "--config-file=")
        return [sys.executable, "-m", "mypy", *options, "--cache-dir", str(folder / "mypy")]
    try:
        main = environments.node("pyright") / "node_modules/pyright/index.js"
    except environments.Absent as error:
        pytest.skip(f"pyright: {error}")
    return ["node", str(main), "--pythonpath", sys.executable]


@pytest.mark.parametrize("name", ["mypy", "pyright"])
def test_a_type_checker_finds_each_mistake_and_nothing_else(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    command = checker(name, tmp_path_factory.getbasetemp())
    done = subprocess.run(
        [*command, str(RIGHT), str(WRONG)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=HERE.parents[2],
        env=os.environ | {"MYPYPATH": os.environ.get("PYTHONPATH", "")},
    )
    found = {
        (match[1], int(match[2]))
        for match in re.finditer(r"(\w+\.py):(\d+)\S* (?:- )?error: ", done.stdout)
    }
    expected = {
        (WRONG.name, number)
        for number, line in enumerate(WRONG.read_text().splitlines(), 1)
        if line.endswith("# wrong")
    }
    assert found == expected, done.stdout + done.stderr
    assert len(expected) > 20
