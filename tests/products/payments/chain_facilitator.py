"""The facilitator of the reference package, which settles on a real chain. It runs in a test, or as
a process of its own: `python -m tests.products.payments.chain_facilitator PORT NODE KEY FILE`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientSession, web
from x402.facilitator import x402FacilitatorSync
from x402.mechanisms.evm.exact.facilitator import ExactEvmScheme
from x402.mechanisms.evm.exact.v1.facilitator import ExactEvmSchemeV1
from x402.mechanisms.evm.signers import FacilitatorWeb3Signer
from x402.schemas import PaymentPayload, PaymentRequirements
from x402.schemas.v1 import PaymentPayloadV1, PaymentRequirementsV1

from dragoman.payments import Facilitator
from tests.products.payments.local_chain import FACILITATOR_KEY, NETWORK

PATIENCE = 20.0
"""Seconds until a transaction is mined."""


class ChainFacilitator:
    """A server for `verify` and `settle`, and on `/rpc` the node."""

    def __init__(
        self, node: str, *, key: str = FACILITATOR_KEY, patience: float = PATIENCE
    ) -> None:
        self.url = ""
        self.asked: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.trouble: list[str] = []
        """What goes wrong in the next calls of `settle`: `silent` before the transfer, `lost` after
        it, `lies` (it says that it has settled), `denies` (it has, and says that it has not)."""
        self.before: Any = None
        """Is called with the payment before the next settlement."""
        self.released = asyncio.Event()
        self.file = -1
        """Where the nonces are written that are to be settled; -1 is nowhere."""
        self._node = node
        signer = FacilitatorWeb3Signer(key, node, patience)
        self._package = x402FacilitatorSync()
        self._package.register([NETWORK], ExactEvmScheme(signer))
        self._package.register_v1(["base-sepolia"], ExactEvmSchemeV1(signer))

    def client(self, **options: Any) -> Facilitator:
        """A client that may call it."""
        return Facilitator(self.url, allow=["127.0.0.1"], **{"timeout": 20.0, **options})

    async def verify(self, request: web.Request) -> web.Response:
        """Answer a verification."""
        return await self._have(self._package.verify, await self._body(request, "verify"))

    async def settle(self, request: web.Request) -> web.Response:
        """Carry out a payment."""
        body = await self._body(request, "settle")
        trouble = self.trouble.pop(0) if self.trouble else ""
        if self.before is not None:
            before, self.before = self.before, None
            await asyncio.to_thread(before, body["paymentPayload"])
        if trouble == "silent":
            await self.released.wait()
        payload = body["paymentPayload"]
        network = body["paymentRequirements"]["network"]
        signed = payload["payload"]["authorization"]
        payer = signed["from"]
        if self.file >= 0:
            os.write(self.file, f"{signed['nonce']}\n".encode())
        said = {"transaction": "0x" + "44" * 32, "network": network, "payer": payer}
        if trouble == "lies":
            return web.json_response({"success": True, **said})
        answer = await self._have(self._package.settle, body)
        if trouble == "lost":
            return web.Response(status=502, text="Bad gateway")
        if trouble == "denies":
            said = {**said, "transaction": "", "errorReason": "transaction_failed"}
            return web.json_response({"success": False, **said})
        return answer

    async def rpc(self, request: web.Request) -> web.Response:
        """Pass a question on to the node."""
        async with (
            ClientSession() as http,
            http.post(self._node, json=await request.json()) as found,
        ):
            return web.Response(body=await found.read(), content_type="application/json")

    async def _have(self, call: Any, body: dict[str, Any]) -> web.Response:
        first = body["x402Version"] == 1
        payload = (PaymentPayloadV1 if first else PaymentPayload).model_validate(
            body["paymentPayload"]
        )
        required = (PaymentRequirementsV1 if first else PaymentRequirements).model_validate(
            body["paymentRequirements"]
        )
        found = await asyncio.to_thread(call, payload, required)
        return web.json_response(found.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def _body(self, request: web.Request, what: str) -> dict[str, Any]:
        self.asked[what] += 1
        body: dict[str, Any] = await request.json()
        self.bodies.append(body)
        return body


@asynccontextmanager
async def chain_facilitator(
    node: str, *, port: int = 0, key: str = FACILITATOR_KEY
) -> AsyncIterator[ChainFacilitator]:
    """Run one."""
    found = ChainFacilitator(node, key=key)
    app = web.Application()
    routes = {"/verify": found.verify, "/settle": found.settle, "/rpc": found.rpc}
    app.add_routes([web.post(path, answer) for path, answer in routes.items()])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield found
    finally:
        found.released.set()
        await runner.cleanup()


async def main(port: int, node: str, key: str, file: str) -> None:
    """Serve until the process ends. The nonces that are to be settled are written to a file."""
    async with chain_facilitator(node, port=port, key=key) as found:
        found.file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        sys.stderr.write("ready\n")
        sys.stderr.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), *sys.argv[2:5]))
