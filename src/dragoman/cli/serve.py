"""`dragoman serve`: imports agents by name, and serves them with uvicorn."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from dragoman import stores
from dragoman.agent.agent import Agent, AgentError
from dragoman.cli import Options, UsageError, browser_pages
from dragoman.cli.import_failure import failure
from dragoman.server.app import App
from dragoman.server.settings import Settings, SettingsError
from dragoman.server.wiring import check_serve_only
from dragoman.telemetry.logs import configure, logger

if TYPE_CHECKING:
    from dragoman.cli.mcp_servers import MCPServers
    from dragoman.cli.registry_announcement import Announced

CHILD = "DRAGOMAN__SERVE"
OBJECTS = ("store", "bell", "auth")
"""The settings for which code may pass an object instead of a text."""
_importing = ""
"""The `module:attribute` that is being imported; empty otherwise."""

GARBAGE = 10_000
"""The number of new objects that starts the cyclic garbage collector. Requests create many objects,
but hardly any cycles."""

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Numbers of these options in glibc's malloc.h."""
SWITCH = 0.0005
"""Seconds after which a busy event loop lets another thread run, such as the one that writes to
SQLite. A write waits several times, and with Python's default of 5 ms these waits are most of the
response time."""


def run(
    names: Sequence[str],
    options: Options,
    *,
    reload: bool,
    announced: Announced | None = None,
    mcp: MCPServers | None = None,
    patience: float | None = None,
) -> int:
    """Serve until interrupted. With `patience`, the agents are an MCP server, too."""
    uvicorn = _uvicorn()
    hang_up()
    app = build(names, options, mcp, patience)
    if not reload:
        return _host(uvicorn, app, announced)
    listener = _listen(app.settings)
    with suppress(KeyboardInterrupt):
        _reload(uvicorn, names, options, app.settings, listener, mcp, patience)
    return 0


def serve_app(app: App, options: Options, announced: Announced | None = None) -> int:
    """Serve an application with the settings in force until interrupted."""
    uvicorn = _uvicorn()
    hang_up()
    settings = options.in_force()
    configure(settings.log_level, settings.log_format)
    return _host(uvicorn, compose([app], options, settings), announced)


