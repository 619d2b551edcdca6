"""TLS contexts and the files that they were made from: gRPC needs the files."""

from __future__ import annotations

from pathlib import Path
from ssl import DER_cert_to_PEM_cert, SSLContext, create_default_context
from weakref import WeakKeyDictionary

from msgspec import Struct


class TLSMaterial(Struct, frozen=True):
    """Whom to trust, and what to show, in PEM form; empty is what everybody trusts, or nothing."""

    trusted: bytes = b""
    certificate: bytes = b""
    key: bytes = b""


_KNOWN: WeakKeyDictionary[SSLContext, TLSMaterial] = WeakKeyDictionary()


def context(
    *, ca: str = "", certificate: str = "", key: str = "", password: str = ""
) -> SSLContext:
    """A context that trusts the authorities in a file, or the system's, and shows a certificate."""
    made = create_default_context(cafile=ca or None)
    shown = secret = b""
    if certificate:
        made.load_cert_chain(certificate, key or None, password or None)
        if not password:  # gRPC takes no key that is locked
            shown = Path(certificate).read_bytes()
            secret = Path(key).read_bytes() if key else shown
    _KNOWN[made] = TLSMaterial(Path(ca).read_bytes() if ca else b"", shown, secret)
    return made


def papers(made: SSLContext) -> TLSMaterial:
    """What is in a context; of one that somebody else made, whom it trusts."""
    found = _KNOWN.get(made)
    if found is not None:
        return found
    trusted = [DER_cert_to_PEM_cert(each) for each in made.get_ca_certs(binary_form=True)]
    return TLSMaterial("".join(trusted).encode())
