"""Spans, by the real OpenTelemetry: who did what for whom, across agents and processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dragoman import Agent, App, Turn
from dragoman.client import Client
from dragoman.model.types import ListTasksRequest
from dragoman.stores.sqlite import SqliteStore
from dragoman.telemetry import otel
from tests.harness.server import BINDINGS, serving
from tests.harness.webhooks import pushing, receiving

SECRET = "a-very-secret-word"


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What a provider of this process has exported."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def named(exporter: InMemorySpanExporter, kind: str, name: str) -> ReadableSpan:
    """The only span of this kind and name."""
    spans = exporter.get_finished_spans()
    (found,) = (s for s in spans if s.kind is trace.SpanKind[kind] and s.name == name)
    return found


def below(child: ReadableSpan, parent: ReadableSpan) -> bool:
    """Whether one is the other's child."""
    assert child.parent is not None
    assert child.context is not None
    assert parent.context is not None
    return (child.parent.span_id, child.context.trace_id) == (
        parent.context.span_id,
        parent.context.trace_id,
    )


def helper() -> Agent:
    """An agent that helps."""
    agent = Agent("Helper", description="Helps.", key="helper")

    @agent.handler
    async def help(turn: Turn) -> str:
        """Help."""
        return turn.text.upper()

    return agent


def office(url: str) -> Agent:
    """An agent that has another one help it."""
    agent = Agent("Office", description="Delegates.", key="office")

    @agent.handler
    async def delegate(turn: Turn) -> str:
        """Have it done."""
        async with turn.connect(url) as other:
            return (await other.send(turn.text)).text

    return agent


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_one_trace_from_the_client_to_the_second_agent(
    exported: InMemorySpanExporter, binding: str
) -> None:
    async with (
        serving(App(helper(), grpc_port=0, bindings=BINDINGS)) as far,
        serving(App(office(far), grpc_port=0, bindings=BINDINGS)) as near,
        Client.connect(near, bindings=[binding]) as client,
    ):
        result = await client.send(SECRET)
        assert result.text == SECRET.upper()
        assert result.task is not None
    asked = named(exported, "CLIENT", "SendMessage")
    served = named(exported, "SERVER", "SendMessage")
    turn = named(exported, "CONSUMER", "turn office")
    handed = named(exported, "CLIENT", "SendStreamingMessage")
    taken = named(exported, "SERVER", "SendStreamingMessage")
    helped = named(exported, "CONSUMER", "turn helper")
    assert asked.parent is None
    chain = [asked, served, turn, handed, taken, helped]
    assert all(below(child, parent) for parent, child in pairwise(chain))
    assert served.attributes is not None
    assert turn.attributes is not None
    assert served.attributes["a2a.task.id"] == turn.attributes["a2a.task.id"] == result.task.id
    assert (served.attributes["a2a.agent"], turn.attributes["a2a.outcome"]) == (
        "office",
        "completed",
    )
    context = result.task.context_id
    for span, name in zip(chain, ["Office"] * 3 + ["Helper"] * 3, strict=True):
        assert span.attributes is not None
        assert span.attributes["gen_ai.agent.name"] == name
        assert "error.type" not in span.attributes
        if span in (asked, served, turn):
            assert span.attributes["gen_ai.conversation.id"] == context
            assert span.attributes["a2a.task.id"] == result.task.id
        else:
            assert span.attributes["gen_ai.conversation.id"] not in ("", context)
    assert (type(turn.attributes["a2a.attempt"]), turn.attributes["a2a.attempt"]) == (int, 1)
    spelling = {"JSONRPC": "jsonrpc", "HTTP+JSON": "http", "GRPC": "grpc"}[binding]
    for span, operation in ((asked, "SendMessage"), (served, "SendMessage")):
        assert span.attributes is not None
        assert span.attributes["a2a.binding"] == spelling
        assert span.attributes["a2a.method.name"] == operation
        assert span.attributes["a2a.protocol.version"] == "1.0"


async def test_one_that_is_open_is_the_parent(exported: InMemorySpanExporter) -> None:
    tracer = trace.get_tracer_provider().get_tracer("test")
    async with App(helper()) as app, Client.connect(app=app) as client:
        with tracer.start_as_current_span("mine") as mine:
            await client.send("x")
            async with client.stream("y") as stream:
                assert [event async for event in stream]
    spans = exported.get_finished_spans()
    assert {s.context.trace_id for s in spans if s.context} == {mine.get_span_context().trace_id}
    for name in ("SendMessage", "SendStreamingMessage"):
        asked = named(exported, "CLIENT", name)
        assert below(named(exported, "SERVER", name), asked)
        assert asked.parent is not None
        assert asked.parent.span_id == mine.get_span_context().span_id


