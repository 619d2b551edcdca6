"""The values that a handler saves: any JSON value, or bytes.

They are kept as JSON. Bytes are an object with one reserved key, whose value is their base64. An
object of the author's that begins with this key is put into such an object itself, so that each
value comes back as what it was.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from dragoman.agent.step_results import LARGEST, encoded

BYTES = "dragoman.bytes"
_MARK = f'{{"{BYTES}":'.encode()


def encode_saved(value: Any, what: str) -> bytes:
    """A value as it is kept; TypeError, ValueError if it is no JSON or too large."""
    if isinstance(value, bytes | bytearray | memoryview):
        size = memoryview(value).nbytes
        if size > LARGEST:
            raise ValueError(f"{what}: the value has {size} bytes; at most {LARGEST} are kept")
        return _MARK + b'"' + base64.b64encode(value) + b'"}'
    data = encoded(value, what)
    return _MARK + data + b"}" if data.startswith(_MARK) else data


def decode_saved(data: bytes) -> Any:
    """The value that is kept as this."""
    value = msgspec.json.decode(data)
    if not data.startswith(_MARK) or len(value) > 1:
        return value
    inner = value[BYTES]
    if isinstance(inner, str):
        return base64.b64decode(inner, validate=True)
    return inner if isinstance(inner, dict) else value
