"""Ways to spoil something that was right: documents, bytes, protobuf, headers, paths."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote


class Raw(bytes):
    """JSON as it is written, right or wrong."""


class Pairs(list[tuple[str, Any]]):
    """An object that may have a name twice."""


DEEP = Raw(b"[" * 60 + b"]" * 60)
ODD: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    1.5,
    -0.0,
    2**31,
    -(2**31) - 1,
    2**53 + 1,
    2**63,
    2**64,
    2**200,
    1e308,
    Raw(b"1e400"),
    Raw(b"-1e400"),
    Raw(b"NaN"),
    Raw(b"Infinity"),
    Raw(b"9" * 5000),
    Raw(b"0." + b"1" * 5000),
    Raw(b"1E-400"),
    Raw(b"01"),
    Raw(b'"\\ud800"'),
    Raw(b'"\\udfff\\ud800"'),
    Raw(b'"\xff\xfe"'),
    Raw(b'"\xed\xa0\x80"'),
    Raw(b'"\xc0\x80"'),
    Raw(b'"\x01"'),
    Raw(b'{"a":1,"a":[2]}'),
    Raw(b"[" * 5000),
    DEEP,
    Raw(b'{"a":' * 60 + b"1" + b"}" * 60),
    "",
    " ",
    "x",
    "\x00",
    "a\x00b",
    "\n",
    "\u2028",
    "\ufeff",
    "\U0010ffff",
    "e\u0301",
    "\u202eabc",
    "\ue000",
    "x" * 5000,
    "\u00e9" * 3000,
    "null",
    "true",
    "-1",
    "1e9",
    "9" * 400,
    "../../etc/passwd",
    "%2e%2e%2f",
    "{}",
    "[]",
    "';--",
    "tasks/",
    "tasks//",
    "ROLE_USER",
    "ROLE_UNSPECIFIED",
    "TASK_STATE_UNSPECIFIED",
    "2026-13-45T99:99:99Z",
    "0000-00-00T00:00:00Z",
    "9999-12-31T23:59:59.999999999+99:99",
    "0001-01-01T00:00:00+23:59",
    "http://[",
    "http://[::1",
    "http://x:99999/",
    "http://\ud83d.example",
    "https://user:pw@h.example",
    "javascript:alert(1)",
    "WyIiLCIiXQ",
    "=",
    "____",
    "a2V5",
    [],
    [[]],
    [None],
    [{}],
    {},
    {"": None},
    {"@type": "x"},
    {"kind": "text"},
    {"fields": {}},
    ["x"] * 300,
]
NAMES = [
    *("id", "taskId", "task_id", "contextId", "message", "parts", "kind", "type", "text", "data"),
    *("file", "raw", "url", "role", "metadata", "configuration", "params", "content", "name"),
    *("", "__proto__", "__class__", "\x00", "@type", "MESSAGE", "tenant", "state", "signatures"),
]
TEXTS = [
    *(b"", b" ", b"x", b"1.0", b"0.3", b"0.2", b"0.1", b"9.9", b"1.0.0", b"1.0.0.0", b"01.0"),
    *(b"\xff\xfe", b"\xc3\xa9", b"a" * 300, b"a" * 5000, b",", b",,,", b"a,b,c", b"*", b'"*"'),
    *(b"-1", b"0", b"1e9", b"9" * 30, b"NaN", b"null", b"[", b"]", b"[::1", b"[::1]:80", b"a:b:c"),
    *(b"a@b", b"a/b", b"a?b#c", b"..", b"%00", b"%zz", b"\t", b"a b", b"host.example:99999"),
    *(b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", b"00-x-y-z", b"W/x", b'W/"x"', b"x:1", b":"),
    *(b"application/json", b"application/grpc", b"text/plain", b"application/x+json", b";", b"/"),
    *(b"gzip", b"chunked", b"close", b"https", b"ftp", b"http,https", b"/p", b"//evil.example"),
    *(b"urn:dragoman:resume:v1", b"Bearer x", b"Basic ***", b"Basic eDp5", b"Digest a=b"),
]
HEADERS = [
    *(b"a2a-version", b"a2a-extensions", b"x-a2a-extensions", b"last-event-id", b"idempotency-key"),
    *(b"traceparent", b"host", b"content-type", b"content-length", b"accept", b"user-agent"),
    *(b"if-none-match", b"origin", b"x-forwarded-host", b"x-forwarded-proto", b"cookie"),
    *(b"x-forwarded-prefix", b"authorization", b"access-control-request-method", b"x-key"),
    *(b"access-control-request-headers", b"content-encoding", b"accept-encoding", b"range"),
]
BYTES = [b"\x00", b"\xff", b"\xef\xbb\xbf", b"{", b"}", b"[", b"]", b'"', b"\\", b"\\u", b",", b":"]


# ---- documents -----------------------------------------------------------------------------


def dump(value: Any) -> bytes:
    """JSON, but for what is raw."""
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, Pairs):
        items = (b"%b:%b" % (json.dumps(name).encode(), dump(item)) for name, item in value)
        return b"{%b}" % b",".join(items)
    if isinstance(value, list | tuple):
        return b"[%b]" % b",".join(map(dump, value))
    return json.dumps(value).encode()


def pairs(value: Any) -> Any:
    """The document with objects that may have a name twice."""
    if isinstance(value, dict):
        return Pairs((name, pairs(item)) for name, item in value.items())
    return [pairs(item) for item in value] if isinstance(value, list) else value


def holders(value: Any) -> Iterator[Any]:
    """Everything that holds something."""
    if isinstance(value, list):
        if value:
            yield value
        for item in value:
            yield from holders(item[1] if isinstance(value, Pairs) else item)


def document(dice: random.Random, value: Any) -> bytes:
    """A document with a few things wrong."""
    found = pairs(copy.deepcopy(value))
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        inside = list(holders(found))
        if not inside:
            return dump(dice.choice(ODD))
        held = dice.choice(inside)
        place = dice.randrange(len(held))
        named = isinstance(held, Pairs)
        odd = pairs(copy.deepcopy(dice.choice(ODD)))
        match dice.randrange(9):
            case 0:
                del held[place]
            case 1:
                held.insert(place, held[place])
            case 2 if named:
                held[place] = (dice.choice(NAMES), held[place][1])
            case 3 if named:
                held.insert(place, (dice.choice(NAMES), odd))
            case 4 if named:
                name = held[place][0]
                snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
                held[place] = (dice.choice((snake, name.upper(), f"{name} ")), held[place][1])
            case 5:
                other = dice.choice(inside)
                item = other[dice.randrange(len(other))] if other else None
                item = item[1] if isinstance(other, Pairs) and item is not None else item
                item = copy.deepcopy(item)
                held[place] = (held[place][0], item) if named else item
            case 6 if not named:
                held *= dice.choice((2, 50))
            case _:
                held[place] = (held[place][0], odd) if named else odd
        if len(dumped := dump(found)) > 200_000:
            return dumped
    return dump(found)


# ---- bytes ---------------------------------------------------------------------------------


def data(dice: random.Random, value: bytes) -> bytes:
    """Bytes with a few of them changed, gone, or too many."""
    found = bytearray(value)
    for _ in range(dice.choice((1, 1, 2, 5))):
        place = dice.randrange(len(found) + 1)
        match dice.randrange(7):
            case 0 if found:
                found[min(place, len(found) - 1)] = dice.randrange(256)
            case 1:
                found[place:place] = dice.choice(BYTES)
            case 2:
                del found[place:]
            case 3:
                del found[place : place + dice.randrange(1, 9)]
            case 4:
                found[place:place] = found[place : place + dice.randrange(1, 40)]
            case 5 if found:
                found[min(place, len(found) - 1)] ^= 1 << dice.randrange(8)
            case _:
                found[place:place] = dice.randbytes(dice.randrange(1, 6))
    return bytes(found)


def varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    found = bytearray()
    number &= (1 << 64) - 1
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes((*found, number))


def fields(value: bytes) -> list[tuple[int, int, bytes]] | None:
    """The fields of a message, if it can be one: number, wire type, content."""
    found, place = [], 0

    def number() -> int:
        nonlocal place
        total = shift = 0
        while True:
            byte = value[place]
            place += 1
            total |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return total

    try:
        while place < len(value):
            tag = number()
            kind = tag & 7
            if kind == 0:
                content = varint(number())
            elif kind == 2:
                size = number()
                content = value[place : place + size]
                if len(content) < size:
                    return None
                place += size
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
                content, place = value[place : place + size], place + size
            else:
                return None
            if not tag >> 3 or tag >> 3 > 99:
                return None
            found.append((tag >> 3, kind, content))
    except IndexError:
        return None
    return found


def joined(items: list[tuple[int, int, bytes]]) -> bytes:
    """A message of fields."""
    made = b""
    for number, kind, content in items:
        made += varint(number << 3 | kind)
        made += varint(len(content)) + content if kind == 2 else content
    return made


LOADS = [
    *(
        b"",
        b"\x00",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"x" * 3000,
        b"\x0a\x00" * 40,
        b"../x",
        b"tasks/",
    ),
    *(varint(2**63), varint(2**64 - 1), b"\xff" * 9 + b"\x01", "\u2028".encode()),
]


def message(dice: random.Random, value: bytes, depth: int = 0) -> bytes:
    """A message of protobuf with fields gone, doubled, of other types, or of other content."""
    items = fields(value)
    if not items:
        return data(dice, value)
    place = dice.randrange(len(items))
    number, kind, content = items[place]
    match dice.randrange(8):
        case 0:
            del items[place]
        case 1:
            items.insert(dice.randrange(len(items) + 1), items[place])
        case 2:
            items[place] = (dice.randrange(1, 20), kind, content)
        case 3:
            items[place] = (number, 2, dice.choice(LOADS))
        case 4:
            items[place] = (number, 0, varint(dice.choice((0, 1, 2, 99, 2**31, 2**63, 2**64 - 1))))
        case 5:
            nested = content
            for _ in range(dice.choice((5, 60, 150))):
                nested = joined([(dice.choice((1, 2, 3, 5, 6, number)), 2, nested)])
            items[place] = (number, 2, nested)
        case _ if kind == 2 and depth < 6:
            items[place] = (number, 2, message(dice, content, depth + 1))
        case _:
            return data(dice, value)
    return joined(items)


# ---- around the body -----------------------------------------------------------------------


def headers(dice: random.Random, given: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers with some odd ones among them."""
    found = list(given)
    for _ in range(dice.choice((1, 1, 2, 3))):
        odd = (dice.choice(HEADERS), dice.choice(TEXTS))
        match dice.randrange(4):
            case 0 if found:
                del found[dice.randrange(len(found))]
            case 1 if found:
                place = dice.randrange(len(found))
                found[place] = (found[place][0], dice.choice(TEXTS))
            case _:
                found.append(odd)
    return found


