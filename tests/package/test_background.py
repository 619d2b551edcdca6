"""The tests pass as a background job, too, which begins with SIGINT ignored."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHILD = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
PARENT = f"""
import signal, subprocess, sys
from tests.conftest import pytest_configure
if sys.argv[1] == "configured":
    pytest_configure()
signal.raise_signal(signal.SIGINT)
subprocess.run([sys.executable, "-c", {CHILD!r}], check=True)
"""
BACKGROUND = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Begins as a shell begins a background job. (To do so between fork and exec breaks gRPC.)"""


@pytest.mark.parametrize(("how", "interruptible"), [("configured", "True"), ("plain", "False")])
def test_a_process_that_a_background_run_starts_can_be_interrupted(
    how: str, interruptible: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BACKGROUND, "-c", PARENT, how],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.strip()) == (0, interruptible), done.stderr
