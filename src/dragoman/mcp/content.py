"""Parts of A2A as content of MCP, and back.

What MCP has no field for (the metadata of a part, the name of an artifact) is in the `_meta` of a
block, under keys that begin with `dragoman/`, so that nothing is lost if the content comes back.
"""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import mcp.types as mcp
import msgspec
from msgspec import UNSET, Struct, UnsetType

from dragoman import Artifact, Part

PART, ARTIFACT = "dragoman/part", "dragoman/artifact"
"""The keys in `_meta`: what a part has beside its content, and the artifact that a block is of."""
PLAIN, BINARY, JSON = "text/plain", "application/octet-stream", "application/json"
TEXTUAL = (JSON, "application/xml", "application/yaml", "application/javascript")
"""Media types of text that do not begin with `text/`."""


class ArtifactContent(Struct, frozen=True, kw_only=True):
    """An artifact that came as content of MCP."""

    parts: tuple[Part, ...]
    name: str = ""
    description: str = ""
    metadata: dict[str, Any] | None = None


# ---- A2A to MCP ------------------------------------------------------------------------------


def blocks(parts: Iterable[Part], *, uri: str) -> list[mcp.ContentBlock]:
    """Convert parts to content. The resource of a part that is embedded has the address `uri`, and
    the number of the part as its last segment."""
    return [_block(part, f"{uri}/{number}") for number, part in enumerate(parts)]


def artifact_blocks(artifact: Artifact, *, uri: str) -> list[mcp.ContentBlock]:
    """Convert an artifact to content; each block says which artifact it is of."""
    about: dict[str, Any] = {"id": artifact.artifact_id}
    for name in ("name", "description", "metadata"):
        if value := getattr(artifact, name):
            about[name] = value
    return [
        block.model_copy(update={"meta": {**(block.meta or {}), ARTIFACT: about}})
        for block in blocks(artifact.parts, uri=uri)
    ]


def resources(
    parts: Iterable[Part], *, uri: str
) -> list[mcp.TextResourceContents | mcp.BlobResourceContents]:
    """Convert parts to the contents of resources, with the addresses that `blocks` gives them. A
    part that is only an address becomes text with the address."""
    return [_resource(part, f"{uri}/{number}") for number, part in enumerate(parts)]


def structured(parts: Iterable[Part]) -> Any | UnsetType:
    """Return the data of the first data part; UNSET if there is none."""
    return next((part.data for part in parts if part.data is not UNSET), UNSET)


def _block(part: Part, uri: str) -> mcp.ContentBlock:
    meta: Any = _meta(part)
    kind = part.media_type
    if part.text is not None and not part.filename:
        return mcp.TextContent(text=part.text, _meta=meta)
    if part.data is not UNSET:
        return mcp.TextContent(text=_json(part.data), _meta=meta)
    if part.url is not None:
        return mcp.ResourceLink(
            uri=part.url, name=_name(part), mime_type=kind or None, _meta=_meta(part, "filename")
        )
    if part.raw is not None and kind.startswith("image/"):
        return mcp.ImageContent(data=_base64(part.raw), mime_type=kind, _meta=meta)
    if part.raw is not None and kind.startswith("audio/"):
        return mcp.AudioContent(data=_base64(part.raw), mime_type=kind, _meta=meta)
    return mcp.EmbeddedResource(resource=_resource(part, uri), _meta=meta)


def _resource(part: Part, uri: str) -> mcp.TextResourceContents | mcp.BlobResourceContents:
    if part.filename:
        uri = f"{uri}/{quote(part.filename, safe='')}"
    if part.data is not UNSET:
        return mcp.TextResourceContents(uri=uri, mime_type=JSON, text=_json(part.data))
    if part.url is not None:
        return mcp.TextResourceContents(uri=uri, mime_type="text/uri-list", text=part.url)
    if part.text is not None:
        kind = part.media_type or mimetypes.guess_type(part.filename)[0] or PLAIN
        return mcp.TextResourceContents(uri=uri, mime_type=kind, text=part.text)
    raw = part.raw or b""
    kind = part.media_type or mimetypes.guess_type(part.filename)[0] or BINARY
    return mcp.BlobResourceContents(uri=uri, mime_type=kind, blob=_base64(raw))


