"""The inspector logs in by each scheme of a card, in a real browser, and shows no credential."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from dragoman import App
from dragoman.cli.console_command import ConsoleServer
from tests.client.authorization_server import SECRET, Authority, presiding
from tests.client.protected_agent import Guard, Guarded, guarded, has, http, key
from tests.harness.server import serving
from tests.products.console.browser import FULL, Watched, long_form, needs_browser, watched
from tests.products.console.test_inspector import inspector

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

LOGGED_IN = "text=Logged in: the agent accepts the credentials."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def authority() -> AsyncIterator[Authority]:
    async with presiding() as found:
        yield found


@asynccontextmanager
async def opened(browser: Browser, agent: Guarded, **options: Any) -> AsyncIterator[Watched]:
    """The inspector of an agent, in a browser."""
    tokens: list[str] = []
    console = inspector(agent.url, tokens)
    app = App(mounts={"/": ConsoleServer()})
    app.answer_first(console, close=console.close)
    async with serving(app) as url, watched(browser, **options) as seen:
        assert console.token is not None
        console.token.print()
        await seen.page.goto(f"{url}/console/?token={tokens[-1]}")
        await seen.page.click(".messages >> text=Log in")
        yield seen
        assert seen.errors == []
        assert seen.foreign(url) == []


def base(seen: Watched) -> str:
    """The address of the inspector."""
    return str(seen.page.url).partition("/console/")[0]


async def greeting(seen: Watched) -> str:
    """What the agent answers in the chat."""
    page: Any = seen.page
    await page.fill(".composer textarea", "hello")
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".bubble.artifact:has-text(':')")
    found: str = await page.inner_text(".bubble.artifact")
    return found


async def shown_wire(seen: Watched) -> str:
    """Everything that the view of the wire has, in its API."""
    script = """async () => {
      const get = async (path) => (await fetch("/console/api/" + path)).text();
      const all = JSON.parse(await get("wire")).exchanges;
      const each = await Promise.all(all.map((one) => get("wire/" + one.number)));
      return JSON.stringify(all) + each.join("\\n");
    }"""
    found: str = await seen.page.evaluate(script)
    return found


KEYS: dict[str, tuple[Any, Guard, dict[str, str]]] = {
    "header": (key("header", "x-flight"), has(x_flight="sesame"), {"secret": "sesame"}),
    "query": (key("query", "pass"), has(query=[("pass", "sesame")]), {"secret": "sesame"}),
    "cookie": (key("cookie", "door"), has(cookie="door=sesame"), {"secret": "sesame"}),
    "bearer": (http("bearer"), has(authorization="Bearer sesame"), {"secret": "sesame"}),
    "basic": (
        http("basic"),
        has(authorization="Basic YW5uOnNlc2FtZQ=="),
        {"user": "ann", "secret": "sesame"},
    ),
}
NAMES = ["query", "basic", "header", "cookie", "bearer"]


@pytest.mark.parametrize("name", NAMES if FULL else NAMES[:2])
async def test_a_key_or_a_password(chromium: Browser, name: str) -> None:
    scheme, guard, given = KEYS[name]
    async with guarded(guard) as agent:
        agent.demand({"it": scheme})
        async with opened(chromium, agent) as seen:
            page: Any = seen.page
            for field, text in given.items():
                await page.fill(f"input[name={field}]", "wrong" if field == "secret" else text)
            await page.click("form > button:has-text('Log in')")
            await page.wait_for_selector("text=Not logged in")
            await page.click(".messages >> text=Log in")
            for field, text in given.items():
                await page.fill(f"input[name={field}]", text)
            await page.click("form > button:has-text('Log in')")
            await page.wait_for_selector(LOGGED_IN)
            assert "robot" in await greeting(seen)
            assert "sesame" not in await shown_wire(seen)
            await page.click(".messages >> text=Log in")
            await page.click("text=Forget them")
            await page.fill(".composer textarea", "again")
            await page.keyboard.press("Enter")
            await page.wait_for_selector(".messages .bad")


async def begun(seen: Watched, authority: Authority, client: str, secret: str = "") -> None:
    """Fill the form for OAuth, and send it."""
    page: Any = seen.page
    await page.fill("input[name=client]", client)
    if secret:
        await page.fill("input[name=secret]", secret)
    assert authority.url in await page.inner_text("form label.check")
    await page.check("input[name=issuer]")
    await page.click("form > button:has-text('Log in')")


async def hides_tokens(seen: Watched, authority: Authority) -> None:
    """Check that the wire shows no secret of OAuth, and the browser has none."""
    wire = await shown_wire(seen)
    assert f"{authority.url}/token" in wire
    for token in authority.tokens:
        assert token.access not in wire
        assert not token.refresh or token.refresh not in wire
    assert SECRET not in wire
    stored = await seen.page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert all(token.access not in stored for token in authority.tokens)


@pytest.mark.parametrize("flow", ["code", "openid"] if FULL else ["code"])
async def test_a_code_with_pkce(chromium: Browser, authority: Authority, flow: str) -> None:
    async with guarded(authority.identify) as agent:
        agent.demand({"it": authority.scheme(flow)}, {"it": ("talk",)})
        async with opened(chromium, agent) as seen:
            page: Any = seen.page
            await begun(seen, authority, "app")
            async with page.expect_popup() as popup:
                await page.click(".note a")
            window = await popup.value
            await window.wait_for_selector("text=You can close this window")
            asked = authority.other_forms[-1]
            assert asked["code_challenge_method"] == "S256"
            assert asked["redirect_uri"] == f"{base(seen)}/callback"
            await page.wait_for_selector(LOGGED_IN)
            assert (await greeting(seen)).endswith(("ann:talk", "ann:openid talk"))
            await hides_tokens(seen, authority)
            assert (await window.goto(window.url)).status == 404  # it works once
            await window.close()


async def test_a_person_who_says_no(chromium: Browser, authority: Authority) -> None:
    async with guarded(authority.identify) as agent:
        agent.demand({"it": authority.scheme("code")})
        async with opened(chromium, agent) as seen:
            page: Any = seen.page
            await begun(seen, authority, "app")
            authority.person = None
            try:
                async with page.expect_popup() as popup:
                    await page.click(".note a")
                await (await popup.value).wait_for_selector("text=refused")
                await page.wait_for_selector("text=Not logged in")
            finally:
                authority.person = "ann"


async def test_a_server_that_nobody_has_confirmed(chromium: Browser, authority: Authority) -> None:
    """Neither the page nor the process of the inspector goes where only the card wants it."""
    async with guarded(authority.identify) as agent:
        agent.demand({"it": authority.scheme("client")})
        asked = len(authority.asked)
        async with opened(chromium, agent) as seen:
            page: Any = seen.page
            await page.fill("input[name=client]", "robot")
            await page.fill("input[name=secret]", SECRET)
            await page.evaluate("document.querySelector('input[name=issuer]').required = false")
            await page.click("form > button:has-text('Log in')")
            await page.wait_for_selector(f"text=confirm that {authority.url} is the server")
            seen.errors.clear()  # the browser reports the status 400
        assert len(authority.asked) == asked


async def test_a_device_code(chromium: Browser, authority: Authority) -> None:
    authority.interval = 0
    async with guarded(authority.identify) as agent:
        agent.demand({"it": authority.scheme("device")}, {"it": ("talk",)})
        async with opened(chromium, agent) as seen:
            await begun(seen, authority, "app")
            code = await seen.page.inner_text(".note .id")
            authority.device(code).verdict = True
            await seen.page.wait_for_selector(LOGGED_IN)
            assert "ann:talk" in await greeting(seen)
            await hides_tokens(seen, authority)


@long_form
async def test_the_credentials_of_a_client(chromium: Browser, authority: Authority) -> None:
    async with guarded(authority.identify) as agent:
        agent.demand({"it": authority.scheme("client")}, {"it": ("talk",)})
        async with opened(chromium, agent) as seen:
            await begun(seen, authority, "robot", SECRET)
            await seen.page.wait_for_selector(LOGGED_IN)
            assert "robot:talk" in await greeting(seen)
            await hides_tokens(seen, authority)


@long_form
async def test_an_access_token_that_somebody_has(chromium: Browser, authority: Authority) -> None:
    async with guarded(has(authorization="Bearer sesame")) as agent:
        agent.demand({"it": authority.scheme("code")})
        async with opened(chromium, agent) as seen:
            page: Any = seen.page
            await page.click("text=Use an access token that you have")
            await page.fill("input[name=token]", "sesame")
            await page.click("form > button:has-text('Log in')")
            await page.wait_for_selector(LOGGED_IN)
            assert "sesame" not in await shown_wire(seen)


async def test_two_schemes_that_are_both_required(chromium: Browser) -> None:
    async with guarded(has(x_flight="sesame", authorization="Bearer word")) as agent:
        agent.demand(
            {"one": key("header", "x-flight"), "two": http("bearer")}, {"one": (), "two": ()}
        )
        async with opened(chromium, agent) as seen:
            page: Any = seen.page
            await page.fill("form[data-scheme=one] input[name=secret]", "sesame")
            await page.click("form[data-scheme=one] > button:has-text('Log in')")
            await page.wait_for_selector("text=the card requires one (API key in header x-flight)")
            await page.click(".messages >> text=Log in")
            await page.fill("form[data-scheme=two] input[name=secret]", "word")
            await page.click("form[data-scheme=two] > button:has-text('Log in')")
            await page.wait_for_selector(LOGGED_IN)
