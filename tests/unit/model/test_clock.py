"""Time as the wire writes it, and ids that sort by it."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.model import clock
from tests.harness.wire_values import TIMES

FORM = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(text: str) -> Fraction:
    """The exact seconds since 1970 of a time in UTC."""
    whole = datetime.fromisoformat(text[:19] + "+00:00") - EPOCH
    fraction = Fraction("0" + text[19:-1]) if len(text) > 20 else Fraction(0)
    return Fraction(whole.days * 86400 + whole.seconds) + fraction


# ---- writing -------------------------------------------------------------------------------


@pytest.mark.clause("time.utc", "time.milliseconds")
def test_now_is_utc_with_milliseconds() -> None:
    before = int(time.time() * 1000)
    text = clock.now()
    after = int(time.time() * 1000)
    assert FORM.fullmatch(text)
    assert before <= instant(text) * 1000 <= after


@given(st.integers(0, 4_102_444_800_000), st.integers(-60_000, 60_000))
def test_a_stamp_is_read_back(first: int, later: int) -> None:
    for milli in (first, max(first + later, 0), first):  # what is kept must not leak
        text = clock.stamp((milli + 0.5) / 1000)
        for _ in range(2):
            assert clock.seconds(text) == pytest.approx(milli / 1000, abs=1e-5, rel=0)


@pytest.mark.clause("time.utc", "time.milliseconds")
@given(st.integers(0, 4_102_444_800_000), st.integers(0, 4_102_444_800_000))
def test_a_stamp_tells_its_millisecond(first: int, second: int) -> None:
    for milli in (first, second, first):  # what is kept of the last one must not leak
        text = clock.stamp((milli + 0.5) / 1000)
        assert FORM.fullmatch(text)
        assert instant(text) * 1000 == milli


@given(st.integers(0, 4_102_444_800_000), st.integers(0, 4_102_444_800_000))
def test_stamps_sort_by_time(first: int, second: int) -> None:
    one, other = clock.stamp((first + 0.5) / 1000), clock.stamp((second + 0.5) / 1000)
    assert (one < other) is (first < second)


# ---- reading -------------------------------------------------------------------------------


@pytest.mark.clause("time.parsed")
@given(
    st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29)).map(lambda d: d.replace(microsecond=0)),
    st.from_regex(r"(\.[0-9]{1,9})?", fullmatch=True),
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
)
def test_any_zone_becomes_utc(moment: datetime, fraction: str, minutes: int) -> None:
    local = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    text = local.isoformat(timespec="seconds")
    said = text[:19] + fraction + text[19:]
    expected = local.astimezone(UTC).isoformat(timespec="seconds")[:19]
    assert clock.utc(said) == f"{expected}{fraction}Z"


@given(TIMES)
def test_what_is_utc_already_stays_as_it_is(text: str) -> None:
    assert clock.utc(text) == text


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "2026-01-31",
        "2026-01-31T12:00:00",
        "2026-01-31T12:00:00.Z",
        " 2026-01-31T12:00:00Z",
        "2026-01-31T12:00:00Z\n",
        "2026-13-31T12:00:00Z",
        "2026-00-31T12:00:00Z",
        "2026-02-30T12:00:00Z",
        "2025-02-29T12:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T12:60:00Z",
        "2026-01-31T12:00:61Z",
        "2026-01-31T12:00:00+24:00",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "\u0662\u0660\u0662\u0666-01-31T12:00:00Z",
        "2026-01-31T12:00:00.\u0665Z",
    ],
)
@pytest.mark.parametrize("function", [clock.utc, clock.ceiling])
def test_what_is_no_time_is_refused(function: object, wrong: str) -> None:
    with pytest.raises(ValueError):
        function(wrong)  # type: ignore[operator]


# ---- the first millisecond that is not before a time ---------------------------------------


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000Z"),
        ("2026-01-31T12:00:00.1Z", "2026-01-31T12:00:00.100Z"),
        ("2026-01-31T12:00:00.123Z", "2026-01-31T12:00:00.123Z"),
        ("2026-01-31T12:00:00.123000000Z", "2026-01-31T12:00:00.123Z"),
        ("2026-01-31T12:00:00.123000001Z", "2026-01-31T12:00:00.124Z"),
        ("2026-01-31T12:00:00.9991Z", "2026-01-31T12:00:01.000Z"),
        ("2026-12-31T23:59:59.9999Z", "2027-01-01T00:00:00.000Z"),
        ("2026-01-31T13:00:00.5+01:00", "2026-01-31T12:00:00.500Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"),
    ],
)
def test_ceiling(said: str, expected: str) -> None:
    assert clock.ceiling(said) == expected


@given(TIMES.filter(lambda text: text < "9999-12-31T23:59:59"))
@example("0500-06-01T00:00:00.9999Z")
@example("0001-01-01T00:00:00.9999Z")
@example("1969-12-31T23:59:59.9999Z")
def test_a_ceiling_is_the_least_millisecond_that_is_not_before(text: str) -> None:
    found = clock.ceiling(text)
    assert FORM.fullmatch(found)
    assert 0 <= instant(found) - instant(text) < Fraction(1, 1000)


@pytest.mark.parametrize("fraction", ["", ".999", ".9991", ".999999999"])
def test_the_ceiling_of_the_last_second_is_after_every_task(fraction: str) -> None:
    # Such strings are compared as strings: a year of five digits would come before all others.
    assert clock.ceiling(f"9999-12-31T23:59:59{fraction}Z") > clock.now()


# ---- ids -----------------------------------------------------------------------------------


@pytest.mark.clause("task-id.unique")
def test_an_id_is_a_uuid_of_version_7() -> None:
    before = time.time_ns() // 1_000_000
    texts = [clock.uuid7() for _ in range(2000)]
    after = time.time_ns() // 1_000_000
    for text in texts:
        known = uuid.UUID(text)
        assert str(known) == text
        assert known.version == 7
        assert known.variant == uuid.RFC_4122
        assert before <= known.int >> 80 <= after
    assert len(set(texts)) == len(texts)


def test_every_random_bit_of_an_id_is_random() -> None:
    ids = [uuid.UUID(clock.uuid7()).int for _ in range(500)]
    noise = [number & ((1 << 80) - 1) for number in ids]
    for bit in range(80):
        seen = {number >> bit & 1 for number in noise}
        fixed = bit in (62, 63) or bit >= 76
        assert len(seen) == (1 if fixed else 2), bit


def test_ids_sort_by_time() -> None:
    first = clock.uuid7()
    time.sleep(0.003)
    assert first < clock.uuid7()


def test_ids_made_in_threads_are_whole_and_unique() -> None:
    ids = in_threads(lambda _: clock.uuid7())
    assert {len(text) for text in ids} == {36}
    assert len(set(ids)) == len(ids)


def test_stamps_made_in_threads_are_right() -> None:
    def wrong(number: int) -> bool:
        second = 1_000_000_000 + number
        return instant(clock.stamp(second + 0.5)) != Fraction(second) + Fraction(1, 2)

    assert sum(in_threads(wrong)) == 0


def in_threads(make: Callable[[int], Any]) -> list[Any]:
    """What many threads make, each of them interrupted as often as can be."""
    found: list[Any] = []

    def run(thread: int) -> None:
        try:
            for _ in range(5000):
                found.append(make(thread))
        except Exception as error:  # noqa: BLE001 - raised again below
            found.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    for fault in found:
        if isinstance(fault, Exception):
            raise fault
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_ids_of_a_forked_process_are_its_own() -> None:
    clock.uuid7()  # so that there is something left to share
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, "\n".join(clock.uuid7()[14:] for _ in range(20)).encode())
        os._exit(0)
    os.close(writer)
    theirs = {clock.uuid7()[14:] for _ in range(20)}
    with os.fdopen(reader) as pipe:
        ours = set(pipe.read().split())
    os.waitpid(child, 0)
    assert len(ours) == len(theirs) == 20
    assert not ours & theirs
