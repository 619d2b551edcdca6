"""The steps of a request come in one order over each binding: a request with several faults is
answered with the first of them in that order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.bindings.conftest import Start, user
from tests.harness.clients import Binding, Failed

CALLER = {"X_User": "nobody"}
CALL = {"Idempotency_Key": "k" * 300}
LARGE = 20_000
"""A message of so many bytes is decoded in a thread over gRPC."""


@pytest.mark.first
@pytest.mark.parametrize("size", [2, LARGE])
@pytest.mark.parametrize("start", ["bell"], indirect=True)
async def test_the_steps_of_a_request_come_in_one_order(
    start: Start, kind: type[Binding], size: int, constants: Callable[..., None]
) -> None:
    server = await start()
    full, free = 0, 10_000  # how many streams there may be
    message = user("hi", metadata={"note": "x" * size})
    no_parts, unknown = {**message, "parts": []}, {**message, "taskId": "unknown"}
    steps = [
        (full, CALLER | CALL, no_parts, "UNAUTHENTICATED", ""),
        (full, CALL, no_parts, "INVALID_PARAMS", "Idempotency-Key"),
        (full, {}, no_parts, "INVALID_PARAMS", "message.parts"),
        (full, {}, unknown, "RESOURCE_EXHAUSTED", ""),
        (free, {}, unknown, "TASK_NOT_FOUND", ""),
    ]
    if kind.version == "0.1":  # a message to an unknown task begins it
        steps.pop()
    for streams, headers, faulty, reason, field in steps:
        constants(max_streams=streams)
        with pytest.raises(Failed) as failed:
            await server.client(kind, **headers).stream("SendStreamingMessage", message=faulty)
        assert (failed.value.reason, "".join(failed.value.fields)) == (reason, field)
    constants(max_streams=free)
    seen = await server.client(kind).stream("SendStreamingMessage", message=message)
    assert seen
