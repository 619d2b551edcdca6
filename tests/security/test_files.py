"""Which files are taken: by type, by size, and by what a scan says of them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from dragoman import Agent, Part, Turn
from dragoman.model.caller import Caller
from tests.harness.clients import Binding, Failed, JsonRpc
from tests.harness.protected_app import KINDS, asked, protected
from tests.harness.raw_server import listening

EICAR = b"this stands for a virus"


def agent() -> Agent:
    """Takes whatever comes."""
    found = Agent("Files", description="Takes files.", input_modes=["*/*"])

    @found.handler
    async def take(turn: Turn) -> str:
        """Say what came."""
        return f"{len(turn.files)} files"

    return found


def said(*parts: dict[str, Any]) -> dict[str, Any]:
    """A message with these parts."""
    text = {"text": "here"}
    return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [text, *parts]}}


def raw(content: bytes, media_type: str = "") -> dict[str, Any]:
    """A file."""
    found = {"raw": base64.b64encode(content).decode(), "filename": "f"}
    return {**found, "mediaType": media_type} if media_type else found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_files_of_other_types_are_refused(kind: type[Binding]) -> None:
    async with protected(agent(), file_types=["image/*", "application/pdf"]) as server:
        alice = server.client(kind, "a-key")
        for good in ("image/png", "IMAGE/JPEG; q=1", "application/pdf"):
            assert not isinstance(await asked(alice, "SendMessage", said(raw(b"x", good))), Failed)
        for bad in ("text/html", "application/x-msdownload", "imagine/png"):
            found = await asked(alice, "SendMessage", said(raw(b"x", "image/png"), raw(b"x", bad)))
            assert isinstance(found, Failed)
            assert "message.parts[2].mediaType" in found.message
        link = {"url": "https://x.example/f", "mediaType": "text/html"}
        assert isinstance(await asked(alice, "SendMessage", said(link)), Failed)


async def test_a_file_without_a_type_is_of_none() -> None:
    async with protected(agent(), file_types=["image/*"]) as server:
        found = await asked(server.client(JsonRpc, "a-key"), "SendMessage", said(raw(b"x")))
        assert found.reason == "CONTENT_TYPE_NOT_SUPPORTED"
        assert "a file without a type" in found.message
        # what is no file has no need of one
        assert not isinstance(
            await asked(server.client(JsonRpc, "a-key"), "SendMessage", said({"data": {"a": 1}})),
            Failed,
        )


async def test_a_scan_may_refuse_large_files() -> None:
    def scan(part: Part, caller: Caller) -> str:
        return "is larger than 1000 bytes" if len(part.raw or b"") > 1000 else ""

    async with protected(agent(), scan=scan) as server:
        alice = server.client(JsonRpc, "a-key")
        assert not isinstance(await asked(alice, "SendMessage", said(raw(b"x" * 1000))), Failed)
        found = await asked(alice, "SendMessage", said(raw(b"x" * 1001)))
        assert (found.reason, found.fields) == ("INVALID_PARAMS", ["message.parts[1]"])


@pytest.mark.clause("content.file-ssrf")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_a_file_that_is_named_by_a_url_is_not_fetched(kind: type[Binding]) -> None:
    """Neither by the server, nor for the scan, nor for the agent that is given the URL."""
    seen: list[str] = []

    async def scan(part: Part, caller: Caller) -> str:
        seen.append(part.url or "")
        return ""

    async with (
        listening() as canary,
        protected(agent(), scan=scan, egress_allow=["127.0.0.1"]) as server,
    ):
        url = f"http://127.0.0.1:{canary.port}/f.png"
        part = {"url": url, "mediaType": "image/png", "filename": "f.png"}
        done = await asked(server.client(kind, "a-key"), "SendMessage", said(part))
        assert "1 files" in str(done)
        await canary.unseen()
    assert seen == [url], "a scan is told where it is, and decides"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_a_scan_looks_at_every_file(kind: type[Binding]) -> None:
    seen: list[tuple[str, bytes | None]] = []

    async def scan(part: Part, caller: Caller) -> str | None:
        seen.append((caller.identity, part.raw))
        return "holds a virus" if part.raw and EICAR in part.raw else None

    async with protected(agent(), scan=scan) as server:
        alice = server.client(kind, "a-key")
        good = raw(b"good", "text/plain")
        assert not isinstance(await asked(alice, "SendMessage", said(good)), Failed)
        for name in ("SendMessage", "SendStreamingMessage"):
            found = await asked(alice, name, said(good, raw(b"\0" + EICAR, "text/plain")))
            assert isinstance(found, Failed)
            assert "message.parts[2]: holds a virus" in found.message
        assert len((await server.client(JsonRpc, "a-key").call("ListTasks"))["tasks"]) == 1
    assert seen[0] == ("alice", b"good")


async def test_what_could_not_be_scanned_is_not_taken() -> None:
    def scan(part: Part, caller: Caller) -> str | None:
        raise OSError("the scanner is down at 10.0.0.1")

    async with protected(agent(), scan=scan) as server:
        alice = server.client(JsonRpc, "a-key")
        found = await asked(alice, "SendMessage", said(raw(b"x")))
        assert (found.reason, found.status) == ("UNAVAILABLE", 503)
        assert "10.0.0.1" not in found.message
        assert not (await alice.call("ListTasks"))["tasks"]
