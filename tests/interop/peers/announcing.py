"""What the Python peers share: their arguments, and the server under them. It imports nothing of
ours, since a peer runs in an environment of its own."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import uvicorn


def serve(application: Callable[[str], Any]) -> None:
    """Serve the application that is made for a public URL; print the URL that it listens on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int, help="0 takes any that is free")
    parser.add_argument("--public", metavar="URL", help="what the card says, if something else")
    given = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", given.port))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(application(given.public or url), log_level="warning")
    threading.Thread(target=end_with_parent, daemon=True).start()
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    uvicorn.Server(config).run(sockets=[listener])


@asynccontextmanager
async def grpc_server(url: str, register: Callable[[Any], None]) -> AsyncIterator[str]:
    """The address of a gRPC server beside the application that has this URL: its host, and a port
    of its own."""
    import grpc.aio  # not every environment has it

    server = grpc.aio.server()
    register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"{urlsplit(url).hostname}:{port}"
    finally:
        await server.stop(None)


def end_with_parent() -> None:
    """Whoever started this holds the other end of its standard input."""
    sys.stdin.read()
    os._exit(0)
