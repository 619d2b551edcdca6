"""The `dragoman` command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dragoman import stores
from dragoman._version import __version__
from dragoman.server import load_settings, settings
from dragoman.stores.url_options import OPTIONS, split

DEFAULTS = {"store": stores.LOCAL}
"""The defaults that differ from those of `App`: tasks are stored in a file named after the
agents."""
MORE = "Use --set NAME=VALUE for every other setting; `dragoman config` lists them all."
FILE_STORE = "a SQLite file named after the agents"
SHARED_STORE = "none: a worker needs a store that it shares with the server"
VALUES = {
    "host": "HOST",
    "port": "PORT",
    "grpc_port": "PORT",
    "url": "URL",
    "store": "URL",
    "bell": "URL",
    "cert": "FILE",
    "key": "FILE",
    "ca": "FILE",
}
"""The placeholders of option values in the help."""
WORK = ("store", "bell", "log_level", "log_format", "push")
"""The settings that `worker` has options for; it does not listen."""
SERVE = (
    *("host", "port", "grpc_port", "url", "cert", "key", "ca", "store", "bell"),
    *("log_level", "log_format", "push", "serve_only", "access_log"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit status."""
    parser = _parser()
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--complete"]:
        from dragoman.cli import completion

        return completion.answer(parser, words[1:])
    arguments = parser.parse_args(words)
    try:
        status: int = arguments.run(arguments)
        return status
    except (settings.SettingsError, UsageError) as error:
        for line in str(error).splitlines():
            print(f"dragoman: {line}", file=sys.stderr)
        return 2
    except ImportError as error:
        if "pip install" not in str(error):  # a missing extra names the command that installs it
            raise
        print(f"dragoman: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output has closed the pipe
        sys.stdout = None
        return 0


class UsageError(Exception):
    """A wrong use of the command. The text says what is wrong."""


def examples(*lines: str, more: str = "") -> dict[str, Any]:
    """Return arguments for a parser whose help ends with `more` and these examples."""
    shown = "\n".join(f"  dragoman {line}" for line in lines)
    return {
        "epilog": (f"{more}\n\n" if more else "") + f"Examples:\n{shown}",
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }


class Parser(argparse.ArgumentParser):
    """A parser with subcommands in `inner` that also accepts a plain argument in their place."""

    inner: dict[str, argparse.ArgumentParser]
    skills: Callable[[Sequence[str]], dict[str, argparse.ArgumentParser]]
    """Returns the parsers of the arguments after each skill, given the words before it. It asks the
    agent."""
    intermixed = False
    """Options may stand between its arguments."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See `argparse`. If the first word names a subcommand, its parser parses the rest."""
        inner = getattr(self, "inner", {})
        if args and args[0] in inner:
            return inner[args[0]].parse_known_args(args[1:], namespace)
        if self.intermixed and "--" not in args:
            self.intermixed = False  # it calls this method
            try:
                return self.parse_known_intermixed_args(args, namespace)
            finally:
                self.intermixed = True
        return super().parse_known_args(args, namespace)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="dragoman",
        description="Run, call and inspect A2A agents.",
        **examples(
            "serve booking:agent",
            "send http://localhost:8000 Book a flight to Rome",
            "chat http://localhost:8000",
            more="`dragoman COMMAND --help` shows the options of a command.",
        ),
    )
    parser.add_argument("--version", action="version", version=f"dragoman {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    from dragoman.cli import (
        agent_commands,
        completion,
        console_command,
        db_parser,
        mcp_commands,
        mcp_servers,
        payments_commands,
        registry_parser,
        skill_call,
        wallet_command,
        webhook_commands,
    )

    serve = commands.add_parser(
        "serve",
        help="serve agents over A2A",
        description="Serve one agent at /, several agents at /<key>, or an App.",
        **examples(
            "serve booking:agent",
            "serve booking:agent weather:agent --host 0.0.0.0 --cert server.pem --set rate=20",
            "serve --mcp-server 'uvx mcp-server-time'",
            more=MORE,
        ),
    )
    serve.add_argument(
        "agents",
        nargs="*",
        metavar="module:agent",
        help="what to import, such as booking:agent: an Agent, an App, an executor of a2a-sdk, or "
        "an agent of another framework; several agents are allowed, but only one App",
    )
    serve.add_argument(
        "--announce",
        action="append",
        default=[],
        metavar="URL",
        help="announce the agents to this registry after the start; they wait for approval there; "
        "can be repeated (default: none)",
    )
    serve.add_argument(
        "--announce-token",
        default="",
        metavar="TOKEN",
        help="the bearer token for --announce; @FILE reads it from a file (default: none)",
    )
    mcp_commands.add_to_serve(serve)
    serve.add_argument(
        "--console",
        action="store_const",
        const="on",
        help="offer the console at /console/ to callers with the scope operator; needs auth "
        "(default: only on a terminal of this machine)",
    )
    serve.add_argument(
        "--reload", action="store_true", help="restart when a Python file changes; for development"
    )
    serve.add_argument(
        "--workers", nargs="?", const="", help=argparse.SUPPRESS
    )  # known from uvicorn
    mcp_servers.add(serve)
    _add_settings(serve)
    serve.set_defaults(run=_serve)

    worker = commands.add_parser(
        "worker",
        help="run turns for agents that another process serves",
        description="Run turns for agents whose tasks are in a shared PostgreSQL database.",
        **examples(
            "worker booking:agent --store postgresql://db/tasks",
            "worker booking:agent --store postgresql://db/tasks --concurrency 50",
            more=MORE,
        ),
    )
    worker.add_argument(
        "agents",
        nargs="+",
        metavar="module:agent",
        help="what to import, such as booking:agent: an Agent, an App, an executor of a2a-sdk, or "
        "an agent of another framework; several agents are allowed, but only one App",
    )
    worker.add_argument(
        "--concurrency",
        type=int,
        metavar="N",
        help="the maximum number of turns that run at once (default: the setting max_running)",
    )
    worker.add_argument("--workers", nargs="?", const="", help=argparse.SUPPRESS)
    _add_settings(worker, WORK, SHARED_STORE)
    worker.set_defaults(run=_worker)

    config = commands.add_parser(
        "config",
        help="print all settings, with the source of each value",
        description="Print all settings as a TOML file, each with its value, source and meaning.",
        **examples(
            "config",
            "config --config production.toml --json",
            more="The source is default, a file, a variable or the command line. All wrong\n"
            "settings are reported at once. Secrets are masked.",
        ),
    )
    config.add_argument("--json", action="store_true", help="print JSON: value and source of each")
    _add_settings(config)
    config.set_defaults(run=_config)

    demo = commands.add_parser(
        "demo",
        help="run a demonstration with four agents",
        description="Start agents on this machine, plan a trip with them, kill one, and pay one.",
        **examples("demo", "demo --once"),
    )
    demo.add_argument("--once", action="store_true", help="stop after one round")
    demo.set_defaults(run=_demo)

    for part in (
        *(agent_commands, skill_call, wallet_command, webhook_commands, mcp_commands),
        *(registry_parser, db_parser),
        console_command,
        payments_commands,
        completion,
    ):
        part.add(commands)
    return parser


