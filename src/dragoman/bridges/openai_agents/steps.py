"""Models and sessions of the OpenAI Agents SDK whose calls are steps of the task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from agents import Model, ModelProvider, ModelResponse, Session
from msgspec import UNSET
from openai.types.responses import Response, ResponseCompletedEvent, ResponseTextDeltaEvent
from pydantic import TypeAdapter
from pydantic_core import to_json

from dragoman.bridges.steps import Steps, digest

_RESPONSE = TypeAdapter(ModelResponse)
AS_SENT: dict[str, Any] = {"exclude_unset": True, "by_alias": True, "serialize_as_any": True}
"""Items go back to the provider, which may refuse fields that it has not sent itself."""


class LoggedProvider(ModelProvider):
    """Finds models by their names."""

    def __init__(self, provider: ModelProvider, steps: Steps) -> None:
        self._provider = provider
        self._steps = steps

    def get_model(self, model_name: str | None) -> Model:
        """See `ModelProvider.get_model`."""
        return LoggedModel(self._provider.get_model(model_name), self._steps)

    def wrapped(self, model: Any) -> Any:
        """A model whose calls are steps; a name stays a name."""
        return LoggedModel(model, self._steps) if isinstance(model, Model) else model


class LoggedModel(Model):
    """A model whose responses are steps of the task."""

    def __init__(self, model: Model, steps: Steps) -> None:
        self._model = model
        self._steps = steps

    def get_retry_advice(self, request: Any) -> Any:
        """See `Model.get_retry_advice`."""
        return self._model.get_retry_advice(request)

    async def get_response(
        self, system_instructions: Any, input: Any, *others: Any, **options: Any
    ) -> ModelResponse:
        """See `Model.get_response`."""

        async def ask() -> Any:
            return await self._model.get_response(system_instructions, input, *others, **options)

        def dump(response: ModelResponse) -> Any:
            return _RESPONSE.dump_python(response, mode="json", **AS_SENT)

        name = _name(system_instructions, input)
        return await self._steps.call(name, ask, dump, _RESPONSE.validate_python)

    def stream_response(
        self, system_instructions: Any, input: Any, *others: Any, **options: Any
    ) -> AsyncIterator[Any]:
        """See `Model.stream_response`. A response of the log has each text in one piece."""

        async def ask(give: Callable[[Any], None]) -> Any:
            items, response = [], None
            async for event in self._model.stream_response(
                system_instructions, input, *others, **options
            ):
                if event.type == "response.output_item.done":
                    items.append(event.item)
                elif event.type == "response.completed":
                    response = event.response
                give(event)
            if response is not None and not response.output:
                return response.model_copy(update={"output": items})
            return response

        name = _name(system_instructions, input)
        return self._steps.stream(name, ask, _dumped, _loaded, _events)


def _name(*given: Any) -> str:
    """The name of the step in which a model is asked this: several may be asked at a time."""
    return f"model:{digest(to_json(given, serialize_unknown=True))}"


def _dumped(response: Response | None) -> Any:
    """A response as JSON, without what it repeats of the request."""
    if response is None:  # it has failed, as the events said
        return UNSET
    found = response.model_dump(mode="json", exclude={"instructions", "tools"}, **AS_SENT)
    return {**found, "tools": []}


def _loaded(data: Any) -> Response:
    return Response.construct(**data)


def _events(response: Response) -> list[Any]:
    """The events of a response that was streamed before."""
    events: list[Any] = []
    for number, item in enumerate(response.output):
        for place, content in enumerate(item.content if item.type == "message" else ()):
            if content.type == "output_text":
                delta = ResponseTextDeltaEvent(
                    type="response.output_text.delta",
                    item_id=item.id,
                    output_index=number,
                    content_index=place,
                    delta=content.text,
                    logprobs=[],
                    sequence_number=len(events),
                )
                events.append(delta)
    done = ResponseCompletedEvent.construct(
        type="response.completed", response=response, sequence_number=len(events)
    )
    return [*events, done]


class LoggedSession:
    """A session whose calls are steps: what the turn has added is not added twice."""

    def __init__(self, session: Session, steps: Steps) -> None:
        self._session = session
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)  # such as `run_compaction`, which not all have

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """See `Session.get_items`."""
        found: list[Any] = await self._call("get_items", limit)
        return found

    async def add_items(self, items: list[Any]) -> None:
        """See `Session.add_items`."""
        await self._call("add_items", items)

    async def pop_item(self) -> Any:
        """See `Session.pop_item`."""
        return await self._call("pop_item")

    async def clear_session(self) -> None:
        """See `Session.clear_session`."""
        await self._call("clear_session")

    async def _call(self, name: str, *given: Any) -> Any:
        method = getattr(self._session, name)
        return await self._steps.call(
            f"session.{name}", lambda: method(*given), lambda found: found
        )