def start(served: Sequence[Agent | App], given: Mapping[str, Any]) -> None:
    """See `dragoman.serve`."""
    for each in served:
        if not isinstance(each, Agent | App):
            raise TypeError(f"serve: expected agents or an App, got {type(each).__name__}")
    objects = {name: given[name] for name in OBJECTS if not _is_setting(given.get(name))}
    if objects and any(isinstance(each, App) for each in served):
        raise TypeError(f"serve: give {', '.join(objects)} to the App")
    if _importing or _running():
        where = f"while {_importing} is imported" if _importing else "in a running event loop"
        raise RuntimeError(
            f"serve: was called {where}; call it only if the file is the program: "
            'if __name__ == "__main__": …'
        )
    options = Options({name: given[name] for name in given if name not in objects}, {})
    try:
        uvicorn = _uvicorn()
        hang_up()
        settings = options.in_force()
        configure(settings.log_level, settings.log_format)
        status = _host(uvicorn, compose(served, options, settings, **objects))
    except (SettingsError, UsageError) as error:
        print(f"dragoman: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if status:
        raise SystemExit(status)


def _is_setting(value: Any) -> bool:
    """Whether a value can stand in a settings file; False for an object made in code."""
    return value is None or isinstance(value, str)


def _running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _uvicorn() -> Any:
    try:
        import uvicorn
    except ImportError:
        raise UsageError(
            "serve needs uvicorn, which is not installed; run `pip install 'dragoman[serve]'`"
        ) from None
    return uvicorn


def _listen(settings: Settings) -> socket.socket:
    from dragoman.cli import tls

    tls.context(settings)  # reports a wrong file before the server starts
    return bind(settings.host, settings.port)


def _host(uvicorn: Any, app: App, announced: Announced | None = None) -> int:
    """Serve the application until interrupted, and return the exit status."""
    from dragoman.cli.server import Server

    settings = app.settings
    listener = _listen(settings)
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again after a clean shutdown
        # objects that exist now stay, so the collector need not check them again
        gc.collect()
        gc.freeze()
        gc.set_threshold(GARBAGE)
        sys.setswitchinterval(SWITCH)
        _return_memory()
        server = Server(_config(uvicorn, app, settings))
        server.announced = announced
        server.run(sockets=[listener])
        if not server.started:
            return 1
    logger.info("stopped")
    return 0


def _return_memory() -> None:
    """Make glibc return freed blocks of a megabyte and more to the system at once. By default it
    keeps them after a while, so that a server never becomes smaller."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(MMAP_THRESHOLD, 1 << 20)
        libc.mallopt(TRIM_THRESHOLD, 32 << 20)  # otherwise small blocks are returned too often
    except (OSError, AttributeError):  # another C library
        return


def build(
    names: Sequence[str],
    options: Options,
    mcp: MCPServers | None = None,
    patience: float | None = None,
) -> App:
    """Import agents (`module:agent`) or one App (`module:app`), and return the application with the
    settings in force. With `patience`, it is an MCP server, too. Configures logging."""
    settings = options.in_force()
    configure(settings.log_level, settings.log_format)
    found: list[Agent | App] = [load(name) for name in names]
    found += mcp.agents() if mcp is not None else []
    if len(found) > 1 and any(isinstance(each, App) for each in found):
        raise UsageError(f"{' '.join(names)}: give agents, or one App, which has its agents")
    if patience is None:
        return compose(found, options, settings)
    from dragoman.mcp import mounts

    agents = [each for each in found if isinstance(each, Agent)]
    if len(agents) < len(found):
        raise UsageError(
            "--mcp: an App has its own mounts; write App(…, mounts=dragoman.mcp.mounts(…))"
        )
    return compose(found, options, settings, mounts=mounts(*agents, patience=patience))


def compose(
    found: Sequence[Agent | App], options: Options, settings: Settings, **objects: Any
) -> App:
    """Return the given App, or an application of the given agents, with the settings in force.
    `objects` are a store, a bell, security schemes or mounts made in code."""
    apps = [each for each in found if isinstance(each, App)]
    if apps and len(found) > 1:
        raise UsageError("serve: give agents, or one App, which has its agents")
    agents = [each for each in found if isinstance(each, Agent)]
    if apps:
        agents = list(apps[0].agents.values())
        settings = options.in_force(apps[0].arguments)
        configure(settings.log_level, settings.log_format)
    if settings.store == stores.LOCAL:
        url = stores.local_url(agent.key for agent in agents) if agents else "memory:"
        settings = replace(settings, store=url)
    if settings.port and settings.grpc_port == settings.port:
        raise UsageError(
            f"grpc_port: HTTP already uses port {settings.port}; choose another port for gRPC"
        )
    try:
        app = apps[0] if apps else App(*agents, settings=settings, **objects)
        if apps:
            app.reconfigure(settings)
    except (AgentError, ValueError) as error:
        raise UsageError(str(error)) from None
    check_serve_only(app.settings, app.store)
    browser_pages.check(app)
    return app


@contextmanager
def _import_of(name: str) -> Iterator[None]:
    """Mark an import, during which `start` fails, because the module would serve before its import
    is complete."""
    global _importing
    _importing = name
    try:
        yield
    finally:
        _importing = ""


def load(name: str) -> Agent | App:
    """Import the Agent or App that `module:attribute` names. Raises UsageError."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise UsageError(f"{name}: expected module:agent, such as booking:agent")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with _import_of(name):
            found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            hint = "; omit the .py" if module.endswith(".py") else ""
            raise UsageError(f"{name}: there is no module {error.name!r} here{hint}") from None
        if "pip install" in str(error):  # the text says what to do
            raise
        if module.endswith(".py"):
            right = f"{module.removesuffix('.py')}:{attribute}"
            raise UsageError(f"{name}: omit the .py: {right}") from None
        raise UsageError(failure(name, error)) from None
    except Exception as error:  # noqa: BLE001 - a module may raise anything
        raise UsageError(failure(name, error)) from None
    owner = found
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [key for key, value in vars(found).items() if isinstance(value, Agent | App)]
            hint = f"; it contains: {', '.join(known)}" if known else ""
            raise UsageError(f"{name}: {module!r} has no {part!r}{hint}")
        found = getattr(found, part)
    return found if isinstance(found, Agent | App) else _adopted(found, name, owner)


def _adopted(found: Any, name: str, module: Any) -> Agent:
    """Make an agent of another framework's object. Raises UsageError."""
    from dragoman.bridges import adopt, frameworks

    try:
        agent = adopt(found, name.rpartition(":")[2], module)
    except ImportError as error:
        raise UsageError(failure(name, error)) from None
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None
    if agent is None:
        kind = found.__name__ if isinstance(found, type) else type(found).__name__
        raise UsageError(
            f"{name}: expected an Agent, an App, an executor of a2a-sdk, or an agent of "
            f"{frameworks()}; got {kind}"
        )
    return agent


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to this address. Raises UsageError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off Nagle's algorithm only if the socket names the protocol
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise UsageError(f"cannot listen on {host}:{port}: {error}") from None
    return listener


def _config(uvicorn: Any, app: Any, settings: Settings, **more: Any) -> Any:
    return uvicorn.Config(
        app,
        ws="none",  # no agent uses WebSockets, and the limits would not cover them
        h11_max_incomplete_event_size=settings.max_head,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,  # dragoman's own log has the operation, the caller and the task
        server_header=False,
        proxy_headers=False,  # dragoman's own setting names the trusted proxies
        backlog=2048,
        timeout_graceful_shutdown=int(settings.drain_timeout) + 5,
        **more,
    )


def _reload(
    uvicorn: Any,
    names: Sequence[str],
    options: Options,
    settings: Settings,
    listener: socket.socket,
    mcp: MCPServers | None,
    patience: float | None,
) -> None:
    """Let uvicorn start a child process after each change, which calls `child`."""
    from uvicorn.supervisors import ChangeReload

    from dragoman.cli.server import Server

    os.environ[CHILD] = msgspec.json.encode((names, options, mcp, patience)).decode()
    config = _config(
        uvicorn,
        "dragoman.cli.serve:child",
        settings,
        factory=True,
        reload=True,
        reload_dirs=[str(Path.cwd())],
    )
    ChangeReload(config, target=Server(config).run, sockets=[listener]).run()


def child() -> App:
    """Return the application in a process that `--reload` started."""
    from dragoman.cli.mcp_servers import MCPServers

    kind = tuple[list[str], Options, MCPServers | None, float | None]
    names, options, mcp, patience = msgspec.json.decode(os.environ[CHILD], type=kind)
    try:
        return build(names, options, mcp, patience)
    except (SettingsError, UsageError) as error:  # the next change may fix it
        print(f"dragoman: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def hang_up(then: Callable[[], None] | None = None) -> None:
    """Handle SIGHUP, which a closed terminal sends, too: call `then` on the running loop, or ignore
    the signal."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGHUP"):
        return
    if then is None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    else:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, then)


def leave(how: str) -> None:
    """End the process at once, without waiting for anything that is still running."""
    logger.warning("stopped %s", how)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
