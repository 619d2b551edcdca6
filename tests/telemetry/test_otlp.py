"""Figures and spans, exported as OTLP to a collector, and decoded there."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from dragoman import App
from dragoman.client import Client
from dragoman.telemetry import store_health
from tests.harness.command import AGENTS, environment
from tests.telemetry.monitored_agent import office
from tests.telemetry.otlp_collector import Collector, attributes, collecting
from tests.telemetry.scrape import parse


def exporters(protocol: str, collector: Collector) -> tuple[Any, Any]:
    """Exporters to this collector, as the variables of OpenTelemetry would make them."""
    if protocol == "grpc":
        where = {"endpoint": collector.grpc, "insecure": True}
        return GrpcMetrics(**where), GrpcSpans(**where)
    return (
        HttpMetrics(endpoint=f"{collector.http}/v1/metrics"),
        HttpSpans(endpoint=f"{collector.http}/v1/traces"),
    )


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_all_of_it_arrives(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    monkeypatch.setattr(store_health, "COUNTED", 0.0)  # count whenever somebody asks
    async with collecting() as collector:
        to_metrics, to_spans = exporters(protocol, collector)
        meters = MeterProvider([PeriodicExportingMetricReader(to_metrics, 600_000)])
        tracers = TracerProvider()
        tracers.add_span_processor(BatchSpanProcessor(to_spans))
        monkeypatch.setattr(metrics, "get_meter_provider", lambda: meters)
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: tracers)
        async with App(office()) as app, Client.connect(app=app) as client:
            for text in ("x", "fail"):
                await client.send(text)
            assert app.monitoring is not None
            page = parse((await app.monitoring.page()).decode())
            # in threads, as the SDK does it by itself: the collector needs this one
            assert await asyncio.to_thread(meters.force_flush)
            assert await asyncio.to_thread(tracers.force_flush)
            for provider in (meters, tracers):
                await asyncio.to_thread(provider.shutdown)
    # everything that Prometheus is told, with the same values
    own = {key: value for key, value in page.samples.items() if key[0].startswith("dragoman_")}
    assert len(own) > 100
    assert {key: collector.metrics.get(key) for key in own} == own
    assert {name for name, _ in collector.metrics} == {name for name, _ in page.samples}
    kinds = {name: "counter" if kind == "histogram" else kind for name, kind in page.kinds.items()}
    for name, kind in collector.kinds.items():
        stem = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        assert kind == kinds.get(name, kinds.get(stem)), name
    none: frozenset[tuple[str, str]] = frozenset()
    for name in ("dragoman_ready", "dragoman_store_up"):
        value = collector.metrics[name, none]
        assert (type(value), value) == (int, 1), name
    turn = collector.span("turn office")
    assert turn is not None
    told = attributes(turn)
    assert (type(told["a2a.attempt"]), told["a2a.attempt"]) == (int, 1)
    assert told["gen_ai.agent.name"] == "Office"
    failed = [attributes(span).get("error.type") for span in collector.spans]
    assert "ValueError" in failed


async def test_as_the_page_says(tmp_path: Path) -> None:
    """With the command of docs/metrics.md, and nothing but the variables of OpenTelemetry."""
    (tmp_path / "booking.py").write_text(AGENTS)
    command = Path(sys.executable).with_name("opentelemetry-instrument")
    async with collecting() as collector:
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.grpc,
            "OTEL_METRIC_EXPORT_INTERVAL": "100",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_LOGS_EXPORTER": "none",
        }
        process = await asyncio.create_subprocess_exec(
            *(command, sys.executable, "-m", "dragoman", "serve", "booking:agent", "--port", "0"),
            cwd=tmp_path,
            env=environment(**settings),
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        said = ""
        try:
            while "press Ctrl-C to stop" not in said:
                line = await asyncio.wait_for(process.stderr.readline(), 30)
                assert line, said
                said += line.decode()
            url = said.partition("card ")[2].partition("/.well-known")[0]
            message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
            async with httpx.AsyncClient(base_url=url) as http:
                sent = await http.post("/message:send", json={"message": message})
            assert sent.status_code == 200
            await collector.until(lambda: collector.span("turn echo"))
            await collector.until(
                lambda: any(
                    name == "dragoman_requests_total" and value == 1
                    for (name, _), value in collector.metrics.items()
                )
            )
            assert collector.metrics["dragoman_ready", frozenset()] == 1
            process.send_signal(signal.SIGINT)
            said += (await asyncio.wait_for(process.stderr.read(), 30)).decode()
            assert await process.wait() == 0, said
            # it drained: what it sent last may still be on its way
            await collector.until(lambda: collector.metrics["dragoman_ready", frozenset()] == 0)
        finally:
            if process.returncode is None:
                os.kill(process.pid, signal.SIGKILL)
                await process.wait()
    assert "Traceback" not in said, said
