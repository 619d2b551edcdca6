"""Servers that tests share, one of each for every process that runs tests; started when asked."""

from __future__ import annotations

import gc
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from dragoman import Settings
from tests.harness.scale import examples
from tests.harness.services import Missing, Nats, Postgres, Redis, Server
from tests.harness.stores import recycle

# A machine may be slow, and that is no fault of a property.
settings.register_profile(
    "tests",
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")

Kind = TypeVar("Kind", bound=Server)

ROOT = Path(__file__).parent
LONGEST = (
    "faults/cluster",
    "security/neighbours",
    "faults/crash",
    "security/test_pipelining",
    "security/test_large",
    "security/test_slow",
    "security/test_leaks",
    "security/fuzz",
    "contract/stores/test_store",
    "unit/stores/postgres/test_query_plans",
    "unit/stores/postgres/test_postgres",
    "interop",
    "package",
    "products/orchestrator/test_killed",
    "products/mcp/test_killed",
    "products/payments/killed",
    "products/payments/test_twenty_tasks",
    "products/console",
    "products/bridges",
    "faults",
    "telemetry",
    "hosting",
    "examples",
    "docs",
    "security/test_fairness",
    "cli/",
)
"""Where the tests are that take longest: they begin first, so that no process is left alone with
them in the end."""


def pytest_configure() -> None:
    """Give SIGINT back to the processes that tests start. A background job of a shell without job
    control begins with SIGINT ignored, and every process that it starts inherits that. A handler
    is not inherited; this one does nothing, so the test run itself still ignores the signal."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Collect the tests without the garbage collector, which would only look at what stays; nor
    does it look at the tests later, which would be most of its work each time. The recursion limit
    stays: some tests import eth-account, which raises it so far that nested JSON would crash the
    process."""
    limit = sys.getrecursionlimit()
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        sys.setrecursionlimit(limit)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """Give the tables of the test back."""
    recycle()


SERVERS = {"postgres", "nats", "redis"}
"""The fixtures, and the values of parameters, that stand for a server which has to be started."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a server as slow; put the longest files first, and then those with
    the most tests."""
    for item in items:
        params = getattr(item, "callspec", None) and item.callspec.params  # type: ignore[attr-defined]
        values = {value for value in (params or {}).values() if isinstance(value, str)}
        if SERVERS & (values | set(getattr(item, "fixturenames", ()))):
            item.add_marker("slow")
    counts = Counter(item.path for item in items)

    def place(item: pytest.Item) -> tuple[int, int, str]:
        path = item.path.relative_to(ROOT).as_posix()
        ranks = (n for n, prefix in enumerate(LONGEST) if path.startswith(prefix))
        return next(ranks, len(LONGEST)), -counts[item.path], path

    items.sort(key=place)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server, without fsync. Whoever stops it starts it again."""
    yield from shared(lambda: Postgres(fsync=False))


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """The URL of a new, empty database."""
    url = postgres.create()
    yield url
    postgres.drop(url.rpartition("/")[2])


@pytest.fixture(scope="session")
def nats() -> Iterator[Nats]:
    """A NATS server."""
    yield from shared(Nats)


@pytest.fixture(scope="session")
def redis() -> Iterator[Redis]:
    """A Redis server."""
    yield from shared(Redis)


def shared(make: Callable[[], Kind]) -> Iterator[Kind]:
    """A server while it is used; the reason why not, where there is none."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(make())
        except Missing as missing:
            pytest.skip(str(missing))
        yield server


@pytest.fixture
def constants(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets for one test what `Settings` has besides its settings: `constants(keepalive=0.05)`."""

    def change(**values: Any) -> None:
        for name, value in values.items():
            assert name not in Settings.__struct_fields__, f"{name} is a setting"
            monkeypatch.setattr(Settings, name, value)

    return change
