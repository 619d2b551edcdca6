"""Calls the author's function that identifies a credential: `Token(verify=…)`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from dragoman.model.caller import Caller, Request
from dragoman.model.errors import Unauthenticated

Answer: TypeAlias = Caller | str | None
Verify: TypeAlias = Callable[..., Answer | Awaitable[Answer]]
"""Gets the credential, and the request if it has one more parameter. Returns a `Caller` or an
identity; None if the credential is not valid. It may also raise Unauthenticated or Forbidden."""


class CustomVerifier:
    """Calls a function with credentials. `values` names its arguments."""

    def __init__(self, scheme: str, function: Verify, *values: str, unknown: str) -> None:
        self._title = f"{scheme}: verify"
        self._function = function
        self._unknown = unknown
        self._with_request = _takes_request(function, self._title, values)

    def __call__(self, request: Request, *values: str) -> Caller | Awaitable[Caller]:
        """Return the caller. Raises Unauthenticated."""
        more = (request,) if self._with_request else ()
        found = self._function(*values, *more)
        return self._later(found) if inspect.isawaitable(found) else self._caller(found)

    async def _later(self, found: Awaitable[Answer]) -> Caller:
        return self._caller(await found)

    def _caller(self, found: Any) -> Caller:
        if isinstance(found, Caller):
            return found
        if found is None or found == "":
            raise Unauthenticated(self._unknown)
        if isinstance(found, str):
            return Caller(identity=found)
        # For example True, which does not say who the caller is.
        kind = type(found).__name__
        raise TypeError(f"{self._title} returned {kind}; expected a Caller, an identity or None")


def _takes_request(function: Verify, title: str, values: tuple[str, ...]) -> bool:
    """Whether a function takes the request after these values. Raises ValueError if its parameters
    do not fit."""
    if not callable(function):
        raise ValueError(f"{title}: expected a function, got {type(function).__name__}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions in C have no signature
        return False
    for given in (values, (*values, "request")):
        try:
            signature.bind(*given)
        except TypeError:
            continue
        return given is not values
    names = ", ".join(values)
    raise ValueError(f"{title} must take ({names}) or ({names}, request)")
