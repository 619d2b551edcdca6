"""Headers that stand twice: whoever is in front may read the first, and the server the last."""

from __future__ import annotations

import json
from typing import Any

import grpc
import httpx
import pytest
from a2a.types import a2a_pb2, a2a_pb2_grpc

from dragoman import App
from dragoman.security import ApiKey, Basic, Certificate, Token
from tests.harness import agents
from tests.harness.raw_http import connect, request
from tests.harness.server import served, serving

AUTH = [
    Token({"ann": "one", "bob": "two"}, realm="staff"),
    ApiKey(header="X-Key", keys={"ann": "one", "bob": "two"}, realm="staff"),
    Certificate(header="X-Client-Cert", proxies=["127.0.0.0/8"], realm="staff"),
    Basic({"ann": "pw"}, realm="staff"),
]
BODY = json.dumps(
    {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}
).encode()
REPEATED = [
    ("Authorization", "Bearer one", "Bearer two"),
    ("Authorization", "Bearer one", "Bearer one"),
    ("authorization", "Bearer one", "Basic YW5uOnB3"),
    ("DPoP", "a", "b"),
    ("X-Key", "one", "two"),
    ("x-key", "wrong", "one"),
    ("X-Client-Cert", "a", "b"),
    ("Host", "localhost", "evil.example"),
    ("Content-Type", "text/plain", "application/json"),
    ("Origin", "https://evil.example", "http://localhost"),
]


@pytest.mark.parametrize(("name", "first", "second"), REPEATED)
@pytest.mark.parametrize("how", [served, serving])
async def test_over_http(how: Any, name: str, first: str, second: str) -> None:
    app = App(agents.make(), auth=AUTH, drain_timeout=0.0)
    async with how(app) as server:
        url = server if isinstance(server, str) else server.url
        for target in ("/message:send", "/", "/.well-known/agent-card.json", "/healthz"):
            async with connect(url) as connection:
                lines = [(name.encode(), first.encode()), (name.upper().encode(), second.encode())]
                if name == "Host":
                    del lines[0]  # it is there already
                await connection.send(request("POST", target, BODY, lines))
                answer = await connection.answer()
                assert answer is not None
                assert answer.status == 400, target
                assert f"{name.lower()}: the header appears more than once" in answer.body.decode()


async def test_what_may_stand_twice() -> None:
    async with (
        serving(App(agents.make(), auth=AUTH, drain_timeout=0.0)) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        lines = [("authorization", "Bearer one"), ("content-type", "application/json")]
        for name in ("X-Forwarded-For", "Accept", "A2A-Extensions", "Cookie", "X-Other"):
            headers = [*lines, (name, "a"), (name, "b")]
            answer = await http.post("/message:send", content=BODY, headers=headers)
            assert answer.status_code == 200, name


async def test_cookies_may_come_in_several_headers() -> None:
    """As HTTP/2 may split them; the key must still be there once."""
    app = App(agents.make(), auth=ApiKey(cookie="key", keys={"ann": "one"}), drain_timeout=0.0)
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
        lines = [("content-type", "application/json"), ("cookie", "a=b"), ("cookie", "key=one")]
        answer = await http.post("/message:send", content=BODY, headers=[*lines, ("cookie", "c=d")])
        assert answer.status_code == 200
        twice = [*lines, ("cookie", "key=one")]
        answer = await http.post("/message:send", content=BODY, headers=twice)
        assert answer.status_code == 400
        assert "cookie" in answer.text


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [each for each in REPEATED if each[0].islower() or each[0] in ("DPoP", "X-Key")],
)
async def test_over_grpc(name: str, first: str, second: str) -> None:
    app = App(agents.make(), auth=AUTH, grpc_port=0, drain_timeout=0.0)
    part = a2a_pb2.Part(text="hello")
    message = a2a_pb2.Message(message_id="m", role=a2a_pb2.ROLE_USER, parts=[part])
    send = a2a_pb2.SendMessageRequest(message=message)
    async with app, grpc.aio.insecure_channel(f"127.0.0.1:{app.ports[0].number}") as channel:
        stub = a2a_pb2_grpc.A2AServiceStub(channel)
        key = name.lower()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub.SendMessage(send, metadata=((key, first), (key, second)))
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert f"{key}: the header appears more than once" in failed.value.details()
        more = (("x-forwarded-for", "a"), ("x-forwarded-for", "b"))
        assert await stub.SendMessage(send, metadata=(("authorization", "Bearer one"), *more))
