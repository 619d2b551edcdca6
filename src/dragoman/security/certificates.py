"""Identifies callers by certificate: mutual TLS, at this server or at a proxy.

The side that terminates TLS verifies the certificate; this module reads the identity in it. It
needs the extra `crypto` (cryptography).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

from msgspec.structs import replace

from dragoman.model.caller import Caller, Request
from dragoman.model.errors import Unauthenticated
from dragoman.model.types import MutualTlsSecurityScheme, SecurityScheme
from dragoman.security.realms import Tenants
from dragoman.security.schemes import Found

if TYPE_CHECKING:
    from cryptography import x509

Name = Literal["cn", "uri", "dns"]
"""The common name of the subject, or its only URI or DNS name (SAN)."""
LONGEST = 64 * 1024
REMEMBERED = 1000
AGE = 300.0


class Certificate:
    """Identifies callers by client certificate. `identity` says how: a name in it, a mapping of
    identities to SHA-256 fingerprints, or a function of the certificate.

    Behind a proxy that terminates TLS, `header` is the header with the certificate (nginx's
    `$ssl_client_escaped_cert`, or `Client-Cert` as in RFC 9440), and `proxies` are the only
    networks from which the header is accepted. The proxy must verify the certificate and must not
    let callers set the header.
    """

    def __init__(
        self,
        *,
        identity: Name
        | Mapping[str, str]
        | Callable[[x509.Certificate], Caller | str | None] = "cn",
        header: str = "",
        proxies: Sequence[str] = (),
        realm: str | None = None,
        tenants: Tenants = (),
        name: str = "",
    ) -> None:
        if bool(header) != bool(proxies):
            raise ValueError(
                "Certificate: header= is only used from proxies=; give both or neither"
            )
        if isinstance(proxies, str):
            raise ValueError("Certificate: proxies: expected a list of networks, not a string")
        if isinstance(identity, str) and identity not in _NAMES:
            raise ValueError(
                f"Certificate: identity {identity!r}: must be one of {', '.join(_NAMES)}"
            )
        try:
            import cryptography  # noqa: F401 - fail now, not at the first request
        except ImportError:
            raise ImportError(
                "client certificates need a library that is not installed; run `pip "
                "install 'dragoman[crypto]'`"
            ) from None
        self.realm, self.tenants = realm, tenants
        self.name = name or "certificate"
        self._identity = _by_print(identity) if isinstance(identity, Mapping) else identity
        self._header = header.lower()
        self.headers = (self._header,) if header else ()
        """See `Authenticator.headers`."""
        self._proxies = [ip_network(text) for text in proxies]
        self._cache: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()

    def declared(self) -> SecurityScheme:
        """See `Scheme.declared`."""
        return SecurityScheme(mtls_security_scheme=MutualTlsSecurityScheme())

    def challenge(self, realm: str) -> str:
        """See `Scheme.challenge`."""
        return ""

    def identify(self, request: Request) -> Found:
        """See `Scheme.identify`."""
        shown = self._from_proxy(request) if self._header else der(request.certificate)
        if not shown:
            return None
        digest = hashlib.sha256(shown).digest()
        cached = self._cache.get(digest)
        if cached is None or time.time() >= cached[0]:
            cached = self._cache[digest] = self._read(shown, digest)
            while len(self._cache) > REMEMBERED:
                self._cache.popitem(last=False)
        return cached[1]

    def _from_proxy(self, request: Request) -> bytes:
        """The certificate from a proxy's header; empty if the request does not come from a
        proxy."""
        value = request.headers.get(self._header, "")
        if not value or not self._trusted(request.client):
            return b""
        if len(value) > LONGEST:
            raise Unauthenticated("The certificate is too long")
        try:
            if value.startswith(":") and value.endswith(":"):
                return base64.b64decode(value[1:-1], validate=True)
            return der(unquote(value))
        except (binascii.Error, ValueError):
            raise Unauthenticated("The certificate cannot be read") from None

    def _trusted(self, client: str) -> bool:
        try:
            address = ip_address(client)
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._proxies)

    def _read(self, shown: bytes, digest: bytes) -> tuple[float, Caller]:
        from cryptography import x509

        try:
            certificate = x509.load_der_x509_certificate(shown)
            begins, ends = (
                certificate.not_valid_before_utc.timestamp(),
                certificate.not_valid_after_utc.timestamp(),
            )
            if not begins <= time.time() < ends:
                raise Unauthenticated("The certificate has expired or is not valid yet")
            found = self._whose(certificate, digest)
        except (ValueError, x509.ExtensionNotFound):
            raise Unauthenticated("The certificate cannot be read") from None
        caller = Caller(identity=found) if isinstance(found, str) else found
        if caller is None or not caller.identity:
            raise Unauthenticated("The certificate is not known")
        if not 0 < caller.expires <= ends:
            caller = replace(caller, expires=ends)
        return min(ends, time.time() + AGE), caller

    def _whose(self, certificate: x509.Certificate, digest: bytes) -> Caller | str | None:
        if isinstance(self._identity, str):
            names = _NAMES[self._identity](certificate)
            if len(names) != 1:
                raise Unauthenticated(f"The certificate has {len(names)} names ({self._identity})")
            return names[0]
        if isinstance(self._identity, Mapping):
            return self._identity.get(digest.hex())
        return self._identity(certificate)


def der(certificate: str | bytes) -> bytes:
    """The DER bytes of a certificate in either form; empty for an empty one. Raises
    Unauthenticated."""
    if not certificate:
        return b""
    if isinstance(certificate, bytes):
        if not certificate.startswith(b"-----"):
            return certificate
        certificate = certificate.decode("latin-1")
    try:
        return ssl.PEM_cert_to_DER_cert(certificate.strip())
    except ValueError:
        raise Unauthenticated("The certificate cannot be read") from None


def thumbprint(certificate: str | bytes) -> str:
    """The digest by which a token names a certificate (`x5t#S256`); empty if there is none."""
    if not certificate:
        return ""
    digest = hashlib.sha256(der(certificate)).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _by_print(identities: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for text, identity in identities.items():
        digits = text.lower().removeprefix("sha256:").replace(":", "")
        if len(digits) != 64 or set(digits) - set("0123456789abcdef"):
            raise ValueError(
                f"Certificate: {text!r} is not a SHA-256 fingerprint of 64 hexadecimal digits"
            )
        found[digits] = identity
    return found


def _common(certificate: x509.Certificate) -> list[str]:
    from cryptography.x509 import NameOID

    return [str(n.value) for n in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


def _alternative(kind: str) -> Callable[[x509.Certificate], list[str]]:
    def names(certificate: x509.Certificate) -> list[str]:
        from cryptography import x509

        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        return list(found.value.get_values_for_type(getattr(x509, kind)))

    return names


_NAMES: dict[str, Callable[[x509.Certificate], list[str]]] = {
    "cn": _common,
    "uri": _alternative("UniformResourceIdentifier"),
    "dns": _alternative("DNSName"),
}
