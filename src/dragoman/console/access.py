"""Who may see the console: an address from the terminal, a session, or a caller with a scope."""

from __future__ import annotations

import hmac
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from secrets import token_urlsafe
from typing import Any
from urllib.parse import urlencode, urlsplit

from msgspec import Struct

from dragoman import A2AError, Caller
from dragoman.console.http import ACTION_HEADER, Forbidden, Request
from dragoman.console.session import Operator, Session, may_see, read_cookie, start
from dragoman.security.client_network import loopback

TOKEN_AGE = 600.0
"""Seconds for which an address with a token is valid."""
ONE_LOOK = 60.0
"""Seconds between two requests about a task that are still one look."""
PAUSE = 10.0
"""Seconds between two new addresses on the terminal."""
_FORWARDED = frozenset(
    (
        *(b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"),
        *(b"x-forwarded-port", b"x-real-ip", b"via", b"cf-connecting-ip", b"true-client-ip"),
    )
)
"""Headers that proxies add."""
KEY = "console.session"
"""The name of the secret that signs sessions."""


class OneTimeToken:
    """The token in the address that is printed on the terminal. It works once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        """Prints a token on the terminal."""
        self._token = ""
        self._until = 0.0
        self._made = 0.0

    def print(self) -> None:
        """Make a new token, and print it."""
        now = time.monotonic()
        self._token, self._until, self._made = token_urlsafe(24), now + TOKEN_AGE, now
        self._tell(self._token)

    def renew(self) -> None:
        """Print a new one if the last one was used or is too old, but not often."""
        now = time.monotonic()
        if now > self._made + PAUSE and (not self._token or now > self._until):
            self.print()

    def use(self, text: str) -> bool:
        """Whether this is the token, which then works no more."""
        known, self._token = self._token, self._token
        good = bool(known) and time.monotonic() <= self._until
        if good and hmac.compare_digest(known.encode(), text.encode("utf-8", "replace")):
            self._token = ""
            return True
        return False


class Looks:
    """Tells when somebody begins to look at a task: after a time without a request about it."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], float] = OrderedDict()

    def begins(self, who: str, task: str) -> bool:
        """Whether this request begins a look."""
        now = time.monotonic()
        last = self._seen.pop((who, task), -ONE_LOOK)
        self._seen[who, task] = now
        while len(self._seen) > 10_000:
            self._seen.popitem(last=False)
        return now - last >= ONE_LOOK


class Access:
    """Decides who may see the console of an `App`. `open` says that callers with a scope may, from
    anywhere; `token` that somebody at the terminal may, from this machine."""

    def __init__(self, *, open: bool, token: OneTimeToken | None = None) -> None:
        self.open = open
        self.token = token

    async def session(self, request: Request) -> Session | None:
        """The session of a request; None if it may see nothing."""
        origin = origin_of(request)
        key = await request.scope["dragoman.app"].secret(KEY)
        found = read_cookie(request.headers, origin, key)
        if found is not None:
            return found if self.allows(found, request) else None
        if not self.open or b"cookie" in request.headers:
            return None
        try:  # a program that sends its credential with each request
            caller: Caller = await request.scope["dragoman.authenticate"]()
        except A2AError:
            return None
        return start(Operator(caller=caller), origin) if may_see(caller) else None

    def allows(self, session: Session, request: Request) -> bool:
        """Whether this request may have a session that was started here."""
        if session.origin != origin_of(request) or session.ends <= time.time():
            return False
        if session.operator.local:
            return self.token is not None and local(request)
        return self.open


class Credentials(Struct, frozen=True):
    """What a person has typed, as a request has it. Without anything, the credentials are those of
    the connection: a client certificate."""

    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}


async def log_in(
    request: Request, credentials: Credentials, *, operator: bool = True
) -> Caller | None:
    """The caller with these credentials; None if there is none, or, for an operator, if it may not
    see the console."""
    names = {name.lower().encode() for name in credentials.headers}
    headers = [(name, value) for name, value in request.scope["headers"] if name not in names]
    try:
        for name, value in credentials.headers.items():
            headers.append((name.lower().encode(), value.encode("latin-1")))
        query = urlencode(credentials.query).encode()
        caller: Caller = await request.scope["dragoman.authenticate"](headers, query)
    except (A2AError, UnicodeEncodeError):
        return None
    return caller if not operator or may_see(caller) else None


def local(request: Request) -> bool:
    """Whether only somebody on this machine can have sent the request, directly."""
    client = request.scope.get("client") or ("",)
    host = urlsplit(f"//{request.header(b'host')}").hostname or ""
    return loopback(str(client[0])) and loopback(host) and _FORWARDED.isdisjoint(request.headers)


def origin_of(request: Request) -> str:
    """The scheme, host and port that the request names."""
    scope: Mapping[str, Any] = request.scope
    parts = urlsplit(scope["dragoman.url"])
    return f"{parts.scheme}://{parts.netloc.lower()}"


def same_origin(request: Request) -> bool:
    """Whether the request comes from a page of this origin, or from no page at all."""
    origin = request.header(b"origin")
    if origin and origin.lower() != origin_of(request):
        return False
    return request.header(b"sec-fetch-site") in ("", "none", "same-origin")


def check_action(request: Request, operator: Operator, *, harmless: bool = False) -> None:
    """Raise Forbidden unless this request may change something; a harmless one changes nothing."""
    if not same_origin(request) or not request.header(ACTION_HEADER):
        raise Forbidden("an action needs the header X-Dragoman-Console, from the same origin")
    if not operator.acts and not harmless:
        raise Forbidden("an action needs the scope operator:act")
