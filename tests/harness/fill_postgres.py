"""Fills a PostgreSQL store with many tasks, by bulk statements instead of sends."""

from __future__ import annotations

from typing import Any

AGENT = "agent"
OWNERS = 100
"""The number of owners; the first owns half of the tasks."""

_TASKS = """
INSERT INTO task SELECT n, 'task-' || lpad(n::text, 9, '0'), 'agent', 'tenant',
  CASE WHEN n % 2 = 0 THEN 'owner' ELSE 'owner-' || (n / 2) % {owners} END, 'context-' || n / 8, '',
  CASE WHEN n % 1000 = 0 THEN 1 WHEN n % 1000 = 1 THEN 2 WHEN n % 10 = 3 THEN 4 ELSE 3 END,
  to_char(timestamp '2026-01-01' + n * interval '1 second', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
  2, 4, true, false, 2, CASE WHEN n % 1000 = 1 THEN 'worker' ELSE '' END,
  CASE WHEN n % 1000 = 1 THEN extract(epoch FROM now()) + 600 ELSE 0 END, 1, 0, 0,
  CASE WHEN n % 1000 < 2 THEN '1' ELSE '' END, 0, NULL, n % 5 = 0, 200,
  CASE WHEN n % 1000 = 0 THEN extract(epoch FROM now()) END,
  CASE WHEN n % 1000 >= 2 THEN extract(epoch FROM now()) - 2 * 86400 - n END
FROM generate_series(1, {number}) AS n
"""
_REST = (
    'INSERT INTO entry SELECT key, 1, 0, 1, convert_to(format(\'{{"type":"received","message":'
    '{{"messageId":"m","contextId":"%s","taskId":"%s","role":"ROLE_USER",'
    '"parts":[{{"text":"hello"}}]}},"caller":{{}},"at":"%s"}}\', context, id, changed), '
    "'UTF8') FROM task",
    'INSERT INTO entry SELECT key, 2, 1, 2, convert_to(format(\'{{"statusUpdate":{{"taskId":'
    '"%s","contextId":"%s","status":{{"state":"TASK_STATE_%s","timestamp":"%s"}}}}}}\','
    " id, context, (ARRAY['WORKING', 'WORKING', 'COMPLETED', 'FAILED'])[state], changed), 'UTF8') "
    "FROM task",
    "INSERT INTO receipt SELECT agent, tenant, owner, sha256(id::bytea), sha256(id::bytea), key, 1 "
    "FROM task",
    "INSERT INTO message SELECT agent, tenant, owner, sha256(convert_to(context, 'UTF8')), "
    "changed, key, 1 FROM task",
    'INSERT INTO line SELECT key, \'hook\', agent, convert_to(format(\'{{"config":{{"id":"hook",'
    '"taskId":"%s","url":"https://x/"}},"version":"1.0"}}\', id), \'UTF8\'), 1, 0, '
    "extract(epoch FROM now()) + key, key % 400 = 5, key % 4000 = 5, '', 1 FROM task WHERE hooked",
    "INSERT INTO tally SELECT agent, tenant, owner, state, 0, count(*) FROM task "
    "GROUP BY 1, 2, 3, 4",
    "SELECT setval('task_key', {number} / 256 * 256 + 257)",
    "INSERT INTO context_value SELECT DISTINCT agent, tenant, owner, "
    "sha256(convert_to(context, 'UTF8')), 1, 'task:1', '1'::bytea FROM task WHERE key % 16 < 8",
    "INSERT INTO reservation SELECT 'space', 'key-' || key, 'AAAA', CASE WHEN key % 2 = 0 THEN "
    "extract(epoch FROM now()) + key - 1000 END FROM task",
    "VACUUM ANALYZE",
)


async def fill(db: Any, number: int) -> None:
    """Create tasks, most of them ended; of a thousand, one waits and one is working."""
    await db.execute("SET synchronous_commit = off", timeout=60)
    for sql in (_TASKS, *_REST):
        await db.execute(sql.format(number=number, owners=OWNERS), timeout=600)
