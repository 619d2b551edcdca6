"""A real chain on loopback: npm's anvil, with a token whose transfers can be signed. The token has
the address of USDC on Base Sepolia, and the chain has its number, so that each package knows it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from eth_abi import encode  # type: ignore[attr-defined]
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils import keccak

from dragoman.payments import Asset
from dragoman.payments.networks import BASE_SEPOLIA_USDC
from tests.harness.services import Server
from tests.interop.peers import environments
from tests.products.payments.loopback_facilitator import KEY, PAYER, SHOP

FOLDER = Path(__file__).parent
TOKEN: Asset = BASE_SEPOLIA_USDC
NETWORK = TOKEN.network
CHAIN_ID = 84532
OTHER_TOKEN = "0x" + "77" * 20
"""The address of the same contract once more."""
BATCH = "0x" + "88" * 20
"""The address of a contract that makes several calls in one transaction."""
RICH = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
"""An account of anvil that is unlocked."""
FACILITATOR_KEY = "0x2a871d0798f97d79848a013d4936a73bf4cc922c825d33c1cf7073dff6d409c6"
"""The key of the last account of anvil."""
SECOND_KEY = "0xdbda1821b80551c9d65939329250298aa3472ba22feea921c0cf5d620ea67b97"
"""The key of the last account but one."""
MINTED = 1_000_000_000_000


class Transfer(NamedTuple):
    """A transfer of the token, as its contract logs it."""

    payer: str
    to: str
    value: int
    nonce: str
    """The nonce of the authorization; empty if it was a plain transfer."""
    transaction: str


class LocalChain(Server):
    """Anvil. With `block_time`, a block is mined every so many seconds, else at once."""

    name = "anvil"

    def __init__(self, *, block_time: float = 0.0) -> None:
        binary, self._codes = _installed()
        super().__init__()
        self._binary, self._block_time = binary, block_time
        self.url = f"http://127.0.0.1:{self.port}"

    def _command(self) -> list[str]:
        command = [str(self._binary), "--port", str(self.port), "--chain-id", str(CHAIN_ID)]
        mining = ["--block-time", str(self._block_time)] if self._block_time else []
        return [*command, "--silent", *mining]

    def start(self) -> None:
        """Start it, and put the contracts on it."""
        super().start()
        self._http = httpx.Client(timeout=30)
        for address in (TOKEN.address, OTHER_TOKEN):
            self.rpc("anvil_setCode", address, self._codes["TestDollar"])
        self.rpc("anvil_setCode", BATCH, self._codes["Batch"])
        self.mint(PAYER)

    def end(self, sign: Any) -> None:
        """See `Server.end`."""
        if self.process is not None:
            self._http.close()
        super().end(sign)

    # -- what it knows

    def rpc(self, method: str, *params: Any) -> Any:
        """Ask the node."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        found = self._http.post(self.url, json=body).json()
        assert "error" not in found, found
        return found["result"]

    def balance(self, address: str, token: str = TOKEN.address) -> int:
        """How much of the token somebody has."""
        call = {"to": token, "data": selector("balanceOf(address)") + padded(address)}
        return int(self.rpc("eth_call", call, "latest"), 16)

    def transfers(self, to: str = SHOP) -> list[Transfer]:
        """All transfers to somebody, in order."""
        topic = "0x" + keccak(text="Transfer(address,address,uint256)").hex()
        search = {"address": TOKEN.address, "fromBlock": "0x0", "toBlock": "latest"}
        logs = self.rpc("eth_getLogs", {**search, "topics": [topic, None, "0x" + padded(to)]})
        used = "0x" + keccak(text="AuthorizationUsed(address,bytes32)").hex()
        nonces = {
            (log["transactionHash"], int(log["logIndex"], 16)): log["topics"][2]
            for log in self.rpc("eth_getLogs", {**search, "topics": [used]})
        }
        return [
            Transfer(
                "0x" + log["topics"][1][-40:],
                "0x" + log["topics"][2][-40:],
                int(log["data"], 16),
                nonces.get((log["transactionHash"], int(log["logIndex"], 16) - 1), ""),
                log["transactionHash"],
            )
            for log in logs
        ]

    # -- what is done to it

    def send(self, to: str, data: str) -> str:
        """Send a transaction of the unlocked account, and return its hash when it is mined."""
        found: str = self.rpc(
            "eth_sendTransaction", {"from": RICH, "to": to, "data": data, "gas": hex(1_000_000)}
        )
        until = time.monotonic() + 30
        while (receipt := self.rpc("eth_getTransactionReceipt", found)) is None:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert receipt["status"] == "0x1", receipt
        return found

    def mint(self, to: str, value: int = MINTED) -> None:
        """Give somebody money."""
        self.send(
            TOKEN.address,
            selector("mint(address,uint256)") + encode(["address", "uint256"], [to, value]).hex(),
        )

    def void(self, nonce: str, key: str = KEY) -> str:
        """Cancel an authorization, as its payer may."""
        types = {
            "CancelAuthorization": [
                {"name": "authorizer", "type": "address"},
                {"name": "nonce", "type": "bytes32"},
            ]
        }
        payer, raw = Account.from_key(key).address, bytes.fromhex(nonce[2:])
        values = {"authorizer": payer, "nonce": raw}
        kinds = ["address", "bytes32", "uint8", "bytes32", "bytes32"]
        return self.send(
            TOKEN.address,
            selector("cancelAuthorization(address,bytes32,uint8,bytes32,bytes32)")
            + encode(kinds, [payer, raw, *_signed(types, values, key)]).hex(),
        )

    def use(self, payload: Any) -> str:
        """Carry out a payment object."""
        return self.send(TOKEN.address, transfer_call(payload))

    def batch(self, calls: Sequence[str]) -> str:
        """Make several calls of the token in one transaction."""
        data = encode(
            ["address", "bytes[]"], [TOKEN.address, [bytes.fromhex(one[2:]) for one in calls]]
        )
        return self.send(BATCH, selector("run(address,bytes[])") + data.hex())

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Undo what happens to the chain in a block."""
        known = self.rpc("evm_snapshot")
        try:
            yield
        finally:
            assert self.rpc("evm_revert", known)
            self.rpc("evm_setTime", int(time.time()) * 1000)


def selector(function: str) -> str:
    """The beginning of a call."""
    return "0x" + keccak(text=function)[:4].hex()


def padded(address: str) -> str:
    """An address in 32 bytes."""
    return address.lower()[2:].rjust(64, "0")


def transfer_call(payload: Any) -> str:
    """The call that carries out a payment object."""
    signed, signature = payload["payload"]["authorization"], payload["payload"]["signature"]
    raw = bytes.fromhex(signature[2:])
    kinds = ["address", "address", "uint256", "uint256", "uint256", "bytes32"]
    values = [
        signed["from"],
        signed["to"],
        *(int(signed[name]) for name in ("value", "validAfter", "validBefore")),
        bytes.fromhex(signed["nonce"][2:]),
    ]
    kinds += ["uint8", "bytes32", "bytes32"]
    data = encode(kinds, [*values, raw[64], raw[:32], raw[32:64]])
    return selector(f"transferWithAuthorization({','.join(kinds)})") + data.hex()


def _signed(types: Any, values: Any, key: str) -> tuple[int, bytes, bytes]:
    domain = {
        "name": TOKEN.name,
        "version": TOKEN.version,
        "chainId": CHAIN_ID,
        "verifyingContract": TOKEN.address,
    }
    message = encode_typed_data(domain_data=domain, message_types=types, message_data=values)
    found = Account.from_key(key).sign_message(message)
    return found.v, found.r.to_bytes(32, "big"), found.s.to_bytes(32, "big")


def _installed() -> tuple[Path, dict[str, str]]:
    """The node, and the code of each contract. Skips the test if npm is not there."""
    try:
        folder = environments.node("chain")
    except environments.Absent as absent:
        pytest.skip(f"no chain: {absent}")
    binary = next(folder.glob("node_modules/@foundry-rs/anvil-*/bin/anvil*"), None)
    if binary is None:
        pytest.skip("no chain: anvil has no program for this machine")
    source, compiler = FOLDER / "TestDollar.sol", FOLDER / "compile_token.cjs"
    content = hashlib.sha256(source.read_bytes() + compiler.read_bytes()).hexdigest()[:16]
    compiled = folder / f"contracts-{content}.json"
    if not compiled.exists():
        command = ["node", str(compiler), str(source), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        new = compiled.with_suffix(f".{time.monotonic_ns()}")
        new.write_text(done.stdout)
        new.replace(compiled)
    codes = json.loads(compiled.read_text())
    return binary, {name: f"0x{code}" for name, code in codes.items()}
