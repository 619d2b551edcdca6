"""What the callers of all frameworks share."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any


def play(scenes: dict[str, Callable[[str, Path], Awaitable[dict[str, Any]]]]) -> None:
    """Play the scene of the command line, and print what came of it."""
    url, scene, folder = sys.argv[1:]
    found = asyncio.run(scenes[scene](url, Path(folder)))
    sys.stdout.write(json.dumps(found))
