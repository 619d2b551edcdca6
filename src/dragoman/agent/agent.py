"""The agent: its handlers, and the card that describes them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, Unpack, overload

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from dragoman.agent.gate import Gate, card_extensions, private_keys, private_tests
from dragoman.agent.handler import MONTH, Handler
from dragoman.agent.turn import Turn as Turn
from dragoman.model.caller import Caller, fault, long
from dragoman.model.errors import ContentTypeNotSupported, Forbidden, InvalidParams
from dragoman.model.events import RESUME
from dragoman.model.protocol import HTTP_JSON, JSONRPC, LISTED_VERSIONS
from dragoman.model.remote_task import covers
from dragoman.model.reserved_path_names import reserved
from dragoman.model.skill_extension import SKILL_SCHEMA, SkillSchema
from dragoman.model.types import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentProvider,
    AgentSkill,
    Message,
    Part,
)
from dragoman.security.file_rules import admits
from dragoman.telemetry.logs import logger

if TYPE_CHECKING:
    from dragoman._serve import ServeOptions

F = TypeVar("F")
OneAtATime: TypeAlias = Literal["", "context"]
Lifespan = Callable[["Agent"], AbstractAsyncContextManager[Any]]
Connections = Mapping[str, Mapping[str, Any]] | Callable[[str], Mapping[str, Any]]
Extended = Callable[[Caller, AgentCard], AgentCard | Awaitable[AgentCard]]

JSON = "application/json"
MODES = ("text/plain", JSON)


class AgentError(ValueError):
    """The agent is defined in a way that cannot be served."""


class Skill(Struct, frozen=True):
    """A skill: its entry in the card, and its handler."""

    card: AgentSkill
    handler: Handler
    scopes: frozenset[str] = frozenset()
    """The scopes that a caller needs."""
    schema: SkillSchema | None = None
    """Its parameters and result, if they have types."""

    def input_modes(self, usual: tuple[str, ...]) -> tuple[str, ...]:
        """The media types that it accepts: its own, else the agent's, and JSON if its parameters
        take data. A file parameter takes any file, unless there are modes for files."""
        modes = self.card.input_modes or usual
        if self.schema is not None and self.schema.input is not None:
            modes = _with(modes, JSON)
        if self.schema is not None and self.schema.files and set(modes) <= set(MODES):
            modes = (*modes, "*/*")
        return modes

    def output_modes(self, usual: tuple[str, ...]) -> tuple[str, ...]:
        """The media types of its results, and JSON if its result is data."""
        modes = self.card.output_modes or usual
        return _with(modes, JSON) if self.schema is not None and self.schema.output else modes


class Agent:
    """An agent: a name, handlers, and the data for its card."""

    def __init__(
        self,
        name: str,
        *,
        description: str,
        version: str = "1.0.0",
        key: str = "",
        provider: AgentProvider | None = None,
        documentation_url: str | None = None,
        icon_url: str | None = None,
        input_modes: Iterable[str] = MODES,
        output_modes: Iterable[str] = MODES,
        extensions: Iterable[AgentExtension] = (),
        streaming: bool = True,
        extended: bool = False,
        retries: int = 0,
        tenant: str = "",
        lifespan: Lifespan | None = None,
        connections: Connections | None = None,
    ) -> None:
        for field, value in (("name", name), ("description", description), ("version", version)):
            if not value:
                raise AgentError(f"Agent: {field} must not be empty")
        self.name = name
        self.key = key or re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        """The agent's name in paths and in the store."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._~-]*", self.key):
            raise AgentError(f"Agent: key {self.key!r} cannot be part of a path; use another key")
        if why := reserved(self.key):
            raise AgentError(f"Agent: key {why}; use another key")
        if why := long(self.key):
            raise AgentError(f"Agent: key {why}; use a shorter key")
        self.description = description
        self.version = version
        self.provider = provider
        self.documentation_url = documentation_url
        self.icon_url = icon_url
        self.input_modes = _several(input_modes, "input_modes")
        self.output_modes = _several(output_modes, "output_modes")
        if not self.input_modes or not self.output_modes:
            raise AgentError("Agent: input_modes and output_modes must not be empty")
        self._extensions = (*extensions, AgentExtension(uri=RESUME, description=RESUME_TEXT))
        self.streaming = streaming
        self.retries = retries
        """How often a turn runs again after its worker has died."""
        if tenant and (why := fault(tenant) or reserved(tenant)):
            raise AgentError(f"Agent: tenant {why}")
        self.tenant = tenant
        """The tenant that the card names for each interface. Callers copy it from there."""
        if isinstance(connections, Mapping):
            for address in connections:
                if not address.startswith(("https://", "http://")):
                    raise AgentError(f"Agent: connections: {address!r} must start with https://")
        elif connections is not None and not callable(connections):
            raise AgentError("Agent: connections must be a mapping by address, or a function")
        self.lifespan = lifespan
        self.connections = connections
        """The options of clients for other agents, such as credentials: a mapping by address, or a
        function of the address. `turn.connect` uses them, and what cancels a task's tasks."""
        self.skills: dict[str, Skill] = {}
        self.revision = 0
        """Changes with the skills: what was made of the card before is out of date then."""
        self._input_modes: dict[str, tuple[str, ...]] = {}
        self.default: Handler | None = None
        self.private_metadata: frozenset[str] = frozenset()
        """The keys in the metadata of messages whose values only the gates of its handlers read."""
        self.private_parts: tuple[Callable[[Part], bool], ...] = ()
        """The tests of these gates for parts that only they read."""
        self.extended = extended
        self.extend: Extended | None = None

    def opened(self, app: Any) -> AbstractAsyncContextManager[Any]:
        """What is open while an `App` runs this agent's turns: its lifespan. A subclass may open
        more, such as agents of its own in the store of the App."""
        return nullcontext() if self.lifespan is None else self.lifespan(self)

    def serve(self, **options: Unpack[ServeOptions]) -> None:
        """Serve this agent until Ctrl-C: see `dragoman.serve`."""
        from dragoman._serve import serve

        serve(self, **options)

    @property
    def extensions(self) -> tuple[AgentExtension, ...]:
        """The extensions of the card: the author's, those of gates, and those of this library."""
        schemas = {
            key: to_builtins(skill.schema)
            for key, skill in self.skills.items()
            if skill.schema is not None
        }
        gates = {key: skill.handler.gate for key, skill in self.skills.items()}
        if self.default is not None:
            gates[""] = self.default.gate
        found = self._extensions
        if any(gates.values()):
            found = (*found, *card_extensions(gates))
        if schemas:
            own = AgentExtension(uri=SKILL_SCHEMA, description=SCHEMA_TEXT, params=schemas)
            found = (*found, own)
        return found

    def connection(self, address: str) -> Mapping[str, Any]:
        """The client options for the agent at an address: those of the longest address in
        `connections` that covers it."""
        if self.connections is None:
            return {}
        if callable(self.connections):
            return self.connections(address)
        found = [base for base in self.connections if covers(base, address)]
        return self.connections[max(found, key=len)] if found else {}

    # -- registration

    @overload
    def skill(self, target: F, /) -> F: ...
    @overload
    def skill(
        self,
        *,
        id: str = "",
        name: str = "",
        description: str = "",
        tags: Iterable[str] = (),
        examples: Iterable[str] = (),
        input_modes: Iterable[str] = (),
        output_modes: Iterable[str] = (),
        scopes: Iterable[str] = (),
        reply: bool | None = None,
        durable: bool = False,
        timeout: float = MONTH,
        version: str = "",
        ask: bool = False,
        one_at_a_time: OneAtATime = "",
        gate: Gate | None = None,
    ) -> Callable[[F], F]: ...
    def skill(
        self,
        target: Any = None,
        *,
        id: str = "",
        name: str = "",
        description: str = "",
        tags: Iterable[str] = (),
        examples: Iterable[str] = (),
        input_modes: Iterable[str] = (),
        output_modes: Iterable[str] = (),
        scopes: Iterable[str] = (),
        reply: bool | None = None,
        durable: bool = False,
        timeout: float = MONTH,
        version: str = "",
        ask: bool = False,
        one_at_a_time: OneAtATime = "",
        gate: Gate | None = None,
    ) -> Any:
        """Register a handler as a skill. Id, name and description come from the function unless
        they are given; the parameters and the result of a function with types stand on the card,
        too. A caller needs all of the `scopes`. A `durable` handler continues where it was after a
        crash, a sleep or a question, for at most `timeout` seconds in all. With `ask`, the skill
        asks for parameters that are missing, instead of refusing the message. With
        `one_at_a_time="context"`, the turns of a context run one after the other, in the order of
        their messages. A `gate` runs around the handler, and may ask the client first."""

        def register(target: F) -> F:
            if isinstance(target, str):
                raise AgentError(f"@agent.skill({target!r}): did you mean tags=[{target!r}]?")
            handler = Handler(
                target,
                reply=reply,
                durable=durable,
                timeout=timeout,
                version=version,
                ask=ask,
                one_at_a_time=one_at_a_time,
                gate=gate,
            )
            key = id or handler.name
            if key in self.skills:
                raise AgentError(f"{self.name}: two skills have the id {key!r}")
            words = name or re.sub(r"[_\W]+", " ", handler.name).strip().capitalize()
            card = AgentSkill(
                id=key,
                name=words,
                description=description or handler.doc or words,
                tags=_several(tags, "tags") or (key,),
                examples=_several(examples, "examples"),
                input_modes=_several(input_modes, "input_modes"),
                output_modes=_several(output_modes, "output_modes"),
            )
            needed = frozenset(_several(scopes, "scopes"))
            self.skills[key] = Skill(card, handler, needed, handler.schema())
            handler.parameters.skill = key
            self._skills_changed(key)
            return target

        return register if target is None else register(target)

    @overload
    def handler(self, target: F, /) -> F: ...
    @overload
    def handler(
        self,
        *,
        reply: bool | None = None,
        durable: bool = False,
        timeout: float = MONTH,
        version: str = "",
        one_at_a_time: OneAtATime = "",
        gate: Gate | None = None,
    ) -> Callable[[F], F]: ...
    def handler(
        self,
        target: Any = None,
        *,
        reply: bool | None = None,
        durable: bool = False,
        timeout: float = MONTH,
        version: str = "",
        one_at_a_time: OneAtATime = "",
        gate: Gate | None = None,
    ) -> Any:
        """Register the default handler, which gets the messages that name no skill."""

        def register(target: F) -> F:
            if self.default is not None:
                raise AgentError(f"{self.name}: has two default handlers")
            self.default = Handler(
                target,
                reply=reply,
                durable=durable,
                timeout=timeout,
                version=version,
                one_at_a_time=one_at_a_time,
                gate=gate,
            )
            self.default.wraps = False  # no card says what it returns
            self._handlers_changed()
            return target

        return register if target is None else register(target)

    def remove_skill(self, id: str) -> None:
        """Remove a skill, also while the agent is served: the card does not list it any more, and
        messages that name it are refused. The caller adds another in its place, or makes sure that
        `handler_of` finds a handler for the tasks that have begun."""
        del self.skills[id]
        self._skills_changed(id)

    def _skills_changed(self, id: str) -> None:
        self._input_modes.pop(id, None)
        self.revision += 1
        self._handlers_changed()

    def _handlers_changed(self) -> None:
        """Tell each handler whether it gets the messages that name no skill, and ask the gates
        which metadata is private."""
        alone = len(self.skills) == 1 and self.default is None
        for skill in self.skills.values():
            skill.handler.parameters.alone = alone
        if self.default is not None:
            self.default.parameters.alone = True
        handlers = [skill.handler for skill in self.skills.values()]
        handlers += [self.default] if self.default is not None else []
        self.private_metadata = private_keys(handler.gate for handler in handlers)
        self.private_parts = private_tests(handler.gate for handler in handlers)

    def extended_card(self, target: Extended) -> Extended:
        """Register the function that makes the extended card from the caller and the public
        card."""
        self.extended = True
        self.extend = target
        return target

    def check(self) -> None:
        """Raise AgentError if the agent cannot be served."""
        if not self.skills and self.default is None:
            raise AgentError(f"{self.name}: has no handler; decorate a function with @agent.skill")
        if len(self.skills) > 1 and self.default is None:
            names = ", ".join(self.skills)
            raise AgentError(
                f"{self.name}: has several skills ({names}) but no default for messages "
                "that name no skill; decorate one function with @agent.handler"
            )

    # -- use

    def route(self, message: Message, before: str) -> tuple[str, Handler]:
        """Choose skill and handler for a message: the skill it names, else the skill of the task
        before, else the default handler, else the only skill."""
        named = (message.metadata or {}).get("skill")
        if named is None or named == "":
            named = before
        if named != "":
            skill = self.skills.get(named) if isinstance(named, str) else None
            if skill is None:
                skills = ", ".join(self.skills) or "none"
                raise InvalidParams.at(
                    "message.metadata.skill", f"unknown skill {named!r}; the skills are: {skills}"
                )
            return skill.card.id, skill.handler
        if len(self.skills) == 1 and self.default is None:
            ((key, skill),) = self.skills.items()
            return key, skill.handler
        if self.default is None:
            self.check()
            raise AgentError(f"{self.name}: has no default handler")
        return "", self.default

    def handler_of(self, skill: str) -> Handler:
        """Return the handler of a skill, or the default handler."""
        found = self.skills[skill].handler if skill in self.skills else self.default
        return found if found is not None and (not skill or skill in self.skills) else GONE

    def permit(self, caller: Caller, skill: str) -> None:
        """Raise Forbidden if the skill needs a scope that the caller does not have."""
        needed = self.skills[skill].scopes if skill else frozenset()
        if missing := sorted(needed - caller.scopes):
            raise Forbidden(
                f"The skill {skill!r} requires the scope {missing[0]!r}",
                metadata={"scope": missing[0]},
            )

    def admit(self, message: Message, skill: str) -> None:
        """Raise ContentTypeNotSupported if the skill does not accept the media type of a part. The
        modes of the skill count, or the agent's if the skill has none."""
        modes = self._input_modes.get(skill)
        if modes is None:
            modes = self.input_modes
            if skill:
                modes = self.skills[skill].input_modes(modes)
            self._input_modes[skill] = modes
        for index, part in enumerate(message.parts):
            if not part.media_type:
                continue
            if not any(admits(mode, part.media_type) for mode in modes):
                raise ContentTypeNotSupported(
                    f"message.parts[{index}].mediaType: {part.media_type!r} is not an "
                    f"accepted input mode; accepted: {', '.join(modes)}",
                    metadata={"field": f"message.parts[{index}].mediaType"},
                )

    def card(
        self,
        url: str,
        *,
        push: bool = False,
        addresses: Mapping[str, str] | None = None,
        versions: Sequence[str] = LISTED_VERSIONS,
    ) -> AgentCard:
        """Make the public card of the agent at this URL. `addresses` are the addresses of the
        listed bindings, in order; by default JSON-RPC and HTTP+JSON at the URL."""
        self.check()
        if addresses is None:
            # JSON-RPC gets a trailing slash: without it, a mounted application would redirect, and
            # a POST does not survive a redirect. The HTTP+JSON paths are appended, so that address
            # has none.
            addresses = {JSONRPC.name: f"{url}/", HTTP_JSON.name: url}
        return AgentCard(
            name=self.name,
            description=self.description,
            version=self.version,
            provider=self.provider,
            documentation_url=self.documentation_url,
            icon_url=self.icon_url,
            supported_interfaces=tuple(
                AgentInterface(
                    url=address,
                    protocol_binding=binding,
                    protocol_version=version,
                    # Before 1.0 callers could not copy it.
                    tenant=self.tenant if version == "1.0" else "",
                )
                for version in versions
                for binding, address in addresses.items()
            ),
            capabilities=AgentCapabilities(
                streaming=self.streaming,
                push_notifications=push,
                extended_agent_card=self.extended,
                extensions=self.extensions,
            ),
            default_input_modes=self.input_modes,
            default_output_modes=self.output_modes,
            skills=tuple(
                # Some clients expect the modes in each skill, too.
                replace(
                    skill.card,
                    input_modes=skill.input_modes(self.input_modes),
                    output_modes=skill.output_modes(self.output_modes),
                )
                for skill in self.skills.values()
            ),
        )


def _gone(turn: Turn) -> object:
    logger.error("skill %r of a stored task does not exist any more", turn.skill)
    return turn.fail(f"The skill {turn.skill!r} does not exist any more")


GONE = Handler(_gone)
"""The handler for a stored task whose skill no longer exists."""

RESUME_TEXT = (
    "Each streamed event carries its place in the log; a client can resume a stream after any "
    "place."
)
SCHEMA_TEXT = "The parameters and the result of each skill, as JSON Schema 2020-12."


def _with(modes: tuple[str, ...], mode: str) -> tuple[str, ...]:
    return modes if any(admits(each, mode) for each in modes) else (*modes, mode)


def _several(values: Iterable[str], field: str) -> tuple[str, ...]:
    if isinstance(values, str):  # a string is an iterable of strings, too
        raise AgentError(f"{field}: expected a list, such as [{values!r}]")
    return tuple(values)


__all__ = ["Agent", "AgentError", "Skill", "Turn"]
