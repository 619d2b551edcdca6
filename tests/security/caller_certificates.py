"""Certificates of callers, made for tests."""

from __future__ import annotations

import datetime
import hashlib
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass
class Made:
    """A certificate and its key, in PEM."""

    pem: str
    key: str

    @property
    def der(self) -> bytes:
        return ssl.PEM_cert_to_DER_cert(self.pem)

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.der).hexdigest()

    def file(self, path: Path) -> str:
        path.write_text(self.key + self.pem)
        return str(path)


def made(*names: str, sans: tuple[x509.GeneralName, ...] = (), days: int = 1) -> Made:
    """A certificate that signs itself, with these common names."""
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(x509.NameOID.COMMON_NAME, name) for name in names]
    subject, now = x509.Name(attributes), datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=days))
    )
    if sans:
        builder = builder.add_extension(x509.SubjectAlternativeName(sans), critical=False)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return Made(public.decode(), private.decode())


SPIFFE = "spiffe://example.org/robot"
ROBOT = made("robot", sans=(x509.UniformResourceIdentifier(SPIFFE), x509.DNSName("r.example")))
