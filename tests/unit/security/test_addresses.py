"""Which addresses mean this machine, and which count as one client."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path

import pytest

import dragoman
from dragoman.conformance.interface_url import reach
from dragoman.security.client_network import client_network, loopback

SOURCES = Path(dragoman.__file__).parent
HERE = [
    *("localhost", "LOCALHOST", "localhost.", "agent.localhost", "127.0.0.1", "127.8.9.10"),
    *("::1", "[::1]", "::ffff:127.0.0.1"),
]
ELSEWHERE = [
    *("", "0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "localhost.example"),
    *("notlocalhost", "127.0.0.1.example", "local", "127.1"),
]


@pytest.mark.parametrize("host", HERE)
def test_what_means_this_machine(host: str) -> None:
    assert loopback(host)
    assert reach(host.strip("[]")) == "loopback"


@pytest.mark.parametrize("host", ELSEWHERE)
def test_what_may_mean_another_machine(host: str) -> None:
    assert not loopback(host)
    assert reach(host) != "loopback"


def test_an_address_that_is_parsed_already() -> None:
    assert loopback(ip_address("127.0.0.1"))
    assert loopback(ip_address("::ffff:127.0.0.1"))
    assert not loopback(ip_address("192.0.2.1"))


def test_no_other_module_decides_that() -> None:
    sources = {path.name: path.read_text() for path in SOURCES.glob("**/*.py")}
    found = [
        name for name, text in sources.items() if re.search(r"is_loopback|== .localhost", text)
    ]
    assert found == ["client_network.py"]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::2:3", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("unknown", "unknown"),
        ("x" * 1000, "x" * 64),
        (":" * 1000, ":" * 64),
    ],
)
def test_what_counts_as_one_client(address: str, network: str) -> None:
    assert client_network(address) == network
