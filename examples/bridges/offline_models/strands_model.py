"""A model of Strands that needs no network: it always says the same."""

from collections.abc import AsyncIterator
from typing import Any

from strands.models import Model


class Sunny(Model):
    """Always says the same."""

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        """Stream an answer."""
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"delta": {"text": "It is sunny."}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}

    update_config = get_config = structured_output = lambda *_, **__: None
