"""Signatures of payments: EIP-712 typed data of EIP-3009 transfers. Needs the extra `pay`."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dragoman.payments.networks import chain_id
from dragoman.payments.objects import Authorization, Payload, Requirement

Sign = Callable[[Mapping[str, Any]], Awaitable[str]]
"""Signs EIP-712 typed data and returns the signature in hexadecimal: a key service, or a device."""
INSTALL = "eth-account is not installed: pip install 'dragoman[pay]'"
_TRANSFER = [
    {"name": "from", "type": "address"},
    {"name": "to", "type": "address"},
    {"name": "value", "type": "uint256"},
    {"name": "validAfter", "type": "uint256"},
    {"name": "validBefore", "type": "uint256"},
    {"name": "nonce", "type": "bytes32"},
]
_DOMAIN = [
    {"name": "name", "type": "string"},
    {"name": "version", "type": "string"},
    {"name": "chainId", "type": "uint256"},
    {"name": "verifyingContract", "type": "address"},
]


class Signer:
    """An address, and what signs for it. The key is not in its text."""

    def __init__(self, address: str, sign: Sign) -> None:
        self.address = address
        self._sign = sign

    def __repr__(self) -> str:
        return f"Signer({self.address})"


async def sign(signer: Signer, required: Requirement, authorization: Authorization) -> str:
    """Sign a transfer and return the signature."""
    return await signer._sign(typed_data(required, authorization))


def check_installed() -> None:
    """Load eth-account, which takes a second. Raises ModuleNotFoundError."""
    limit = sys.getrecursionlimit()
    try:
        import eth_account.messages  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError(INSTALL, name="eth_account") from None
    finally:
        # py_ecc, which it loads, sets 100,000: then nested JSON of a caller crashes the process
        sys.setrecursionlimit(limit)


def key_signer(key: str) -> Signer:
    """Make a signer of a private key: `env:NAME` names the variable of the environment that has it.
    Raises ValueError, whose text never has the key."""
    check_installed()
    from eth_account import Account
    from eth_account.messages import encode_typed_data

    if not key.startswith("env:"):
        raise ValueError("Wallet: key: name a variable of the environment, such as env:WALLET_KEY")
    value = os.environ.get(key[4:], "")
    if not value:
        raise ValueError(f"Wallet: key: the environment has no variable {key[4:]!r}")
    try:
        account = Account.from_key(value)
    except Exception:  # noqa: BLE001 - its text could have the key
        account = None
    if account is None:
        raise ValueError(f"Wallet: key: the variable {key[4:]!r} has no private key of 32 bytes")

    async def sign_data(data: Mapping[str, Any]) -> str:
        message = encode_typed_data(full_message=dict(data))
        signed = await asyncio.to_thread(account.sign_message, message)
        return "0x" + bytes(signed.signature).hex()

    return Signer(str(account.address), sign_data)


def typed_data(required: Requirement, authorization: Authorization) -> dict[str, Any]:
    """Return what a payer signs, as EIP-712 typed data."""
    return {
        "types": {"EIP712Domain": _DOMAIN, "TransferWithAuthorization": _TRANSFER},
        "primaryType": "TransferWithAuthorization",
        "domain": {
            "name": required.name,
            "version": required.domain_version,
            "chainId": chain_id(required.network),
            "verifyingContract": required.asset,
        },
        "message": {
            "from": authorization.payer,
            "to": authorization.to,
            "value": authorization.value,
            "validAfter": authorization.valid_after,
            "validBefore": authorization.valid_before,
            "nonce": bytes.fromhex(authorization.nonce.removeprefix("0x")),
        },
    }


def signer_of(payload: Payload, required: Requirement) -> str:
    """Return the address that has signed a payment; empty if the signature is of no key. Contracts
    that sign (EIP-1271) are not recognized."""
    check_installed()
    from eth_account import Account
    from eth_account.messages import encode_typed_data

    data = encode_typed_data(full_message=typed_data(required, payload.authorization))
    try:
        return str(Account.recover_message(data, signature=payload.signature))
    except Exception:  # noqa: BLE001 - many kinds of errors, one meaning
        return ""


def new_nonce() -> str:
    """Return a nonce that was never used."""
    return "0x" + secrets.token_hex(32)
