"""A client on `ampersend-a2a-x402`, in an environment of its own: it buys something of the agent at
the URL that is its argument, and prints the task."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any
from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import Message, Part, Role, Task, TextPart
from eth_account import Account
from x402_a2a import (
    X402_EXTENSION_URI,
    PaymentStatus,
    create_payment_submission_message,
    process_payment_required,
    x402Utils,
)


async def send(client: Any, message: Message) -> Task:
    """Send a message, and return its task."""
    async for event in client.send_message(message):
        task = event[0] if isinstance(event, tuple) else event
        assert isinstance(task, Task), task
        return task
    raise AssertionError("no answer")


async def main(url: str) -> None:
    """Buy one thing."""
    utils, headers = x402Utils(), {"X-A2A-Extensions": X402_EXTENSION_URI}
    async with httpx.AsyncClient(trust_env=False, headers=headers) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        config = ClientConfig(streaming=False, httpx_client=http, supported_transports=["JSONRPC"])
        client = ClientFactory(config).create(card)
        text = Part(root=TextPart(text="tides"))
        task = await send(client, Message(message_id=str(uuid4()), role=Role.user, parts=[text]))
        assert utils.get_payment_status(task) == PaymentStatus.PAYMENT_REQUIRED, task
        offer = utils.get_payment_requirements(task)
        assert offer is not None, task.status.message
        account = Account.from_key(os.environ["WALLET_KEY"])
        payload = process_payment_required(offer, account, max_value=100_000)
        message = create_payment_submission_message(task.id, payload)
        task = await send(client, message)
        receipt = utils.get_latest_receipt(task)
        told = {
            "task": task.model_dump(mode="json", by_alias=True, exclude_none=True),
            "status": utils.get_payment_status(task),
            "submitted": message.metadata,
            "receipt": receipt.model_dump(mode="json") if receipt else None,
        }
        sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
