"""Checks that the sender of a token holds its key (DPoP, RFC 9449). Each proof is valid once.

Used proofs are remembered in this process only: if several processes serve an agent, a proof is
valid once in each of them.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from dragoman.model.caller import Request
from dragoman.model.errors import Unauthenticated, Unavailable

ALGORITHMS = ("ES256", "ES384", "EdDSA", "Ed25519", "PS256", "RS256")
WINDOW = 60.0
"""The most seconds between the time of a proof and ours."""
EACH, ALL = 10_000, 100_000
"""The most proofs to remember, for one key and in total, while they could be used again."""
LONGEST = 8 * 1024
PRIVATE = frozenset(("d", "p", "q", "dp", "dq", "qi", "oth", "k"))
PORTS = {"https": 443, "http": 80}


class Unproven(Unauthenticated):
    """The proof is missing or not valid."""

    fault = "invalid_dpop_proof"


class Proofs:
    """Checks proofs, and remembers them for as long as they could be replayed."""

    def __init__(self) -> None:
        self._used: OrderedDict[tuple[str, bytes], float] = OrderedDict()
        self._each: Counter[str] = Counter()

    def check(self, request: Request, token: str, key: str) -> None:
        """Raise Unproven if the request has no valid proof for the key with this thumbprint."""
        proof = request.headers.get("dpop", "")
        if not proof:
            raise Unproven("The token is bound to a key; send a DPoP proof")
        claims = _verified(proof, key)
        if claims.get("htm") != request.method:
            raise Unproven("The proof is for another method")
        if not request.url:
            raise Unproven(
                "The server does not know its own URL, which a proof must name; it needs the"
                " setting `url`, or `trusted_hosts`"
            )
        if not _same(claims.get("htu"), request.url):
            raise Unproven("The proof is for another URL")
        digest = hashlib.sha256(token.encode("latin-1", "replace")).digest()
        if claims.get("ath") != base64.urlsafe_b64encode(digest).rstrip(b"=").decode():
            raise Unproven("The proof is for another token")
        made, name = claims.get("iat"), claims.get("jti")
        if isinstance(made, bool) or not isinstance(made, int | float):
            raise Unproven("The proof has no valid time (iat)")
        if not abs(time.time() - made) <= WINDOW:
            raise Unproven("The proof is too old or from the future")
        if not isinstance(name, str) or not name:
            raise Unproven("The proof has no jti")
        self._use(key, hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest())

    def _use(self, key: str, name: bytes) -> None:
        now, used = time.monotonic(), self._used
        while used and next(iter(used.values())) <= now:
            (old, _), _ = used.popitem(last=False)
            self._each[old] -= 1
            if not self._each[old]:
                del self._each[old]
        if (key, name) in used:
            raise Unproven("The proof was used before")
        if len(used) >= ALL or self._each[key] >= EACH:
            raise Unavailable(
                "The server cannot store more proofs at the moment", headers={"retry-after": "5"}
            )
        # The whole window in which its time is valid.
        used[key, name] = now + 2 * WINDOW
        self._each[key] += 1


def _verified(proof: str, key: str) -> Mapping[str, Any]:
    """The claims of a proof that the key with this thumbprint has signed."""
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    from dragoman.security.bearer_tokens import unverified_header, verified_claims

    if len(proof) > LONGEST:
        raise Unproven("The proof is too long")
    try:
        header = unverified_header(proof)
    except Unauthenticated:
        raise Unproven("The proof is not a JWT") from None
    algorithm, jwk = header.get("alg"), header.get("jwk")
    if header.get("typ") != "dpop+jwt" or "crit" in header:
        raise Unproven("The proof is not of the type dpop+jwt")
    if algorithm not in ALGORITHMS:
        raise Unproven(f"The algorithm of the proof must be one of {', '.join(ALGORITHMS)}")
    if not isinstance(jwk, dict) or jwk.get("kty") == "oct" or PRIVATE & jwk.keys():
        raise Unproven("The jwk of the proof is not a public key")
    try:
        (parsed,) = KeySet.import_key_set({"keys": [jwk]}).keys
        if parsed.thumbprint() != key:
            raise Unproven("The proof was made with another key")
        return verified_claims(proof, parsed, algorithm)
    except (JoseError, ValueError, TypeError, KeyError, RecursionError):
        raise Unproven("The signature of the proof is wrong") from None


def _same(named: Any, url: str) -> bool:
    """Whether a URL is the one that was called, ignoring the query. For gRPC only the path is
    known, which names service and method, and the host if it is set: `//host/path`."""
    if not isinstance(named, str):
        return False
    try:
        (origin, path), (our, called) = _parts(named), _parts(url)
    except ValueError:
        return False
    if url.startswith("//"):
        return path == called and urlsplit(named).hostname == urlsplit(url).hostname
    return path == called and (not our or origin == our)


def _parts(url: str) -> tuple[str, str]:
    found = urlsplit(url)
    host, scheme = found.hostname or "", found.scheme.lower()
    port = found.port or PORTS.get(scheme, 0)
    return f"{scheme}://{host}:{port}" if host else "", unquote(found.path) or "/"
