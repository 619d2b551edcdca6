"""Metrics, spans and readiness of one process.

Metrics are kept if `metrics` is set or OpenTelemetry has a meter provider. Spans are opened if
OpenTelemetry has a tracer provider. Both are decided once, at the start.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

from dragoman.bells.bell import Bell, Listeners
from dragoman.bindings.metrics_server import MetricsServer
from dragoman.model.protocol import BINDINGS, GRPC
from dragoman.server.settings import Settings
from dragoman.stores.store import Census, Store
from dragoman.telemetry import otel
from dragoman.telemetry.logs import logger
from dragoman.telemetry.metrics import TEXT, Labels, Metrics, render
from dragoman.telemetry.store_health import COUNTED, UNWRITABLE, Headcount, StoreHealth

JSON = "application/json"


class Monitoring:
    """Monitors one process. Make it after the process is set up; use it as `async with` while the
    store is open, and `run` it until canceled."""

    def __init__(
        self,
        agents: Collection[str],
        store: Store,
        settings: Settings,
        *,
        draining: Callable[[], bool],
        running: Callable[[], Mapping[str, Any]],
        streams: Callable[[], int] = lambda: 0,
    ) -> None:
        """`running` returns the worker's runs, by task."""
        self.spans = otel.spans()
        self._exported = otel.metered()
        wanted = settings.metrics is not None or self._exported
        self.metrics = Metrics() if wanted else None
        self.health = StoreHealth(store)
        self.server: MetricsServer | None = None
        """The metrics server, if there is one."""
        self._settings = settings
        self._draining = draining
        self._count = Headcount(agents, store)
        self._stack = AsyncExitStack()
        if self.metrics is not None:
            self._wire(self.metrics, store, agents, running, streams)

    def _wire(
        self,
        metrics: Metrics,
        store: Store,
        agents: Collection[str],
        running: Callable[[], Mapping[str, Any]],
        streams: Callable[[], int],
    ) -> None:
        """Set the functions that the gauges read."""
        count = self._count

        def runs() -> Iterator[tuple[Labels, float]]:
            found = Counter(run.agent.key for run in list(running().values()))
            for agent in agents:
                yield (agent,), found[agent]

        def tasks() -> Iterator[tuple[Labels, float]]:
            for agent, census in count.latest.items():
                for state, number in census.tasks.items():
                    yield (agent, state.name.lower()), number

        def webhooks() -> Iterator[tuple[Labels, float]]:
            for agent, census in count.latest.items():
                yield (agent, "waiting"), census.behind
                yield (agent, "parked"), census.parked

        def each(metric: Callable[[Census], float]) -> Iterator[tuple[Labels, float]]:
            for agent, census in count.latest.items():
                yield (agent,), metric(census)

        served = self._settings.grpc_port is not None
        labels = [each.label for each in BINDINGS.values() if served or each is not GRPC]
        metrics.start(agents, labels)
        metrics.running.read = runs
        metrics.streams.read = lambda: [((), streams())]
        metrics.tasks.read = tasks
        metrics.webhooks.read = webhooks
        metrics.queue.read = lambda: each(lambda census: census.ready)
        metrics.oldest.read = lambda: each(lambda census: census.oldest)
        metrics.sleeping.read = lambda: each(lambda census: census.sleeping)
        metrics.aside.read = lambda: each(lambda census: census.aside)
        metrics.unreadable.read = lambda: [((kind,), n) for kind, n in store.unreadable.items()]
        metrics.ready.read = lambda: [((), int(self.health.up and not self._draining()))]
        metrics.store.read = lambda: [((), int(self.health.up))]

    def bell(self, bell: Bell) -> Bell:
        """Count the rings of the bell, if metrics are kept and the bell is shared."""
        if self.metrics is None or not bell.shared:
            return bell
        return Counted(bell, self.metrics)

    async def __aenter__(self) -> Monitoring:
        self._stack.callback(self.health.close)
        address = self._settings.metrics_address
        if address is not None:
            pages = {
                "/metrics": self._metrics_page,
                "/healthz": self._alive,
                "/readyz": self._ready,
            }
            served = MetricsServer(pages, *address)
            self.server = await self._stack.enter_async_context(served)
            host = f"[{address[0]}]" if ":" in address[0] else address[0]
            logger.info("metrics at http://%s:%d/metrics", host, served.port)
        if self._exported and self.metrics is not None:
            otel.publish(self.metrics.families)
            self._stack.callback(otel.withdraw, self.metrics.families)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        self.server = None

    async def run(self) -> None:
        """Refresh the values that OpenTelemetry reads by itself."""
        while self._exported:
            await self._look()
            await asyncio.sleep(COUNTED)

    async def state(self) -> str:
        """`ok` if the process is ready, else the reason."""
        if self._draining():
            return "draining"
        return "ok" if await self.health.beats() else self.health.state

    async def page(self) -> bytes:
        """The metrics page for Prometheus. Raises RuntimeError if no metrics are kept."""
        if self.metrics is None:
            raise RuntimeError(
                "metrics are disabled: set `metrics` (0 picks a free port), or "
                "configure an OpenTelemetry meter provider before the application starts"
            )
        await self._look()
        return render(self.metrics.families)

    async def _look(self) -> None:
        if await self.health.beats() or self.health.state == UNWRITABLE:
            await self._count.take()
        else:
            self._count.latest = {}

    async def _metrics_page(self) -> tuple[int, str, bytes]:
        return 200, TEXT, await self.page()

    async def _alive(self) -> tuple[int, str, bytes]:
        return 200, JSON, b'{"status":"ok"}'

    async def _ready(self) -> tuple[int, str, bytes]:
        state = await self.state()
        return 200 if state == "ok" else 503, JSON, b'{"status":"%b"}' % state.encode()


class Counted:
    """A bell that counts its rings."""

    shared = True

    def __init__(self, bell: Bell, metrics: Metrics) -> None:
        self.listeners: Listeners = bell.listeners
        self.ring = metrics.counting(bell.ring)
        self.carry = metrics.counting(bell.carry)
        self.open, self.close = bell.open, bell.close
