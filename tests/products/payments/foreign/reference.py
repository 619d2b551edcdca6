"""The reference packages on both sides: a merchant and a client of the reference SDK of A2A, which
pay with the reference package of x402. Nothing of ours is in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, ClientCallContext, ClientConfig, ClientFactory
from a2a.client.service_parameters import ServiceParametersFactory, with_a2a_extensions
from a2a.helpers.proto_helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as pb
from eth_account import Account
from google.protobuf.json_format import MessageToDict, ParseDict
from starlette.applications import Starlette
from x402.client import x402Client
from x402.http import FacilitatorConfig, HTTPFacilitatorClient
from x402.mechanisms.evm.exact.register import register_exact_evm_client
from x402.mechanisms.evm.exact.server import ExactEvmScheme
from x402.mechanisms.evm.signers import EthAccountSigner
from x402.schemas import (
    PaymentPayload,
    PaymentRequired,
    PaymentRequirements,
    ResourceConfig,
    ResourceInfo,
)
from x402.schemas.v1 import PaymentPayloadV1, PaymentRequiredV1, PaymentRequirementsV1
from x402.server import x402ResourceServer

STATUS = "x402.payment.status"
REQUIRED = "x402.payment.required"
PAYLOAD = "x402.payment.payload"
RECEIPTS = "x402.payment.receipts"
NETWORK = "eip155:84532"
NAME = "base-sepolia"


def _json(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


class Merchant(AgentExecutor):
    """Sells what the text says for ten cents, in objects of one version of x402."""

    def __init__(self, facilitator: str, version: int, to: str, extra: dict[str, Any]) -> None:
        self.version = version
        self.worked: list[str] = []
        self.receipts: list[dict[str, Any]] = []
        self.requested: set[str] = set()
        self._client = HTTPFacilitatorClient(FacilitatorConfig(url=facilitator))
        self._server = x402ResourceServer(self._client)
        self._server.register(NETWORK, ExactEvmScheme())
        self._asks = ResourceConfig(
            scheme="exact", pay_to=to, price="$0.10", network=NETWORK, extra=extra
        )

    async def __aenter__(self) -> Merchant:
        await asyncio.to_thread(self._server.initialize)  # asks the facilitator
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Ask for a payment, or take it and work."""
        assert context.message is not None
        self.requested |= context.requested_extensions
        said = MessageToDict(context.message.metadata)
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        (required,) = self._server.build_payment_requirements(self._asks)
        if said.get(STATUS) != "payment-submitted":
            metadata = {STATUS: "payment-required", REQUIRED: await self._offer(required)}
            await self._say(updater, pb.TASK_STATE_INPUT_REQUIRED, metadata)
            return
        payload, wanted = self._read(said[PAYLOAD], required)
        verified = await self._server.verify_payment(payload, wanted)
        if not verified.is_valid:
            metadata = {STATUS: "payment-failed", "x402.payment.error": "INVALID_SIGNATURE"}
            await self._say(updater, pb.TASK_STATE_FAILED, metadata)
            return
        await self._say(updater, pb.TASK_STATE_WORKING, {STATUS: "payment-verified"})
        text = task.history[0].parts[0].text
        self.worked.append(text)
        receipt = _json(await self._server.settle_payment(payload, wanted))
        self.receipts.append(receipt)
        await updater.add_artifact([new_text_part(f"All about {text}")])
        status = "payment-completed" if receipt["success"] else "payment-failed"
        end = pb.TASK_STATE_COMPLETED if receipt["success"] else pb.TASK_STATE_FAILED
        await self._say(updater, end, {STATUS: status, RECEIPTS: [receipt]})

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """It cannot be canceled."""
        raise NotImplementedError

    async def _offer(self, required: PaymentRequirements) -> dict[str, Any]:
        if self.version == 2:
            resource = ResourceInfo(url="/analyze", description="Analysis")
            return _json(await self._server.create_payment_required_response([required], resource))
        return _json(PaymentRequiredV1(error="Payment required", accepts=[self._old(required)]))

    def _read(self, wire: Any, required: PaymentRequirements) -> tuple[Any, Any]:
        """The payment, and what it is for; as this package compares them."""
        if self.version == 1:
            return PaymentPayloadV1.model_validate(wire), self._old(required)
        payload = PaymentPayload.model_validate(wire)
        found = self._server.find_matching_requirements([required], payload)
        assert found is not None, (required, payload.accepted)
        return payload, found

    def _old(self, required: PaymentRequirements) -> PaymentRequirementsV1:
        return PaymentRequirementsV1(
            scheme=required.scheme,
            network=NAME,
            max_amount_required=required.amount,
            resource="/analyze",
            description="Analysis",
            mime_type="application/json",
            pay_to=required.pay_to,
            max_timeout_seconds=required.max_timeout_seconds,
            asset=required.asset,
            extra=required.extra,
        )

    async def _say(self, updater: TaskUpdater, state: Any, metadata: dict[str, Any]) -> None:
        message = updater.new_agent_message([new_text_part(metadata[STATUS])])
        message.metadata.update(metadata)
        await updater.update_status(state, message)


