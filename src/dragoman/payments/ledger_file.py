"""The ledger of a wallet in a file, which the processes of one machine share."""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from dragoman.payments.ledger import Ledger, LedgerUnavailable

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds to wait for another process that has locked the file."""
PAUSE = 0.005
"""Seconds between two attempts to lock it: a wait for a lock has no limit."""


class LedgerFile:
    """A ledger in a file. See `LedgerPlace`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def read(self) -> Ledger:
        """See `LedgerPlace`."""
        return await asyncio.to_thread(load, self.path)

    async def change(self, work: Callable[[Ledger], T]) -> T:
        """See `LedgerPlace`."""
        return await asyncio.to_thread(self._change, work)

    def _change(self, work: Callable[[Ledger], T]) -> T:
        with _locked(self.path):
            found = load(self.path)
            before = msgspec.json.encode(found)
            result = work(found)
            after = msgspec.json.encode(found)
            if after != before:
                _store(self.path, after)
            return result


def load(path: Path) -> Ledger:
    """Read the file; an empty ledger if there is none. Raises LedgerUnavailable."""
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise LedgerUnavailable(
                    f"the wallet's file {path} can be read by others, or changed: run chmod 600"
                )
            return msgspec.json.decode(file.read(), type=Ledger)
    except FileNotFoundError:
        return Ledger()
    except LedgerUnavailable:
        raise
    except (OSError, msgspec.DecodeError) as error:
        raise LedgerUnavailable(f"the wallet's file {path} cannot be read") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of the file. Raises LedgerUnavailable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise LedgerUnavailable(f"the wallet's file cannot be locked: {error}") from error
    try:
        _lock(handle, path)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, path: Path) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise LedgerUnavailable(
                    f"the wallet's file {path} cannot be locked: another process has locked it "
                    f"for {PATIENCE:g} seconds"
                ) from None
            time.sleep(PAUSE)
        except OSError as error:
            raise LedgerUnavailable(f"the wallet's file cannot be locked: {error}") from error
        else:
            return


def _store(path: Path, content: bytes) -> None:
    """Write the file, durably and as a whole; only its owner can read it. Raises
    LedgerUnavailable."""
    new = path.with_name(path.name + ".new")
    try:
        new.unlink(missing_ok=True)  # of a process that was killed; the lock is ours
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise LedgerUnavailable(f"the wallet's file cannot be written: {error}") from error
