"""What a flow of CrewAI is given: a store for its state, and a way to ask the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crewai.flow import (
    ConsoleProvider,
    Flow,
    HumanFeedbackPending,
    PendingFeedbackContext,
    flow_config,
)
from crewai.flow.flow_definition import FlowDefinition, FlowMethodDefinition
from crewai.flow.persistence import FlowPersistence
from pydantic import BaseModel, PrivateAttr
from pydantic_core import PydanticSerializationError, to_jsonable_python

from dragoman import UserError
from dragoman.bridges.crewai.logged_calls import CALLS


class FlowStore(FlowPersistence):
    """Has the state of one run. What a store of the user's keeps, stays there."""

    persistence_type: str = "DragomanFlowStore"
    _own: FlowPersistence | None = PrivateAttr()
    _state: dict[str, Any] | None = PrivateAttr()
    _pending: dict[str, Any] | None = PrivateAttr()
    _methods: Mapping[str, FlowMethodDefinition] = PrivateAttr()

    def __init__(
        self,
        own: FlowPersistence | None,
        state: dict[str, Any] | None,
        pending: dict[str, Any] | None,
        methods: Mapping[str, FlowMethodDefinition],
    ) -> None:
        super().__init__()
        self._own, self._state, self._pending, self._methods = own, state, pending, methods

    @property
    def state(self) -> dict[str, Any] | None:
        """The state with which a flow has paused."""
        return self._state

    @property
    def pending(self) -> dict[str, Any] | None:
        """Which method has asked for feedback."""
        return self._pending

    def init_db(self) -> None:
        """See `FlowPersistence`."""

    def save_state(
        self, flow_uuid: str, method_name: str, state_data: dict[str, Any] | BaseModel
    ) -> None:
        """See `FlowPersistence`."""
        if self._own is not None:
            self._own.save_state(flow_uuid, method_name, state_data)

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """See `FlowPersistence`."""
        return self._state if self._own is None else self._own.load_state(flow_uuid)

    def save_pending_feedback(
        self,
        flow_uuid: str,
        context: PendingFeedbackContext,
        state_data: dict[str, Any] | BaseModel,
    ) -> None:
        """See `FlowPersistence`."""
        self.save_state(flow_uuid, context.method_name, state_data)
        try:
            self._state = to_jsonable_python(state_data)
        except (PydanticSerializationError, ValueError):
            raise UserError(
                "The flow cannot wait for an answer: its state has values that cannot be written "
                "as JSON"
            ) from None
        self._pending = {**context.to_dict(), "llm": None}  # it may have keys

    def load_pending_feedback(
        self, flow_uuid: str
    ) -> tuple[dict[str, Any], PendingFeedbackContext] | None:
        """See `FlowPersistence`."""
        if self._pending is None:
            return None
        context = PendingFeedbackContext.from_dict(self._pending)
        feedback = self._methods[context.method_name].human_feedback
        context.llm = None if feedback is None else feedback.llm
        return dict(self._state or {}), context


def store_of(flow: Flow[Any], about: FlowDefinition) -> FlowPersistence | None:
    """The store of the user's: that of the flow, or else of one of its methods."""
    if flow.persistence is not None:
        return flow.persistence
    stores = [each.persist.persistence for each in about.methods.values() if each.persist]
    return next((each for each in stores if isinstance(each, FlowPersistence)), None)


class ClientProvider:
    """Asks the client what a flow asks. A flow that is not served asks at the console."""

    def request_feedback(self, context: PendingFeedbackContext, flow: Flow[Any]) -> str:
        """See `HumanFeedbackProvider`."""
        if CALLS.get(None) is None:
            return ConsoleProvider().request_feedback(context, flow)
        raise HumanFeedbackPending(context=context)

    def request_input(
        self, message: str, flow: Flow[Any], metadata: dict[str, Any] | None = None
    ) -> str | None:
        """See `InputProvider`."""
        if (calls := CALLS.get(None)) is None:
            return ConsoleProvider().request_input(message, flow, metadata)
        said, _ = calls.ask(message, None)
        return said


def ask_clients() -> None:
    """Let flows ask the client, unless the author has configured another provider."""
    client = ClientProvider()
    if flow_config.hitl_provider is None:
        flow_config.hitl_provider = client
    if flow_config.input_provider is None:
        flow_config.input_provider = client
