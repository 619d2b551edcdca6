"""The team: the agents that an orchestrator may call, and the cards that they show."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from dragoman import A2AError, Agent, AgentCard, Caller, Turn
from dragoman.client import (
    PAUSE_EXTENSIONS,
    AgentReference,
    Answerer,
    ApprovedAgent,
    CardCache,
    Client,
    HTTPTransport,
    NotAllowed,
    Options,
    RemoteSkill,
    Unreachable,
)
from dragoman.prompt_safety import Policy, clean, eligible, lookalikes, sanitize

logger = logging.getLogger("dragoman")

RESUME = "urn:dragoman:resume:v1"
"""An agent with this extension recognises a message that is sent again."""
INSIDE = "http://inside/"
"""How the address of an agent in this process begins."""
AGE = 60.0
"""Seconds for which a card is used before it is fetched again."""
ABSENT = 10.0
"""Seconds after which agents that did not respond are asked again."""
FORGOTTEN = 3600.0
"""Seconds for which the last card of an agent that does not respond is used."""
FETCH = 10.0
"""Seconds that an agent has to show its card."""
ATTEMPTS = 20
"""How often a call is tried that fails: an agent that is started again is back by then."""
LOOKS = 4
"""How often a card is asked for, before its agent is taken for absent."""
AT_ONCE = 8
"""How many cards are fetched at the same time."""
OVERDUE = 1.0
"""Seconds to wait for new cards while there are older ones: one agent that hangs must not hold up
the others."""
FIRST_PAUSE, LAST_PAUSE = 0.5, 32.0
"""Seconds between two looks for an agent that is away: about a minute in all."""
CARD = 4000
"""The most characters of a card that a model gets to read."""


class Finder(Protocol):
    """Finds agents, such as a query of a registry."""

    async def find(self) -> Sequence[Any]:
        """The agents, in any form that `Client.connect` accepts."""


Given: TypeAlias = "str | AgentCard | AgentReference | Client | Agent | Finder"
"""An agent of the team: its address, its card (an object, a file or a URL), an agent of a registry,
a client, an agent in this process; or a query that finds agents."""
Eligible: TypeAlias = Policy | Callable[[Caller, "Member"], bool]
"""Which agents a caller may use. No text of a card has an influence on a `Policy`."""


class Connections(HTTPTransport):
    """Connections that all clients of a team share. A client that closes leaves them open."""

    async def close(self) -> None:
        """See `Transport.close`."""

    async def end(self) -> None:
        """Close them."""
        await super().close()


class _Approved(Struct, frozen=True):
    """An agent whose card was approved elsewhere."""

    agent: ApprovedAgent

    @property
    def url(self) -> str:
        return self.agent.url

    async def resolve(self) -> ApprovedAgent:
        """See `AgentReference`."""
        return self.agent


class Member:
    """An agent of the team, with the card that it shows now."""

    def __init__(self, name: str, target: Any, card: AgentCard, skills: Mapping[str, RemoteSkill]):
        self.name = name
        """Its name in this team: that of the card, with the host if two agents have similar
        names."""
        self.card = card
        self.skills = skills
        self.local = isinstance(target, Agent)
        """It runs in this process."""
        self.address = inside(target) if self.local else card.supported_interfaces[0].url
        """Where it is called. An agent that moves is another member."""
        self.target = target
        self.remembers = any(each.uri == RESUME for each in card.capabilities.extensions)
        """It recognises a message that is sent again."""

    @property
    def host(self) -> str:
        """Where it is, for people."""
        return host_of(self.address)

    @property
    def title(self) -> str:
        """Its name and host, for people: the name is what the agent says of itself."""
        return f"{clean(' '.join(self.card.name.split()), 100)} ({self.host})"

    def __repr__(self) -> str:
        return f"Member({self.name!r} at {self.address}, skills: {', '.join(self.skills)})"

    def context(self, turn: Turn) -> str:
        """The id of the conversation with this agent: one for each of our conversations, each
        caller and each address."""
        caller = turn.caller
        names = (turn.context_id, caller.tenant, caller.qualified, self.address, self.card.name)
        digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
        return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"

    def prompt(self) -> str:
        """The card as a model may read it."""
        return sanitize(self.card, limit=CARD, source=f"card of {self.name}")


def _all_listed(card: AgentCard, policy: Policy) -> bool:
    """Whether a policy lists all addresses of a card that a client could use: when one does not
    respond, the client tries the next."""
    usable = [
        each
        for each in card.supported_interfaces
        if not policy.bindings or each.protocol_binding.upper() in policy.bindings
    ]
    listed = replace(policy, bindings=(), versions=())
    found = eligible([replace(card, supported_interfaces=tuple(usable))], listed)
    return bool(found) and len(found[0].supported_interfaces) == len(usable)


def _check_outside(target: Any) -> None:
    """Raise ValueError if an agent pretends to be one in this process."""
    urls = [target] if isinstance(target, str) else []
    if isinstance(target, AgentCard):
        urls = [each.url for each in target.supported_interfaces]
    if any(urlsplit(url).hostname == urlsplit(INSIDE).hostname for url in urls):
        raise ValueError("it names an address in this process")


def inside(agent: Agent) -> str:
    """The address of an agent in this process."""
    return f"{INSIDE}{agent.key}"


def host_of(address: str) -> str:
    """Host and port of an address, for people."""
    if address.startswith(INSIDE):
        return "in this process"
    found = urlsplit(address if "://" in address else f"//{address}").netloc or address
    return found.rpartition("@")[2]  # what is before it looks like a host, too


class Team:
    """Finds the agents that it was given, and keeps their cards for a minute."""

    def __init__(
        self,
        given: Iterable[Given],
        *,
        may: Eligible | None = None,
        options: Callable[[str], Mapping[str, Any]] = lambda address: {},
        answer: Answerer | None = None,
    ) -> None:
        self._given = tuple(given)
        self._answer = answer
        """Pays for the calls."""
        self._may = may
        self._options = options
        self._cards = CardCache()
        self._connections = Connections()
        self._found: list[tuple[Any, AgentCard, Mapping[str, RemoteSkill]]] = []
        self._seen: dict[Any, tuple[float, AgentCard, Mapping[str, RemoteSkill]]] = {}
        self._fresh = self._again = 0.0
        self._refreshing: asyncio.Task[None] | None = None
        self.absent: dict[str, str] = {}
        """The agents that cannot be called now, and why."""
        self._missed: dict[str, str] = {}
        """Those that the refresh that is running has not found."""

    async def close(self) -> None:
        """Close the connections to agents and registries. The next call opens new ones."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])
        await self._connections.end()
        for each in self._given:
            if not isinstance(each, Client) and hasattr(each, "close"):
                await each.close()

    @property
    def local(self) -> list[Agent]:
        """The agents of the team that run in this process."""
        return [each for each in self._given if isinstance(each, Agent)]

    async def members(self, caller: Caller) -> dict[str, Member]:
        """The agents that this caller may use, by their names."""
        return {each.name: each for each in await self._every() if self.allows(caller, each)}

    def complete(self, members: Collection[str]) -> bool:
        """Whether these are all agents of the team: none is absent, and none is left out."""
        return not self.absent and len(members) == len(_named(self._found))

    async def member(self, caller: Caller, address: str) -> Member | None:
        """The agent at this address; None if it is not in the team, or the caller may not use it.
        If it could be one that is away, it is waited for."""
        pause = FIRST_PAUSE
        while True:
            found = next((each for each in await self._every() if each.address == address), None)
            if found is not None:
                return found if self.allows(caller, found) else None
            if not self.absent or pause > LAST_PAUSE:
                return None
            await asyncio.sleep(pause)
            self._fresh, pause = 0.0, 2 * pause

    async def _every(self) -> list[Member]:
        """All agents of the team, by their newest cards. Nobody waits for those that are absent."""
        now = time.monotonic()
        stale = not self._found or now > self._fresh
        running = self._refreshing
        idle = running is None or running.done()
        if idle and (stale or (self.absent and now > self._again)):
            running = self._refreshing = asyncio.create_task(self._refresh())
        if stale and running is not None:
            done, _ = await asyncio.wait([running], timeout=OVERDUE if self._found else None)
            for task in done:
                task.result()
        return _named(self._found)

    def allows(self, caller: Caller, member: Member) -> bool:
        """Whether a caller may use an agent."""
        may = self._may
        if may is None or (isinstance(may, Policy) and member.local):
            return True
        if isinstance(may, Policy):
            where = member.target if isinstance(member.target, str) else member.address
            return bool(eligible({where: member.card}, may)) and _all_listed(member.card, may)
        return bool(may(caller, member))

    def objection(self, caller: Caller, member: Member, client: Client) -> str:
        """Why a message must not be sent through this client; empty if it may: the client may have
        seen another card than the team."""
        if member.local:
            return "" if self.allows(caller, member) else "may not be used"
        now = Member(member.name, member.target, client.card, client.skills)
        if now.address != member.address:
            return f"has moved to {now.host}"
        may = self._may
        used = (client.interface,)
        chosen = replace(client.card, supported_interfaces=used)
        if isinstance(may, Policy) and not eligible([chosen], may):
            return "may not be used any more"
        return "" if self.allows(caller, now) else "may not be used any more"

    @asynccontextmanager
    async def client(self, member: Member, turn: Turn, skill: str = "") -> AsyncIterator[Client]:
        """A client for an agent that works on behalf of a turn. Its tokens have the scopes of this
        skill."""
        target = member.target
        if isinstance(target, Client):
            yield target
            return
        if isinstance(target, Agent):
            target = inside(target)
        through = None if member.local else self._connections
        options = self._client_options(target)
        options["scopes_for"] = skill
        if self._answer is not None:
            options["answer"] = self._answer
        async with turn.connect(target, transport=through, **options) as client:
            yield client

    # -- cards

    async def _refresh(self) -> None:
        self._missed = {}
        targets = await self._targets()
        limit = asyncio.Semaphore(AT_ONCE)

        async def look(target: Any) -> tuple[Any, AgentCard, Mapping[str, RemoteSkill]] | None:
            async with limit:
                return await self._look(target)

        found = await asyncio.gather(*map(look, targets))
        self._found = [each for each in found if each is not None]
        self.absent = self._missed
        now = time.monotonic()
        self._fresh, self._again = now + (AGE if self._found else 1.0), now + ABSENT

    async def _targets(self) -> list[Any]:
        found: list[Any] = []
        for each in self._given:
            if isinstance(each, str | AgentCard | Client | Agent):
                found.append(each)
                continue
            try:
                async with asyncio.timeout(FETCH):
                    named = [each] if isinstance(each, AgentReference) else await each.find()
                    found += [
                        _Approved(await one.resolve()) if isinstance(one, AgentReference) else one
                        for one in named
                    ]
            except (A2AError, OSError, TimeoutError, ValueError) as error:
                self._miss(each, error)
                found += [target for target, *_ in self._found if target not in self._given]
        return found

    async def _look(self, target: Any) -> tuple[Any, AgentCard, Mapping[str, RemoteSkill]] | None:
        """An agent and its card; the last one if it does not respond."""
        key = target if isinstance(target, str) else getattr(target, "url", id(target))
        try:
            _check_outside(target)
            async with asyncio.timeout(FETCH):
                card, skills = await self._card(target)
            _check_outside(card if not isinstance(target, Agent) else target)
        except (A2AError, OSError, TimeoutError, ValueError) as error:
            self._miss(target, error)
            seen = self._seen.get(key)
            if seen is None or isinstance(error, NotAllowed):
                return None
            at, card, skills = seen
            return (target, card, skills) if time.monotonic() - at < FORGOTTEN else None
        if not card.supported_interfaces:
            self._miss(target, ValueError("its card names no address"))
            return None
        self._seen[key] = (time.monotonic(), card, skills)
        return target, card, skills

    async def _card(self, target: Any) -> tuple[AgentCard, Mapping[str, RemoteSkill]]:
        if isinstance(target, Client):
            await target.open()
            return target.card, target.skills
        if isinstance(target, Agent):
            target = inside(target)
        options = self._client_options(target)
        options["attempts"] = LOOKS
        async with Client.connect(target, **options) as client:
            return client.card, client.skills

    def _client_options(self, target: Any) -> Options:
        """Options for an agent, such as credentials: by the address that the author gave, or by
        that on the card that the author gave."""
        if isinstance(target, AgentCard):
            interfaces = target.supported_interfaces
            found = dict(self._options(interfaces[0].url)) if interfaces else {}
        else:
            where = target if isinstance(target, str) else getattr(target, "url", "")
            found = dict(self._options(where)) if where else {}
            found.setdefault("card_cache", self._cards)
        found.setdefault("attempts", ATTEMPTS)
        found["extensions"] = tuple(
            dict.fromkeys((*found.get("extensions", ()), *PAUSE_EXTENSIONS))
        )
        if isinstance(self._may, Policy) and self._may.bindings:
            found.setdefault("bindings", self._may.bindings)
        return cast(Options, found)

    def _miss(self, target: Any, error: BaseException) -> None:
        why = str(error) or type(error).__name__
        name = target if isinstance(target, str) else getattr(target, "name", repr(target))
        self._missed[str(name)] = why
        level = logging.INFO if isinstance(error, Unreachable | TimeoutError) else logging.WARNING
        logger.log(level, "team: cannot use %s: %s", name, why)


