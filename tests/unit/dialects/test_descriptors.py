"""Our `.proto` files say of the wire what the reference's say, and live in a pool of their own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.types import a2a_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from dragoman.dialects import protobuf
from dragoman.model.operations import OPERATIONS
from tests import proto

PACKAGES = {"lf.a2a.v1": a2a_pb2.DESCRIPTOR, "a2a.v1": a2a_v0_3_pb2.DESCRIPTOR}


def ours(package: str, body: bytes = b"") -> FileDescriptorProto:
    """Our file of a package, as it is carried unless given anew."""
    carried = body or (proto.HOME / protobuf.DESCRIPTORS).read_bytes()
    (found,) = (f for f in FileDescriptorSet.FromString(carried).file if f.package == package)
    return found


def theirs(package: str) -> FileDescriptorProto:
    """The reference's file of a package."""
    found = FileDescriptorProto()
    PACKAGES[package].CopyToProto(found)
    return found


def messages(file: FileDescriptorProto) -> dict[str, dict[str, Any]]:
    """Every field of every message, without the options."""
    return {message.name: fields(message) for message in file.message_type}


def fields(message: DescriptorProto) -> dict[str, Any]:
    """What the wire and its JSON know of a message."""
    found: dict[str, Any] = {field.name: about(message, field) for field in message.field}
    for inner in message.nested_type:
        found[f"message {inner.name}"] = fields(inner), inner.options.map_entry
    for enum in message.enum_type:
        found[f"enum {enum.name}"] = numbers(enum)
    return found


def about(message: DescriptorProto, field: FieldDescriptorProto) -> tuple[Any, ...]:
    """What the wire and its JSON know of a field."""
    oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
    return (
        field.number,
        field.json_name,
        field.type,
        field.type_name,
        field.label,
        field.proto3_optional,
        oneof,
        field.options.deprecated,
    )


def numbers(enum: EnumDescriptorProto) -> dict[str, int]:
    """The values of an enum."""
    return {value.name: value.number for value in enum.value}


def methods(file: FileDescriptorProto) -> dict[str, Any]:
    """Every method of every service."""
    return {
        f"{service.name}.{method.name}": (
            method.input_type,
            method.output_type,
            method.client_streaming,
            method.server_streaming,
        )
        for service in file.service
        for method in service.method
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_carried_is_what_was_written(package: str) -> None:
    assert ours(package) == ours(package, proto.compiled()), "make proto"


@pytest.mark.clause("grpc.service")
@pytest.mark.parametrize("package", PACKAGES)
def test_the_messages_are_those_of_the_reference(package: str) -> None:
    found, known = ours(package), theirs(package)
    assert found.syntax == known.syntax
    assert messages(found) == messages(known)
    assert {enum.name: numbers(enum) for enum in found.enum_type} == {
        enum.name: numbers(enum) for enum in known.enum_type
    }


@pytest.mark.clause("grpc.service")
@pytest.mark.parametrize("package", PACKAGES)
def test_the_methods_are_those_of_the_reference(package: str) -> None:
    assert methods(ours(package)) == methods(theirs(package))


@pytest.mark.clause("grpc.service")
def test_the_methods_are_our_operations() -> None:
    found = methods(ours("lf.a2a.v1"))
    for operation in OPERATIONS:
        asked, answered, _, streams = found.pop(f"A2AService.{operation.name}")
        assert asked == f".lf.a2a.v1.{operation.request.__name__}"
        kind = operation.response
        assert answered == (f".lf.a2a.v1.{kind.__name__}" if kind else ".google.protobuf.Empty")
        assert streams == operation.streams
    assert not found


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_else_is_imported(package: str) -> None:
    assert all(name.startswith("google/protobuf/") for name in ours(package).dependency)


OURS = """
from dragoman.dialects.protobuf import V0_3, V1, restored_status, status
from dragoman.model.errors import TaskNotFound
from dragoman.model.types import GetTaskRequest
assert V1.decode(GetTaskRequest, V1.encode(GetTaskRequest(id="t"))).id == "t"
assert V0_3.descriptor("GetTaskRequest").fields[0].name == "name"
assert restored_status(status(TaskNotFound()))[0] == 5
"""
THEIRS = """
from a2a.types import a2a_pb2
from a2a.compat.v0_3 import a2a_v0_3_pb2
assert a2a_pb2.GetTaskRequest.FromString(a2a_pb2.GetTaskRequest(id="t").SerializeToString()).id
"""


@pytest.mark.parametrize("script", [OURS + THEIRS, THEIRS + OURS])
def test_both_live_in_one_process(script: str) -> None:
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_who_speaks_no_grpc_needs_no_protobuf() -> None:
    script = (
        "import sys, dragoman, dragoman.server.app, dragoman.client, dragoman.dialects.v1_0\n"
        "sys.exit(any(name.startswith('google.') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
