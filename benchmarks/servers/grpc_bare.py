"""grpc.aio without server code on top: returns prepared responses of the size of an echo."""

from __future__ import annotations

import sys
from typing import Any
from uuid import uuid4

import grpc
import uvloop

from benchmarks import calls, wire
from benchmarks.servers import script

TASK, CONTEXT = str(uuid4()), str(uuid4())
STATUS = {"state": "TASK_STATE_COMPLETED", "timestamp": {"seconds": 1_800_000_000, "nanos": 10**6}}
EVENT = calls.kind("StreamResponse")


def answer() -> bytes:
    """A completed task."""
    message = {"message_id": "message-1", "role": "ROLE_USER", "parts": [{"text": wire.ECHO}]}
    artifact = {"artifact_id": str(uuid4()), "name": "echo", "parts": [{"text": wire.ECHO}]}
    task = {
        "id": TASK,
        "context_id": CONTEXT,
        "status": STATUS,
        "artifacts": [artifact],
        "history": [message | {"task_id": TASK, "context_id": CONTEXT}],
    }
    return bytes(calls.kind("SendMessageResponse")(task=task).SerializeToString())


def events(size: int) -> list[bytes]:
    """Chunks of an artifact, and the end."""
    artifact = str(uuid4())
    found = [
        {
            "artifact_update": {
                "task_id": TASK,
                "context_id": CONTEXT,
                "artifact": {"artifact_id": artifact, "parts": [{"text": chunk}]},
                "append": number > 0,
            }
        }
        for number, chunk in enumerate(script.chunks(script.Order("stream", size)))
    ]
    found.append({"status_update": {"task_id": TASK, "context_id": CONTEXT, "status": STATUS}})
    return [bytes(EVENT(**event).SerializeToString()) for event in found]


ECHO = answer()
STREAMS = {b"stream %d" % size: events(size) for size in (100, 1000)}


async def send(body: bytes, _: Any) -> bytes:
    """The same answer to all."""
    return ECHO


async def stream(body: bytes, context: Any) -> None:
    """The same chunks to all who want so many."""
    for event in next(found for text, found in STREAMS.items() if body.endswith(text)):
        await context.write(event)


async def main(port: int) -> None:
    """Serve until ended."""
    server = grpc.aio.server()
    handlers = {
        "SendMessage": grpc.unary_unary_rpc_method_handler(send),
        "SendStreamingMessage": grpc.unary_stream_rpc_method_handler(stream),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(calls.SERVICE, handlers)])
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
