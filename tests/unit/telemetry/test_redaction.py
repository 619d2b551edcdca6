"""No secret in a log, in whichever words; and who did what."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from a2a.types import a2a_pb2, a2a_pb2_grpc

from dragoman import App, Caller, Request
from dragoman.model.errors import Forbidden, Unauthenticated
from dragoman.security import encryption
from dragoman.server.settings import Settings
from dragoman.telemetry import logs
from dragoman.telemetry.logs import MASK, SHOWN, Json, Redaction, Text, logger, redacted
from tests.harness.server import serving
from tests.harness.webhooks import receiving, talker

CANARY = "canary4711feed"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """All that the library logs, as text and as JSON."""
    stream = io.StringIO()
    handlers = [logging.StreamHandler(stream), logging.StreamHandler(stream)]
    handlers[0].setFormatter(Text())
    handlers[1].setFormatter(Json())
    level = logger.level
    for handler in handlers:
        logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield stream
    logger.setLevel(level)
    for handler in handlers:
        logger.removeHandler(handler)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is not known to the next."""
    monkeypatch.setattr(logs, "_known", set())
    monkeypatch.setattr(logs, "_secrets", None)


JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJlLXgtcXdlcnR5"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"sent Bearer {CANARY}", CANARY),
        ("bearer abc.def-ghi", "abc.def-ghi"),
        ("Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpw"),
        (f"authorization: Bearer {CANARY} and {CANARY}", CANARY),
        (f"Authorization: Digest username=x, response={CANARY}", CANARY),
        (f"{{'authorization': 'Custom {CANARY}', 'x': 'y'}}", CANARY),
        (f"[(b'authorization', b'Custom {CANARY}')]", CANARY),
        (f"X-API-Key: {CANARY}", CANARY),
        (f"x-a2a-notification-token: {CANARY}", CANARY),
        (f"Cookie: a=b; session={CANARY}", CANARY),
        (f"Set-Cookie: session={CANARY}", CANARY),
        (f"GET /x?api_key={CANARY}&y=1", CANARY),
        (f'{{"access_token": "{CANARY}"}}', CANARY),
        (f"Config(token='{CANARY}', credentials='{CANARY}')", CANARY),
        (f"client_secret={CANARY}&password={CANARY}", CANARY),
        ("key whsec_MfKQ9r8GKYqrTwjU", "MfKQ9"),
        ("key whsk_MfKQ9r8GKYqrTwjU", "MfKQ9"),
        (f"got {JWT}.", "c2lnbmF0"),
        (f"postgresql://user:{CANARY}@db/x", CANARY),
    ],
)
def test_what_looks_like_a_secret(text: str, secret: str) -> None:
    shown = redacted(text)
    assert secret not in shown
    assert MASK in shown
    assert redacted(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "handler book raised KeyError",
        "webhook 7: entry after 3 not delivered (answered 500); again in 5 s",
        "HTTP Basic authentication is required, and a Bearer token.",
        "token: cannot be sent in a header",
        "push_keys: a whpk_ key is for receivers; use the whsk_ key of the pair",
        "listening on http://127.0.0.1:8000, card at http://me@a.example:80/x",
        "Idempotency-Key: was used before with a different request",
    ],
)
def test_other_words_stay(text: str) -> None:
    assert redacted(text) == text


def test_what_is_registered(log: io.StringIO) -> None:
    logs.secret("hunter2-hunter2", "abc", "")
    logger.info("it is %s, abc", "hunter2-hunter2", extra={"more": ["hunter2-hunter2"]})
    assert "hunter2" not in log.getvalue()
    assert "abc" in log.getvalue(), "too short to be told from words"


