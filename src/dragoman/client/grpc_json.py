"""Shows the messages of gRPC requests and responses as JSON, for people who look at the wire."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit


def grpc_json(url: str, body: bytes, *, answer: bool = False, status: int = 200) -> str:
    """Return a message as JSON, with the names of its `.proto` file. `url` is that of the request,
    and `answer` says which of both messages it is. Bytes that are not such a message are returned
    as hexadecimal digits. It needs the extra `grpc`."""
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    from dragoman.dialects.protobuf import pool, restored_status

    if status != 200:
        code, message, details = restored_status(body)
        return _text({"code": code, "message": message, "details": details}) if code else ""
    service, _, name = urlsplit(url).path.strip("/").partition("/")
    try:
        method = pool().FindServiceByName(service).FindMethodByName(name)
        kind = GetMessageClass(method.output_type if answer else method.input_type)
        return _text(MessageToDict(kind.FromString(body)))
    except (KeyError, AttributeError, DecodeError, ValueError):
        return body.hex(" ")


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
