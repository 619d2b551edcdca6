"""Servers that tests share, one of each for every process that runs tests; started when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TypeVar

import pytest

from tests.services import Missing, Nats, Postgres, Redis, Server

Kind = TypeVar("Kind", bound=Server)


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
