"""TLS contexts, and the PEM files that they were made from, because gRPC needs the files."""

from __future__ import annotations

from pathlib import Path
from ssl import DER_cert_to_PEM_cert, SSLContext, create_default_context
from weakref import WeakKeyDictionary

from msgspec import Struct


class TLSMaterial(Struct, frozen=True):
    """CA certificates, certificate and key in PEM form. Empty means the system's CAs, or no
    certificate."""

    trusted: bytes = b""
    certificate: bytes = b""
    key: bytes = b""


_KNOWN: WeakKeyDictionary[SSLContext, TLSMaterial] = WeakKeyDictionary()


def context(
    *, ca: str = "", certificate: str = "", key: str = "", password: str = ""
) -> SSLContext:
    """Make a context that trusts the CAs in a file, or the system's, and presents a certificate."""
    made = create_default_context(cafile=ca or None)
    shown = secret = b""
    if certificate:
        made.load_cert_chain(certificate, key or None, password or None)
        if not password:  # gRPC accepts no encrypted key
            shown = Path(certificate).read_bytes()
            secret = Path(key).read_bytes() if key else shown
    _KNOWN[made] = TLSMaterial(Path(ca).read_bytes() if ca else b"", shown, secret)
    return made


def papers(made: SSLContext) -> TLSMaterial:
    """Return the PEM material of a context. Of a context made elsewhere, only its CAs are known."""
    found = _KNOWN.get(made)
    if found is not None:
        return found
    trusted = [DER_cert_to_PEM_cert(each) for each in made.get_ca_certs(binary_form=True)]
    return TLSMaterial("".join(trusted).encode())
