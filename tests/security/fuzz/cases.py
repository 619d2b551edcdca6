"""What is sent: a valid request of each operation over each binding in each version, and what is
made of it. A case is a line of JSON, so that one that has failed can be kept and sent again."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import httpx
from msgspec import Struct
from msgspec.structs import replace

from dragoman.dialects.protobuf.package_codec import PACKAGES
from dragoman.model.operations import OPERATIONS
from tests.faults.test_bytes import samples
from tests.harness.clients import Binding, Grpc, HttpJson, JsonRpc
from tests.harness.older_clients import FIRST, PATHS, Grpc03, Http03, JsonRpc01, JsonRpc03
from tests.harness.older_clients import METHODS as FORMER
from tests.harness.trust import NOBODY
from tests.security.fuzz import mutations

ENDED, WAITING, THEIRS = "@ended@", "@waiting@", "@theirs@"
"""Stand for tasks of the caller's, and for one of somebody else's."""
HTTP, GRPC, CARD, HOOK, EVENTS = "http", "grpc", "card", "hook", "events"
BINDINGS: tuple[type[Binding], ...] = (
    *(JsonRpc, HttpJson, Grpc),
    *(JsonRpc03, Http03, Grpc03, JsonRpc01),
)
KEY = (b"x-key", b"m-key")
DEEPEST = 200
"""The levels of a document that is changed as one; a deeper one is changed as bytes."""


class Case(Struct, frozen=True):
    """One thing to send: a request over HTTP, one over gRPC, or bytes for a parser of ours."""

    kind: str
    body: bytes = b""
    verb: str = ""
    target: str = ""
    """The path and query; over gRPC the method."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    why: str = ""
    """What it was that went wrong, of one that is kept."""

    def line(self) -> str:
        """As it is kept."""
        found: dict[str, Any] = {"kind": self.kind, "why": self.why}
        if self.target:
            found |= {"verb": self.verb, "target": self.target}
            found["headers"] = [[k.decode("latin-1"), v.decode("latin-1")] for k, v in self.headers]
        found["body"] = base64.b64encode(self.body).decode()
        return json.dumps(found)

    @staticmethod
    def read(line: str) -> Case:
        """What was kept."""
        found = json.loads(line)
        pairs = found.get("headers", ())
        return Case(
            kind=found["kind"],
            body=base64.b64decode(found["body"]),
            verb=found.get("verb", ""),
            target=found.get("target", ""),
            headers=tuple((k.encode("latin-1"), v.encode("latin-1")) for k, v in pairs),
            why=found.get("why", ""),
        )

    def about(self, tasks: dict[str, str]) -> Case:
        """With the ids of real tasks."""
        body, target = self.body, self.target
        for name, id in tasks.items():
            target = target.replace(name, id)
            if self.kind == GRPC:
                # a message tells how long it is: the stand-in has the length of an id
                name = name.ljust(len(id), "=")
            body = body.replace(name.encode(), id.encode())
        return replace(self, body=body, target=target)


def has(kind: type[Binding], name: str) -> bool:
    """Whether the operation exists there."""
    known: dict[type[Binding], Any] = {
        JsonRpc03: FORMER,
        JsonRpc01: FIRST,
        Http03: PATHS,
        Grpc03: {o.name for o in OPERATIONS if o.legacy.name},
    }
    return kind not in known or name in known[kind]


def seeds() -> list[Case]:
    """A valid request of everything."""
    found = []
    http = httpx.AsyncClient(verify=NOBODY)
    for kind in BINDINGS:
        grpc = issubclass(kind, Grpc)
        for task in (ENDED, WAITING, THEIRS):
            id = task.ljust(36, "=") if grpc else task
            for name, sample in samples(id).items():
                if has(kind, name):
                    client = kind("http://h", http, {"x-key": "m-key"})
                    made = _grpc if grpc else _http
                    found.append(made(client, name, _said(kind, sample, id)))
    for path in ("/.well-known/agent-card.json", "/.well-known/agent.json"):
        found += [
            Case(HTTP, b"", "GET", path, ((b"host", b"h"), (b"a2a-version", version)))
            for version in (b"1.0", b"0.3", b"0.2", b"0.1", b"")
        ]
    found.append(Case(HTTP, b"", "GET", "/agent/authenticatedExtendedCard", ((b"host", b"h"), KEY)))
    return found