def _add_settings(
    parser: argparse.ArgumentParser, names: Sequence[str] = SERVE, store: str = FILE_STORE
) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="read settings from this TOML file (default: dragoman.toml, if it exists)",
    )
    for name in names:
        choices = settings.choices(name)
        flag = choices == settings.BOOLEAN
        more: dict[str, Any] = {"action": "store_true", "default": None} if flag else {}
        if not flag:
            # argparse would reject a wrong value before the other settings are checked
            more["metavar"] = f"{{{','.join(choices)}}}" if choices else VALUES[name]
            more |= {"type": int} if name.endswith("port") else {}
        parser.add_argument(
            f"--{name.replace('_', '-')}", help=_described(name, flag, store), **more
        )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set any setting; can be repeated (default: the environment, then the file)",
    )


def _described(name: str, flag: bool, store: str) -> str:
    """Return the help of a setting: its description, and its default unless it is a flag."""
    text = settings.DESCRIPTIONS[name]
    if flag:
        return text
    default = store if name == "store" else settings.default_text(name).strip('"')
    return f"{text} (default: {default})"


class Options(Struct, frozen=True):
    """The settings on a command line."""

    given: dict[str, Any]
    texts: dict[str, str]
    """The values of `--set`, not converted to their types yet."""
    file: str | None = None

    def in_force(self, own: Mapping[str, Any] | None = None) -> settings.Settings:
        """Return all settings in force. `own` are the arguments of an `App`: they override the
        environment and the file, and the command line overrides them."""
        return self.resolve(own)[0]

    def resolve(
        self, own: Mapping[str, Any] | None = None
    ) -> tuple[settings.Settings, dict[str, str]]:
        """Return all settings in force, and the source of each."""
        from dragoman.server.wiring import CHECKS

        named = {name: value for name, value in self.given.items() if value is not None}
        return load_settings.resolve(
            {**(own or {}), **named},
            origin="command line",
            defaults=DEFAULTS,
            texts=self.texts,
            file=self.file,
            checks=CHECKS,
            warn=warn if own is None else lambda text: None,  # already warned
        )


