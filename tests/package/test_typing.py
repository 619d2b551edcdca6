"""Type checkers accept a right program and find what is wrong in another."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "typing"
RIGHT, WRONG = HERE / "right.py", HERE / "wrong.py"
CHECKERS = {
    # (what is imported is not checked again)
    "mypy": ("--strict", "--follow-imports=silent", "--config-file=", "--cache-dir"),
    "pyright": ("--pythonpath", sys.executable),
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_finds_each_mistake_and_nothing_else(
    checker: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    arguments = [*CHECKERS[checker]]
    if checker == "mypy":  # workers share what was read
        arguments.append(str(tmp_path_factory.getbasetemp() / "mypy"))
    done = subprocess.run(
        [sys.executable, "-m", checker, *arguments, str(RIGHT), str(WRONG)],
        capture_output=True,
        text=True,
        timeout=300,
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
