"""The help of every command: what it says, and that its examples can be typed."""

from __future__ import annotations

import argparse
import re
import shlex
from argparse import Action, ArgumentParser
from collections.abc import Iterator

import pytest

from dragoman.cli import SERVE, _parser
from dragoman.server.settings import DECLARED
from dragoman.third_party_internals import parser_actions, subparsers


def commands(
    parser: ArgumentParser, *before: str, summary: str = ""
) -> Iterator[tuple[tuple[str, ...], ArgumentParser, str]]:
    """A parser and all below it, by their words, each with its line in the list of commands."""
    yield before, parser, summary
    for name, inner in getattr(parser, "inner", {}).items():
        yield from commands(inner, *before, name, summary=inner.description or "")
    for action in parser_actions(parser):
        lines = {line.dest: line.help or "" for line in getattr(action, "_choices_actions", ())}
        for name, inner in (subparsers(action) or {}).items():
            yield from commands(inner, *before, name, summary=lines[name])


COMMANDS = list(commands(_parser()))
BY_NAME = {" ".join(words): parser for words, parser, _ in COMMANDS}


def options(parser: ArgumentParser) -> list[Action]:
    """The options that the help of a command shows."""
    return [a for a in parser_actions(parser) if a.option_strings and a.help != argparse.SUPPRESS]


def names(command: str) -> set[str]:
    """The long names of the options of a command."""
    return {action.option_strings[-1] for action in options(BY_NAME[command])}


@pytest.fixture(params=COMMANDS, ids=lambda found: " ".join(found[0]) or "dragoman")
def command(request: pytest.FixtureRequest) -> tuple[tuple[str, ...], ArgumentParser, str]:
    """Each command: its words, its parser, and its line in the list of commands."""
    found: tuple[tuple[str, ...], ArgumentParser, str] = request.param
    return found


def test_there_are_all_commands() -> None:
    assert len(COMMANDS) > 30
    assert {"", "serve", "card sign", "task list", "push add", "db rename-owner"} <= set(BY_NAME)


def test_it_says_in_a_line_what_it_does(
    command: tuple[tuple[str, ...], ArgumentParser, str],
) -> None:
    words, parser, summary = command
    description = parser.description or ""
    assert re.fullmatch(r"[A-Z][^\n]*\.", description), description
    if words:
        assert summary
        assert len(summary) <= 80
        assert "\n" not in summary


def test_each_option_says_its_default(
    command: tuple[tuple[str, ...], ArgumentParser, str],
) -> None:
    for action in parser_actions(command[1]):
        if action.help == argparse.SUPPRESS or subparsers(action):
            continue
        told = action.help or ""
        assert told, action.option_strings or action.dest
        if not action.option_strings or action.nargs == 0:
            continue  # an argument has a place, and a flag is off
        assert ("(required)" if action.required else "(default: ") in told, action.option_strings
        for choice in action.choices or ():
            shown = action.metavar is None or str(choice) in told
            assert shown, f"{action.option_strings}: {choice}"


def test_its_examples_can_be_typed(
    command: tuple[tuple[str, ...], ArgumentParser, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words, parser, _ = command
    examples = (parser.epilog or "").partition("Examples:\n")[2].splitlines()
    assert 2 <= len(examples) <= 3
    for line in examples:
        first, *typed = shlex.split(re.split(r" [<>|] ", line)[0])
        assert first == "dragoman"
        assert tuple(typed[: len(words)]) == words
        try:
            _parser().parse_args(typed)
        except SystemExit:
            pytest.fail(f"{line}: {capsys.readouterr().err}")


def test_only_options_that_have_an_effect() -> None:
    listening = {"--host", "--port", "--grpc-port", "--url", "--cert", "--key", "--ca"}
    assert listening <= names("serve")
    assert not listening & names("worker")
    assert not {"--serve-only", "--access-log"} & names("worker")
    server = {f"--{name.replace('_', '-')}" for name in (*SERVE, *DECLARED)} | {"--set", "--config"}
    shared = {"--cert", "--ca"}  # of the client, too
    for words, _, _ in COMMANDS:
        if words and words[0] in ("send", "chat", "task"):
            assert not (server - shared) & names(" ".join(words)), words
    assert not {"--pin", "--binding", "--api-key"} & names("card verify")
    assert not {"--pin", "--binding"} & names("card trust")
