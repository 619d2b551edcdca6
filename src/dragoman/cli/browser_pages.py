"""What `dragoman serve` shows to browsers: the console, and a page about the agents."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dragoman.security.client_network import loopback
from dragoman.server.settings import SettingsError

if TYPE_CHECKING:
    from dragoman.server.app import App


def offer(app: App, base: str) -> None:
    """Put the console and the page about the agents in front of an application that listens at
    this address, as its settings say."""
    if app.settings.agent_page and app.agents:
        app.answer_first(AgentPage())
    if not app.agents or app.settings.console == "off":
        return
    local = loopback(app.settings.host) and sys.stdout.isatty()
    open = app.settings.console == "on" and not app.unguarded
    if not local and not open:
        return
    from dragoman.console import Console

    def tell(token: str) -> None:
        print(f"console: {base}/console/?token={token}", flush=True)

    client_id = app.settings.console_client_id
    console = Console(open=open, client_id=client_id, tell=tell if local else None)
    app.answer_first(console, close=console.close)
    if console.token is not None:
        console.token.print()


def check(app: App) -> None:
    """Raise SettingsError if the setting `console` asks for what the server must not offer."""
    if app.settings.console == "on" and app.unguarded and app.agents:
        raise SettingsError(
            "console: needs auth, so that only operators see it; without auth the console is there "
            "on a terminal, for a server that listens on 127.0.0.1"
        )


class AgentPage:
    """The page about the agents, whose code is imported when somebody asks for it."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> bool:
        """Answer a browser's request for the path of an agent."""
        key = scope["path"].strip("/")
        app = scope["dragoman.app"]
        if scope["method"] not in ("GET", "HEAD") or (
            key and (len(app.agents) == 1 or key not in app.agents)
        ):
            return False
        scope["dragoman.headers"].append((b"vary", b"Accept"))
        if not any(b"text/html" in text for name, text in scope["headers"] if name == b"accept"):
            return False
        from dragoman.console.agent_page import serve

        return await serve(scope, receive, send)
