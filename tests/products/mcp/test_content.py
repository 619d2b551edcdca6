"""Parts of A2A as content of MCP, and back."""

from __future__ import annotations

from typing import Any

import mcp.types as mcp
import pytest
from msgspec import UNSET

from dragoman import Artifact, Part
from dragoman.mcp import content

URI = "a2a://desk/tasks/7/artifacts/1"
BYTES = b"\x00\x01\xff"
PARTS = {
    "text": Part(text="Hello"),
    "markdown": Part(text="# Hello", media_type="text/markdown"),
    "text file": Part(text="a,b\n1,2\n", media_type="text/csv", filename="table.csv"),
    "image": Part(raw=BYTES, media_type="image/png"),
    "named image": Part(raw=BYTES, media_type="image/png", filename="seat.png"),
    "audio": Part(raw=BYTES, media_type="audio/wav"),
    "bytes": Part(raw=BYTES, media_type="application/pdf", filename="ticket.pdf"),
    "unnamed bytes": Part(raw=BYTES, media_type="application/octet-stream"),
    "address": Part(url="https://a.example/t.pdf", media_type="application/pdf", filename="t.pdf"),
    "data": Part(data={"seat": "12A", "rows": [1, 2]}, media_type="application/json"),
    "list": Part(data=[1, "two", None], media_type="application/json"),
    "metadata": Part(text="Hello", metadata={"urn:x": {"a": 1}}),
}


def back(blocks: list[mcp.ContentBlock]) -> list[Part]:
    """The parts again, after the blocks have been on the wire."""
    sent = mcp.CallToolResult(content=blocks).model_dump(mode="json", by_alias=True)
    return content.parts(mcp.CallToolResult.model_validate(sent).content)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_comes_back_as_it_was(name: str) -> None:
    part = PARTS[name]
    expected = part.replace(media_type="") if part.data is not UNSET else part
    assert back(content.blocks([part], uri=URI)) == [expected]


@pytest.mark.parametrize(
    ("name", "kind", "wanted"),
    [
        ("text", mcp.TextContent, {"text": "Hello", "meta": None}),
        ("data", mcp.TextContent, {"text": '{"seat": "12A", "rows": [1, 2]}'}),
        ("image", mcp.ImageContent, {"data": "AAH/", "mime_type": "image/png"}),
        ("audio", mcp.AudioContent, {"data": "AAH/", "mime_type": "audio/wav"}),
        ("address", mcp.ResourceLink, {"uri": "https://a.example/t.pdf", "name": "t.pdf"}),
    ],
)
def test_a_part_becomes_the_content_that_fits(
    name: str, kind: type[Any], wanted: dict[str, Any]
) -> None:
    (block,) = content.blocks([PARTS[name]], uri=URI)
    assert isinstance(block, kind)
    assert {key: getattr(block, key) for key in wanted} == wanted


def test_a_file_is_an_embedded_resource_with_an_address_of_its_own() -> None:
    text, pdf = content.blocks([PARTS["text file"], PARTS["bytes"]], uri=URI)
    assert isinstance(text, mcp.EmbeddedResource)
    assert isinstance(pdf, mcp.EmbeddedResource)
    assert isinstance(text.resource, mcp.TextResourceContents)
    assert (text.resource.uri, text.resource.mime_type) == (f"{URI}/0/table.csv", "text/csv")
    assert isinstance(pdf.resource, mcp.BlobResourceContents)
    assert (pdf.resource.uri, pdf.resource.blob) == (f"{URI}/1/ticket.pdf", "AAH/")


def test_all_parts_can_be_read_as_resources_at_the_same_addresses() -> None:
    every = list(PARTS.values())
    read = content.resources(every, uri=URI)
    embedded = [
        block.resource.uri
        for block in content.blocks(every, uri=URI)
        if isinstance(block, mcp.EmbeddedResource)
    ]
    assert len(read) == len(every)
    assert set(embedded) <= {each.uri for each in read}


def test_artifacts_stay_apart_and_keep_their_names() -> None:
    first = Artifact(artifact_id="1", name="ticket", description="A ticket", parts=(PARTS["text"],))
    second = Artifact(artifact_id="2", metadata={"x": 1}, parts=(PARTS["data"], PARTS["image"]))
    found = [
        *content.artifact_blocks(first, uri=URI),
        *content.artifact_blocks(second, uri=URI),
    ]
    one, two = content.artifacts(found)
    assert (one.name, one.description, one.parts) == ("ticket", "A ticket", first.parts)
    assert (two.metadata, len(two.parts)) == ({"x": 1}, 2)


def test_structured_content_takes_the_place_of_the_text_that_repeats_it() -> None:
    found = [mcp.TextContent(text="Booked"), mcp.TextContent(text='{"seat":"12A"}')]
    (result,) = content.artifacts(found, {"seat": "12A"})
    assert result.parts == (Part(text="Booked"), Part(data={"seat": "12A"}))


def test_structured_content_without_such_a_text_comes_first() -> None:
    (result,) = content.artifacts([mcp.TextContent(text="Booked")], {"seat": "12A"})
    assert result.parts == (Part(data={"seat": "12A"}), Part(text="Booked"))
    (alone,) = content.artifacts([], None)
    assert alone.parts == (Part(data=None),)
    assert content.artifacts([]) == []


def test_resources_of_other_servers_become_files_with_their_names() -> None:
    readme = mcp.TextResourceContents(uri="file:///home/READ%20ME", text="Read")
    logo = mcp.BlobResourceContents(uri="res://logo.png", mime_type="image/png", blob="AAH/")
    found = back([mcp.EmbeddedResource(resource=readme), mcp.EmbeddedResource(resource=logo)])
    assert found[0] == Part(text="Read", filename="READ ME")
    assert found[1] == Part(raw=BYTES, media_type="image/png")


def test_wrong_base64_is_refused() -> None:
    with pytest.raises(ValueError, match="wrong base64"):
        content.parts([mcp.ImageContent(data="%%%", mime_type="image/png")])


@pytest.mark.parametrize("meta", [{"dragoman/part": "x"}, {"dragoman/part": {"filename": 7}}])
def test_marks_that_others_wrote_are_ignored(meta: dict[str, Any]) -> None:
    block = mcp.TextContent(text="Hello", _meta={**meta, "dragoman/artifact": 7})
    assert content.artifacts([block])[0].parts == (Part(text="Hello"),)


def test_the_data_of_a_result_is_its_first_data_part() -> None:
    assert content.structured([Part(text="x"), Part(data=None), Part(data=2)]) is None
    assert content.structured([Part(text="x")]) is UNSET
