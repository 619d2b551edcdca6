"""Downloads the content of a file that an agent sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from dragoman.client.transport import Unreachable
from dragoman.model.types import Part
from dragoman.security.address_policy import EgressRefused
from dragoman.security.egress import Egress, EgressUnreachable


async def fetch(part: Part, *, allow: Sequence[str] = ()) -> AsyncIterator[bytes]:
    """Yield a file part's content in pieces. The agent chose the URL, so it is downloaded over
    https and from public addresses only; `allow` names other hosts and networks. No credentials are
    sent. Raises PermissionError or Unreachable."""
    if part.raw is not None:
        yield part.raw
        return
    if part.url is None:
        raise ValueError("this part is not a file")
    async with Egress(allow=allow, timeout=60.0) as way:
        try:
            async for piece in way.fetch(part.url):
                yield piece
        except EgressRefused as error:
            raise PermissionError(f"{part.url}: {error}") from None
        except EgressUnreachable as error:
            raise Unreachable(f"{part.url}: {error}") from None