async def test_a_worker_of_another_process_goes_on_with_it(
    exported: InMemorySpanExporter, tmp_path: Path
) -> None:
    path = tmp_path / "x.db"
    stopped = App(helper(), store=SqliteStore(path), drain_timeout=0.0)
    async with stopped, Client.connect(app=stopped) as client:
        assert stopped._worker is not None
        stopped._worker._draining = True  # it takes nothing more
        await client.send("x", wait=False)
    served = named(exported, "SERVER", "SendMessage")
    assert not [s for s in exported.get_finished_spans() if s.kind is trace.SpanKind.CONSUMER]
    async with App(helper(), store=SqliteStore(path)) as app, Client.connect(app=app) as client:
        (task,) = [task async for task in client.list()]
        await client.task(task.id).wait()
    assert below(named(exported, "CONSUMER", "turn helper"), served)


async def test_failures_are_told_without_their_words(exported: InMemorySpanExporter) -> None:
    agent = Agent("Broken", description="Fails.", key="broken")

    @agent.handler
    async def work(turn: Turn) -> str:
        """Fail."""
        raise ValueError(f"the password is {SECRET}")

    headers = {"authorization": f"Bearer {SECRET}", "x-key": SECRET}
    async with App(agent) as app, Client.connect(app=app, headers=headers) as client:
        await client.send(SECRET)
        with pytest.raises(Exception, match="not found"):
            await client.task("none").get()
    turn = named(exported, "CONSUMER", "turn broken")
    assert (turn.status.status_code, turn.status.description) == (trace.StatusCode.ERROR, "failed")
    assert turn.attributes is not None
    assert turn.attributes["error.type"] == "ValueError"
    for kind in ("SERVER", "CLIENT"):
        missing = named(exported, kind, "GetTask")
        assert missing.status.description == "TASK_NOT_FOUND"
        assert missing.attributes is not None
        assert missing.attributes["a2a.task.id"] == "none"
        assert missing.attributes["error.type"] == "TASK_NOT_FOUND"
    for span in exported.get_finished_spans():
        assert SECRET not in span.to_json()
        assert not span.events


async def test_a_turn_that_fails_in_other_ways(exported: InMemorySpanExporter) -> None:
    agent = Agent("Late", description="Is late.", key="late")

    @agent.handler
    async def work(turn: Turn) -> Any:
        """Fail as told."""
        if turn.text == "late":
            await asyncio.sleep(60)
        if turn.text == "wrong":
            yield object()
        yield turn.fail("I could not")

    async with App(agent, turn_timeout=0.05, poll=0.01) as app, Client.connect(app=app) as client:
        for text in ("late", "wrong", "no"):
            await client.send(text)
    turns = [s for s in exported.get_finished_spans() if s.kind is trace.SpanKind.CONSUMER]
    assert [s.status.description for s in turns] == ["failed"] * 3
    kinds = [s.attributes["error.type"] for s in turns if s.attributes is not None]
    assert kinds == ["deadline", "INVALID_AGENT_RESPONSE", "failed"]


async def test_what_was_open_at_the_start_is_no_parent_of_what_comes_later(
    exported: InMemorySpanExporter,
) -> None:
    """A mounted application starts with its first request."""
    tracer = trace.get_tracer_provider().get_tracer("test")
    async with AsyncExitStack() as stack:
        inbox = await stack.enter_async_context(receiving())
        with tracer.start_as_current_span("mine"):
            sender = await stack.enter_async_context(pushing())
        await sender.send("x", inbox.url)
        await inbox.end()
    served = named(exported, "SERVER", "SendMessage")
    assert served.parent is None
    assert below(named(exported, "CONSUMER", "turn talker"), served)
    hooks = [s for s in exported.get_finished_spans() if s.name == "webhook talker"]
    assert hooks
    assert all(below(hook, served) for hook in hooks)


# ---- webhooks ------------------------------------------------------------------------------

CAME = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_webhook_is_part_of_the_trace(exported: InMemorySpanExporter) -> None:
    async with receiving(500) as inbox, pushing() as sender:
        sender.http.headers["traceparent"] = CAME
        task = await sender.send("a", f"{inbox.url}&key={SECRET}", id="h", token=SECRET)
        await inbox.end(task)
        # a follow-up is of its own trace
        other = await sender.send("ask", inbox.url, id="g")
        await inbox.until(lambda: any("INPUT_REQUIRED" in str(p.event) for p in inbox.posts))
        del sender.http.headers["traceparent"]
        await sender.send("b", task=other)
        posts = await inbox.end(other)
        context = str((await sender.ended(other))["contextId"])
    spans = exported.get_finished_spans()
    served = [s for s in spans if s.name == "SendMessage" and s.kind is trace.SpanKind.SERVER]
    hooks = [s for s in spans if s.name == "webhook talker"]
    assert [otel.parent(trace.NonRecordingSpan(s.context)) for s in hooks if s.context] == [
        post.headers["traceparent"] for post in posts
    ]
    first, again, *_ = hooks
    assert below(first, served[0])
    assert below(again, served[0])
    assert first.context is not None
    assert f"{first.context.trace_id:032x}" in CAME
    assert below(hooks[-1], served[-1])
    assert served[-1].parent is None
    assert first.attributes is not None
    assert again.attributes is not None
    assert dict(first.attributes) == {
        "a2a.agent": "talker",
        "gen_ai.agent.name": "Talker",
        "a2a.task.id": task,
        "gen_ai.conversation.id": posts[0].event["statusUpdate"]["contextId"],
        "a2a.webhook.id": "h",
        "a2a.attempt": 1,
        "http.request.method": "POST",
        "http.response.status_code": 500,
        "server.address": "127.0.0.1",
        "error.type": "500",
    }
    assert first.status.description == "500"
    assert (again.attributes["a2a.attempt"], again.status.status_code) == (
        2,
        trace.StatusCode.UNSET,
    )
    assert again.attributes["http.response.status_code"] == 200
    assert hooks[-1].attributes is not None
    assert hooks[-1].attributes["gen_ai.conversation.id"] == context
    assert all(SECRET not in span.to_json() for span in spans)


