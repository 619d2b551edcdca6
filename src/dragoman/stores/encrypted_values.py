"""Encrypted secrets: those of webhooks, and the values of private entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from dragoman.model.errors import Unavailable
from dragoman.model.events import Entry, Private
from dragoman.security.encryption import Encryption, Undecryptable
from dragoman.stores.codec import secrets
from dragoman.stores.store import Store, UnknownEntry, WebhookCursor
from dragoman.telemetry.logs import logger


async def decrypted(
    store: Store, encryption: Encryption, line: WebhookCursor
) -> WebhookCursor | None:
    """Return the cursor with its secrets decrypted. If the key is missing, park the webhook and
    return None."""
    try:
        return replace(line, webhook=secrets(line.webhook, encryption.decrypt))
    except Undecryptable as error:
        id = line.webhook.config.id
        logger.warning("webhook %s: %s; parked", id, error, extra={"task": line.task})
        try:
            await store.dispatched(line, line.cursor, failed=str(error), parked=True)
        except Unavailable as worse:  # the webhook is taken again when its lease expires
            logger.error("webhook %s: %s", id, worse)
        return None


def encrypt_private(entries: Iterable[Entry], task: str, encryption: Encryption) -> None:
    """Encrypt the values of private entries before they are written, if there is a key."""
    if not encryption.active:
        return
    for entry in entries:
        event = entry.event
        if type(event) is Private and not event.sealed:
            text = encryption.encrypt(bytes(event.value).decode(), _about(task, event))
            entry.event = replace(event, value=Raw(msgspec.json.encode(text)), sealed=True)


def opened(entries: Iterable[Entry], task: str, encryption: Encryption) -> Iterator[Entry]:
    """Yield the entries, private ones with decrypted values. A value without its key stays
    sealed."""
    for entry in entries:
        if type(entry.event) is Private and entry.event.sealed:
            with suppress(UnknownEntry):
                decrypt_private([entry], task, encryption)
        yield entry


def decrypt_private(entries: Sequence[Entry], task: str, encryption: Encryption) -> Sequence[Entry]:
    """Return the entries with decrypted values. Raises UnknownEntry if a key is missing."""
    for entry in entries:
        event = entry.event
        if type(event) is Private and event.sealed and bytes(event.value) != b"null":
            text = msgspec.json.decode(event.value, type=str)
            try:
                value = encryption.decrypt(text, _about(task, event)).encode()
            except Undecryptable as error:
                raise UnknownEntry(f"entry {entry.number}: {error}") from None
            entry.event = replace(event, value=Raw(value), sealed=False)
    return entries


def _about(task: str, event: Private) -> str:
    """Return what a value is bound to, so that it cannot be moved to another task or step."""
    return f"{task}:{event.kind}:{event.name}:{event.count}"
