"""Five steps with DBOS. It is run as a file, in an environment that has DBOS and not dragoman."""

from __future__ import annotations

import asyncio
import logging
import sys

from dbos import DBOS  # type: ignore[import-not-found]
from orders import STEPS, obey  # type: ignore[import-not-found]


@DBOS.step()
async def add(number: int) -> int:
    """One step."""
    return number + 1


@DBOS.workflow()
async def work(number: int) -> int:
    """The work."""
    for _ in range(STEPS):
        number = await add(number)
    return number


def main() -> None:
    """Work on the store of the command line."""
    logging.disable()
    url = sys.argv[1].replace("postgresql://", "postgresql+psycopg://")
    DBOS(config={"name": "bench", "system_database_url": url, "run_admin_server": False})
    DBOS.launch()
    try:
        asyncio.run(obey(work))
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    main()
