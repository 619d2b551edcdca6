"""Reading server-sent events: in any form, cut into any pieces, at the same cost a byte."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.client import TooLarge, sse
from dragoman.client.sse import BOM, Event
from tests.client.transports import Answer
from tests.harness.scale import examples


async def gathered(pieces: Iterable[bytes], most: int) -> list[tuple[bytes, str]]:
    """The events in these pieces."""
    found: list[Event] = [event async for event in sse.events(Answer(pieces), most)]
    return [(event.data, event.name) for event in found]


def read(*pieces: bytes, most: int = 64 << 20) -> list[tuple[bytes, str]]:
    """The same, for those who do not await."""
    return asyncio.run(gathered(pieces, most))


# ---- forms ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (b"data: a\n\n", [(b"a", "")]),
        (b"data:a\n\n", [(b"a", "")]),
        (b"data:  a \n\n", [(b" a ", "")]),
        (b"data: a\r\n\r\n", [(b"a", "")]),
        (b"data: a\ndata: b\n\n", [(b"a\nb", "")]),
        (b"data: a\r\ndata:\r\ndata: b\r\n\r\n", [(b"a\n\nb", "")]),
        (b"id: 7\nevent: error\ndata: a\n\n", [(b"a", "error")]),
        (b"data: a\nid:7\n\ndata: b\n\n", [(b"a", ""), (b"b", "")]),
        (b": hello\n\n:\n\ndata: a\n: between\nretry: 5\nfoo: bar\ndatum: x\n\n", [(b"a", "")]),
        (b"\n\n\n\ndata: a\n\n\n\n", [(b"a", "")]),
        (b"event: lonely\n\ndata: a\n\n", [(b"a", "")]),  # nothing happened by that name
        (b"data: a\n\ndata: cut off\n", [(b"a", "")]),
        (b"data: a\n\ndata: cut off", [(b"a", "")]),
        (b"data:\n\n", [(b"", "")]),
        (b"", []),
        (b": only a comment", []),
        (b"data: a\r\r", [(b"a", "")]),
        (b"event: error\rdata: a\rdata: b\r\rdata: c\r\r", [(b"a\nb", "error"), (b"c", "")]),
        (b"data: a\r\n\rdata: b\n\r\ndata: c\r\n\n", [(b"a", ""), (b"b", ""), (b"c", "")]),
        (b"data: a\r\ndata: b\r\n\r\n", [(b"a\nb", "")]),  # no line is empty between them
        (b"\xef\xbb\xbfdata: a\n\ndata: b\n\n", [(b"a", ""), (b"b", "")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),  # only the first is one
        (b"\xef\xbbdata: a\n\ndata: b\n\n", [(b"b", "")]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [(b"a", "")]),
        (b"\xef\xbb\xbf", []),
    ],
)
def test_forms(text: bytes, events: list[tuple[bytes, str]]) -> None:
    assert read(text) == events
    assert read(*(bytes([byte]) for byte in text)) == events


LINE = st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b""))
WORD = st.text("abcXYZ:019-_.~", min_size=1, max_size=12)
NOISE = st.lists(st.sampled_from([b": alive", b":", b"retry: 1000", b"unknown"]), max_size=2)


@settings(max_examples=examples(150), deadline=None)
@given(
    events=st.lists(
        st.tuples(st.lists(LINE, min_size=1, max_size=4), WORD, WORD, NOISE), max_size=5
    ),
    ending=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    mark=st.sampled_from([b"", BOM]),
    space=st.sampled_from([b"", b" "]),
    cuts=st.lists(st.integers(0, 600), max_size=12),
)
def test_cut_at_any_byte(
    events: list[tuple[list[bytes], str, str, list[bytes]]],
    ending: bytes,
    mark: bytes,
    space: bytes,
    cuts: list[int],
) -> None:
    text = mark
    for lines, id, name, noise in events:
        fields = [b"data: " + line for line in lines]
        fields = [b"id:" + space + id.encode(), *noise, *fields, b"event:" + space + name.encode()]
        text += b"".join(field + ending for field in fields) + ending
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    assert b"".join(pieces) == text
    assert read(*pieces) == [(b"\n".join(lines), name) for lines, _, name, _ in events]


# ---- cost ----------------------------------------------------------------------------------


def test_an_event_has_its_bounds() -> None:
    fits = b"data: " + b"x" * 9_000
    assert len(read(*[fits + b"\n\n"] * 10, most=10_000)) == 10
    for pieces in ([fits] * 2, [b"data: x\n"] * 2000, [b":\n"] * 6000):
        with pytest.raises(TooLarge, match="longer than 10000 bytes"):
            read(*pieces, most=10_000)


def test_comments_between_events_do_not_add_up() -> None:
    assert len(read(*[b": alive\n\n"] * 1000, b"data: a\n\n", most=1000)) == 1


def cost(pieces: list[bytes]) -> float:
    """The processor time that reading takes, at best."""
    found = []
    for _ in range(3):
        before = time.process_time()
        (event,) = read(*pieces)
        found.append(time.process_time() - before)
        assert len(event[0]) > 900_000
    return min(found)


def one_line(size: int) -> list[bytes]:
    """One event of one line, in pieces of a kilobyte."""
    return [b"data: ", *[b"x" * 1024] * (size // 1024), b"\n\n"]


def many_lines(size: int) -> list[bytes]:
    """One event of many lines."""
    return [*[b"data: " + b"x" * 1017 + b"\n"] * (size // 1024), b"\n"]


@pytest.mark.parametrize("form", [one_line, many_lines])
def test_a_long_event_costs_in_proportion(form: object) -> None:
    assert callable(form)
    small, large = cost(form(1 << 20)), cost(form(8 << 20))
    # eight times the bytes; sixty-four times the cost if each piece were added to the whole
    assert large < 30 * max(small, 0.001)
