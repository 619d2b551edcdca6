"""Keys of signed cards: PEM or JWK, in a local file or in a key service."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct

Source: TypeAlias = "CardKey | str | bytes | Path | Mapping[str, Any]"
"""A key, the path of its file, or the content of the file: PEM or a JWK."""

CURVES = {"P-256": ("ES256",), "P-384": ("ES384",), "Ed25519": ("EdDSA",)}
RSA = ("RS256", "PS256")
ALGORITHMS = (*(alg for algs in CURVES.values() for alg in algs), *RSA)
"""The supported algorithms. All are asymmetric, so that a verifier cannot forge a signature."""
SMALLEST = 2048
"""The fewest bits of an RSA key."""
HALVES = {"ES256": 32, "ES384": 48}
"""The bytes of each of the two numbers of an ECDSA signature."""
PUBLIC = {"EC": ("kty", "crv", "x", "y"), "OKP": ("kty", "crv", "x"), "RSA": ("kty", "n", "e")}
"""The public members of a JWK, by key type."""


class CardKey(Struct, frozen=True):
    """A key, and the algorithms that it may be used with; it signs with the first of them."""

    algorithms: tuple[str, ...]
    kid: str
    made: Any = None
    """The key as a joserfc object."""
    call: Callable[[bytes], bytes] | None = None
    """A function that signs elsewhere."""

    @classmethod
    def load(cls, source: Source, *, kid: str = "", alg: str = "") -> CardKey:
        """Load the key in a file or text. The text of a ValueError does not contain the key.
        Without `kid`, the key has the one of its JWK, else its thumbprint (RFC 7638)."""
        if isinstance(source, CardKey):
            return source
        data, where = _read(source)
        made = _import(data, where)
        rsa = made.key_type == "RSA"
        algorithms: tuple[str, ...] = RSA if rsa else CURVES[made.curve_name]
        if rsa and made.raw_value.key_size < SMALLEST:
            raise ValueError(f"{where}: an RSA key must have at least {SMALLEST} bits")
        own = data if isinstance(data, dict) else {}
        if own.get("use", "sig") != "sig":
            raise ValueError(f"{where}: the key is not for signatures")
        for wanted in (own.get("alg"), alg):
            if wanted:
                algorithms = tuple(each for each in algorithms if each == wanted)
        if not algorithms:
            raise ValueError(f"{where}: the key cannot be used with {alg or own.get('alg')!r}")
        name = kid or own.get("kid") or made.thumbprint()
        if not isinstance(name, str):
            raise ValueError(f"{where}: the kid must be text")
        return cls(algorithms, name, made)

    @classmethod
    def remote(
        cls,
        call: Callable[[bytes], bytes],
        *,
        alg: str,
        kid: str = "",
        public: Source | None = None,
    ) -> CardKey:
        """A key in another service, such as a KMS: `call` signs these bytes, which are not hashed.
        With `public`, others can find the key, and `kid` is optional."""
        if alg not in ALGORITHMS:
            raise ValueError(f"alg {alg!r}: must be one of {', '.join(ALGORITHMS)}")
        if public is not None:
            half = cls.load(public, kid=kid, alg=alg)
            return cls((alg,), half.kid, half.made, call)
        if not kid:
            raise ValueError("a remote key needs a kid or its public key")
        return cls((alg,), kid, None, call)

    @classmethod
    def generate(cls, alg: str = "ES256") -> CardKey:
        """Make a new key for this algorithm."""
        jwk = _joserfc("jwk")
        if alg in RSA:
            made = jwk.RSAKey.generate_key(SMALLEST)
        elif curve := next((name for name, algs in CURVES.items() if alg in algs), ""):
            kind = jwk.OKPKey if alg == "EdDSA" else jwk.ECKey
            made = kind.generate_key(curve)
        else:
            raise ValueError(f"alg {alg!r}: must be one of {', '.join(ALGORITHMS)}")
        return cls((alg,), made.thumbprint(), made)

    @property
    def thumbprint(self) -> str:
        """The thumbprint of the key (RFC 7638); empty if the key is remote and its public half is
        unknown."""
        return "" if self.made is None else str(self.made.thumbprint())

    def pem(self) -> bytes:
        """The private key, for a file that nobody else can read."""
        found: bytes = self.made.as_pem(private=True)
        return found

    def jwk(self) -> dict[str, Any]:
        """The public half as a JWK, made from a list of public members, so that nothing else gets
        out."""
        if self.made is None:
            raise ValueError(f"key {self.kid!r} is remote, and its public key is not known here")
        members = self.made.as_dict(private=False)
        found = {name: members[name] for name in PUBLIC[self.made.key_type]}
        found |= {"kid": self.kid, "use": "sig"}
        return found | ({"alg": self.algorithms[0]} if len(self.algorithms) == 1 else {})

    @property
    def private(self) -> bool:
        """Whether it can sign."""
        return self.call is not None or bool(self.made.is_private)

    def sign(self, content: bytes) -> bytes:
        """Sign; return the bare signature in the form of JWS."""
        if not self.private:
            raise ValueError("the key is public: it can verify, but not sign")
        alg = self.algorithms[0]
        if self.call is None:
            signed: bytes = _algorithm(alg).sign(content, self.made)
            return signed
        found = self.call(content)
        half = HALVES.get(alg, 0)
        return found if len(found) == 2 * half or not half else _raw(found, half)

    def verifies(self, alg: str, content: bytes, signature: bytes) -> bool:
        """Whether this key made the signature, with an algorithm that it may be used with."""
        if alg not in self.algorithms or self.made is None:
            return False
        return bool(_algorithm(alg).verify(content, signature, self.made))

    def __repr__(self) -> str:
        return f"CardKey({self.kid!r}, {'/'.join(self.algorithms)})"


def key_set(source: bytes | str | Path | Mapping[str, Any]) -> dict[str, CardKey]:
    """The usable keys of a JWK set (RFC 7517) by their `kid`; others are left out."""
    data, where = _read(source)
    keys = data.get("keys") if isinstance(data, dict) else None
    if not isinstance(keys, list):
        raise ValueError(f'{where}: a key set is {{"keys": […]}}')
    found: dict[str, CardKey] = {}
    for item in keys:
        kid = item.get("kid") if isinstance(item, dict) else None
        if not isinstance(kid, str) or not kid:
            continue
        try:
            key = CardKey.load(item)
        except ValueError:  # of another kind
            continue
        if kid in found:
            raise ValueError(f"{where}: two keys have the kid {kid!r}")
        found[kid] = key
    return found


def _read(source: Any) -> tuple[bytes | dict[str, Any], str]:
    """The PEM or JSON, and its name in error messages."""
    where = "key"
    if isinstance(source, Mapping):
        return dict(source), where
    if isinstance(source, Path) or (isinstance(source, str) and not _inline(source)):
        where = str(source)
        data = Path(source).read_bytes()
    else:
        data = source.encode() if isinstance(source, str) else bytes(source)
    if data.lstrip()[:1] != b"{":
        return data, where
    try:
        found = json.loads(data, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise ValueError(f"{where}: is not valid JSON") from None
    return dict(found), where


def _inline(text: str) -> bool:
    return "-----BEGIN" in text or text.lstrip().startswith("{")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises ValueError if it has a name twice, because parsers differ then."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{name[:64]!r} appears twice in one object")
    return found


def _import(data: bytes | dict[str, Any], where: str) -> Any:
    jwk = _joserfc("jwk")
    from joserfc.errors import JoseError

    kinds = {"EC": jwk.ECKey, "OKP": jwk.OKPKey, "RSA": jwk.RSAKey}
    if isinstance(data, dict):
        kty = data.get("kty")
        if kty not in kinds:
            raise ValueError(f"{where}: a card key must be EC, OKP or RSA, not {str(kty)[:16]!r}")
        kinds = {kty: kinds[kty]}
    elif b"-----BEGIN ENCRYPTED" in data or b"Proc-Type: 4,ENCRYPTED" in data:
        raise ValueError(f"{where}: the key is encrypted with a password; give an unencrypted key")
    for kind in kinds.values():
        try:
            made = kind.import_key(data)
            if made.key_type != "RSA" and made.curve_name not in CURVES:
                raise ValueError(f"{where}: the curve must be one of {', '.join(CURVES)}")
            made.public_key  # noqa: B018 - joserfc parses a JWK on first use
        except JoseError:
            continue
        except (ValueError, TypeError, AttributeError) as error:
            if str(error).startswith(where):
                raise
            continue
        return made
    raise ValueError(f"{where}: is not a readable PEM key or JWK")


def _raw(signature: bytes, half: int) -> bytes:
    """The two numbers of an ECDSA signature, which many services return in DER."""
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    try:
        numbers = decode_dss_signature(signature)
        return b"".join(number.to_bytes(half, "big") for number in numbers)
    except (ValueError, OverflowError):
        raise ValueError("the remote signature is not an ECDSA signature of this curve") from None


def _algorithm(alg: str) -> Any:
    return _joserfc("jws").JWSRegistry.algorithms[alg]


def _joserfc(name: str) -> Any:
    try:
        from joserfc import jwk, jws
    except ImportError:
        raise ImportError(
            "signed cards need a library that is not installed; run `pip install "
            "'dragoman[crypto]'`"
        ) from None
    return {"jwk": jwk, "jws": jws}[name]
