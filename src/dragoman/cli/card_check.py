"""`dragoman card --check`: prints the problems of a card, as text or JSON."""

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
from dragoman.cli.terminal_format import count, json_text, plain

if TYPE_CHECKING:
    from dragoman.client.discovery import Document
    from dragoman.conformance.card_shape import Finding

STYLES = {"error": RED, "warning": YELLOW, "note": DIM}
WIDE = 40
"""The maximum width of the column with field names."""


def run(arguments: argparse.Namespace) -> int:
    """Fetch the card, print its problems and return 1 if there is an error; with `--raw`, print the
    card as it is."""

    def work() -> int:
        if not arguments.raw:
            return _report(asyncio.run(_checked(arguments)), arguments)
        found = asyncio.run(fetch(arguments))
        sys.stdout.buffer.write(found.body)
        sys.stdout.buffer.flush()
        return 0

    return connect_options.guarded(work, arguments)


async def _checked(arguments: argparse.Namespace) -> list[Finding]:
    """Return the findings about a card and its interfaces, the worst first."""
    from dragoman.client.bindings import supported_bindings
    from dragoman.client.credentials import Guard
    from dragoman.conformance.card import check, ordered
    from dragoman.conformance.interfaces import probe

    sockets = connect_options.sockets(arguments)
    guard = Guard(sockets, allow=arguments.allow)  # no headers: other parties may own the URLs
    try:
        found = await fetch(arguments, guard.confine)
        findings = check(found.body, url=found.url, headers=found.headers)
        with connect_options.waiting("connecting to the interfaces"):
            findings += await probe(found, guard, supported_bindings(sockets))
    finally:
        await guard.close()
    return ordered(findings)


async def fetch(
    arguments: argparse.Namespace, confine: Callable[[], None] | None = None
) -> Document:
    """Fetch the document without a client, which would reject a card that it cannot read. Calls
    `confine` if the card came from a public address."""
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
    """Format the findings in lines of at most this many columns, followed by their count."""
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
        if len(field) > wide:  # the text starts on the next line
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
