"""The tongues of the protocol: wire objects to values and back, nothing else.

1.0 is spoken. A request in an older one is recognised by its method name or path, so that it
is told `VersionNotSupported` and not that its method does not exist.
"""

from __future__ import annotations

import re

from dragoman.errors import VersionNotSupported

SUPPORTED = ("1.0",)
OLDER = re.compile(
    r"(message/(send|stream)"
    r"|tasks/(get|cancel|resubscribe|send|sendSubscribe)"
    r"|tasks/pushNotification(Config)?/\w+"
    r"|agent/getAuthenticatedExtendedCard)"
)
_NUMBER = re.compile(r"(\d+\.\d+)(\.\d+)?")


def version(asked: str) -> str:
    """The version to answer in; an empty one leaves the choice to method name and path."""
    if not asked or asked == "1.0":
        return "1.0"
    match = _NUMBER.fullmatch(asked)
    if match is None or match[1] not in SUPPORTED:
        raise unsupported(asked[:32])
    return match[1]


def unsupported(what: str) -> VersionNotSupported:
    """The error for a version that is not spoken here."""
    spoken = ", ".join(SUPPORTED)
    return VersionNotSupported(
        f"A2A version {what!r} is not supported; supported: {spoken}",
        metadata={"supported": spoken},
    )
