"""The processes of a fleet, as the console shows them."""

from __future__ import annotations

from pathlib import Path

from dragoman import App
from dragoman.admin import Fleet, ProcessRow
from dragoman.console.process_charts import processes_view
from tests.products.console.parts import booking, consoled, stored


async def test_a_serving_process_is_shown(tmp_path: Path) -> None:
    async with consoled(App(booking(), store=stored(tmp_path), fleet=True)) as running:
        await running.send("Rome")
        async with running.operator() as http:
            (found,) = (await http.get("/console/api/fleet")).json()["processes"]
    assert found["agents"] == ["booking"]
    assert found["version"]
    assert "gone" not in found
    assert found["rows"]


def test_a_process_that_writes_nothing_is_gone() -> None:
    def row(id: str, at: float, **more: int) -> ProcessRow:
        about = {"name": f"host:{id}", "role": "server", "version": "1", "agents": ()}
        return ProcessRow(id=id, at=at, **about, **more)

    rows = [row("a", 1000.0, running=2), row("b", 1005.0), row("a", 1010.0, turns=3)]
    first, second = processes_view(Fleet(now=1036.0, rows=rows))
    assert (first.name, first.gone, second.gone) == ("host:a", False, True)
    assert [each["running"] for each in first.rows] == [2, 0]
    assert [each["turns"] for each in first.rows] == [0, 3]