def application(merchant: Merchant, url: str, extension: str) -> Starlette:
    """The merchant as a server of the reference SDK."""
    card = pb.AgentCard(
        name="Merchant",
        description="Sells.",
        version="1.0.0",
        supported_interfaces=[
            pb.AgentInterface(url=f"{url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=pb.AgentCapabilities(
            streaming=True, extensions=[pb.AgentExtension(uri=extension, required=True)]
        ),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[pb.AgentSkill(id="analyze", name="analyze", description="Sells.", tags=["x"])],
    )
    handler = DefaultRequestHandler(
        agent_executor=merchant, task_store=InMemoryTaskStore(), agent_card=card
    )
    routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/rpc")]
    return Starlette(routes=routes)


class Buyer:
    """A client of the reference SDK that pays with the reference package of x402."""

    def __init__(self, client: Any, extension: str, key: str) -> None:
        parameters = ServiceParametersFactory.create([with_a2a_extensions([extension])])
        self._context = ClientCallContext(service_parameters=parameters)
        self._client = client
        self._paying = x402Client()
        self.submitted: dict[str, Any] = {}
        register_exact_evm_client(self._paying, EthAccountSigner(Account.from_key(key)))
        self._paying.set_spend_controls(False)

    async def buy(self, text: str) -> dict[str, Any]:
        """Send a text, pay what is asked for, and return the task."""
        task = await self._send({"parts": [{"text": text}]})
        said = task["status"]["message"]["metadata"]
        assert said[STATUS] == "payment-required", task
        offer = said[REQUIRED]
        kind: Any = PaymentRequiredV1 if offer["x402Version"] == 1 else PaymentRequired
        payload = await self._paying.create_payment_payload(kind.model_validate(offer))
        self.submitted = {STATUS: "payment-submitted", PAYLOAD: _json(payload)}
        message = {"parts": [{"text": "Payment"}], "metadata": self.submitted}
        return await self._send({"taskId": task["id"], **message})

    async def _send(self, message: dict[str, Any]) -> dict[str, Any]:
        given = {"messageId": str(uuid4()), "role": "ROLE_USER", **message}
        request = ParseDict({"message": given}, pb.SendMessageRequest())
        async for event in self._client.send_message(request, context=self._context):
            found: dict[str, Any] = MessageToDict(event)["task"]
            return found
        raise AssertionError("no answer")


@asynccontextmanager
async def buyer(url: str, extension: str, key: str) -> AsyncIterator[Buyer]:
    """A client for the agent at a URL."""
    async with httpx.AsyncClient(trust_env=False) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        config = ClientConfig(
            streaming=False, httpx_client=http, supported_protocol_bindings=["JSONRPC"]
        )
        yield Buyer(ClientFactory(config).create(card), extension, key)
