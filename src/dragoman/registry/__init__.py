"""The registry: which agents there are, where they are, and which of their cards were approved.

entries           the values, and the rules for what happens to an entry
card_differences  what differs between two cards, and what must be approved
database          entries, their history and the search index, in SQLite
search            what a query finds, and why
fetch_card        fetches a card from its address, and verifies its signatures
federation        asks other registries
import_catalog    imports the agents of a foreign catalog
ard               Agentic Resource Discovery (ARD): its documents as our values, and back
operations        what the server and the command line can do with a registry
server            HTTP, and the refresh of cards
client            `Registry`, for callers
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.registry.client import Reference, Registry, RegistryQuery
    from dragoman.registry.entries import (
        Audience,
        Entry,
        Hit,
        Hits,
        NotFound,
        Query,
        RegistryError,
    )
    from dragoman.registry.server import RegistryApp

__all__ = [
    "Audience",
    "Entry",
    "Hit",
    "Hits",
    "NotFound",
    "Query",
    "Reference",
    "Registry",
    "RegistryApp",
    "RegistryError",
    "RegistryQuery",
]

_PLACES = {
    "Reference": "client",
    "Registry": "client",
    "RegistryApp": "server",
    "RegistryQuery": "client",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"{__name__}.{_PLACES.get(name, 'entries')}"), name)
    globals()[name] = found
    return found
