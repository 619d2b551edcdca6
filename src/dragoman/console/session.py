"""Sessions: who has logged in to the console, in a signed cookie."""

from __future__ import annotations

import hashlib
import hmac
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct

from dragoman import Caller

S = TypeVar("S", bound=Struct)

LIFETIME = 12 * 3600.0
"""Seconds after which a session ends."""
SEE, ACT, ALL = "operator", "operator:act", "operator:all"
"""The scopes: to see what happens in one's own tenant, to act there, and to see all tenants."""
LOCAL = Caller(identity="operator", realm="terminal", scopes=frozenset((SEE, ACT, ALL)))
"""Who acts with the address from the terminal."""
_PATH = "/console"


class Operator(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Somebody who may see the console."""

    caller: Caller
    """Who calls agents in the chat, and who is named in logs."""
    local: bool = False
    """Whether it came with the address from the terminal."""

    @property
    def acting(self) -> Caller:
        """Who acts on tasks of others, and looks at them."""
        return LOCAL if self.local else self.caller

    @property
    def acts(self) -> bool:
        """Whether it may cancel, answer, approve and redrive."""
        return self.local or ACT in self.caller.scopes

    @property
    def everywhere(self) -> bool:
        """Whether it sees all tenants."""
        return self.local or ALL in self.caller.scopes

    @property
    def name(self) -> str:
        """How logs name it."""
        if self.caller.identity:
            realm = f"{self.caller.realm}/" if self.caller.realm else ""
            return f"{realm}{self.caller.identity}"
        return "local operator"


class Session(Struct, frozen=True, kw_only=True):
    """An operator, the address for which the session is valid, and its end as Unix time."""

    operator: Operator
    origin: str
    ends: float


def may_see(caller: Caller) -> bool:
    """Whether the caller may see at least its own tenant."""
    return not caller.scopes.isdisjoint((SEE, ACT))


def start(operator: Operator, origin: str) -> Session:
    """Start a session. It ends with the credential that started it, if that is earlier."""
    ends = time.time() + LIFETIME
    if 0 < operator.caller.expires < ends:
        ends = operator.caller.expires
    return Session(operator=operator, origin=origin, ends=ends)


def cookie_name(origin: str, name: str = "dragoman-console") -> str:
    """The cookie's name. Browsers send the cookies of one port to all others of the host."""
    port = origin.rpartition(":")[2]
    return f"{name}-{port}" if port.isdecimal() else name


def set_cookie(session: Session, key: bytes) -> str:
    """The header that gives a browser its session."""
    secure = "; Secure" if session.origin.startswith("https:") else ""
    left = max(0, int(session.ends - time.time()))
    return (
        f"{cookie_name(session.origin)}={sealed(session, key)}; Path={_PATH}; Max-Age={left}; "
        f"HttpOnly; SameSite=Strict{secure}"
    )


def end_cookie(origin: str) -> str:
    """The header that ends a session in a browser."""
    return f"{cookie_name(origin)}=; Path={_PATH}; Max-Age=0; HttpOnly; SameSite=Strict"


def read_cookie(headers: Mapping[bytes, bytes], origin: str, key: bytes) -> Session | None:
    """The session of a request; None if it has none that is valid here and now."""
    name = cookie_name(origin)
    for item in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        found, _, value = item.strip().partition("=")
        session = opened(value, key, Session) if found == name else None
        if session is not None and session.origin == origin and session.ends > time.time():
            return session
    return None


def sealed(value: Struct, key: bytes, purpose: str = "session") -> str:
    """Return a signed text with this value."""
    body = urlsafe_b64encode(msgspec.json.encode(value)).rstrip(b"=")
    return f"{body.decode()}.{_mac(body, key, purpose)}"


def opened(text: str, key: bytes, kind: type[S], purpose: str = "session") -> S | None:
    """Return the value of a signed text; None if it was not signed for this purpose."""
    body, _, mac = text.partition(".")
    raw = body.encode("latin-1", "replace")
    if not hmac.compare_digest(mac.encode("latin-1", "replace"), _mac(raw, key, purpose).encode()):
        return None
    return msgspec.json.decode(urlsafe_b64decode(raw + b"=" * (-len(raw) % 4)), type=kind)


def _mac(body: bytes, key: bytes, purpose: str) -> str:
    head = f"dragoman console {purpose} 1\n".encode()
    return hmac.new(key, head + body, hashlib.sha256).hexdigest()
