"""The private values of contexts in a SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.model.caller import Scope
from dragoman.security.encryption import Encryption
from dragoman.stores.codec import digested
from dragoman.stores.context_values import decrypt_value, encrypt_value, next_version
from dragoman.stores.sqlite.driver import Connection
from dragoman.stores.store import Claim, ContextValue, Stale

if TYPE_CHECKING:
    from dragoman.stores.sqlite.transaction import Transaction

PUT = (
    "INSERT INTO context_value (scope, context, version, saver, body) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET version = excluded.version, saver = excluded.saver, "
    "body = excluded.body"
)
OF_TASK = "(scope, context) = (SELECT scope, context FROM task WHERE key = ?1)"


def read(db: Connection, task: str, encryption: Encryption) -> ContextValue | None:
    """Return the value of a task's context. Raises UnknownEntry."""
    found = db.execute(
        "SELECT scope.agent, scope.tenant, scope.owner, task.context, context_value.version, "
        "context_value.body FROM task JOIN scope ON scope.key = task.scope JOIN context_value "
        "ON context_value.scope = task.scope AND context_value.context = task.context "
        "WHERE task.id = ?",
        (task,),
    ).fetchone()
    if found is None:
        return None
    *names, context, version, body = found
    return ContextValue(decrypt_value(body, Scope(*names), digested(context), encryption), version)


def save(
    transaction: Transaction,
    claim: Claim,
    value: bytes,
    version: int,
    key: str,
    encryption: Encryption,
) -> int:
    """See `Store.save_context`."""
    row = transaction.claimed(claim.head.id)
    if row is None or row.epoch != claim.epoch:
        raise Stale(claim.head.id)
    db, scope = transaction.db, transaction.scope(row.scope)
    found = db.execute(
        "SELECT version, saver FROM context_value WHERE scope = ? AND context = ?",
        (scope, row.context),
    ).fetchone()
    new = next_version(found, version, key)
    body = encrypt_value(value, row.scope, digested(row.context), encryption)
    db.execute(PUT, (scope, row.context, new, key, body))
    return new


def any_there(db: Connection) -> bool:
    """Whether any context has a value."""
    (found,) = db.execute("SELECT EXISTS (SELECT 1 FROM context_value)").fetchone()
    return bool(found)


def forget(db: Connection, task: int) -> None:
    """Delete the value of the context of a task that is being deleted, if the context has no other
    task."""
    db.execute(
        f"DELETE FROM context_value WHERE {OF_TASK} AND NOT EXISTS (SELECT 1 FROM message "
        "WHERE message.scope = context_value.scope AND message.context = context_value.context "
        "AND message.task <> ?1)",
        (task,),
    )
