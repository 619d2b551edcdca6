"""The card at its well-known paths: caching, the URLs in it; and the health endpoints."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
import pytest_asyncio
from a2a.compat.v0_3.types import AgentCard as Reference
from msgspec.structs import replace

from dragoman import Agent, App, Turn
from dragoman.bindings import card
from dragoman.bindings.agent_endpoint import CARDS
from dragoman.bindings.http_request import HTTPRequest
from dragoman.client.discovery import decode
from dragoman.dialects import v1_0
from dragoman.model import types
from dragoman.model.caller import Caller
from dragoman.model.types import AgentCard
from tests.contract.bindings.conftest import user
from tests.harness import agents
from tests.harness.server import serving
from tests.harness.trust import NOBODY

pytestmark = pytest.mark.asyncio(loop_scope="module")

CARD = "/.well-known/agent-card.json"
OLD = "/.well-known/agent.json"


def small(name: str = "Small", **options: Any) -> Agent:
    """An agent that answers at once."""
    agent = Agent(name, description=f"{name} one.", **options)

    @agent.skill
    async def answer(turn: Turn) -> str:
        """Say it again."""
        return turn.text

    return agent


Serve = Callable[..., Any]


@pytest_asyncio.fixture(loop_scope="module")
async def serve() -> AsyncIterator[Serve]:
    """Serves agents with some settings: a client whose base is their URL."""
    async with AsyncExitStack() as stack:

        async def begin(
            *served: Agent, options: dict[str, Any] | None = None, **settings: Any
        ) -> httpx.AsyncClient:
            app = App(*served or [small()], **{"drain_timeout": 0.1, **settings})
            url = await stack.enter_async_context(serving(app, **options or {}))
            http = httpx.AsyncClient(base_url=url, timeout=20, verify=NOBODY)
            http.app = app  # type: ignore[attr-defined]
            return await stack.enter_async_context(http)

        yield begin


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared() -> AsyncIterator[httpx.AsyncClient]:
    """One server with the usual settings, for those who only look."""
    app = App(agents.make(), drain_timeout=0.1)
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
        yield http


def addresses(card: dict[str, Any]) -> dict[str, str]:
    """Where the card says that the agent is, for each binding."""
    return {item["protocolBinding"]: item["url"] for item in card["supportedInterfaces"]}


async def told(http: httpx.AsyncClient, path: str = CARD, **headers: str) -> str:
    """The URL that the card tells; those of all bindings lead to the same place."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    found = addresses((await http.get(path, headers=named)).json())
    assert found == {"JSONRPC": f"{found['HTTP+JSON']}/", "HTTP+JSON": found["HTTP+JSON"]}
    return found["HTTP+JSON"]


# ---- the document --------------------------------------------------------------------------


@pytest.mark.clause(
    "card.well-known",
    "card.required-fields",
    "card.capabilities",
    "card.all-bindings",
    "card.interface-form",
    "card.preference-order",
    "extensions.declared",
    "version.no-patch",
)
@pytest.mark.parametrize("path", [CARD, OLD])
async def test_the_card(shared: httpx.AsyncClient, path: str) -> None:
    response = await shared.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    card = v1_0.decode(AgentCard, response.content)
    assert (card.name, card.version) == ("Contract", "2.0.0")
    assert card.description == "Does what the text says."
    assert [skill.id for skill in card.skills] == ["talk", "book", "files"]
    assert all(s.name and s.description and s.tags for s in card.skills)
    assert card.default_input_modes == ("text/plain", "application/json")
    assert card.default_output_modes
    assert [(i.protocol_binding, i.protocol_version) for i in card.supported_interfaces] == [
        ("JSONRPC", "1.0"),
        ("HTTP+JSON", "1.0"),
        ("JSONRPC", "0.3"),
        ("HTTP+JSON", "0.3"),
    ]
    assert card.capabilities.streaming is True
    assert card.capabilities.push_notifications is False
    assert not card.capabilities.extended_agent_card
    assert [e.uri for e in card.capabilities.extensions] == [
        "urn:dragoman:resume:v1",
        "urn:dragoman:skill-schema:v1",
    ]
    assert (await shared.get(CARD)).content == (await shared.get(OLD)).content


