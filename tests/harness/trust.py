"""Which certificates the clients of tests trust: none, unless a test has made some. To load those
of all public authorities takes longer than most tests."""

from __future__ import annotations

import os
import ssl

NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For `verify=` of httpx, which loads them for each client and for each `httpx.get`."""

ENVIRONMENT = {"SSL_CERT_FILE": os.devnull}
"""For the environment of a process that calls servers."""


def trusted(url: str) -> ssl.SSLContext:
    """For `verify=`: what `SSL_CERT_FILE` names, if the server has a certificate."""
    return ssl.create_default_context() if url.startswith("https:") else NOBODY
