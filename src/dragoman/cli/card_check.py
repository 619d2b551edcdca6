"""`dragoman card --check`: what is wrong with a card, for people and for programs."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from dragoman.cli import UsageError, connect_options
from dragoman.cli.colors import DIM, RED, YELLOW, paint
from dragoman.cli.text_table import count, json_text, plain

if TYPE_CHECKING:
    from dragoman.client.discovery import Document
    from dragoman.conformance.shape import Finding

STYLES = {"error": RED, "warning": YELLOW, "note": DIM}
WIDE = 40
"""The most room that the names of fields get in a line."""


def run(arguments: argparse.Namespace) -> int:
    """Find the card and print what is to be said of it, 1 if there is an error; or, with `--raw`,
    the card as it is."""

    def work() -> int:
        if not arguments.raw:
            return _report(asyncio.run(_checked(arguments)), arguments)
        found = asyncio.run(fetch(arguments))
        sys.stdout.buffer.write(found.body)
        sys.stdout.buffer.flush()
        return 0

    return connect_options.guarded(work, arguments)


async def _checked(arguments: argparse.Namespace) -> list[Finding]:
    """All that is to be said of a card and of the interfaces behind it, the worst first."""
    from dragoman.client.binding import spoken
    from dragoman.client.credentials import Guard
    from dragoman.conformance.card import check, ordered
    from dragoman.conformance.interfaces import probe

    sockets = connect_options.sockets(arguments)
    guard = Guard(sockets, allow=arguments.allow)  # without the headers: others may listen there
    try:
        found = await fetch(arguments, guard.confine)
        findings = check(found.body, url=found.url, headers=found.headers)
        with connect_options.waiting("connecting to the interfaces"):
            findings += await probe(found, guard, spoken(sockets))
    finally:
        await guard.close()
    return ordered(findings)


async def fetch(
    arguments: argparse.Namespace, confine: Callable[[], None] | None = None
) -> Document:
    """The document by itself: a client would not go on with a card that it cannot read. `confine`
    is called if it came from a public address."""
    from dragoman.client.credentials import Guard
    from dragoman.client.discovery import Cards, address

    if arguments.pin:
        raise UsageError(
            "--pin: cannot be used with --check or --raw; `card trust` compares a card with "
            "the pinned keys"
        )
    where = address(arguments.url)
    guard = Guard(
        connect_options.sockets(arguments),
        headers=connect_options.headers(arguments),
        trust=[where],
        insecure=arguments.insecure_http,
    )
    try:
        async with asyncio.timeout(arguments.timeout):
            with connect_options.waiting(connect_options.FETCHING):
                return await Cards(guard, confine=confine).fetch(where or arguments.url)
    finally:
        await guard.close()


def _report(findings: Sequence[Finding], arguments: argparse.Namespace) -> int:
    if arguments.json:
        for finding in findings:
            print(json_text(json.dumps(msgspec.to_builtins(finding))))
    else:
        for line in text(findings, shutil.get_terminal_size((100, 24)).columns):
            print(line)
    return 1 if any(finding.level == "error" for finding in findings) else 0


def text(findings: Sequence[Finding], columns: int) -> Iterator[str]:
    """The findings in lines of so many columns, and their sum."""
    rows = [(item.level, plain(item.field) or "card", plain(item.text)) for item in findings]
    longest = max((len(field) for _, field, _ in rows), default=0)
    wide = max(min(longest, WIDE, columns // 2 - 9), 0)
    space = " " * (9 + wide + 2)
    for level, field, words in rows:
        lines = textwrap.wrap(
            words, max(columns - len(space), 20), break_on_hyphens=False, break_long_words=False
        )
        begin = paint(level, STYLES[level], sys.stdout) + " " * (9 - len(level))
        begin += f"{field:{wide}}  "
        if len(field) > wide:  # its words begin on a line of their own
            yield begin.rstrip()
            begin = space
        yield begin + lines[0]
        yield from (space + line for line in lines[1:])
    sums = [
        count(number, noun)
        for noun in ("error", "warning", "note")
        if (number := sum(item.level == noun for item in findings))
    ]
    yield ", ".join(sums) if sums else "no problems found"