async def test_a_webhook_that_cannot_be_reached(exported: InMemorySpanExporter) -> None:
    async with pushing(push_retries=()) as sender:
        await sender.send("a", "http://127.0.0.1:9/in", id="h")
        await sender.parked()
    first = named(exported, "CLIENT", "webhook talker")
    assert first.attributes is not None
    assert first.attributes["error.type"] == first.status.description == "Unreachable"


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_without_a_provider_a_webhook_gets_the_trace_that_came(version: str) -> None:
    assert otel.spans() is None
    headers = {"traceparent": CAME}
    async with receiving() as inbox, pushing() as sender:
        if version == "1.0":
            sender.http.headers.update(headers)
            await sender.send("a", inbox.url)
        else:
            parts = [{"kind": "text", "text": "a"}]
            message = {"messageId": "m", "role": "user", "kind": "message", "parts": parts}
            params = {
                "message": message,
                "configuration": {"pushNotificationConfig": {"url": inbox.url}},
            }
            body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
            answer = await sender.http.post("/", json=body, headers=headers)
            assert "result" in answer.json()
        posts = await inbox.end()
        assert {post.headers["traceparent"] for post in posts} == {CAME}
        # who came without one gives none
        sender.http.headers.pop("traceparent", None)
        inbox.posts.clear()
        inbox.ends.clear()
        await sender.send("b", inbox.url)
        assert not [post for post in await inbox.end() if "traceparent" in post.headers]


async def test_a_traceparent_that_makes_no_sense_begins_anew(
    exported: InMemorySpanExporter,
) -> None:
    headers = {"traceparent": "00-nonsense"}
    async with App(helper()) as app, Client.connect(app=app) as client:
        client._connection.spans = None  # who calls has no OpenTelemetry
        await client._connection.call("list", ListTasksRequest(), headers)
    assert named(exported, "SERVER", "ListTasks").parent is None


async def test_without_a_provider_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in (trace.ProxyTracerProvider(), trace.NoOpTracerProvider()):
        monkeypatch.setattr(trace, "get_tracer_provider", lambda found=provider: found)
        assert otel.spans() is None
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    monkeypatch.delitem(sys.modules, "opentelemetry.metrics", raising=False)
    assert otel.spans() is None
    assert not otel.metered()
    async with App(helper()) as app, Client.connect(app=app) as client:
        assert app.monitoring is not None
        assert (app.monitoring.spans, app.monitoring.metrics, client._connection.spans) == (
            None,
            None,
            None,
        )
        await client.send("x")
    assert "opentelemetry.trace" not in sys.modules


# ---- figures -------------------------------------------------------------------------------


def figures(reader: InMemoryMetricReader) -> dict[str, Any]:
    """The points of each figure of ours."""
    data = reader.get_metrics_data()
    return {
        metric.name: list(metric.data.data_points)
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        if scope.scope.name == "dragoman"
        for metric in scope.metrics
    }


async def test_metrics_of_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    async with App(helper()) as app, Client.connect(app=app) as client:
        assert app.monitoring is not None
        assert app.monitoring.server is None, "no port is needed"
        await client.send("x")
        app.monitoring._count._at = -100.0
        await app.monitoring._look()
        found = figures(reader)
        (point,) = (p for p in found["dragoman_requests_total"] if p.value)
        assert (point.value, point.attributes["operation"]) == (1, "SendMessage")
        (turns,) = (p for p in found["dragoman_turn_seconds_count"] if p.value)
        assert (turns.value, dict(turns.attributes)) == (
            1,
            {"agent": "helper", "outcome": "completed"},
        )
        beyond = [p for p in found["dragoman_turn_seconds_bucket"] if p.attributes["le"] == "+Inf"]
        assert [p.value for p in beyond if p.attributes["outcome"] == "completed"] == [1]
        tasks = {p.attributes["state"]: p.value for p in found["dragoman_tasks"]}
        assert tasks["completed"] == 1
    assert "dragoman_tasks" not in figures(reader), "nobody is there any more"
    provider.shutdown()
