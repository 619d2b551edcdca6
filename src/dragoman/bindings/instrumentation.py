"""Metrics and spans of each operation."""

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
    """Watches one agent's operations. It is only there if somebody wants to know."""

    def __init__(
        self, agent: Agent, run: Run, metrics: Metrics | None, spans: otel.Spans | None
    ) -> None:
        self._agent = agent.key
        self._name = agent.name
        self._run = run
        self._metrics = metrics
        # by name, since these are asked for with each request
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
            del request  # it may be large, and is of no more use here
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
        """Put down a request that came to nothing, unless that has been done."""
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
            # what comes of the message is part of this, wherever it is worked on
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
    """The task and the context that an answer is about."""
    if isinstance(answer, LogStream):
        return answer.task, answer.context
    return otel.subject(answer)