@pytest.mark.clause("card.capabilities")
async def test_the_card_claims_what_there_is(serve: Serve) -> None:
    http = await serve(agents.make(streaming=False, required=True, extended=True), push=True)
    card = (await http.get(CARD)).json()["capabilities"]
    assert card["streaming"] is False
    assert card["pushNotifications"] is True
    assert card["extendedAgentCard"] is True
    assert {"uri": agents.REQUIRED, "required": True} in card["extensions"]


@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", [CARD, OLD])
async def test_the_card_is_only_read(shared: httpx.AsyncClient, path: str, verb: str) -> None:
    response = await shared.request(verb, path)
    assert response.status_code == 405
    assert response.headers["allow"] == "GET, HEAD"
    assert response.json()["error"]["code"] == 405


@pytest.mark.parametrize("path", [CARD, OLD])
async def test_head(shared: httpx.AsyncClient, path: str) -> None:
    head, get = await shared.head(path), await shared.get(path)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-length", "content-type", "etag", "cache-control"):
        assert head.headers[name] == get.headers[name]


async def test_a_page_elsewhere_may_read_the_card(shared: httpx.AsyncClient) -> None:
    response = await shared.get(CARD, headers={"Origin": "https://elsewhere.example"})
    assert response.headers["access-control-allow-origin"] == "*"


async def test_the_card_is_given_to_anybody(serve: Serve) -> None:
    def identify(request: Any) -> Any:
        raise AssertionError("nobody is asked who they are")

    http = await serve(identify=identify)
    assert (await http.get(CARD)).status_code == 200


# ---- its forms -----------------------------------------------------------------------------

FORMS = ["", "1.0", "1.0.1", "0.3", "0.3.0", "0.2", "0.2.6", "0.1"]


class Guarded(Agent):
    """An agent whose card asks for credentials of every kind."""

    def card(self, url: str, **options: Any) -> AgentCard:
        public = super().card(url, **options)
        book, *others = public.skills
        book = replace(book, security_requirements=NEEDED[1:])
        return replace(
            public,
            skills=(book, *others),
            security_schemes=SCHEMES,
            security_requirements=NEEDED,
        )


def flow(**one: Any) -> types.SecurityScheme:
    """A scheme of one OAuth flow."""
    scheme = types.OAuth2SecurityScheme(flows=types.OAuthFlows(**one))
    return types.SecurityScheme(oauth2_security_scheme=scheme)


SCHEMES = {
    "key": types.SecurityScheme(
        api_key_security_scheme=types.APIKeySecurityScheme(location="header", name="X-Key")
    ),
    "http": types.SecurityScheme(
        http_auth_security_scheme=types.HTTPAuthSecurityScheme(scheme="Bearer")
    ),
    "oidc": types.SecurityScheme(
        open_id_connect_security_scheme=types.OpenIdConnectSecurityScheme(
            open_id_connect_url="https://id.example"
        )
    ),
    "mtls": types.SecurityScheme(mtls_security_scheme=types.MutualTlsSecurityScheme()),
    "code": flow(
        authorization_code=types.AuthorizationCodeOAuthFlow(
            authorization_url="https://a", token_url="https://t", scopes={}, pkce_required=True
        )
    ),
    "machine": flow(
        client_credentials=types.ClientCredentialsOAuthFlow(token_url="https://t", scopes={})
    ),
    "device": flow(
        device_code=types.DeviceCodeOAuthFlow(
            device_authorization_url="https://d", token_url="https://t", scopes={}
        )
    ),
}
NEEDED = (
    types.SecurityRequirement(schemes={"key": types.StringList()}),
    types.SecurityRequirement(schemes={"code": types.StringList(list=("a",))}),
)


def guarded() -> Guarded:
    """An agent of one skill with such a card."""
    agent = Guarded("Guarded", description="One.")
    agent.skill(id="answer", tags=["t"])(lambda text: text)
    return agent


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def site() -> AsyncIterator[httpx.AsyncClient]:
    """Several agents, and one of them guarded."""
    app = App(guarded(), small("Other"), drain_timeout=0.1)
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
        yield http


