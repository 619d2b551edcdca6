"""A canary in every secret, through a real `dragoman serve` that logs all that it can: then it is
looked for everywhere, in every form in which one might write it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import httpx
import pytest
from a2a.types import a2a_pb2

from dragoman.security import encryption
from tests.harness.clients import asked
from tests.harness.command import eventually, run, server_process

NAMES = (
    *("api", "token", "password", "query", "cookie", "refused", "failed", "exception", "jwt"),
    *("hook-token", "hook-credentials", "hook-url", "proxy", "outside"),
)
SECRETS = {name: f"canary/{name}+Zq7" for name in NAMES}
PUSH = "whsec_" + base64.b64encode(b"canary-push-key-of-32-bytes-long").decode()
JWT = (
    f"eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.{SECRETS['jwt'].replace('/', '-').replace('+', '_')}"
)

AGENT = f"""
from dragoman import Agent, App, Turn
from dragoman.security import ApiKey, Basic, Token

agent = Agent("House", description="Has secrets.")

@agent.handler
async def answer(turn: Turn):
    if turn.text == "raise":
        raise RuntimeError("cannot log in: Authorization: Bearer {SECRETS["exception"]}")
    if turn.text == "ask":
        yield turn.ask("And?")
    yield turn.artifact("done")

app = App(agent, auth=[
    ApiKey(header="X-Key", keys={{"ann": {SECRETS["api"]!r}}}, realm=""),
    ApiKey(query="k", keys={{"ann": {SECRETS["query"]!r}}}, name="query", realm=""),
    ApiKey(cookie="sid", keys={{"ann": {SECRETS["cookie"]!r}}}, name="cookie", realm=""),
    Token({{"ann": {SECRETS["token"]!r}, "bob": "bob-token"}}, realm=""),
    Basic({{"ann": {SECRETS["password"]!r}}}, realm=""),
])
"""


def forms(secret: str) -> Iterator[bytes]:
    """All the ways in which somebody may have written it down."""
    raw = secret.encode()
    yield raw
    yield from (quote(secret, safe="").encode(), quote(secret).encode())
    yield quote(secret, safe="").lower().encode()
    yield from (raw.hex().encode(), raw.hex().upper().encode())
    for offset in range(3):  # inside something longer, it may begin anywhere
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            middle = encode(b"\x00" * offset + raw)[4 if offset else 0 :].rstrip(b"=")
            yield middle[: len(middle) // 4 * 4 - 4]
    yield json.dumps(secret).encode()[1:-1].replace(b"/", b"\\/")


def found(text: bytes) -> set[str]:
    """Which of the secrets are in there."""
    known = {**SECRETS, "push": PUSH, "jwt": JWT.rpartition(".")[2]}
    return {name for name, secret in known.items() if any(form in text for form in forms(secret))}


def test_what_is_looked_for_would_be_found() -> None:
    for name, secret in SECRETS.items():
        if name == "jwt":
            continue
        for text in (
            secret.encode(),
            base64.b64encode(f"ann:{secret}".encode()),
            base64.urlsafe_b64encode(f"x:{secret}!!".encode()),
            quote(secret, safe="").encode(),
            secret.encode().hex().encode(),
        ):
            assert name in found(b"before " + text + b" after"), text
    assert found(b"canary is not enough") == set()


def message(text: str) -> dict[str, Any]:
    """What a user says."""
    return {"messageId": f"m-{text}", "role": "ROLE_USER", "parts": [{"text": text}]}


def ways() -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Every way to say who one is: headers, and query."""
    login = base64.b64encode(f"ann:{SECRETS['password']}".encode()).decode()
    yield {"X-Key": SECRETS["api"]}, {}
    yield {"Authorization": f"Bearer {SECRETS['token']}"}, {}
    yield {"Authorization": f"Basic {login}"}, {}
    yield {"Cookie": f"a=b; sid={SECRETS['cookie']}"}, {}
    yield {}, {"k": SECRETS["query"]}


