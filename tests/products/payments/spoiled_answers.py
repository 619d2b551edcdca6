"""Answers of a server that is broken or hostile: each takes the place of an honest one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

GIANT = 64 * 1024 * 1024
Spoil = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


class Spoiler:
    """What spoils the answers of some paths."""

    def __init__(self) -> None:
        self.ways: dict[str, str] = {}
        """A name of `WAYS` for each path that is spoiled, such as `settle`."""
        self.sent = 0
        """How many bytes of giant answers were sent."""
        self.elsewhere: list[bytes] = []
        """What was sent to where a redirect led."""
        self.released = asyncio.Event()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Answer as the way says; the honest answer is made before that."""
        if request.path == "/elsewhere":
            self.elsewhere.append(await request.read())
            return web.json_response({"isValid": True, "success": True, "transaction": "0x1"})
        honest: web.StreamResponse = await handler(request)
        way = self.ways.get(request.path.strip("/"))
        if way is None:
            return honest
        assert isinstance(honest, web.Response) and isinstance(honest.body, bytes)
        spoil: Spoil = getattr(self, way)
        return await spoil(request, json.loads(honest.body))

    async def words(self, request: web.Request, honest: dict[str, Any]) -> web.StreamResponse:
        """A page."""
        return web.Response(text="<html>All right</html>")

    async def nothing(self, request: web.Request, honest: dict[str, Any]) -> web.StreamResponse:
        """An empty answer."""
        return web.Response()

    async def binary(self, request: web.Request, honest: dict[str, Any]) -> web.StreamResponse:
        """No text."""
        return web.Response(body=b"\xff\xfe\x00{}")

    async def null(self, request: web.Request, honest: dict[str, Any]) -> web.StreamResponse:
        """JSON, and no object."""
        return web.json_response(None)

    async def listed(self, request: web.Request, honest: dict[str, Any]) -> web.StreamResponse:
        """The honest answer in a list."""
        return web.json_response([honest])

    async def deep(self, request: web.Request, honest: dict[str, Any]) -> web.StreamResponse:
        """Objects in objects."""
        return web.Response(body=b'{"success":' * 5000, content_type="application/json")

    async def words_for_flags(
        self, request: web.Request, honest: dict[str, Any]
    ) -> web.StreamResponse:
        """Other types than those of the protocol."""
        said = {"isValid": "true", "success": "true", "transaction": 5, "network": [1]}
        return web.json_response({**honest, **said})

    async def numbers_for_flags(
        self, request: web.Request, honest: dict[str, Any]
    ) -> web.StreamResponse:
        """Numbers that count as true in some languages."""
        return web.json_response({**honest, "isValid": 1, "success": 1})

    async def redirect(self, request: web.Request, honest: dict[str, Any]) -> web.StreamResponse:
        """Another place, with the body."""
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async def giant(self, request: web.Request, honest: dict[str, Any]) -> web.StreamResponse:
        """More than fits into memory, if it is read to the end."""
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        await answer.write(json.dumps(honest).encode()[:-1] + b',"more":"')
        while self.sent < GIANT:
            await answer.write(b"x" * 65536)
            self.sent += 65536
        await answer.write(b'"}')
        return answer

    async def drip(self, request: web.Request, honest: dict[str, Any]) -> web.StreamResponse:
        """A byte from time to time, without an end."""
        answer = web.StreamResponse()
        await answer.prepare(request)
        while not self.released.is_set():
            await answer.write(b" ")
            await asyncio.sleep(0.02)
        return answer

    async def hang(self, request: web.Request, honest: dict[str, Any]) -> web.StreamResponse:
        """No answer."""
        await self.released.wait()
        return web.Response()

    async def cut(self, request: web.Request, honest: dict[str, Any]) -> web.StreamResponse:
        """The connection ends in the middle."""
        assert request.transport is not None
        answer = web.StreamResponse(headers={"Content-Length": "1000"})
        await answer.prepare(request)
        await answer.write(json.dumps(honest).encode())
        request.transport.abort()
        return answer


WAYS = (
    *("words", "nothing", "binary", "null", "listed", "deep", "words_for_flags"),
    *("numbers_for_flags", "redirect", "giant", "drip", "hang", "cut"),
)
SLOW = ("drip", "hang")
