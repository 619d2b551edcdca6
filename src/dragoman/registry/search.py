"""Search: which entries a query finds, in which order, and why.

The words of a query are alternatives, compared by their stems; a rare word counts more than a
frequent one (bm25). Rights are part of the statement, so that counts, too, cover only what the
caller may see.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from dragoman import AgentCard, Caller
from dragoman.registry.entries import (
    LONGEST_QUERY,
    MOST_LISTED,
    Audience,
    Entry,
    Hit,
    Hits,
    Query,
    RegistryError,
)

Facet: TypeAlias = Literal["skill", "tag", "mode", "publisher", "version"]

COLUMNS = ("name", "description", "skills", "tags", "examples", "queries")
"""The columns of the index, with the weight of each in `RANK`."""
RANK = "bm25(words, 6.0, 2.0, 4.0, 4.0, 3.0, 4.0)"
MOST_WORDS = 32
"""The most words of a query that count."""
MOST_REASONS = 6
DEEPEST = 10_000
"""The most entries that pages may skip."""
_COMMON = """
a an and are as at be by can could do find for from get give have help how i in is it like me my
need of on or our please some something show that the this to us want we what which who will with
would you your agent agents
"""
COMMON = frozenset(_COMMON.split())
"""Words that say nothing about what is looked for."""

_WORD = re.compile(r"\w+")
_MARKED = re.compile("\x01(\\w+)\x02")
_entry = msgspec.json.Decoder(Entry).decode
_audience = msgspec.json.Decoder(Audience).decode


# ---- what is indexed -----------------------------------------------------------------------


def text(entry: Entry) -> tuple[str, ...] | None:
    """The texts of an entry by column; None if it is not shown."""
    if not entry.shown:
        return None
    card = entry.card
    return (
        f"{card.name}\n{entry.alias.replace('-', ' ')}",
        card.description,
        "\n".join(f"{each.name} {_split(each.id)}\n{each.description}" for each in card.skills),
        "\n".join(_split(tag) for each in card.skills for tag in each.tags),
        "\n".join(example for each in card.skills for example in each.examples),
        "\n".join(entry.queries),
    )


def _split(name: str) -> str:
    """The words of an id such as `book_flight`."""
    return re.sub(r"[-_./:]+", " ", name)


def features(card: AgentCard) -> Iterator[tuple[str, str]]:
    """What filters compare: kinds and values."""
    for skill in card.skills:
        yield "skill", skill.id.lower()
        for tag in skill.tags:
            yield "tag", tag.lower()
        for mode in (*skill.input_modes, *skill.output_modes):
            yield "mode", mode.lower()
    for mode in (*card.default_input_modes, *card.default_output_modes):
        yield "mode", mode.lower()


def audience(entry: Entry) -> str:
    """The audience as the index has it; empty for everyone."""
    return "" if entry.audience.everyone else msgspec.json.encode(entry.audience).decode()


# ---- what is asked -------------------------------------------------------------------------


def search(connection: sqlite3.Connection, query: Query, caller: Caller | None) -> Hits:
    """A page of hits; see `Database.search`."""
    start, limit = _page(query)
    words = _words(query.text)
    if query.text.strip() and not words:
        return Hits()
    where, values = _conditions(connection, query, caller)
    if words:
        match = _match(words)
        rows = connection.execute(
            f"SELECT e.id, e.data, r.rank, r.best, r.total FROM (SELECT id, rank, MIN(rank) OVER ()"
            f" AS best, COUNT(*) OVER () AS total FROM (SELECT e.id, {RANK} AS rank FROM words JOIN"
            f" entries e ON e.id = words.rowid WHERE words MATCH ? AND {where}) ORDER BY rank, id"
            " LIMIT ? OFFSET ?) r JOIN entries e ON e.id = r.id ORDER BY r.rank, r.id",
            (match, *values, limit, start),
        ).fetchall()
    else:
        match = ""
        rows = connection.execute(
            "SELECT e.id, e.data, 0.0, 0.0, r.total FROM (SELECT id, COUNT(*) OVER () AS total FROM"
            f" entries e WHERE {where} ORDER BY urn LIMIT ? OFFSET ?) r JOIN entries e ON"
            " e.id = r.id ORDER BY e.urn",
            (*values, limit, start),
        ).fetchall()
    total = rows[0][4] if rows else 0
    hits = []
    for number, data, rank, best, _ in rows:
        entry = _entry(data)
        found = [*_found(connection, match, number), *_filtered(query, entry)]
        score = round(100 * rank / best, 1) if best else 0.0
        hits.append(Hit(entry, score, tuple(found[:MOST_REASONS])))
    end = start + len(rows)
    return Hits(tuple(hits), total, str(end) if rows and end < min(total, DEEPEST) else "")


def facets(
    connection: sqlite3.Connection, query: Query, kind: Facet, limit: int, caller: Caller | None
) -> list[tuple[str, int]]:
    """Values and their counts; see `Database.facets`."""
    words = _words(query.text)
    if query.text.strip() and not words:
        return []
    where, values = _conditions(connection, query, caller)
    if words:
        where += " AND e.id IN (SELECT rowid FROM words WHERE words MATCH ?)"
        values.append(_match(words))
    if kind in ("publisher", "version"):
        value, more = f"e.{kind}", ""
    else:
        value, more = "f.value", "JOIN features f ON f.id = e.id AND f.kind = ?"
        values.insert(0, kind)
    return connection.execute(
        f"SELECT {value} AS value, COUNT(*) AS number FROM entries e {more} WHERE {where}"
        " GROUP BY value ORDER BY number DESC, value LIMIT ?",
        (*values, limit),
    ).fetchall()


def _page(query: Query) -> tuple[int, int]:
    if not 0 < query.limit <= MOST_LISTED:
        raise RegistryError(f"limit: must be from 1 to {MOST_LISTED}, not {query.limit}")
    if len(query.text) > LONGEST_QUERY:
        raise RegistryError(f"text: must not be longer than {LONGEST_QUERY} characters")
    if query.page and not (query.page.isdecimal() and len(query.page) < 6):
        raise RegistryError("page: is not the `next` of a page of this registry")
    return int(query.page or 0), query.limit


def _words(said: str) -> list[str]:
    """The words of a text that count, each once."""
    every = list(dict.fromkeys(_WORD.findall(said.lower().replace("_", " "))))
    return ([word for word in every if word not in COMMON] or every)[:MOST_WORDS]


def _match(words: list[str]) -> str:
    """The query in the language of FTS5, in which quotes make a word plain text."""
    return " OR ".join(f'"{word}"' for word in words)


def _conditions(
    connection: sqlite3.Connection, query: Query, caller: Caller | None
) -> tuple[str, list[object]]:
    """The condition for rows `e` that the query leaves and the caller may see."""
    parts, values = ["e.shown"], list[object]()

    def one_of(column: str, given: list[str]) -> None:
        parts.append(f"{column} IN ({', '.join('?' * len(given))})")
        values.extend(given)

    if caller is not None:
        known = connection.execute("SELECT DISTINCT audience FROM entries WHERE audience <> ''")
        private = [text for (text,) in known if _audience(text).admits(caller)]
        one_of("e.audience", ["", *private])
    for kind, asked in (("skill", query.skills), ("tag", query.tags), ("mode", query.modes)):
        if asked:
            marks = ", ".join("?" * len(asked))
            parts.append(
                f"e.id IN (SELECT id FROM features WHERE kind = '{kind}' AND value IN ({marks}))"
            )
            values.extend(each.lower() for each in asked)
    if query.versions:
        one_of("e.version", list(query.versions))
    if query.publishers:
        under = "(e.publisher = ? OR substr(e.publisher, -length(?)) = ?)"
        parts.append(f"({' OR '.join([under] * len(query.publishers))})")
        for host in query.publishers:
            exact = host.lower().removeprefix("=")
            below = "." if host.startswith("=") else f".{exact}"  # no host ends with a dot
            values += [exact, below, below]
    if query.published:
        parts.append("substr(e.urn, 1, 8) = 'urn:air:'")
    if query.trust is not None:
        parts.append("e.signed = ?")
        values.append(query.trust == "signed")
    if query.healthy is not None:
        parts.append("e.healthy = ?")
        values.append(query.healthy)
    return " AND ".join(parts), values


# ---- why -----------------------------------------------------------------------------------


def _found(connection: sqlite3.Connection, match: str, number: int) -> list[str]:
    """In which columns of an entry words of the query are."""
    if not match:
        return []
    marked = ", ".join(f"highlight(words, {n}, char(1), char(2))" for n in range(len(COLUMNS)))
    row = connection.execute(
        f"SELECT {marked} FROM words WHERE words MATCH ? AND rowid = ?", (match, number)
    ).fetchone()
    reasons = []
    for column, said in zip(COLUMNS, row, strict=True):
        if words := list(dict.fromkeys(_MARKED.findall(said.lower()))):
            reasons.append(f"{column}: {', '.join(words[:MOST_REASONS])}")
    return reasons


def _filtered(query: Query, entry: Entry) -> list[str]:
    """Which values of the filters an entry has."""
    has = set(features(entry.card))
    asked = (("skill", query.skills), ("tag", query.tags), ("mode", query.modes))
    return [
        f"{kind} {value}"
        for kind, values in asked
        for value in values
        if (kind, value.lower()) in has
    ]
