"""The chain: whether a payment was carried out, by the transfer itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.payments.facilitator import NoAnswer, check_url
from dragoman.payments.networks import Asset, chain_id
from dragoman.payments.objects import Authorization, Receipt, Requirement
from dragoman.security.address_policy import EgressRefused
from dragoman.security.egress import Egress, EgressUnreachable

USED = "0x98de503528ee59b575ef0c0a2576a82497bfc029a5685b209e9ec333479b10a5"
"""The topic of `AuthorizationUsed(address,bytes32)`."""
TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
"""The topic of `Transfer(address,address,uint256)`."""
STATE = "0xe94a0102"
"""The selector of `authorizationState(address,bytes32)`."""
BALANCE = "0x70a08231"
"""The selector of `balanceOf(address)`."""
LOGS = 4
"""How many logs of a nonce are looked at: an honest node has one."""
BLOCKS = 9_000
"""How many blocks to look back: nodes limit it."""
MARGIN = 60
"""Seconds that the chain's time must be past the end of an authorization: blocks may be undone."""


class Chain:
    """A node of a network, by its JSON-RPC interface. Requests go through egress: https to public
    addresses, and what `allow` lists. A request takes at most `timeout` seconds."""

    def __init__(self, rpc: str, *, allow: Sequence[str] = (), timeout: float = 10.0) -> None:
        check_url("Chain", rpc, allow)
        if not timeout > 0:
            raise ValueError("Chain: timeout must be greater than 0")
        self._rpc, self._allow, self._timeout = rpc, tuple(allow), timeout

    async def _settled(self, required: Requirement, authorization: Authorization) -> Receipt | None:
        """Return the receipt of a payment: a success if its amount was transferred to its receiver,
        a failure if its time is over and nothing was transferred; None if neither is known. A nonce
        that was used is not enough: a payer can use it up without a transfer. Raises NoAnswer."""
        async with self._egress() as egress:
            if _number(await self._ask(egress, "eth_chainId")) != chain_id(required.network):
                raise NoAnswer("the node is of another network")
            latest = await self._ask(egress, "eth_getBlockByNumber", "latest", False)
            if not isinstance(latest, dict):
                raise NoAnswer("the node has no latest block")
            number, now = _number(latest.get("number")), _number(latest.get("timestamp"))
            search = {
                "address": required.asset,
                "topics": [USED, _padded(authorization.payer), authorization.nonce],
                "fromBlock": hex(max(number - BLOCKS, 0)),
                "toBlock": hex(number),
            }
            logs = await self._ask(egress, "eth_getLogs", search)
            if not isinstance(logs, list):
                raise NoAnswer("the node gave no list of logs")
            for log in logs[:LOGS]:
                transaction = log.get("transactionHash") if isinstance(log, dict) else None
                if not isinstance(transaction, str):
                    continue
                found = await self._ask(egress, "eth_getTransactionReceipt", transaction)
                if isinstance(found, dict) and _transfers(found, required, authorization):
                    return Receipt(
                        success=True,
                        network=required.network,
                        transaction=transaction,
                        payer=authorization.payer,
                    )
            # no log proves nothing: the transfer may be older than what was searched
            over = now > authorization.valid_before + MARGIN
            if not over or await self._used(egress, required, authorization, number):
                return None
            return Receipt(
                success=False,
                network=required.network,
                payer=authorization.payer,
                error="expired",
            )

    async def network(self) -> str:
        """Return the CAIP-2 name of the network that the node is of. Raises NoAnswer."""
        async with self._egress() as egress:
            return f"eip155:{_number(await self._ask(egress, 'eth_chainId'))}"

    async def balance(self, asset: Asset, address: str) -> int:
        """Return how much an address has, in the smallest unit. Raises NoAnswer."""
        async with self._egress() as egress:
            call = {"to": asset.address, "data": BALANCE + _padded(address)[2:]}
            return _number(await self._ask(egress, "eth_call", call, "latest"))

    def _egress(self) -> Egress:
        return Egress(allow=self._allow, timeout=self._timeout, max_response=1024 * 1024)

    async def _used(
        self, egress: Egress, required: Requirement, authorization: Authorization, block: int
    ) -> bool:
        """Whether the nonce was used, for a transfer or for nothing. A node that does not know the
        block yet gives no answer."""
        data = STATE + _padded(authorization.payer)[2:] + authorization.nonce[2:]
        call = {"to": required.asset, "data": data}
        return _number(await self._ask(egress, "eth_call", call, hex(block))) != 0

    async def _ask(self, egress: Egress, method: str, *params: Any) -> Any:
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        try:
            response = await egress.post(
                self._rpc, body, headers={"content-type": "application/json"}
            )
            found = msgspec.json.decode(response.body)
        except (EgressRefused, EgressUnreachable, ValueError, RecursionError) as error:
            raise NoAnswer(f"the node gave no answer: {type(error).__name__}") from None
        if not isinstance(found, dict) or found.get("error") or "result" not in found:
            raise NoAnswer(f"the node refused {method}")
        return found["result"]


def _transfers(receipt: Any, required: Requirement, authorization: Authorization) -> bool:
    """Whether a transaction transferred this payment to its receiver. The contract logs that the
    nonce is used, and then its transfer: the same transaction may have other transfers."""
    logs = receipt.get("logs")
    if receipt.get("status") != "0x1" or not isinstance(logs, list):
        return False
    nonce = [USED, _padded(authorization.payer), authorization.nonce]
    wanted = [TRANSFER, _padded(authorization.payer), _padded(required.pay_to)]
    used = False
    for log in logs:
        if not isinstance(log, dict) or not isinstance(log.get("topics"), list):
            continue
        topics = [topic.lower() for topic in log["topics"] if isinstance(topic, str)]
        if str(log.get("address")).lower() != required.asset.lower():
            continue
        if used and topics[:1] == [TRANSFER]:
            return topics == wanted and _number(log.get("data")) == required.amount
        used = used or topics == nonce
    return False


def _padded(address: str) -> str:
    return "0x" + address.lower().removeprefix("0x").rjust(64, "0")


def _number(value: Any) -> int:
    try:
        return int(value, 16)
    except (TypeError, ValueError):
        raise NoAnswer("the node gave no number") from None
