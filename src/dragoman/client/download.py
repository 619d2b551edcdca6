"""The content of a file that an agent sent, wherever it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from dragoman.client.transport import Unreachable
from dragoman.model.types import Part
from dragoman.security import egress


async def fetch(part: Part, *, allow: Sequence[str] = ()) -> AsyncIterator[bytes]:
    """A file part's content in pieces. One that is given by its URL is downloaded, over https and
    from public addresses only, since a stranger chose it: `allow` names other hosts and networks.
    Nothing of what the client knows is sent along. PermissionError, Unreachable."""
    if part.raw is not None:
        yield part.raw
        return
    if part.url is None:
        raise ValueError("this part is not a file")
    async with egress.Egress(allow=allow, timeout=60.0) as way:
        try:
            async for piece in way.fetch(part.url):
                yield piece
        except egress.EgressRefused as error:
            raise PermissionError(f"{part.url}: {error}") from None
        except egress.EgressUnreachable as error:
            raise Unreachable(f"{part.url}: {error}") from None
