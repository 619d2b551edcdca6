"""The echo agent on a2a-sdk over gRPC: GrpcHandler, DefaultRequestHandler, its store in memory."""

from __future__ import annotations

import sys

import grpc
import uvloop
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.tasks import InMemoryTaskStore
from a2a.types.a2a_pb2_grpc import add_A2AServiceServicer_to_server

from benchmarks.servers.sdk_echo import Echo, card


async def main(port: int) -> None:
    """Serve until ended."""
    handler = DefaultRequestHandler(
        agent_executor=Echo(), task_store=InMemoryTaskStore(), agent_card=card(port)
    )
    server = grpc.aio.server()
    add_A2AServiceServicer_to_server(GrpcHandler(handler), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
