"""`dragoman call`: calls a skill, with options made from its schema."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli import Parser, UsageError, connect_options, examples, payment_options
from dragoman.cli.agent_commands import WAITING, _interruptible
from dragoman.cli.terminal_format import plain
from dragoman.model.errors import A2AError, InvalidParams
from dragoman.model.json_schema import alternatives, kind_of, resolved

if TYPE_CHECKING:
    from dragoman.client import CallOptions, Client, RemoteSkill

WHAT = "call a skill with typed arguments and show the result"
MORE = """\
The options of a skill come from its schema on the agent's card; `dragoman call URL SKILL --help`
lists them. Options of the connection stand before the skill."""
EXAMPLES = (
    "call http://localhost:8000 book_hotel --help",
    "call http://localhost:8000 book_hotel --city Rome --nights 2",
    "call --bearer @token.txt https://agent.example develop --photo face.png -o files",
)
COMPLETION_TIMEOUT = 3.0
"""Seconds in which a completion must fetch the card."""


def add(commands: Any) -> None:
    """Add the command."""
    parser: Parser = commands.add_parser(
        "call",
        help=WHAT,
        description=f"{WHAT[0].upper()}{WHAT[1:]}.",
        allow_abbrev=False,  # `--a` may be an option of the skill
        **examples(*EXAMPLES, more=MORE),
    )
    connect_options.add(parser)
    payment_options.add(parser)
    _add_output(parser)
    parser.add_argument("skill", metavar="SKILL", help="the id of the skill")
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="the options of the skill, such as --city Rome",
    )
    parser.set_defaults(run=_run)
    parser.skills = partial(_offered, parser)


def _add_output(parser: argparse.ArgumentParser, taken: Sequence[str] = ()) -> None:
    """Add the options that may appear before or after the skill, except those that the skill
    itself has."""
    for names, more in (
        (("--json",), {"action": "store_true", "help": "print JSON"}),
        (
            ("-o", "--output"),
            {
                "metavar": "FOLDER",
                "help": "save received files in this folder (default: files are not saved)",
            },
        ),
        (
            ("--task",),
            {"metavar": "TASK", "help": "continue the task with this id (default: a new task)"},
        ),
        (
            ("--context",),
            {
                "metavar": "CONTEXT",
                "help": "use the conversation (context) with this id (default: a new one)",
            },
        ),
    ):
        if names[-1] not in taken:
            default = argparse.SUPPRESS if taken else False if names == ("--json",) else ""
            parser.add_argument(*names, default=default, **more)  # type: ignore[arg-type]


def _run(arguments: argparse.Namespace) -> int:
    return connect_options.run(arguments, call)


async def call(agent: Client, arguments: argparse.Namespace) -> int:
    """Call the skill."""
    from dragoman.cli.terminal_output import Screen
    from dragoman.client import Result

    skill = agent.skills.get(arguments.skill)
    if skill is None:
        names = ", ".join(map(plain, agent.skills)) or "none"
        raise UsageError(f"the agent has no skill {arguments.skill!r}; its skills are: {names}")
    parser = skill_parser(skill, arguments.url)
    given = vars(parser.parse_args(arguments.words))
    values: dict[str, Any] = given["values"]
    for name in ("json", "output", "task", "context"):
        if name in given:
            setattr(arguments, name, given[name])
    try:
        skill.check(values, partial=bool(arguments.task))
    except InvalidParams as error:
        raise UsageError(str(error)) from None
    options: CallOptions = {"task": arguments.task, "context": arguments.context}
    screen = Screen(as_json=arguments.json, folder=arguments.output)
    with _interruptible(agent, screen, arguments), connect_options.waiting(WAITING):
        result = await agent.call_skill(skill.id, values, returns=Result, options=options)
    return screen.result(result)


def _offered(parser: Parser, words: Sequence[str]) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the agent's skills, for completion; none if the agent is not
    reachable."""
    from dragoman.client import CredentialsNotSent, Unreachable, Unverified

    silent = (A2AError, CredentialsNotSent, OSError, SystemExit, Unreachable, Unverified)
    with suppress(*silent, TimeoutError, UsageError, ValueError), redirect_stderr(StringIO()):
        arguments = parser.parse_args([*words, "x"])
        arguments.timeout = COMPLETION_TIMEOUT
        return asyncio.run(_parsers(arguments))
    return {}


async def _parsers(arguments: argparse.Namespace) -> dict[str, argparse.ArgumentParser]:
    async with connect_options.client(arguments) as agent:
        return {
            skill.id: skill_parser(skill, arguments.url)
            for skill in agent.skills.values()
            if skill.id.isprintable()
        }


# ---- the options of a skill ------------------------------------------------------------------


