"""Time as the wire writes it, and ids that sort by it."""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime

_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?([Zz]|[+-]\d\d:\d\d)"
)
_second = 0
_prefix = ""


def now() -> str:
    """The current time: RFC 3339, UTC, milliseconds, `Z`. Such strings sort by time."""
    return stamp(time.time())


def stamp(seconds: float) -> str:
    """A Unix time in the form of `now`."""
    global _second, _prefix
    whole, milli = divmod(int(seconds * 1000), 1000)
    if whole != _second or not _prefix:  # a formatted second serves all of its milliseconds
        _prefix = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
        _second = whole
    return f"{_prefix}.{milli:03d}Z"


def utc(text: str) -> str:
    """Any RFC 3339 time as UTC with `Z`, its fraction untouched; ValueError if it is none."""
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
    """The first millisecond that is not before this RFC 3339 time, in the form of `now`."""
    text = utc(text)
    fraction = text[20:-1].ljust(9, "0") if len(text) > 20 else "0" * 9
    milli = int(fraction[:3]) + (int(fraction[3:]) > 0)
    if milli < 1000:
        return f"{text[:19]}.{milli:03d}Z"
    moment = datetime.fromisoformat(text[:19] + "+00:00").timestamp() + 1
    return stamp(moment)


def uuid7() -> str:
    """A time-ordered UUID (version 7): neighbours in time are neighbours in an index."""
    milli = time.time_ns() // 1_000_000
    noise = int.from_bytes(os.urandom(10), "big")
    high = (milli << 16) | 0x7000 | (noise >> 68)
    low = 0x8000_0000_0000_0000 | (noise & 0x3FFF_FFFF_FFFF_FFFF)
    text = f"{high:016x}{low:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
