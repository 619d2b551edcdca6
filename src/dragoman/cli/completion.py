"""`dragoman completion`: what can come next on the command line, for bash, zsh and fish.

The shell asks `dragoman --complete SHELL …` at each Tab, so whatever the parser knows is offered,
and nothing need be generated anew when it changes.
"""

from __future__ import annotations

import argparse
import re
import shlex
from argparse import Action, ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dragoman.cli import examples
from dragoman.server.settings import DECLARED, choices
from dragoman.third_party_internals import parser_actions, repeatable, subparsers

SCRIPTS = {
    # `=`, `:` and `@` end a word for bash, which then replaces only what follows: hence $2
    "bash": """\
_dragoman() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("$line")
    done < <(dragoman --complete bash "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[/=] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -F _dragoman dragoman
""",
    "zsh": """\
#compdef dragoman
_dragoman() {
    local line
    local -a ends more
    while IFS= read -r line; do
        if [[ $line == *[/=] ]]; then more+=("$line"); else ends+=("$line"); fi
    done < <(dragoman --complete zsh "${(@Q)words[2,CURRENT-1]}" "$QIPREFIX$PREFIX" 2>/dev/null)
    compadd -Q -a ends
    compadd -Q -S '' -a more
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _dragoman "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i; }
    compdef _dragoman dragoman
fi
""",
    "fish": """\
function __dragoman
    set -l words (commandline -opc)
    set -e words[1]
    set -l last (commandline -ct)
    dragoman --complete fish $words "$last" 2>/dev/null
end
complete -c dragoman -f -a '(__dragoman)'
""",
}
INSTALL = """\
To complete commands in each new shell, add this line:
  in ~/.bashrc:                     eval "$(dragoman completion bash)"
  in ~/.zshrc:                      eval "$(dragoman completion zsh)"
  in ~/.config/fish/config.fish:    dragoman completion fish | source"""

FILES = {
    **dict.fromkeys(("FILE", "file"), ("", "")),
    **dict.fromkeys(("TEXT", "TOKEN", "KEY", "SECRET"), ("@", "")),
    "FOLDER": ("", "/"),
    "URL": ("", ".json"),
}
"""Arguments that take files, by what the help calls them: the mark before the name, its ending."""
MANY = ("*", "+", argparse.REMAINDER)
_SPECIAL = re.compile(r"([^\w@%+=:,./~-])")


def add(commands: Any) -> None:
    """Add `completion` to the commands."""
    parser: ArgumentParser = commands.add_parser(
        "completion",
        help="print a shell completion script",
        description="Print a script that makes a shell complete the dragoman command.",
        **examples("completion bash", "completion fish | source", more=INSTALL),
    )
    parser.add_argument("shell", choices=list(SCRIPTS), help="the shell: bash, zsh or fish")
    parser.set_defaults(run=_print)


def _print(arguments: argparse.Namespace) -> int:
    print(SCRIPTS[arguments.shell], end="")
    return 0


