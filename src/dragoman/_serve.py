"""`dragoman.serve`: start the server of `dragoman serve` from code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from dragoman.server.app_options import AppOptions

if TYPE_CHECKING:
    from dragoman.agent.agent import Agent
    from dragoman.bells.bell import Bell
    from dragoman.server.app import App
    from dragoman.server.wiring import Given
    from dragoman.stores.store import Store


class ServeOptions(AppOptions, total=False):
    """Settings by name. A store, a bell and schemes of `auth` may also be given as objects."""

    store: Store | str
    bell: Bell | str
    auth: Given


def serve(*agents: Agent | App, **options: Unpack[ServeOptions]) -> None:
    """Serve agents, or one `App`, until Ctrl-C or SIGTERM, with the server of `dragoman serve` and
    its defaults: the tasks are stored in a SQLite file that is named after the agents.

    These options override those of the `App`, the `DRAGOMAN_*` variables and `dragoman.toml`. If
    the server cannot start, it prints the reason and raises SystemExit.
    """
    from dragoman.cli import serve  # imports the server, which nothing else needs

    serve.start(agents, options)
