"""Lets only one server use a file: a lock that ends with the process that holds it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dragoman.stores.sqlite.schema import Unusable


class Lock:
    """A lock file beside the database. The file stays when the lock is released; only the lock
    counts."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + "-lock")
        self._file = -1

    def mark(self) -> None:
        """Create the lock file. It distinguishes a store from its copies."""
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def take(self) -> None:
        """Take the lock. Raises Unusable, which names the process that holds it."""
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unusable(f"{self.path}: {error.strerror}") from error
        if not self.try_lock():
            os.lseek(self._file, 0, os.SEEK_SET)
            owner = os.read(self._file, 32).decode("ascii", "replace").strip()
            self.release()
            raise Unusable(
                f"{self.path.name.removesuffix('-lock')} is in use by another server (process "
                f"{owner or 'unknown'}); only one server at a time can use a SQLite file"
            )
        os.truncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, b"%d\n" % os.getpid())

    def try_lock(self) -> bool:
        """Whether this process holds the lock."""
        try:
            if sys.platform == "win32":
                import msvcrt

                os.lseek(self._file, 1 << 20, os.SEEK_SET)
                msvcrt.locking(self._file, msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def release(self) -> None:
        """Release the lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
