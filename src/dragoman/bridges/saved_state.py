"""The state that a framework needs to continue, as the log has it: compressed, and without the
files of the conversation's messages, which are in the log already."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from dragoman import Message
from dragoman.bridges.merged_states import merged

T = TypeVar("T")

LIMIT = 180 * 1024
"""The most bytes of a state that is kept. (As text in an entry they are a third more.)"""
SMALL = 1024
"""A file of fewer bytes stays in the state."""
BLOCK = 64
"""As many bytes that are the same are looked for in the state before."""
_MARK = b"DragomanFile"
GONE = "(a file of an earlier message that is not kept any more)"
"""What a model reads instead of a file that is gone."""


def is_gone(content: str | bytes) -> bool:
    """Whether these bytes, or their base64, stand for a file that is gone. A bridge puts `GONE` in
    its place: a provider of models may refuse what is no image."""
    data = content.encode() if isinstance(content, str) else content
    return data.startswith((_MARK, base64.b64decode(_MARK)))


def without_gone(state: bytes, note: Callable[[dict[str, Any]], Any]) -> bytes:
    """A state that is JSON, without the files that are gone. `note` replaces an object that has
    one. If it returns None, the object stays, and what is inside of it is looked at."""
    if _MARK not in state:
        return state
    return json.dumps(_noted(json.loads(state), note)).encode()


def has_gone(value: Any) -> bool:
    """Whether a JSON value has a file that is gone, perhaps as a data URL."""
    if isinstance(value, str):
        return is_gone(value.rpartition(";base64,")[2] if value[:5] == "data:" else value)
    within = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(has_gone, within))


def _noted(value: Any, note: Callable[[dict[str, Any]], Any]) -> Any:
    if isinstance(value, list):
        return [_noted(each, note) for each in value]
    if not isinstance(value, dict) or not has_gone(value):
        return value
    if (found := note(value)) is not None:
        return _noted(found, note)
    return {key: _noted(each, note) for key, each in value.items()}


class Saved(Struct, frozen=True):
    """A state, and which version of which framework saved it."""

    framework: str
    version: str
    state: bytes


class Files:
    """The files of a conversation's messages, which a state refers to."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._places: dict[bytes, bytes] = {}
        """The bytes of a file as they are in a state, by the bytes that replace them."""
        self.add(messages)

    def add(self, messages: Iterable[Message]) -> None:
        """Know the files of these messages, too."""
        for message in messages:
            for part in message.parts:
                if part.raw is not None and len(part.raw) >= SMALL:
                    self._places.update(_places(part.raw))

    def pack(self, state: bytes) -> bytes:
        """The state as it is kept."""
        if len(state) > SMALL:
            for reference, content in self._places.items():
                state = state.replace(content, reference)
        return zlib.compress(state, 1) if state else b""

    def unpack(self, data: bytes) -> bytes:
        """The state that was packed. A file that is not known becomes other bytes of its length,
        see `is_gone`."""
        state = zlib.decompress(data) if data else b""
        if _MARK in state:
            for reference, content in self._places.items():
                state = state.replace(reference, content)
        return state

    def missing(self, data: bytes) -> bool:
        """Whether a packed state refers to a file that is not known."""
        return _MARK in self.unpack(data)

    def fitting(
        self, items: Sequence[T], encode: Callable[[list[T]], bytes], starts: Callable[[T], bool]
    ) -> bytes:
        """The latest of these items that are at most LIMIT bytes together when they are packed,
        encoded. The first one of them `starts` a turn of the conversation."""
        left = list(items)
        while left and (size := len(self.pack(encode(left)))) > LIMIT:
            drop = max(1, len(left) * (size - LIMIT) // size)
            while drop < len(left) and not starts(left[drop]):
                drop += 1
            left = left[drop:]
        return encode(left)


def _places(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The forms in which a state may contain a file: for each, the bytes that replace it, and its
    own bytes, as many. Those that replace it are letters and digits, so they are valid base64."""
    name = _MARK + hashlib.sha256(raw).hexdigest().encode()
    forms = (raw, base64.b64encode(raw), base64.urlsafe_b64encode(raw))
    for kind, content in zip((b"r", b"b", b"u"), forms, strict=True):
        yield (name + kind).ljust(len(content), b"0"), content


def change(old: bytes, new: bytes) -> bytes:
    """What makes one packed state of another, so that a log has what is new, and not all of it."""
    parts = list(_parts(_plain(old), _plain(new)))
    return zlib.compress(msgspec.msgpack.encode(parts), 1) if new else b""


def changed(old: bytes, change: bytes) -> bytes:
    """The packed state that a `change` makes of another."""
    if not change:
        return b""
    found = change if change[:1] == b"{" else zlib.decompress(change)
    if found[:1] == b"{":  # an older version logged all of the state: JSON, packed or not
        return zlib.compress(found, 1)
    before = _plain(old)
    parts = msgspec.msgpack.decode(found, type=list[bytes | tuple[int, int]])
    pieces = (p if isinstance(p, bytes) else before[p[0] : p[0] + p[1]] for p in parts)
    return zlib.compress(b"".join(pieces), 1)


def merged_packed(base: bytes, ours: bytes, theirs: bytes) -> bytes:
    """See `merged`, of packed states. If the merged state is too large, ours stays."""
    found = zlib.compress(merged(_plain(base), _plain(ours), _plain(theirs)), 1)
    return found if len(found) <= LIMIT else ours


def _plain(packed: bytes) -> bytes:
    return zlib.decompress(packed) if packed else b""


def _parts(old: bytes, new: bytes) -> Iterator[bytes | tuple[int, int]]:
    """The new bytes as pieces of the old ones (where, and how many), and what is between them."""
    blocks = {old[n : n + BLOCK]: n for n in range(0, len(old) - BLOCK + 1, BLOCK)}
    start = here = 0
    while blocks and here + BLOCK <= len(new):
        where = blocks.get(new[here : here + BLOCK])
        if where is None:
            here += 1
            continue
        while here > start and where and new[here - 1] == old[where - 1]:
            here, where = here - 1, where - 1
        if here > start:
            yield new[start:here]
        size = _common(old[where:], new[here:])
        yield where, size
        start = here = here + size
    if start < len(new):
        yield new[start:]


def _common(one: bytes, other: bytes) -> int:
    """How many bytes are the same at the beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def version(package: str) -> str:
    """The installed version of a distribution."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "?"