def wrong() -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Ways that do not lead in, with what may be right elsewhere."""
    yield {"Authorization": f"Bearer {SECRETS['refused']}"}, {}
    yield {"Authorization": f"Bearer {JWT}"}, {}
    login = base64.b64encode(f"nobody:{SECRETS['failed']}".encode()).decode()
    yield {"Authorization": f"Basic {login}"}, {}
    yield {"X-Key": SECRETS["refused"]}, {}
    yield {"Proxy-Authorization": f"Basic {SECRETS['proxy']}"}, {}
    yield {}, {"k": SECRETS["refused"]}
    yield {}, {"access_token": SECRETS["refused"]}


TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


class Caller:
    """Does all that can be done, and remembers what was answered."""

    def __init__(self, url: str, port: int) -> None:
        self.http = httpx.Client(base_url=url, headers=TRACE, timeout=20)
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.answers = b""
        """But those to her who has set a webhook and asks for it."""

    def everything(self) -> str:
        """The id of a task that has a webhook."""
        for headers, query in ways():
            sent = self._post("/message:send", {"message": message("ask")}, headers, query)
            assert sent.status_code == 200, sent.text
            self._post("/message:send", {"message": message("raise")}, headers, query)
            rpc = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
            assert "result" in self._post("/", rpc, headers, query).json()
            self._grpc(headers)
            # what goes wrong before and after one is known
            for path in ("/nothing", "/tasks/none", "/.well-known/agent-card.json", "/healthz"):
                self.answers += self.http.get(path, headers=headers, params=query).content
            for body in ("{", "[]", '{"jsonrpc":"2.0","id":1,"method":"None"}', "\xff"):
                kept = {**headers, "Content-Type": "application/json"}
                self.answers += self.http.post(
                    "/", content=body, headers=kept, params=query
                ).content
            self.answers += self.http.post("/", headers=headers, params=query, content=b"x").content
        for headers, query in wrong():
            for path in ("/message:send", "/", "/v1/message:send"):
                refused = self._post(path, {"message": message("x")}, headers, query)
                assert refused.status_code == 401
            self._grpc(headers)
            self.answers += self.http.get(
                "/.well-known/agent-card.json", headers=headers, params=query
            ).content
        # where nobody is asked who they are, secrets come all the same
        for path in ("/nothing", "/.well-known/agent-card.json", "/healthz", "/"):
            for name in ("k", "key", "api_key", "token", "sig", "code"):
                self.answers += self.http.get(path, params={name: SECRETS["outside"]}).content
        return str(sent.json()["task"]["id"])

    def _post(self, path: str, body: Any, headers: Any, query: Any) -> httpx.Response:
        answer = self.http.post(path, json=body, headers=headers, params=query)
        self.answers += answer.content + str(answer.headers).encode()
        return answer

    def _grpc(self, headers: dict[str, str]) -> None:
        metadata = [(name.lower(), value) for name, value in headers.items()]
        call = self.channel.unary_unary(
            "/lf.a2a.v1.A2AService/SendMessage",
            request_serializer=a2a_pb2.SendMessageRequest.SerializeToString,
        )
        try:
            self.answers += call(
                asked("SendMessage", {"message": message("raise")}), metadata=metadata, timeout=20
            )
        except grpc.RpcError as error:
            self.answers += str(error).encode()

    def hook(self, task: str) -> None:
        """A webhook with secrets of its own; nobody is there to take what it is sent."""
        config = {
            "id": "hook",
            "url": f"http://127.0.0.1:9/in?sig={quote(SECRETS['hook-url'], safe='')}",
            "token": SECRETS["hook-token"],
            "authentication": {"scheme": "Bearer", "credentials": SECRETS["hook-credentials"]},
        }
        path = f"/tasks/{task}/pushNotificationConfigs"
        ann, bob = {"X-Key": SECRETS["api"]}, {"Authorization": "Bearer bob-token"}
        made = self.http.post(path, json=config, headers=ann)
        assert made.status_code == 200, made.text
        # she may see what she has set; nobody else does
        assert "hook-token" in found(self.http.get(f"{path}/hook", headers=ann).content)
        for where in (path, f"{path}/hook", f"/tasks/{task}", "/tasks"):
            self.answers += self.http.get(where, headers=bob).content
        # what is wrong about a secret is said without it
        for field in ("token", "url"):
            odd = config | {field: f"{config[field]}\x00"}
            self.answers += self.http.post(path, json=odd, headers=ann).content
        cancel = self.http.post(f"/tasks/{task}:cancel", headers=ann)
        assert cancel.status_code == 200
        self.answers += cancel.content


@pytest.mark.clause("card.no-secrets", "logs.no-secrets")
@pytest.mark.parametrize(
    ("form", "sealed"), [("text", True), ("json", False)], ids=["text, sealed", "json, not sealed"]
)
def test_a_canary_in_every_secret(tmp_path: Path, form: str, sealed: bool) -> None:
    (tmp_path / "house.py").write_text(AGENT)
    key = encryption.key()
    settings = {
        "LOG_LEVEL": "debug",
        "LOG_FORMAT": form,
        "ACCESS_LOG": "true",
        "AUDIT": "true",
        "PUSH": "true",
        "PUSH_KEYS": PUSH,
        "PUSH_RETRIES": "0.05",
        "EGRESS_ALLOW": "127.0.0.1",
        "STORE": "sqlite:///x.db",
        "GRPC_PORT": "0",
        "BINDINGS": "JSONRPC,GRPC",
        "POLL": "0.05",
        "DRAIN": "0.1",
        **({"ENCRYPTION_KEYS": key} if sealed else {}),
    }
    env = {f"DRAGOMAN_{name}": value for name, value in settings.items()}
    with server_process(tmp_path, "house:app", anew=True, **env) as server:
        card = httpx.get(f"{server.url}/.well-known/agent-card.json").json()
        (port,) = (
            int(each["url"].rpartition(":")[2])
            for each in card["supportedInterfaces"]
            if each["protocolBinding"] == "GRPC" and each["protocolVersion"] == "1.0"
        )
        caller = Caller(server.url, port)
        task = caller.everything()
        caller.hook(task)
        eventually(lambda: "parked" in server.text())
        shown = b""
        for command in (
            ("db", "list"),
            ("db", "show", task, "--events"),
            ("db", "show", task, "--events", "--json"),
            ("db", "webhooks"),
            ("db", "check"),
            ("config",),
        ):
            done = run(tmp_path, *command, **env)
            assert done.returncode == 0, done.stderr
            shown += (done.stdout + done.stderr).encode()
        caller.http.close()
        caller.channel.close()
        server.end()
        log = server.log.read_bytes()
    export = run(tmp_path, "db", "export", "dump.jsonl", **env)
    assert export.returncode == 0, export.stderr
    # it was all logged, and of the secrets nothing
    for said in (b"RuntimeError", b"cannot log in", b"/nothing", b"UNAUTHENTICATED", b"parked"):
        assert said in log, said
    assert len(re.findall(rb"GET /\.well-known/agent-card\.json 200", log)) > 5
    assert found(log) == set()
    assert key.encode() not in log + caller.answers + shown
    assert found(caller.answers) == set()
    assert found(shown) == set()
    # in the file there is what is needed to deliver; the rest nobody has written down
    stored = b"".join(each.read_bytes() for each in tmp_path.glob("x.db*"))
    dump = (tmp_path / "dump.jsonl").read_bytes()
    kept = {"hook-url"} if sealed else {"hook-url", "hook-token", "hook-credentials"}
    assert found(stored) == kept
    assert found(dump) == kept
    assert key.encode() not in stored + dump
    assert (tmp_path / "dump.jsonl").stat().st_mode & 0o077 == 0
    assert (tmp_path / "x.db").stat().st_mode & 0o077 == 0