@pytest.mark.clause("card.security-schemes")
@pytest.mark.parametrize("where", ["header", "query"])
@pytest.mark.parametrize("version", FORMS)
@pytest.mark.parametrize("path", [CARD, OLD])
@pytest.mark.parametrize("key", ["guarded", "other"])
async def test_forms(
    site: httpx.AsyncClient, key: str, path: str, version: str, where: str
) -> None:
    options = {"headers" if where == "header" else "params": {"A2A-Version": version}}
    response = await site.get(f"/{key}{path}", **options)  # type: ignore[arg-type]
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.headers["vary"] == "A2A-Version"
    document = response.json()
    own = f"{str(site.base_url).rstrip('/')}/{key}"
    new, old = "supportedInterfaces" in document, "url" in document
    assert (new, old) == (not version.startswith("0"), not version.startswith("1"))
    assert ("securityRequirements" in document) == (new and key == "guarded")
    assert ("security" in document) == (old and key == "guarded")
    card = decode(response.content, "here")
    if old:
        protocol = "0.2.6" if version.startswith("0.2") else "0.3.0"
        assert (document["protocolVersion"], document["url"]) == (protocol, f"{own}/")
        assert document["preferredTransport"] == "JSONRPC"
        assert document["supportsAuthenticatedExtendedCard"] is False
        Reference.model_validate(document)
    if new:
        assert card.supported_interfaces[0].url == f"{own}/"
        assert card.security_schemes == (SCHEMES if key == "guarded" else {})
        assert v1_0.decode(AgentCard, response.content) == card
    assert {item.url for item in card.supported_interfaces} <= {f"{own}/", own}
    assert {name: scopes.list for need in card.security_requirements
            for name, scopes in need.schemes.items()} == (
        {"key": (), "code": ("a",)} if key == "guarded" else {}
    )  # fmt: skip
    options["headers"] = options.get("headers", {}) | {"If-None-Match": response.headers["etag"]}
    again = await site.get(f"/{key}{path}", **options)  # type: ignore[arg-type]
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["vary"] == "A2A-Version"


@pytest.mark.clause("card.etag")
async def test_each_form_has_its_tag(site: httpx.AsyncClient) -> None:
    tags = {}
    for version in ("", "1.0", "0.3", "0.2"):
        found = await site.get(f"/guarded{CARD}", headers={"A2A-Version": version})
        tags[found.headers["etag"]] = version
    assert len(tags) == 4
    for tag, version in tags.items():
        for other in tags.values():
            headers = {"A2A-Version": other, "If-None-Match": tag}
            found = await site.get(f"/guarded{CARD}", headers=headers)
            assert found.status_code == (304 if other == version else 200)


@pytest.mark.parametrize("version", ["2.0", "0.4", "1", "x", "1.0.0.0", "latest", "0.3,1.0"])
@pytest.mark.parametrize("path", [CARD, OLD])
async def test_a_form_that_there_is_not(shared: httpx.AsyncClient, path: str, version: str) -> None:
    for options in ({"headers": {"A2A-Version": version}}, {"params": {"A2A-Version": version}}):
        response = await shared.get(path, **options)  # type: ignore[arg-type]
        assert response.status_code == 400
        assert response.json()["error"]["details"][0]["reason"] == "VERSION_NOT_SUPPORTED"


async def test_the_header_wins(shared: httpx.AsyncClient) -> None:
    found = await shared.get(CARD, params={"A2A-Version": "9"}, headers={"A2A-Version": "0.3"})
    assert "supportedInterfaces" not in found.json()


