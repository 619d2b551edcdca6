"""OpenTelemetry, if the process uses it: spans, and our metrics as its instruments.

This module imports OpenTelemetry only if another module already has, so a process without a
provider pays nothing. Spans say who did what on which task, and never contain message content.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from dragoman._version import __version__
from dragoman.model.errors import A2AError
from dragoman.model.types import SendMessageRequest, SendMessageResponse, StreamResponse

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from dragoman.telemetry.metrics import Metric

NAME = "dragoman"
LONGEST = 512
"""The most characters of an id in a span; a caller may have chosen it."""
About = Mapping[str, str | int]
T = TypeVar("T")


def spans() -> Spans | None:
    """Make spans with the tracer provider of the process; None if it has none."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Spans(provider.get_tracer(NAME, __version__))


class Spans:
    """Opens spans. Their attributes are ids and names. Exceptions appear only by type, because
    their text may be secret."""

    def __init__(self, tracer: Tracer) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._present = trace.get_current_span
        self._use = trace.use_span
        self._extract = TraceContextTextMapPropagator().extract
        self._nothing = Context
        self._kinds = trace.SpanKind
        self._error = trace.StatusCode.ERROR

    @contextmanager
    def open(
        self,
        kind: str,
        name: str,
        about: About,
        came: str = "",
        state: str = "",
        *,
        apart: bool = False,
    ) -> Iterator[Span]:
        """Open a span of this kind (SERVER, CLIENT, CONSUMER) that is current in the block. Its
        parent is the current span or, without one, the `traceparent` that came. With `apart`, only
        the latter: background work does not belong to the span that was open at its start."""
        span = self.begin(kind, name, about, came, state, apart=apart)
        with self._use(span, True, record_exception=False, set_status_on_exception=False):
            try:
                yield span
            except BaseException as error:
                self.failed(span, reason(error))
                raise

    def begin(
        self,
        kind: str,
        name: str,
        about: About,
        came: str = "",
        state: str = "",
        *,
        apart: bool = False,
    ) -> Span:
        """Start a span without making it current; the caller ends it. Empty attributes are
        omitted."""
        context = self._nothing() if apart else None
        if came and (apart or not self._present().get_span_context().is_valid):
            context = self._extract({"traceparent": came, "tracestate": state}, context)
        given = {name: value for name, value in about.items() if value != ""}
        return self._tracer.start_span(
            name, context=context, kind=self._kinds[kind], attributes=given
        )

    async def around(self, span: Span, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Iterate over the items within the span, which ends with them. The first item sets the
        ids."""
        first = True
        try:
            while True:
                # Not over a yield: the consumer has its own context.
                with self._use(span, record_exception=False, set_status_on_exception=False):
                    item = await anext(items)
                if first:
                    first = False
                    span.set_attributes(ids(item))
                yield item
        except StopAsyncIteration:
            return
        except Exception as error:
            self.failed(span, reason(error))
            raise
        finally:
            span.end()
            await items.aclose()

    def failed(self, span: Span, why: str, kind: str = "") -> None:
        """Mark the span as failed, with the kind of error if that says more."""
        span.set_status(self._error, why)
        span.set_attribute("error.type", kind or why)


def subject(value: object) -> tuple[str, str]:
    """The ids of the task and the context that a request or response names; empty if none."""
    if isinstance(value, SendMessageRequest):
        value = value.message
    elif isinstance(value, SendMessageResponse):
        value = value.task or value.message
    elif isinstance(value, StreamResponse):
        value = value.task or value.message or value.status_update or value.artifact_update
    task = getattr(value, "task_id", "") or getattr(value, "id", "")
    return _id(task), _id(getattr(value, "context_id", ""))


def _id(found: object) -> str:
    return found if isinstance(found, str) and len(found) <= LONGEST else ""


def ids(value: object) -> dict[str, str]:
    """The same as span attributes."""
    task, context = subject(value)
    about = {"a2a.task.id": task, "gen_ai.conversation.id": context}
    return {name: value for name, value in about.items() if value}


def reason(error: BaseException) -> str:
    """A short name of an error."""
    return error.reason if isinstance(error, A2AError) else type(error).__name__


def parent(span: Span) -> str:
    """The `traceparent` for children of this span; empty if there is none."""
    found = span.get_span_context()
    if not found.is_valid:
        return ""
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


# ---- metrics -------------------------------------------------------------------------------


def metered() -> bool:
    """Whether the process has set up a meter provider."""
    if "opentelemetry.metrics" not in sys.modules:
        return False
    from opentelemetry import metrics

    provider = metrics.get_meter_provider()
    return not isinstance(provider, metrics.NoOpMeterProvider) and (
        type(provider).__name__ != "_ProxyMeterProvider"
    )


_published: list[Sequence[Metric]] = []
"""The metrics of each running application."""
_provider: object = None
"""The provider that reads them."""


def publish(families: Sequence[Metric]) -> None:
    """Publish these metrics to OpenTelemetry, under their names, until they are withdrawn.
    OpenTelemetry has no observable histograms, so those become counters: one for each bucket, the
    sum, and the count."""
    global _provider
    from opentelemetry import metrics

    _published.append(families)
    if _provider is (provider := metrics.get_meter_provider()):
        return
    _provider = provider
    meter = provider.get_meter(NAME, __version__)
    for metric in families:
        if metric.kind == "histogram":
            for suffix in ("_bucket", "_sum", "_count"):
                call = _reading(metric.name, suffix)
                meter.create_observable_counter(metric.name + suffix, [call], "", metric.help)
        elif metric.kind == "counter":
            meter.create_observable_counter(metric.name, [_reading(metric.name)], "", metric.help)
        else:
            meter.create_observable_gauge(metric.name, [_reading(metric.name)], "", metric.help)


def withdraw(families: Sequence[Metric]) -> None:
    """Stop publishing these metrics."""
    _published.remove(families)


def _reading(name: str, only: str = "") -> Any:
    from opentelemetry.metrics import Observation

    def read(_: object) -> Iterator[Observation]:
        for families in _published:
            for metric in families:
                if metric.name == name:
                    for suffix, names, values, number in metric.samples():
                        if suffix == only:
                            yield Observation(number, dict(zip(names, values, strict=True)))

    return read
