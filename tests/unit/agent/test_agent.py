"""The agent: how it is put together, where a message goes, what it lets in, what its card says."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from dragoman import (
    Agent,
    AgentCard,
    AgentError,
    AgentExtension,
    AgentProvider,
    App,
    Caller,
    Message,
    Part,
    Role,
    TaskState,
    Turn,
)
from dragoman.model.caller import Call
from dragoman.model.errors import ContentTypeNotSupported, InvalidParams
from dragoman.model.events import RESUME
from dragoman.model.remote_task import plain_address
from dragoman.model.types import SendMessageRequest
from dragoman.testing import message, run_handler


def make(**options: Any) -> Agent:
    """An agent without handlers."""
    return Agent("Test Agent", **{"description": "For tests.", **options})


async def echo(turn: Turn) -> str:
    """Say it again."""
    return turn.text


async def shout(turn: Turn) -> str:
    """Say it louder."""
    return turn.text.upper()


async def whatever(turn: Turn) -> str:
    """Take what nobody else takes."""
    return f"[{turn.skill}] {turn.text}"


def two(*, default: bool = True) -> Agent:
    """An agent with two skills, and perhaps a default handler."""
    agent = make()
    agent.skill(echo)
    agent.skill(shout)
    if default:
        agent.handler(whatever)
    return agent


# ---- putting it together -------------------------------------------------------------------


@pytest.mark.parametrize("field", ["name", "description", "version"])
def test_what_must_not_be_empty(field: str) -> None:
    with pytest.raises(AgentError, match=f"{field} must not be empty"):
        Agent(**{"name": "A", "description": "B", "version": "C", field: ""})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Echo", "echo"),
        ("Flight Booking Agent", "flight-booking-agent"),
        ("  Ça va? 2 ", "a-va-2"),
        ("C++ / Rust", "c-rust"),
    ],
)
def test_the_key_comes_from_the_name(name: str, key: str) -> None:
    assert Agent(name, description="x").key == key


@pytest.mark.parametrize("key", ["a", "A.b_c~d-9", "V1", "tasks2"])
def test_keys_that_can_be_part_of_a_path(key: str) -> None:
    assert Agent("Echo", description="x", key=key).key == key


@pytest.mark.parametrize("key", ["a/b", "a b", "-a", ".well-known", "ä", "a:b", "a?", "a\n", "%41"])
def test_keys_that_cannot(key: str) -> None:
    with pytest.raises(AgentError, match="cannot be part of a path"):
        Agent("Echo", description="x", key=key)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("v1", "the paths of A2A 0.3 begin with it"),
        ("tasks", "paths of A2A begin with it"),
        ("healthz", "it is the path of a health check"),
        ("mcp", "it is the path of an MCP server"),
        ("console", "it is the path of a console"),
    ],
)
def test_reserved_names(key: str, why: str) -> None:
    words = re.escape(f"{key!r} is reserved: {why}")
    for options in ({"key": key}, {"tenant": key}):
        with pytest.raises(AgentError, match=words):
            Agent("Echo", description="x", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["日本", "Tasks", "!"])
def test_names_that_give_no_key_need_one(name: str) -> None:
    with pytest.raises(AgentError, match="use another key"):
        Agent(name, description="x")
    assert Agent(name, description="x", key="mine").key == "mine"


@pytest.mark.parametrize("key", ["healthz", "readyz"])
def test_a_key_does_not_hide_what_the_application_answers(key: str) -> None:
    with pytest.raises(AgentError, match=f"key '{key}'"):
        Agent("Echo", description="x", key=key)


def test_without_a_handler() -> None:
    agent = make()
    with pytest.raises(AgentError, match=r"Test Agent: has no handler.*@agent\.skill"):
        agent.check()
    with pytest.raises(AgentError, match="no handler"):
        agent.card("http://here")
    with pytest.raises(AgentError, match="no handler"):
        App(agent)


def test_several_skills_need_a_default() -> None:
    agent = two(default=False)
    with pytest.raises(AgentError, match=r"several skills \(echo, shout\).*@agent\.handler"):
        agent.check()
    agent.handler(whatever)
    agent.check()


@pytest.mark.parametrize("ids", [{}, {"id": "echo"}])
def test_two_skills_of_one_id(ids: dict[str, str]) -> None:
    agent = make()
    agent.skill(echo)
    with pytest.raises(AgentError, match="two skills have the id 'echo'"):
        agent.skill(**ids)(echo if not ids else shout)
    agent.skill(id="again")(echo)
    assert list(agent.skills) == ["echo", "again"]


def test_two_default_handlers() -> None:
    agent = make()
    agent.handler(echo)
    with pytest.raises(AgentError, match="two default handlers"):
        agent.handler()(shout)


@pytest.mark.clause("card.required-fields")
@pytest.mark.parametrize("modes", ["input_modes", "output_modes"])
def test_an_agent_takes_and_gives_something(modes: str) -> None:
    with pytest.raises(AgentError, match=modes):
        make(**{modes: []})


@pytest.mark.parametrize("bare", [True, False])
def test_decorators_leave_what_they_decorate(bare: bool) -> None:
    agent = make()
    assert (agent.skill(echo) if bare else agent.skill()(echo)) is echo
    assert (agent.handler(shout) if bare else agent.handler()(shout)) is shout

    class Worker:
        def run(self, turn: Turn) -> str:
            return "x"

    assert agent.skill(Worker) is Worker


def test_two_agents_of_one_key_in_an_application() -> None:
    agents = [make(), make()]
    for agent in agents:
        agent.skill(echo)
    with pytest.raises(AgentError, match="same key"):
        App(*agents)
    with pytest.raises(AgentError, match="at least one agent"):
        App()


# ---- where a message goes ------------------------------------------------------------------


def ask(agent: Agent, skill: Any = None, before: str = "") -> str:
    """The skill that a message goes to."""
    metadata = None if skill is None else {"skill": skill}
    return agent.route(message("x", metadata=metadata), before)[0]


def only(*, default: bool) -> Agent:
    """An agent with one skill."""
    agent = make()
    agent.skill(echo)
    if default:
        agent.handler(whatever)
    return agent


@pytest.mark.parametrize(
    ("agent", "named", "before", "expected"),
    [
        (two, "shout", "", "shout"),
        (two, "shout", "echo", "shout"),
        (two, None, "echo", "echo"),
        (two, None, "", ""),
        (lambda: only(default=True), None, "", ""),
        (lambda: only(default=False), None, "", "echo"),
        (lambda: only(default=False), "echo", "", "echo"),
    ],
)
def test_the_skill_that_is_named_else_the_tasks_else_the_default_else_the_only_one(
    agent: Callable[[], Agent], named: str | None, before: str, expected: str
) -> None:
    made = agent()
    assert ask(made, named, before) == expected
    handler = made.route(message("x", skill=named or ""), before)[1]
    assert handler is made.handler_of(expected)
    assert handler.name == (expected or "whatever")


@pytest.mark.clause("errors.field-violations", "errors.validate-first")
@pytest.mark.parametrize("named", ["dance", "Echo", "echo ", 5, ["echo"], {"echo": 1}, True])
@pytest.mark.parametrize("default", [True, False])
def test_an_unknown_skill(named: Any, default: bool) -> None:
    agent = only(default=default)
    with pytest.raises(InvalidParams) as error:
        ask(agent, named)
    assert [field for field, _ in error.value.violations] == ["message.metadata.skill"]
    assert repr(named) in error.value.message
    assert "echo" in error.value.message  # what would have been right


def test_an_unknown_skill_where_there_are_none() -> None:
    agent = make()
    agent.handler(whatever)
    with pytest.raises(InvalidParams, match="the skills are: none"):
        ask(agent, "echo")
    assert ask(agent) == ""


async def test_a_message_reaches_the_handler_of_its_skill() -> None:
    assert (await run_handler(two(), "hi")).text == "[] hi"
    assert (await run_handler(two(), "hi", skill="shout")).text == "HI"
    assert (await run_handler(only(default=False), "hi")).text == "hi"
    with pytest.raises(InvalidParams):
        await run_handler(two(), "hi", skill="dance")


async def test_a_task_stays_with_its_skill_until_a_message_names_another() -> None:
    agent = make()
    seen: list[str] = []

    def asking(name: str) -> Any:
        async def handler(turn: Turn) -> Any:
            seen.append(f"{name}:{turn.skill}:{turn.text}")
            return turn.complete() if turn.text == "end" else turn.ask("and now?")

        handler.__name__ = name
        return handler

    agent.skill(asking("one"))
    agent.skill(asking("two"))
    agent.handler(asking("default"))

    def to(text: str, skill: str) -> Message:
        return message(text, skill=skill)

    found = await run_handler(agent, "a", to("b", "one"), "c", to("d", "two"), "end")
    assert found.state is TaskState.COMPLETED
    assert seen == ["default::a", "one:one:b", "one:one:c", "two:two:d", "two:two:end"]


# ---- what it lets in -----------------------------------------------------------------------


def typed(*media_types: str) -> Message:
    """A message with a part of each media type."""
    parts = tuple(Part(raw=b"x", media_type=kind) for kind in media_types)
    return Message(message_id="m", role=Role.USER, parts=parts)


@pytest.mark.clause("send.content-type")
@pytest.mark.parametrize(
    ("modes", "kind", "taken"),
    [
        (["text/plain"], "text/plain", True),
        (["text/plain"], "text/plain; charset=utf-8", True),
        (["text/plain;charset=utf-8"], "text/plain", True),
        (["text/plain"], "Text/PLAIN", True),
        (["TEXT/Plain"], "text/plain", True),
        (["text/plain"], "text/html", False),
        (["text/plain"], "text/plainer", False),
        (["text/plain"], "text", False),
        (["image/*"], "image/png", True),
        (["image/*"], "IMAGE/svg+xml; x=y", True),
        (["image/*"], "images/png", False),
        (["image/*"], "video/mp4", False),
        (["*/*"], "anything/at-all", True),
        (["*"], "anything/at-all", True),
        (["text/plain", "image/*"], "image/png", True),
        (["text/plain"], "", True),
    ],
)
def test_media_types(modes: list[str], kind: str, taken: bool) -> None:
    agent = make(input_modes=modes)
    agent.skill(echo)
    if taken:
        agent.admit(typed(kind), "echo")
    else:
        with pytest.raises(ContentTypeNotSupported) as error:
            agent.admit(typed(kind), "echo")
        assert kind in error.value.message
        assert modes[0] in error.value.message
        assert error.value.metadata == {"field": "message.parts[0].mediaType"}


@pytest.mark.clause("send.content-type")
def test_every_part_is_looked_at() -> None:
    agent = make(input_modes=["text/plain"])
    agent.skill(echo)
    with pytest.raises(ContentTypeNotSupported) as error:
        agent.admit(typed("text/plain", "", "image/png"), "echo")
    assert error.value.metadata == {"field": "message.parts[2].mediaType"}


@pytest.mark.clause("card.skill-modes")
def test_the_modes_of_a_skill_are_its_own() -> None:
    agent = make(input_modes=["text/plain"])
    agent.skill(echo)
    agent.skill(input_modes=["image/*"])(shout)
    agent.handler(whatever)
    agent.admit(typed("image/png"), "shout")
    agent.admit(typed(""), "shout")
    with pytest.raises(ContentTypeNotSupported, match=r"text/plain.* accepted: image/\*"):
        agent.admit(typed("text/plain"), "shout")
    for other in ("echo", ""):
        with pytest.raises(ContentTypeNotSupported):
            agent.admit(typed("image/png"), other)


# ---- the card ------------------------------------------------------------------------------


@pytest.mark.clause("card.required-fields", "card.all-bindings", "card.interface-form")
def test_a_small_card_has_all_that_is_required() -> None:
    agent = make()
    agent.skill(echo)
    card = agent.card("https://example.com/a")
    again = msgspec.json.decode(msgspec.json.encode(card), type=AgentCard)  # checks every field
    assert again == card
    assert (card.name, card.description, card.version) == ("Test Agent", "For tests.", "1.0.0")
    assert card.default_input_modes == card.default_output_modes
    assert card.default_input_modes == ("text/plain", "application/json")
    (skill,) = card.skills
    assert (skill.id, skill.name, skill.description) == ("echo", "Echo", "Say it again.")
    assert skill.tags == ("echo",)
    assert skill.examples == ()
    # which are the agent's: some readers want them here, too
    assert skill.input_modes == skill.output_modes == card.default_input_modes
    assert interfaces(card) == [
        ("JSONRPC", "1.0", "https://example.com/a/"),
        ("HTTP+JSON", "1.0", "https://example.com/a"),
        ("JSONRPC", "0.3", "https://example.com/a/"),
        ("HTTP+JSON", "0.3", "https://example.com/a"),
    ]


def interfaces(card: AgentCard) -> list[tuple[str, str, str]]:
    """The interfaces of a card: binding, version, address."""
    return [
        (face.protocol_binding, face.protocol_version, face.url)
        for face in card.supported_interfaces
    ]


@pytest.mark.clause("card.all-bindings", "card.preference-order")
def test_grpc_is_announced_where_it_is() -> None:
    agent = make()
    agent.skill(echo)
    addresses = {"JSONRPC": "http://a/", "HTTP+JSON": "http://a", "GRPC": "a:50051"}
    assert interfaces(agent.card("http://a", addresses=addresses)) == [
        ("JSONRPC", "1.0", "http://a/"),
        ("HTTP+JSON", "1.0", "http://a"),
        ("GRPC", "1.0", "a:50051"),
        ("JSONRPC", "0.3", "http://a/"),
        ("HTTP+JSON", "0.3", "http://a"),
        ("GRPC", "0.3", "a:50051"),
    ]


@pytest.mark.clause("card.required-fields")
def test_a_card_tells_all_that_it_was_given() -> None:
    provider = AgentProvider(url="https://example.com", organization="Example")
    agent = make(
        version="2.1",
        provider=provider,
        documentation_url="https://example.com/docs",
        icon_url="https://example.com/icon.png",
        input_modes=["text/plain", "image/*"],
        output_modes=iter(["image/png"]),
    )

    @agent.skill(
        id="draw-it",
        name="Draw it!",
        description="Draws.",
        tags=["art", "image"],
        examples=["a cat", "a dog"],
        input_modes=["text/markdown"],
        output_modes=["image/svg+xml"],
    )
    async def draw(turn: Turn) -> bytes:
        """Not this."""
        return b""

    card = agent.card("http://here")
    assert (card.version, card.provider) == ("2.1", provider)
    assert card.documentation_url == "https://example.com/docs"
    assert card.icon_url == "https://example.com/icon.png"
    assert card.default_input_modes == ("text/plain", "image/*")
    assert card.default_output_modes == ("image/png",)
    (skill,) = card.skills
    assert (skill.id, skill.name, skill.description) == ("draw-it", "Draw it!", "Draws.")
    assert (skill.tags, skill.examples) == (("art", "image"), ("a cat", "a dog"))
    assert (skill.input_modes, skill.output_modes) == (("text/markdown",), ("image/svg+xml",))


def test_what_a_skill_is_called_comes_from_the_function() -> None:
    agent = make()

    @agent.skill
    def book_return_flight(turn: Turn) -> None:
        """Book a flight
        and the way back.

        At the best price.
        """

    @agent.skill
    def nameless(turn: Turn) -> None:
        pass

    @agent.skill
    class Hotels:
        """Finds hotels."""

        def run(self, turn: Turn) -> None:
            """Not this."""

    agent.handler(whatever)
    first, second, third = agent.card("http://here").skills
    assert (first.id, first.name) == ("book_return_flight", "Book return flight")
    assert first.description == "Book a flight\nand the way back.\n\nAt the best price."
    assert (second.id, second.name, second.description) == ("nameless", "Nameless", "Nameless")
    assert (third.id, third.name, third.description) == ("Hotels", "Hotels", "Finds hotels.")


def test_the_default_handler_is_no_skill() -> None:
    agent = make()
    agent.handler(whatever)
    assert agent.card("http://here").skills == ()


@pytest.mark.clause("card.capabilities", "extensions.declared")
def test_capabilities() -> None:
    extension = AgentExtension(uri="urn:example:x", required=True)
    agent = make(streaming=False, extensions=[extension])
    agent.skill(echo)
    found = agent.card("http://here").capabilities
    assert (found.streaming, found.push_notifications) == (False, False)
    assert found.extended_agent_card is False
    assert found.extensions[0] == extension
    assert [item.uri for item in found.extensions] == ["urn:example:x", RESUME]
    assert agent.card("http://here", push=True).capabilities.push_notifications is True
    agent.extended_card(lambda caller, card: card)
    assert agent.card("http://here").capabilities.extended_agent_card is True


def test_extended_cards_are_made_by_the_function() -> None:
    agent = make()
    agent.skill(echo)

    @agent.extended_card
    def more(caller: Caller, card: AgentCard) -> AgentCard:
        return msgspec.structs.replace(card, name=f"{card.name} for {caller.identity}")

    assert agent.extend is more
    assert more(Caller(identity="ann"), agent.card("http://x")).name == "Test Agent for ann"


# ---- other agents ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("https://a.example", "host"),
        ("https://a.example/x/y", "host"),
        ("https://A.example/b/", "path"),
        ("https://a.example/b/c?q=1", "path"),
        ("https://a.example/bc", "host"),
        ("https://a.example.evil.com", ""),
        ("https://a.example@evil.com", ""),
        ("https://a.example:444", ""),
        ("http://a.example", ""),
        ("", ""),
    ],
)
def test_a_connection_is_for_an_address_and_those_below(address: str, found: str) -> None:
    hosts = {"https://a.example": "host", "https://a.example/b": "path"}
    agent = make(connections={url: {"headers": {"x": name}} for url, name in hosts.items()})
    assert agent.connection(address) == ({"headers": {"x": found}} if found else {})


@pytest.mark.parametrize(
    ("connections", "why"),
    [({"a.example": {}}, "'a.example' must start with https://"), (["x"], "must be a mapping")],
)
def test_connections_are_checked(connections: Any, why: str) -> None:
    with pytest.raises(AgentError, match=why):
        make(connections=connections)


def test_no_secret_of_an_address_is_kept() -> None:
    assert plain_address("https://ann:pw@a.example:8/b?token=x#y") == "https://a.example:8/b"


# ---- its life ------------------------------------------------------------------------------


async def test_the_lifespan_surrounds_the_work() -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan(agent: Agent) -> Any:
        steps.append(f"open {agent.name}")
        yield {"answer": 42}
        steps.append("close")

    agent = make(lifespan=lifespan)

    @agent.skill
    async def look(turn: Turn) -> Any:
        steps.append("work")
        return turn.state

    app = App(agent, drain_timeout=0.0)
    async with app:
        service = app.endpoints[agent.key].service
        answer = await service.send(SendMessageRequest(message=message("x")), Call(Caller()))
    assert answer.task is not None
    assert answer.task.artifacts[0].parts[0].data == {"answer": 42}
    assert steps == ["open Test Agent", "work", "close"]


# ---- skills that come and go -------------------------------------------------------------------


def test_a_skill_can_be_removed_and_replaced() -> None:
    agent = make()
    agent.skill(id="one", input_modes=["image/png"])(echo)
    agent.handler(echo)
    before = agent.revision
    agent.admit(message(Part(raw=b"", media_type="image/png")), "one")
    agent.remove_skill("one")
    assert agent.revision > before
    assert not agent.card("http://agent.example").skills
    with pytest.raises(InvalidParams, match="unknown skill 'one'"):
        agent.route(message("x", skill="one"), "")
    agent.skill(id="one", input_modes=["text/plain"])(echo)
    assert agent.route(message("x", skill="one"), "")[0] == "one"
    with pytest.raises(ContentTypeNotSupported):
        agent.admit(message(Part(raw=b"", media_type="image/png")), "one")
