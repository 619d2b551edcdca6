"""Clients that others wrote, which call the desk of our own server: each in an environment and a
process of its own, as it would be used.

A caller is a script that is started with the URL of the agent and the name of a binding. It finds
the card as its SDK does, plays the scenes of `scenes.py` (or `scenes.mjs`), and prints a line of
JSON for each of them:

    {"scene": "send", "ok": true, "seen": {"kind": "task", "state": "completed", …}}

`ok` is false for what went wrong, and "absent" for what its SDK has no way to say.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any, NamedTuple

from tests.interop.peers import environments

HERE = Path(__file__).resolve().parent
PATIENCE = 120.0
"""A play that takes more seconds has failed."""
Line = dict[str, Any]


class Foreign(NamedTuple):
    """One foreign client over one binding."""

    name: str
    """Of its environment; the reference SDK is in our own."""
    binding: str
    dialect: str

    def __str__(self) -> str:
        return f"{self.name}-{self.binding}"

    def can(self, scene: str) -> bool:
        """Whether its SDK has a way to say it."""
        return scene not in ABSENT.get(self.name, ())

    @property
    def protobuf(self) -> bool:
        """Whether the dialect writes its objects as protobuf does."""
        return self.dialect == "0.3" and self.binding != "JSONRPC"


_BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
EVERY = (
    *(Foreign("reference", binding, "1.0") for binding in _BINDINGS),
    *(Foreign("javascript", binding, "1.0") for binding in _BINDINGS),
    *(Foreign("reference-0.3", binding, "0.3") for binding in _BINDINGS),
    *(Foreign("javascript-0.3", binding, "0.3") for binding in _BINDINGS),
    Foreign("reference-0.2", "JSONRPC", "0.2"),
    Foreign("python-a2a", "JSONRPC", "0.1"),
    Foreign("fasta2a", "JSONRPC", "mixed"),
)

_LISTS = ("listing", "webhook list", "webhook delete")
_SUBSCRIPTIONS = ("subscribe", "subscribe unknown")
_WEBHOOKS = ("webhook", "webhook list", "webhook delete", "delivery")
ABSENT = {
    "reference-0.3": _LISTS,
    "javascript-0.3": ("listing",),
    "reference-0.2": (*_LISTS, *_SUBSCRIPTIONS),
    "python-a2a": (
        *("data", "file bytes", "file url", "stream", "stream reply", "stream refused"),
        *("poll", "cancel"),
        *("listing", *_SUBSCRIPTIONS, *_WEBHOOKS, "extended"),
    ),
    "fasta2a": (
        *("history", "listing", "cancel", "cancel ended", "cancel unknown"),
        *(*_SUBSCRIPTIONS, *_WEBHOOKS, "extended"),
    ),
}
"""What an SDK has no way to say."""

_SCRIPTS = {
    "reference": "reference.py",
    "reference-0.3": "reference_0_3.py",
    "reference-0.2": "reference_0_2.py",
    "javascript": "javascript.mjs",
    "javascript-0.3": "javascript_0_3.mjs",
    "python-a2a": "first.py",
    "fasta2a": "fasta.py",
}


def command(name: str) -> tuple[list[str], Path]:
    """How a caller is started, and where; Absent if it cannot be had."""
    script = str(HERE / _SCRIPTS[name])
    if name in environments.NODE:
        return ["node", script], environments.node(name)
    if name in environments.PYTHON:
        return [str(environments.python(name)), script], HERE
    return [sys.executable, script], HERE


async def play(foreign: Foreign, url: str) -> dict[str, Line]:
    """What a caller tells of its scenes with the agent at the URL."""
    words, folder = await asyncio.to_thread(command, foreign.name)
    process = await asyncio.create_subprocess_exec(
        *words, url, foreign.binding, cwd=folder, env=_direct(), stdout=PIPE, stderr=PIPE
    )
    try:
        async with asyncio.timeout(PATIENCE):
            said, complaint = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    lines = [json.loads(line) for line in said.decode().splitlines()]
    if process.returncode:
        raise RuntimeError(f"{foreign} ended with {process.returncode}:\n{complaint.decode()}")
    return {line["scene"]: line for line in lines}


def _direct() -> dict[str, str]:
    """The environment of a process that goes to this machine without any proxy."""
    return {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
