"""Who may see the console: the terminal's address, sessions, scopes; and nobody else, to the
byte."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from dragoman import App
from dragoman.console import access, session
from tests.harness.server import serving
from tests.products.console.parts import ACT, TOKENS, Running, bearer, booking, consoled, stored

PATHS = (
    *("/console", "/console/", "/console/api/session", "/console/api/tasks", "/console/login"),
    *("/console/static/main.js", "/console/agents/booking/", "/console/?token=wrong"),
)
FORWARDED = [
    {"x-forwarded-for": "203.0.113.7"},
    {"forwarded": "for=203.0.113.7"},
    {"via": "1.1 proxy"},
    {"x-forwarded-host": "agents.example"},
]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with consoled(App(booking(), store=stored(tmp_path))) as found:
        yield found


def seen(answer: httpx.Response) -> tuple[int, bytes, list[tuple[str, str]]]:
    """What a caller sees of a response, but for the time."""
    kept = [(name, text) for name, text in answer.headers.items() if name != "date"]
    return answer.status_code, answer.content, kept


async def without(
    running: Running, app: App, requests: list[tuple[str, str, dict[str, str]]]
) -> None:
    """Compare the responses with those of the same application without a console."""
    host = running.url.removeprefix("http://")
    async with serving(app) as plain, httpx.AsyncClient() as http:
        for method, path, headers in requests:
            named = {"host": host, **headers}
            got = await http.request(method, running.url + path, headers=named)
            want = await http.request(method, plain + path, headers=named)
            assert seen(got) == seen(want), (method, path, headers)


async def test_the_address_of_the_terminal_works_once(running: Running) -> None:
    async with httpx.AsyncClient(base_url=running.url) as http:
        first = await http.get(running.address)
        assert first.status_code == 303
        assert first.headers["location"] == "/console/"
        cookie = first.headers["set-cookie"]
        for word in ("HttpOnly", "SameSite=Strict", "Path=/console"):
            assert word in cookie
        assert (await http.get("/console/")).status_code == 200
        found = (await http.get("/console/api/session")).json()
        assert found["name"] == "local operator"
        assert found["acts"] is True
    async with httpx.AsyncClient() as other:
        assert (await other.get(running.address)).status_code == 404


async def test_the_address_ends_after_ten_minutes(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "TOKEN_AGE", -1.0)
    running.fresh()
    async with httpx.AsyncClient() as http:
        assert (await http.get(running.address)).status_code == 404
    assert session.LIFETIME == 12 * 3600


async def test_a_browser_without_a_session_makes_the_terminal_print_a_new_address(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    html = {"accept": "text/html"}
    async with httpx.AsyncClient(base_url=running.url) as http:
        await http.get("/console/", headers=html)
        assert len(running.tokens) == 1  # the first one is still good
        await http.get(running.address)
        monkeypatch.setattr(access, "PAUSE", 0.0)
        http.cookies.clear()
        assert (await http.get("/console/", headers=html)).status_code == 404
        assert len(running.tokens) == 2
        assert (await http.get(running.address)).status_code == 303


@pytest.mark.parametrize("more", FORWARDED)
async def test_requests_through_a_proxy_come_from_outside(
    running: Running, more: dict[str, str]
) -> None:
    async with httpx.AsyncClient(base_url=running.url) as http:
        assert (await http.get(running.address, headers=more)).status_code == 404
        await http.get(running.address)
        assert (await http.get("/console/api/session", headers=more)).status_code == 404
        assert (await http.get("/console/api/session")).status_code == 200


async def test_a_host_that_is_not_this_machine_gets_nothing(running: Running) -> None:
    async with running.operator() as http:
        rebound = {
            "host": "evil.example:80",
            "cookie": "; ".join(f"{name}={value}" for name, value in http.cookies.items()),
        }
        assert (await http.get("/console/api/session", headers=rebound)).status_code == 421


async def test_without_a_session_the_bytes_are_those_without_a_console(
    running: Running, tmp_path: Path
) -> None:
    forged = {"cookie": "dragoman-console-80=e30.00; dragoman-console=e30.00"}
    requests = [
        (method, path, headers)
        for path in PATHS
        for method in ("GET", "POST", "DELETE", "HEAD", "OPTIONS")
        for headers in ({}, ACT, forged)
    ]
    (tmp_path / "other").mkdir()
    await without(running, App(booking(), store=stored(tmp_path / "other")), requests)


async def test_a_caller_without_the_scope_gets_the_bytes_without_a_console(tmp_path: Path) -> None:
    requests = [
        (method, path, {**headers, **who})
        for path in PATHS
        for method in ("GET", "POST", "DELETE")
        for headers in ({}, ACT)
        for who in ({}, bearer("tom"), bearer("root"), bearer("nobody"))
    ]
    (tmp_path / "other").mkdir()
    app = App(booking(), store=stored(tmp_path), auth=TOKENS)
    async with consoled(app, open=True, terminal=False) as running:
        plain = App(booking(), store=stored(tmp_path / "other"), auth=TOKENS)
        await without(running, plain, requests)


async def test_scopes_decide_what_a_caller_sees_and_does(tmp_path: Path) -> None:
    app = App(booking(), store=stored(tmp_path), auth=TOKENS)
    async with consoled(app, open=True, terminal=False) as running:
        task = await running.send("Rome", **bearer("tom"))
        async with httpx.AsyncClient(base_url=running.url) as http:
            for who, sees in (("olga", True), ("otto", True), ("rita", False), ("ada", True)):
                found = (await http.get("/console/api/tasks", headers=bearer(who))).json()
                assert [row["id"] for row in found["rows"]] == ([task["id"]] if sees else [])
                one = await http.get(f"/console/api/tasks/{task['id']}", headers=bearer(who))
                assert one.status_code == (200 if sees else 404)
            missing = await http.get("/console/api/tasks/none", headers=bearer("rita"))
            hidden = await http.get(f"/console/api/tasks/{task['id']}", headers=bearer("rita"))
            assert seen(missing) == seen(hidden)
            body = {"task": task["id"]}
            for who, status in (("olga", 403), ("otto", 200), ("ada", 403)):
                headers = {**bearer(who), **ACT}
                done = await http.post("/console/api/webhooks/redrive", json=body, headers=headers)
                assert done.status_code == status


async def test_a_person_logs_in_as_for_an_agent(tmp_path: Path) -> None:
    app = App(booking(), store=stored(tmp_path), auth=TOKENS)
    async with consoled(app, open=True, terminal=False) as running:
        origin = {"origin": running.url, "accept": "text/html"}
        async with httpx.AsyncClient(base_url=running.url) as http:
            form = await http.get("/console/", headers={"accept": "text/html"})
            assert form.status_code == 200
            assert "<script" not in form.text
            given = {"scheme": "token", "secret": "olga"}
            assert 'value="token"' in form.text
            refused = await http.post(
                "/console/login", data=given, headers={**origin, "origin": "http://evil.example"}
            )
            assert refused.status_code == 403
            wrong = await http.post(
                "/console/login", data={**given, "secret": "tom"}, headers=origin
            )
            nobody = await http.post(
                "/console/login", data={**given, "secret": "no"}, headers=origin
            )
            assert (wrong.status_code, wrong.content) == (401, nobody.content)
            done = await http.post("/console/login", data=given, headers=origin)
            assert (done.status_code, done.headers["location"]) == (303, "/console/")
            assert (await http.get("/console/api/session")).json()["name"] == "olga"


async def test_a_session_survives_a_restart_and_is_for_one_address(tmp_path: Path) -> None:
    store = stored(tmp_path)
    async with consoled(App(booking(), store=store)) as running, running.operator() as http:
        cookies, port = dict(http.cookies), int(running.url.rpartition(":")[2])
    async with (
        consoled(App(booking(), store=store), port=port) as again,
        httpx.AsyncClient(base_url=again.url, cookies=cookies) as http,
    ):
        assert (await http.get("/console/api/session")).status_code == 200
        other = {"host": f"localhost:{port}"}
        assert (await http.get("/console/api/session", headers=other)).status_code == 404
    async with (
        consoled(App(booking(), store=store), terminal=False) as closed,
        httpx.AsyncClient(base_url=closed.url, cookies=cookies) as http,
    ):
        assert (await http.get("/console/api/session")).status_code == 404


async def test_a_session_ends(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running.operator() as http:
        monkeypatch.setattr(session, "time", SimpleNamespace(time=lambda: 9e9))
        assert (await http.get("/console/api/session")).status_code == 404


async def test_what_a_browser_sends_by_itself_allows_no_action(running: Running) -> None:
    task = await running.send("Rome")
    body: Any = {"task": task["id"]}
    async with running.operator() as http:
        path = "/console/api/webhooks/redrive"
        assert (await http.post(path, json=body)).status_code == 403
        crossed = {**ACT, "sec-fetch-site": "cross-site"}
        assert (await http.post(path, json=body, headers=crossed)).status_code in (403, 404)
        foreign = {**ACT, "origin": "http://evil.example"}
        assert (await http.post(path, json=body, headers=foreign)).status_code == 403
        assert (await http.post(path, json=body, headers=ACT)).status_code == 200


async def test_looks_at_tasks_of_others_are_audited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="dragoman.audit")
    app = App(booking(), store=stored(tmp_path), auth=TOKENS)
    places = ("", "/tree", "/entries", "/at/1", "/files/1/0", "/at/1/history/0/0")
    async with consoled(app, open=True, terminal=False) as running:
        tasks = [(await running.send(f"Rome{each}", **bearer("tom")))["id"] for each in places]
        async with httpx.AsyncClient(base_url=running.url) as http:
            for task, place in zip(tasks, places, strict=True):
                for _ in range(3):  # one look
                    await http.get(f"/console/api/tasks/{task}{place}", headers=bearer("olga"))
    lines = [
        json.loads(each.getMessage()) for each in caplog.records if each.name == "dragoman.audit"
    ]
    looks = [each for each in lines if each["event"] == "operator.look"]
    assert [(each["who"], each["owner"], each["task"]) for each in looks] == [
        ("olga", "tom", task) for task in tasks
    ]