def _options(arguments: argparse.Namespace, **more: Any) -> Options:
    given: dict[str, Any] = {name: getattr(arguments, name, None) for name in (*SERVE, "console")}
    texts = {}
    for item in arguments.set:
        name, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"--set {item}: expected NAME=VALUE")
        texts[name.replace("-", "_")] = value
    return Options(given | more, texts, arguments.config)


def warn(text: str) -> None:
    """Print a warning."""
    print(f"dragoman: warning: {text}", file=sys.stderr)


def _worker(arguments: argparse.Namespace) -> int:
    from dragoman.cli import worker

    if arguments.workers is not None:
        raise UsageError(
            "--workers: there is no such option; --concurrency says how many turns run at once, "
            "and more processes are more `dragoman worker` commands"
        )
    more: dict[str, Any] = {"serve_only": False}
    if arguments.concurrency is not None:
        if arguments.concurrency < 1:
            raise UsageError("--concurrency: must be greater than 0")
        more["max_running"] = arguments.concurrency
    return worker.run(arguments.agents, _options(arguments, **more))


def _config(arguments: argparse.Namespace) -> int:
    chosen, sources = _options(arguments).resolve()
    values = chosen.masked()
    if arguments.json:
        from dragoman.cli.terminal_format import json_text

        shown: dict[str, dict[str, Any]] = {
            name: {"value": value, "source": sources[name]} for name, value in values.items()
        }
        shown["store"]["options"] = split(chosen.store)[1]
        print(json_text(json.dumps(shown, indent=2)))
        return 0
    for name, value in values.items():
        line = (
            f"# {name} ="
            if value is None
            else f"{name} = {settings.literal(value, settings.DECLARED[name].unit)}"
        )
        unset = settings.DECLARED[name].unset
        meaning = settings.meaning(name) + (f" (default: {unset})" if unset else "")
        print(f"{line.ljust(40)}  # ({sources[name]}) {meaning}")
        if name == "store":
            _show_store_options(chosen.store)
    return 0


def _show_store_options(url: str) -> None:
    """Print the options that the store can have in its URL."""
    address, values = split(url)
    for name, option in OPTIONS.get(address.partition(":")[0], {}).items():
        line = f"#   ?{name}={option.text(values[name])}"
        default = f"(default: {option.text(option.default)})"
        print(f"{line.ljust(40)}  # {option.declared.help} {default}")


def _demo(arguments: argparse.Namespace) -> int:
    from dragoman.demo import show

    return show.run(once=arguments.once)


def _serve(arguments: argparse.Namespace) -> int:
    from dragoman.cli import mcp_commands, mcp_servers, serve

    mcp_commands.check_patience(arguments)
    mcp = mcp_servers.given(arguments)
    if not arguments.agents and not mcp.servers:
        raise UsageError("serve: say which agents, such as booking:agent, or give --mcp-server")
    if arguments.workers is not None:
        raise UsageError(f"--workers: there is no such option; {load_settings.INSTEAD['workers']}")
    announced = None
    if arguments.announce:
        from dragoman.cli.registry_announcement import Announcement

        if arguments.reload:
            raise UsageError("--announce: cannot be used with --reload")
        announced = Announcement.of(arguments.announce, arguments.announce_token)
    options = _options(arguments)
    return serve.run(
        arguments.agents,
        options,
        reload=arguments.reload,
        announced=announced,
        patience=arguments.patience if arguments.mcp else None,
        mcp=mcp,
    )
