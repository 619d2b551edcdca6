"""What is put down of each operation: a figure, and a span."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from dragoman import otel
from dragoman.bindings.exchange import Inquiry
from dragoman.caller import Call
from dragoman.errors import A2AError
from dragoman.metrics import Metrics
from dragoman.operations import OPERATIONS, Operation
from dragoman.reader import Stream
from dragoman.types import SendMessageRequest, SendMessageResponse, Task, Wire

Run = Callable[[Operation, Wire, Call, Inquiry], Awaitable[Any]]
GONE = "CLIENT_GONE"
"""The outcome of what nobody waited for."""


class Observer:
    """Watches one agent's operations. It is only there if somebody wants to know."""

    def __init__(
        self, agent: str, run: Run, metrics: Metrics | None, spans: otel.Spans | None
    ) -> None:
        self._agent = agent
        self._run = run
        self._metrics = metrics
        # by name, since these are asked for with each request
        times = {} if metrics is None else {o.name: metrics.request.at(o.name) for o in OPERATIONS}
        self._times = times
        self._spans = spans

    async def run(self, operation: Operation, request: Wire, call: Call, exchange: Inquiry) -> Any:
        """Run an operation."""
        exchange.counted = True
        began, outcome = time.perf_counter(), GONE
        try:
            if self._spans is None:
                answering = self._run(operation, request, call, exchange)
            else:
                answering = self._traced(self._spans, operation, request, call, exchange)
            del request  # it may be large, and is of no more use here
            answer = await answering
            outcome = "ok"
            return answer
        except Exception as error:
            outcome = _outcome(error)
            raise
        finally:
            if (metrics := self._metrics) is not None:
                self._times[operation.name].observe(time.perf_counter() - began)
                metrics.requests.add(
                    self._agent, operation.name, exchange.binding, call.caller.version, outcome
                )

    def refused(self, error: Exception, exchange: Inquiry) -> None:
        """Put down a request that came to nothing, unless that has been done."""
        if not exchange.counted and self._metrics is not None:
            exchange.counted = True
            self._metrics.refused.add(self._agent, exchange.binding, _outcome(error))

    async def _traced(
        self,
        spans: otel.Spans,
        operation: Operation,
        request: Wire,
        call: Call,
        exchange: Inquiry,
    ) -> Any:
        about = {
            "a2a.operation": operation.name,
            "a2a.agent": self._agent,
            "a2a.binding": exchange.binding,
            "a2a.version": call.caller.version,
        }
        if task := _asked(request):
            about["a2a.task.id"] = task
        state = exchange.header(b"tracestate") if call.trace else ""
        with spans.open("SERVER", operation.name, about, call.trace, state) as span:
            # what comes of the message is part of this, wherever it is worked on
            call = replace(call, trace=otel.parent(span))
            answer = await self._run(operation, request, call, exchange)
            if not task and (task := _answered(answer)):
                span.set_attribute("a2a.task.id", task)
            return answer


def _outcome(error: Exception) -> str:
    return error.reason if isinstance(error, A2AError) else A2AError.reason


def _asked(request: Wire) -> str:
    """The task that a request names."""
    if isinstance(request, SendMessageRequest):
        return request.message.task_id
    found = getattr(request, "task_id", "") or getattr(request, "id", "")
    # a caller chooses what stands there
    return found if isinstance(found, str) and len(found) <= 128 else ""


def _answered(answer: Any) -> str:
    """The task that an answer is about."""
    if isinstance(answer, SendMessageResponse):
        return answer.task.id if answer.task is not None else ""
    if isinstance(answer, Stream):
        return answer.task
    return answer.id if isinstance(answer, Task) else ""
