"""Webhooks with encrypted secrets: decrypted for delivery, or parked."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.model.errors import Unavailable
from dragoman.security.encryption import Seal, Unsealable
from dragoman.stores.codec import secrets
from dragoman.stores.store import Store, WebhookCursor
from dragoman.telemetry.logs import logger


async def unsealed(store: Store, seal: Seal, line: WebhookCursor) -> WebhookCursor | None:
    """The line with its secrets; one whose key is missing is parked."""
    try:
        return replace(line, webhook=secrets(line.webhook, seal.open))
    except Unsealable as error:
        id = line.webhook.config.id
        logger.warning("webhook %s: %s; parked", id, error, extra={"task": line.task})
        try:
            await store.dispatched(line, line.cursor, failed=str(error), parked=True)
        except Unavailable as worse:  # its lease runs out
            logger.error("webhook %s: %s", id, worse)
        return None
