"""Cards of agents for a hundred jobs in twenty domains (`registry_jobs.txt`), and two requests for
each job. Both are written by hand, by the same person: most requests share a word with the card.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Job(NamedTuple):
    """What an agent does, as its maker says it, and how people ask for it."""

    domain: str
    name: str
    about: str
    tags: str
    example: str
    asked: tuple[str, str]


_JOBS = Path(__file__).with_name("registry_jobs.txt")
MAKERS = ("Skyline", "Northwind", "Harbour")
_BRANDS = ("Desk", "Partner", "One")


def jobs() -> list[Job]:
    """All jobs."""
    found = []
    for line in _JOBS.read_text().splitlines()[1:]:
        domain, _, rest = line.partition(": ")
        name, about, tags, example, *asked = (part.strip() for part in rest.split("|"))
        found.append(Job(domain, name, about, tags, example, (asked[0], asked[1])))
    return found


def cards() -> Iterator[tuple[int, dict[str, Any]]]:
    """Three cards for each job, each with the number of the job. One has the name of the job, the
    others have names of their makers."""
    for number, job in enumerate(jobs()):
        plain, branded, terse = MAKERS
        tags = job.tags.split()
        yield number, card(job.name, f"{job.about}. By {plain}.", job, tags, [job.example])
        yield (
            number,
            card(
                f"{branded} {_BRANDS[number % 3]} {number}",
                f"{job.about}.",
                job,
                tags[:2],
                [job.example],
            ),
        )
        yield (
            number,
            card(f"{terse} {job.domain.title()}", f"Our agent for {tags[0]}.", job, tags, []),
        )


def many(count: int) -> Iterator[dict[str, Any]]:
    """So many cards, for measuring time: the jobs again and again, by other makers."""
    known = jobs()
    for number in range(count):
        job, maker = known[number % len(known)], f"Maker {number // len(known)}"
        yield card(
            f"{job.name} by {maker}",
            f"{job.about}, for customers of {maker}.",
            job,
            job.tags.split(),
            [job.example],
        )


def card(name: str, about: str, job: Job, tags: list[str], examples: list[str]) -> dict[str, Any]:
    """A card with one skill."""
    return {
        "name": name,
        "description": about,
        "version": "1.0",
        "supportedInterfaces": [
            {"url": "https://a.example", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "capabilities": {},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [
            {
                "id": job.name.lower().replace(" ", "_"),
                "name": job.name,
                "description": f"{job.about}.",
                "tags": tags,
                "examples": examples,
            }
        ],
    }
