"""The options that a store takes in its URL, such as `sqlite:///tasks.db?synchronous=normal`."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import unquote_plus

from msgspec import Struct

from dragoman.server.settings import Setting, convert, literal


class Option(Struct, frozen=True):
    """What an option declares beside its name."""

    kind: Any
    default: Any
    declared: Setting

    def text(self, value: Any) -> str:
        """A value as a URL writes it."""
        return literal(value).strip('"')


_POSTGRES = {
    "pool_size": Option(
        int, 8, Setting(help="maximum number of connections of one process", positive=True)
    ),
    "migrate": Option(
        bool,
        True,
        Setting(help="update the tables at the start; if false, run `dragoman db migrate`"),
    ),
    "prepared": Option(
        bool, True, Setting(help="use prepared statements; false behind a pooler of transactions")
    ),
}
OPTIONS: dict[str, dict[str, Option]] = {
    "memory": {
        "max_tasks": Option(
            int,
            50_000,
            Setting(help="maximum number of tasks; the store deletes the oldest", positive=True),
        )
    },
    "sqlite": {
        "synchronous": Option(
            Literal["full", "normal"],
            "full",
            Setting(
                help="what a commit survives: full a power loss, normal only the end of the process"
            ),
        )
    },
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
}
"""The options of dragoman's own stores, by scheme. What a store of another package takes is its own
matter."""
PASSED_ON = ("postgresql", "postgres")
"""Schemes whose other options are those of the database, which refuses unknown ones."""


def names(scheme: str) -> str:
    """The names of the options of a scheme, for error messages."""
    return ", ".join(OPTIONS.get(scheme, {}))


def split(url: str) -> tuple[str, dict[str, Any]]:
    """Split a store URL into the URL without our options, and the values of all of them. Raises
    ValueError, whose text begins with the name of the wrong option."""
    address, _, query = url.partition("?")
    scheme = address.partition(":")[0]
    options = OPTIONS.get(scheme)
    if options is None:
        return url, {}
    values = {name: option.default for name, option in options.items()}
    rest = []
    for pair in query.split("&") if query else ():
        name, _, text = pair.partition("=")
        if name in options:
            option = options[name]
            try:
                values[name] = convert(unquote_plus(text), option.kind, option.declared)
            except ValueError as error:
                raise ValueError(f"?{name}: {error}") from None
        elif scheme in PASSED_ON:
            rest.append(pair)
        else:
            raise ValueError(f"?{name}: there is no such option; {scheme}: has {names(scheme)}")
    return address + (f"?{'&'.join(rest)}" if rest else ""), values


def check(url: str) -> None:
    """Raise ValueError if the options in a store URL are wrong; see `split`."""
    split(url)