# ---- the extended card of 0.2 --------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="module")
async def extended() -> AsyncIterator[httpx.AsyncClient]:
    """The address where 0.2 has the extended card, of an agent that knows Ann."""
    agent = small()

    @agent.extended_card
    def more(caller: Caller, public: AgentCard) -> AgentCard:
        if caller.identity == "bob":
            raise KeyError
        return replace(public, name=f"For {caller.identity}")

    app = App(agent, identify=lambda request: Caller(identity=request.headers.get("who", "")))

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        exchange = HTTPRequest(scope, receive, send, app.bodies)
        await card.extended(app.endpoints["small"], exchange)

    async with app:
        transport = httpx.ASGITransport(asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            yield http


@pytest.mark.clause("extended.caching")
@pytest.mark.parametrize(
    ("version", "protocol"), [("", "0.2.6"), ("0.2", "0.2.6"), ("0.3", "0.3.0"), ("0.1", "0.3.0")]
)
async def test_the_extended_card_of_0_2(
    extended: httpx.AsyncClient, version: str, protocol: str
) -> None:
    headers = {"who": "ann", "A2A-Version": version}
    response = await extended.get(card.EXTENDED, headers=headers)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert "private" in response.headers["cache-control"]
    found = Reference.model_validate(response.json())
    assert (found.name, found.protocol_version, found.url) == ("For ann", protocol, "http://x/")
    assert found.supports_authenticated_extended_card is True


@pytest.mark.parametrize(
    ("verb", "headers", "status"),
    [
        ("GET", {}, 401),
        ("POST", {"who": "ann"}, 405),
        ("GET", {"who": "ann", "A2A-Version": "1.0"}, 400),
        ("GET", {"who": "ann", "A2A-Version": "7.0"}, 400),
        ("GET", {"who": "bob"}, 500),
    ],
)
async def test_no_extended_card(
    extended: httpx.AsyncClient, verb: str, headers: dict[str, str], status: int
) -> None:
    response = await extended.request(verb, card.EXTENDED, headers=headers)
    assert response.status_code == status
    assert response.json()["error"]["code"] == status


# ---- caching -------------------------------------------------------------------------------


@pytest.mark.clause("card.cache-control", "card.etag")
async def test_the_card_may_be_cached(shared: httpx.AsyncClient) -> None:
    response = await shared.get(CARD)
    assert "max-age=300" in response.headers["cache-control"]
    tag = response.headers["etag"]
    assert tag[0] == tag[-1] == '"'
    assert (await shared.get(CARD)).headers["etag"] == tag


@pytest.mark.clause("card.etag")
async def test_the_tag_follows_the_content(serve: Serve) -> None:
    host = {"Host": "agents.example"}
    tags = []
    for agent in (small(), small(), small(version="2.0.0"), small(documentation_url="http://x")):
        http = await serve(agent, trust_forwarded=True)
        tags.append((await http.get(CARD, headers=host)).headers["etag"])
    tags.append((await http.get(CARD, headers={"Host": "other.example"})).headers["etag"])
    assert tags[0] == tags[1]
    assert len(set(tags)) == 4


@pytest.mark.clause("card.conditional")
@pytest.mark.parametrize("path", [CARD, OLD])
@pytest.mark.parametrize(
    "condition", ["{tag}", "W/{tag}", '"x", {tag}', '{tag},"x"', '"a" , W/{tag} ,"b"', "*"]
)
@pytest.mark.parametrize("verb", ["GET", "HEAD"])
async def test_a_good_copy_is_not_sent_again(
    shared: httpx.AsyncClient, path: str, condition: str, verb: str
) -> None:
    known = (await shared.get(path)).headers
    headers = {"If-None-Match": condition.replace("{tag}", known["etag"])}
    response = await shared.request(verb, path, headers=headers)
    assert (response.status_code, response.content) == (304, b"")
    for name in ("etag", "cache-control"):
        assert response.headers[name] == known[name]


@pytest.mark.clause("card.conditional")
@pytest.mark.parametrize("condition", ["", '"x"', 'W/"x"', "x", "{bare}", '"*"', ",", '"x*"'])
async def test_another_copy_is(shared: httpx.AsyncClient, condition: str) -> None:
    tag = (await shared.get(CARD)).headers["etag"]
    headers = {"If-None-Match": condition.replace("{bare}", tag.strip('"'))}
    assert (await shared.get(CARD, headers=headers)).status_code == 200


# ---- the URLs it tells ---------------------------------------------------------------------

FORWARDED = {
    "X_Forwarded_Proto": "https",
    "X_Forwarded_Host": "agents.example:8443",
    "X_Forwarded_Prefix": "/travel",
}


@pytest.mark.clause("card.interfaces-true")
async def test_the_url_is_that_of_the_request(serve: Serve) -> None:
    http = await serve(trusted_hosts=["127.0.0.1", "[::1]", "agents.example"])
    assert await told(http) == str(http.base_url).rstrip("/")
    assert await told(http, Host="agents.example") == "http://agents.example"
    assert await told(http, Host="agents.example:81") == "http://agents.example:81"
    assert await told(http, Host="[::1]:81") == "http://[::1]:81"
    assert await told(http, OLD, Host="agents.example") == "http://agents.example"


@pytest.mark.clause("card.interfaces-true")
async def test_the_urls_answer(shared: httpx.AsyncClient) -> None:
    found = addresses((await shared.get(CARD)).json())
    body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}
    assert "result" in (await shared.post(found["JSONRPC"], json=body)).json()
    sent = await shared.post(f"{found['HTTP+JSON']}/message:send", json={"message": user("hi")})
    assert sent.status_code == 200