@pytest.mark.parametrize(
    ("headers", "query", "quoted"),
    [
        ({"authorization": f"Bearer {CANARY}"}, "", CANARY),
        ({"authorization": f"Bearer {CANARY}"}, "", f"bearer:{CANARY}"),
        ({"authorization": "Basic dXNlcjpjYW5hcnk0NzExZmVlZA=="}, "", CANARY),
        ({"x-api-key": CANARY}, "", CANARY),
        ({"cookie": f"a=b; sid={CANARY}"}, "", CANARY),
        ({}, f"key={CANARY}", CANARY),
    ],
)
def test_what_came_with_the_request(
    log: io.StringIO, headers: dict[str, str], query: str, quoted: str
) -> None:
    token = SHOWN.set((headers, query))
    try:
        try:
            raise LookupError(f"nobody has {quoted}")
        except LookupError:
            logger.exception("looked for %s", quoted)
    finally:
        SHOWN.reset(token)
    assert log.getvalue().count("LookupError") >= 2, "in both forms"
    assert CANARY not in log.getvalue()


def test_exceptions_and_their_causes(log: io.StringIO, caplog: pytest.LogCaptureFixture) -> None:
    try:
        try:
            raise ValueError(f"password={CANARY}")
        except ValueError as error:
            raise RuntimeError("outer") from error
    except RuntimeError:
        logger.exception("oh")
    assert CANARY not in log.getvalue()
    assert "ValueError: password=***" in log.getvalue()
    assert caplog.records[-1].exc_info is None, "others would format it anew"


