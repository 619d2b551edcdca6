"""Operators log in on the page of the console, with each scheme that a server can have."""

from __future__ import annotations

import json
import re
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import pytest_asyncio
from joserfc.jwk import ECKey

from dragoman import App, Caller
from dragoman.console import Console, session
from dragoman.console.session import LIFETIME
from dragoman.model.types import AuthorizationCodeOAuthFlow
from dragoman.security import AllOf, ApiKey, Basic, Bearer, Certificate, OAuth2, OpenId
from tests.client.authorization_server import SECRET, Authority, presiding
from tests.harness.raw_server import Certificate as Files
from tests.harness.server import served
from tests.products.console.browser import needs_browser, watched
from tests.products.console.parts import ACT, Running, booking, consoled

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = pytest.mark.asyncio(loop_scope="module")

OLGA = Caller(identity="olga", scopes=frozenset({"operator"}))
TOM = Caller(identity="tom")
HTML = {"accept": "text/html"}
AUDIENCE = "flights"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def authority() -> AsyncIterator[Authority]:
    async with presiding() as found:
        found.key = ECKey.generate_key("P-256", {"kid": "one", "use": "sig", "alg": "ES256"})
        found.told = {"aud": AUDIENCE, "scope": "operator talk"}
        found.scopes_supported = ["operator", "talk", "openid"]
        found.document = {"scopes_supported": found.scopes_supported}
        yield found


def verifier(authority: Authority) -> dict[str, Any]:
    return {"issuer": authority.url, "audience": AUDIENCE, "jwks": f"{authority.url}/keys"}


def coded(authority: Authority) -> OAuth2:
    """OAuth with a code, as a server declares it."""
    flow = AuthorizationCodeOAuthFlow(
        authorization_url=f"{authority.url}/authorize",
        token_url=f"{authority.url}/token",
        scopes={"operator": "See the console.", "talk": "Talk to the agent."},
    )
    return OAuth2(verify=Bearer(**verifier(authority)), flow=flow)


def users(name: str, password: str) -> Caller | None:
    """Who has this password."""
    return {"olga": OLGA, "tom": TOM}.get(name) if password == "sesame" else None


KEYS = {"sesame": OLGA, "window": TOM}
SCHEMES: dict[str, Any] = {
    "header": ApiKey(keys=KEYS, header="X-Key"),
    "query": ApiKey(keys=KEYS, query="pass"),
    "cookie": ApiKey(keys=KEYS, cookie="door"),
    "basic": Basic(verify=users),
}


async def logged_in(http: httpx.AsyncClient, base: str, **given: str) -> httpx.Response:
    """Fill the only form of the page, and send it."""
    page = await http.get("/console/", headers=HTML)
    assert page.status_code == 200
    assert "<script" not in page.text
    scheme = re.search(r'name=scheme value="([^"]+)"', page.text)
    assert scheme is not None
    for name in given:
        assert f'name="{name}" ' in page.text
    sent = {"scheme": scheme[1], **given}
    return await http.post("/console/login", data=sent, headers={**HTML, "origin": base})


