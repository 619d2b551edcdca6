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
    global _entropy, _spent
    start = _spent
    if start >= len(_entropy):  # a system call for every id would cost more than the id
        _entropy, start = os.urandom(2560), 0
    _spent = start + 10
    milli = time.time_ns() // 1_000_000
    noise = _entropy[start:_spent].hex()
    head = f"{milli:012x}"
    # the variant's two bits leave 14 bits of that group to chance
    return f"{head[:8]}-{head[8:]}-7{noise[:3]}-{_VARIANT[noise[3]]}{noise[4:7]}-{noise[8:]}"


_entropy, _spent = b"", 0
_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))


def _forget() -> None:
    """Two processes must not share what was drawn before they parted."""
    global _entropy
    _entropy = b""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
