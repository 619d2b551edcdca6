"""Checks the webhooks that callers register."""

from __future__ import annotations

import re

from msgspec.structs import replace

from dragoman.model.caller import Caller, Scope, long
from dragoman.model.errors import InvalidParams, LimitExceeded
from dragoman.model.types import TaskPushNotificationConfig
from dragoman.security.address_policy import EgressRefused
from dragoman.security.egress import Egress, EgressUnreachable
from dragoman.stores.store import Store, Webhook

WEBHOOKS = 100
"""The most webhooks of one task."""
_HEADER = re.compile(r"[\t\x20-\x7e]{1,8192}")


async def check_number(store: Store, scope: Scope, config: TaskPushNotificationConfig) -> None:
    """Raise LimitExceeded if the task has too many webhooks, or TaskNotFound."""
    existing = await store.webhooks(scope, config.task_id)
    if len({each.config.id for each in existing} | {config.id}) > WEBHOOKS:
        raise LimitExceeded(f"A task can have at most {WEBHOOKS} webhooks")


async def checked_webhook(
    egress: Egress | None,
    config: TaskPushNotificationConfig,
    task: str,
    field: str,
    caller: Caller,
) -> Webhook:
    """Return a webhook whose fields can be sent and whose URL is allowed. Raises InvalidParams,
    which names the field below `field`."""
    if why := long(config.id):
        raise InvalidParams.at(f"{field}id", why)
    secrets = config.authentication
    for name, text in (
        ("token", config.token),
        ("authentication.scheme", secrets.scheme if secrets else ""),
        ("authentication.credentials", secrets.credentials if secrets else ""),
    ):
        if text and not _HEADER.fullmatch(text):
            raise InvalidParams.at(field + name, "cannot be sent in a header")
    if egress is not None:
        try:
            await egress.check(config.url, owner=(caller.tenant, caller.qualified))
        except (EgressRefused, EgressUnreachable) as error:
            raise InvalidParams.at(f"{field}url", str(error)) from None
    return Webhook(replace(config, task_id=task), caller.version)
