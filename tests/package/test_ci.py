"""What .ci/run runs: everything once, and the quick tests with each other interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.11", "3.12", "3.13")
USED = "{}.{}".format(*sys.version_info)


def command(folder: Path, name: str, script: str) -> None:
    """A command that is a shell script."""
    file = folder / name
    file.write_text(f"#!{shutil.which('bash')}\n{script}\n")
    file.chmod(0o755)


def ran(
    tmp_path: Path, *interpreters: str, make: str = "", broken: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run it with a `make` that only prints, and only these interpreters beside python3."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "dirname"):
        (folder / name).symlink_to(shutil.which(name) or "")
    command(folder, "make", f'echo make "$@"; {make}')
    command(folder, "python3", f'exec {sys.executable} "$@"')
    for name in interpreters:
        command(folder, name, f'exec {sys.executable} "$@"')
    if broken:
        command(folder, broken, "exit 1")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHON"}
    return subprocess.run(
        [str(ROOT / ".ci" / "run")],
        env=environment | {"PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_each_other_interpreter_runs_the_quick_tests(tmp_path: Path) -> None:
    done = ran(tmp_path, *(f"python{version}" for version in VERSIONS))
    others = [version for version in VERSIONS if version != USED]
    expected = ["make test", *(f"make fast PYTHON=python{version}" for version in others)]
    assert (done.returncode, done.stdout.splitlines()) == (0, expected), done.stderr


def test_without_another_interpreter_the_run_passes(tmp_path: Path) -> None:
    done = ran(tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("make")] == ["make test"]


def test_an_interpreter_without_venv_is_left_out(tmp_path: Path) -> None:
    other = next(version for version in VERSIONS if version != USED)
    done = ran(tmp_path, broken=f"python{other}")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("make")] == ["make test"]
    assert f"python{other}: not on the PATH, or without venv" in done.stdout


@pytest.mark.parametrize("failing", ["test", "fast"])
def test_a_failure_is_the_status_of_the_run(tmp_path: Path, failing: str) -> None:
    done = ran(
        tmp_path,
        *(f"python{version}" for version in VERSIONS),
        make=f'[ "$1" != {failing} ] || exit 3',
    )
    assert done.returncode == 3
    assert done.stdout.splitlines()[-1].startswith(f"make {failing}")
