"""The caller of a request: identity, realm, tenant, scopes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from dragoman.model.operator import OperatorAccess

LONGEST = 1024
"""The most characters of an identity."""
INDEXED = 512
"""The most bytes of an agent's key, a tenant, an owner, a task id or a webhook id, so that they fit
into one index row together (PostgreSQL allows 2,704 bytes)."""
_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
SEPARATOR = "\x1f"
"""Separates realm and identity in the name of an owner. Neither may contain it, so no identity of
the empty realm equals an owner in another realm."""
ANY = "*"
"""As a tenant that a caller may name: any tenant."""


class Caller(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who sent a request. It is stored with the message.

    An empty `identity` is anonymous: all anonymous callers share one owner. The same identity in
    two realms is two callers.
    """

    identity: str = ""
    realm: str = ""
    """The issuer of the identity; empty if there is only one."""
    tenant: str = ""
    tenants: frozenset[str] = frozenset()
    """Further tenants that the caller may name; `*` means any. Not stored."""
    expires: float = 0.0
    """The Unix time when the credential expires; 0 means never. Not stored."""
    scopes: frozenset[str] = frozenset()
    version: str = "1.0"
    extensions: tuple[str, ...] = ()
    """The active extensions: requested by the caller and offered by the agent."""

    @property
    def qualified(self) -> str:
        """The owner of the caller's tasks, by its name in the store; empty if anonymous."""
        return qualified(self.realm, self.identity)

    @property
    def owner(self) -> str:
        """The owner of the caller's tasks and streams, across all tenants; empty if anonymous."""
        return f"{self.tenant}\0{self.qualified}" if self.identity else ""

    @property
    def stored(self) -> Caller:
        """The part that is stored with a message: without the data of the request's credential."""
        if not self.tenants and not self.expires:
            return self
        return replace(self, tenants=frozenset(), expires=0.0)

    def may_name(self, tenant: str) -> bool:
        """Whether the credential is valid for this tenant."""
        return tenant == self.tenant or tenant in self.tenants or ANY in self.tenants


class Scope(Struct, frozen=True, gc=False, cache_hash=True):
    """Whose tasks: every query contains it, so that callers see only their own tasks."""

    agent: str
    tenant: str = ""
    owner: str = ""


class Access(Struct, frozen=True):
    """A request for a task that another identity owns."""

    caller: Caller
    operation: str
    """The protocol's name, such as `GetTask`."""
    task: str
    owner: str
    """The identity that owns the task, in the same tenant."""
    realm: str = ""
    """The realm of that identity."""


Policy: TypeAlias = "Callable[[Access], bool | Awaitable[bool]]"
"""Decides whether a task is shared with the caller for this operation."""


class Call(Struct, frozen=True):
    """The context of one request: the caller, and headers that matter to the operation."""

    caller: Caller
    key: str = ""
    """The `Idempotency-Key`: the same key and body mean the same send or cancel."""
    place: str = ""
    """The `Last-Event-ID`: the last event of the stream that the client has received."""
    trace: str = ""
    """The `traceparent`: the trace of the request."""
    new_task: str = ""
    """The id of a new task, where the dialect lets the caller choose it."""
    operator: OperatorAccess | None = None
    """Set if the caller acts as an operator; see `App.for_operator`."""


class Request(Struct, frozen=True):
    """The part of a request that `identify` gets."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    """Header names are in lower case."""
    client: str
    """The address of the client."""
    certificate: str | bytes = ""
    """The client certificate of the TLS connection, PEM or DER; empty if there is none."""
    url: str = ""
    """The URL of the request without its query, for proofs that must name it; for gRPC the path,
    after `//` and the host if that is set. Empty if the server does not know its own address."""
    scope: Mapping[str, Any] | None = None
    """The ASGI scope, with the additions of middleware, such as `user`. None over gRPC."""


def qualified(realm: str, identity: str) -> str:
    """The store's owner name of an identity: in the empty realm the identity itself, unless it is
    too long."""
    return owner_key(f"{realm}{SEPARATOR}{identity}" if realm and identity else identity)


def unqualified(owner: str) -> tuple[str, str]:
    """Split an owner name into realm and identity."""
    realm, separator, identity = owner.partition(SEPARATOR)
    return (realm, identity) if separator else ("", owner)


def long(name: str) -> str:
    """Why this name is too long for an index; empty if it is not."""
    if len(name) * 4 > INDEXED and len(name.encode("utf-8", "surrogatepass")) > INDEXED:
        return f"is longer than {INDEXED} bytes"
    return ""


_DIGEST = re.compile("sha256:[0-9a-f]{64}")


def owner_key(owner: str) -> str:
    """The store's key of an owner: the owner name, or its digest if it is too long. A name that
    looks like a digest is digested, too, so that two owners never share a key."""
    if not long(owner) and not _DIGEST.fullmatch(owner):
        return owner
    return f"sha256:{hashlib.sha256(owner.encode('utf-8', 'surrogatepass')).hexdigest()}"


def fault(name: str) -> str:
    """Why this cannot be the name of an owner, a realm or a tenant; empty if it can. Names are
    compared character by character."""
    if len(name) > LONGEST:
        return f"is longer than {LONGEST} characters"
    return "contains a control character, or is not valid Unicode" if _ODD.search(name) else ""
