"""The parameters of a handler: where each value comes from, and what is wrong with a message.

Besides `Turn` and `Message`: exactly one of a structured type takes the whole object of the data
part; exactly one `str` takes the field of its name, else the text; otherwise each takes the field
of its name. `Part` and `bytes` take a file part. A task keeps its parameters: later data replaces
single fields.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct

from dragoman.agent.turn import Turn
from dragoman.model.errors import InvalidParams
from dragoman.model.skill_extension import PARAMETER
from dragoman.model.types import Message, Part, Role

TURN, MESSAGE, FILE, DATA = "turn", "message", "file", "data"
MOST = 50
"""How many problems an error names."""
LONGEST = 500
"""How many characters it has for each: the caller chose names and values."""

Problem = tuple[str, str]


class Parameter(Struct, frozen=True):
    """One parameter of a handler."""

    name: str
    source: str
    type: Any = None
    """A `DataType`, if it takes data."""
    default: Any = UNSET
    keyword: bool = False
    """It can only be given by its name."""
    raw: bool = False
    """It takes the content of the file, not the part."""
    annotation: Any = None


class Given:
    """What the messages of a task give for the parameters."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.value: Any = UNSET
        """A data part that is not an object."""
        self.where = ""
        """The path of the current message's data part; empty if it has none."""
        self.text: str | None = None
        self.lines: dict[str, str] = {}
        """The fields that lines of the current message give, and the path of their text."""
        self.files: dict[str, Part] = {}
        self.paths: dict[str, str] = {}
        self.problems: list[Problem] = []
        self.data = False
        """Whether any message had data."""


class Filled(Struct, frozen=True):
    """The arguments of a call, or the names of what is missing."""

    values: dict[str, Any]
    missing: tuple[str, ...] = ()


