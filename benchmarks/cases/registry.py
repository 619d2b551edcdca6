"""Search in a registry: the time among 10,000 entries, and how good the order is, beside a plain
comparison with the names of the agents."""

from __future__ import annotations

import math
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import measure
from benchmarks.bench import Bench
from benchmarks.registry_cards import cards, jobs, many
from dragoman.client import read_card
from dragoman.registry import Entry, Query
from dragoman.registry.database import Database
from dragoman.registry.entries import CardVersion, urn

TOP = 10


async def run(bench: Bench) -> None:
    """Measure both in process, without HTTP."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=measure.disk()) as folder:
        bench.progress("registry: cards of known jobs")
        with Database(f"sqlite:///{Path(folder) / 'good.db'}") as database:
            _quality(bench, database)
        count = 1000 if bench.quick else 10_000
        bench.progress(f"registry: {count} entries")
        with Database(f"sqlite:///{Path(folder) / 'many.db'}") as database:
            for number, document in enumerate(many(count)):
                _put(database, number, document)
            for number in range(bench.rounds):
                bench.progress(f"registry: round {number + 1} of {bench.rounds}")
                _time(bench, database)


def _time(bench: Bench, database: Database) -> None:
    took = []
    for words in [words for job in jobs() for words in job.asked]:
        began = time.perf_counter()
        hits = database.search(Query(text=words))
        took.append((time.perf_counter() - began) * 1000)
        assert hits.hits, words
    took.sort()
    bench.record("registry10k.sqlite.dragoman.p50_ms", took[len(took) // 2])
    bench.record("registry10k.sqlite.dragoman.p95_ms", took[int(len(took) * 0.95)])


def _quality(bench: Bench, database: Database) -> None:
    """The mean nDCG@10 of all requests; a card counts if it is for the job that was asked for."""
    job_of, name_of = {}, {}
    for number, (job, document) in enumerate(cards()):
        name = _put(database, number, document)
        job_of[name], name_of[name] = job, document["name"]
    scores: dict[str, list[float]] = {"dragoman": [], "names": []}
    for number, job in enumerate(jobs()):
        good = {name for name, each in job_of.items() if each == number}
        for words in job.asked:
            hits = database.search(Query(text=words, limit=TOP))
            found = [hit.entry.urn for hit in hits]
            scores["dragoman"].append(ndcg(found, good))
            scores["names"].append(ndcg(by_name(words, name_of), good))
    for who, values in scores.items():
        bench.record(f"registry.ndcg10.{who}", sum(values) / len(values), max)


def ndcg(found: Sequence[str], good: set[str]) -> float:
    """The normalized discounted cumulative gain of a list, where a hit is good or not."""
    gain = sum(1 / math.log2(n + 2) for n, name in enumerate(found[:TOP]) if name in good)
    ideal = sum(1 / math.log2(n + 2) for n in range(min(len(good), TOP)))
    return gain / ideal


def by_name(words: str, names: dict[str, str]) -> list[str]:
    """Order by the part of an agent's name that is in the words, the first letters of each word
    being enough; what shares nothing is left out."""
    asked = {_stem(word) for word in re.findall(r"\w+", words.lower())}

    def share(name: str) -> float:
        own = {_stem(word) for word in re.findall(r"\w+", name.lower())}
        return len(own & asked) / len(own)

    shares = {each: share(name) for each, name in names.items()}
    return sorted((each for each in shares if shares[each]), key=lambda each: -shares[each])


def _stem(word: str) -> str:
    return word[:5]


def _put(database: Database, number: int, document: dict[str, object]) -> str:
    url = f"https://a{number}.example"
    version = CardVersion(read_card(document), fetched="2026-01-01T00:00:00.000Z")
    entry = Entry(urn=urn(url), url=url, state="approved", approved=version)
    database.write(entry.urn, lambda _: entry, "benchmark", "add")
    return entry.urn