def answer(parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Print what a shell asked for, a line each, in its quoting. bash sends its line and the piece
    at the end that it will replace; the others send the words, the last one as it was typed."""
    shell, *words = arguments or ("",)
    piece = words.pop() if words else ""
    line = words.pop() if shell == "bash" and words else piece
    typed, quote = split(line)
    words = [*words, *typed] if shell != "bash" else typed[1:]
    kept = 0
    if shell == "bash" and words:
        kept = len(words[-1].removesuffix(piece.lstrip(quote) if quote else split(piece)[0][-1]))
    for found in complete(parser, words):
        found = found[kept:]
        if shell != "fish" and not quote:
            found = _SPECIAL.sub(r"\\\1", found)
        print(found)
    return 0


def split(line: str) -> tuple[list[str], str]:
    """The words of a line that is still being written, and the quote that is open at its end. The
    last word may be empty."""
    for quote in ("", '"', "'"):
        with suppress(ValueError):
            *words, last = shlex.split(f"{line}.{quote}")  # with the dot, there is a last word
            return [*words, last.removesuffix(".")], quote
    return [line], ""


# ---- what can come next --------------------------------------------------------------------


def complete(parser: ArgumentParser, words: Sequence[str]) -> list[str]:
    """What the last of these words can become, given those before it."""
    *before, last = words or [""]
    place = _Place(parser)
    for word in before:
        if not place.take(word):
            return []
    return [found for found in place.offers(last) if found.startswith(last)]


class _Place:
    """How far the words have led through the tree of parsers."""

    def __init__(self, parser: ArgumentParser) -> None:
        self.enter(parser)

    def enter(self, parser: ArgumentParser) -> None:
        """Begin with this parser."""
        self.inner: dict[str, ArgumentParser] = getattr(parser, "inner", {})
        actions = parser_actions(parser)
        self.options = {name: a for a in actions for name in a.option_strings}
        self.positions = [a for a in actions if not a.option_strings]
        self.pending: Action | None = None
        self.used: set[str] = set()
        self.plain = False

    def take(self, word: str) -> bool:
        """Go on behind this word; whether there is a way."""
        inner, self.inner = self.inner, {}  # only the first word can be one
        if word in inner:
            self.enter(inner[word])
        elif self.pending is not None:
            self.pending = None
        elif word == "--" and not self.plain:
            self.plain = True
        elif word.startswith("-") and len(word) > 1 and not self.plain:
            self._option(word)
        elif self.positions:
            action = self.positions[0]
            commands = subparsers(action)
            if commands is not None:
                if word not in commands:
                    return False
                self.enter(commands[word])
            elif action.nargs not in MANY:
                self.positions.pop(0)
        return True

    def _option(self, word: str) -> None:
        name, equals, _ = word.partition("=")
        names = [name] if name in self.options else []
        if not names and name.startswith("--"):  # which may be cut short
            names = [other for other in self.options if other.startswith(name)]
        if len(names) == 1:
            action = self.options[names[0]]
            self.used.update(action.option_strings)
            if not equals and action.nargs != 0:
                self.pending = action

    def offers(self, last: str) -> Iterator[str]:
        """What fits here, whether it begins with the last word or not."""
        name, equals, value = last.partition("=")
        if self.pending is not None:
            yield from _values(self.pending, last)
        elif equals and name in self.options and not self.plain:
            for found in _values(self.options[name], value):
                yield f"{name}={found}"
        elif last.startswith("-") and not self.plain:
            yield from self._names()
        elif self.positions:
            yield from self.inner
            yield from _values(self.positions[0], last)
        elif not self.plain:
            yield from self._names()

    def _names(self) -> Iterator[str]:
        for name, action in self.options.items():
            free = name not in self.used or repeatable(action)
            if action.help != argparse.SUPPRESS and free:
                yield name


def _values(action: Action, text: str) -> Iterator[str]:
    shown = action.metavar if isinstance(action.metavar, str) else action.dest
    if action.choices is not None:
        yield from map(str, action.choices)
    elif shown.startswith("{"):
        yield from shown.strip("{}").split(",")
    elif shown == "NAME=VALUE":
        name, equals, _ = text.partition("=")
        if equals and name in DECLARED:
            yield from (f"{name}={value}" for value in choices(name))
        else:
            yield from (f"{each}=" for each in DECLARED)
    elif shown == "URL" and action.option_strings:
        return  # only the agent's may be a file
    elif shown in FILES or action.type is Path:
        mark, ending = FILES.get(shown, ("", ""))
        if text.startswith(mark):
            yield from (f"{mark}{name}" for name in _files(text.removeprefix(mark), ending))


def _files(text: str, ending: str) -> Iterator[str]:
    """Files whose names begin so, and folders, which end with a slash."""
    folder, slash, begin = text.rpartition("/")
    try:
        inside = sorted(Path(folder + slash or ".").expanduser().iterdir())
        for path in inside:
            hidden = path.name.startswith(".") and not begin.startswith(".")
            if not hidden and path.name.startswith(begin) and path.name.isprintable():
                if path.is_dir():
                    yield f"{folder}{slash}{path.name}/"
                elif path.name.endswith(ending):
                    yield f"{folder}{slash}{path.name}"
    except (OSError, RuntimeError):  # no such folder, or no such user
        return
