"""The targets of the Makefile; none of them is run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Makefile").read_text()
TARGETS = re.findall(r"^([\w-]+):", TEXT, re.MULTILINE)


def plan(target: str, *options: str) -> str:
    """What make would do."""
    program = shutil.which("make")
    if program is None:
        pytest.skip("make is not installed")
    done = subprocess.run(
        [program, "-n", target, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout


def test_a_folder_with_the_name_of_a_target_does_not_stand_for_it() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.+)$", TEXT, re.MULTILINE)
    assert set(phony.split()) == set(TARGETS)
    for target in TARGETS:
        assert "to be done" not in plan(target)


def test_each_target_is_in_the_help() -> None:
    for target in TARGETS:
        assert target == "help" or f'"make {target} ' in TEXT, target


def test_clean_removes_whatever_is_made() -> None:
    words = plan("clean")
    made = [line for line in (ROOT / ".gitignore").read_text().splitlines() if line.endswith("/")]
    assert "benchmarks/out/" in made
    for folder in made:
        assert folder.rstrip("/") in words, f"{folder} stays"


def test_docs_tries_files_that_are_there() -> None:
    tried = re.findall(r"tests/\S+", plan("docs"))
    assert tried
    for path in tried:
        assert (ROOT / path).exists(), path


def test_another_interpreter_has_an_environment_of_its_own() -> None:
    used = ".venv-{}.{}/bin/python".format(*sys.version_info)
    for target in ("test", "fast"):
        assert f"{used} -m pytest" in plan(target, f"PYTHON={sys.executable}")
        assert ".venv/bin/python -m pytest" in plan(target, "PYTHON=python3")


def test_the_slowest_tests_are_printed() -> None:
    assert "--durations=30" in plan("test")


def test_what_is_left_out_for_time_is_in_the_long_run() -> None:
    run = re.findall(r"tests/[\w/.]+", plan("soak"))
    scaled = re.compile(r"^@given|^from tests\.harness\.scale import (?!say$)", re.MULTILINE)
    for path in (ROOT / "tests").rglob("test_*.py"):
        name = path.relative_to(ROOT).as_posix()
        if scaled.search(path.read_text()):
            assert any(name == item or name.startswith(f"{item}/") for item in run), name


def test_bytecode_is_written_whatever_the_environment_says(tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    (tmp_path / "Makefile").write_text(f"{TEXT}\nshown:\n\t@env\n")
    done = subprocess.run(
        ["make", "shown"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert "PATH=" in done.stdout
    assert "PYTHONDONTWRITEBYTECODE" not in done.stdout
