"""The registry costs nothing where it is not used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dragoman.registry


@pytest.mark.parametrize("words", ["import dragoman, dragoman.client", "import dragoman.registry"])
def test_it_is_loaded_when_it_is_used(words: str) -> None:
    told = "import sys; print(sorted(m for m in sys.modules if m.startswith('dragoman.registry.')))"
    done = subprocess.run(
        [sys.executable, "-c", f"{words}; {told}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", dragoman.registry.__all__)
def test_public_names(name: str) -> None:
    assert getattr(dragoman.registry, name).__doc__


def test_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        dragoman.registry.Nothing  # noqa: B018
