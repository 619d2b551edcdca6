"""The undocumented parts of other packages are there, they are bounded, and they are all in one
module."""

from __future__ import annotations

import argparse
import ast
import asyncio
import gc
import re
import tomllib
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle as HttpToolsCycle

from dragoman import third_party_internals
from tests.harness.raw_server import listening

ROOT = Path(__file__).parents[2]
DOCUMENTED = {"_current_frames", "_exit", "_fields", "_getframe", "_replace", "_value_"}
"""Names of Python's library that begin so and are documented all the same."""


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """An application."""


async def test_the_parts_of_uvicorn_are_there() -> None:
    config = uvicorn.Config(_nothing, lifespan="off", log_config=None)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup([])
    try:
        for name in third_party_internals.SERVER:
            assert hasattr(server, name), name
        for name in third_party_internals.SERVER_STATE:
            assert hasattr(server.server_state, name), name
        state = server.lifespan.state
        names: dict[Any, tuple[str, ...]] = {
            H11Protocol: third_party_internals.PROTOCOL,
            HttpToolsProtocol: third_party_internals.HTTPTOOLS_PROTOCOL,
        }
        for protocol, parts in names.items():
            made = protocol(config, server.server_state, state)
            # `flow`, `scope` and `headers` come with the connection, and with its first request
            found = {*dir(made), *protocol.__annotations__, *_assigned(protocol)}
            assert set(parts) <= found, protocol
        for cycle in (RequestResponseCycle, HttpToolsCycle):
            assert set(third_party_internals.CYCLE) <= _assigned(cycle)
        assert issubclass(third_party_internals.uvicorn_protocol(), H11Protocol | HttpToolsProtocol)
    finally:
        await server.shutdown()


def _assigned(kind: type) -> set[str]:
    """The attributes that the methods of a class use of `self`."""
    code = [each.__code__ for each in vars(kind).values() if hasattr(each, "__code__")]
    return {name for each in code for name in each.co_names}


async def test_a_protocol_of_our_own_is_used_by_aiohttp() -> None:
    made = []

    class Own(third_party_internals.aiohttp_protocol()):  # type: ignore[misc]
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(self)
            super().connection_made(transport)

    async with listening() as server:
        connector = aiohttp.TCPConnector()
        factory = partial(Own, asyncio.get_running_loop())
        third_party_internals.set_aiohttp_protocol(connector, factory)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"http://127.0.0.1:{server.port}/") as response,
        ):
            assert response.status == 200
    assert len(made) == 1


def test_the_parts_of_argparse_are_there() -> None:
    parser = argparse.ArgumentParser()
    option = parser.add_argument("--often", action="append")
    once = parser.add_argument("--once")
    commands = parser.add_subparsers()
    inner = commands.add_parser("inner")
    _, *actions = third_party_internals.parser_actions(parser)  # the first is --help
    assert actions == [option, once, commands]
    assert third_party_internals.subparsers(actions[2]) == {"inner": inner}
    assert third_party_internals.subparsers(option) is None
    assert [third_party_internals.repeatable(each) for each in actions] == [True, False, False]


@pytest.mark.parametrize("package", third_party_internals.BOUNDED)
def test_the_versions_have_an_upper_bound(package: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = chain(project["dependencies"], *project["optional-dependencies"].values())
    found = [each for each in needed if re.match(rf"{package}\b(?!-)", each)]
    assert found
    assert all(re.search(r"<\d", each) for each in found), found


def test_no_other_module_uses_what_is_private_elsewhere() -> None:
    """A private name that no module here gives to anything is that of another package."""
    gc.disable()  # it would only look at what stays
    try:
        sources = {path: ast.parse(path.read_text()) for path in ROOT.glob("src/**/*.py")}
    finally:
        gc.enable()
    assert sources
    nodes = {path: list(ast.walk(tree)) for path, tree in sources.items()}
    own = set()
    for found in nodes.values():
        for node in found:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and getattr(node.value, "id", "") in ("self", "cls")
            ):
                own.add(node.attr)
    for path, found in nodes.items():
        if path.name == "third_party_internals.py":
            continue
        for node in found:
            names: list[str] = []
            if isinstance(node, ast.Attribute):
                names = [node.attr]
            elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("drago"):
                names = [*(node.module or "").split("."), *(each.name for each in node.names)]
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
                "getattr",
                "setattr",
            ):
                names = [str(getattr(node.args[1], "value", ""))]
            for name in names:
                private = name.startswith("_") and not name.startswith("__")
                assert not private or name in own | DOCUMENTED, f"{path}:{node.lineno}: {name}"
