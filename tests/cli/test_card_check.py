"""`dragoman card --check`, as a process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman import App
from dragoman.cli.card_check import text
from dragoman.conformance.card_shape import Finding
from tests.cli.test_agent_commands import agent, run
from tests.client.protected_agent import guarded, has, key
from tests.client.transports import free_port
from tests.harness.server import serving

BAD = {"name": "a\x1b[31m", "skills": "none", "suportedInterfaces": []}


class Page:
    """An application that answers everything with one body."""

    def __init__(self, body: bytes, status: int = 200) -> None:
        self.body, self.status = body, status

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        head = {"type": "http.response.start", "status": self.status}
        await send(head | {"headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": self.body})


@pytest.fixture
def bad(tmp_path: Path) -> str:
    """A file with a card that no client takes."""
    file = tmp_path / "card.json"
    file.write_text(json.dumps(BAD))
    return str(file)


async def test_a_good_card() -> None:
    async with serving(App(agent())) as url:
        for target in (url, f"{url}/.well-known/agent-card.json"):
            status, out, err = await run("card", target, "--check")
            assert (status, out, err) == (0, "no problems found\n", "")
        assert await run("card", url, "--check", "--json") == (0, "", "")


async def test_a_bad_card(bad: str) -> None:
    status, out, err = await run("card", bad, "--check")
    assert (status, err) == (1, "")
    *lines, last = out.splitlines()
    assert last == "7 errors, 2 warnings"
    assert lines[0].split()[:2] == ["error", "capabilities"]
    assert "did you mean supportedInterfaces?" in " ".join(out.split())
    assert "\x1b" not in out


async def test_an_incomplete_card_is_shown_and_refused_only_here(tmp_path: Path) -> None:
    page = tmp_path / "card.json"
    interfaces = [{"url": "https://a.example", "protocolBinding": "JSONRPC"}]
    page.write_text(json.dumps({"name": "A", "supportedInterfaces": interfaces}))
    status, out, err = await run("card", str(page))
    assert (status, out.splitlines()[0]) == (0, "A ")
    assert "lacks required fields: description, supportedInterfaces[0].protocolVersion" in err
    assert err.count("\n") == 1
    status, out, err = await run("card", str(page), "--check")
    assert (status, err) == (1, "")
    assert "supportedInterfaces[0].protocolVersion" in out


async def test_findings_for_programs(bad: str) -> None:
    status, out, _ = await run("card", bad, "--check", "--json")
    findings = [json.loads(line) for line in out.splitlines()]
    assert status == 1
    assert len(findings) == 9
    assert all(finding.keys() == {"level", "field", "text"} for finding in findings)
    wrong = {
        "level": "error",
        "field": "skills",
        "text": "must be a list, not a string; put it in [ ]",
    }
    assert wrong in findings


async def test_warnings_are_no_failure(tmp_path: Path) -> None:
    async with serving(App(agent())) as url:
        _, out, _ = await run("card", url, "--json")
        file = tmp_path / "card.json"
        file.write_text(json.dumps(json.loads(out) | {"iconUrl": "http://icons.example/a.png"}))
        status, out, _ = await run("card", str(file), "--check")
    assert (status, out.splitlines()[-1]) == (0, "1 warning")


async def test_each_interface_is_dialled(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    async with (
        serving(App(agent())) as url,
        serving(Page(b"<html>Hello</html>"), lifespan="off") as page,
    ):
        _, out, _ = await run("card", url, "--json")
        ways = [
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
            {"url": f"http://{nobody}/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
            {"url": page, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
            {"url": nobody, "protocolBinding": "GRPC", "protocolVersion": "1.0"},
            {"url": url, "protocolBinding": "HTTP+JSON", "protocolVersion": "0.3"},
        ]
        file = tmp_path / "card.json"
        file.write_text(json.dumps(json.loads(out) | {"supportedInterfaces": ways}))
        status, out, _ = await run("card", str(file), "--check", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert status == 1
    assert [(item["level"], item["field"]) for item in found] == [
        ("error", f"supportedInterfaces[{place}].url") for place in (1, 2, 3)
    ]
    texts = [item["text"] for item in found]
    assert texts[0].startswith(
        f"does not answer: http://{nobody}: Connection refused; start the server"
    )
    assert texts[1].startswith("answers, but not as HTTP+JSON 1.0 requires: ")
    assert texts[2].startswith(f"does not answer: grpcs://{nobody}: ")


async def test_an_agent_that_wants_a_credential_has_answered() -> None:
    async with guarded(has(x_key="sesame")) as agent:
        agent.demand({"it": key("header", "x-key")})
        status, out, err = await run("card", agent.url, "--check", "--json")
        assert agent.requests, "it was dialled"
        assert "x-key" not in agent.requests[0].headers
    levels = {json.loads(line)["level"] for line in out.splitlines()}
    assert (status, err, levels <= {"note", "warning"}) == (0, "", True), out


async def test_a_card_of_before_is_dialled_too(tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}/"
    card = {"name": "Old", "url": nobody, "protocolVersion": "0.3.0"}
    file = tmp_path / "card.json"
    file.write_text(json.dumps(card))
    status, out, _ = await run("card", str(file), "--check", "--json")
    errors = [item for line in out.splitlines() if (item := json.loads(line))["level"] == "error"]
    assert status == 1
    assert [item["field"] for item in errors] == ["url"]
    assert "Connection refused" in errors[0]["text"]


async def test_a_page_in_place_of_a_card() -> None:
    async with serving(Page(b"<html>Hello</html>"), lifespan="off") as url:
        status, out, _ = await run("card", url, "--check")
        assert status == 1
        assert "is a web page" in out
        assert 'is "text/html"; send application/json' in " ".join(out.split())


@pytest.mark.parametrize(("answer", "words"), [(404, "there is no agent card at"), (503, "503")])
async def test_no_card(answer: int, words: str) -> None:
    async with serving(Page(b"", answer), lifespan="off") as url:
        status, out, err = await run("card", url, "--check")
    assert (status, out) == (1, "")
    assert words in err
    assert err.count("\n") == 1


def test_lines_keep_to_the_width() -> None:
    findings = [
        Finding("error", "name", "is empty; " + "give a name that people can read " * 5),
        Finding("warning", "securitySchemes.a.oauth2SecurityScheme.flows.implicit", "is old; go"),
        Finding("note", "", "is fine\x1b\n; stay"),
    ]
    for columns in (70, 80, 120):
        lines = list(text(findings, columns))
        assert max(map(len, lines)) <= columns
        begins = {line.index("is ") for line in lines if "is " in line}
        assert len(begins) == 1  # one below the other
        assert lines[-1] == "1 error, 1 warning, 1 note"
        assert "card" in lines[-2]
        assert "\\x1b\\n" in lines[-2]
