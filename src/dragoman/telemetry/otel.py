"""OpenTelemetry, where the process uses it: spans, and our figures as its instruments.

Nothing here imports it unless somebody else has: a process without a provider pays nothing. What
spans say is who did what on which task, and never what was said.
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

    from dragoman.telemetry.metrics import Figure

NAME = "dragoman"
LONGEST = 512
"""The most characters of an id in a span; a caller may have chosen it."""
BINDINGS = {"JSONRPC": "jsonrpc", "HTTP+JSON": "http", "GRPC": "grpc"}
"""How spans, figures and the access log write the bindings of a card."""
About = Mapping[str, str | int]
T = TypeVar("T")


def spans() -> Spans | None:
    """Spans of the provider that the process has set up by now, if it has."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Spans(provider.get_tracer(NAME, __version__))


class Spans:
    """Opens spans. Their attributes are ids and names; exceptions are told by their kind alone,
    since their words may be secret."""

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
        """A span of this kind (SERVER, CLIENT, CONSUMER) that is the present one in the block: a
        child of the one before, or, if there is none, of the `traceparent` that came. With `apart`
        only of what came: what runs in the background is no part of what was open at its start."""
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
        """The same, but it does not become the present one; whoever has it ends it. Attributes
        that are empty are left out."""
        context = self._nothing() if apart else None
        if came and (apart or not self._present().get_span_context().is_valid):
            context = self._extract({"traceparent": came, "tracestate": state}, context)
        told = {name: value for name, value in about.items() if value != ""}
        return self._tracer.start_span(
            name, context=context, kind=self._kinds[kind], attributes=told
        )

    async def around(self, span: Span, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """These items, got within the span, which ends with them. The first says what it is
        about."""
        first = True
        try:
            while True:
                # not over a yield: whoever iterates has a context of its own
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
        """Say that it went wrong, and by which kind of error if that says more."""
        span.set_status(self._error, why)
        span.set_attribute("error.type", kind or why)


def subject(value: object) -> tuple[str, str]:
    """The ids of the task and of the context that a request or an answer names; empty if none."""
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
    """The same as attributes of a span."""
    task, context = subject(value)
    about = {"a2a.task.id": task, "gen_ai.conversation.id": context}
    return {name: value for name, value in about.items() if value}


def reason(error: BaseException) -> str:
    """An error in a word."""
    return error.reason if isinstance(error, A2AError) else type(error).__name__


def parent(span: Span) -> str:
    """The `traceparent` of what comes of this span; empty if it has none."""
    found = span.get_span_context()
    if not found.is_valid:
        return ""
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


# ---- figures -------------------------------------------------------------------------------


def metered() -> bool:
    """Whether the process has set up a provider of meters by now."""
    if "opentelemetry.metrics" not in sys.modules:
        return False
    from opentelemetry import metrics

    provider = metrics.get_meter_provider()
    return not isinstance(provider, metrics.NoOpMeterProvider) and (
        type(provider).__name__ != "_ProxyMeterProvider"
    )


_told: list[Sequence[Figure]] = []
"""The figures of each application that runs here."""
_known: object = None
"""The provider that reads them."""


def publish(figures: Sequence[Figure]) -> None:
    """Have these figures read by OpenTelemetry, under their names, until they are withdrawn. It
    has no histograms that are read, so those are counters: of each bucket, the sum, the count."""
    global _known
    from opentelemetry import metrics

    _told.append(figures)
    if _known is (provider := metrics.get_meter_provider()):
        return
    _known = provider
    meter = provider.get_meter(NAME, __version__)
    for figure in figures:
        if figure.kind == "histogram":
            for suffix in ("_bucket", "_sum", "_count"):
                call = _reading(figure.name, suffix)
                meter.create_observable_counter(figure.name + suffix, [call], "", figure.help)
        elif figure.kind == "counter":
            meter.create_observable_counter(figure.name, [_reading(figure.name)], "", figure.help)
        else:
            meter.create_observable_gauge(figure.name, [_reading(figure.name)], "", figure.help)


def withdraw(figures: Sequence[Figure]) -> None:
    """Have them read no more."""
    _told.remove(figures)


def _reading(name: str, only: str = "") -> Any:
    from opentelemetry.metrics import Observation

    def read(_: object) -> Iterator[Observation]:
        for figures in _told:
            for figure in figures:
                if figure.name == name:
                    for suffix, names, values, number in figure.samples():
                        if suffix == only:
                            yield Observation(number, dict(zip(names, values, strict=True)))

    return read
