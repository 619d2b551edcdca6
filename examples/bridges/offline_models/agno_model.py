"""A model of Agno that needs no network: it always says the same."""

from typing import Any

from agno.models.base import Model
from agno.models.response import ModelResponse


class Sunny(Model):
    """Always says the same."""

    async def ainvoke_stream(self, *_: Any, **__: Any) -> Any:
        """Stream an answer."""
        yield ModelResponse(content="It is sunny.")

    ainvoke = invoke = invoke_stream = ainvoke_stream
    _parse_provider_response = _parse_provider_response_delta = None
