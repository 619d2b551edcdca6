"""A facilitator of x402 without a chain, for trying things: it checks signatures, and everybody has
100 units of every token. `python -m dragoman.demo.facilitator` runs it at http://127.0.0.1:8402."""

from __future__ import annotations

import json
import secrets
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from dragoman.payments import MalformedObject, Requirement
from dragoman.payments.objects import Payload, read_offer, read_payload
from dragoman.payments.signing import check_installed, signer_of

PORT = 8402
FUNDS = 100_000_000
LARGEST = 64 * 1024
USED = "invalid_exact_evm_nonce_already_used"


class PlayFacilitator:
    """Runs the facilitator in a thread. Raises ModuleNotFoundError without the extra `pay`."""

    def __init__(self, port: int = 0) -> None:
        check_installed()
        self.balances: dict[tuple[str, str], int] = {}
        """The units that somebody has of a token, for all who were paid or have paid."""
        self._settled: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()
        facilitator = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = min(int(self.headers.get("content-length") or 0), LARGEST)
                found = facilitator.answer(self.path, self.rfile.read(size))
                body = json.dumps(found or {"error": "not found"}).encode()
                self.send_response(200 if found else 404)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Write no line for a request."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> PlayFacilitator:
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, body: bytes) -> Mapping[str, Any]:
        """Answer a request; nothing if there is no such path."""
        if path not in ("/verify", "/settle"):
            return {}
        try:
            said = json.loads(body)
            payload = read_payload(said["paymentPayload"])
            asked = {"x402Version": payload.version, "accepts": [said["paymentRequirements"]]}
            (required,) = read_offer(asked).accepts
        except (MalformedObject, ValueError, KeyError, TypeError, RecursionError):
            reason = "invalid_payload"
            return {"isValid": False, "invalidReason": reason, **_failed("", reason)}
        payer = payload.authorization.payer
        with self._lock:
            reason = self._refusal(payload, required)
            if path == "/verify":
                return {"isValid": not reason, "invalidReason": reason, "payer": payer}
            if reason and reason != USED:
                return _failed(required.network, reason)
            known = self._settled.get(_key(payload))  # sent again: the same answer
            transaction = known or self._transfer(payload, required)
        found = {"success": True, "transaction": transaction, "network": required.network}
        return {**found, "payer": payer}

    def _refusal(self, payload: Payload, required: Requirement) -> str:
        signed = payload.authorization
        if signer_of(payload, required).lower() != signed.payer.lower():
            return "invalid_exact_evm_payload_signature"
        if signed.value != required.amount or signed.to.lower() != required.pay_to.lower():
            return "invalid_exact_evm_payload_authorization_value"
        if _key(payload) in self._settled:
            return USED
        rest = self.balances.get((signed.payer.lower(), required.asset.lower()), FUNDS)
        return "insufficient_funds" if rest < signed.value else ""

    def _transfer(self, payload: Payload, required: Requirement) -> str:
        signed = payload.authorization
        for who, change in ((signed.payer, -signed.value), (signed.to, signed.value)):
            place = (who.lower(), required.asset.lower())
            self.balances[place] = self.balances.get(place, FUNDS) + change
        transaction = self._settled[_key(payload)] = "0x" + secrets.token_hex(32)
        return transaction


def _key(payload: Payload) -> tuple[str, str]:
    return payload.authorization.payer.lower(), payload.authorization.nonce


def _failed(network: str, reason: str) -> dict[str, Any]:
    return {"success": False, "errorReason": reason, "transaction": "", "network": network}


if __name__ == "__main__":
    with PlayFacilitator(PORT) as running:
        sys.stdout.write(f"{running.url}: settles payments without a chain; Ctrl-C stops it\n")
        sys.stdout.flush()
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            sys.exit(0)