def _meta(part: Part, *kept: str) -> dict[str, Any] | None:
    """What the block itself has no field for. A media type of text has one in a resource only."""
    about: dict[str, Any] = {}
    if part.metadata:
        about["metadata"] = part.metadata
    if part.filename and "filename" not in kept:
        about["filename"] = part.filename
    if part.text is not None and part.media_type not in ("", PLAIN):
        about["mediaType"] = part.media_type
    if part.data is not UNSET:
        about["mediaType"] = part.media_type or JSON
    return {PART: about} if about else None


def _name(part: Part) -> str:
    path = urlsplit(part.url or "").path.rstrip("/")
    return part.filename or unquote(path.rpartition("/")[2]) or "file"


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False)


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


# ---- MCP to A2A ------------------------------------------------------------------------------


def parts(content: Iterable[mcp.ContentBlock]) -> list[Part]:
    """Convert content to parts. Raises ValueError if a block has wrong base64."""
    return [_part(block) for block in content]


def artifacts(
    content: Sequence[mcp.ContentBlock], structured_content: Any | UnsetType = UNSET
) -> list[ArtifactContent]:
    """Convert the result of a tool to artifacts: those that it was made of, else one with all of
    the content. Structured content becomes a data part, in the place of the text that repeats it.
    Raises ValueError if a block has wrong base64."""
    groups: dict[str, tuple[dict[str, Any], list[Part]]] = {}
    given = structured_content is not UNSET
    for block in content:
        about = _mark(block, ARTIFACT)
        _, found = groups.setdefault(str(about.get("id", "")), (about, []))
        part = _part(block)
        if given and (part.data == structured_content or _repeats(part, structured_content)):
            part, given = part.replace(text=None, data=structured_content), False
        found.append(part)
    if given:
        _, found = next(iter(groups.values()), ({}, []))
        found.insert(0, Part(data=structured_content))
        groups = groups or {"": ({}, found)}
    return [_artifact(about, found) for about, found in groups.values()]


def _artifact(about: dict[str, Any], found: Sequence[Part]) -> ArtifactContent:
    name, description = about.get("name", ""), about.get("description", "")
    metadata = about.get("metadata")
    return ArtifactContent(
        parts=tuple(found),
        name=name if isinstance(name, str) else "",
        description=description if isinstance(description, str) else "",
        metadata=metadata if isinstance(metadata, dict) else None,
    )


def _part(block: mcp.ContentBlock) -> Part:
    about = _mark(block, PART)
    metadata = about.get("metadata")
    known: dict[str, Any] = {"metadata": metadata if isinstance(metadata, dict) else None}
    name, kind = about.get("filename"), about.get("mediaType")
    if isinstance(name, str):
        known["filename"] = name
    if isinstance(kind, str):
        known["media_type"] = kind
    if isinstance(block, mcp.TextContent):
        if known.get("media_type") == JSON and (data := _decoded(block.text)) is not UNSET:
            return Part(data=data, metadata=known["metadata"])
        return Part(text=block.text, **known)
    if isinstance(block, mcp.ImageContent | mcp.AudioContent):
        return Part(raw=_raw(block.data), **{**known, "media_type": block.mime_type})
    if isinstance(block, mcp.ResourceLink):
        kind = block.mime_type or ""
        return Part(url=block.uri, **{**known, "media_type": kind, "filename": block.name})
    resource = block.resource
    known["media_type"] = resource.mime_type or ""
    known.setdefault("filename", _filename(resource.uri))
    if isinstance(resource, mcp.TextResourceContents):
        return Part(text=resource.text, **known)
    return Part(raw=_raw(resource.blob), **known)


def _mark(block: mcp.ContentBlock, key: str) -> dict[str, Any]:
    found = (block.meta or {}).get(key)
    return found if isinstance(found, dict) else {}


def _repeats(part: Part, data: Any) -> bool:
    """Whether a text is the structured content once more, for clients that read only text."""
    return part.text is not None and _decoded(part.text) == data


def _decoded(text: str) -> Any | UnsetType:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return UNSET


def _filename(uri: str) -> str:
    """The last segment of the address; empty if it is only a number, as those of `blocks`."""
    name = unquote(urlsplit(uri).path.rstrip("/").rpartition("/")[2])
    return "" if name.isdigit() else name


def _raw(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the content has wrong base64") from None
