"""The file of a wallet: what it has signed, and the receivers that it knows."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.payments.objects import Authorization


class LedgerUnavailable(OSError):
    """The file of a wallet cannot be locked, read or written."""


class Signed(Struct, kw_only=True):
    """A payment that counts: it was signed, or was about to be."""

    offer: str
    """The digest of the offer that it pays for."""
    origin: str
    """The origin of the agent."""
    task: str
    """The task of the agent."""
    symbol: str
    amount: int
    decimals: int
    network: str
    to: str
    at: float
    """When it was counted, as a Unix time."""
    authorization: Authorization
    signature: str = ""
    """Empty until it is signed."""
    asset: str = ""
    """The address of the contract."""
    on_behalf_of: str = ""
    """The payer's own task for which it was paid; empty if there is none."""
    unused: bool = False
    """It has expired, and by the chain nothing was transferred: it does not count any more."""
    transaction: str = ""
    """The transaction of its transfer, once the chain has shown it."""

    def __repr__(self) -> str:
        return f"Signed(task={self.task!r}, amount={self.amount}, symbol={self.symbol!r})"


class Ledger(Struct, kw_only=True):
    """The content of the file."""

    payments: list[Signed] = []
    receivers: dict[str, str] = {}
    """The receiver of each origin, network and asset."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of the file, which all processes of the wallet share. Raises
    LedgerUnavailable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise LedgerUnavailable(f"the wallet's file cannot be locked: {error}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            raise LedgerUnavailable(f"the wallet's file cannot be locked: {error}") from error
        yield
    finally:
        os.close(handle)


def load(path: Path) -> Ledger:
    """Read the file; an empty ledger if there is none. Raises LedgerUnavailable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Ledger)
    except FileNotFoundError:
        return Ledger()
    except (OSError, msgspec.DecodeError) as error:
        raise LedgerUnavailable(f"the wallet's file {path} cannot be read") from error


def store(path: Path, ledger: Ledger) -> None:
    """Write the file, durably and as a whole; only its owner can read it. Raises
    LedgerUnavailable."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mode 600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(ledger))
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise LedgerUnavailable(f"the wallet's file cannot be written: {error}") from error
