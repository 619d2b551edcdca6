"""Files that an agent names by a URL."""

from __future__ import annotations

import pytest

from dragoman import Part
from dragoman.client import Unreachable, fetch
from tests.harness.raw_server import listening

BODY = b"x" * 3_000_000


async def test_a_file_comes_in_pieces() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    async with listening(head + BODY) as server:
        part = Part(url=f"http://127.0.0.1:{server.port}/cat.png")
        sizes = [len(piece) async for piece in fetch(part, allow=["127.0.0.1"])]
    assert sum(sizes) == len(BODY)
    assert max(sizes) < len(BODY) / 2
    _, headers, _ = server.requests[0]
    assert not {"authorization", "cookie", "a2a-version"} & set(headers)


async def test_only_where_it_may() -> None:
    async with listening() as server:
        for url in (f"http://127.0.0.1:{server.port}/", "file:///etc/passwd", "http://a.example/"):
            with pytest.raises(PermissionError, match=url):
                _ = [piece async for piece in fetch(Part(url=url))]
        await server.unseen()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
async def test_what_is_not_there(answer: bytes) -> None:
    async with listening(answer) as server:
        with pytest.raises(Unreachable):
            part = Part(url=f"http://127.0.0.1:{server.port}/")
            _ = [piece async for piece in fetch(part, allow=["127.0.0.1"])]


async def test_what_is_here_already() -> None:
    assert [piece async for piece in fetch(Part(raw=b"abc"))] == [b"abc"]
    with pytest.raises(ValueError, match="not a file"):
        _ = [piece async for piece in fetch(Part(text="abc"))]
