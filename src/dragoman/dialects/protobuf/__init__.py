"""Encodes structs as protobuf and decodes them, using the descriptors of dragoman's `.proto` files.

A struct and its message have the same name, and their fields have the same JSON names. So one codec
serves both versions: `V1` is A2A 1.0, `V0_3` is 0.3. To decode, upb parses the bytes and msgspec
checks the values; encoding writes the bytes directly.

Protobuf stores numbers in metadata and data as doubles, so integers beyond 2**53 lose precision.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import msgspec
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from msgspec import Struct

from dragoman.dialects.missing_fields import partial
from dragoman.dialects.protobuf.element_count import count
from dragoman.dialects.protobuf.message_codec import Read, Write, reader, writer
from dragoman.dialects.protobuf.status import restored_status as restored_status
from dragoman.dialects.protobuf.status import status as status
from dragoman.dialects.protobuf.status import words as words
from dragoman.dialects.protobuf.wellknown import Refused
from dragoman.dialects.protojson import invalid
from dragoman.model.errors import InvalidParams, ParseError
from dragoman.model.types import WireStruct

S = TypeVar("S", bound=Struct)
W = TypeVar("W", bound=WireStruct)

DESCRIPTORS = "descriptors.binpb"


@cache
def pool() -> DescriptorPool:
    """Return dragoman's descriptors in a separate pool. In the default pool, other packages
    register files of the same names, which is an error."""
    found = DescriptorPool()
    body = files("dragoman.dialects.protobuf").joinpath(DESCRIPTORS).read_bytes()
    for file in FileDescriptorSet.FromString(body).file:
        found.Add(file)
    return found


class Schema:
    """The messages of one proto package."""

    def __init__(self, package: str) -> None:
        self.package = package

    def decode(self, kind: type[S], body: bytes, message: str = "", *, elements: int = 0) -> S:
        """Decode a message. `message` is its name if that differs from the struct's. Raises
        InvalidParams, which names the wrong field, and InvalidRequest if the message has more than
        `elements` elements; 0 means no limit."""
        if elements and len(body) > 2 * elements:  # an element takes at least two bytes
            count(body, self.descriptor(message or kind.__name__), elements)
        try:
            return msgspec.convert(self._document(kind, body, message), kind)
        except msgspec.ValidationError as error:
            raise invalid(error) from None
        except RecursionError:
            raise ParseError("Body is nested too deeply") from None

    def partial(self, kind: type[W], body: bytes) -> tuple[W, list[str]]:
        """Decode a message that may lack required fields, and return the paths of these, too."""
        return partial(kind, self._document(kind, body, ""))

    def _document(self, kind: type[Struct], body: bytes, message: str) -> dict[str, Any]:
        parse, read = _decoder(self, kind, message)
        try:
            found: dict[str, Any] = read(parse(body))
            return found
        except Refused as error:
            raise InvalidParams.at(error.path.removeprefix("."), error.what) from None
        except (DecodeError, UnicodeDecodeError):
            raise ParseError(f"Body is not a valid {message or kind.__name__}") from None
        except RecursionError:
            raise ParseError("Body is nested too deeply") from None

    def encode(self, value: Struct, message: str = "") -> bytes:
        """Encode a struct. Raises ValueError if protobuf cannot represent a value."""
        kind = type(value)
        write = _encoder(self, kind, message)
        try:
            return write(value)
        except RecursionError:
            raise ValueError(f"{kind.__name__} is nested too deeply for protobuf") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            what = str(error) or type(error).__name__
            raise ValueError(f"{kind.__name__} cannot be written as protobuf: {what}") from error

    def descriptor(self, message: str) -> Descriptor:
        """Return the descriptor of a message."""
        return pool().FindMessageTypeByName(f"{self.package}.{message}")


@cache
def _decoder(schema: Schema, kind: type[Struct], message: str) -> tuple[Read, Read]:
    descriptor = schema.descriptor(message or kind.__name__)
    return GetMessageClass(descriptor).FromString, reader(kind, descriptor)


@cache
def _encoder(schema: Schema, kind: type[Struct], message: str) -> Write:
    return writer(kind, schema.descriptor(message or kind.__name__))


V1 = Schema("lf.a2a.v1")
V0_3 = Schema("a2a.v1")