def _said(kind: type[Binding], sample: dict[str, Any], task: str) -> dict[str, Any]:
    """The sample, as far as the version has words for it."""
    said: dict[str, Any] = json.loads(json.dumps(sample))
    if "message" in said and task.startswith((WAITING, THEIRS)):
        said["message"] |= {"taskId": task, "referenceTaskIds": [task]}
        said["message"].pop("contextId")
    if kind.version != "1.0" and "message" in said:
        said["message"]["parts"] = [
            {k: v for k, v in part.items() if k != "mediaType" or "text" not in part}
            for part in said["message"]["parts"]
        ]
    if kind.version != "1.0":
        said.pop("tenant", None)
    return said


def _http(client: Any, name: str, sample: dict[str, Any]) -> Case:
    request = client.request(name, sample)
    target = request.url.raw_path.decode().replace("%40", "@")
    headers = [(k.lower(), v) for k, v in request.headers.raw]
    kept = [(k, v) for k, v in headers if k not in (b"content-length", b"connection")]
    return Case(HTTP, request.content, request.method, target, tuple(kept))


def _grpc(client: Any, name: str, sample: dict[str, Any]) -> Case:
    body = client.ask(name, sample).SerializeToString()
    speech = next(speech for speech in PACKAGES if speech.version == client.version)
    version = ((b"a2a-version", b"1.0"),) if client.version == "1.0" else ()
    return Case(GRPC, body, "", f"/{speech.service}/{client.method(name)}", (KEY, *version))


def changed(dice: random.Random, case: Case) -> Case:
    """The case with something wrong."""
    if case.kind == GRPC:
        body = case.body
        if dice.random() < 0.9:
            body = mutations.message(dice, body)
        headers = case.headers
        if dice.random() < 0.15:
            odd = mutations.headers(dice, list(headers))
            # what no client could send
            headers = tuple(
                (k, v) for k, v in odd if v and all(32 < b < 127 for b in v) and k != b"host"
            )
        return replace(case, body=body, headers=headers)
    if case.kind != HTTP:
        body = case.body
        if dice.random() < 0.6 and (found := _parsed(body)) is not None:
            body = _document(dice, found)
        return replace(case, body=mutations.data(dice, body) if dice.random() < 0.4 else body)
    if case.body and dice.random() < 0.75:
        body = case.body
        if dice.random() < 0.8:
            body = _document(dice, _parsed(body))
        if dice.random() < 0.2:
            body = mutations.data(dice, body)
        case = replace(case, body=body)
    else:
        case = replace(case, target=mutations.target(dice, case.target))
    if dice.random() < 0.3:
        case = replace(case, headers=tuple(mutations.headers(dice, list(case.headers))))
    if dice.random() < 0.03:
        verbs = ("GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH", "X")
        case = replace(case, verb=dice.choice(verbs))
    return case


def _document(dice: random.Random, value: Any) -> bytes:
    """The document with a few things wrong; as it was, if copies inside of copies are nested more
    deeply than Python can follow."""
    try:
        return mutations.document(dice, value)
    except RecursionError:
        return mutations.dump(mutations.pairs(value))


def _parsed(body: bytes) -> Any:
    """The document; none if it is not JSON, or nested too deeply to be changed as one: how deep
    the parser itself goes depends on the version of Python."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    level = [found]
    for _ in range(DEEPEST):
        level = [item for held in level for item in _items(held)]
        if not level:
            return found
    return None


def _items(value: Any) -> Any:
    """What an object or a list holds; nothing for other values."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