@pytest.mark.parametrize("kind", list(SCHEMES))
async def test_a_key_or_a_password(kind: str) -> None:
    user = {"user": "olga"} if kind == "basic" else {}
    async with (
        consoled(App(booking(), auth=SCHEMES[kind]), open=True, terminal=False) as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        for wrong in ({**user, "secret": "wrong"}, _other(kind)):
            refused = await logged_in(http, running.url, **wrong)
            assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
        done = await logged_in(http, running.url, **user, secret="sesame")
        assert (done.status_code, done.headers["location"]) == (303, "/console/")
        assert "sesame" not in done.headers["set-cookie"]
        assert (await http.get("/console/api/session")).json()["name"] == "olga"


TOGETHER = AllOf(ApiKey(keys=KEYS, header="X-Key", realm="one"), Basic(verify=users))
ALONE = ApiKey(keys=KEYS, query="pass", name="spare", realm="two")


async def test_schemes_that_are_required_together() -> None:
    """They are one form; the other way to log in has a form of its own."""
    async with (
        consoled(App(booking(), auth=[TOGETHER, ALONE]), open=True, terminal=False) as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        page = (await http.get("/console/", headers=HTML)).text
        forms = [
            re.findall(r'name=scheme value="([^"]+)"', each) for each in page.split("<form")[1:]
        ]
        assert [len(names) for names in forms] == [2, 1]
        key, basic = forms[0]
        given = {f"secret:{key}": "sesame", f"user:{basic}": "olga", f"secret:{basic}": "sesame"}
        for name in given:
            assert f'name="{name}"' in page
        headers = {**HTML, "origin": running.url}
        for wrong in given:
            sent = {"scheme": forms[0], **given, wrong: "wrong"}
            refused = await http.post("/console/login", data=sent, headers=headers)
            assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
        sent = {"scheme": forms[0][:1], "secret": "sesame"}
        refused = await http.post("/console/login", data=sent, headers=headers)
        assert refused.status_code == 401
        sent = {"scheme": forms[0], **given}
        done = await http.post("/console/login", data=sent, headers=headers)
        assert (done.status_code, done.headers["location"]) == (303, "/console/")
        assert (await http.get("/console/api/session")).json()["name"] == "one/olga"


def _other(kind: str) -> dict[str, str]:
    """Credentials of a caller who is no operator."""
    return {"user": "tom", "secret": "sesame"} if kind == "basic" else {"secret": "window"}


@pytest.mark.parametrize("kind", ["bearer", "openid", "oauth"])
async def test_a_token_that_the_operator_has(authority: Authority, kind: str) -> None:
    scheme = {"bearer": Bearer, "openid": OpenId}.get(kind)
    auth: Any = coded(authority) if scheme is None else scheme(**verifier(authority))
    async with (
        consoled(App(booking(), auth=auth), open=True, terminal=False) as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        refused = await logged_in(http, running.url, secret="e30.e30.e30")
        assert refused.status_code == 401
        done = await logged_in(http, running.url, secret=await _token(authority))
        assert done.status_code == 303
        assert (await http.get("/console/api/session")).json()["name"] == "robot"


async def _token(authority: Authority) -> str:
    async with httpx.AsyncClient() as http:
        data = {"grant_type": "client_credentials", "client_id": "robot", "client_secret": SECRET}
        answer = await http.post(f"{authority.url}/token", data=data)
        token: str = answer.json()["access_token"]
        return token


async def test_a_client_certificate(tmp_path: Path) -> None:
    folders = tmp_path / "server", tmp_path / "olga"
    for folder in folders:
        folder.mkdir()
    own, known = (Files(folder, "127.0.0.1", "localhost") for folder in folders)
    scheme = Certificate(identity=lambda found: OLGA)
    app = App(
        booking(),
        auth=scheme,
        drain_timeout=0.1,
        cert=str(own.file),
        ca=str(known.file),
        ca_optional=True,
    )
    console = Console(open=True)
    app.answer_first(console, close=console.close)
    async with served(app) as server:
        context = own.client()
        async with httpx.AsyncClient(base_url=server.url, verify=context) as nobody:
            page = await nobody.get("/console/", headers=HTML)
            assert "The browser sends its certificate." in page.text
            refused = await logged_in(nobody, server.url)
            assert refused.status_code == 401
        context.load_cert_chain(known.file)
        async with httpx.AsyncClient(base_url=server.url, verify=context) as http:
            assert (await http.get("/console/api/session")).json()["name"] == "olga"
            data, origin = {"scheme": scheme.name}, {"origin": server.url}
            done = await http.post("/console/login", data=data, headers=origin)
            assert done.status_code == 303
            assert "Secure" in done.headers["set-cookie"]


@pytest_asyncio.fixture(loop_scope="module")
async def running(authority: Authority) -> AsyncIterator[Running]:
    app = App(booking(), auth=coded(authority))
    async with consoled(app, open=True, terminal=False) as found:
        yield found


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["oauth", "openid"])
async def test_a_person_logs_in_at_the_authorization_server(
    chromium: Browser, authority: Authority, kind: str
) -> None:
    auth: Any = coded(authority) if kind == "oauth" else OpenId(**verifier(authority))
    app = App(booking(), auth=auth)
    async with (
        consoled(app, open=True, terminal=False) as running,
        watched(chromium) as seen,
    ):
        page: Any = seen.page
        await page.goto(f"{running.url}/console/")
        await page.fill("input[name=client]", "app")
        await page.click(f"button:has-text('Log in at {authority.url}')")
        await page.wait_for_selector(".top .who:has-text('ann')")
        assert page.url.startswith(f"{running.url}/console/")
        assert "code=" not in page.url
        asked = authority.other_forms[-1]
        assert asked["code_challenge_method"] == "S256"
        assert asked["redirect_uri"] == f"{running.url}/console/login/code"
        assert "operator" in asked["scope"].split()
        assert seen.errors == []
        assert all(url.startswith((running.url, authority.url)) for url in seen.requests)


async def _begun(http: httpx.AsyncClient, base: str) -> str:
    """Begin a log-in, and return where the browser is sent to."""
    data = {"scheme": "oauth2", "client": "app"}
    sent = await http.post("/console/login", data=data, headers={"origin": base})
    assert sent.status_code == 200, sent.text
    refresh: str = sent.headers["refresh"]
    assert "SameSite=Lax" in sent.headers["set-cookie"]
    return refresh.removeprefix("0; url=")


async def test_a_code_is_only_for_the_browser_that_has_begun(
    authority: Authority, running: Running
) -> None:
    async with (
        httpx.AsyncClient(base_url=running.url) as http,
        httpx.AsyncClient(base_url=running.url) as other,
    ):
        person = await http.get(await _begun(http, running.url))
        back = person.headers["location"]
        await _begun(other, running.url)
        for browser, url in (
            (other, back),
            (http, back.replace("state=", "state=x")),
            (http, f"{running.url}/console/login/code"),
        ):
            refused = await browser.get(url, headers=HTML)
            assert (refused.status_code, "console/login/code" in refused.text) == (404, True)
            assert "METHOD_NOT_FOUND" in refused.text
        code = parse_qs(urlsplit(back).query)["code"][0]
        assert all(form.get("code") != code for form in authority.forms)
        done = await http.get(back, headers=HTML)
        assert (done.status_code, done.headers["refresh"]) == (200, "0; url=/console/")
        assert (await http.get("/console/api/session")).json()["name"] == "ann"
        again = await http.get(back, headers=HTML)
        assert again.status_code == 401
        assert "refused" in again.text


async def test_a_person_who_is_no_operator_or_says_no(
    authority: Authority, running: Running
) -> None:
    async with httpx.AsyncClient(base_url=running.url) as http:
        authority.person = None
        refused = await http.get(await _begun(http, running.url), follow_redirects=True)
        authority.person = "ann"
        assert refused.status_code == 401
        assert "The authorization server refused" in refused.text
        told, authority.told = authority.told, {"aud": AUDIENCE, "scope": "talk"}
        plain = await http.get(await _begun(http, running.url), follow_redirects=True)
        authority.told = told
        assert plain.status_code == 401
        assert "needs a caller with the scope operator" in plain.text
        assert (await http.get("/console/api/session")).status_code == 404


async def test_an_authorization_server_that_is_away(running: Running) -> None:
    async with presiding() as gone:
        away = coded(gone)
    async with (
        consoled(App(booking(), auth=away), open=True, terminal=False) as other,
        httpx.AsyncClient(base_url=other.url) as http,
    ):
        where = await _begun(http, other.url)
        state = parse_qs(urlsplit(where).query)["state"][0]
        refused = await http.get(f"/console/login/code?code=x&state={state}")
        assert refused.status_code == 401
        assert "does not answer" in refused.text


async def test_the_query_key_of_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator of the terminal becomes a caller in the page, for the same time."""
    async with (
        consoled(App(booking(), auth=SCHEMES["query"])) as running,
        running.operator() as http,
    ):
        given = {"scheme": SCHEMES["query"].name, "secret": "window"}
        done = await http.post("/console/api/caller", content=json.dumps(given), headers=ACT)
        assert done.status_code == 200, done.text
        assert (await http.get("/console/api/session")).json()["caller"] == "tom"
        assert b64encode(b"window").decode() not in done.headers["set-cookie"]
        later = time.time() + LIFETIME - 30
        monkeypatch.setattr(session, "time", SimpleNamespace(time=lambda: later))
        again = await http.post("/console/api/caller", content=json.dumps(given), headers=ACT)
        assert again.status_code == 200, again.text
        assert 0 < int(again.headers["set-cookie"].split("Max-Age=")[1].split(";")[0]) <= 30


@asynccontextmanager
async def _in_the_chat(browser: Browser, app: App) -> AsyncIterator[tuple[Running, Any]]:
    """The chat of somebody at the terminal, who has to log in for it."""
    async with consoled(app) as running, watched(browser) as seen:
        page: Any = seen.page
        await page.goto(running.address)
        await page.click("nav >> text=Chat")
        await page.wait_for_selector("text=The agent calls need a caller.")
        yield running, page
        assert seen.errors == []


async def _talks(page: Any, name: str) -> None:
    """Check who the caller is, and that the agent answers."""
    await page.wait_for_selector(f".talk-head:has-text('as {name}')")
    await page.fill(".composer textarea", "Rome")
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".bubble.artifact:has-text('Booked: Rome')")


@needs_browser
@pytest.mark.slow
async def test_the_chat_at_the_terminal_logs_in_with_a_code(
    chromium: Browser, authority: Authority
) -> None:
    told, authority.told = authority.told, {"aud": AUDIENCE, "scope": "talk"}
    try:
        async with _in_the_chat(chromium, App(booking(), auth=coded(authority))) as (_, page):
            await page.fill("input[name=client]", "app")
            await page.click(f"button:has-text('Log in at {authority.url}')")
            await _talks(page, "ann")
            assert "code=" not in page.url
            assert "scope" not in authority.other_forms[-1]  # the card requires none
            session = await page.evaluate("fetch('/console/api/session').then((a) => a.json())")
            assert (session["acts"], session["everywhere"]) == (True, True)  # still the operator
    finally:
        authority.told = told


@needs_browser
@pytest.mark.slow
async def test_the_chat_at_the_terminal_with_two_schemes(chromium: Browser) -> None:
    async with _in_the_chat(chromium, App(booking(), auth=TOGETHER)) as (_, page):
        assert await page.locator("form.schema").count() == 1
        for field, text in zip(
            await page.locator("form.schema input:not([type=hidden])").all(),
            ("window", "tom", "sesame"),
            strict=True,
        ):
            await field.fill(text)
        await page.click("form > button:has-text('Log in')")
        await _talks(page, "tom")


async def test_a_code_for_the_chat_is_no_way_into_the_console(authority: Authority) -> None:
    """Somebody at the terminal begins; only from this machine can they go on."""
    async with (
        consoled(App(booking(), auth=coded(authority))) as running,
        running.operator() as http,
    ):
        given = {"scheme": "oauth2", "client": "app"}
        begun = await http.post("/console/api/caller", content=json.dumps(given), headers=ACT)
        assert begun.status_code == 200, begun.text
        assert "console/login/code" in begun.headers["set-cookie"]
        back = (await http.get(begun.json()["url"])).headers["location"]
        proxied = await http.get(back, headers={**HTML, "x-forwarded-for": "192.0.2.1"})
        assert proxied.status_code == 404
        assert "METHOD_NOT_FOUND" in proxied.text
        authority.person = None
        refused = await http.get(begun.json()["url"], follow_redirects=True)
        authority.person = "ann"
        assert refused.status_code == 401
        assert "The authorization server refused" in refused.text
        done = await http.get(back, headers=HTML)
        assert (done.status_code, done.headers["refresh"]) == (200, "0; url=/console/#/chat")
        shown = (await http.get("/console/api/session")).json()
        assert (shown["caller"], shown["acts"]) == ("ann", True)
        given = {"scheme": "oauth2", "client": "app"}
        bare = await http.post("/console/api/caller", content=json.dumps(given))
        assert bare.status_code == 403
