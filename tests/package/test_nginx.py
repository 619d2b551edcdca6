"""The files for nginx, with a real nginx in front of real servers."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import Agent, App, Turn
from dragoman.client import Client
from dragoman.model.types import TaskArtifactUpdateEvent
from tests.harness.server import serving
from tests.harness.services import Server, free
from tests.package.deploy_files import DEPLOY
from tests.telemetry.monitored_agent import office

PROGRAM = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
FILES = ("default.conf", "upstream.conf")
SHELL = """
daemon off;
master_process off;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""


class Nginx(Server):
    """nginx with one of our files, whose addresses are others."""

    name = "nginx"

    def __init__(self, file: str, *ports: int) -> None:
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}"
        site = (DEPLOY / "nginx" / file).read_text()
        places = {"listen 80;": f"listen 127.0.0.1:{self.port};"}
        if file == "default.conf":
            places["http://serve:8000"] = f"http://127.0.0.1:{ports[0]}"
        else:
            places["10.0.0.11:8000"] = f"127.0.0.1:{ports[0]}"
            places["10.0.0.12:8000"] = f"127.0.0.1:{ports[-1]}"
        for place, real in places.items():
            assert site.count(place) == 1, place
            site = site.replace(place, real)
        (self.folder / "site.conf").write_text(site)
        (self.folder / "nginx.conf").write_text(SHELL.format(folder=self.folder))

    def _command(self) -> list[str]:
        assert PROGRAM is not None
        return [PROGRAM, "-p", str(self.folder), "-c", str(self.folder / "nginx.conf")]


def fronted(file: str, *ports: int) -> Iterator[Nginx]:
    """It runs in front of these ports; the test is skipped where there is none."""
    if PROGRAM is None:
        pytest.skip("nginx is not installed")
    with Nginx(file, *ports) as nginx:
        yield nginx


def message(text: str) -> dict[str, Any]:
    """A send over HTTP+JSON."""
    return {"message": {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}}


@pytest.fixture
def ports() -> tuple[int, int]:
    """Of two servers."""
    return free(), free()


@pytest.fixture(params=FILES)
def nginx(request: pytest.FixtureRequest, ports: tuple[int, int]) -> Iterator[Nginx]:
    """In front of both ports; nobody need be there yet."""
    yield from fronted(request.param, *ports)


@pytest.fixture
def balancer(ports: tuple[int, int]) -> Iterator[Nginx]:
    """The one for several servers."""
    yield from fronted("upstream.conf", *ports)


@pytest.mark.parametrize("forwarded", [False, True])
async def test_the_card_tells_the_address_of_the_proxy(
    nginx: Nginx, ports: tuple[int, int], forwarded: bool
) -> None:
    async with (
        serving(App(office(), trust_forwarded=forwarded), port=ports[0]),
        httpx.AsyncClient(base_url=nginx.url) as http,
    ):
        card = (await http.get("/.well-known/agent-card.json")).json()
        told = {each["url"].rstrip("/") for each in card["supportedInterfaces"]}
        assert told == {nginx.url}, "with its port"
        assert (await http.post("/message:send", json=message("x"))).status_code == 200


async def test_a_stream_is_not_held_back(nginx: Nginx, ports: tuple[int, int]) -> None:
    agent, seen = Agent("Teller", description="Tells."), asyncio.Event()

    @agent.handler
    async def tell(turn: Turn) -> Any:
        yield turn.artifact("first", name="first")
        await seen.wait()
        yield turn.artifact("last", name="last")

    async with (
        serving(App(agent), port=ports[0]),
        Client.connect(nginx.url) as client,
        asyncio.timeout(20),
        client.stream("x") as stream,
    ):
        names = []
        async for event in stream:
            if isinstance(event, TaskArtifactUpdateEvent):
                names.append(event.artifact.name)
                seen.set()
        assert names == ["first", "last"]


async def test_servers_that_are_restarted_one_after_the_other(
    balancer: Nginx, ports: tuple[int, int]
) -> None:
    first, second = ports
    async with httpx.AsyncClient(base_url=balancer.url) as http:

        async def sends() -> list[int]:
            return [
                (await http.post("/message:send", json=message(f"{n}"))).status_code
                for n in range(4)
            ]

        async with serving(App(office()), port=second):
            assert await sends() == [200] * 4, "while the first one is away"
        async with serving(App(office()), port=first):
            assert await sends() == [200] * 4, "while the second one is away, soon after"


def test_both_files_do_the_same_with_a_request() -> None:
    common = []
    for file in FILES:
        lines = (DEPLOY / "nginx" / file).read_text().splitlines()
        begin = next(n for n, line in enumerate(lines) if "proxy_http_version" in line)
        common.append(lines[begin:])
    assert common[0] == common[1]


def test_every_file_is_tried() -> None:
    found = {path.name for path in Path(DEPLOY / "nginx").glob("*.conf")}
    assert found == set(FILES)