class Parameters:
    """The parameters of one handler."""

    def __init__(self, call: Callable[..., Any], name: str, hints: Mapping[str, Any]) -> None:
        self.all = _parse(call, name, hints)
        self.data = [each for each in self.all if each.source == DATA]
        self.files = [each for each in self.all if each.source == FILE]
        self.plain = [(each.source, each.keyword) for each in self.all] == [(TURN, False)]
        """It takes the turn alone."""
        self.whole: Parameter | None = None
        """The one that takes the whole object."""
        self.text: Parameter | None = None
        """The one that takes the text, if no field has its name."""
        if len(self.data) == 1:
            # Imported here and below: not every agent has typed skills.
            from dragoman.model.parameter_types import bare, is_object

            (one,) = self.data
            assert one.type is not None
            if bare(one.type.kind) is str:
                self.text = one
            elif is_object(one.type.schema()):
                self.whole = one
        self.simple = (
            self.text is not None
            and self.text.annotation is str
            and not self.files
            and not any(each.keyword for each in self.all)
        )
        """Besides turn and message it takes one text, of any form."""
        self.checks = bool(self.data or self.files)
        self.skill = ""
        """The skill's id; empty for the default handler."""
        self.alone = False
        """Messages that name no skill come here."""
        self._names = frozenset(each.name for each in self.data)

    @functools.cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the data part."""
        from dragoman.agent.skill_schemas import fields_schema
        from dragoman.model.parameter_types import inlined

        if self.whole is not None and self.whole.type is not None:
            return inlined(self.whole.type.schema())
        return fields_schema(self.data, open=self.text is not None)

    @property
    def closed(self) -> bool:
        """Whether a field that no parameter has is refused."""
        return self.schema.get("additionalProperties") is False

    # -- before a message is accepted

    def follows(self, message: Message, ask: bool) -> bool:
        """Whether a message to the same skill of a task can change a parameter. Words alone cannot,
        unless they answer a question."""
        if ask:
            return True
        return any(part.text is None for part in message.parts)

    def check(
        self, message: Message, earlier: Sequence[Message] = (), *, ask: bool = False
    ) -> None:
        """Raise InvalidParams, which names everything that is missing or wrong. With `ask`, nothing
        is missing."""
        if earlier or not self.simple or self.spoken(message) is None:
            self._fill(self._collect(earlier, message), ask)

    def spoken(self, message: Message) -> str | None:
        """The text of a message that is a text alone."""
        return message.parts[0].text if len(message.parts) == 1 else None

    # -- when the turn begins

    def fill(self, turn: Turn, ask: bool) -> Filled:
        """The arguments of the call by name, or what is missing."""
        message, history = turn.message, turn.history
        if self.checks:
            earlier = history[: _place(history, message)]
            filled = self._fill(self._collect(earlier, message), ask)
        else:
            filled = Filled({})
        for each in self.all:
            if each.source == TURN:
                filled.values[each.name] = turn
            elif each.source == MESSAGE:
                filled.values[each.name] = message
        return filled

    # -- private

    def _collect(self, earlier: Iterable[Message], message: Message) -> Given:
        """Fold the messages of a task. Those for another skill do not count, nor what was before
        them."""
        from dragoman.agent import parameter_questions

        given = Given()
        skill = self.skill if self.alone else ""
        asked: Sequence[str] = ()
        for each in earlier:
            if each.role is Role.AGENT:
                asked = parameter_questions.asked(each)
                continue
            skill = (each.metadata or {}).get("skill") or skill
            if skill == self.skill:
                self._take(given, each, asked)
            else:
                given = Given()
            asked = ()
        given.problems, given.where, given.lines, given.paths = [], "", {}, {}
        if given.fields and self.closed:  # a durable handler may have asked for other data
            known = self.schema.get("properties", {})
            given.fields = {name: given.fields[name] for name in given.fields if name in known}
        self._take(given, message, asked)
        return given

    def _take(self, given: Given, message: Message, asked: Sequence[str]) -> None:
        from dragoman.agent import parameter_questions

        named: set[str] = set()
        data = False
        for index, part in enumerate(message.parts):
            if part.data is not UNSET:
                if not data:
                    data = True
                    self._take_data(given, part.data, f"message.parts[{index}].data")
            elif part.text is None:
                if self.files:
                    self._take_file(given, part, f"message.parts[{index}]", named)
            elif asked:
                for name, value in parameter_questions.lines(part.text, asked, self.schema):
                    given.fields[name] = value
                    given.data = True
                    given.lines[name] = f"message.parts[{index}].text"
        if any(part.text is not None for part in message.parts):
            given.text = message.text

    def _take_data(self, given: Given, data: Any, where: str) -> None:
        given.where = where
        given.data = True
        if isinstance(data, dict):
            given.fields.update(data)
            given.value = UNSET
        elif self.whole is not None:
            given.value = data
        elif self.data and self.text is None:
            given.problems.append((where, "expected an object with a field for each parameter"))

    def _take_file(self, given: Given, part: Part, where: str, named: set[str]) -> None:
        name = (part.metadata or {}).get(PARAMETER)
        names = [each.name for each in self.files]
        field = f"{where}.metadata.{PARAMETER}"
        if name is None and len(names) == 1:
            name = names[0]
        if name not in names:
            what = "is required" if name is None else f"{name!r} is unknown"
            given.problems.append((field, f"{what}; the file parameters are: {', '.join(names)}"))
        elif name in named:
            given.problems.append((where, f"is one file too many for the parameter {name}"))
        else:
            named.add(name)
            given.files[name] = part
            given.paths[name] = where

    def _fill(self, given: Given, ask: bool) -> Filled:
        found = list(given.problems)
        missing: list[str] = []
        values: dict[str, Any] = {}
        if self.whole is not None:
            self._fill_whole(self.whole, given, ask, values, found, missing)
        elif self.data:
            self._fill_fields(given, ask, values, found, missing)
        for each in self.files:
            part = given.files.get(each.name)
            if part is None and each.default is not UNSET:
                values[each.name] = each.default
            elif part is None and ask:
                missing.append(each.name)
            elif part is None:
                found.append(("message.parts", f"expected a file for the parameter {each.name}"))
            elif each.raw and part.raw is None:
                where = given.paths.get(each.name, "message.parts")
                found.append((where, "expected the content of the file, not a URL"))
            else:
                values[each.name] = part.raw if each.raw else part
        if found:
            found = [(field[:LONGEST], what[:LONGEST]) for field, what in found[:MOST]]
            text = "; ".join(f"{field}: {what}" for field, what in found)
            raise InvalidParams(text, violations=found)
        return Filled(values, tuple(missing))

    def _fill_whole(
        self,
        one: Parameter,
        given: Given,
        ask: bool,
        values: dict[str, Any],
        found: list[Problem],
        missing: list[str],
    ) -> None:
        from dragoman.model.json_schema import problems
        from dragoman.model.parameter_types import WrongData

        assert one.type is not None
        where = given.where or "message.parts.data"
        if not given.data and (one.default is not UNSET or not ask):
            if one.default is UNSET:
                what = f"expected a data part of type {one.type.name}"
                found.append(("message.parts", what))
            values[one.name] = one.default
            return
        data = given.fields if given.value is UNSET else given.value
        if ask and isinstance(data, dict):
            needed = self.schema.get("required", ())
            missing += [name for name in needed if name not in data]
            if missing:  # what is there must be right all the same
                wrong = problems({**self.schema, "required": []}, data)
                found += [(_at(given, where, path), what) for path, what in wrong]
                return
        try:
            values[one.name] = one.type.convert(data)
        except WrongData as error:
            found += [(_at(given, where, path), what) for path, what in error.problems]

    def _fill_fields(
        self,
        given: Given,
        ask: bool,
        values: dict[str, Any],
        found: list[Problem],
        missing: list[str],
    ) -> None:
        from dragoman.model.parameter_types import WrongData

        where = given.where or "message.parts.data"
        for each in self.data:
            assert each.type is not None
            value = given.fields.get(each.name, UNSET)
            field = f"{where}.{each.name}"
            if value is UNSET and each is self.text and given.text is not None:
                value, field = given.text, "message.parts"
            if value is not UNSET:
                try:
                    values[each.name] = each.type.convert(value)
                except WrongData as error:
                    for path, what in error.problems:
                        line = given.lines.get(each.name)
                        named = (
                            (line, f"{each.name}{path}: {what}") if line else (field + path, what)
                        )
                        found.append(named)
            elif each.default is not UNSET:
                values[each.name] = each.default
            elif ask:
                missing.append(each.name)
            elif each is self.text:
                what = f"expected a text, or a data part with the field {each.name}"
                found.append(("message.parts", what))
            else:
                found.append((field, "is required"))
        if self.text is None:
            names = ", ".join(each.name for each in self.data)
            for name in [name for name in given.fields if name not in self._names][:MOST]:
                found.append((f"{where}.{name}", f"is unknown; the parameters are: {names}"))


def _at(given: Given, where: str, path: str) -> str:
    """The path of a problem in a whole object: a line of text may have given the field."""
    name = path.removeprefix(".").partition(".")[0].partition("[")[0]
    return given.lines.get(name, where + path)


def _place(history: Sequence[Message], message: Message) -> int:
    """Where the current message stands: behind it are those that wait for their turn."""
    for index in range(len(history) - 1, -1, -1):
        if history[index] is message or history[index] == message:
            return index
    return len(history)


# ---- the signature ---------------------------------------------------------------------------


def type_hints(call: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations. Those that only a type checker can resolve stay text."""
    while isinstance(call, functools.partial):
        call = call.func
    try:
        return typing.get_type_hints(call, include_extras=True)
    except (NameError, TypeError):
        pass
    found = {}
    names = getattr(inspect.unwrap(call), "__globals__", {})
    for name, kind in inspect.get_annotations(call).items():
        try:
            found[name] = eval(kind, names) if isinstance(kind, str) else kind
        except (NameError, TypeError, SyntaxError, AttributeError):
            found[name] = kind
    return found


