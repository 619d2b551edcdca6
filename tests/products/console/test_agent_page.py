"""The page about an agent at `/`, and that all other requests get what they got before."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import sys
from asyncio.subprocess import PIPE, STDOUT
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import App
from dragoman.cli.browser_pages import AgentPage
from dragoman.model.types import (
    AuthorizationCodeOAuthFlow,
    ClientCredentialsOAuthFlow,
    DeviceCodeOAuthFlow,
)
from dragoman.security import AllOf, ApiKey, Basic, Bearer, OAuth2
from tests.harness.server import serving
from tests.products.console import payloads
from tests.products.console.parts import TOKENS, booking

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def paged(app: App) -> App:
    """The application with the page."""
    app.answer_first(AgentPage())
    return app


async def test_a_browser_sees_the_card_as_a_page() -> None:
    async with serving(paged(App(booking(), auth=TOKENS))) as url, httpx.AsyncClient() as http:
        found = await http.get(url, headers=HTML)
        assert found.status_code == 200
        assert found.headers["content-type"] == "text/html; charset=utf-8"
        assert found.headers["vary"] == "Accept"
        text = found.text
        for word in (
            "Booking",
            "Book a flight to Rome",
            f"curl {url}",
            "Client.connect",
            "dragoman send",
        ):
            assert word in text
        assert "Authorization: Bearer" in text
        assert "<script" not in text
        assert "script-src" not in found.headers["content-security-policy"]
        head = await http.head(url, headers=HTML)
        assert (head.status_code, head.content) == (200, b"")


async def test_several_agents_are_listed() -> None:
    app = paged(App(booking(key="one"), booking(key="two")))
    async with serving(app) as url, httpx.AsyncClient() as http:
        assert f'href="{url}/two/"' in (await http.get(url, headers=HTML)).text
        assert f"{url}/two/message:send" in (await http.get(f"{url}/two/", headers=HTML)).text
        assert (await http.get(f"{url}/three/", headers=HTML)).status_code == 404


@pytest.mark.parametrize("accept", ["", "*/*", "application/json", "text/plain", "text/*"])
async def test_other_requests_get_the_same_bytes(accept: str) -> None:
    headers = {"accept": accept} if accept else {}
    agents = [booking(key="one"), booking(key="two")]
    async with (
        serving(paged(App(*agents))) as url,
        serving(App(*agents)) as plain,
        httpx.AsyncClient() as http,
    ):
        host = {"host": url.removeprefix("http://")}
        for method in ("GET", "HEAD", "POST"):
            for path in ("/", "/one/", "/one", "/three/", "/one/tasks"):
                got = await http.request(method, url + path, headers=headers)
                want = await http.request(method, plain + path, headers={**headers, **host})
                assert (got.status_code, got.content) == (want.status_code, want.content)
                varies = method != "POST" and path in ("/", "/one/", "/one")
                assert got.headers.get("vary", "") == ("Accept" if varies else "")


async def test_a_hostile_card_stays_text() -> None:
    async with serving(paged(App(payloads.hostile()))) as url, httpx.AsyncClient() as http:
        text = (await http.get(url, headers=HTML)).text
        for word in ("<script", "<img", "<svg", "<iframe", 'href="javascript'):
            assert word not in text.lower()


def shown(text: str) -> list[str]:
    """The calls on a page: with curl, in Python, and the command."""
    return [unescape(each) for each in re.findall(r"</h3><pre tabindex=0>(.*?)</pre>", text, re.S)]


async def run(*words: str, folder: Path) -> str:
    """What a command prints."""
    more = {"XDG_STATE_HOME": str(folder), "NO_COLOR": "1"}
    process = await asyncio.create_subprocess_exec(
        *words, stdout=PIPE, stderr=STDOUT, cwd=folder, env={**os.environ, **more}
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()


async def test_the_calls_on_the_page_work(tmp_path: Path) -> None:
    """With two schemes that are required together; only the credentials are filled in."""
    auth = AllOf(ApiKey(keys=["sesame"], query="pass"), Basic({"ann": "word"}))
    async with serving(paged(App(booking(), auth=auth))) as url, httpx.AsyncClient() as http:
        page = (await http.get(url, headers=HTML)).text
        assert "API key in the query <code>pass</code> and User and password" in page
        curl, python, command = (
            each.replace("YOUR-KEY", "sesame")
            .replace("USER:PASSWORD", "ann:word")
            .replace('"USER", "PASSWORD"', '"ann", "word"')
            for each in shown(page)
        )
        calls = [[sys.executable, "-c", python]]
        calls.append([sys.executable, "-m", "dragoman", *shlex.split(command)[1:]])
        if shutil.which("curl"):
            calls.append(["sh", "-c", curl])
        for printed in await asyncio.gather(*(run(*call, folder=tmp_path) for call in calls)):
            assert "Booked: Book a flight to Rome" in printed


FLOW = AuthorizationCodeOAuthFlow(
    authorization_url="https://id.example/authorize",
    token_url="https://id.example/token",
    scopes={"talk": "Talk to the agent."},
)
VERIFY = Bearer(issuer="https://id.example", audience="flights", jwks={"keys": []}, scopes=["talk"])
DEVICE = DeviceCodeOAuthFlow(
    device_authorization_url="https://id.example/device",
    token_url="https://id.example/token",
    scopes={},
)
MACHINE = ClientCredentialsOAuthFlow(token_url="https://id.example/token", scopes={})


@pytest.mark.parametrize(
    ("flow", "how", "option"),
    [
        (
            FLOW,
            "log in with a browser (authorization code with PKCE)",
            "--client-id YOUR-CLIENT-ID ",
        ),
        (DEVICE, "log in with a code on another device", "--client-id YOUR-CLIENT-ID "),
        (MACHINE, "log in with the client&#x27;s secret", "--issuer https://id.example "),
    ],
)
async def test_the_page_says_how_to_log_in_with_oauth(flow: Any, how: str, option: str) -> None:
    auth = OAuth2(verify=VERIFY, flow=flow)
    async with serving(paged(App(booking(), auth=auth))) as url, httpx.AsyncClient() as http:
        page = (await http.get(url, headers=HTML)).text
        assert "the authorization server</a> (id.example)" in page
        assert how in page
        assert "with the scope <code>talk</code>" in page
        curl, python, command = shown(page)
        assert "-H 'Authorization: Bearer YOUR-TOKEN'" in curl
        assert 'OAuth("YOUR-CLIENT-ID"' in python
        assert option in command
        compile(python, "page", "exec")
        assert "<script" not in page
