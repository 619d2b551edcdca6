"""Parses the `Cookie` header in one pass.

`http.cookies` takes quadratic time for a hostile header (before Python 3.11.10).
"""

from __future__ import annotations

LARGEST = 16 * 1024
"""The most characters of a `Cookie` header."""
MOST = 256
"""The most cookies in it."""


def values(header: str, name: str) -> list[str]:
    """The values of the cookies with this name, in the order of the header. ValueError if the
    header is longer than `LARGEST`, or has more than `MOST` cookies."""
    if len(header) > LARGEST:
        raise ValueError(f"Cookie: is longer than {LARGEST} bytes")
    if header.count(";") >= MOST:
        raise ValueError(f"Cookie: has more than {MOST} cookies")
    found = []
    for pair in header.split(";"):
        key, equals, value = pair.partition("=")
        if equals and key.strip(" \t") == name:
            found.append(_bare(value.strip(" \t")))
    return found


def _bare(value: str) -> str:
    """The value without the quotes around it."""
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] == '"' else value
