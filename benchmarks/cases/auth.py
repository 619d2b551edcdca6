"""The cost of authenticating a caller without HTTP: by a token, a key, or both."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.bench import Bench

ISSUER, AUDIENCE = "https://id.example", "agents"


async def run(bench: Bench) -> None:
    """Only dragoman's gate: in this process, on one core."""
    if not bench.only("dragoman"):
        return
    try:
        from joserfc import jwt
        from joserfc.jwk import ECKey, RSAKey
    except ImportError:
        bench.note("auth: not measured; it needs `pip install 'dragoman[crypto]'`")
        return
    from dragoman.model.caller import Request
    from dragoman.security import AllOf, ApiKey, Bearer
    from dragoman.security.schemes import Authenticator

    keys = {
        "RS256": RSAKey.generate_key(2048, parameters={"kid": "RS256"}),
        "ES256": ECKey.generate_key("P-256", parameters={"kid": "ES256"}),
    }
    jwks = {"keys": [key.as_dict(private=False) for key in keys.values()]}
    until = int(time.time()) + 24 * 3600

    def token(algorithm: str, number: int = 0) -> str:
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "scope": "book read", "exp": until}
        head = {"alg": algorithm, "kid": algorithm}
        key = keys[algorithm]
        return jwt.encode(head, {**claims, "jti": str(number)}, key, algorithms=[algorithm])

    def request(**headers: str) -> Request:
        known = {"host": "agents.example", "content-type": "application/json", **headers}
        return Request("POST", "/", "", known, "192.0.2.1")

    def bearer(realm: str | None = None) -> Bearer:
        return Bearer(issuer=ISSUER, audience=AUDIENCE, jwks=jwks, realm=realm)

    def key(realm: str | None = None) -> ApiKey:
        secrets = {f"caller {n}": f"secret {n}" for n in range(100)}
        return ApiKey(header="X-Key", keys=secrets, realm=realm)

    shown = {"authorization": f"Bearer {token('RS256')}"}
    count = 2_000 if bench.quick else 20_000
    cold = 200 if bench.quick else 1_000
    known = {"x-key": "secret 7"}
    works: dict[str, tuple[Callable[[], Authenticator], list[Request]]] = {
        "warm": (lambda: Authenticator(bearer()), [request(**shown)] * count),
        "key": (lambda: Authenticator(key()), [request(**known)] * count),
        "allof": (
            lambda: Authenticator([AllOf(bearer(), key())]),
            [request(**shown, **known)] * count,
        ),
        "anyof": (
            lambda: Authenticator([bearer("issuer"), key("keys")]),
            [request(**known)] * count,
        ),
    }
    for name in keys:
        tokens = [token(name, number) for number in range(cold)]
        asked = [request(authorization=f"Bearer {each}") for each in tokens]
        works[f"cold{name}"] = (lambda: Authenticator(bearer()), asked)
    for number in range(bench.rounds):
        for name, (gate, requests) in works.items():
            bench.progress(f"auth.{name}: round {number + 1} of {bench.rounds}")
            made = gate()
            await _identified(made, iter([requests[0]]))  # what is loaded at first
            cost = await _identified(made, iter(requests)) / len(requests) * 1e6
            bench.record(f"auth.{name}.dragoman.cpu_us_per_request", cost)


async def _identified(gate: Any, requests: Iterator[Any]) -> float:
    """The CPU that it takes to know who asks in all of these."""
    before = time.process_time()
    for request in requests:
        found = gate.identify(request)
        if inspect.isawaitable(found):
            await found
    return time.process_time() - before
