"""The processes of a fleet, with their rows as charts show them."""

from __future__ import annotations

from dragoman.admin import Fleet, ProcessRow, processes
from dragoman.console.shapes import ProcessView

NUMBERS = ("running", "streams", "messages", "turns", "failed", "lost")


def processes_view(fleet: Fleet) -> list[ProcessView]:
    """Show each process with what its rows say, the oldest first."""
    rows: dict[str, list[ProcessRow]] = {}
    for row in fleet.rows:
        rows.setdefault(row.id, []).append(row)
    return [
        ProcessView(
            name=each.latest.name,
            role=each.latest.role,
            version=each.latest.version,
            agents=each.latest.agents,
            first=each.first,
            seen=each.latest.at,
            gone=each.gone,
            running=each.latest.running,
            streams=each.latest.streams,
            rows=[
                {"at": row.at, **{name: getattr(row, name) for name in NUMBERS}}
                for row in rows.get(each.latest.id, ())
            ],
        )
        for each in processes(fleet)
    ]
