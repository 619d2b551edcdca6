"""Records metrics, spans and access log fields of each operation."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.bindings.access_log import GONE
from dragoman.bindings.http_request import RequestInfo
from dragoman.model.caller import Call
from dragoman.model.errors import A2AError
from dragoman.model.operations import OPERATIONS, Operation
from dragoman.model.types import WireStruct
from dragoman.server.reader import LogStream
from dragoman.telemetry import otel
from dragoman.telemetry.metrics import Metrics

Run = Callable[[Operation, WireStruct, Call, RequestInfo], Awaitable[Any]]


class Instrumentation:
    """Wraps one agent's operations. It is used only if metrics, spans or the access log are on."""

    def __init__(
        self, agent: Agent, run: Run, metrics: Metrics | None, spans: otel.Spans | None
    ) -> None:
        self._agent = agent.key
        self._name = agent.name
        self._run = run
        self._metrics = metrics
        # looked up once, because every request needs them
        times = {} if metrics is None else {o.name: metrics.request.at(o.name) for o in OPERATIONS}
        self._times = times
        self._spans = spans

    async def run(
        self, operation: Operation, request: WireStruct, call: Call, incoming: RequestInfo
    ) -> Any:
        """Run an operation."""
        incoming.counted = True
        line = incoming.line
        if line is not None:
            line.version, line.task = call.caller.version, otel.subject(request)[0]
        began, outcome = time.perf_counter(), GONE
        try:
            if self._spans is None:
                answering = self._run(operation, request, call, incoming)
            else:
                answering = self._traced(self._spans, operation, request, call, incoming)
            del request  # it may be large, so free it before the wait
            answer = await answering
            outcome = "ok"
            if line is not None and not line.task:
                line.task = _answered(answer)[0]
            return answer
        except Exception as error:
            outcome = _outcome(error)
            raise
        finally:
            if (metrics := self._metrics) is not None:
                self._times[operation.name].observe(time.perf_counter() - began)
                metrics.requests.add(
                    self._agent, operation.name, incoming.binding, call.caller.version, outcome
                )

    def refused(self, error: Exception, incoming: RequestInfo) -> None:
        """Count a request that was refused, unless it was counted already."""
        if not incoming.counted and self._metrics is not None:
            incoming.counted = True
            self._metrics.refused.add(self._agent, incoming.binding, _outcome(error))

    async def _traced(
        self,
        spans: otel.Spans,
        operation: Operation,
        request: WireStruct,
        call: Call,
        incoming: RequestInfo,
    ) -> Any:
        about = {
            "a2a.method.name": operation.name,
            "a2a.agent": self._agent,
            "gen_ai.agent.name": self._name,
            "a2a.binding": incoming.binding,
            "a2a.protocol.version": call.caller.version,
            **otel.ids(request),
        }
        state = incoming.header(b"tracestate") if call.trace else ""
        with spans.open("SERVER", operation.name, about, call.trace, state) as span:
            # turns of this message become children of this span, on any replica
            call = replace(call, trace=otel.parent(span))
            answer = await self._run(operation, request, call, incoming)
            task, context = _answered(answer)
            if task:
                span.set_attribute("a2a.task.id", task)
            if context:
                span.set_attribute("gen_ai.conversation.id", context)
            return answer


def _outcome(error: Exception) -> str:
    return error.reason if isinstance(error, A2AError) else A2AError.reason


def _answered(answer: Any) -> tuple[str, str]:
    """Return the ids of the task and the context in an answer."""
    if isinstance(answer, LogStream):
        return answer.task, answer.context
    return otel.subject(answer)
