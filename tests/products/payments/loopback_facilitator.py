"""A facilitator on loopback with a chain in memory. It checks real EIP-712 signatures by
the code of the reference package, and does what a test tells it to."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from eth_account import Account
from eth_utils import keccak
from x402.mechanisms.evm.eip712 import hash_eip3009_authorization
from x402.mechanisms.evm.types import ExactEIP3009Authorization
from x402.mechanisms.evm.verify import verify_eoa_signature

from dragoman.payments import Asset, Facilitator
from dragoman.payments.networks import chain_id, short_name
from tests.products.payments.spoiled_answers import Spoiler

NETWORK = "eip155:31337"
CHAIN_ID = 31337
TOKEN = Asset("TEST", NETWORK, "0x5FbDB2315678afecb367f032d93F642f64180aa3", "Test Dollar", "1")
SHOP = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
KEY = "0x" + "11" * 32
PAYER = str(Account.from_key(KEY).address)


def padded(address: str) -> str:
    """An address as a topic."""
    return "0x" + address.lower()[2:].rjust(64, "0")


class Chain:
    """Balances, and the nonces that were used."""

    def __init__(self, token: Asset = TOKEN) -> None:
        self.token = token
        self.balances: Counter[str] = Counter({PAYER.lower(): 100_000_000})
        self.used: dict[tuple[str, str], str] = {}
        self.mined: dict[str, dict[str, Any]] = {}
        """The authorization of each transaction; `canceled` in those that use a nonce up."""

    @property
    def id(self) -> int:
        """The number of the chain."""
        return chain_id(self.token.network)

    def refusal(self, payload: dict[str, Any], required: dict[str, Any]) -> str:
        """Why a payment cannot be carried out; empty if it can."""
        inner = payload["payload"]
        signed = inner["authorization"]
        data = ExactEIP3009Authorization(
            from_address=signed["from"],
            to=signed["to"],
            value=signed["value"],
            valid_after=signed["validAfter"],
            valid_before=signed["validBefore"],
            nonce=signed["nonce"],
        )
        token = (self.token.address, self.token.name, self.token.version)
        digest = hash_eip3009_authorization(data, self.id, *token)
        signature = bytes.fromhex(inner["signature"].removeprefix("0x"))
        if not verify_eoa_signature(digest, signature, signed["from"]):
            return "invalid_exact_evm_payload_signature"
        amount = required.get("amount") or required["maxAmountRequired"]
        if signed["value"] != amount or signed["to"].lower() != required["payTo"].lower():
            return "invalid_exact_evm_payload_authorization_value"
        if self.balances[signed["from"].lower()] < int(signed["value"]):
            return "insufficient_funds"
        if (signed["from"].lower(), signed["nonce"]) in self.used:
            return "invalid_exact_evm_nonce_already_used"
        return ""

    def transfer(self, payload: dict[str, Any]) -> str:
        """Carry out a payment, and return its transaction."""
        signed = payload["payload"]["authorization"]
        self.balances[signed["from"].lower()] -= int(signed["value"])
        self.balances[signed["to"].lower()] += int(signed["value"])
        transaction = f"0x{len(self.used) + 1:064x}"
        self.mined[transaction] = dict(signed)
        self.used[signed["from"].lower(), signed["nonce"]] = transaction
        return transaction


class LoopbackFacilitator:
    """A server for `verify` and `settle`."""

    def __init__(self, url: str, chain: Chain) -> None:
        self.url, self.chain = url, chain
        self.asked: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.trouble: list[str] = []
        """What goes wrong in the next calls of `settle`: `silent` before the transfer, `lost` after
        it, `refused`."""
        self.remembers = False
        """Whether it gives the same answer again for a payment that it has carried out."""
        self.lies = ""
        """What it lies about: `network`, `transaction`, `shape`."""
        self.denies: str | None = None
        """With this reason it says that a payment was not settled which it has settled."""
        self.refuses = ""
        """With this reason it does not settle."""
        self.spoiler = Spoiler()
        self.away = 0
        """How many of the next calls of `verify` are not answered."""
        self.settling, self.released = asyncio.Event(), asyncio.Event()
        self.on_settle: Any = None
        """Called once instead of `settle`."""
        self.node_away = self.forgets = self.lags = False
        self.more_logs: list[dict[str, str]] = []
        self.later = 0
        """How many seconds the clock of the chain is ahead."""

    def client(self, **options: Any) -> Facilitator:
        """A client that may call it."""
        return Facilitator(self.url, allow=["127.0.0.1"], **{"timeout": 5.0, **options})

    async def verify(self, request: web.Request) -> web.Response:
        """Answer a verification."""
        body = await self._body(request, "verify")
        if self.away:
            self.away -= 1
            return web.Response(status=503)
        why = self.chain.refusal(body["paymentPayload"], body["paymentRequirements"])
        if why:
            return web.json_response({"isValid": False, "invalidReason": why})
        return web.json_response({"isValid": True, "payer": PAYER})

    async def settle(self, request: web.Request) -> web.Response:
        """Carry out a payment."""
        if self.on_settle is not None:
            call, self.on_settle = self.on_settle, None
            answer: web.Response = await call(request)
            return answer
        body = await self._body(request, "settle")
        payload = body["paymentPayload"]
        trouble = self.trouble.pop(0) if self.trouble else ""
        self.settling.set()
        if trouble == "silent":
            await self.released.wait()
        why = self.chain.refusal(payload, body["paymentRequirements"])
        signed = payload["payload"]["authorization"]
        known = self.chain.used.get((signed["from"].lower(), signed["nonce"]), "")
        if trouble == "refused":
            why = "insufficient_funds"
        why = self.refuses or why
        network = payload.get("network") or payload["accepted"]["network"]
        if why and not (known and self.remembers):
            refused = {"success": False, "errorReason": why, "transaction": "", "network": network}
            return web.json_response(refused)
        transaction = known or self.chain.transfer(payload)
        if trouble == "lost":
            return web.Response(status=502, text="Bad gateway")
        if self.denies is not None:
            said = {"errorReason": self.denies, "transaction": "", "network": network}
            return web.json_response({"success": False, **said})
        found = {"success": True, "transaction": transaction, "network": network, "payer": PAYER}
        changed = {"network": {"network": "base"}, "transaction": {"transaction": ""}}
        if self.lies == "shape":
            return web.json_response([found])
        return web.json_response({**found, **changed.get(self.lies, {})})

    async def supported(self, request: web.Request) -> web.Response:
        """Say what it settles."""
        token = self.chain.token.network
        kinds = [
            {"x402Version": version, "scheme": "exact", "network": network}
            for version, network in ((1, short_name(token)), (2, token))
        ]
        return web.json_response({"kinds": kinds, "extensions": [], "signers": {}})

    async def rpc(self, request: web.Request) -> web.Response:
        """Answer as a node of the chain."""
        if self.node_away:
            return web.Response(status=503)
        body = await request.json()
        call: Any = getattr(self, "_" + body["method"])
        return web.json_response({"jsonrpc": "2.0", "id": 1, "result": call(*body["params"])})

    def _eth_chainId(self) -> str:
        return hex(self.chain.id)

    def _eth_getBlockByNumber(self, which: str, full: bool) -> dict[str, str]:
        return {"number": hex(20_000), "timestamp": hex(int(time.time()) + self.later)}

    def _eth_getLogs(self, search: dict[str, Any]) -> list[dict[str, str]]:
        if self.forgets:
            return []
        topic, payer, nonce = search["topics"]
        assert topic == "0x" + keccak(text="AuthorizationUsed(address,bytes32)").hex()
        return self.more_logs + [
            {"transactionHash": transaction}
            for transaction, signed in self.chain.mined.items()
            if (signed["nonce"], padded(signed["from"])) == (nonce, payer)
        ]

    def _eth_call(self, call: dict[str, str], block: str) -> str:
        data = call["data"]
        if data[:10] == "0x" + keccak(text="balanceOf(address)")[:4].hex():
            return hex(self.chain.balances["0x" + data[-40:]])
        assert data[:10] == "0x" + keccak(text="authorizationState(address,bytes32)")[:4].hex()
        if self.lags and block == "latest":
            return hex(0)
        used = {
            padded(payer)[2:] + nonce[2:]: transaction
            for (payer, nonce), transaction in self.chain.used.items()
        }
        return f"0x{int(data[10:] in used):064x}"

    def _eth_getTransactionReceipt(self, transaction: str) -> dict[str, Any] | None:
        self.asked["receipt"] += 1
        if transaction not in self.chain.mined:
            return None
        signed = self.chain.mined[transaction]
        used = "0x" + keccak(text="AuthorizationUsed(address,bytes32)").hex()
        topic = "0x" + keccak(text="Transfer(address,address,uint256)").hex()
        topics = [topic, padded(signed["from"]), padded(signed["to"])]
        first = {"address": self.chain.token.address, "data": "0x"}
        first["topics"] = [used, padded(signed["from"]), signed["nonce"]]  # type: ignore[assignment]
        log = {
            "address": self.chain.token.address,
            "topics": topics,
            "data": hex(int(signed["value"])),
        }
        return {"status": "0x1", "logs": [first, log]}

    async def _body(self, request: web.Request, what: str) -> dict[str, Any]:
        self.asked[what] += 1
        body: dict[str, Any] = await request.json()
        self.bodies.append(body)
        return body


@asynccontextmanager
async def loopback_facilitator(token: Asset = TOKEN) -> AsyncIterator[LoopbackFacilitator]:
    """Run a facilitator."""
    found = LoopbackFacilitator("", Chain(token))
    app = web.Application(middlewares=[found.spoiler.middleware])
    routes = {"/verify": found.verify, "/settle": found.settle, "/rpc": found.rpc}
    app.add_routes([web.post(path, answer) for path, answer in routes.items()])
    app.add_routes([web.get("/supported", found.supported)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield found
    finally:
        found.released.set()
        found.spoiler.released.set()
        await runner.cleanup()
