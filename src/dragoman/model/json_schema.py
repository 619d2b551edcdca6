"""Checks a value against a JSON Schema (2020-12), as far as an author's types need it.

The schema may come from an agent that is not trusted, so a check takes a bounded number of steps
and ignores `pattern`: a regular expression can take forever. What is not known is ignored: the
agent checks everything again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

DIALECT = "https://json-schema.org/draft/2020-12/schema"
STEPS = 20_000
"""How many schemas one check looks at; then it finds nothing more."""
DEEPEST = 100
MOST = 50
"""How many problems it names."""

Schema = Mapping[str, Any]
Problem = tuple[str, str]
"""A path, such as `.rooms[1].beds`, and what is wrong there."""

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}
_ARTICLE = {"object": "an object", "array": "an array", "integer": "an integer", "null": "null"}


def problems(schema: Schema, value: Any) -> list[Problem]:
    """What is wrong with a value; empty if nothing is."""
    found: list[Problem] = []
    for problem in _Check(schema).run(schema, value, "", 0):
        found.append(problem)
        if len(found) == MOST:
            break
    return found


def resolved(schema: Schema, root: Schema) -> Schema:
    """The schema that a `$ref` inside `root` means, with what stands beside the `$ref`."""
    for _ in range(DEEPEST):
        name = schema.get("$ref")
        if not isinstance(name, str) or not name.startswith("#/$defs/"):
            return schema
        defs = root.get("$defs")
        target = defs.get(name.removeprefix("#/$defs/")) if isinstance(defs, Mapping) else None
        if not isinstance(target, Mapping):
            return {}
        schema = {**target, **{key: item for key, item in schema.items() if key != "$ref"}}
    return {}


def alternatives(schema: Schema, root: Schema) -> list[Schema]:
    """The schemas of which a value must fit one; without `null`."""
    schema = resolved(schema, root)
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            inner = [resolved(item, root) for item in schema[word] if isinstance(item, Mapping)]
            return [item for item in inner if item.get("type") != "null"]
    return [schema]


def kind_of(schema: Schema, root: Schema) -> str:
    """The one JSON type that a value other than null must have; empty if several are possible."""
    found: set[str] = set()
    for item in alternatives(schema, root):
        names = item.get("type")
        if isinstance(names, str):
            found.add(names)
        elif isinstance(names, list):
            found |= {name for name in names if name != "null"}
        elif isinstance(values := item.get("enum"), list) and values:
            found |= {_name(value) for value in values}
        else:
            return ""
    return found.pop() if len(found) == 1 else ""


class _Check:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = STEPS

    def run(self, schema: Any, value: Any, path: str, depth: int) -> Iterator[Problem]:
        self._left -= 1
        if not isinstance(schema, Mapping) or self._left < 0 or depth > DEEPEST:
            if schema is False:
                yield path, "is not allowed"
            return
        if "$ref" in schema:
            schema = resolved(schema, self._root)
        for word in ("anyOf", "oneOf"):
            inner = schema.get(word)
            if isinstance(inner, list) and inner:
                yield from self._any(inner, value, path, depth)
        for item in _list(schema.get("allOf")):
            yield from self.run(item, value, path, depth + 1)
        names = schema.get("type")
        known = [name for name in _list(names if isinstance(names, list) else [names]) if name]
        if known and not any(_is(value, name) for name in known):
            words = " or ".join(_ARTICLE.get(name, f"a {name}") for name in known)
            yield path, f"expected {words}, got {_name(value)}"
            return
        values = schema.get("enum")
        if isinstance(values, list) and not any(_same(value, item) for item in values):
            yield path, f"must be one of {', '.join(map(str, values[:20]))}"
        if "const" in schema and not _same(value, schema["const"]):
            yield path, f"must be {schema['const']}"
        if isinstance(value, dict):
            yield from self._object(schema, value, path, depth)
        elif isinstance(value, list | tuple):
            yield from self._array(schema, value, path, depth)
        elif isinstance(value, str):
            yield from _length(schema, len(value), path, "Length", "character")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield from _number(schema, value, path)

    def _any(self, inner: list[Any], value: Any, path: str, depth: int) -> Iterator[Problem]:
        """The problems with the alternative that comes nearest: its type is right, at least."""
        best: list[Problem] | None = None
        for item in inner:
            found = list(self.run(item, value, path, depth + 1))
            if not found:
                return
            if item != {"type": "null"} and (best is None or best[0][0] == path):
                best = found
        yield from best or ()

    def _object(
        self, schema: Schema, value: dict[str, Any], path: str, depth: int
    ) -> Iterator[Problem]:
        for name in _list(schema.get("required")):
            if name not in value:
                yield f"{path}.{name}", "is required"
        inner = schema.get("properties")
        inner = inner if isinstance(inner, Mapping) else {}
        other = schema.get("additionalProperties", True)
        for name, item in value.items():
            if name in inner:
                yield from self.run(inner[name], item, f"{path}.{name}", depth + 1)
            elif other is False:
                names = ", ".join(inner) or "none"
                yield f"{path}.{name}", f"is unknown; the fields are: {names}"
            elif other is not True:
                yield from self.run(other, item, f"{path}.{name}", depth + 1)

    def _array(self, schema: Schema, value: Any, path: str, depth: int) -> Iterator[Problem]:
        yield from _length(schema, len(value), path, "Items", "element")
        first = _list(schema.get("prefixItems"))
        rest = schema.get("items", True)
        for index, item in enumerate(value):
            inner = first[index] if index < len(first) else rest
            if inner is not True:
                yield from self.run(inner, item, f"{path}[{index}]", depth + 1)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is(value: Any, name: Any) -> bool:
    if isinstance(value, bool):
        return bool(name == "boolean")
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS.get(str(name), object))


def _same(value: Any, other: Any) -> bool:
    return isinstance(value, bool) is isinstance(other, bool) and bool(value == other)


def _name(value: Any) -> str:
    """The JSON type of a value."""
    for name in ("boolean", "integer", "number", "string", "array", "object", "null"):
        if _is(value, name) and not (name == "integer" and isinstance(value, float)):
            return name
    return type(value).__name__


def _limit(schema: Schema, name: str) -> float | None:
    found = schema.get(name)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def _length(schema: Schema, size: int, path: str, what: str, word: str) -> Iterator[Problem]:
    low, high = _limit(schema, f"min{what}"), _limit(schema, f"max{what}")
    if low is not None and size < low:
        yield path, f"must have at least {low:g} {word}{'' if low == 1 else 's'}"
    if high is not None and size > high:
        yield path, f"must have at most {high:g} {word}{'' if high == 1 else 's'}"


def _number(schema: Schema, value: float, path: str) -> Iterator[Problem]:
    if (limit := _limit(schema, "minimum")) is not None and value < limit:
        yield path, f"must be at least {limit:g}"
    if (limit := _limit(schema, "maximum")) is not None and value > limit:
        yield path, f"must be at most {limit:g}"
    if (limit := _limit(schema, "exclusiveMinimum")) is not None and value <= limit:
        yield path, f"must be greater than {limit:g}"
    if (limit := _limit(schema, "exclusiveMaximum")) is not None and value >= limit:
        yield path, f"must be less than {limit:g}"