def _named(found: Sequence[tuple[Any, AgentCard, Mapping[str, RemoteSkill]]]) -> list[Member]:
    """Members with unique names. Names that look alike get the hosts: who is meant must not depend
    on who came first."""
    found = _distinct(found)
    slugs = Counter(slug(card.name) for _, card, _ in found)
    alike = {id(card) for group in lookalikes(card for _, card, _ in found) for card in group}
    members: dict[str, Member] = {}
    for target, card, skills in found:
        name = slug(card.name)
        if id(card) in alike or slugs[name] > 1:
            where = "local" if isinstance(target, Agent) else card.supported_interfaces[0].url
            # with its dots: a-b.example is not a.b.example
            name = f"{name}-at-{re.sub(r'[^a-z0-9.]+', '-', host_of(where).lower())[:100]}"
        free, number = name, 2
        while free in members:
            free, number = f"{name}-{number}", number + 1
        members[free] = Member(free, target, card, skills)
    return list(members.values())


def _distinct(
    found: Sequence[tuple[Any, AgentCard, Mapping[str, RemoteSkill]]],
) -> list[tuple[Any, AgentCard, Mapping[str, RemoteSkill]]]:
    """One agent for each address. A card that was found elsewhere may not point to the host of
    another agent of the team: it would get that agent's work, or that agent its work."""
    hosts = {host_of(_address(each)).lower() for each in found if not _elsewhere(each)}
    kept: dict[str, tuple[Any, AgentCard, Mapping[str, RemoteSkill]]] = {}
    for each in found:
        address = _address(each)
        if _elsewhere(each) and host_of(address).lower() in hosts:
            logger.warning("team: %s is not used: its card names %s", each[0], address)
        else:
            kept.setdefault(address.rstrip("/"), each)
    return list(kept.values())


def _address(found: tuple[Any, AgentCard, Mapping[str, RemoteSkill]]) -> str:
    target, card, _ = found
    return inside(target) if isinstance(target, Agent) else card.supported_interfaces[0].url


def _elsewhere(found: tuple[Any, AgentCard, Mapping[str, RemoteSkill]]) -> bool:
    """Whether its card points to another host than the one where it was found."""
    return isinstance(found[0], str) and host_of(found[0]) != host_of(_address(found))


def slug(name: str) -> str:
    """A name of letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", clean(name, 60).lower()).strip("-")[:48] or "agent"
