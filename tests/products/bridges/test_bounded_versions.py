"""Undocumented parts of frameworks are used only in versions that were tried."""

from __future__ import annotations

import logging
import re

import pytest

from dragoman.bridges import third_party_internals
from dragoman.bridges.third_party_internals import BOUNDED, check_version
from tests.interop.peers.environments import OTHERS


@pytest.mark.parametrize("package", BOUNDED)
def test_the_version_that_the_tests_install_is_within_the_bounds(
    package: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pins = [pin for pins in OTHERS.values() for pin in pins]
    found = {match[1] for pin in pins if (match := re.match(rf"{package}(?:\[\w+\])?==(.+)", pin))}
    assert found
    for version in found:
        monkeypatch.setattr(third_party_internals, "version", lambda _, v=version: v)
        check_version(package)
    assert caplog.text == ""


@pytest.mark.parametrize("installed", ["1.16.0", "1.16.0rc1", "1.20", "2.0.1"])
def test_a_newer_version_is_warned_of(
    installed: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(third_party_internals, "version", lambda _: installed)
    with caplog.at_level(logging.WARNING, "dragoman"):
        check_version("crewai")
    assert f"crewai {installed} has not been tried" in caplog.text