def test_an_exception_that_tells_nothing_stays_one(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise RuntimeError("plain")
    except RuntimeError:
        logger.exception("oh")
    assert caplog.records[-1].exc_info is not None


class Broken:
    def __str__(self) -> str:
        raise RuntimeError(CANARY)


def test_a_log_call_never_breaks(log: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    logger.error("%s", Broken())
    logger.error("%d %s", "x")  # noqa: PLE1206
    logger.error("fine", extra={"odd": Broken()})
    logger.error(Broken())
    assert CANARY not in log.getvalue() + "".join(capsys.readouterr())
    assert log.getvalue().count("cannot format a log record") == 8


def test_it_is_cheap() -> None:
    """Microseconds a line, against some ten for the logging itself."""
    redaction = Redaction()

    def cost(message: str) -> float:
        records = [
            logging.LogRecord("dragoman", 20, "", 0, message, ("7", 3), None) for _ in range(2000)
        ]
        begun = time.thread_time()
        for record in records:
            redaction.filter(record)
        return (time.thread_time() - begun) / len(records) * 1e6

    line = "webhook %s: entry after %d not delivered (answered 500); again in 5 s"
    assert min(cost(line) for _ in range(5)) < 50
    assert min(cost(line + f" token={CANARY}") for _ in range(5)) < 100


def test_a_long_line_takes_no_longer_than_it_should() -> None:
    for text in (
        "token" * 20_000,
        "://" + "a:" * 20_000,
        "eyJ" + "a.b-" * 20_000,
        "x-" * 40_000,
        "eyJ-" * 10_000,
    ):
        begun = time.thread_time()
        redacted(f"key {text}")
        assert time.thread_time() - begun < 2.0, text[:9]


def test_settings_know_their_secrets() -> None:
    found = Settings(
        encryption_keys=("sealsealseal",),
        push_keys=("whsec_x",),
        store="postgresql://a:pa55word@h,b:other@i/x",
    )
    assert found.secrets() == ["sealsealseal", "whsec_x", "pa55word", "other"]


# ---- a whole server ------------------------------------------------------------------------


def identify(request: Request) -> Caller:
    """Knows two, and says too much when it fails."""
    shown = request.headers.get("authorization", "").removeprefix("Bearer ")
    if shown.startswith("ann"):
        return Caller(identity="ann", tenant="t")
    if shown.startswith("broken"):
        raise RuntimeError(f"no row for ({shown})")
    raise Unauthenticated("Who are you?")


async def test_a_canary_in_every_secret(tmp_path: Path, log: io.StringIO) -> None:
    key = encryption.key()
    async with receiving(500) as inbox:
        app = App(
            talker(),
            store=f"sqlite:///{tmp_path}/x.db",
            identify=identify,
            push=True,
            push_keys=("whsec_" + "Y2FuYXJ5" * 4,),
            encryption_keys=(key,),
            egress_allow=("127.0.0.1",),
            push_retries=(0.05,),
            audit=True,
            drain_timeout=0.1,
            poll=0.02,
        )
        answers = ""
        async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=20) as http:
            ann = {"authorization": f"Bearer ann-{CANARY}"}
            hook = {
                "url": f"http://127.0.0.1:{inbox.port}/hook",
                "token": f"token-{CANARY}",
                "authentication": {"scheme": "Bearer", "credentials": f"cred-{CANARY}"},
            }
            message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
            sent = await http.post(
                "/message:send",
                headers=ann,
                json={
                    "message": message,
                    "configuration": {"taskPushNotificationConfig": hook},
                },
            )
            task = sent.json()["task"]["id"]
            await inbox.end()
            for who in ("broken", "nobody"):
                for path in ("/message:send", "/"):
                    refused = await http.post(
                        path,
                        headers={"authorization": f"Bearer {who}-{CANARY}"},
                        json={"message": message},
                    )
                    assert refused.status_code in (200, 401, 500)
                    answers += refused.text
            answers += sent.text + (await http.get(f"/tasks/{task}", headers=ann)).text
    assert f"cred-{CANARY}" in str(inbox.posts), "they do go where they belong"
    said = log.getvalue()
    assert "RuntimeError" in said, "it is logged"
    assert CANARY not in said
    assert key not in said
    assert "Y2FuYXJ5" not in said
    assert CANARY not in answers
    files = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert task.encode() in files
    assert CANARY.encode() not in files


# ---- who did what --------------------------------------------------------------------------


@pytest.fixture
def audited() -> Iterator[list[dict[str, Any]]]:
    """The lines of the audit log."""
    found: list[dict[str, Any]] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(json.loads(record.getMessage()))

    handler = Lines()
    logs.auditor.addHandler(handler)
    yield found
    logs.auditor.removeHandler(handler)


def guarded(**settings: Any) -> App:
    """An application with all that an auditor wants to know of."""
    agent = talker()

    @agent.extended_card
    def extended(caller: Caller, public: Any) -> Any:
        return public

    return App(
        agent,
        identify=identify,
        push=True,
        egress_allow=("127.0.0.1",),
        cancel_grace=0.1,
        drain_timeout=0.1,
        **settings,
    )


async def everything(**settings: Any) -> None:
    """Do all of it, over both of the bindings of HTTP."""
    app = guarded(**settings)
    headers = {"authorization": "Bearer ann"}
    async with serving(app) as url, httpx.AsyncClient(base_url=url, headers=headers) as http:
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "gate"}]}
        await http.post("/message:send", headers={"authorization": "no"}, json={"message": message})
        await http.post("/other/message:send", json={"message": message})
        begun = await http.post(
            "/message:send",
            json={"message": message, "configuration": {"returnImmediately": True}},
        )
        task = begun.json()["task"]["id"]
        path = f"/tasks/{task}/pushNotificationConfigs"
        hook = await http.post(path, json={"url": "http://127.0.0.1:9/x?key=s3cr3t", "id": "h"})
        assert hook.status_code == 200, hook.text
        await http.delete(f"{path}/h")
        await http.get("/extendedAgentCard")
        await http.get("/agent/authenticatedExtendedCard")
        await http.post(f"/tasks/{task}:cancel")
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "CancelTask", "params": {"id": "none"}}
        await http.post("/", json=rpc)
        await http.get(f"/tasks/{task}")


