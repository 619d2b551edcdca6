"""A collector of OpenTelemetry on loopback: it takes OTLP over HTTP and gRPC, and decodes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces_grpc
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.harness.raw_server import Visit, listening

NAME = "dragoman"
"""Only what comes from this scope is looked at: the SDK has figures of its own."""
Labels = frozenset[tuple[str, Any]]


class Collector:
    """What has arrived, the latest value of each figure."""

    def __init__(self) -> None:
        self.metrics: dict[tuple[str, Labels], float] = {}
        self.kinds: dict[str, str] = {}
        self.spans: list[Span] = []
        self.http = self.grpc = ""
        """Where it listens."""
        self._came = asyncio.Condition()

    async def until(self, ready: Callable[[], Any]) -> None:
        """Wait for something to arrive."""
        async with asyncio.timeout(30), self._came:
            await self._came.wait_for(ready)

    def span(self, name: str) -> Span | None:
        """A span of this name, if it has arrived."""
        return next((span for span in self.spans if span.name == name), None)

    async def take_metrics(self, request: metrics.ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                if scope.scope.name == NAME:
                    for metric in scope.metrics:
                        self._take(metric)
        await self._notify()

    async def take_spans(self, request: traces.ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                if scope.scope.name == NAME:
                    self.spans += scope.spans
        await self._notify()

    def _take(self, metric: Metric) -> None:
        kind = metric.WhichOneof("data")
        if kind == "sum":
            assert metric.sum.is_monotonic
        self.kinds[metric.name] = "counter" if kind == "sum" else str(kind)
        for point in getattr(metric, str(kind)).data_points:
            value = getattr(point, point.WhichOneof("value"))
            self.metrics[metric.name, frozenset(attributes(point).items())] = value

    async def _notify(self) -> None:
        async with self._came:
            self._came.notify_all()

    async def talk(self, visit: Visit) -> None:
        """OTLP over HTTP."""
        takers: dict[str, tuple[Any, Any, Any]] = {
            "/v1/metrics": (
                metrics.ExportMetricsServiceRequest,
                self.take_metrics,
                metrics.ExportMetricsServiceResponse,
            ),
            "/v1/traces": (
                traces.ExportTraceServiceRequest,
                self.take_spans,
                traces.ExportTraceServiceResponse,
            ),
        }
        while True:
            line, headers, body = await visit.request()
            assert headers["content-type"] == "application/x-protobuf"
            request, take, answer = takers[line.split(" ")[1]]
            await take(request.FromString(body))
            said = answer().SerializeToString()
            await visit.send(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(said), said)
            )


class MetricsService(metrics_grpc.MetricsServiceServicer):  # type: ignore[misc,unused-ignore]
    """OTLP over gRPC: figures."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    async def Export(self, request: Any, context: Any) -> Any:
        await self.collector.take_metrics(request)
        return metrics.ExportMetricsServiceResponse()


class TraceService(traces_grpc.TraceServiceServicer):  # type: ignore[misc,unused-ignore]
    """OTLP over gRPC: spans."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    async def Export(self, request: Any, context: Any) -> Any:
        await self.collector.take_spans(request)
        return traces.ExportTraceServiceResponse()


def attributes(point: Any) -> dict[str, Any]:
    """The attributes of a point or a span, each as the type that it was sent as."""
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in point.attributes
    }


@contextlib.asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A collector that listens on 127.0.0.1."""
    collector = Collector()
    server = grpc.aio.server()
    metrics_grpc.add_MetricsServiceServicer_to_server(MetricsService(collector), server)
    traces_grpc.add_TraceServiceServicer_to_server(TraceService(collector), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    collector.grpc = f"http://127.0.0.1:{port}"
    try:
        async with listening(collector.talk) as listener:
            collector.http = f"http://127.0.0.1:{listener.port}"
            yield collector
    finally:
        await server.stop(None)
