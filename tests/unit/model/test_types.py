"""The structs are the messages of the protocol, and survive the wire unchanged."""

from __future__ import annotations

import types as kinds
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import pytest
from a2a.types import a2a_pb2
from google.api import field_behavior_pb2
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.dialects import protojson, v1_0
from dragoman.model import types
from dragoman.model.types import ENUM_NUMBERS, Part, Role, TaskState, WireStruct
from tests.harness import wire_values as wire
from tests.harness.scale import examples

MESSAGES: dict[str, Descriptor] = dict(a2a_pb2.DESCRIPTOR.message_types_by_name)
NAMES = [kind.__name__ for kind in wire.KINDS]


def struct(name: str) -> type[WireStruct]:
    """Our struct of a message's name."""
    return getattr(types, name)


# ---- the round trip ------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_strict_round_trip(name: str, data: st.DataObject) -> None:
    kind = struct(name)
    value = data.draw(wire.values(kind))
    body = v1_0.encode(value)
    found = protojson.decoder(kind).decode(body)
    assert found == value
    assert v1_0.encode(found) == body


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_lenient_round_trip(name: str, data: st.DataObject) -> None:
    kind = struct(name)
    value = data.draw(wire.values(kind))
    body = v1_0.encode(value)
    found = protojson.convert(kind, protojson.parse(body))
    assert found == value
    assert v1_0.encode(found) == body


@pytest.mark.clause("part.data-any-json", "metadata.any-json")
@given(wire.JSON)
def test_any_json_is_data_and_metadata(value: Any) -> None:
    part = Part(data=value, metadata={"key": value})
    found = v1_0.decode(Part, v1_0.encode(part))
    assert found == part
    assert msgspec.json.encode(found.data) == msgspec.json.encode(value)


@pytest.mark.clause("part.one-content")
@given(st.sets(st.sampled_from(sorted(wire.CONTENTS))).filter(lambda chosen: len(chosen) != 1))
def test_a_part_has_exactly_one_content(chosen: set[str]) -> None:
    contents = {"text": "", "raw": b"", "url": "", "data": None}
    with pytest.raises(ValueError, match="exactly one of text, raw, url, data"):
        Part(**{name: contents[name] for name in chosen})


@pytest.mark.parametrize("name", NAMES)
def test_values_are_frozen(name: str) -> None:
    value = sample(struct(name))
    for field in value.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(value, field, None)


# ---- the protocol's own definitions --------------------------------------------------------


def test_every_message_has_its_struct_and_every_struct_its_message() -> None:
    assert set(NAMES) == set(MESSAGES)


@pytest.mark.clause("json.camel-case")
@pytest.mark.parametrize("name", MESSAGES)
def test_json_names_are_those_of_the_proto(name: str) -> None:
    ours = {item.encode_name for item in msgspec.structs.fields(struct(name))}
    assert ours == {field.json_name for field in MESSAGES[name].fields}


@pytest.mark.parametrize("name", MESSAGES)
def test_python_names_are_those_of_the_proto(name: str) -> None:
    ours = {item.name: item.encode_name for item in msgspec.structs.fields(struct(name))}
    assert ours == {field.name: field.json_name for field in MESSAGES[name].fields}


FIELDS = [(name, field.name) for name, message in MESSAGES.items() for field in message.fields]


def pair(name: str, field: str) -> tuple[FieldDescriptor, msgspec.structs.FieldInfo]:
    """A field in the proto, and ours."""
    (ours,) = (item for item in msgspec.structs.fields(struct(name)) if item.name == field)
    return MESSAGES[name].fields_by_name[field], ours


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_fields_are_of_the_type_of_the_proto(name: str, field: str) -> None:
    theirs, ours = pair(name, field)
    assert bare(ours.type) == expected(theirs)


def bare(kind: Any) -> Any:
    """A type without its constraints and without the possibility of absence."""
    if get_origin(kind) is Annotated:
        return bare(kind.__origin__)
    if get_origin(kind) in (Union, kinds.UnionType):
        inner = [item for item in get_args(kind) if item not in (type(None), msgspec.UnsetType)]
        return bare(inner[0])
    if get_origin(kind) is tuple:
        return (tuple, bare(get_args(kind)[0]))
    if get_origin(kind) is dict:
        return (dict, bare(get_args(kind)[1]))
    return kind