@pytest.mark.clause("logs.security-events", "audit.trail")
async def test_who_did_what(audited: list[dict[str, Any]]) -> None:
    await everything(audit=True)
    assert [(line["event"], line["result"]) for line in audited] == [
        ("identify", "UNAUTHENTICATED"),
        ("send", "PERMISSION_DENIED"),
        ("create_webhook", "ok"),
        ("delete_webhook", "ok"),
        ("extended_card", "ok"),
        ("extended_card", "ok"),
        ("cancel", "ok"),
        ("cancel", "TASK_NOT_FOUND"),
    ]
    assert all(line["client"] == "127.0.0.1" and line["agent"] == "talker" for line in audited)
    assert [line.get("who") for line in audited] == [None, *["ann"] * 7]
    assert (audited[1]["tenant"], audited[1]["asked"]) == ("t", "other")
    made = audited[2]
    assert (made["webhook"], made["target"]) == ("h", "http://127.0.0.1")
    assert made["task"] == audited[6]["task"]
    assert "s3cr3t" not in str(audited)


async def everything_over_grpc(**settings: Any) -> None:
    """Do the same over gRPC."""
    app = guarded(grpc_port=0, **settings)
    ann = (("a2a-version", "1.0"), ("authorization", "Bearer ann"))
    part = a2a_pb2.Part(text="gate")
    message = a2a_pb2.Message(message_id="m", role=a2a_pb2.ROLE_USER, parts=[part])
    at_once = a2a_pb2.SendMessageConfiguration(return_immediately=True)
    send = a2a_pb2.SendMessageRequest(message=message, configuration=at_once)
    other = a2a_pb2.SendMessageRequest(message=message, tenant="other")
    async with app, grpc.aio.insecure_channel(f"127.0.0.1:{app.ports[0].number}") as channel:
        stub = a2a_pb2_grpc.A2AServiceStub(channel)
        for refused, who in ((send, (ann[0], ("authorization", "no"))), (other, ann)):
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.SendMessage(refused, metadata=who)
        task = (await stub.SendMessage(send, metadata=ann)).task.id
        hook = {"task_id": task, "id": "h"}
        await stub.CreateTaskPushNotificationConfig(
            a2a_pb2.TaskPushNotificationConfig(url="http://127.0.0.1:9/x?key=s3cr3t", **hook),
            metadata=ann,
        )
        await stub.DeleteTaskPushNotificationConfig(
            a2a_pb2.DeleteTaskPushNotificationConfigRequest(**hook), metadata=ann
        )
        for _ in range(2):  # as often as over HTTP, which has it at two places
            await stub.GetExtendedAgentCard(a2a_pb2.GetExtendedAgentCardRequest(), metadata=ann)
        await stub.CancelTask(a2a_pb2.CancelTaskRequest(id=task), metadata=ann)
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.CancelTask(a2a_pb2.CancelTaskRequest(id="none"), metadata=ann)
        await stub.GetTask(a2a_pb2.GetTaskRequest(id=task), metadata=ann)


@pytest.mark.clause("logs.security-events", "audit.trail")
async def test_who_did_what_over_grpc(audited: list[dict[str, Any]]) -> None:
    def same(line: dict[str, Any], task: str) -> dict[str, Any]:
        """What does not depend on the time, the binding, or the names of tasks."""
        plain = {key: value for key, value in line.items() if key not in ("time", "path")}
        return plain | ({"task": "the task"} if line.get("task") == task else {})

    await everything(audit=True)
    http = [same(line, audited[2]["task"]) for line in audited]
    audited.clear()
    await everything_over_grpc(audit=True)
    assert [same(line, audited[2]["task"]) for line in audited] == http
    assert len(http) == 8
    assert all(line["path"].startswith("/lf.a2a.v1.A2AService/") for line in audited)


async def test_nothing_by_default(audited: list[dict[str, Any]]) -> None:
    await everything()
    await everything_over_grpc()
    assert audited == []


def test_a_line_cannot_be_forged(audited: list[dict[str, Any]]) -> None:
    logs.audit("x", who='a"}\n{"event": "y', result="Bearer abc123def")
    (line,) = audited
    assert line["who"] == 'a"}\n{"event": "y'
    assert line["result"] == f"Bearer {MASK}"


def test_refusals_are_told_apart() -> None:
    assert (Forbidden.reason, Unauthenticated.reason) == ("PERMISSION_DENIED", "UNAUTHENTICATED")
