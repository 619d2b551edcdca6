"""Metrics: counters, gauges and histograms, in the text format of Prometheus.

To count is a dictionary lookup. Values that can be read on demand are read at the scrape. Labels
have few values each: no task, no identity, nothing that a caller chooses.
"""

from __future__ import annotations

import math
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path

from dragoman._version import __version__
from dragoman.model.operations import OPERATIONS
from dragoman.model.protocol import LISTED_VERSIONS

TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of the metrics page."""
QUICK = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""The buckets for operations of a store, in seconds."""
LONG = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The buckets for what an agent does, or what waits for one."""
STARTED_REQUESTS = ("ok", "INTERNAL_ERROR", "UNAVAILABLE")
STARTED_REFUSALS = ("UNAUTHENTICATED", "RESOURCE_EXHAUSTED")
STARTED_TURNS = ("completed", "failed", "lost")
STARTED_DELIVERIES = ("delivered", "failed", "parked")
"""The outcomes whose counters start at 0."""

Labels = tuple[str, ...]
Sample = tuple[str, Labels, Labels, float]
"""The suffix of the metric's name, the label names, the label values, and the value."""
Read = Callable[[], Iterable[tuple[Labels, float]]]


class Counter:
    """Counts events."""

    kind = "counter"

    def __init__(self, name: str, help: str, *labels: str) -> None:
        self.name, self.help, self.labels = name, help, labels
        self.values: dict[Labels, float] = {} if labels else {(): 0}

    def start(self, *key: str) -> None:
        """Report 0 for these label values until the first event."""
        self.values.setdefault(key, 0)

    def add(self, *key: str) -> None:
        """Count one event with these label values."""
        self.values[key] = self.values.get(key, 0) + 1

    def samples(self) -> Iterator[Sample]:
        """All of its samples."""
        for key, value in list(self.values.items()):
            yield "", self.labels, key, value


class Gauge:
    """A current value, read at the scrape."""

    def __init__(self, name: str, help: str, *labels: str, kind: str = "gauge") -> None:
        self.name, self.help, self.labels, self.kind = name, help, labels, kind
        self.read: Read = lambda: ()

    def samples(self) -> Iterator[Sample]:
        """All of its samples."""
        for key, value in self.read():
            yield "", self.labels, key, value


class Cell:
    """One series of a histogram."""

    __slots__ = ("_buckets", "counts", "sum")

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        """One count for each bucket, and one for larger values."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Record a duration in seconds."""
        self.counts[bisect_left(self._buckets, value)] += 1
        self.sum += value


class Histogram:
    """Durations, counted by bucket."""

    kind = "histogram"

    def __init__(self, name: str, help: str, *labels: str, buckets: Sequence[float]) -> None:
        self.name, self.help, self.labels = name, help, labels
        self.buckets = tuple(buckets)
        self.cells: dict[Labels, Cell] = {} if labels else {(): Cell(self.buckets)}

    def at(self, *key: str) -> Cell:
        """The series with these label values."""
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = Cell(self.buckets)
        return cell

    def samples(self) -> Iterator[Sample]:
        """All of its samples, in the form that Prometheus expects."""
        for key, cell in list(self.cells.items()):
            count = 0
            for limit, number in zip((*self.buckets, math.inf), cell.counts, strict=True):
                count += number
                yield "_bucket", (*self.labels, "le"), (*key, _number(limit)), count
            yield "_sum", self.labels, key, cell.sum
            yield "_count", self.labels, key, count


Metric = Counter | Gauge | Histogram


