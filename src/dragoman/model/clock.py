"""Time in the wire format, and ids that sort by time."""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime, timedelta

_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?([Zz]|[+-]\d\d:\d\d)",
    re.ASCII,
)
_second = 0
_prefix = ""
_minute = "", 0.0
_latest = "", 0.0


def now() -> str:
    """The current time: RFC 3339, UTC, milliseconds, `Z`. Such strings sort by time."""
    return stamp(time.time())


def stamp(seconds: float) -> str:
    """Format a Unix time like `now`."""
    global _second, _prefix
    whole, milli = divmod(int(seconds * 1000), 1000)
    if whole != _second or not _prefix:  # all milliseconds of a second share its text
        _prefix = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
        _second = whole
    return f"{_prefix}.{milli:03d}Z"


def seconds(text: str) -> float:
    """The Unix time of a text in the format of `now`."""
    global _minute, _latest
    last, moment = _latest  # one read, because of threads
    if text == last:  # many texts have the same millisecond
        return moment
    head, begin = _minute
    if text[:17] != head:  # and the same minute
        head = text[:17]
        begin = datetime.fromisoformat(f"{head}00+00:00").timestamp()
        _minute = head, begin
    moment = begin + float(text[17:23])
    _latest = text, moment
    return moment


def utc(text: str) -> str:
    """Convert any RFC 3339 time to UTC with `Z` and the same fraction. Raises ValueError."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError("expected an RFC 3339 time such as 2026-01-31T12:00:00Z")
    date, clock, fraction, zone = match.groups()
    moment = datetime.fromisoformat(f"{date}T{clock}{'+00:00' if zone in 'Zz' else zone}")
    tail = f".{fraction}" if fraction else ""
    try:
        return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S}{tail}Z".rjust(20 + len(tail), "0")
    except OverflowError as error:
        raise ValueError("time is out of range") from error


def ceiling(text: str) -> str:
    """The first millisecond that is not before this RFC 3339 time, formatted like `now`."""
    text = utc(text)
    fraction = text[20:-1].ljust(9, "0") if len(text) > 20 else "0" * 9
    moment = datetime.fromisoformat(f"{text[:19]}.{fraction[:3]}+00:00")
    if int(fraction[3:]):
        try:
            moment += timedelta(milliseconds=1)
        except OverflowError:  # beyond the last possible time
            return f"{text[:19]}.999Z"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def uuid7() -> str:
    """A time-ordered UUID (version 7): ids of the same time are close together in an index."""
    global _moment
    try:
        noise = _noise.pop()
    except IndexError:  # one system call for each id would be expensive
        more = os.urandom(2560).hex()
        fresh = [more[i : i + 20] for i in range(0, len(more), 20)]
        noise = fresh.pop()
        _noise.extend(fresh)
    milli = time.time_ns() // 1_000_000
    last, head = _moment  # one read, because of threads
    if milli != last:  # all ids of a millisecond begin alike
        head = f"{milli >> 16:08x}-{milli & 0xFFFF:04x}-7"
        _moment = milli, head
    # Two bits of that group are the variant; 14 bits are random.
    return f"{head}{noise[:3]}-{_VARIANT[noise[3]]}{noise[4:7]}-{noise[8:]}"


_moment = 0, ""
_noise: list[str] = []
_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))

if hasattr(os, "register_at_fork"):  # a forked process must not reuse random bytes
    os.register_at_fork(after_in_child=_noise.clear)