def skill_parser(skill: RemoteSkill, url: str) -> argparse.ArgumentParser:
    """Create the parser of a skill's options."""
    parser = argparse.ArgumentParser(
        prog=f"dragoman call {plain(url)} {plain(skill.id)}",
        description=_shown(skill.description),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(values={})
    group = parser.add_argument_group("parameters of the skill")
    schema = skill.input or {}
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) and not skill.ask else set()
    taken = ["--help"]
    for name, item in properties.items():
        if (option := _option(name, taken)) and isinstance(item, Mapping):
            taken.append(option)
            about = _about(item, schema, skill.ask and name in (required or ()))
            _add_field(group, option, name, item, schema, name in needed, about)
    for name, file in skill.files.items():
        if option := _option(name, taken):
            taken.append(option)
            group.add_argument(
                option,
                action=Store,
                field=name,
                reader=_file,
                metavar="FILE",
                required=file.required and not skill.ask,
                help=_shown(file.description or "a file"),
            )
    if "--data" not in taken and (skill.input is None or not properties or not _closed(schema)):
        group.add_argument(
            "--data",
            action=Merge,
            metavar="JSON",
            help="a JSON object with arguments, for those that have no option",
        )
        taken.append("--data")
    _add_output(parser, taken)
    return parser


def _closed(schema: Mapping[str, Any]) -> bool:
    return schema.get("additionalProperties") is False


def _option(name: str, taken: Sequence[str]) -> str:
    """Return the option for a parameter; empty if the name, which is not trusted, does not allow
    one."""
    option = f"--{name.replace('_', '-')}"
    valid = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return option if valid and not name.startswith("-") and option not in taken else ""


def _shown(text: str) -> str:
    """Escape a text of the agent for argparse, which formats it."""
    return "\n".join(map(plain, text.splitlines())).replace("%", "%%")


def _about(item: Mapping[str, Any], root: Mapping[str, Any], asked: bool) -> str:
    found = resolved(item, root)
    text = found.get("description")
    texts = [text] if isinstance(text, str) else []
    if "default" in item and item["default"] is not None:
        texts.append(f"(default: {_text(item['default'])})")
    if asked:
        texts.append("(the agent asks for it if it is missing)")
    return _shown(" ".join(texts))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _add_field(
    group: Any,
    option: str,
    name: str,
    item: Mapping[str, Any],
    root: Mapping[str, Any],
    required: bool,
    about: str,
) -> None:
    (found, *others) = alternatives(item, root) or [{}]
    found = {} if others else found
    kind = kind_of(item, root)
    more: dict[str, Any] = {"field": name, "required": required, "help": about}
    if kind == "boolean":
        group.add_argument(option, action=Flag, **more)
        return
    values = found.get("enum")
    if isinstance(values, list) and kind == "string" and all(map(str.isprintable, values)):
        group.add_argument(option, action=Store, choices=values, metavar="|".join(values), **more)
        return
    if kind == "array":
        inner = found.get("items")
        inner = inner if isinstance(inner, Mapping) else {}
        inner_kind = kind_of(inner, root)
        if inner_kind in READERS:
            more["help"] = f"{about} (can be repeated)".strip()
            reader = READERS[inner_kind]
            group.add_argument(
                option, action=Append, reader=reader, metavar=METAVARS[inner_kind], **more
            )
            return
    reader = READERS.get(kind, _json)
    group.add_argument(
        option, action=Store, reader=reader, metavar=METAVARS.get(kind, "JSON"), **more
    )


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from None


def _file(text: str) -> Any:
    from dragoman.client import File

    try:
        Path(text).open("rb").close()
    except OSError as error:
        raise ValueError(f"{text}: {error.strerror}") from None
    return File(text)


READERS: dict[str, Any] = {"string": str, "integer": _integer, "number": _number}
METAVARS = {"string": "STRING", "integer": "INTEGER", "number": "NUMBER"}


def _destination(field: str) -> dict[str, Any]:
    """Return the argparse destination of a value, which must not be a name of the command."""
    return {"dest": f"parameter {field}", "default": argparse.SUPPRESS}


class Store(argparse.Action):
    """Stores a value under the parameter's name."""

    def __init__(self, *names: Any, field: str, reader: Any = str, **more: Any) -> None:
        super().__init__(*names, **{**more, **_destination(field)})
        self.field = field
        self.reader = reader

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        """See `argparse.Action`."""
        namespace.values = self.added(dict(namespace.values), self._read(parser, values))

    def added(self, known: dict[str, Any], value: Any) -> dict[str, Any]:
        """Return the values with one more."""
        return {**known, self.field: value}

    def _read(self, parser: argparse.ArgumentParser, text: Any) -> Any:
        try:
            return self.reader(text)
        except ValueError as error:
            parser.error(f"argument {'/'.join(self.option_strings)}: {error}")


class Append(Store):
    """Collects the values of a repeated option."""

    def added(self, known: dict[str, Any], value: Any) -> dict[str, Any]:
        """See `Store.added`."""
        return {**known, self.field: [*known.get(self.field, ()), value]}


class Flag(argparse.BooleanOptionalAction):
    """An option without a value, and its opposite."""

    def __init__(self, *names: Any, field: str, **more: Any) -> None:
        super().__init__(*names, **{**more, **_destination(field)})
        self.field = field

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        """See `argparse.Action`."""
        value = not str(option).startswith("--no-")
        namespace.values = {**namespace.values, self.field: value}


class Merge(argparse.Action):
    """Adds the fields of a JSON object."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        """See `argparse.Action`."""
        try:
            found = _json(values)
        except ValueError as error:
            parser.error(f"argument --data: {error}")
        if not isinstance(found, dict):
            parser.error("argument --data: expected a JSON object")
        namespace.values = {**namespace.values, **found}
