"""A disk that forgets, when the power is cut, what it was not told to keep.

It is a VFS of SQLite: writes go through to the file, and are remembered until a sync makes them
sure. `cut` fails all further I/O; `survive` writes what is left of the files to another folder,
as after a restart of the machine: no locks, no shared memory.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import apsw

from dragoman.stores.sqlite.driver import Connection, Driver

SECTOR = 512
_names = itertools.count()

Keep = Literal["all", "none", "some", "torn"]
"""What of the unsure writes survives: all (a killed process), none, a random choice of them, a
random choice of their sectors."""


class Image:
    """One file: what is sure of it, and the writes that are not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sure = bytearray(path.read_bytes() if path.exists() else b"")
        self.unsure: list[tuple[int, bytes | None]] = []
        """Writes by offset, truncations as an offset alone."""

    def sync(self) -> None:
        """All that was written is sure."""
        for write in self.unsure:
            _apply(self.sure, *write)
        self.unsure.clear()

    def left(self, keep: Keep, chance: random.Random) -> bytes:
        """What is left of it without power."""
        content = bytearray(self.sure)
        for offset, data in self.unsure:
            if keep == "all":
                _apply(content, offset, data)
            elif keep == "torn" and data is not None:
                end = offset + len(data)
                for start in range(offset - offset % SECTOR, end, SECTOR):
                    first, stop = max(start, offset), min(start + SECTOR, end)
                    if chance.random() < 0.5:
                        _apply(content, first, data[first - offset : stop - offset])
            elif keep != "none" and chance.random() < 0.5:
                _apply(content, offset, data)
        return bytes(content)


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        return
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


class Disk:
    """Some files, and the power they need."""

    def __init__(self, *, checkpoint: int = 16) -> None:
        self.name = f"power-{next(_names)}"
        self.off = False
        self.lock = threading.Lock()
        self.syncs = 0
        self.trap: Callable[[int], bool] = lambda syncs: False
        """Cuts the power before this sync, in the middle of whatever is going on."""
        self._checkpoint = checkpoint
        self._images: dict[Path, Image] = {}
        self._vfs = Vfs(self)
        self.driver = Driver(self._connect, apsw.Error)

    def _connect(self, path: Path) -> Connection:
        db: Any = Wire(str(path), vfs=self.name)
        db.set_busy_timeout(10_000)
        # often, so that a cut also hits the way from the log into the file
        db.execute(f"PRAGMA wal_autocheckpoint = {self._checkpoint}")
        return db  # type: ignore[no-any-return]

    def image(self, path: Path) -> Image:
        """The image of a file; all connections to it share one."""
        with self.lock:
            if path not in self._images:
                self._images[path] = Image(path)
            return self._images[path]

    def deleted(self, path: Path) -> None:
        """The file is gone (and that is sure at once)."""
        with self.lock:
            self._images.pop(path, None)

    def cut(self) -> None:
        """No more power."""
        with self.lock:
            self.off = True

    def survive(self, folder: Path, keep: Keep, chance: random.Random) -> None:
        """The files as the next start finds them."""
        folder.mkdir()
        with self.lock:
            assert self.off
            for path, image in self._images.items():
                (folder / path.name).write_bytes(image.left(keep, chance))

    def close(self) -> None:
        """Nobody opens files here any more."""
        self._vfs.unregister()


class Wire(apsw.Connection):
    """A connection that can be closed without power: it has nothing to lose any more."""

    def close(self, force: bool = False) -> None:
        with contextlib.suppress(apsw.Error):
            super().close(True)


class Vfs(apsw.VFS):
    """SQLite's own way to files, with our files in it."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.name, "")
        self._disk = disk

    def xOpen(self, name: Any, flags: list[int]) -> File:
        return File(self._disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if self._disk.off:
            raise apsw.IOError("disk I/O error: no power")
        super().xDelete(filename, syncdir)
        self._disk.deleted(Path(filename))


class File(apsw.VFSFile):
    """One open file."""

    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        if disk.off:
            raise apsw.CantOpenError("unable to open: no power")
        super().__init__("", name, flags)
        self._disk = disk
        text = name.filename() if isinstance(name, apsw.URIFilename) else name
        # one without a name is temporary
        self._image = disk.image(Path(text)) if text else Image(Path("/dev/null"))

    def _power(self) -> None:
        if self._disk.off:
            raise apsw.IOError("disk I/O error: no power")

    def xRead(self, amount: int, offset: int) -> bytes:
        self._power()
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        with self._disk.lock:
            self._power()
            self._image.unsure.append((offset, bytes(data)))
            super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:
        with self._disk.lock:
            self._power()
            self._image.unsure.append((size, None))
            super().xTruncate(size)

    def xSync(self, flags: int) -> None:
        with self._disk.lock:
            self._disk.syncs += 1
            if self._disk.trap(self._disk.syncs):
                self._disk.off = True
            self._power()
            self._image.sync()  # and no real sync: the machine's power is not what is cut