def expected(field: FieldDescriptor) -> Any:
    """What a proto field is in Python."""
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return (dict, expected(message.fields_by_name["value"]))
    if field.is_repeated:
        return (tuple, single(field))
    return single(field)


def single(field: FieldDescriptor) -> Any:
    """What one value of a proto field is in Python."""
    if field.message_type is not None:
        known = {
            "google.protobuf.Struct": (dict, Any),
            "google.protobuf.Value": Any,
            "google.protobuf.Timestamp": str,
        }
        name = field.message_type.full_name
        return known.get(name) or getattr(types, field.message_type.name)
    if field.enum_type is not None:
        return getattr(types, field.enum_type.name)
    return {
        FieldDescriptor.TYPE_STRING: str,
        FieldDescriptor.TYPE_BYTES: bytes,
        FieldDescriptor.TYPE_BOOL: bool,
        FieldDescriptor.TYPE_INT32: int,
    }[field.type]


@pytest.mark.clause("fields.presence")
@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_a_field_with_presence_can_be_absent(name: str, field: str) -> None:
    theirs, ours = pair(name, field)
    absent = (None, msgspec.UNSET)
    if required(theirs):
        assert ours.required
        return
    default = ours.default_factory() if ours.default is msgspec.NODEFAULT else ours.default
    can_be_absent = theirs.has_presence or theirs.enum_type is not None
    assert (default in absent) is can_be_absent
    if not can_be_absent:
        assert not default


def required(field: FieldDescriptor) -> bool:
    """Whether the proto calls the field required."""
    behaviors = field.GetOptions().Extensions[field_behavior_pb2.field_behavior]
    return field_behavior_pb2.REQUIRED in behaviors


@pytest.mark.clause("fields.required", "task.required-fields", "message.required-fields")
@pytest.mark.clause("artifact.required-fields", "updates.required-fields")
@pytest.mark.parametrize(("name", "field"), [item for item in FIELDS if required(pair(*item)[0])])
def test_required_fields_are_required(name: str, field: str) -> None:
    kind = struct(name)
    document = msgspec.to_builtins(sample(kind))
    _, ours = pair(name, field)
    del document[ours.encode_name]
    with pytest.raises(protojson.InvalidParams) as caught:
        protojson.decode(kind, msgspec.json.encode(document))
    assert caught.value.violations == ((ours.encode_name, "is required"),)


def sample(kind: type[WireStruct]) -> WireStruct:
    """A value with all that is required."""
    fields = {}
    for item in msgspec.structs.fields(kind):
        if item.required:
            fields[item.name] = _sample(item.type)
    return Part(text="") if kind is Part else kind(**fields)


def _sample(kind: Any) -> Any:
    match bare(kind):
        case (first, inner):
            return (_sample(inner),) if first is tuple else {"key": _sample(inner)}
        case found if found is str:
            return "text"
        case found if found is int:
            return 0
        case found if issubclass(found, Enum):
            return next(iter(found))
        case found:
            return sample(found)


@pytest.mark.clause("json.enum-names")
@pytest.mark.parametrize("kind", [TaskState, Role])
def test_enum_names_and_numbers_are_those_of_the_proto(kind: type[Enum]) -> None:
    theirs = a2a_pb2.DESCRIPTOR.enum_types_by_name[kind.__name__]
    ours = {member.value: number for number, member in ENUM_NUMBERS[kind].items()}
    unspecified = {value.name: 0 for value in theirs.values if value.number == 0}
    assert {**unspecified, **ours} == {value.name: value.number for value in theirs.values}
    assert set(ENUM_NUMBERS[kind].values()) == set(kind)


# ---- the reference reads what we write -----------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_the_reference_reads_what_we_write_and_we_what_it_writes(
    name: str, data: st.DataObject
) -> None:
    kind, message = struct(name), getattr(a2a_pb2, name)
    value = data.draw(wire.values(kind))
    theirs = json_format.Parse(v1_0.encode(value), message())
    text = json_format.MessageToJson(theirs, always_print_fields_with_no_presence=True)
    back = json_format.Parse(v1_0.encode(v1_0.decode(kind, text.encode())), message())
    assert back == theirs
