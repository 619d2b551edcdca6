"""What is in a TLS context, for those who cannot use one: its own secrets do not come out again."""

from __future__ import annotations

from ssl import SSLContext
from weakref import WeakKeyDictionary

PEM: WeakKeyDictionary[SSLContext, tuple[bytes, bytes]] = WeakKeyDictionary()
"""The certificate and the key that a context shows."""
