"""An agent that opens a resource when it starts, and closes it when it stops."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman import Agent, Turn


@asynccontextmanager
async def library(agent: Agent) -> AsyncIterator[sqlite3.Connection]:
    """The yielded value is `turn.state`."""
    books = sqlite3.connect(":memory:", check_same_thread=False)
    books.execute("create table book (title text, shelf text)")
    books.execute("insert into book values ('Moby Dick', 'A3'), ('Emma', 'B1')")
    yield books
    books.close()


agent = Agent("Librarian", description="Finds books.", lifespan=library)


@agent.skill(tags=["books"])
def find(turn: Turn) -> str:
    """Finds the shelf of a book."""
    found = turn.state.execute("select shelf from book where title = ?", (turn.text,)).fetchone()
    return f"Shelf {found[0]}" if found else "We do not have it"