async def test_proxies_are_not_trusted_unasked(shared: httpx.AsyncClient) -> None:
    assert await told(shared, **FORWARDED) == str(shared.base_url).rstrip("/")
    known = (await shared.get(CARD)).content
    named = {name.replace("_", "-"): value for name, value in FORWARDED.items()}
    assert (await shared.get(CARD, headers=named)).content == known


async def test_proxies_that_are_trusted(serve: Serve) -> None:
    http = await serve(trust_forwarded=True)
    own = str(http.base_url).rstrip("/")
    assert await told(http) == own
    assert await told(http, **FORWARDED) == "https://agents.example:8443/travel"
    assert await told(http, X_Forwarded_Proto="https") == own.replace("http:", "https:")
    assert await told(http, X_Forwarded_Host="a.example, b.example") == "http://a.example"
    assert await told(http, X_Forwarded_Prefix="/travel/") == f"{own}/travel"
    assert await told(http, X_Forwarded_Proto="https,http", Host="x") == "https://x"


async def test_a_cache_is_told_what_the_card_depends_on(serve: Serve) -> None:
    told = "A2A-Version, X-Forwarded-Proto, X-Forwarded-Host, X-Forwarded-Prefix"
    for settings, expected in (
        ({}, "A2A-Version"),
        ({"trust_forwarded": True}, told),
        ({"trust_forwarded": True, "url": "https://agents.example"}, "A2A-Version"),
        (
            {"trust_forwarded": True, "url": "https://agents.example", "hsts": 60},
            "A2A-Version, X-Forwarded-Proto",
        ),
    ):
        http = await serve(**settings)
        for path in (CARD, OLD):
            card = await http.get(path)
            again = await http.get(path, headers={"If-None-Match": card.headers["etag"]})
            assert again.status_code == 304
            for answer in (card, again):
                assert answer.headers.get_list("vary") == [expected]


@pytest.mark.parametrize("url", ["https://agents.example/travel", "https://agents.example/travel/"])
async def test_the_url_of_the_settings_wins(serve: Serve, url: str) -> None:
    http = await serve(url=url, trust_forwarded=True)
    for headers in ({}, {"Host": "other.example"}, FORWARDED):
        assert await told(http, **headers) == "https://agents.example/travel"
    several = await serve(small("One"), small("Two"), url=url)
    assert await told(several, f"/two{CARD}") == "https://agents.example/travel/two"


async def test_the_root_path_of_the_server(serve: Serve) -> None:
    http = await serve(options={"root_path": "/api"}, trust_forwarded=True)
    own = str(http.base_url).rstrip("/")
    assert await told(http) == f"{own}/api"
    assert await told(http, **FORWARDED) == "https://agents.example:8443/travel/api"
    # The server here is reached through a proxy that takes the root path off.
    sent = await http.post("/message:send", json={"message": user("hi")})
    assert sent.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("root", ["/api", "/t", "/api/"])
async def test_a_server_that_leaves_the_root_path_out_of_the_path(root: str) -> None:
    """Both are met: a path that contains the root path, and one that does not."""
    app = App(small(), drain_timeout=0.1)
    async with app:
        transport = httpx.ASGITransport(app, root_path=root)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            assert await told(http) == f"http://x{root.rstrip('/')}"
            assert (await http.get("/tasks")).json()["totalSize"] == 0
            assert (await http.get(f"{root.rstrip('/')}/tasks")).status_code in (200, 404)


async def test_a_request_without_a_host() -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    async with App(small(), drain_timeout=0.1) as app:
        for server, expected in (
            (("10.0.0.7", 8000), "http://10.0.0.7:8000"),
            (("/run/agent.sock", None), "http://"),
            (None, "http://127.0.0.1"),
        ):
            sent.clear()
            scope = {"type": "http", "method": "GET", "path": CARD, "headers": [], "server": server}
            await app(scope, receive, send)
            assert sent[0]["status"] == 200
            card = v1_0.decode(AgentCard, sent[1]["body"])
            assert card.supported_interfaces[1].url.startswith(expected)


async def test_a_flood_of_hosts_does_not_grow(serve: Serve) -> None:
    http = await serve(trust_forwarded=True)
    (endpoint,) = http.app.endpoints.values()
    seen = []
    for number in range(4 * CARDS):
        host = hashlib.sha256(str(number).encode()).hexdigest()
        assert await told(http, Host=host) == f"http://{host}"
        seen.append(len(endpoint._cards))
    assert max(seen) <= CARDS
    assert await told(http) == str(http.base_url).rstrip("/")