class Metrics:
    """All metrics of this process. `docs/metrics.md` has the table."""

    def __init__(self) -> None:
        self.requests = Counter(
            "dragoman_requests_total",
            "Operations, by outcome",
            *("agent", "operation", "binding", "version", "outcome"),
        )
        self.request = Histogram(
            "dragoman_request_seconds",
            "Time from the start of an operation to its response, or to the start of its stream",
            "operation",
            buckets=LONG,
        )
        self.refused = Counter(
            "dragoman_refused_total",
            "Requests that were rejected before an operation started",
            *("agent", "binding", "reason"),
        )
        self.accept = Histogram("dragoman_accept_seconds", "Time to store a message", buckets=QUICK)
        self.claim = Histogram(
            "dragoman_claim_seconds",
            "Time from the acceptance of a message to the start of its turn",
            "agent",
            buckets=LONG,
        )
        self.append = Histogram(
            "dragoman_append_seconds", "Time to store the events of a turn", buckets=QUICK
        )
        self.turn = Histogram(
            "dragoman_turn_seconds",
            "Duration of a turn, by outcome",
            *("agent", "outcome"),
            buckets=LONG,
        )
        self.steps = Counter(
            "dragoman_steps_total", "Steps of durable turns, by their result", "agent", "result"
        )
        self.gate_events = Counter(
            "dragoman_gate_events_total", "What the gates of skills report", "agent", "event"
        )
        self.sleeping = Gauge(
            "dragoman_tasks_sleeping", "Tasks whose durable turn continues later", "agent"
        )
        self.postponed = Counter(
            "dragoman_turns_postponed_total",
            "Durable turns that this version of the code cannot continue",
            "agent",
        )
        self.running = Gauge("dragoman_turns_running", "Turns that run in this process", "agent")
        self.streams = Gauge("dragoman_streams_open", "Streams that are open in this process")
        self.lag = Histogram(
            "dragoman_event_lag_seconds",
            "Time from a status to its delivery to a waiting reader",
            buckets=LONG,
        )
        self.deliveries = Counter(
            "dragoman_deliveries_total", "Webhook deliveries, by outcome", "agent", "outcome"
        )
        self.rings = Counter("dragoman_bell_rings_total", "Wake-ups sent to other processes")
        self.tasks = Gauge("dragoman_tasks", "Tasks in the store", "agent", "state")
        self.queue = Gauge("dragoman_queue_tasks", "Tasks that wait for a worker", "agent")
        self.oldest = Gauge(
            "dragoman_queue_oldest_seconds",
            "Age of the oldest task that waits for a worker",
            "agent",
        )
        self.webhooks = Gauge(
            "dragoman_webhooks",
            "Webhooks with undelivered events: waiting or parked",
            *("agent", "state"),
        )
        self.aside = Gauge(
            "dragoman_tasks_set_aside",
            "Tasks whose stored head cannot be read; other tasks continue",
            "agent",
        )
        self.unreadable = Gauge(
            "dragoman_unreadable_total",
            "Stored data that this process could not read; it logged and skipped them",
            "kind",
            kind="counter",
        )
        self.ready = Gauge("dragoman_ready", "1 if this process accepts work, else 0")
        self.store = Gauge("dragoman_store_up", "1 if the store answers and accepts writes, else 0")
        info = Gauge("dragoman_build_info", "The version of dragoman, as a label", "version")
        info.read = lambda: [((__version__,), 1)]
        self.families: tuple[Metric, ...] = (
            *(self.requests, self.request, self.refused, self.accept, self.claim, self.append),
            *(self.turn, self.postponed, self.steps, self.gate_events, self.sleeping, self.running),
            *(self.streams, self.lag, self.deliveries),
            *(self.rings, self.tasks, self.queue, self.oldest, self.webhooks, self.aside),
            *(self.unreadable, self.ready, self.store, info, *_process()),
        )

    def start(self, agents: Iterable[str], bindings: Iterable[str]) -> None:
        """Report 0 for everything that alerts watch. Prometheus sees no increase in a series that
        first appears with its first error, so that error would raise no alert."""
        bindings = tuple(bindings)
        for agent in agents:
            for binding, version in product(bindings, LISTED_VERSIONS):
                for operation, outcome in product(OPERATIONS, STARTED_REQUESTS):
                    self.requests.start(agent, operation.name, binding, version, outcome)
            for binding, reason in product(bindings, STARTED_REFUSALS):
                self.refused.start(agent, binding, reason)
            for outcome in STARTED_TURNS:
                self.turn.at(agent, outcome)
            for outcome in STARTED_DELIVERIES:
                self.deliveries.start(agent, outcome)

    def counting(self, ring: Callable[[str], None]) -> Callable[[str], None]:
        """Wrap the function so that its calls are counted."""
        values = self.rings.values

        def counted(topic: str) -> None:
            values[()] += 1
            ring(topic)

        return counted


def render(metrics: Iterable[Metric]) -> bytes:
    """Render the page for Prometheus."""
    lines: list[str] = []
    for metric in metrics:
        lines.append(f"# HELP {metric.name} {metric.help}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for suffix, names, values, number in metric.samples():
            pairs = ",".join(f'{n}="{_escaped(v)}"' for n, v in zip(names, values, strict=True))
            labels = f"{{{pairs}}}" if pairs else ""
            lines.append(f"{metric.name}{suffix}{labels} {_number(number)}")
    return "\n".join((*lines, "")).encode()


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(value)


# ---- the process itself, with the names that Prometheus' clients use -----------------------


def _process() -> Iterator[Gauge]:
    cpu = Gauge("process_cpu_seconds_total", "User and system CPU time", kind="counter")
    cpu.read = lambda: [((), sum(os.times()[:2]))]
    memory = Gauge("process_resident_memory_bytes", "Resident memory size")
    memory.read = _resident
    files = Gauge("process_open_fds", "Open file descriptors")
    files.read = _files
    start = Gauge("process_start_time_seconds", "Start time of the process, in Unix time")
    began = time.time()
    start.read = lambda: [((), began)]
    yield from (cpu, memory, files, start)


def _resident() -> Iterable[tuple[Labels, float]]:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return [((), pages * os.sysconf("SC_PAGE_SIZE"))]
    except (OSError, AttributeError):  # other systems do not have it
        return []


def _files() -> Iterable[tuple[Labels, float]]:
    try:
        return [((), sum(1 for _ in Path("/proc/self/fd").iterdir()))]
    except OSError:
        return []
