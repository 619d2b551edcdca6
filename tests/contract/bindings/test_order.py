"""The steps of a request come in one order over each binding: a request with several faults is
answered with the first of them in that order."""

from __future__ import annotations

import pytest

from tests.contract.bindings.conftest import Start, user
from tests.harness.clients import Binding, Failed

CALLER = {"X_User": "nobody"}
CALL = {"Idempotency_Key": "k" * 300}
NO_PARTS = {**user("hi"), "parts": []}
UNKNOWN_TASK = user("hi", taskId="unknown")


@pytest.mark.first
@pytest.mark.parametrize("start", ["bell"], indirect=True)
async def test_the_steps_of_a_request_come_in_one_order(start: Start, kind: type[Binding]) -> None:
    full, free = await start(max_streams=0), await start()
    steps = [
        (full, CALLER | CALL, NO_PARTS, "UNAUTHENTICATED", ""),
        (full, CALL, NO_PARTS, "INVALID_PARAMS", "Idempotency-Key"),
        (full, {}, NO_PARTS, "INVALID_PARAMS", "message.parts"),
        (full, {}, UNKNOWN_TASK, "RESOURCE_EXHAUSTED", ""),
        (free, {}, UNKNOWN_TASK, "TASK_NOT_FOUND", ""),
    ]
    if kind.version == "0.1":  # a message to an unknown task begins it
        steps.pop()
    for world, headers, message, reason, field in steps:
        with pytest.raises(Failed) as failed:
            await world.client(kind, **headers).stream("SendStreamingMessage", message=message)
        assert (failed.value.reason, "".join(failed.value.fields)) == (reason, field)
    seen = await free.client(kind).stream("SendStreamingMessage", message=user("hi"))
    assert seen