# ---- several agents ------------------------------------------------------------------------


@pytest.mark.clause("card.interfaces-true")
async def test_several_agents(serve: Serve) -> None:
    http = await serve(small("First One"), small("Second", key="other"))
    own = str(http.base_url).rstrip("/")
    index = await http.get("/")
    assert index.status_code == 200
    assert index.json() == {
        "agents": [
            {"name": "First One", "card": f"{own}/first-one{CARD}"},
            {"name": "Second", "card": f"{own}/other{CARD}"},
        ]
    }
    for item in index.json()["agents"]:
        card = (await http.get(item["card"])).json()
        assert card["name"] == item["name"]
        place = item["card"].removesuffix(CARD)
        assert addresses(card) == {"JSONRPC": f"{place}/", "HTTP+JSON": place}
        sent = await http.post(f"{place}/message:send", json={"message": user("hi")})
        assert sent.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        listed = (await http.get(f"{place}/tasks")).json()
        assert [task["id"] for task in listed["tasks"]] == [sent.json()["task"]["id"]]
    tags = {(await http.get(f"/{key}{CARD}")).headers["etag"] for key in ("first-one", "other")}
    assert len(tags) == 2
    assert (await http.head("/")).status_code == 200


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", "/third"),
        ("GET", f"/third{CARD}"),
        ("GET", CARD),
        ("POST", "/"),
        ("POST", "/message:send"),
        ("GET", "/tasks"),
        ("GET", "/First-One/tasks"),
    ],
)
async def test_an_unknown_agent(serve: Serve, verb: str, path: str) -> None:
    http = await serve(small("First One"), small("Second", key="other"))
    response = await http.request(verb, path)
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["code"] == 404
    assert error["details"][0]["reason"] == "METHOD_NOT_FOUND"
    assert "/first-one" in error["message"]
    assert "/other" in error["message"]


# ---- health --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
async def test_health(serve: Serve, count: int) -> None:
    http = await serve(*(small(f"Agent {number}") for number in range(count)))
    for path in ("/healthz", "/readyz"):
        response = await http.get(path)
        assert (response.status_code, response.json()) == (200, {"status": "ok"})
        assert response.headers["content-type"] == "application/json"
        assert (await http.head(path)).status_code == 200


@pytest.mark.clause("errors.temporary")
@pytest.mark.parametrize("count", [1, 2])
async def test_health_while_draining(serve: Serve, count: int) -> None:
    gates = [agents.make() for _ in range(count)]
    for number, agent in enumerate(gates):
        agent.key = f"agent-{number}"
    http = await serve(*gates, drain_timeout=20)
    base = "/agent-0" if count > 1 else ""
    body = {"message": user("gate"), "configuration": {"returnImmediately": True}}
    task = (await http.post(f"{base}/message:send", json=body)).json()["task"]["id"]
    while (await http.get(f"{base}/tasks/{task}")).json()["status"]["state"][11:] != "WORKING":
        await asyncio.sleep(0.01)
    draining = asyncio.create_task(http.app.drain())
    await asyncio.sleep(0)
    ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
    assert (await http.get("/healthz")).status_code == 200
    assert (await http.get(f"{base}{CARD}")).status_code == 200
    assert (await http.get(f"{base}/tasks/{task}")).status_code == 200
    refused = await http.post(f"{base}/message:send", json={"message": user("more")})
    assert refused.status_code == 503
    assert refused.json()["error"]["details"][0]["reason"] == "UNAVAILABLE"
    assert int(refused.headers["retry-after"]) > 0
    assert not draining.done()
    gates[0].gate.set()  # type: ignore[attr-defined]
    await asyncio.wait_for(draining, 10)
    ended = (await http.get(f"{base}/tasks/{task}")).json()
    assert ended["status"]["state"] == "TASK_STATE_COMPLETED"
    assert (await http.get("/readyz")).status_code == 503


async def test_ready_again_after_a_new_start() -> None:
    app = App(small(), drain_timeout=0.1)
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        for _ in range(2):
            async with app:
                assert (await http.get("/readyz")).status_code == 200
                await app.drain()
                assert (await http.get("/readyz")).status_code == 503
