"""The `Cookie` header: right values, and work that grows with its length only."""

from __future__ import annotations

import sys

import pytest

from dragoman.model.caller import Request
from dragoman.model.errors import AmbiguousRequest, Unauthenticated
from dragoman.security import ApiKey
from dragoman.security.cookie_header import LARGEST, MOST, values


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("", []),
        ("key=k", ["k"]),
        ("a=b; key=k; c=d", ["k"]),
        ("a=b;key=k;", ["k"]),
        (" \tkey = k ", ["k"]),
        ('key="k"', ["k"]),
        ('key="', ['"']),
        ("key=a=b==", ["a=b=="]),
        ("key=", [""]),
        ("key", []),
        ("Key=k", []),
        ("xkey=k; keyx=k", []),
        ("$Version=1; key=k; $Path=/", ["k"]),
        ("key=one; key=two", ["one", "two"]),
        (";;;=;=k;", []),
        ("key=\xe9", ["\xe9"]),
    ],
)
def test_values(header: str, found: list[str]) -> None:
    assert values(header, "key") == found


def test_limits() -> None:
    assert values("key=k" + ";" * (MOST - 1), "key") == ["k"]
    with pytest.raises(ValueError, match=f"more than {MOST} cookies"):
        values("key=k" + ";" * MOST, "key")
    assert values("key=" + "k" * (LARGEST - 4), "key")
    with pytest.raises(ValueError, match=f"longer than {LARGEST} bytes"):
        values("key=" + "k" * (LARGEST - 3), "key")


def shown(cookie: str) -> Request:
    """A request with this header."""
    return Request("POST", "/", "", {"cookie": cookie}, "10.0.0.1")


HOSTILE = ('a="' + "\\" * 60_000, "a=" + '"' * 60_000, "a" * 60_000, "; " * 30_000, "\\1" * 30_000)


def steps(cookie: str) -> int:
    """The lines of Python that it takes to refuse a header."""
    scheme, count, refused = ApiKey(cookie="key", keys=["k"]), 0, False

    def trace(*_: object) -> object:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        scheme.identify(shown(cookie))
    except Unauthenticated:
        refused = True
    finally:
        sys.settrace(before)
    assert refused
    return count


@pytest.mark.parametrize("cookie", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_header_costs_nothing(cookie: str) -> None:
    assert steps(cookie) == steps(cookie * 2) < 100


def test_the_standard_library_is_not_asked() -> None:
    """Its parser takes seconds for such a header."""
    from dragoman.security import cookie_header, schemes

    for module in (cookie_header, schemes):
        assert not {"SimpleCookie", "BaseCookie", "http"} & vars(module).keys()
    header = "; ".join(f"a{n}={'x' * 40}" for n in range(MOST - 1)) + "; key=k"
    assert ApiKey(cookie="key", keys=["k"]).identify(shown(header)) is not None


def test_a_key_that_stands_twice() -> None:
    scheme = ApiKey(cookie="key", keys=["k", "l"])
    with pytest.raises(AmbiguousRequest, match="cookie"):
        scheme.identify(shown("key=k; key=l"))
    scheme = ApiKey(query="key", keys=["k", "l"])
    with pytest.raises(AmbiguousRequest, match="query"):
        scheme.identify(Request("GET", "/", "key=k&key=l", {}, ""))
