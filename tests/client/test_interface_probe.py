"""The interfaces of a card are dialled, as far as the card may lead."""

from __future__ import annotations

from dragoman.client import HTTPTransport
from dragoman.client.credentials import Guard
from dragoman.client.discovery import Cards, Document
from dragoman.conformance.interfaces import probe
from dragoman.dialects import v1_0
from tests.client.transports import Answer, Script, card, interface
from tests.harness.raw_server import listening


class Public(Answer):
    """An answer that came from a public address."""

    public = True


async def test_a_card_from_a_public_address_leads_to_no_other() -> None:
    async with listening() as listener:
        found = v1_0.encode(card(interface(f"http://127.0.0.1:{listener.port}")))
        guard = Guard(HTTPTransport())
        cards = Cards(Script(lambda _: Public(found)), confine=guard.confine)
        document = await cards.fetch("https://agent.example")
        try:
            (finding,) = await probe(document, guard)
        finally:
            await guard.close()
        assert (finding.level, finding.field) == ("warning", "supportedInterfaces[0].url")
        assert "was not called: the card comes from a public address" in finding.text
        await listener.unseen()


async def test_only_what_answers_as_its_binding_does() -> None:
    async with listening() as listener:  # it answers `ok` to everything
        where = f"http://127.0.0.1:{listener.port}"
        ways = [interface(where), interface(where, "HTTP+JSON"), interface(where, "SMOKE")]
        transport = HTTPTransport()
        try:
            found = await probe(Document(v1_0.encode(card(*ways))), transport)
            assert await probe(Document(b"no card"), transport) == []
        finally:
            await transport.close()
    assert [finding.field for finding in found] == [f"supportedInterfaces[{n}].url" for n in (0, 1)]
    assert all("answers, but not as " in finding.text for finding in found)


async def test_without_grpc() -> None:
    document = Document(v1_0.encode(card(interface("127.0.0.1:1", "GRPC"))))
    (finding,) = await probe(document, Script(lambda _: Answer()), ["JSONRPC"])
    assert (finding.level, "gRPC is not installed" in finding.text) == ("note", True)