def target(dice: random.Random, given: str) -> str:
    """A path and query with something else in them."""
    path, mark, query = given.partition("?")
    odd = dice.choice([item for item in ODD if isinstance(item, str) and len(item) < 500])
    odd = quote(odd.encode("utf-8", "replace"), safe=dice.choice(("", "/:", "/:=&")))
    match dice.randrange(8):
        case 0:
            pieces = path.split("/")
            pieces[dice.randrange(len(pieces))] = odd
            path = "/".join(pieces)
        case 1:
            path += dice.choice((":cancel", ":subscribe", ":x", "/", "//", "%2F", "/..", "%ff"))
        case 2:
            path = f"/{odd}{path}"
        case 3:
            path = path.replace("/", dice.choice(("//", "%2F", "/./", "/v1/")), 1)
        case 4 if query:
            items = query.split("&")
            place = dice.randrange(len(items))
            items[place] = items[place].partition("=")[0] + "=" + odd
            query, mark = "&".join(items), "?"
        case 5:
            name = dice.choice(("historyLength", "pageSize", "pageToken", "status", "A2A-Version"))
            query, mark = f"{query}&{name}={odd}", "?"
        case 6:
            query, mark = odd, "?"
        case _:
            place = dice.randrange(len(path)) + 1
            path = path[:place] + odd + path[place:]
    return f"/{path.lstrip('/')}" + mark + query
