"""The private values of contexts in PostgreSQL."""

from __future__ import annotations

from dragoman.model.caller import Scope
from dragoman.model.conversation import ContextChanged
from dragoman.security.encryption import Encryption
from dragoman.stores.codec import digested
from dragoman.stores.context_values import decrypt_value, encrypt_value
from dragoman.stores.postgres.pool import Source
from dragoman.stores.store import Claim, ContextValue, Stale

DIGEST = "sha256(convert_to(task.context, 'UTF8'))"
OF_TASK = (
    "value.agent = task.agent AND value.tenant = task.tenant AND value.owner = task.owner "
    f"AND value.context = {DIGEST}"
)
_READ = (
    "SELECT value.agent, value.tenant, value.owner, value.context, value.version, value.body "
    f"FROM task JOIN context_value AS value ON {OF_TASK} WHERE task.id = $1"
)
# The claim cannot end while its row is locked.
_HELD = f"""
WITH held AS (
  SELECT agent, tenant, owner, {DIGEST} AS context FROM task
  WHERE id = $1 AND epoch = $2 AND agent = $3 AND tenant = $4 AND owner = $5 FOR SHARE
), saved AS ("""
_ADD = f"""{_HELD}
  INSERT INTO context_value AS value
  SELECT agent, tenant, owner, context, $6::bigint + 1, $7::text, $8::bytea FROM held
  ON CONFLICT (agent, tenant, owner, context) DO UPDATE
  SET version = value.version + 1, saver = excluded.saver, body = excluded.body
  WHERE value.saver = $7
  RETURNING version
) SELECT (SELECT count(*) FROM held), (SELECT version FROM saved)"""
_CHANGE = f"""{_HELD}
  UPDATE context_value AS value SET version = value.version + 1, saver = $7::text,
  body = $8::bytea FROM held AS task WHERE value.agent = task.agent AND value.tenant = task.tenant
  AND value.owner = task.owner AND value.context = task.context
  AND (value.version = $6::bigint OR value.saver = $7) RETURNING value.version
) SELECT (SELECT count(*) FROM held), (SELECT version FROM saved)"""


async def read(source: Source, task: str, encryption: Encryption) -> ContextValue | None:
    """Return the value of a task's context. Raises UnknownEntry."""
    found = await source.fetch(_READ, task)
    if not found:
        return None
    *names, context, version, body = found[0]
    return ContextValue(decrypt_value(body, Scope(*names), context, encryption), version)


async def save(
    source: Source, claim: Claim, value: bytes, version: int, key: str, encryption: Encryption
) -> int:
    """See `Store.save_context`."""
    head = claim.head
    scope, context = head.scope, digested(head.context)
    while True:
        names = (scope.agent, scope.tenant, scope.owner)
        body = encrypt_value(value, scope, context, encryption)
        statement = _CHANGE if version else _ADD
        ((held, new),) = await source.fetch(
            statement, head.id, claim.epoch, *names, version, key, body
        )
        if held:
            if new is None:
                raise ContextChanged
            return int(new)
        found = await source.fetch(
            "SELECT agent, tenant, owner FROM task WHERE id = $1 AND epoch = $2",
            *(head.id, claim.epoch),
        )
        if not found or Scope(*found[0]) == scope:
            raise Stale(head.id)
        scope = Scope(*found[0])  # it was given to another owner meanwhile