def _parse(call: Callable[..., Any], name: str, hints: Mapping[str, Any]) -> list[Parameter]:
    """The parameters in order. Raises TypeError, which names the one that cannot be filled."""
    bound = call.keywords if isinstance(call, functools.partial) else {}
    found: list[Parameter] = []
    for each in inspect.signature(call).parameters.values():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) or each.name in bound:
            continue
        keyword = each.kind is each.KEYWORD_ONLY
        kind = hints.get(each.name, each.annotation)
        where = f"{name}: parameter {each.name}"
        default = UNSET if each.default is each.empty else each.default
        if kind is each.empty and keyword and default is not UNSET:
            continue  # an author's own
        if kind is each.empty or kind in ("Turn", "dragoman.Turn"):
            if any(earlier.source == TURN for earlier in found) or default is not UNSET:
                raise TypeError(
                    f"{where} needs a type: Turn, Message, Part, bytes, str, "
                    "or the type of its data"
                )
            kind = Turn
        elif isinstance(kind, str):
            raise TypeError(f"{name}: the type of parameter {each.name} is unknown: {kind}")
        found.append(_parameter(each.name, kind, default, keyword, where))
    return found


def _parameter(name: str, kind: Any, default: Any, keyword: bool, where: str) -> Parameter:
    if kind is Turn:
        return Parameter(name, TURN, keyword=keyword)
    if kind is Message:
        return Parameter(name, MESSAGE, keyword=keyword)
    from dragoman.model.parameter_types import DataType, bare

    plain = bare(kind)
    if plain is Part or plain is bytes:
        return Parameter(
            name, FILE, default=default, keyword=keyword, raw=plain is bytes, annotation=kind
        )
    try:
        return Parameter(name, DATA, DataType(kind), default, keyword, annotation=kind)
    except TypeError as error:
        raise TypeError(f"{where}: {error}") from None
