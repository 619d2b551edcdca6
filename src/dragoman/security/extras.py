"""Checks early that an optional dependency is installed."""

from __future__ import annotations

from importlib.util import find_spec


def need(module: str, extra: str, what: str) -> None:
    """Raise ImportError, which names the extra, if this module is not installed."""
    if find_spec(module) is None:
        raise ImportError(
            f"{what} needs {module}, which is not installed; run `pip install 'dragoman[{extra}]'`"
        )
