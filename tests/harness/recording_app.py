"""An ASGI application that records the requests it receives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class RecordingApp:
    """Passes requests to an application, or answers with pages (status, body, location), and
    records the requests."""

    app: Any = None
    url: str = ""
    pages: dict[str, tuple[int, bytes, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """The paths of the requests."""
    seen: list[str] = field(default_factory=list)
    """The requests in full: paths, queries, headers and bodies."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        self.asked.append(scope["path"])
        self.seen.append(f"{scope['path']} {scope['query_string']!r} {scope['headers']}")
        if self.app is not None:

            async def recorded() -> Any:
                message = await receive()
                self.seen.append(repr(message.get("body")))
                return message

            return await self.app(scope, recorded, send)
        status, body, location = self.pages.get(scope["path"], (404, b"", ""))
        headers = [(b"content-type", b"application/json"), (b"location", location.encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        return None
