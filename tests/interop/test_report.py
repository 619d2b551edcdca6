"""The page that `make interop` writes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop import report
from tests.interop.callers import Foreign
from tests.interop.peers import Peer


def told(where: list[str], outcome: str = "passed", **more: Any) -> pytest.TestReport:
    """What comes home from a test."""
    return pytest.TestReport(
        nodeid="",
        location=("", 0, ""),
        keywords={},
        outcome=outcome,  # type: ignore[arg-type]
        longrepr=more.pop("longrepr", None),
        when="call",
        user_properties=[("interop", where), *more.items()],
    )


def test_places() -> None:
    foreign = Foreign("fasta2a", "JSONRPC", "mixed")
    assert report._place({"foreign": foreign}) == ("clients", "fasta2a", "mixed", "JSONRPC")
    assert report._place({"left_out": foreign}) == ("clients", "fasta2a", "mixed", "JSONRPC")
    peer = Peer("reference", "GRPC")
    assert report._place({"peer": peer}) == ("servers", "reference", "1.0", "GRPC")
    assert report._place({"speak": "JSONRPC"}) == ("clients", "reference", "1.0", "JSONRPC")
    assert report._place({"place": 7}) is None


def test_page() -> None:
    rpc = ["clients", "reference", "1.0", "JSONRPC"]
    rest = ["clients", "reference", "1.0", "HTTP+JSON"]
    found = report.Report()
    for one in (
        told([*rest, "send"]),
        told([*rpc, "send"]),
        told([*rpc, "send"], "failed"),
        told([*rpc, "send"]),
        told([*rpc, "what it cannot say"], absent=["listing"]),
        told([*rest, "cancel"], "skipped", longrepr=("", 0, "Skipped: reference: away")),
    ):
        found.pytest_runtest_logreport(one)
    page = "\n".join(found._page())
    version = report._version("reference")
    assert f"| a2a-sdk | {version} | 1.0 | JSONRPC | 0 | 1 | 1 | 0 |" in page
    assert f"| a2a-sdk | {version} | 1.0 | HTTP+JSON | 1 | 0 | 0 | 1 |" in page
    assert (
        f"### a2a-sdk {version}\n\n"
        "| | JSONRPC | HTTP+JSON |\n"
        "|---|---|---|\n"
        "| cancel |  | skipped |\n"
        "| listing | cannot |  |\n"
        "| send | **failed** | yes |\n"
    ) in page
    assert page.endswith("## Left out\n\n- reference: away")
    assert page == "\n".join(found._page())
