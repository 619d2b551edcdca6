"""Authentication of callers (`schemes`, `tokens`, …), outgoing requests (`egress`), signatures and
encryption.

`App(agent, auth=Bearer(issuer=…, audience=…))` enforces a scheme and lists it on the card. If there
are several, each needs a `realm`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.security.bearer_tokens import Bearer, OpenId
    from dragoman.security.certificates import Certificate
    from dragoman.security.introspection import Introspection
    from dragoman.security.oauth_flows import OAuth2
    from dragoman.security.schemes import AllOf, Anonymous, ApiKey, Basic, Scheme, Token

__all__ = [
    "AllOf",
    "Anonymous",
    "ApiKey",
    "Basic",
    "Bearer",
    "Certificate",
    "Introspection",
    "OAuth2",
    "OpenId",
    "Scheme",
    "Token",
]

_PLACES = {
    "Bearer": "bearer_tokens",
    "Certificate": "certificates",
    "Introspection": "introspection",
    "OAuth2": "oauth_flows",
    "OpenId": "bearer_tokens",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"{__name__}.{_PLACES.get(name, 'schemes')}"), name)
    globals()[name] = found
    return found
