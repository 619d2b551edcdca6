"""The caller of a request: identity, realm, tenant, scopes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

LONGEST = 1024
"""The most characters of an identity."""
INDEXED = 512
"""The most bytes of an agent's key, a tenant, an owner, and of the id of a task or a webhook: so
that they fit a row of an index together (PostgreSQL has 2,704 bytes for that)."""
_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
SEPARATOR = "\x1f"
"""Stands between realm and identity in the name of an owner. Neither of them can have it, so that
no identity of the empty realm is the name of an owner in another realm."""
ANY = "*"
"""As a tenant that a caller may name: any."""


class Caller(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who asks, and in which manner. It is stored with the message that it sent.

    An empty `identity` is anonymous: all anonymous callers share one owner. The same identity in
    two realms is two callers.
    """

    identity: str = ""
    realm: str = ""
    """Who gave the identity; empty where there is only one who does."""
    tenant: str = ""
    tenants: frozenset[str] = frozenset()
    """The tenants that it may name, beside its own; `*` is any. Not stored."""
    expires: float = 0.0
    """When its credential expires, as a Unix time; 0 is never. Not stored."""
    scopes: frozenset[str] = frozenset()
    version: str = "1.0"
    extensions: tuple[str, ...] = ()
    """The extensions that are active: asked for, and offered by the agent."""

    @property
    def qualified(self) -> str:
        """The owner of its tasks, as the store names it; empty if it is anonymous."""
        return qualified(self.realm, self.identity)

    @property
    def owner(self) -> str:
        """Whom its tasks and streams belong to, within all tenants; empty if it is anonymous."""
        return f"{self.tenant}\0{self.qualified}" if self.identity else ""

    @property
    def stored(self) -> Caller:
        """What is kept of it with a message: nothing of the single request's credential."""
        if not self.tenants and not self.expires:
            return self
        return replace(self, tenants=frozenset(), expires=0.0)

    def may_name(self, tenant: str) -> bool:
        """Whether its credential is good for this tenant."""
        return tenant == self.tenant or tenant in self.tenants or ANY in self.tenants


class Scope(Struct, frozen=True, gc=False, cache_hash=True):
    """Whose tasks: part of every query, so that nobody sees what is not theirs."""

    agent: str
    tenant: str = ""
    owner: str = ""


class Access(Struct, frozen=True):
    """Somebody wants something of a task that is another's."""

    caller: Caller
    operation: str
    """As the protocol calls it, such as `GetTask`."""
    task: str
    owner: str
    """The identity whose task it is, of the same tenant."""
    realm: str = ""
    """The realm of that identity."""


Policy: TypeAlias = "Callable[[Access], bool | Awaitable[bool]]"
"""Whether a task is shared for this."""


class Call(Struct, frozen=True):
    """One request's circumstances: who asks, and what stands beside the request."""

    caller: Caller
    key: str = ""
    """The `Idempotency-Key`: the same key and body is the same send, or cancel."""
    place: str = ""
    """The `Last-Event-ID`: what the reader has seen of a stream."""
    trace: str = ""
    """The `traceparent`: the trace that the request belongs to."""
    new_task: str = ""
    """The id of the task that a message begins if there is none, where the caller chooses it."""


class Request(Struct, frozen=True):
    """What `identify` is shown of a request."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    """Names in lower case."""
    client: str
    """The address that the request came from."""
    certificate: str | bytes = ""
    """The certificate that the caller has shown below HTTP, PEM or DER; empty if none."""
    url: str = ""
    """The URL that was called, without its query, where a proof must name it; of gRPC its path,
    behind `//` and the host if that is set. Empty if the server does not know its own address."""
    scope: Mapping[str, Any] | None = None
    """The ASGI scope, with what middleware has put there, such as `user`. None over gRPC."""


def qualified(realm: str, identity: str) -> str:
    """The owner that the store knows for an identity: in the empty realm the identity itself, if
    it is not too long."""
    return owner_key(f"{realm}{SEPARATOR}{identity}" if realm and identity else identity)


def unqualified(owner: str) -> tuple[str, str]:
    """The realm and the identity of an owner, as `qualified` puts them together."""
    realm, separator, identity = owner.partition(SEPARATOR)
    return (realm, identity) if separator else ("", owner)


def long(name: str) -> str:
    """Why this is too long for an index; empty if it is not."""
    if len(name) * 4 > INDEXED and len(name.encode("utf-8", "surrogatepass")) > INDEXED:
        return f"is longer than {INDEXED} bytes"
    return ""


_DIGEST = re.compile("sha256:[0-9a-f]{64}")


def owner_key(owner: str) -> str:
    """What stands for an owner in the store: itself, or its digest if it is too long. One that
    looks like a digest is digested, too, so that no two owners have the same."""
    if not long(owner) and not _DIGEST.fullmatch(owner):
        return owner
    return f"sha256:{hashlib.sha256(owner.encode('utf-8', 'surrogatepass')).hexdigest()}"


def fault(name: str) -> str:
    """Why this cannot name an owner, a realm or a tenant; empty if it can. Names are compared as
    they are, character by character."""
    if len(name) > LONGEST:
        return f"is longer than {LONGEST} characters"
    return "contains a control character, or is not valid Unicode" if _ODD.search(name) else ""
