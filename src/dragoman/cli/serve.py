"""`dragoman serve`: agents by name, under uvicorn."""

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
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman import stores
from dragoman.agent.agent import Agent, AgentError
from dragoman.cli import Options, UsageError
from dragoman.cli.import_failure import failure
from dragoman.server.app import App
from dragoman.server.settings import Settings, SettingsError
from dragoman.server.wiring import check_serve_only
from dragoman.telemetry.logs import configure, logger

CHILD = "DRAGOMAN__SERVE"
OBJECTS = ("store", "bell", "auth")
"""What may be given in code as an object where others give a setting."""
_importing = ""
"""The `module:attribute` that is being imported."""

GARBAGE = 10_000
"""How many objects there must be more before the collector looks for those that hold each other:
requests make many, and leave nearly none."""

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""The numbers of these options in glibc's malloc.h."""
SWITCH = 0.0005
"""How many seconds a busy event loop keeps a thread waiting, such as the one that writes to SQLite;
Python's own five milliseconds, several times for each write, add up to most of an answer's time."""


def run(names: Sequence[str], options: Options, *, reload: bool) -> int:
    """Serve until interrupted."""
    uvicorn = _uvicorn()
    hang_up()
    app = build(names, options)
    if not reload:
        return _host(uvicorn, app)
    listener = _listen(app.settings)
    with suppress(KeyboardInterrupt):
        _reload(uvicorn, names, options, app.settings, listener)
    return 0


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
    """Whether it can stand in a file of settings, and is no object that was made in code."""
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

    tls.context(settings)  # now, so that a wrong file is told in a line
    return bind(settings.host, settings.port)


def _host(uvicorn: Any, app: App) -> int:
    """Serve the application until interrupted; the exit status."""
    from dragoman.cli.server import Server

    settings = app.settings
    listener = _listen(settings)
    with suppress(KeyboardInterrupt):  # uvicorn passes the signal on after it has ended in order
        # what is loaded now stays: the collector need not look at it again
        gc.collect()
        gc.freeze()
        gc.set_threshold(GARBAGE)
        sys.setswitchinterval(SWITCH)
        _return_memory()
        server = Server(_config(uvicorn, app, settings))
        server.run(sockets=[listener])
        if not server.started:
            return 1
    logger.info("stopped")
    return 0


def _return_memory() -> None:
    """Have blocks of a megabyte and more given back to the system as soon as they are free. glibc
    keeps them by default once some have been freed, and a server would stay as large as it ever
    was."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(MMAP_THRESHOLD, 1 << 20)
        libc.mallopt(TRIM_THRESHOLD, 32 << 20)  # or small ones are given back again and again
    except (OSError, AttributeError):  # another C library
        return


def build(names: Sequence[str], options: Options) -> App:
    """The application of agents given as `module:agent`, or the one that is given as `module:app`,
    with the settings in force; logging is set up as they say."""
    settings = options.in_force()
    configure(settings.log_level, settings.log_format)
    found = [load(name) for name in names]
    if len(found) > 1 and any(isinstance(each, App) for each in found):
        raise UsageError(f"{' '.join(names)}: give agents, or one App, which has its agents")
    return compose(found, options, settings)


def compose(
    found: Sequence[Agent | App], options: Options, settings: Settings, **objects: Any
) -> App:
    """The application of agents, or the one that is given, with the settings in force. `objects`
    are a store, a bell or schemes that were made in code."""
    apps = [each for each in found if isinstance(each, App)]
    if apps and len(found) > 1:
        raise UsageError("serve: give agents, or one App, which has its agents")
    agents = [each for each in found if isinstance(each, Agent)]
    if apps:
        agents = list(apps[0].agents.values())
        settings = options.in_force(apps[0].arguments)
        configure(settings.log_level, settings.log_format)
    if settings.store == stores.LOCAL:
        url = stores.local_url(agent.key for agent in agents)
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
    return app


@contextmanager
def _import_of(name: str) -> Iterator[None]:
    """A block in which `start` is refused: the module would serve before it is imported."""
    global _importing
    _importing = name
    try:
        yield
    finally:
        _importing = ""


def load(name: str) -> Agent | App:
    """The agent, or the application, that `module:attribute` names."""
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
        if "pip install" in str(error):  # it says what to do
            raise
        if module.endswith(".py"):
            right = f"{module.removesuffix('.py')}:{attribute}"
            raise UsageError(f"{name}: omit the .py: {right}") from None
        raise UsageError(failure(name, error)) from None
    except Exception as error:  # noqa: BLE001 - a module may raise anything
        raise UsageError(failure(name, error)) from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [key for key, value in vars(found).items() if isinstance(value, Agent | App)]
            hint = f"; it contains: {', '.join(known)}" if known else ""
            raise UsageError(f"{name}: {module!r} has no {part!r}{hint}")
        found = getattr(found, part)
    if not isinstance(found, Agent | App):
        kind = type(found).__name__
        raise UsageError(f"{name}: expected an Agent or an App, got {kind}")
    return found


def bind(host: str, port: int) -> socket.socket:
    """A socket at this address; UsageError if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only where the protocol is named
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
        ws="none",  # agents speak none, and such a connection would leave our sight
        h11_max_incomplete_event_size=settings.max_head,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,  # ours knows the operation, the caller and the task
        server_header=False,
        proxy_headers=False,  # whom to believe is a setting of ours
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
) -> None:
    """Let uvicorn start a child per change; it builds the application by `child`."""
    from uvicorn.supervisors import ChangeReload

    from dragoman.cli.server import Server

    os.environ[CHILD] = msgspec.json.encode((names, options)).decode()
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
    """The application in a process that a reload started."""
    names, options = msgspec.json.decode(os.environ[CHILD], type=tuple[list[str], Options])
    try:
        return build(names, options)
    except (SettingsError, UsageError) as error:  # the next change may mend it
        print(f"dragoman: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def hang_up(then: Callable[[], None] | None = None) -> None:
    """From now on SIGHUP, which a closed terminal sends as well, does not end the process; it does
    this, on the running loop."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGHUP"):
        return
    if then is None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    else:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, then)


def leave(how: str) -> None:
    """End the process without those who would never let it go."""
    logger.warning("stopped %s", how)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
